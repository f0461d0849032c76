"""Compiled kernels over the node table: take and give back, which classes fit, and batch placement, one variant a policy.

Numba is imported here, in `profile_kernel`, `queue_kernel` and `quota_kernel` only. What is called from another file is compiled
in, and numba's cache watches the file of the called kernel only: see the Makefile's cache key. Every decision here has a plain
definition in `feasibility` and `scoring`; a property test compares them decision for decision.
"""

# Numba has no types: the arrays and its integer casts are unknown to a static checker.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numba import int32, int64, njit

from mintyard.domain.limits import MAX_GPUS_PER_MEMBER
from mintyard.domain.scheduling import quota_kernel
from mintyard.domain.scheduling.layout import (
    CPU,
    CPU_INVERSE,
    CPU_PER_GPU,
    CPU_TOTAL,
    DEMAND,
    ELIGIBLE,
    FAILED,
    GPU_MILLI,
    GPUS,
    HEAD,
    IDLE,
    IDLE_BITS,
    INDEX_BITS,
    JOB_CLASS,
    JOB_GROUP,
    JOB_HEAD,
    JOB_LANE,
    JOB_OFFSET,
    JOB_RESERVES,
    JOB_STATUS,
    LATENCY,
    MEMBERS,
    MEMORY,
    MEMORY_INVERSE,
    MEMORY_TOTAL,
    NEED_CPU,
    NEED_GPUS,
    NEED_MEMORY,
    NEED_MILLI,
    NEED_WHOLE,
    NEED_WIDEST,
    NO_FIT,
    ONE,
    OVER_QUOTA,
    PATIENT,
    PLACED,
    SHARE_CPU,
    SHARE_LATENCY,
    SHARE_MEMORY,
    SLOT,
    THROTTLED,
    WEIGHT_CPU,
    WEIGHT_GPU,
    WEIGHT_MEMORY,
    WHOLE,
    WIDEST,
)
from mintyard.domain.scheduling.variants import compiled_as

STRANDED: Final = 0
LINEAR: Final = 1
LOADED: Final = 2
PACKING: Final = 3
FRAGMENTATION: Final = 4

NONE: Final = (1 << 63) - 1
NO_NODE: Final = (1 << INDEX_BITS) - 1
"""The index bits of `NONE`: no node has this index. Comparing the key itself with `NONE` keeps the scan from being
vectorised, because the comparison is folded into the reduction."""
_OFFSET: Final = 1 << 30
_NEVER: Final = -(1 << 62)


@njit(cache=True)
def derive(table: Any, node: int) -> None:
    """Recompute the GPU summary of one node from its slots."""
    whole = 0
    widest = 0
    idle = 0
    for slot in range(MAX_GPUS_PER_MEMBER):
        free = table[SLOT + slot, node]
        if slot < table[GPUS, node]:
            if free == GPU_MILLI:
                whole += 1
            widest = max(widest, free)
            idle += max(0, free)
    table[WHOLE, node] = whole
    table[WIDEST, node] = widest
    table[IDLE, node] = idle


@njit(cache=True)
def take_member(table: Any, node: int, mask: int, cpus: int, memory: int, milli: int) -> int:
    """Take one member's resources; 0, or 1 (CPU), 2 (memory), 3 (GPU) short, and then nothing has changed."""
    if table[CPU, node] < cpus:
        return 1
    if table[MEMORY, node] < memory:
        return 2
    for slot in range(MAX_GPUS_PER_MEMBER):
        if (mask >> slot) & 1 and (table[SLOT + slot, node] < milli or slot >= table[GPUS, node]):
            return 3
    table[CPU, node] -= cpus
    table[MEMORY, node] -= memory
    if mask:
        for slot in range(MAX_GPUS_PER_MEMBER):
            if (mask >> slot) & 1:
                table[SLOT + slot, node] -= milli
        derive(table, node)
    return 0


@njit(cache=True)
def give_member(table: Any, node: int, mask: int, cpus: int, memory: int, milli: int) -> int:
    """Give one member's resources back; 0, or 1 (CPU), 2 (memory), 3 (GPU) more than is in use, and nothing has changed."""
    if table[CPU, node] + cpus > table[CPU_TOTAL, node]:
        return 1
    if table[MEMORY, node] + memory > table[MEMORY_TOTAL, node]:
        return 2
    for slot in range(MAX_GPUS_PER_MEMBER):
        total = GPU_MILLI if slot < table[GPUS, node] else 0
        if (mask >> slot) & 1 and table[SLOT + slot, node] + milli > total:
            return 3
    table[CPU, node] += cpus
    table[MEMORY, node] += memory
    if mask:
        for slot in range(MAX_GPUS_PER_MEMBER):
            if (mask >> slot) & 1:
                table[SLOT + slot, node] += milli
        derive(table, node)
    return 0


