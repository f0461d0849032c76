"""Compiled kernel of the pending queue: every priority evaluated, the best K kept in a bounded heap.

Priority (S3) in fixed point: base weight x latency factor x run factor / (1 + the tenant's dominant share in use).
See `queue` for the definition in words and the plain reference.
"""

# Numba has no types.
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from mintyard.domain.scheduling.variants import compiled_as
from mintyard.domain.units import NS_PER_MS

PRESENT: Final = 1
READY: Final = 2
SEEN: Final = 4
"""Already considered in the round under way."""
HEAD: Final = 8
"""To be considered in the round under way although its quota does not let it start."""

SKIP: Final = 0
WANTED: Final = 1
WAITS: Final = 2
"""The class does not fit now: only a job that has waited long enough to keep nodes for itself is of interest."""

AGE_BITS: Final = 16
TENANT_BITS: Final = 12
RUN_BITS: Final = 8
INVERSE_BITS: Final = 40
MAX_WAIT_SCALES: Final = 1 << 17
"""Waiting counts up to this many age scales, so that no product leaves 63 bits."""
_BLOCK: Final = 8_192


@njit(cache=True)
def priority_of(
    base: int, wait_ms: int, longest_ms: int, age_inverse: int, tenant_factor: int, run_factor: int
) -> int:
    """One priority: `base x (1 + wait / scale)` in 2^-16, times both factors; below 2^60 on the way.

    `age_inverse` is 2^40 / scale rounded up: a division a job would cost more than all the rest.
    """
    age = (1 << AGE_BITS) + ((min(wait_ms, longest_ms) * age_inverse) >> (INVERSE_BITS - AGE_BITS))
    return ((base * age * tenant_factor) >> TENANT_BITS) * run_factor >> RUN_BITS


@njit(cache=True)
def _later(heap: Any, left: int, right: int) -> bool:
    """Whether entry `left` comes after `right` in the order of the queue."""
    if heap[left, 0] != heap[right, 0]:
        return heap[left, 0] < heap[right, 0]
    if heap[left, 1] != heap[right, 1]:
        return heap[left, 1] > heap[right, 1]
    return heap[left, 2] > heap[right, 2]


@njit(cache=True)
def _sink(heap: Any, at: int, size: int) -> None:
    """Restore the heap (the last in order at the root) below `at`."""
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and _later(heap, child + 1, child):
            child += 1
        if not _later(heap, child, at):
            return
        for column in range(4):
            heap[at, column], heap[child, column] = heap[child, column], heap[at, column]
        at = child


@njit(cache=True)
def _rise(heap: Any, at: int) -> None:
    while at > 0:
        parent = (at - 1) // 2
        if not _later(heap, at, parent):
            return
        for column in range(4):
            heap[at, column], heap[parent, column] = heap[parent, column], heap[at, column]
        at = parent


