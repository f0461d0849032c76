"""What is free when: who ends when (`RunningJobs`), and reservations in time (`Profile`). No queue, no policy, no clock.

A reservation is the earliest instant at which a request fits by the ends of what runs, if nothing but reservations made before it
came in between, with nodes and GPUs. Ends are upper bounds (time limits), so it comes true then or earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.scheduling import profile_kernel as kernel
from mintyard.domain.scheduling.cluster import Cluster, Placement
from mintyard.domain.scheduling.layout import ELIGIBLE, MEMBERS
from mintyard.domain.units import NS_PER_MS

FOREVER: Final = 1 << 62
"""Later than any end."""
Run = tuple[int, Placement, int]
"""By when a job has ended (ns), its placement, the class of its shape."""


class HasNumber(Protocol):
    """A job by its number."""

    id: int


Job = TypeVar("Job", bound=HasNumber)


class RunningJobs(Generic[Job]):
    """Ends of what runs as rows sorted by time. Starts and ends are only noted; rows are made when somebody asks, and a job
    that has come and gone meanwhile costs nothing more."""

    def __init__(self, describe: Callable[[Job], Run]) -> None:
        self.started: dict[int, Job] = {}
        """Placed since `rows` was asked for. Whoever places many adds them here."""
        self._describe = describe
        self._gone: list[tuple[int, int]] = []
        self._rows = np.zeros((0, kernel.RUN_COLUMNS), np.int64)

    def start(self, job: Job) -> None:
        """A job is placed."""
        self.started[job.id] = job

    def end(self, job: Job) -> None:
        """A job gives its resources back; its description must still be the one that it was placed with."""
        if self.started.pop(job.id, None) is None:
            self._gone.append((self._describe(job)[0], job.id))

    def rows(self) -> NDArray[np.int64]:
        """One row a member of what runs, in the columns of `profile_kernel`, by end and job."""
        if self._gone or self.started:
            fresh = run_rows((number, self._describe(job)) for number, job in self.started.items())
            gone = np.array(sorted(self._gone), np.int64).reshape(-1, 2)
            self._rows = kernel.merge_runs(self._rows, gone, fresh)
            self.started, self._gone = {}, []
        return self._rows


def run_rows(runs: Iterable[tuple[int, Run]]) -> NDArray[np.int64]:
    """(job number, what it holds until when) as sorted rows."""
    listed = [
        (end, job, node, mask, shape_class)
        for job, (end, placement, shape_class) in runs
        for node, mask in placement
    ]
    listed.sort()
    return np.array(listed, np.int64).reshape(-1, kernel.RUN_COLUMNS)


class Reservation(msgspec.Struct, frozen=True):
    """A job that does not fit now starts at `at` (ns) at the latest, on these nodes; it is over by `until`."""

    job: int
    at: int
    until: int
    placement: Placement
    shape_class: int


class Profile:
    """Free resources now and where reservations begin, for one round. `levels[0]` is the table of now and shared with it."""

    def __init__(
        self, cluster: Cluster, numbers: NDArray[np.int64], runs: NDArray[np.int64], now: int
    ) -> None:
        self.cluster, self.now = cluster, now
        self.reservations: list[Reservation] = []
        """By begin."""
        self.starts = np.zeros(0, np.int64)
        self.later = np.zeros((0, *cluster.table.shape), np.int32)
        """The table at each begin, what is reserved then taken."""
        self._numbers, self._runs = numbers, runs

    def add_runs(self, runs: Iterable[tuple[int, Run]]) -> None:
        """Jobs that start now."""
        self._runs = kernel.merge_runs(self._runs, np.zeros((0, 2), np.int64), run_rows(runs))

    def reserve(
        self, job: int, shape_class: int, need: NDArray[np.int64], length_ms: int, table: NDArray[np.int32]
    ) -> Reservation | None:
        """The earliest start of a request that can't start now, from the `table` of now on, taken from every later table; None
        when it never fits. `need` is its request row with `ELIGIBLE` filled in."""
        count, length = self.cluster.count, length_ms * NS_PER_MS
        ok = self.cluster.eligible[int(need[ELIGIBLE])]
        then, free = table.copy(), np.empty_like(table)
        at = int(
            kernel.earliest(
                then,
                free,
                count,
                ok,
                need,
                self._numbers,
                self._runs,
                self._held(),
                self.later,
                self.starts,
                self.now + 1,
                length,
            )
        )
        if at == kernel.NEVER:
            return None
        members = np.zeros((int(need[MEMBERS]), 2), np.int64)
        kernel.choose(free, table, count, ok, need, members)
        placement = tuple((node, mask) for node, mask in members.tolist())
        made = Reservation(job, at, min(FOREVER, at + length), placement, shape_class)
        for index, start in enumerate(self.starts.tolist()):
            if made.at <= start < made.until:
                self._take(self.later[index], made, need)
        self._take(then, made, need)
        place = int(np.searchsorted(self.starts, at, side="right"))
        self.reservations.insert(place, made)
        self.starts = np.insert(self.starts, place, at)
        self.later = np.insert(self.later, place, then, axis=0)
        return made

    def levels(self, table: NDArray[np.int32]) -> NDArray[np.int32]:
        """`[reservations + 1, rows, nodes]`: what is free now, and at the first 1, 2 .. reservations too."""
        stacked = np.empty((len(self.starts) + 1, *table.shape), np.int32)
        stacked[0] = table
        kernel.stack(stacked, self.later, self.cluster.count)
        return stacked

    def _take(self, table: NDArray[np.int32], made: Reservation, need: NDArray[np.int64]) -> None:
        for node, mask in made.placement:
            kernel.shift(table, node, mask, need, -1)

    def _held(self) -> NDArray[np.int64]:
        listed: list[tuple[int, int, int, int, int]] = []
        for made in self.reservations:
            for node, mask in made.placement:
                listed.append((made.at, -1, node, mask, made.shape_class))
                listed.append((made.until, 1, node, mask, made.shape_class))
        listed.sort()
        return np.array(listed, np.int64).reshape(-1, kernel.HELD_COLUMNS)
