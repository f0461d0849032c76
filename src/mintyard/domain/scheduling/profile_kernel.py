"""Compiled kernels of time: who ends when, the earliest instant at which a request fits, and placement behind reservations.

Free resources over time are kept as node tables at a few instants only. Between two reservations nothing but releases happens,
so what is free there only grows: a job that starts now runs until its end exactly when it fits into the table of now and into
the table of every reservation that begins before that end, at their elementwise minimum. `levels[k]` is the minimum of the
table of now and those of the first `k` reservations by time. The plain reference that they are
tested against is in tests/unit/backfill_reference.py. What is called from `kernels` is compiled in: see the Makefile's cache key.
"""

# Numba has no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numba import njit

from mintyard.domain.limits import MAX_GPUS_PER_MEMBER
from mintyard.domain.scheduling import kernels
from mintyard.domain.scheduling.kernels import choose_slots, derive, fits, node_capacity
from mintyard.domain.scheduling.layout import (
    CPU,
    ELIGIBLE,
    FAILED,
    JOB_CLASS,
    JOB_OFFSET,
    JOB_RESERVES,
    JOB_STATUS,
    MEMBERS,
    MEMORY,
    NEED_CPU,
    NEED_GPUS,
    NEED_MEMORY,
    NEED_MILLI,
    NO_FIT,
    SLOT,
)
from mintyard.domain.scheduling.variants import compiled_as

# Columns of what runs, int64 `[members, RUN_COLUMNS]`, in order of end and job.
RUN_END: Final = 0
"""Instant (ns) by which the member's resources are free again at the latest."""
RUN_JOB: Final = 1
RUN_NODE: Final = 2
RUN_MASK: Final = 3
RUN_CLASS: Final = 4
RUN_COLUMNS: Final = 5

# Columns of what is reserved, int64 `[2 x members, HELD_COLUMNS]`: taken at its begin, given back at its end; by time.
HELD_AT: Final = 0
HELD_SIGN: Final = 1
HELD_NODE: Final = 2
HELD_MASK: Final = 3
HELD_CLASS: Final = 4
HELD_COLUMNS: Final = 5

NEVER: Final = (1 << 63) - 1

_STRANDED = kernels.place_kernel(kernels.STRANDED)
_LINEAR = kernels.place_kernel(kernels.LINEAR)
_LOADED = kernels.place_kernel(kernels.LOADED)
_PACKING = kernels.place_kernel(kernels.PACKING)
_FRAGMENTATION = kernels.place_kernel(kernels.FRAGMENTATION)


@njit(cache=True)
def merge_runs(rows: Any, gone: Any, fresh: Any) -> Any:
    """`rows` without the `gone` (end, job) and with the `fresh` rows; all three sorted by end and job."""
    merged = np.empty((rows.shape[0] + fresh.shape[0], RUN_COLUMNS), np.int64)
    size, left, new = 0, 0, 0
    for row in range(rows.shape[0]):
        end, job = rows[row, RUN_END], rows[row, RUN_JOB]
        while left < gone.shape[0] and (
            gone[left, 0] < end or (gone[left, 0] == end and gone[left, 1] < job)
        ):
            left += 1
        if left < gone.shape[0] and gone[left, 0] == end and gone[left, 1] == job:
            continue
        while new < fresh.shape[0] and (
            fresh[new, RUN_END] < end or (fresh[new, RUN_END] == end and fresh[new, RUN_JOB] < job)
        ):
            merged[size] = fresh[new]
            size, new = size + 1, new + 1
        merged[size] = rows[row]
        size += 1
    while new < fresh.shape[0]:
        merged[size] = fresh[new]
        size, new = size + 1, new + 1
    return merged[:size]


@njit(cache=True)
def shift(table: Any, node: int, mask: int, need: Any, sign: int) -> None:
    """Give (+1) or take (-1) one member, unchecked: a table may be below zero where a node lost resources in use."""
    table[CPU, node] += sign * need[NEED_CPU]
    table[MEMORY, node] += sign * need[NEED_MEMORY]
    if mask:
        for slot in range(MAX_GPUS_PER_MEMBER):
            if (mask >> slot) & 1:
                table[SLOT + slot, node] += sign * need[NEED_MILLI]
        derive(table, node)


