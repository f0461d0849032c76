"""Embedded hub: a whole hub in one process, in threads - for tests, the demo and notebooks. The same parts as `mintyard up`
runs as processes, without HTTP: `link`, `planner` and `read_model` are what an API application needs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, TypeVar

import structlog
import uvloop

from mintyard.app.assembly import LeaderSide
from mintyard.app.config import Config
from mintyard.app.instance import sole_instance
from mintyard.app.journal_store import open_store
from mintyard.app.link import Notice
from mintyard.app.local_link import LocalLink
from mintyard.app.planner import open_planner, round_of
from mintyard.app.projector import open_projector
from mintyard.app.read_model.database import ReadModel, open_read_model
from mintyard.app.signing import SigningKeys
from mintyard.app.tailer import Tailer
from mintyard.app.writer import WriterSettings
from mintyard.ports.engine import Engine
from mintyard.ports.store import Store
from mintyard.telemetry.logs import configure_logs

_log = structlog.get_logger(__name__)
START_TIMEOUT_S: Final = 60.0
T = TypeVar("T")


class EmbeddedHub:
    """`start()` returns when the hub leads, is founded, and can be read; `stop()` is orderly, jobs go on.

    `store` opens a connection to one and the same store each time; the default is what the configuration names.
    `read_side=False` leaves out read model and planner. Also a context manager."""

    def __init__(
        self,
        config: Config,
        *,
        engine: Engine | None = None,
        store: Callable[[], Store] | None = None,
        settings: WriterSettings | None = None,
        read_side: bool = True,
    ) -> None:
        self.config = config
        self._engine = engine
        self._open_store = store or (lambda: open_store(config.store_url))
        self._settings = settings
        self._with_read_side = read_side
        self._stack = ExitStack()
        self._stop = threading.Event()
        self.link: LocalLink
        self.leader_side: LeaderSide
        self.planner: Any = None
        self.read_model: ReadModel | None = None

    @property
    def keys(self) -> SigningKeys:
        return self.leader_side.keys

    def __enter__(self) -> EmbeddedHub:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Raises what starting raises; then nothing is left running."""
        if not structlog.is_configured():
            # Its defaults print local variables with exceptions, and those may hold tokens.
            configure_logs(self.config.log_level, self.config.log_format)
        try:
            self._stack.enter_context(sole_instance(self.config))
            self._start_loop()
            self.leader_side = LeaderSide(
                self.config, engine=self._engine, store=self._open_store, settings=self._settings, serve=False
            )
            self.run(self.leader_side.start())
            self._stack.callback(lambda: self.run(self.leader_side.stop()))
            self.run(self.leader_side.ready(), START_TIMEOUT_S)
            self.link = self.leader_side.link
            if self._with_read_side:
                self._start_read_side()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop in order; harmless when it was stopped before."""
        self._stack.close()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine in the hub's loop from another thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def _start_loop(self) -> None:
        self._loop = loop = uvloop.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="mintyard-hub", daemon=True)
        thread.start()

        def end() -> None:
            asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

        self._stack.callback(end)

    def _start_read_side(self) -> None:
        """Projector and planner follow by stores of their own, like the processes do; notices spare them the waiting."""
        store = self._open_store()
        self._stack.callback(store.close)
        self.read_model = open_read_model(self.config.read_model_url, migrate=True)
        self._stack.callback(self.read_model.close)
        tailer = Tailer(store, open_projector(store, self.read_model))
        planner_store = self._open_store()
        self._stack.callback(planner_store.close)
        self.planner = planner = open_planner(planner_store, round_=round_of(self.config))
        for name, follow in (("projector", tailer.run), ("planner", planner.run)):
            thread = threading.Thread(target=follow, args=(self._stop,), name=f"mintyard-{name}", daemon=True)
            thread.start()
            self._stack.callback(thread.join)
        self._stack.callback(self._stop.set)

        def news(_: Notice) -> None:
            tailer.notify()
            planner.notify()

        async def subscribe() -> None:
            self.leader_side.writer.subscribe(news)

        self.run(subscribe())
        self.link = self.leader_side.link = LocalLink(self.leader_side.writer, self._loop, planner)
