"""The pending queue: a slab of arrays, one slot a job, and its order at an instant. No cluster, no placement, no clock.

    priority = base x (1 + wait / age scale) x 8 / (8 + times run) / (1 + the tenant's dominant share in use)   (S3)

in fixed point; `wait` counts from the later of submit and begin time, so a job's priority grows (up to 2^17 age scales,
more than a year) and nothing starves. Ties: enqueued first, then the lower job number. A slot takes 48 bytes and its place
in the map of job numbers 4 more. Ageing is a function of `now`, so nothing is stored per tick.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.errors import InvariantBroken, LimitReached
from mintyard.domain.limits import MAX_LIVE_JOBS, MAX_PRIORITY
from mintyard.domain.scheduling import queue_kernel as kernel
from mintyard.domain.units import NS_PER_MS

DEFAULT_AGE_SCALE_MS: Final = 300_000
"""After this wait a job weighs twice its base."""
MAX_AGE_SCALE_MS: Final = 366 * 86_400_000
MAX_TENANT_SHARE_MILLI: Final = 1_000_000
_RUN_HALF: Final = 8
_PAGE_BITS: Final = 8
_NO_ROOMS: Final = np.zeros((0, 4), np.int64)
_EMPTY_PAGE: Final = array("i", [-1]) * (1 << _PAGE_BITS)
_COLUMNS: Final[tuple[tuple[str, type[np.generic]], ...]] = (
    ("jobs", np.int64),
    ("enqueued", np.int64),
    ("since", np.int64),
    ("classes", np.int32),
    ("tenants", np.int32),
    ("groups", np.int32),
    ("kinds", np.int32),
    ("lanes", np.int32),
    ("bases", np.int16),
    ("runs", np.uint8),
    ("flags", np.uint8),
)


class PendingJob(msgspec.Struct, frozen=True, array_like=True):
    """One job that waits. `group` is the index of its array's throttle, -1 for none; instants in ns."""

    job: int
    class_id: int
    tenant: int
    base: int
    enqueued_at: int
    begin_at: int = 0
    ready: bool = True
    runs: int = 0
    group: int = -1
    kind: int = 0
    lane: int = 0


Scales = tuple[NDArray[np.int64], NDArray[np.int64]]
"""By kind: 2^40 / age scale in ms, rounded up, and the longest wait in ms that counts (`JobKinds.scales`)."""


