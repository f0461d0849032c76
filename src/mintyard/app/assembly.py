"""Assembly: the leader's side of a hub from its configuration - writer, dispatch, channel, first start - in one event loop.

Used by the writer's process and by `EmbeddedHub`. How processes are started and watched is the supervisor's affair.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from mintyard.app.bootstrap import bootstrap, prepare_folder
from mintyard.app.channel_server import ChannelServer
from mintyard.app.config import Config
from mintyard.app.dispatch import Dispatch, EngineDispatch
from mintyard.app.engines import engine_of
from mintyard.app.instance import METRICS_FOLDER, lease_holder
from mintyard.app.job_tokens import JobTokens
from mintyard.app.journal_store import open_store
from mintyard.app.leader import Leader
from mintyard.app.local_link import LocalLink
from mintyard.app.signing import SigningKeys
from mintyard.app.sockets import WRITER_SOCKET, socket_path
from mintyard.app.writer import Writer, WriterSettings
from mintyard.domain.errors import MintyardError, Refused
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.ports.engine import Engine
from mintyard.ports.store import Store
from mintyard.telemetry.metrics import WriterMetrics

_log = structlog.get_logger(__name__)
_HOUSEKEEPING_S: Final = 1.0
__all__ = ["METRICS_FOLDER", "LeaderSide"]


class LeaderSide:
    """`await start()`, `await ready()`, `await stop()` in one loop. `engine` and `open_store` stand in for what the
    configuration names (tests)."""

    def __init__(
        self,
        config: Config,
        *,
        engine: Engine | None = None,
        store: Callable[[], Store] | None = None,
        settings: WriterSettings | None = None,
        serve: bool = True,
    ) -> None:
        self.config = config
        prepare_folder(config)
        self.keys = SigningKeys(config.keys_folder)
        self.metrics = WriterMetrics()
        self.dispatch = Dispatch()
        self.writer = Writer(
            Leader(store or (lambda: open_store(config.store_url)), lease_holder(config), config.lease_ms),
            settings
            or WriterSettings(
                tick_ms=config.tick_ms,
                round_limit=config.round_limit,
                backfill=Backfill(config.backfill),
                order=Order(config.order),
                max_inflight=config.max_inflight,
            ),
            outbox=self.dispatch,
            observer=self.metrics,
        )
        tokens = JobTokens(self.keys, config.public_url)
        self.engine = engine or engine_of(config)
        dispatch = EngineDispatch(self.engine, self.writer, tokens, failed=self.metrics.engine_failed)
        self.dispatch.add(dispatch)
        self._watch(dispatch)
        self._server = (
            ChannelServer(socket_path(config.run_folder, WRITER_SOCKET), self.writer) if serve else None
        )
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Begin to lead, or to stand by; returns once commands are taken or refused."""
        loop = asyncio.get_running_loop()
        self.link = LocalLink(self.writer, loop)
        self.dispatch.start(self.writer)
        await self.writer.start()
        if self._server is not None:
            await self._server.start()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._tasks = [loop.create_task(self._bootstrap()), loop.create_task(self._keep_house())]

    async def ready(self) -> None:
        """Wait until this process leads and the hub is founded; raises what founding is refused with."""
        await asyncio.shield(self._ready)

    async def stop(self, hurry: bool = False) -> None:
        """Take nothing more, commit what was taken, give the lease back, let the engine go. Jobs go on."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        if hurry:
            await self.writer.stop(hurry=True)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.writer.stop(), self.config.stop_s or None)
            await self.writer.stop(hurry=True)
        if self._server is not None:
            await self._server.close()
        await asyncio.get_running_loop().run_in_executor(None, self.dispatch.close)
        self.metrics.publish(self._metrics_file)

    async def _bootstrap(self) -> None:
        while not self._ready.done():
            await self.writer.leading()
            try:
                await bootstrap(self.config, self.keys, self.link, time.time_ns())
            except Refused as error:
                self._ready.set_exception(error)
                return
            except MintyardError as error:
                _log.warning("the first start is tried again", error=str(error))
                await asyncio.sleep(_HOUSEKEEPING_S)
            else:
                self._ready.set_result(None)

    async def _keep_house(self) -> None:
        self._metrics_file.parent.mkdir(mode=0o700, exist_ok=True)
        loop = asyncio.get_running_loop()
        while True:
            with suppress(MintyardError, OSError):
                self.writer.tell_key_version(self.keys.version)
            await loop.run_in_executor(None, self.metrics.publish, self._metrics_file)
            await asyncio.sleep(_HOUSEKEEPING_S)

    @property
    def _metrics_file(self) -> Any:
        return self.config.run_folder / METRICS_FOLDER / "writer.prom"

    def _watch(self, dispatch: EngineDispatch) -> None:
        watch = self.metrics.watch
        watch("commands_waiting", "Commands taken and not answered.", lambda: self.writer.queued)
        watch("leading", "1 while this process leads.", lambda: self.writer.phase == "leading")
        watch("orders_waiting", "Orders that have not left for the engine.", lambda: dispatch.queued)
        watch("engine_away", "1 while the engine can't be reached.", lambda: dispatch.away)
        watch(
            "unwritten_records",
            "Records decided and not durable.",
            lambda: self.writer.state_seq - self.writer.durable_seq,
        )
