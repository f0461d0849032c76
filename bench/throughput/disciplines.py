"""Round robin and a strict priority queue in place of the scheduling round, for a fair comparison.

They share everything else with the product: admission, holds, ledger, journal, store, executor, and the core's bookkeeping
of waiting jobs and nodes. Only which job goes where next is theirs; like the round they work on a copy of the node table.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numba
import numpy as np

from mintyard.domain import hub
from mintyard.domain.events import AnyEvent, JobPlaced
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.kernels import choose_slots, take_member
from mintyard.domain.scheduling.layout import CPU, CPU_TOTAL, GPUS, MEMORY, MEMORY_TOTAL, SLOT, WHOLE, WIDEST
from mintyard.domain.state import Job, State


class Discipline(Protocol):
    """`add` hears of each job that begins to wait; `place_pending` stands in for `scheduling_round.place_pending`."""

    def add(self, state: State, job: Job) -> None: ...

    def place_pending(
        self, state: State, now: int, limit: int, policy: Any, out: list[AnyEvent], *_: Any
    ) -> int: ...


class RoundRobin:
    """A static ring: each job goes to the next node that could ever run it, and waits there in the order of arrival."""

    def __init__(self) -> None:
        self.ring = 0
        self.waiting: dict[int, deque[Job]] = {}

    def add(self, state: State, job: Job) -> None:
        table, count, shape = state.cluster.table, state.cluster.count, job.spec.content.shape
        for _ in range(count):
            node = self.ring
            self.ring = (node + 1) % count
            if (
                table[CPU_TOTAL, node] >= shape.cpus_milli
                and table[MEMORY_TOTAL, node] >= shape.memory_mib
                and table[GPUS, node] >= shape.gpus
            ):
                break
        line = self.waiting.get(node)
        if line is None:
            line = self.waiting[node] = deque()
        line.append(job)

    def place_pending(
        self, state: State, now: int, limit: int, policy: Any, out: list[AnyEvent], *_: Any
    ) -> int:
        table = state.cluster.table.copy()
        placed = 0
        for node in list(self.waiting):
            line = self.waiting[node]
            while line and placed < limit:
                mask = _take(table, node, line[0].spec.content.shape)
                if mask < 0:
                    break
                job = line.popleft()
                out.append(JobPlaced(job.id, job.attempt + 1, ((node, mask),)))
                placed += 1
            if not line:
                del self.waiting[node]
            if placed == limit:
                break
        return placed


class PriorityQueue:
    """Highest priority first, then the order of arrival; the first job that does not fit stops all behind it; first fit."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Job]] = []

    def add(self, state: State, job: Job) -> None:
        heapq.heappush(self.heap, (-job.spec.content.priority, job.id, job))

    def place_pending(
        self, state: State, now: int, limit: int, policy: Any, out: list[AnyEvent], *_: Any
    ) -> int:
        table, count = state.cluster.table.copy(), state.cluster.count
        placed = 0
        while self.heap and placed < limit:
            job = self.heap[0][2]
            shape = job.spec.content.shape
            node, mask = first_fit(
                table, count, shape.cpus_milli, shape.memory_mib, shape.gpus, shape.gpu_milli
            )
            if node < 0:
                break
            heapq.heappop(self.heap)
            out.append(JobPlaced(job.id, job.attempt + 1, ((node, mask),)))
            placed += 1
        return placed


@contextmanager
def installed(name: str) -> Iterator[None]:
    """A discipline in place of the scheduling round, in this process; nothing is replaced for ""."""
    if not name:
        yield
        return
    discipline = DISCIPLINES[name]()
    enqueue, enqueue_many, place_pending = State.enqueue, State.enqueue_many, hub.rounds.place_pending

    def enqueued(state: State, job: Job, queued_at: int) -> None:
        enqueue(state, job, queued_at)
        discipline.add(state, job)

    def enqueued_many(state: State, jobs: list[Job]) -> None:
        enqueue_many(state, jobs)
        for job in jobs:
            discipline.add(state, job)

    State.enqueue, State.enqueue_many = enqueued, enqueued_many
    hub.rounds.place_pending = discipline.place_pending
    try:
        yield
    finally:
        State.enqueue, State.enqueue_many, hub.rounds.place_pending = enqueue, enqueue_many, place_pending


def _take(table: Any, node: int, shape: Shape) -> int:
    """The GPUs (mask) that one member gets on `node`, which it takes; -1 when it does not fit."""
    return take_on(table, node, shape.cpus_milli, shape.memory_mib, shape.gpus, shape.gpu_milli)


@numba.njit(cache=True)
def take_on(table: Any, node: int, cpus: int, memory: int, gpus: int, milli: int) -> int:
    if table[CPU, node] < cpus or table[MEMORY, node] < memory:
        return -1
    mask = 0
    if gpus:
        if (milli == 1_000 and table[WHOLE, node] < gpus) or table[WIDEST, node] < milli:
            return -1
        mask = choose_slots(table, node, gpus, milli)
    take_member(table, node, mask, cpus, memory, milli)
    return mask


@numba.njit(cache=True)
def first_fit(table: Any, count: int, cpus: int, memory: int, gpus: int, milli: int) -> tuple[int, int]:
    for node in range(count):
        mask = take_on(table, node, cpus, memory, gpus, milli)
        if mask >= 0:
            return node, mask
    return -1, 0


@numba.njit(cache=True)
def ring_fit(
    table: Any, count: int, start: int, busy: Any, cpus: int, memory: int, gpus: int, milli: int
) -> tuple[int, int]:
    """The first node from `start` around the ring that is not busy and has room, which is taken; -1 for none."""
    for step in range(count):
        node = (start + step) % count
        if busy[node] == 0:
            mask = take_on(table, node, cpus, memory, gpus, milli)
            if mask >= 0:
                return node, mask
    return -1, 0


def warm() -> None:
    """Compile before the clock starts."""
    table = np.zeros((SLOT + 16, 2), np.int32)
    first_fit(table, 2, 1, 1, 1, 500)
    take_on(table, 0, 1, 1, 0, 1_000)


DISCIPLINES: dict[str, type[Discipline]] = {"round_robin": RoundRobin, "priority_queue": PriorityQueue}
