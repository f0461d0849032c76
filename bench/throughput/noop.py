"""An engine that starts and ends every attempt at once, and the outbox that carries orders to it within the writer's loop.

The outbox does what `app.dispatch` does with its threads - orders of durable records to the engine, its reports back as
commands in chunks - without threads, reconciliation and job tokens.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bench.throughput.tenants import ENGINE, NODES, nodes
from mintyard.app.effects import Start
from mintyard.app.writer import Writer
from mintyard.domain.commands import TakeReports
from mintyard.domain.errors import NotLeader
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, NodeSeen, Outcome, Report
from mintyard.ports.engine import AttemptKey, LogChunk, StartOrder, StopOrder

REPORTS_PER_COMMAND = 1_024


class NoopEngine:
    """The port `Engine`: each order is reported as started and ended by the next poll. One thread."""

    name = ENGINE

    def __init__(self) -> None:
        self._reports: list[Report] = []

    def nodes(self) -> list[NodeSeen]:
        return nodes()

    def start(self, orders: Sequence[StartOrder]) -> None:
        reports = self._reports
        for order in orders:
            reports.append(AttemptStarted(order.job, order.attempt, "boot"))
            reports.append(AttemptEnded(order.job, order.attempt, "boot", Outcome.EXITED, run_ms=1, cpu_ms=1))

    def stop(self, orders: Sequence[StopOrder]) -> None:
        """Nothing runs long enough to be stopped."""

    def poll(self, timeout_s: float) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def attempts(self) -> list[AttemptKey]:
        return []

    def acknowledge(self, ended: Sequence[AttemptKey]) -> None:
        """Nothing is kept."""

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk:
        return LogChunk(b"", offset, True)

    def close(self) -> None:
        """Nothing is held."""


class ThreadedNoopEngine(NoopEngine):
    """The same for `app.dispatch`, one of whose threads starts while the other polls; `poll` waits for the first report."""

    def __init__(self, count: int = NODES) -> None:
        super().__init__()
        self._count = count
        self._batches: queue.SimpleQueue[list[Report]] = queue.SimpleQueue()

    def nodes(self) -> list[NodeSeen]:
        return nodes(self._count)

    def start(self, orders: Sequence[StartOrder]) -> None:
        super().start(orders)
        reports, self._reports = self._reports, []
        self._batches.put(reports)

    def poll(self, timeout_s: float) -> list[Report]:
        reports: list[Report] = []
        with suppress(queue.Empty):
            reports += self._batches.get(timeout=timeout_s)
            while len(reports) < REPORTS_PER_COMMAND:
                reports += self._batches.get_nowait()
        return reports


class DirectOutbox:
    """`dispatched(jobs)` hears of orders as they leave, `completed(jobs)` of ends that are durable."""

    def __init__(
        self,
        engine: NoopEngine,
        dispatched: Callable[[list[int]], None],
        completed: Callable[[list[int]], None],
    ) -> None:
        self.engine = engine
        self.writer: Writer
        self._dispatched = dispatched
        self._completed = completed

    def resume(self, term: int) -> None:
        """A fresh hub: there is nothing to reconcile."""

    def pause(self) -> None:
        """Nothing is queued here."""

    def take(self, effects: list[Any]) -> None:
        orders = [effect.order for effect in effects if type(effect) is Start]
        self._dispatched([order.job for order in orders])
        self.engine.start(orders)
        reports = self.engine.poll(0)
        chunks = [
            reports[at : at + REPORTS_PER_COMMAND] for at in range(0, len(reports), REPORTS_PER_COMMAND)
        ]
        with suppress(NotLeader):  # the run is over
            self.writer.offer(
                [(TakeReports(ENGINE, tuple(chunk)), chunk) for chunk in chunks], self._answered, ours=True
            )

    def _answered(self, outcomes: list[tuple[Any, Any]]) -> None:
        self._completed(
            [report.job for chunk, _ in outcomes for report in chunk if type(report) is AttemptEnded]
        )
