"""Backfill: who may start before those ahead of it, and the tables that placement behind reservations works on (S10).

EASY (Lifka 1995): the first job in order that does not fit gets the earliest start that ends of what runs allow; another may
start before it when it ends by then or uses what is spare then. Conservative (Mu'alem, Feitelson 2001): everyone who does not
fit gets one. In between, a job that has waited `patience_ms` gets one too. Ends are time limits, never predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.scheduling import queue_kernel
from mintyard.domain.scheduling.cluster import Cluster, Placement
from mintyard.domain.scheduling.layout import FAILED, JOB_OFFSET, MEMBERS
from mintyard.domain.scheduling.prediction import History, JobKinds
from mintyard.domain.scheduling.profile import FOREVER, Profile, Reservation
from mintyard.domain.scheduling.profile_kernel import RUN_COLUMNS, backfill_kernel
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.shapes import ShapeTable
from mintyard.domain.units import NS_PER_MS

MAX_CONSERVATIVE: Final = 32
"""Reservations of a conservative round: each costs a copy of the node table."""


class Times:
    """What a round knows of time: ends of what runs (`RunningJobs.rows`), kinds of what waits, run times seen."""

    __slots__ = ("history", "kinds", "runs")

    def __init__(
        self,
        runs: Callable[[], NDArray[np.int64]] | None = None,
        kinds: JobKinds | None = None,
        history: History | None = None,
    ) -> None:
        self.runs = runs or _nothing_runs
        self.kinds = kinds if kinds is not None else JobKinds()
        self.history = history if history is not None else History()


def _nothing_runs() -> NDArray[np.int64]:
    return np.zeros((0, RUN_COLUMNS), np.int64)


class Behind:
    """Placement behind reservations within a round; made when the first job does not fit."""

    def __init__(
        self,
        cluster: Cluster,
        queue: PendingQueue,
        shapes: ShapeTable,
        now: int,
        times: Times,
        table: NDArray[np.int32],
        needs: NDArray[np.int64],
    ) -> None:
        self.queue, self.now = queue, now
        self.levels = table[None]
        """`[reservations + 1, rows, nodes]`; the first is the table of now."""
        self.requests = needs[None]
        """The requests of the round for each level."""
        self._profile = Profile(cluster, shapes.numbers, times.runs(), now)
        self._limits_ms = times.kinds.limits_ms
        self._counted = 0

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        return tuple(self._profile.reservations)

    def reserve(self, job: int, need: NDArray[np.int64], placements: list[tuple[int, Placement]]) -> bool:
        """The earliest start of a waiting job, given what starts now; whether there is any."""
        self._profile.add_runs(
            (started, self._run_of(started, placement)) for started, placement in placements[self._counted :]
        )
        self._counted = len(placements)
        pending = self.queue.get(job)
        limit_ms = int(self._limits_ms[pending.kind])
        made = self._profile.reserve(job, pending.class_id, need, limit_ms, self.levels[0])
        if made is None:
            return False
        self.levels = self._profile.levels(self.levels[0])
        self.requests = np.repeat(self.requests[:1], len(self.levels), axis=0)
        return True

    def level_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the jobs in these slots of the queue: how many reservations begin before each ends if it starts now."""
        return self._levels(self._limits_ms[self.queue.column("kinds")[slots]])

    def wanted(self, local: NDArray[np.int64], classes: NDArray[np.int64], kept: int) -> NDArray[np.uint8]:
        """By kind of job: `WANTED`, or `kept` when it is known not to fit. `local` is the row in `requests` of a class, `classes`
        the class of each kind."""
        known = (classes >= 0) & (classes < len(local))
        rows = local[np.where(known, classes, 0)]
        failed = self.requests[self._levels(self._limits_ms), rows, FAILED] == 1
        return np.where(failed & known, kept, queue_kernel.WANTED).astype(np.uint8)

    def place(self, kind: int, *arguments: Any, slots: NDArray[np.int64], start: int, limit: int) -> int:
        """Place the candidates from `start` on; the index after the last one seen. `arguments` are those of the kernel between
        the tables and the jobs' levels."""
        count, eligible, is_open, typical, steps, parameters, jobs, remaining, quota, members = arguments
        end, _ = backfill_kernel(kind)(
            self.levels,
            self._profile.later,
            count,
            eligible,
            is_open,
            self.requests,
            typical,
            steps,
            parameters,
            jobs,
            self.level_of(slots),
            remaining,
            quota,
            members,
            start,
            limit,
        )
        return end

    def _levels(self, limits_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        ends = np.minimum(FOREVER, self.now + limits_ms * NS_PER_MS)
        return np.searchsorted(self._profile.starts, ends)

    def _run_of(self, job: int, placement: Placement) -> tuple[int, Placement, int]:
        pending = self.queue.get(job)
        return self.now + int(self._limits_ms[pending.kind]) * NS_PER_MS, placement, pending.class_id


def shortest_first(
    expected_ms: NDArray[np.int64],
    top: NDArray[np.int64],
    jobs: NDArray[np.int64],
    needs: NDArray[np.int64],
    start: int,
) -> None:
    """Reorder the candidates from `start` on by expected run time (SJBF), ties in their order; offsets of members anew."""
    if start >= len(jobs):
        return
    first = int(jobs[start, JOB_OFFSET])
    order = start + np.argsort(expected_ms[start:], kind="stable")
    top[start:], jobs[start:] = top[order], jobs[order]
    sizes = needs[jobs[start:, 0], MEMBERS]
    jobs[start:, JOB_OFFSET] = first + np.cumsum(sizes) - sizes


class PlannedStart(msgspec.Struct, frozen=True):
    """A reservation as a plan shows it."""

    job: int
    at: int
    placement: Placement
