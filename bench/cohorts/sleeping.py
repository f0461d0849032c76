"""An engine whose attempts do nothing for as long as their job's name says, in real time."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence

from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, NodeSeen, Outcome, Report
from mintyard.domain.limits import MAX_CPUS_MILLI, MAX_MEMORY_MIB
from mintyard.ports.engine import AttemptKey, LogChunk, StartOrder, StopOrder

RUN_MS = {"small": 200, "medium": 500, "large": 1_000}


class SleepingEngine:
    """The port `Engine`. One node that is never full: what runs is up to quota."""

    name = "sleeping"

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._started: list[Report] = []
        self._ends: list[tuple[float, int, int, int]] = []

    def nodes(self) -> list[NodeSeen]:
        return [NodeSeen("all", MAX_CPUS_MILLI, MAX_MEMORY_MIB)]

    def start(self, orders: Sequence[StartOrder]) -> None:
        now = time.monotonic()
        with self._changed:
            for order in orders:
                run_ms = RUN_MS[order.name]
                self._started.append(AttemptStarted(order.job, order.attempt, "boot"))
                heapq.heappush(self._ends, (now + run_ms / 1e3, order.job, order.attempt, run_ms))
            self._changed.notify()

    def stop(self, orders: Sequence[StopOrder]) -> None:
        """Nobody stops them."""

    def poll(self, timeout_s: float) -> list[Report]:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                now = time.monotonic()
                reports, self._started = self._started, []
                while self._ends and self._ends[0][0] <= now:
                    _, job, attempt, run_ms = heapq.heappop(self._ends)
                    reports.append(AttemptEnded(job, attempt, "boot", Outcome.EXITED, run_ms=run_ms))
                if reports or now >= deadline:
                    return reports
                next_end = self._ends[0][0] if self._ends else deadline
                self._changed.wait(max(0.0, min(deadline, next_end) - now))

    def attempts(self) -> list[AttemptKey]:
        return []

    def acknowledge(self, ended: Sequence[AttemptKey]) -> None:
        """Nothing is kept."""

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk:
        return LogChunk(b"", offset, True)

    def close(self) -> None:
        """Nothing is held."""