class PendingQueue:
    """Jobs that wait, by number. Not thread-safe."""

    def __init__(self, age_scale_ms: int = DEFAULT_AGE_SCALE_MS) -> None:
        if not 1 <= age_scale_ms <= MAX_AGE_SCALE_MS:
            raise ValueError(f"age_scale_ms is from 1 to {MAX_AGE_SCALE_MS}")
        self.age_scale_ms = age_scale_ms
        self._scales: Scales = (
            np.array([-(-(1 << kernel.INVERSE_BITS) // age_scale_ms)], np.int64),
            np.array([kernel.MAX_WAIT_SCALES * age_scale_ms], np.int64),
        )
        self.count = 0
        """Slots in use or free; every array below is at least this long."""
        self._size = 0
        self._highest_tenant = self._highest_group = -1
        self._capacity = 0
        self._arrays: dict[str, NDArray[Any]] = {}
        self._views: dict[str, memoryview] = {}
        self._free: list[int] = []
        self._pages: dict[int, array[int]] = {}
        self._page_sizes: dict[int, int] = {}
        self._class_counts: dict[int, int] = {}
        self._run_factors = np.array(
            [(_RUN_HALF << kernel.RUN_BITS) // (_RUN_HALF + runs) for runs in range(256)], np.int64
        )
        self._grow(256)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, job: object) -> bool:
        return isinstance(job, int) and self._find(job) >= 0

    @property
    def class_counts(self) -> dict[int, int]:
        """Jobs waiting per class id; only classes with any."""
        return self._class_counts

    def add(
        self,
        job: int,
        class_id: int,
        tenant: int,
        base: int,
        enqueued_at: int,
        begin_at: int = 0,
        *,
        ready: bool = True,
        runs: int = 0,
        group: int = -1,
        kind: int = 0,
        lane: int = 0,
    ) -> None:
        """Queue a job. `base` is its weight, 1 to `MAX_PRIORITY` (clipped); not `ready` ones (held, dependency) don't start.

        Errors: `InvariantBroken` when it waits already, `LimitReached`.
        """
        if self._find(job) >= 0:
            raise InvariantBroken(why=f"job {job} is queued twice")
        if self._free:
            slot = self._free.pop()
        else:
            if self.count >= MAX_LIVE_JOBS:
                raise LimitReached(limit=MAX_LIVE_JOBS, what="waiting jobs")
            if self.count == self._capacity:
                self._grow(2 * self._capacity)
            slot = self.count
            self.count += 1
        jobs, enqueued, since, classes, tenants, groups, kinds, lanes, bases, all_runs, flags = self._columns
        jobs[slot] = job
        enqueued[slot] = enqueued_at
        since[slot] = begin_at if begin_at > enqueued_at else enqueued_at
        classes[slot] = class_id
        tenants[slot] = tenant
        groups[slot] = group
        kinds[slot] = kind
        lanes[slot] = lane
        bases[slot] = base if 1 <= base <= MAX_PRIORITY else min(MAX_PRIORITY, max(1, base))
        all_runs[slot] = runs if runs < 255 else 255
        flags[slot] = kernel.PRESENT | kernel.READY if ready else kernel.PRESENT
        if tenant > self._highest_tenant:
            self._highest_tenant = tenant
        if group > self._highest_group:
            self._highest_group = group
        self._map(job, slot)
        self._size += 1
        self._class_counts[class_id] = self._class_counts.get(class_id, 0) + 1

    def add_many(
        self,
        *,
        jobs: Sequence[int],
        class_ids: Sequence[int],
        tenants: Sequence[int],
        bases: Sequence[int],
        enqueued_at: Sequence[int],
        begin_at: Sequence[int],
        runs: Sequence[int],
        groups: Sequence[int],
        kinds: Sequence[int] | int = 0,
        lanes: Sequence[int] | int = 0,
    ) -> None:
        """`add` for many ready jobs at once, one of each sequence a job; none of them may wait already.

        Errors: `InvariantBroken` when a job comes twice, `LimitReached`; then nothing was added."""
        count = len(jobs)
        if not count:
            return
        numbers = np.array(jobs, np.int64)
        ascending = bool((numbers[1:] > numbers[:-1]).all())
        if (not ascending and len(np.unique(numbers)) != count) or any(
            map(self.__contains__, jobs if self._size else ())
        ):
            raise InvariantBroken(why="a job is queued twice")
        slots = self._new_slots(count)
        arrays = self._arrays
        enqueued = np.array(enqueued_at, np.int64)
        arrays["jobs"][slots] = numbers
        arrays["enqueued"][slots] = enqueued
        arrays["since"][slots] = np.maximum(np.array(begin_at, np.int64), enqueued)
        arrays["classes"][slots] = class_ids
        arrays["tenants"][slots] = tenants
        arrays["groups"][slots] = groups
        arrays["kinds"][slots] = kinds
        arrays["lanes"][slots] = lanes
        arrays["bases"][slots] = np.clip(np.array(bases, np.int64), 1, MAX_PRIORITY)
        arrays["runs"][slots] = np.minimum(np.array(runs, np.int64), 255)
        arrays["flags"][slots] = kernel.PRESENT | kernel.READY
        self._size += count
        self._highest_tenant = max(self._highest_tenant, *tenants)
        self._highest_group = max(self._highest_group, *groups)
        self._map_many(numbers, slots)
        for class_id, more in zip(*np.unique(np.array(class_ids), return_counts=True), strict=True):
            self._class_counts[int(class_id)] = self._class_counts.get(int(class_id), 0) + int(more)

    def discard(self, job: int) -> bool:
        """Take a job out; False when it does not wait."""
        slot = self._find(job)
        if slot < 0:
            return False
        self._views["flags"][slot] = 0
        self._unmap(job)
        self._free.append(slot)
        self._size -= 1
        if not self._size:
            self.count = 0
            self._free.clear()
        class_id = self._views["classes"][slot]
        left = self._class_counts[class_id] - 1
        if left:
            self._class_counts[class_id] = left
        else:
            del self._class_counts[class_id]
        return True

    def discard_many(self, jobs: Sequence[int]) -> None:
        """`discard` for many jobs; those that don't wait are passed over."""
        find, unmap, free, counts = self._find, self._unmap, self._free, self._class_counts
        flags, classes = self._views["flags"], self._views["classes"]
        gone: dict[int, int] = {}
        size = self._size
        for job in jobs:
            slot = find(job)
            if slot < 0:
                continue
            flags[slot] = 0
            unmap(job)
            free.append(slot)
            size -= 1
            class_id = classes[slot]
            gone[class_id] = gone.get(class_id, 0) + 1
        self._size = size
        if not size:
            self.count = 0
            free.clear()
        for class_id, less in gone.items():
            counts[class_id] -= less
            if not counts[class_id]:
                del counts[class_id]

    def set_ready(self, job: int, ready: bool) -> None:
        """Hold or release a waiting job. Errors: `InvariantBroken` when it does not wait."""
        self._views["flags"][self._slot(job)] = kernel.PRESENT | kernel.READY if ready else kernel.PRESENT

    def set_base(self, job: int, base: int) -> None:
        """Change a waiting job's base weight (clipped as in `add`)."""
        self._views["bases"][self._slot(job)] = min(MAX_PRIORITY, max(1, base))

    def get(self, job: int) -> PendingJob:
        """What is stored of a waiting job. Errors: `InvariantBroken` when it does not wait."""
        return self._read(self._slot(job))

    def priority(
        self,
        job: int,
        now: int,
        tenant_usage: Sequence[int] | NDArray[np.integer[Any]],
        scales: Scales | None = None,
    ) -> int:
        """Its priority at `now`, by the plain definition: the reference for the kernel."""
        slot = self._slot(job)
        views = self._views
        wait_ms = max(0, now - views["since"][slot]) // NS_PER_MS
        inverses, longest = scales or self._scales
        kind = views["kinds"][slot] if scales else 0
        grown = min(wait_ms, int(longest[kind])) * int(inverses[kind]) >> (
            kernel.INVERSE_BITS - kernel.AGE_BITS
        )
        age = (1 << kernel.AGE_BITS) + grown
        tenant = views["tenants"][slot]
        share = (
            min(MAX_TENANT_SHARE_MILLI, max(0, int(tenant_usage[tenant])))
            if tenant < len(tenant_usage)
            else 0
        )
        by_tenant = (1_000 << kernel.TENANT_BITS) // (1_000 + share)
        by_runs = (_RUN_HALF << kernel.RUN_BITS) // (_RUN_HALF + views["runs"][slot])
        return (views["bases"][slot] * age * by_tenant >> kernel.TENANT_BITS) * by_runs >> kernel.RUN_BITS

    def evaluate(
        self,
        now: int,
        tenant_usage: Sequence[int] | NDArray[np.integer[Any]],
        most: int,
        *,
        wanted: NDArray[np.uint8] | None = None,
        remaining: NDArray[np.int32] | None = None,
        patience_ms: int = 0,
        scales: Scales | None = None,
        wanted_by_kind: bool = False,
        needs: NDArray[np.int64] = _NO_ROOMS,
        rooms: NDArray[np.int64] = _NO_ROOMS,
    ) -> NDArray[np.int64]:
        """The first `most` ready jobs at `now`, int64 `[n, 4]` of (priority, enqueued at, job, slot), best first; exact.

        `tenant_usage` is each tenant's dominant share in use, in 1/1,000 (a tenant beyond its end uses nothing);
        `wanted` says per class id `SKIP`, `WANTED` or `WAITS` (only when it has waited `patience_ms`); `remaining` how
        many more may start per throttle group. With `scales` a job ages by the scale of its kind instead of the queue's; with
        `wanted_by_kind` `wanted` is by kind instead of class. With `rooms`, int64 `[lanes, 4]`, only jobs whose `needs`, by
        class, have room in their lane, and those marked as heads.
        """
        most = min(most, self._size)
        if most <= 0:
            return np.zeros((0, 4), np.int64)
        arrays = self._arrays
        if wanted is None:
            wanted = np.full(max(self._class_counts) + 1, kernel.WANTED, np.uint8)
        inverses, longest = scales or self._scales
        return kernel.top(
            self.count,
            arrays["jobs"],
            arrays["kinds" if wanted_by_kind else "classes"],
            arrays["tenants"],
            arrays["groups"],
            arrays["bases"],
            arrays["since"],
            arrays["enqueued"],
            arrays["flags"],
            arrays["runs"],
            arrays["kinds"],
            self._tenant_factors(tenant_usage),
            self._run_factors,
            wanted,
            self._throttles(remaining),
            now,
            longest,
            inverses,
            scales is not None,
            patience_ms,
            arrays["lanes"],
            arrays["classes"],
            needs,
            rooms,
            most,
        )

    def first_of(
        self,
        keys: NDArray[np.int32],
        most: int,
        now: int,
        tenant_usage: Sequence[int] | NDArray[np.integer[Any]],
        scales: Scales | None = None,
    ) -> NDArray[np.int64]:
        """Of the jobs that share a key, the slot of the one that comes first; -1 where there is none. `keys` are by slot, from
        0 to `most` - 1, -1 for a job of no interest."""
        arrays = self._arrays
        inverses, longest = scales or self._scales
        return kernel.first_by_key(
            self.count,
            keys,
            most,
            arrays["jobs"],
            arrays["tenants"],
            arrays["bases"],
            arrays["since"],
            arrays["enqueued"],
            arrays["runs"],
            arrays["kinds"],
            self._tenant_factors(tenant_usage),
            self._run_factors,
            now,
            longest,
            inverses,
            scales is not None,
        )

    def position(
        self,
        job: int,
        now: int,
        tenant_usage: Sequence[int] | NDArray[np.integer[Any]],
        scales: Scales | None = None,
    ) -> int:
        """How many ready jobs are ahead of a waiting one at `now`."""
        arrays = self._arrays
        inverses, longest = scales or self._scales
        return kernel.ahead(
            self.count,
            arrays["jobs"],
            arrays["tenants"],
            arrays["bases"],
            arrays["since"],
            arrays["enqueued"],
            arrays["flags"],
            arrays["runs"],
            arrays["kinds"],
            self._tenant_factors(tenant_usage),
            self._run_factors,
            now,
            longest,
            inverses,
            scales is not None,
            self._slot(job),
        )

    def column(self, name: str) -> NDArray[Any]:
        """One array of the slab by slot (for the round): `classes`, `groups`, `since`, `flags` and so on."""
        return self._arrays[name]

    def pending(self) -> list[PendingJob]:
        """All waiting jobs by number (for snapshots; slots are not part of the state)."""
        slots = np.flatnonzero(self._arrays["flags"][: self.count] & kernel.PRESENT)
        return [
            self._read(int(slot)) for slot in slots[np.argsort(self._arrays["jobs"][slots], kind="stable")]
        ]

    @property
    def bytes_per_slot(self) -> int:
        """Memory of one slot, without the map of job numbers."""
        return sum(array.itemsize for array in self._arrays.values())

    # --- inside -------------------------------------------------------------------------------------------------------

    def _tenant_factors(self, usage: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        shares = np.zeros(max(self._highest_tenant + 1, len(usage)), np.int64)
        shares[: len(usage)] = usage
        np.maximum(shares, 0, out=shares)
        np.minimum(shares, MAX_TENANT_SHARE_MILLI, out=shares)
        return (1_000 << kernel.TENANT_BITS) // (1_000 + shares)

    def _throttles(self, remaining: NDArray[np.int32] | None) -> NDArray[np.int32]:
        """What each group may start, behind the jobs of no group."""
        given = 0 if remaining is None else len(remaining)
        limits = np.full(max(self._highest_group + 1, given) + 1, 2**31 - 1, np.int32)
        if remaining is not None:
            limits[1 : given + 1] = remaining
        return limits

    def _read(self, slot: int) -> PendingJob:
        views = self._views
        enqueued, since = views["enqueued"][slot], views["since"][slot]
        return PendingJob(
            views["jobs"][slot],
            views["classes"][slot],
            views["tenants"][slot],
            views["bases"][slot],
            enqueued,
            since if since > enqueued else 0,
            bool(views["flags"][slot] & kernel.READY),
            views["runs"][slot],
            views["groups"][slot],
            views["kinds"][slot],
            views["lanes"][slot],
        )

    def kinds(self) -> NDArray[np.int32]:
        """Kinds of the jobs that wait, with repeats."""
        flags = self._arrays["flags"][: self.count]
        return self._arrays["kinds"][: self.count][flags & kernel.PRESENT != 0]

    def renumber(self, kinds: NDArray[np.int32]) -> None:
        """Give every slot the number that `kinds` has for its kind."""
        column = self._arrays["kinds"][: self.count]
        column[:] = kinds[column]

    def _slot(self, job: int) -> int:
        slot = self._find(job)
        if slot < 0:
            raise InvariantBroken(why=f"job {job} does not wait")
        return slot

    def _find(self, job: int) -> int:
        page = self._pages.get(job >> _PAGE_BITS)
        return -1 if page is None else page[job & 255]

    def _map(self, job: int, slot: int) -> None:
        number = job >> _PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _EMPTY_PAGE[:]
            self._page_sizes[number] = 0
        page[job & 255] = slot
        self._page_sizes[number] += 1

    def _new_slots(self, count: int) -> NDArray[np.int64]:
        """Slots in the order in which `add` would take them. Errors: `LimitReached`."""
        free = self._free
        again = min(count, len(free))
        fresh = count - again
        if self.count + fresh > MAX_LIVE_JOBS:
            raise LimitReached(limit=MAX_LIVE_JOBS, what="waiting jobs")
        while self.count + fresh > self._capacity:
            self._grow(2 * self._capacity)
        slots = np.empty(count, np.int64)
        if again:
            slots[:again] = free[: -again - 1 : -1]
            del free[-again:]
        slots[again:] = np.arange(self.count, self.count + fresh)
        self.count += fresh
        return slots

    def _map_many(self, jobs: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        order = np.argsort(jobs, kind="stable")
        pages = jobs[order] >> _PAGE_BITS
        numbers, starts = np.unique(pages, return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = _EMPTY_PAGE[:]
                self._page_sizes[number] = 0
            np.frombuffer(page, np.int32)[jobs[rows] & 255] = slots[rows]
            self._page_sizes[number] += len(rows)

    def _unmap(self, job: int) -> None:
        number = job >> _PAGE_BITS
        self._pages[number][job & 255] = -1
        self._page_sizes[number] -= 1
        if not self._page_sizes[number]:
            del self._pages[number], self._page_sizes[number]

    def _grow(self, capacity: int) -> None:
        self._views.clear()
        for name, kind in _COLUMNS:
            grown = np.zeros(capacity, kind)
            if name in self._arrays:
                grown[: self.count] = self._arrays[name][: self.count]
            self._arrays[name] = grown
            self._views[name] = grown.data
        self._columns = tuple(self._views[name] for name, _ in _COLUMNS)
        """The views in the order of `_COLUMNS`."""
        self._capacity = capacity