@njit(cache=True)
def _lower_node(into: Any, other: Any, node: int) -> None:
    """Free resources of a node become the lesser of both tables'."""
    into[CPU, node] = min(into[CPU, node], other[CPU, node])
    into[MEMORY, node] = min(into[MEMORY, node], other[MEMORY, node])
    for slot in range(MAX_GPUS_PER_MEMBER):
        into[SLOT + slot, node] = min(into[SLOT + slot, node], other[SLOT + slot, node])
    derive(into, node)


@njit(cache=True)
def lower(into: Any, other: Any, count: int) -> None:
    """`_lower_node` for all nodes, row by row: a walk from row to row for each node would miss the cache each time."""
    for row in (CPU, MEMORY):
        for node in range(count):
            into[row, node] = min(into[row, node], other[row, node])
    changed = np.zeros(count, np.uint8)
    for row in range(SLOT, SLOT + MAX_GPUS_PER_MEMBER):
        for node in range(count):
            changed[node] |= other[row, node] < into[row, node]
            into[row, node] = min(into[row, node], other[row, node])
    for node in range(count):
        if changed[node]:
            derive(into, node)


@njit(cache=True)
def mark_levels(levels: Any, count: int, eligible: Any, is_open: Any, requests: Any) -> None:
    """Set `FAILED` of each request at each level at which it does not fit; what failed stays so."""
    for index in range(requests.shape[1]):
        failed = False
        for level in range(requests.shape[0]):
            need = requests[level, index]
            if not failed and need[FAILED] == 0:
                failed = not fits(levels[level], count, eligible[need[ELIGIBLE]], is_open, need)
            if failed:
                need[FAILED] = 1


@njit(cache=True)
def rooms(table: Any, count: int, ok: Any, need: Any) -> Any:
    """Members of a request that each node has room for, as far as they count."""
    found = np.zeros(count, np.int64)
    for node in range(count):
        if ok[node]:
            found[node] = min(node_capacity(table, node, need), need[MEMBERS])
    return found


@njit(cache=True)
def earliest(
    table: Any,
    both: Any,
    count: int,
    ok: Any,
    need: Any,
    numbers: Any,
    runs: Any,
    held: Any,
    later: Any,
    starts: Any,
    soonest: int,
    length: int,
) -> int:
    """The first instant from `soonest` on at which something is given back and the request fits for `length` ns; or `NEVER`.

    `table` is what is free now and becomes what is free at that instant, `both` what is free throughout. `later[k]` is the
    table at `starts[k]`, when a reservation begins. What should have ended counts as ending at `soonest`.
    """
    wanted = need[MEMBERS]
    room = rooms(table, count, ok, need)
    total = room.sum()
    planned = np.zeros((starts.shape[0], count), np.int64)
    for index in range(starts.shape[0]):
        planned[index] = rooms(later[index], count, ok, need)
    run, hold = 0, 0
    while run < runs.shape[0] or hold < held.shape[0]:
        at = NEVER
        if run < runs.shape[0]:
            at = max(soonest, runs[run, RUN_END])
        if hold < held.shape[0]:
            at = min(at, held[hold, HELD_AT])
        while run < runs.shape[0] and max(soonest, runs[run, RUN_END]) <= at:
            node = runs[run, RUN_NODE]
            shift(table, node, runs[run, RUN_MASK], numbers[runs[run, RUN_CLASS]], 1)
            if ok[node]:
                total -= room[node]
                room[node] = min(node_capacity(table, node, need), wanted)
                total += room[node]
            run += 1
        while hold < held.shape[0] and held[hold, HELD_AT] <= at:
            node = held[hold, HELD_NODE]
            shift(table, node, held[hold, HELD_MASK], numbers[held[hold, HELD_CLASS]], held[hold, HELD_SIGN])
            if ok[node]:
                total -= room[node]
                room[node] = min(node_capacity(table, node, need), wanted)
                total += room[node]
            hold += 1
        if total >= wanted and _fits_until(
            table, both, count, ok, need, room, planned, later, starts, at, length
        ):
            return at
    return NEVER


@njit(cache=True)
def _fits_until(
    table: Any,
    both: Any,
    count: int,
    ok: Any,
    need: Any,
    room: Any,
    planned: Any,
    later: Any,
    starts: Any,
    at: int,
    length: int,
) -> bool:
    """Whether what fits at `at` fits for `length`, past the reservations that begin meanwhile; `both` gets the minimum."""
    wanted = need[MEMBERS]
    most = 0
    for node in range(count):
        least = room[node]
        for index in range(starts.shape[0]):
            if at < starts[index] < at + length:
                least = min(least, planned[index, node])
        most += least
        if most >= wanted:
            break
    if most < wanted:
        return False
    both[:] = table
    clash = False
    for index in range(starts.shape[0]):
        if at < starts[index] < at + length:
            lower(both, later[index], count)
            clash = True
    return not clash or rooms(both, count, ok, need).sum() >= wanted


