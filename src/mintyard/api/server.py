"""Server: an application on a socket - uvicorn with uvloop and httptools - from start to an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mintyard.api.application import Application

KEEP_ALIVE_S: Final = 75
BACKLOG: Final = 2_048
_PUBLISH_EVERY_S: Final = 1.0


@contextlib.asynccontextmanager
async def running(application: Application) -> AsyncIterator[Application]:
    """The application with what it needs in the background: the feed of notices, and its counts shown to its
    siblings."""
    application.services.feed.start()
    publishing = asyncio.get_running_loop().create_task(_publish(application), name="metrics")
    try:
        yield application
    finally:
        publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing
        await application.services.feed.stop()
        application.metrics.publish()


async def _publish(application: Application) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_PUBLISH_EVERY_S)
        application.metrics.token_misses = application.services.gate.validator.misses
        await loop.run_in_executor(application.services.threads, application.metrics.publish)


def listening_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound, listening socket; `shared` lets several processes bind the same port (SO_REUSEPORT)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((host, port))
    bound.listen(BACKLOG)
    bound.set_inheritable(True)
    return bound


class _OneWrite:
    """A transport that gives what is written in one turn of the loop to the system at once: an answer's head and body would
    else be two calls and two packets. All but writing is the real transport's."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parts: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._flush()
        self._transport.set_protocol(protocol)

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class _Protocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(cast(asyncio.Transport, _OneWrite(transport)))


class Server(uvicorn.Server):
    """Lets the application drain before connections are closed. Signals are its owner's affair."""

    def __init__(self, config: uvicorn.Config, application: Application, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._application = application
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.drain()
        await super().shutdown(sockets)


def server(
    application: Application, stop_s: float = 30.0, ready: Callable[[], None] = lambda: None
) -> Server:
    """A server of `application`. On `should_exit` it takes no connection more and ends the requests
    under way, within `stop_s`; what comes meanwhile on open connections is told to come again."""
    app: Any = application
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, int(stop_s)),
        backlog=BACKLOG,
    )
    return Server(config, application, ready)