@njit(cache=True)
def change_members(
    table: Any, count: int, members: Any, kinds: Any, needs: Any, sign: int
) -> tuple[int, int]:
    """Take (`sign` 1) or give back (-1) what `members`, int64 `[n, 2]` of (node, GPU mask), need by their row of `needs`, int64
    `[kinds, 4]` of (CPU, memory, GPU milli, GPUs). (0, 0), or the first member that it is not possible for and what is short:
    1 to 3 as `take_member` has it, 4 the node, 5 the number of GPUs; those before it are done then."""
    for at in range(len(members)):
        node, mask = members[at]
        cpus, memory, milli, gpus = needs[kinds[at]]
        bits = 0
        for slot in range(MAX_GPUS_PER_MEMBER):
            bits += (mask >> slot) & 1
        short = 0
        if not 0 <= node < count:
            short = 4
        elif bits != gpus or mask >> MAX_GPUS_PER_MEMBER:
            short = 5
        elif sign > 0:
            short = take_member(table, node, mask, cpus, memory, milli)
        else:
            short = give_member(table, node, mask, cpus, memory, milli)
        if short:
            return at, short
    return 0, 0


@njit(cache=True)
def node_capacity(table: Any, node: int, need: Any) -> int:
    """How many members of one request fit on a node now. Exact: placing one lowers it by one, wherever its GPU is."""
    room = 1 << 30
    if table[CPU, node] < 0 or table[MEMORY, node] < 0:
        return 0
    if need[NEED_CPU] > 0:
        room = min(room, table[CPU, node] // need[NEED_CPU])
    if need[NEED_MEMORY] > 0:
        room = min(room, table[MEMORY, node] // need[NEED_MEMORY])
    if need[NEED_WHOLE] > 0:
        room = min(room, table[WHOLE, node] // need[NEED_WHOLE])
    elif need[NEED_GPUS] > 0:
        shares = 0
        for slot in range(table[GPUS, node]):
            shares += max(0, table[SLOT + slot, node]) // need[NEED_MILLI]
        room = min(room, shares)
    return room


@njit(cache=True)
def fits(table: Any, count: int, ok: Any, is_open: Any, need: Any) -> bool:
    """Whether all members of one request fit now. Node capacities add up exactly, so nothing has to be tried."""
    wanted = need[MEMBERS]
    for node in range(count):
        if ok[node] and is_open[node]:
            wanted -= node_capacity(table, node, need)
            if wanted <= 0:
                return True
    return False


@njit(cache=True)
def mark_failing(table: Any, count: int, eligible: Any, is_open: Any, requests: Any) -> None:
    """Set `FAILED` of each request that does not fit now, clear it for the others."""
    for index in range(requests.shape[0]):
        need = requests[index]
        need[FAILED] = 0 if fits(table, count, eligible[need[ELIGIBLE]], is_open, need) else 1


@njit(cache=True)
def choose_slots(table: Any, node: int, gpus: int, milli: int) -> int:
    """Bit mask of the GPUs one member gets: the tightest for a share, the first unused ones for whole GPUs."""
    mask = 0
    if milli == GPU_MILLI:
        for slot in range(table[GPUS, node]):
            if gpus > 0 and table[SLOT + slot, node] == GPU_MILLI:
                mask |= 1 << slot
                gpus -= 1
    elif gpus > 0:
        tightest = GPU_MILLI + 1
        for slot in range(table[GPUS, node]):
            free = table[SLOT + slot, node]
            if milli <= free < tightest:
                tightest = free
                mask = 1 << slot
    return mask


@njit(cache=True)
def _select_stranded(table: Any, count: int, ok: Any, is_open: Any, need: Any, parameters: Any) -> int:
    """Least increase of stranded GPU, then least GPU left, then the lowest index.

    Here and below factors are cast to 32 bits and every node is scored, feasible or not: with 64-bit factors or a branch
    the compiler leaves the loop scalar, three times as slow.
    """
    cpu, memory, whole, widest, idle = table[CPU], table[MEMORY], table[WHOLE], table[WIDEST], table[IDLE]
    need_cpu, need_memory = int32(need[NEED_CPU]), int32(need[NEED_MEMORY])
    need_whole, need_widest = int32(need[NEED_WHOLE]), int32(need[NEED_WIDEST])
    need_gpu = int32(need[NEED_GPUS] * need[NEED_MILLI])
    ratio = int32(parameters[CPU_PER_GPU])
    best = NONE
    for node in range(count):
        cpu_left = int64(cpu[node]) - need_cpu
        idle_left = int64(idle[node]) - need_gpu
        before = max(0, int64(idle[node]) * ratio - int64(cpu[node]) * GPU_MILLI)
        after = max(0, idle_left * ratio - cpu_left * GPU_MILLI)
        key = ((((after - before + _OFFSET) << IDLE_BITS) | idle_left) << INDEX_BITS) | node
        feasible = (
            (cpu[node] >= need_cpu)
            & (memory[node] >= need_memory)
            & (whole[node] >= need_whole)
            & (widest[node] >= need_widest)
            & ((ok[node] & is_open[node]) != 0)
        )
        best = min(best, key if feasible else NONE)
    return best & NO_NODE


@njit(cache=True)
def _select_linear(table: Any, count: int, ok: Any, is_open: Any, need: Any) -> int:
    """Least weighted sum of what is left (best fit, dot product), then the lowest index."""
    cpu, memory, whole, widest, idle = table[CPU], table[MEMORY], table[WHOLE], table[WIDEST], table[IDLE]
    need_cpu, need_memory = int32(need[NEED_CPU]), int32(need[NEED_MEMORY])
    need_whole, need_widest = int32(need[NEED_WHOLE]), int32(need[NEED_WIDEST])
    need_gpu = int32(need[NEED_GPUS] * need[NEED_MILLI])
    weight_cpu, weight_memory = int32(need[WEIGHT_CPU]), int32(need[WEIGHT_MEMORY])
    weight_gpu = int32(need[WEIGHT_GPU])
    best = NONE
    for node in range(count):
        cpu_left = int64(cpu[node]) - need_cpu
        memory_left = int64(memory[node]) - need_memory
        idle_left = int64(idle[node]) - need_gpu
        score = cpu_left * weight_cpu + memory_left * weight_memory + idle_left * weight_gpu
        feasible = (
            (cpu[node] >= need_cpu)
            & (memory[node] >= need_memory)
            & (whole[node] >= need_whole)
            & (widest[node] >= need_widest)
            & ((ok[node] & is_open[node]) != 0)
        )
        best = min(best, (score << INDEX_BITS) | node if feasible else NONE)
    return best & NO_NODE


@njit(cache=True)
def _select_loaded(table: Any, count: int, ok: Any, is_open: Any, need: Any, parameters: Any) -> int:
    """Most weighted share of CPU, memory and network left (S7), then the lowest index."""
    cpu, memory, whole, widest = table[CPU], table[MEMORY], table[WHOLE], table[WIDEST]
    cpu_inverse, memory_inverse, latency = table[CPU_INVERSE], table[MEMORY_INVERSE], table[LATENCY]
    need_cpu, need_memory = int32(need[NEED_CPU]), int32(need[NEED_MEMORY])
    need_whole, need_widest = int32(need[NEED_WHOLE]), int32(need[NEED_WIDEST])
    by_cpu, by_memory, by_latency = parameters[SHARE_CPU], parameters[SHARE_MEMORY], parameters[SHARE_LATENCY]
    best = NONE
    for node in range(count):
        cpu_left = int64(cpu[node]) - need_cpu
        memory_left = int64(memory[node]) - need_memory
        score = (
            by_cpu * (cpu_left * cpu_inverse[node])
            + by_memory * (memory_left * memory_inverse[node])
            + by_latency * ((1_000 - int64(latency[node])) * (ONE // 1_000))
        )
        feasible = (
            (cpu[node] >= need_cpu)
            & (memory[node] >= need_memory)
            & (whole[node] >= need_whole)
            & (widest[node] >= need_widest)
            & ((ok[node] & is_open[node]) != 0)
        )
        best = min(best, (((100 * ONE) - score) << INDEX_BITS) | node if feasible else NONE)
    return best & NO_NODE


@njit(cache=True)
def _feasible(table: Any, node: int, ok: Any, is_open: Any, need: Any) -> bool:
    return (
        ok[node] != 0
        and is_open[node] != 0
        and table[CPU, node] >= need[NEED_CPU]
        and table[MEMORY, node] >= need[NEED_MEMORY]
        and table[WHOLE, node] >= need[NEED_WHOLE]
        and table[WIDEST, node] >= need[NEED_WIDEST]
    )


@njit(cache=True)
def _select_packing(table: Any, count: int, ok: Any, is_open: Any, need: Any) -> int:
    """GPUs in use first, then nodes with a GPU in use, then untouched ones; least left; then the lowest index."""
    need_gpu, milli = need[NEED_GPUS] * need[NEED_MILLI], need[NEED_MILLI]
    best = NONE
    for node in range(count):
        if not _feasible(table, node, ok, is_open, need):
            continue
        untouched = table[IDLE, node] == table[GPUS, node] * GPU_MILLI
        tier = 2 if untouched else 1
        left = table[IDLE, node] - need_gpu
        if need_gpu == 0 and table[GPUS, node] == 0:
            tier = 0
        elif 0 < need_gpu < GPU_MILLI:
            for slot in range(table[GPUS, node]):
                free = table[SLOT + slot, node]
                if milli <= free < GPU_MILLI and (tier > 0 or free - milli < left):
                    tier = 0
                    left = free - milli
        best = min(best, (((int64(tier) << IDLE_BITS) | left) << INDEX_BITS) | node)
    return best & NO_NODE


@njit(cache=True)
def _fragmentation(slots: Any, gpus: int, cpu: int, node: int, typical: Any, eligible: Any) -> int:
    """Idle milli that typical classes can't use on this node, weighted by their demand (FGD, USENIX ATC'23)."""
    idle = 0
    for slot in range(gpus):
        idle += max(0, slots[slot])
    total = 0
    if idle == 0:
        return 0
    for index in range(typical.shape[0]):
        kind = typical[index]
        lost = idle
        if kind[NEED_GPUS] > 0 and cpu >= kind[NEED_CPU] and eligible[kind[ELIGIBLE], node]:
            narrow = 0
            enough = 0
            for slot in range(gpus):
                if slots[slot] >= kind[NEED_MILLI]:
                    enough += 1
                else:
                    narrow += max(0, slots[slot])
            if enough >= kind[NEED_GPUS]:
                lost = narrow
        total += kind[DEMAND] * lost
    return total


@njit(cache=True)
def _is_repeated(slots: Any, slot: int) -> bool:
    """Whether an earlier GPU has as much free: it scores the same and wins the tie."""
    repeated = False
    for earlier in range(slot):
        repeated |= slots[earlier] == slots[slot]
    return repeated


@njit(cache=True)
def _fragmentation_score(change: int, weight: int, steps: Any) -> int:
    """int(100 sigmoid(change / weight / 1000)) by its steps: how many of them `change / weight` reaches."""
    low, high = 0, steps.shape[0]
    while low < high:
        middle = (low + high) // 2
        if steps[middle] * weight <= change:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def _select_fragmentation(
    table: Any, count: int, eligible: Any, is_open: Any, need: Any, typical: Any, steps: Any
) -> int:
    """Best integer FGD score, then the lowest index; returns node << 5 | slot, slot 31 when it is not a share."""
    ok = eligible[need[ELIGIBLE]]
    gpus, milli = need[NEED_GPUS], need[NEED_MILLI]
    weight = 0
    for index in range(typical.shape[0]):
        weight += typical[index, DEMAND]
    slots = np.zeros(MAX_GPUS_PER_MEMBER, np.int64)
    best, choice = -1, -1
    for node in range(count):
        if not _feasible(table, node, ok, is_open, need):
            continue
        count_gpus = table[GPUS, node]
        for slot in range(count_gpus):
            slots[slot] = table[SLOT + slot, node]
        before = _fragmentation(slots, count_gpus, table[CPU, node], node, typical, eligible)
        cpu_left = table[CPU, node] - need[NEED_CPU]
        if 0 < milli < GPU_MILLI:
            for slot in range(count_gpus):
                if slots[slot] >= milli and not _is_repeated(slots, slot):
                    slots[slot] -= milli
                    after = _fragmentation(slots, count_gpus, cpu_left, node, typical, eligible)
                    slots[slot] += milli
                    score = _fragmentation_score(before - after, weight, steps)
                    if score > best:
                        best, choice = score, node << 5 | slot
        else:
            mask = choose_slots(table, node, gpus, milli)
            for slot in range(count_gpus):
                if (mask >> slot) & 1:
                    slots[slot] = 0
            after = _fragmentation(slots, count_gpus, cpu_left, node, typical, eligible)
            score = _fragmentation_score(before - after, weight, steps)
            if score > best:
                best, choice = score, node << 5 | 31
    return choice


@njit(cache=True)
def _count(need: Any, counted: Any) -> None:
    """What all members of a request count at a quota (`quota.RESOURCES`)."""
    members = need[MEMBERS]
    counted[0] = need[NEED_GPUS] * need[NEED_MILLI] * members
    counted[1] = need[NEED_CPU] * members
    counted[2] = need[NEED_MEMORY] * members
    counted[3] = 1


@cache
def place_kernel(kind: int) -> Callable[..., tuple[int, int]]:
    """The batch placement kernel of one kind of score; compiled at its first call only."""

    @compiled_as(kind)
    def place(
        table: Any,
        count: int,
        eligible: Any,
        is_open: Any,
        requests: Any,
        typical: Any,
        steps: Any,
        parameters: Any,
        jobs: Any,
        remaining: Any,
        quota: Any,
        members: Any,
        start: int,
        limit: int,
    ) -> tuple[int, int]:
        """Place candidates in order until one that may reserve doesn't fit, `limit` are placed, or all were seen.

        Returns the index after the last candidate seen and the number placed. `members` gets (node, mask) rows,
        `jobs` the status, `remaining` counts down array throttles and `quota` what may run, `table` is
        changed: the caller puts it back.
        """
        placed = 0
        limited = quota.queue_of.shape[0] > 0
        counted = np.zeros(4, np.int64)
        for index in range(start, jobs.shape[0]):
            if placed >= limit:
                return index, placed
            job = jobs[index]
            need = requests[job[JOB_CLASS]]
            group = job[JOB_GROUP]
            if group >= 0 and remaining[group] <= 0:
                job[JOB_STATUS] = THROTTLED
                continue
            if limited:
                _count(need, counted)
                if not quota_kernel.fits(quota, job[JOB_LANE], counted):
                    job[JOB_STATUS] = OVER_QUOTA
                    # One that no node has room for now is no reason to bar others, unless it is the head.
                    if job[JOB_HEAD] == HEAD or (job[JOB_HEAD] == PATIENT and need[FAILED] == 0):
                        quota_kernel.set_aside(quota, job[JOB_LANE], counted)
                    continue
            ok = eligible[need[ELIGIBLE]]
            if need[FAILED] == 0 and need[MEMBERS] > 1 and not fits(table, count, ok, is_open, need):
                need[FAILED] = 1
            wanted = need[MEMBERS] if need[FAILED] == 0 else 0
            for member in range(wanted):
                mask = 0
                if kind == STRANDED:
                    node = _select_stranded(table, count, ok, is_open, need, parameters)
                elif kind == LINEAR:
                    node = _select_linear(table, count, ok, is_open, need)
                elif kind == LOADED:
                    node = _select_loaded(table, count, ok, is_open, need, parameters)
                elif kind == PACKING:
                    node = _select_packing(table, count, ok, is_open, need)
                else:
                    choice = _select_fragmentation(table, count, eligible, is_open, need, typical, steps)
                    node = choice >> 5 if choice >= 0 else NO_NODE
                    mask = 1 << (choice & 31) if choice >= 0 and choice & 31 != 31 else 0
                if node == NO_NODE:
                    need[FAILED] = 1
                    break
                if mask == 0:
                    mask = choose_slots(table, node, need[NEED_GPUS], need[NEED_MILLI])
                take_member(table, node, mask, need[NEED_CPU], need[NEED_MEMORY], need[NEED_MILLI])
                members[job[JOB_OFFSET] + member, 0] = node
                members[job[JOB_OFFSET] + member, 1] = mask
            if need[FAILED]:
                job[JOB_STATUS] = NO_FIT
                if job[JOB_RESERVES]:
                    return index + 1, placed
                continue
            job[JOB_STATUS] = PLACED
            placed += 1
            if limited:
                quota_kernel.take(quota, job[JOB_LANE], counted)
            if group >= 0:
                remaining[group] -= 1
        return jobs.shape[0], placed

    return place