def _evaluator(by_kind: bool, throttled: bool, limited: bool) -> Any:
    """The evaluation for one scale of age or for one by kind, with or without groups and quotas: a test within the loop costs a
    third more, a column that says nothing a sixth."""

    @compiled_as(by_kind, throttled, limited)
    def evaluate(
        first: int,
        count: int,
        classes: Any,
        tenants: Any,
        groups: Any,
        bases: Any,
        since: Any,
        flags: Any,
        runs: Any,
        kinds: Any,
        tenant_factors: Any,
        run_factors: Any,
        wanted: Any,
        remaining: Any,
        now: int,
        longest_ms: Any,
        age_inverse: Any,
        patience_ms: int,
        lanes: Any,
        shapes: Any,
        needs: Any,
        rooms: Any,
        priorities: Any,
    ) -> None:
        """The priorities of `count` slots from `first` on, -1 where a slot is of no interest. Without a branch, so that the
        processor need not guess; indices are unsigned, which spares the test for one from the end."""
        longest, inverse = longest_ms[0], age_inverse[0]
        for at in range(count):
            slot = np.uint64(first + at)
            waited = now - since[slot]
            wait_ms: Any = np.int64(np.uint64(max(waited, 0)) // np.uint64(NS_PER_MS))
            kind = wanted[np.uint64(classes[slot])]
            due = (flags[slot] & ~HEAD == PRESENT | READY) & (waited >= 0)
            if throttled:
                due = due & (remaining[np.uint64(groups[slot] + 1)] > 0)
            asked_for = (kind != SKIP) & ((kind != WAITS) | (wait_ms >= patience_ms))
            allowed = due & asked_for
            if limited:
                need, room = needs[np.uint64(shapes[slot])], rooms[np.uint64(lanes[slot])]
                short = False
                for resource in range(4):
                    short |= (need[resource] > 0) & (need[resource] > room[resource])
                # A head is looked at in its turn even where its class doesn't fit: it bars those behind it.
                allowed = due & ((asked_for & (not short)) | (flags[slot] & HEAD != 0))
            if by_kind:
                longest, inverse = longest_ms[np.uint64(kinds[slot])], age_inverse[np.uint64(kinds[slot])]
            priority = priority_of(
                bases[slot],
                wait_ms,
                longest,
                inverse,
                tenant_factors[np.uint64(tenants[slot])],
                run_factors[np.uint64(runs[slot])],
            )
            priorities[at] = priority if allowed else -1

    return evaluate


_evaluate_alike = _evaluator(False, False, False)
_evaluate_throttled = _evaluator(False, True, False)
_evaluate_by_kind = _evaluator(True, True, False)
_evaluate_limited = _evaluator(False, True, True)
_evaluate_limited_by_kind = _evaluator(True, True, True)


@njit(cache=True)
def _keep(heap: Any, size: int, first: int, count: int, priorities: Any, enqueued: Any, jobs: Any) -> int:
    """Keep the best of heap and block in the heap; how many it has then."""
    most = len(heap)
    least = heap[0, 0] if size == most else 0
    for at_block in range(count):
        priority = priorities[at_block]
        if priority < least:
            continue
        slot = first + at_block
        if size == most:
            if priority == least and (
                enqueued[slot] > heap[0, 1] or (enqueued[slot] == heap[0, 1] and jobs[slot] > heap[0, 2])
            ):
                continue
            at = 0
        else:
            at = size
            size += 1
        heap[at, 0], heap[at, 1], heap[at, 2], heap[at, 3] = priority, enqueued[slot], jobs[slot], slot
        if at == 0:
            _sink(heap, 0, size)
        else:
            _rise(heap, at)
        if size == most:
            least = heap[0, 0]
    return size


@njit(cache=True)
def _stride(blocks: int) -> int:
    """About the golden section of `blocks`, and without a divisor in common."""
    stride = max(1, (blocks * 618) // 1_000)
    divisor, rest = blocks, stride
    while rest > 0:
        divisor, rest = rest, divisor % rest
        if rest == 0 and divisor > 1:
            stride += 1
            divisor, rest = blocks, stride
    return stride


@njit(cache=True)
def _sort(heap: Any, size: int) -> None:
    """From the heap to the order of the queue."""
    for end in range(size - 1, 0, -1):
        for column in range(4):
            heap[0, column], heap[end, column] = heap[end, column], heap[0, column]
        _sink(heap, 0, end)


@njit(cache=True)
def top(
    count: int,
    jobs: Any,
    classes: Any,
    tenants: Any,
    groups: Any,
    bases: Any,
    since: Any,
    enqueued: Any,
    flags: Any,
    runs: Any,
    kinds: Any,
    tenant_factors: Any,
    run_factors: Any,
    wanted: Any,
    remaining: Any,
    now: int,
    longest_ms: Any,
    age_inverse: Any,
    by_kind: bool,
    patience_ms: int,
    lanes: Any,
    shapes: Any,
    needs: Any,
    rooms: Any,
    most: int,
) -> Any:
    """The first `most` jobs of the queue at `now`: int64 `[n, 4]` of priority, enqueued at, job, slot, in order.

    `remaining` has what jobs of no throttled array may start at 0, and group `g` at `g + 1`.
    `longest_ms` and `age_inverse` have one entry for all jobs, or one for each kind when `by_kind`. `rooms` int64 `[lanes, 4]` is
    what each lane may start and `needs` int64 `[classes, 4]` what a job of each class (`shapes`) counts; empty without quotas.

    Blocks of slots are visited in a strided order: however the queue is laid out, few entries enter the heap.
    """
    heap = np.empty((most, 4), np.int64)
    size = 0
    blocks = (count + _BLOCK - 1) // _BLOCK
    stride = _stride(blocks)
    block = 0
    priorities = np.empty(_BLOCK, np.int64)
    for _ in range(blocks):
        first = block * _BLOCK
        size_of_block = min(count - first, _BLOCK)
        arguments = (
            first,
            size_of_block,
            classes,
            tenants,
            groups,
            bases,
            since,
            flags,
            runs,
            kinds,
            tenant_factors,
            run_factors,
            wanted,
            remaining,
            now,
            longest_ms,
            age_inverse,
            patience_ms,
            lanes,
            shapes,
            needs,
            rooms,
            priorities,
        )
        if len(rooms) and by_kind:
            _evaluate_limited_by_kind(*arguments)
        elif len(rooms):
            _evaluate_limited(*arguments)
        elif by_kind:
            _evaluate_by_kind(*arguments)
        elif len(remaining) > 1:
            _evaluate_throttled(*arguments)
        else:
            _evaluate_alike(*arguments)
        size = _keep(heap, size, first, size_of_block, priorities, enqueued, jobs)
        block = (block + stride) % blocks
    _sort(heap, size)
    return heap[:size]


@njit(cache=True)
def ahead(
    count: int,
    jobs: Any,
    tenants: Any,
    bases: Any,
    since: Any,
    enqueued: Any,
    flags: Any,
    runs: Any,
    kinds: Any,
    tenant_factors: Any,
    run_factors: Any,
    now: int,
    longest_ms: Any,
    age_inverse: Any,
    by_kind: bool,
    slot: int,
) -> int:
    """How many ready jobs come before the one in `slot` at `now`, whether they fit or not."""
    scale = kinds[slot] if by_kind else 0
    mine = priority_of(
        bases[slot],
        max(0, now - since[slot]) // NS_PER_MS,
        longest_ms[scale],
        age_inverse[scale],
        tenant_factors[tenants[slot]],
        run_factors[runs[slot]],
    )
    before = 0
    for other in range(count):
        if flags[other] & (PRESENT | READY) != PRESENT | READY or since[other] > now or other == slot:
            continue
        scale = kinds[other] if by_kind else 0
        priority = priority_of(
            bases[other],
            (now - since[other]) // NS_PER_MS,
            longest_ms[scale],
            age_inverse[scale],
            tenant_factors[tenants[other]],
            run_factors[runs[other]],
        )
        if priority > mine or (
            priority == mine
            and (
                enqueued[other] < enqueued[slot]
                or (enqueued[other] == enqueued[slot] and jobs[other] < jobs[slot])
            )
        ):
            before += 1
    return before


@njit(cache=True)
def first_by_key(
    count: int,
    keys: Any,
    most: int,
    jobs: Any,
    tenants: Any,
    bases: Any,
    since: Any,
    enqueued: Any,
    runs: Any,
    kinds: Any,
    tenant_factors: Any,
    run_factors: Any,
    now: int,
    longest_ms: Any,
    age_inverse: Any,
    by_kind: bool,
) -> Any:
    """For each key from 0 to `most` - 1 the slot that comes first in order at `now` among those that have it, -1 for none."""
    best = np.full(most, -1, np.int64)
    priorities = np.zeros(most, np.int64)
    for slot in range(count):
        key = keys[slot]
        if key < 0:
            continue
        scale = kinds[slot] if by_kind else 0
        priority = priority_of(
            bases[slot],
            max(0, now - since[slot]) // NS_PER_MS,
            longest_ms[scale],
            age_inverse[scale],
            tenant_factors[tenants[slot]],
            run_factors[runs[slot]],
        )
        other = best[key]
        if (
            other < 0
            or priority > priorities[key]
            or (
                priority == priorities[key]
                and (
                    enqueued[slot] < enqueued[other]
                    or (enqueued[slot] == enqueued[other] and jobs[slot] < jobs[other])
                )
            )
        ):
            best[key], priorities[key] = slot, priority
    return best
