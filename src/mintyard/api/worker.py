"""Worker: one API process of a hub, as the supervisor starts it - from the configuration in force to an
orderly end.

It shares the listening socket with its siblings, reaches leader and planner over their sockets, and holds
nothing that is missed when it dies."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import structlog
import uvloop

from mintyard.api.access import Gate
from mintyard.api.application import Application
from mintyard.api.call import LogReader, Services
from mintyard.api.feed import Feed
from mintyard.api.metrics import HttpMetrics, forget_former
from mintyard.api.minter import Minter
from mintyard.api.resources.watch import Watchtower
from mintyard.api.server import Server, running, server
from mintyard.api.streams import Streams
from mintyard.app.assembly import METRICS_FOLDER
from mintyard.app.channel import ChannelLink
from mintyard.app.config import Config
from mintyard.app.engines import engine_of
from mintyard.app.instance import RUNNING_FILE, read_running
from mintyard.app.journal_store import open_store
from mintyard.app.link import Link, Notice
from mintyard.app.minting import MintingService
from mintyard.app.read_model import queries
from mintyard.app.read_model.database import ReadModel, open_read_model
from mintyard.app.signing import SigningKeys
from mintyard.app.sockets import PLANNER_SOCKET, WRITER_SOCKET, socket_path
from mintyard.credentials import Validator
from mintyard.domain.errors import Exit, MintyardError, Unavailable
from mintyard.ports.engine import AttemptKey, Engine, LogChunk
from mintyard.telemetry.logs import configure_logs
from mintyard.telemetry.metrics import published

_log = structlog.get_logger(__name__)
THREADS: Final = 16
_RETRY_S: Final = 0.2
T = TypeVar("T")


class EngineLogs:
    """Reads logs by the engine that the configuration names, opened at the first read; nothing is started by
    it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._engine: Engine | None = None

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk:
        with self._lock:
            if self._engine is None:
                self._engine = engine_of(self._config)
            engine = self._engine
        return engine.read_log(key, stream, offset, limit)

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.close()
                self._engine = None


def services_of(
    config: Config,
    link: Link,
    model: ReadModel,
    watchtower: Watchtower,
    logs: LogReader,
    threads: ThreadPoolExecutor,
    *,
    told_first: bool = False,
) -> Services:
    """What an application of this hub works with. `told_first`: the link hands notices to `Feed.take` itself,
    before answers."""
    keys = SigningKeys(config.keys_folder)
    validator = Validator(keys.key_set)
    name = queries.position(model).hub or config.name
    return Services(
        link=link,
        model=model,
        gate=Gate(validator, name),
        feed=Feed(link, validator, lambda: keys.key_set, told_first=told_first),
        minter=Minter(keys, MintingService(keys, link)),
        logs=logs,
        watchtower=watchtower,
        streams=Streams(),
        threads=threads,
        now=time.time_ns,
        hub=name,
    )


async def serve(config: Config, listening: socket.socket, ready: Path | None) -> None:
    """Serve on `listening` until TERM or INT; write the process id to `ready` once requests are taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    model = await _patiently(lambda: open_read_model(config.read_model_url), stop)
    store = await _patiently(lambda: open_store(config.store_url), stop)
    if model is None or store is None:
        return
    feeds: list[Feed] = []

    def heard(notice: Notice) -> None:
        for feed in feeds:
            feed.take(notice)

    link = ChannelLink(
        socket_path(config.run_folder, WRITER_SOCKET),
        socket_path(config.run_folder, PLANNER_SOCKET),
        on_notice=heard,
        max_inflight=config.max_inflight,
    )
    logs = EngineLogs(config)
    metrics_folder = config.run_folder / METRICS_FOLDER
    metrics_folder.mkdir(mode=0o700, exist_ok=True)
    forget_former(metrics_folder, config.run_folder / RUNNING_FILE)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="api") as threads:
        services = services_of(config, link, model, Watchtower(store, model), logs, threads, told_first=True)
        feeds.append(services.feed)
        await link.start()
        application = Application(
            services, HttpMetrics(metrics_folder), published=lambda: published(metrics_folder)
        )
        http = server(application, config.stop_s, lambda: _say_ready(ready))
        ending = loop.create_task(_end(stop, http))
        async with running(application):
            await http.serve(sockets=[listening])
        ending.cancel()
        await link.close()
    logs.close()
    model.close()
    store.close()


async def _end(stop: asyncio.Event, http: Server) -> None:
    await stop.wait()
    http.should_exit = True


async def _patiently(make: Callable[[], T], stop: asyncio.Event) -> T | None:
    """What `make` makes, tried again while what it needs is not there yet; None when told to stop."""
    said = False
    while not stop.is_set():
        try:
            return make()
        except Unavailable as error:
            if not said:
                _log.warning("waiting", why=str(error))
            said = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _RETRY_S)
    return None


def _say_ready(path: Path | None) -> None:
    if path is not None:
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").replace(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mintyard.api", description="An API process of a hub.")
    parser.add_argument("--config", required=True, help="file that the supervisor left")
    parser.add_argument("--fd", type=int, required=True, help="the inherited listening socket")
    parser.add_argument(
        "--ready", type=Path, help="file that receives the process id once requests are taken"
    )
    given = parser.parse_args(arguments)
    try:
        config = read_running(given.config)
        configure_logs(config.log_level, config.log_format, "api")
        uvloop.run(serve(config, socket.socket(fileno=given.fd), given.ready))
    except MintyardError as error:
        _log.error("the process ends", error=str(error), code=error.code, remedy=error.cure)
        return int(error.exit_status)
    return int(Exit.OK)


if __name__ == "__main__":
    sys.exit(main())
