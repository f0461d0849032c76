"""Processes: what `python -m mintyard.app.processes ROLE --config FILE` runs - writer, projector or planner.

Each takes the configuration in force from the supervisor's file, says that it is up by a ready file, and ends in order on
TERM or INT; a second signal hurries it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
import uvloop

from mintyard.app.config import Config
from mintyard.app.instance import METRICS_FOLDER, read_running
from mintyard.app.journal_store import open_store
from mintyard.app.questions import Counts, CountState
from mintyard.app.sockets import PLANNER_SOCKET, socket_path
from mintyard.domain.errors import Exit, MintyardError, Unavailable
from mintyard.telemetry.logs import configure_logs
from mintyard.telemetry.metrics import leave, ledger_lines

if TYPE_CHECKING:
    from mintyard.app.planner import Planner
    from mintyard.app.projector import Lag

# Each role imports what it needs by itself: a process starts faster without SQL or kernels that it never uses.
_log = structlog.get_logger(__name__)
_RETRY_S: Final = 0.2
_PUBLISH_S: Final = 15.0
_SWITCH_S: Final = 0.001
"""The writer's threads are short of time, not of throughput."""
T = TypeVar("T")


def ready_file(config: Config, role: str) -> Path:
    return config.run_folder / f"{role}.ready"


def run_writer(config: Config) -> None:
    """Lead, or stand by, until told to stop."""
    from mintyard.app.assembly import LeaderSide
    from mintyard.app.warmup import warm_up

    sys.setswitchinterval(_SWITCH_S)
    warm_up()

    async def main() -> None:
        side = LeaderSide(config)
        stopping, hurry = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            (hurry if stopping.is_set() else stopping).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        await side.start()
        _say_ready(config, "writer")
        waiting = [loop.create_task(side.ready()), loop.create_task(stopping.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting[0].done():
            waiting[0].result()
            # What was recovered stays: the collector need not walk it again and again.
            gc.collect()
            gc.freeze()
        await stopping.wait()
        stop = loop.create_task(side.stop())
        hurried = loop.create_task(hurry.wait())
        await asyncio.wait([stop, hurried], return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():
            stop.cancel()
            await side.stop(hurry=True)
        hurried.cancel()
        waiting[0].cancel()

    uvloop.run(main())


def run_projection(config: Config) -> None:
    """Follow the journal into the read model until told to stop."""
    from mintyard.app.projector import run_projector
    from mintyard.app.read_model.database import open_read_model

    stop = _stop_event()
    store = _patiently(lambda: open_store(config.store_url), stop)
    model = _patiently(lambda: open_read_model(config.read_model_url, migrate=True), stop)
    if store is None or model is None:
        return
    try:
        _say_ready(config, "projector")
        path = config.run_folder / METRICS_FOLDER / "projector.prom"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        run_projector(store, model, stop, lambda lag: leave(path, _lag_lines(lag)))
    finally:
        model.close()
        store.close()


def run_planner(config: Config) -> None:
    """Follow the journal in memory and answer questions about it until told to stop."""
    from mintyard.app.channel_server import ChannelServer
    from mintyard.app.planner import open_planner, round_of
    from mintyard.app.warmup import warm_up

    stop = _stop_event()
    store = _patiently(lambda: open_store(config.store_url), stop)
    planner = (
        _patiently(lambda: open_planner(store, round_=round_of(config)), stop) if store is not None else None
    )
    if store is None or planner is None:
        return
    warm_up()
    failed: list[BaseException] = []

    def follow() -> None:
        try:
            planner.run(stop)
        except BaseException as error:  # noqa: BLE001 (told by the main thread, which ends the process)
            failed.append(error)
            stop.set()

    async def serve() -> None:
        server = ChannelServer(socket_path(config.run_folder, PLANNER_SOCKET), planner=planner)
        await server.start()
        _say_ready(config, "planner")
        published = 0.0
        while not stop.is_set():
            await asyncio.sleep(_RETRY_S)
            if time.monotonic() - published >= _PUBLISH_S:
                published = time.monotonic()
                await asyncio.get_running_loop().run_in_executor(None, _publish_ledger, config, planner)
        await server.close()

    thread = threading.Thread(target=follow, name="mintyard-planner", daemon=True)
    thread.start()
    uvloop.run(serve())
    thread.join()
    store.close()
    if failed:
        raise failed[0]


def _publish_ledger(config: Config, planner: Planner) -> None:
    try:
        counts = planner.ask(CountState())
    except MintyardError as error:
        _log.warning("the ledger's totals can't be published", error=str(error))
        return
    if isinstance(counts, Counts):
        path = config.run_folder / METRICS_FOLDER / "planner.prom"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        leave(path, ledger_lines(counts.ledger, counts.used, counts.total))


def _lag_lines(lag: Lag) -> str:
    return (
        "# HELP mintyard_read_model_lag_records Records that the read model lacks.\n"
        "# TYPE mintyard_read_model_lag_records gauge\n"
        f"mintyard_read_model_lag_records {lag.records}\n"
        "# HELP mintyard_read_model_lag_seconds Age of the oldest of them.\n"
        "# TYPE mintyard_read_model_lag_seconds gauge\n"
        f"mintyard_read_model_lag_seconds {lag.age_ms / 1_000}\n"
    )


def _stop_event() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _patiently(make: Callable[[], T], stop: threading.Event) -> T | None:
    """What `make` makes, tried again while what it needs is not there yet; None when told to stop."""
    said = False
    while not stop.is_set():
        try:
            return make()
        except Unavailable as error:
            if not said:
                _log.warning("waiting", why=str(error))
            said = True
            stop.wait(_RETRY_S)
    return None


def _say_ready(config: Config, role: str) -> None:
    path = ready_file(config, role)
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").replace(path)


ROLES: Final[dict[str, Callable[[Config], None]]] = {
    "planner": run_planner,
    "projector": run_projection,
    "writer": run_writer,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mintyard.app.processes")
    parser.add_argument("role", choices=sorted(ROLES))
    parser.add_argument("--config", required=True, help="file that the supervisor left")
    given = parser.parse_args(arguments)
    try:
        config = read_running(given.config)
        configure_logs(config.log_level, config.log_format, given.role)
        ROLES[given.role](config)
    except MintyardError as error:
        _log.error("the process ends", error=str(error), code=error.code, remedy=error.cure)
        return int(error.exit_status)
    return int(Exit.OK)


if __name__ == "__main__":
    sys.exit(main())