@njit(cache=True)
def choose(free: Any, now: Any, count: int, ok: Any, need: Any, members: Any) -> None:
    """Nodes and GPUs for all members of a request that fits in `free`, which is changed; `members` gets (node, mask) rows.

    First where a member has no room now, then room that comes, then room that there is already: what can start now loses
    least, and with equal nodes this is as good as any other choice (EASY's spare processors).
    """
    left = need[MEMBERS]
    before = rooms(now, count, ok, need)
    after = rooms(free, count, ok, need)
    placed = 0
    for turn in range(3):
        for node in range(count):
            share = after[node]
            if turn == 0 and before[node] > 0:
                continue
            if turn == 1:
                share -= before[node]
            for _ in range(min(share, left)):
                mask = choose_slots(free, node, need[NEED_GPUS], need[NEED_MILLI])
                shift(free, node, mask, need, -1)
                members[placed, 0], members[placed, 1] = node, mask
                placed, left = placed + 1, left - 1
                after[node] -= 1
            if left == 0:
                return


@njit(cache=True)
def stack(levels: Any, later: Any, count: int) -> None:
    """`levels[1:]` from `levels[0]` and `later`."""
    for index in range(later.shape[0]):
        levels[index + 1] = levels[index]
        lower(levels[index + 1], later[index], count)


@njit(cache=True)
def _commit(levels: Any, later: Any, node: int, mask: int, need: Any, level: int) -> None:
    """A member was taken from `levels[level]`: take it from the tables that this comes from, and bring the node up to date."""
    if level > 0:
        shift(levels[0], node, mask, need, -1)
    for index in range(level):
        shift(later[index], node, mask, need, -1)
    for index in range(later.shape[0]):
        for row in range(levels.shape[1]):
            levels[index + 1, row, node] = levels[index, row, node]
        _lower_node(levels[index + 1], later[index], node)


@cache
def backfill_kernel(kind: int) -> Callable[..., tuple[int, int]]:
    """Placement behind reservations for one kind of score; compiled at its first call only."""

    @compiled_as(kind)
    def place_behind(
        levels: Any,
        later: Any,
        count: int,
        eligible: Any,
        is_open: Any,
        requests: Any,
        typical: Any,
        steps: Any,
        parameters: Any,
        jobs: Any,
        level_of: Any,
        remaining: Any,
        quota: Any,
        members: Any,
        start: int,
        limit: int,
    ) -> tuple[int, int]:
        """As `kernels.place_kernel`, each job on the table of its own level; `requests` is `[levels, classes, columns]`."""
        placed = 0
        for index in range(start, jobs.shape[0]):
            if placed >= limit:
                return index, placed
            level = level_of[index]
            one = jobs[index : index + 1]
            table, needs = levels[level], requests[level]
            if kind == kernels.STRANDED:
                _, done = _STRANDED(table, count, eligible, is_open, needs, typical, steps, parameters, one, remaining,
                                    quota, members, 0, 1)  # fmt: skip
            elif kind == kernels.LINEAR:
                _, done = _LINEAR(table, count, eligible, is_open, needs, typical, steps, parameters, one, remaining,
                                  quota, members, 0, 1)  # fmt: skip
            elif kind == kernels.LOADED:
                _, done = _LOADED(table, count, eligible, is_open, needs, typical, steps, parameters, one, remaining,
                                  quota, members, 0, 1)  # fmt: skip
            elif kind == kernels.PACKING:
                _, done = _PACKING(table, count, eligible, is_open, needs, typical, steps, parameters, one, remaining,
                                   quota, members, 0, 1)  # fmt: skip
            else:
                _, done = _FRAGMENTATION(table, count, eligible, is_open, needs, typical, steps, parameters, one,
                                         remaining, quota, members, 0, 1)  # fmt: skip
            if done == 0:
                if one[0, JOB_STATUS] == NO_FIT and one[0, JOB_RESERVES]:
                    return index + 1, placed
                continue
            placed += 1
            need = needs[one[0, JOB_CLASS]]
            for member in range(need[MEMBERS]):
                row = one[0, JOB_OFFSET] + member
                _commit(levels, later, members[row, 0], members[row, 1], need, level)
        return jobs.shape[0], placed

    return place_behind
