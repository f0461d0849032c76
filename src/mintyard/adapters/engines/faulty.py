"""Faulty engine: wraps any engine and does to its reports and calls what a network, a crash or a clock may do.

For tests and simulation (house rule 7). Seeded: the same seed and calls give the same faults. It never invents a
report and, but for its own restart, never loses one for good: the port allows late, twice and out of order, not never.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from mintyard.domain.errors import EngineUnavailable
from mintyard.domain.jobs.reports import NodeGone, NodeSeen, Report
from mintyard.ports.engine import AttemptKey, Engine, LogChunk, StartOrder, StopOrder


class Faults(msgspec.Struct, frozen=True):
    """Chances in 1,000 per report or call. `delay_polls` is the most polls a report is kept back.

    `order_lost`: start or stop raises `EngineUnavailable` and did nothing; `order_unknown`: it raises, and did it.
    `dropped`: the report is withheld until `reopen`, as if the hub had crashed after reading it."""

    delayed: int = 0
    duplicated: int = 0
    reordered: int = 0
    dropped: int = 0
    order_lost: int = 0
    order_unknown: int = 0
    unavailable: int = 0
    delay_polls: int = 5


class FaultyEngine:
    """The Engine port over `inner`. `reopen` makes a new inner engine on the same state, as a restarted hub would."""

    def __init__(
        self,
        inner: Engine,
        seed: int,
        faults: Faults | None = None,
        reopen: Callable[[], Engine] | None = None,
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self.faults = faults or Faults()
        self.down = ""
        self.lost_nodes: set[str] = set()
        self._random = random.Random(seed)
        self._reopen = reopen
        self._held: list[tuple[int, Report]] = []
        self._polls = 0
        self._announced: set[str] = set()

    def _happens(self, chance: int) -> bool:
        return chance > 0 and self._random.randrange(1_000) < chance

    def _check(self) -> None:
        if self.down or self._happens(self.faults.unavailable):
            raise EngineUnavailable(engine=self.name, why=self.down or "a fault was injected")

    def restart(self) -> None:
        """Drop all that was read and not yet handed out, and open the engine again. Dropped reports come back by it."""
        if self._reopen is None:
            raise ValueError("this FaultyEngine was made without `reopen`")
        self.inner.close()
        self._held.clear()
        self._announced.clear()
        self.inner = self._reopen()

    def lose_node(self, node: str) -> None:
        """Nothing is heard of `node` and it is not listed, until `return_node`; what runs there runs on."""
        self.lost_nodes.add(node)

    def return_node(self, node: str) -> None:
        self.lost_nodes.discard(node)

    def nodes(self) -> list[NodeSeen]:
        self._check()
        return [node for node in self.inner.nodes() if node.node not in self.lost_nodes]

    def start(self, orders: Sequence[StartOrder]) -> None:
        self._order(lambda: self.inner.start(orders))

    def stop(self, orders: Sequence[StopOrder]) -> None:
        self._order(lambda: self.inner.stop(orders))

    def _order(self, act: Callable[[], None]) -> None:
        self._check()
        if self._happens(self.faults.order_lost):
            raise EngineUnavailable(engine=self.name, why="the order was lost (injected)")
        act()
        if self._happens(self.faults.order_unknown):
            raise EngineUnavailable(engine=self.name, why="the answer was lost (injected)")

    def poll(self, timeout_s: float) -> list[Report]:
        self._check()
        self._polls += 1
        fresh = self.inner.poll(0.0 if self._held else timeout_s)
        for report in fresh:
            if self._happens(self.faults.dropped):
                continue
            self._hold(report)
            if self._happens(self.faults.duplicated):
                self._hold(report)
        ready = [report for due, report in self._held if due <= self._polls]
        self._held = [(due, report) for due, report in self._held if due > self._polls]
        if self._happens(self.faults.reordered):
            self._random.shuffle(ready)
        gone = sorted(self.lost_nodes - self._announced)
        back = [node for node in self.inner.nodes() if node.node in self._announced - self.lost_nodes]
        self._announced = set(self.lost_nodes)
        return [*(NodeGone(node) for node in gone), *back, *ready]

    def _hold(self, report: Report) -> None:
        late = self._random.randint(1, self.faults.delay_polls) if self._happens(self.faults.delayed) else 0
        self._held.append((self._polls + late, report))

    def attempts(self) -> list[AttemptKey]:
        self._check()
        return self.inner.attempts()

    def acknowledge(self, ended: Sequence[AttemptKey]) -> None:
        self._order(lambda: self.inner.acknowledge(ended))

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk:
        self._check()
        return self.inner.read_log(key, stream, offset, limit)

    def close(self) -> None:
        self.inner.close()
