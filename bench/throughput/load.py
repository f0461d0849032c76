"""Load within the writer's loop, as an ingress worker brings it: what arrived since the last look, in one offer.

Open loop: Poisson arrivals, and latency counts from the arrival that was due, also when the loop came late to it. Closed loop:
a fixed number of tasks in flight. Everything is timed on the monotonic clock, which is the loop's as well.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from mintyard.app.writer import Writer
from mintyard.domain.commands import Submit
from mintyard.domain.errors import Overloaded
from mintyard.domain.replies import Batch, Ticket

LOOK_S = 0.001


class Load:
    """Arrivals by tag (0, 1, ...), what became of them by job number."""

    def __init__(self, writer: Writer, mix: list[Submit], capacity: int) -> None:
        self.writer = writer
        self.mix = mix
        self.loop = asyncio.get_running_loop()
        self.due_at = np.zeros(capacity)
        self.acked_at = np.zeros(capacity)
        self.job_of = np.zeros(capacity, np.int64)
        self.dispatched_at = np.zeros(capacity + 1)
        self.completed_at = np.zeros(capacity + 1)
        self.offered = 0
        self.acked = 0
        self.completed = 0
        self.refused = 0
        self.late_s = 0.0
        """The most that a look came after its time: how far generator and writer fell behind in one loop."""
        self.stopped = False

    # --- what the writer says ---------------------------------------------------------------------------------------

    def answered(self, outcomes: list[tuple[Any, Any]]) -> None:
        now = time.monotonic()
        tags: list[int] = []
        jobs: list[int] = []
        for tag, outcome in outcomes:
            reply = getattr(outcome, "reply", outcome)
            if type(reply) is Batch:
                reply = reply.parts[0]
            if type(reply) is not Ticket:
                self.refused += 1
                if self.refused == 1:
                    print(f"refused: {reply!r}", flush=True)
                continue
            tags.append(tag)
            jobs.append(reply.job)
        self.acked_at[tags] = now
        self.job_of[tags] = jobs
        self.acked += len(tags)

    def dispatched(self, jobs: list[int]) -> None:
        self.dispatched_at[jobs] = time.monotonic()

    def ended(self, jobs: list[int]) -> None:
        self.completed_at[jobs] = time.monotonic()
        self.completed += len(jobs)
        self.refill()

    def refill(self) -> None:
        """Closed loop only."""

    def send(self, first: int, end: int) -> None:
        mix, count = self.mix, len(self.mix)
        self.offered = end
        try:
            self.writer.offer([(mix[tag % count], tag) for tag in range(first, end)], self.answered)
        except Overloaded:
            self.refused += end - first


class OpenLoad(Load):
    """Poisson arrivals at `rate` a second for `seconds`."""

    def __init__(self, writer: Writer, mix: list[Submit], rate: float, seconds: float, seed: int) -> None:
        count = round(rate * seconds)
        super().__init__(writer, mix, count)
        gaps = np.random.default_rng(seed).exponential(1 / rate, count)
        self.due_at = np.cumsum(gaps)
        self.count = count

    def start(self) -> None:
        self.due_at += time.monotonic() + 0.01
        self._look()

    def _look(self) -> None:
        now = time.monotonic()
        end = int(np.searchsorted(self.due_at, now, "right"))
        if end > self.offered:
            self.late_s = max(self.late_s, now - self.due_at[self.offered])
            self.send(self.offered, end)
        if end < self.count:
            self.loop.call_at(max(now + LOOK_S, self.due_at[end]), self._look)
        else:
            self.stopped = True


class ClosedLoad(Load):
    """`window` tasks in flight until `stop`."""

    def __init__(self, writer: Writer, mix: list[Submit], window: int, capacity: int) -> None:
        super().__init__(writer, mix, capacity)
        self.window = window

    def start(self) -> None:
        self.refill()

    def refill(self) -> None:
        end = min(self.completed + self.window, len(self.due_at))
        if not self.stopped and end > self.offered:
            self.due_at[self.offered : end] = time.monotonic()
            self.send(self.offered, end)

    def stop(self) -> None:
        self.stopped = True
