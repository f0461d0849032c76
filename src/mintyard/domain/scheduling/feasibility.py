"""Who can run what: the plain definition for one node, and the same over all nodes as arrays. No score, no queue.

Members of a request are alike and nodes are independent, so a node's *room* (members it can run) falls by exactly one for
each member placed there, and a gang fits exactly when the rooms add up to its size: nothing has to be tried.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.limits import MAX_GPUS_PER_MEMBER
from mintyard.domain.scheduling.layout import (
    CPU,
    CPU_TOTAL,
    GPU_MILLI,
    GPUS,
    IDLE,
    MEMORY,
    MEMORY_TOTAL,
    NEED_CPU,
    NEED_GPUS,
    NEED_MEMORY,
    NEED_MILLI,
    NEED_WHOLE,
    SLOT,
    WHOLE,
)

UNBOUNDED = 1 << 30
"""Room of a node for a request that asks for nothing there."""


class NodeView(msgspec.Struct):
    """One node as the plain definitions see it; `slots` the free milli of each GPU."""

    cpu: int
    memory: int
    cpu_total: int
    memory_total: int
    slots: list[int]
    latency: int = 0
    eligible: tuple[bool, ...] = (True,)
    """By row of the eligibility masks."""

    @property
    def idle(self) -> int:
        return sum(max(0, slot) for slot in self.slots)


class Need(msgspec.Struct, frozen=True):
    """What one member asks for; `weights` multiply CPU, memory and GPU left, `demand` is how often it was seen."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    weights: tuple[int, int, int] = (0, 0, 0)
    eligible: int = 0
    demand: int = 0


def room(node: NodeView, need: Need) -> int:
    """Members of `need` that fit on one node now, whatever its labels."""
    if node.cpu < 0 or node.memory < 0:
        return 0
    most = UNBOUNDED
    if need.cpu:
        most = min(most, node.cpu // need.cpu)
    if need.memory:
        most = min(most, node.memory // need.memory)
    if need.gpus and need.milli == GPU_MILLI:
        most = min(most, sum(1 for slot in node.slots if slot == GPU_MILLI) // need.gpus)
    elif need.gpus:
        most = min(most, sum(max(0, slot) // need.milli for slot in node.slots))
    return most


def choose_slots(node: NodeView, need: Need) -> int:
    """Bit mask of the GPUs for one member: the tightest for a share, the first unused ones for whole GPUs; lowest index."""
    if not need.gpus:
        return 0
    if need.milli < GPU_MILLI:
        _, slot = min((free, slot) for slot, free in enumerate(node.slots) if free >= need.milli)
        return 1 << slot
    unused = [slot for slot, free in enumerate(node.slots) if free == GPU_MILLI]
    return sum(1 << slot for slot in unused[: need.gpus])


def rooms(table: NDArray[np.integer[Any]], need: NDArray[np.int64]) -> NDArray[np.int64]:
    """`room` of every node; `table` `[ROWS, nodes]`, `need` one request row."""
    most = np.full(table.shape[1], UNBOUNDED, np.int64)
    for free, amount in ((CPU, int(need[NEED_CPU])), (MEMORY, int(need[NEED_MEMORY]))):
        most = np.where(table[free] < 0, 0, most)
        if amount:
            most = np.minimum(most, np.maximum(0, table[free]) // amount)
    if need[NEED_WHOLE]:
        most = np.minimum(most, table[WHOLE] // need[NEED_WHOLE])
    elif need[NEED_GPUS]:
        slots = table[SLOT : SLOT + MAX_GPUS_PER_MEMBER]
        exists = np.arange(MAX_GPUS_PER_MEMBER)[:, None] < table[GPUS]
        most = np.minimum(most, (np.where(exists, np.maximum(0, slots), 0) // need[NEED_MILLI]).sum(axis=0))
    return most


def rooms_when_empty(table: NDArray[np.int64], need: NDArray[np.int64]) -> NDArray[np.int64]:
    """Members of one request that each node could run with nothing else on it."""
    room = np.full(table.shape[1], 1 << 30, np.int64)
    for total, amount in ((CPU_TOTAL, NEED_CPU), (MEMORY_TOTAL, NEED_MEMORY)):
        if need[amount]:
            room = np.minimum(room, table[total] // need[amount])
    if need[NEED_GPUS]:
        per_gpu = GPU_MILLI // need[NEED_MILLI]
        room = np.minimum(room, table[GPUS] * per_gpu // need[NEED_GPUS])
    return room


def lack_milli(table: NDArray[np.int64], need: NDArray[np.int64]) -> NDArray[np.int64]:
    """What each node lacks for one member, as the sum of the shares of CPU, memory and GPU in 1/1,000."""
    lack = np.zeros(table.shape[1], np.int64)
    gpus = table[WHOLE] * GPU_MILLI if need[NEED_WHOLE] else table[IDLE]
    for free, amount in (
        (table[CPU], int(need[NEED_CPU])),
        (table[MEMORY], int(need[NEED_MEMORY])),
        (gpus, int(need[NEED_GPUS] * need[NEED_MILLI])),
    ):
        if amount:
            lack += np.maximum(0, amount - free) * 1_000 // amount
    return lack
