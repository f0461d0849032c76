"""Channel, the leader's end: takes frames of commands from API workers and gateways, and sends back outcomes and notices.

One connection a process, many commands a frame, one frame of outcomes a commit. Only processes of the hub's own user may
connect. A connection that doesn't read its answers isn't read from either; one that lets notices pile up is cut.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec
import structlog

from mintyard.app.decisions import Outcome, Sink
from mintyard.app.frames import (
    CHANNEL_VERSION,
    MAX_ITEMS_PER_FRAME,
    Ask,
    Commands,
    Decoder,
    Found,
    Goodbye,
    Hello,
    Message,
    Notices,
    Outcomes,
    Told,
    encode_frame,
)
from mintyard.app.link import Notice
from mintyard.app.local_link import Planner
from mintyard.app.sockets import bind_socket, peer_user
from mintyard.app.writer import Writer
from mintyard.domain.errors import (
    InvalidRequest,
    InvariantBroken,
    MintyardError,
    NotLeader,
    Overloaded,
    Problem,
)

_log = structlog.get_logger(__name__)
MAX_UNREAD_BYTES: Final = 128 * 1_024 * 1_024
MAX_QUESTIONS: Final = 256
"""Questions of one connection that the planner has not answered."""


class Taker(Protocol):
    """What commands go to: the `Writer`."""

    def offer(self, items: Any, sink: Sink) -> None: ...

    def subscribe(self, sink: Callable[[Notice], None]) -> Notice: ...

    def unsubscribe(self, sink: Callable[[Notice], None]) -> None: ...


class ChannelServer:
    """Serves a writer, a planner or both at one socket, in the loop in which it was started."""

    def __init__(self, path: Path, writer: Writer | None = None, planner: Planner | None = None) -> None:
        self.path = path
        self._writer = writer
        self._planner = planner
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        listening = bind_socket(self.path)
        self._bound = os.stat(self.path).st_ino
        self._server = await loop.create_unix_server(
            lambda: _Connection(self._writer, self._planner, self._connections), sock=listening
        )

    async def close(self) -> None:
        """Take no more connections and let the present ones go, after what was answered has been sent."""
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                # A successor may have put its own there.
                if os.stat(self.path).st_ino == self._bound:
                    self.path.unlink()
        for connection in list(self._connections):
            connection.leave(NotLeader())

    @property
    def connections(self) -> int:
        return len(self._connections)


class _Connection(asyncio.Protocol):
    def __init__(self, writer: Taker | None, planner: Planner | None, connections: set[_Connection]) -> None:
        self._writer = writer
        self._planner = planner
        self._connections = connections
        self._decoder = Decoder()
        self._greeted = False
        self._asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        user = peer_user(transport.get_extra_info("socket"))
        if user not in (-1, 0, os.getuid()):
            _log.warning("a process of another user tried to connect", user=user)
            self._transport.abort()
            return
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._writer is not None:
            self._writer.unsubscribe(self._notify)

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            _log.warning("a peer sent what is no frame", error=str(error)[:200])
            self._transport.abort()
            return
        for message in messages:
            if self._transport.is_closing():
                return
            self._heed(message)

    def _heed(self, message: Message) -> None:
        if isinstance(message, Hello):
            self._greet(message)
        elif not self._greeted:
            self.leave(InvalidRequest(why="a channel begins with a hello"))
        elif isinstance(message, Commands):
            self._execute(message)
        elif isinstance(message, Ask):
            self._ask(message)
        else:
            self.leave(InvalidRequest(why=f"{type(message).__name__} is not for the server"))

    def _greet(self, hello: Hello) -> None:
        if hello.version != CHANNEL_VERSION or self._greeted:
            self.leave(
                InvalidRequest(why=f"the channel speaks version {CHANNEL_VERSION}, not {hello.version}")
            )
            return
        self._greeted = True
        self._write(Hello(CHANNEL_VERSION))
        if hello.notices and self._writer is not None:
            self._notify(self._writer.subscribe(self._notify))

    def _execute(self, message: Commands) -> None:
        first = message.first
        try:
            if self._writer is None:
                raise InvalidRequest(why="this socket takes questions only")
            self._writer.offer(zip(message.commands, range(first, 2**63), strict=False), self._take)
        except MintyardError as error:
            problem = error.problem()
            self._write_told([Told(first + at, 0, problem) for at in range(len(message.commands))])

    def _take(self, outcomes: list[tuple[int, Outcome]]) -> None:
        """Outcomes from the writer, in its loop, which is this one."""
        if self._transport.is_closing():
            return
        self._write_told(
            [
                Told(number, 0, outcome.problem())
                if isinstance(outcome, MintyardError)
                else Told(number, outcome.seq, outcome.reply)
                for number, outcome in outcomes
            ]
        )

    def _write_told(self, told: list[Told]) -> None:
        for at in range(0, len(told), MAX_ITEMS_PER_FRAME):
            self._write(Outcomes(told[at : at + MAX_ITEMS_PER_FRAME]))

    def _notify(self, notice: Notice) -> None:
        self._write(Notices(notice))

    def _ask(self, message: Ask) -> None:
        planner = self._planner
        if planner is None:
            self._tell_problem(message.id, InvalidRequest(why="this socket takes commands only").problem())
            return
        if self._asked >= MAX_QUESTIONS:
            self._tell_problem(message.id, Overloaded(retry_after_s=1).problem())
            return
        self._asked += 1

        def answer() -> None:
            try:
                found = Found(message.id, planner.ask(message.question))
            except MintyardError as error:
                found = Found(message.id, None, error.code, error.params)
            except Exception as error:  # noqa: BLE001 (one question must not end the planner)
                _log.exception("the planner failed")
                broken = InvariantBroken(why=f"planner: {type(error).__name__}")
                found = Found(message.id, None, broken.code, broken.params)
            self._loop.call_soon_threadsafe(self._told, found)

        self._loop.run_in_executor(None, answer)

    def _told(self, found: Found) -> None:
        self._asked -= 1
        self._write(found)

    def _tell_problem(self, number: int, problem: Problem) -> None:
        self._write(Found(number, None, problem.code, problem.params))

    def _write(self, message: Message) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            _log.warning("a peer does not read; it is cut off")
            self._transport.abort()
            return
        self._transport.write(encode_frame(message))

    def leave(self, error: MintyardError) -> None:
        self._write(Goodbye(error.code, error.params))
        self._transport.close()
