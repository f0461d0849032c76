"""B3 (b): what a discipline makes of the same cluster, simulated on openb (1,213 nodes) with lognormal tasks of mean 2 s.

Ours is the production round (`plan_round`) over the production queue and cluster. The others work on the same table with the
same kernels: `round_robin` is a static ring to a line at each node; `round_robin_skip` has one line, each job goes to the next
node in the ring on which it fits; `round_robin_room` sends a job to the next node with room at its arrival, else to a node's
line; `priority_queue` is strict priority, the first that does not fit stops all behind it, first fit. All decide each
`TICK_S`; GPU use is averaged over the second half. A simulation: load on this machine changes nothing in it.
"""

from __future__ import annotations

import csv
import gzip
import heapq
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.throughput.disciplines import first_fit, ring_fit, take_on
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.cluster import Cluster
from mintyard.domain.scheduling.kernels import give_member
from mintyard.domain.scheduling.layout import CPU_TOTAL, GPUS, MEMORY_TOTAL, SLOT
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.round import Rules, plan_round
from mintyard.domain.scheduling.shapes import ShapeTable

TICK_S = 0.05
SECONDS = 30.0
MEAN_S = 2.0
SIGMA = 1.0
PRIORITIES = (100, 200, 400)
NODES_FILE = "openb/openb_node_list_gpu_node.csv"
TASKS_FILE = "openb/openb_pod_list_default.csv"
Placed = list[tuple[int, int, int]]
"""(task, node, mask of GPUs)."""


class Tasks:
    """Arrivals of one run: when (s), how long (s), what, how urgent."""

    def __init__(self, shapes: list[Shape], rate: float, seed: int, seconds: float) -> None:
        random = np.random.default_rng(seed)
        count = round(rate * seconds)
        self.at = np.cumsum(random.exponential(1 / rate, count))
        self.run_s = random.lognormal(np.log(MEAN_S) - SIGMA**2 / 2, SIGMA, count)
        picks = random.integers(0, len(shapes), count)
        self.shape = [shapes[at] for at in picks.tolist()]
        self.priority = [PRIORITIES[at] for at in random.integers(0, len(PRIORITIES), count).tolist()]


class Ours:
    def __init__(self, cluster: Cluster, tasks: Tasks) -> None:
        self.cluster, self.tasks = cluster, tasks
        self.queue, self.shapes = PendingQueue(), ShapeTable()

    def add(self, task: int) -> None:
        kind = self.shapes.intern(self.tasks.shape[task])
        self.shapes.note_demand(kind)
        self.queue.add(task, kind, 0, self.tasks.priority[task], int(self.tasks.at[task] * 1e9))

    def place(self, now: float) -> Placed:
        plan = plan_round(self.cluster, self.queue, self.shapes, [0], int(now * 1e9), Rules())
        for task, placement in plan.placements:
            self.queue.discard(task)
            self.cluster.take(placement, self.tasks.shape[task])
        return [(task, *placement[0]) for task, placement in plan.placements]


class PriorityQueue:
    def __init__(self, cluster: Cluster, tasks: Tasks) -> None:
        self.cluster, self.tasks = cluster, tasks
        self.heap: list[tuple[int, int]] = []

    def add(self, task: int) -> None:
        heapq.heappush(self.heap, (-self.tasks.priority[task], task))

    def place(self, now: float) -> Placed:
        placed: Placed = []
        while self.heap:
            task = self.heap[0][1]
            node, mask = first_fit(self.cluster.table, self.cluster.count, *_needs(self.tasks.shape[task]))
            if node < 0:
                break
            heapq.heappop(self.heap)
            placed.append((task, node, mask))
        return placed


class RoundRobin:
    def __init__(self, cluster: Cluster, tasks: Tasks) -> None:
        self.cluster, self.tasks = cluster, tasks
        self.ring = 0
        self.waiting: dict[int, deque[int]] = {}

    def add(self, task: int) -> None:
        table, shape = self.cluster.table, self.tasks.shape[task]
        while True:
            node = self.ring
            self.ring = (node + 1) % self.cluster.count
            if (
                table[CPU_TOTAL, node] >= shape.cpus_milli
                and table[MEMORY_TOTAL, node] >= shape.memory_mib
                and table[GPUS, node] >= shape.gpus
            ):
                break
        self.waiting.setdefault(node, deque()).append(task)

    def place(self, now: float) -> Placed:
        placed: Placed = []
        for node, line in self.waiting.items():
            while line:
                mask = take_on(self.cluster.table, node, *_needs(self.tasks.shape[line[0]]))
                if mask < 0:
                    break
                placed.append((line.popleft(), node, mask))
        return placed


class RoundRobinRoom(RoundRobin):
    """The ring, but a new job goes to the next node that has room for it now; with none, to the line of the next node."""

    def __init__(self, cluster: Cluster, tasks: Tasks) -> None:
        super().__init__(cluster, tasks)
        self.started: Placed = []
        self.busy = np.zeros(cluster.count, np.uint8)
        """Nodes with a line."""

    def add(self, task: int) -> None:
        table, count, needs = self.cluster.table, self.cluster.count, _needs(self.tasks.shape[task])
        node, mask = ring_fit(table, count, self.ring, self.busy, *needs)
        if node < 0:
            super().add(task)
            self.busy[self.ring - 1] = 1  # where it waits
            return
        self.ring = (node + 1) % count
        self.started.append((task, node, mask))

    def place(self, now: float) -> Placed:
        started, self.started = self.started, []
        placed = started + super().place(now)
        self.waiting = {node: line for node, line in self.waiting.items() if line}
        self.busy[:] = 0
        self.busy[list(self.waiting)] = 1
        return placed


class RoundRobinSkip(RoundRobin):
    def __init__(self, cluster: Cluster, tasks: Tasks) -> None:
        super().__init__(cluster, tasks)
        self.line: deque[int] = deque()
        self.nobody = np.zeros(cluster.count, np.uint8)

    def add(self, task: int) -> None:
        self.line.append(task)

    def place(self, now: float) -> Placed:
        placed: Placed = []
        count = self.cluster.count
        while self.line:
            needs = _needs(self.tasks.shape[self.line[0]])
            node, mask = ring_fit(self.cluster.table, count, self.ring, self.nobody, *needs)
            if node < 0:
                break
            self.ring = (node + 1) % count
            placed.append((self.line.popleft(), node, mask))
        return placed


POLICIES: dict[str, Callable[[Cluster, Tasks], Any]] = {
    "round_robin": RoundRobin,
    "round_robin_skip": RoundRobinSkip,
    "round_robin_room": RoundRobinRoom,
    "priority_queue": PriorityQueue,
    "ours": Ours,
}


def simulate(policy: str, data: Path, rate: float, seed: int, seconds: float = SECONDS) -> dict[str, float]:
    """done/s over the whole run, GPU use over its second half in percent, mean wait of what started in ms."""
    cluster = read_nodes(data)
    tasks = Tasks(read_shapes(data), rate, seed, seconds)
    discipline = POLICIES[policy](cluster, tasks)
    total = cluster.total().gpus_milli
    ends: list[tuple[float, int, int, int]] = []
    arrived = done = in_use = ticks = 0
    used: list[float] = []
    waits: list[float] = []
    while (now := ticks * TICK_S) < seconds:
        while ends and ends[0][0] <= now:
            _, task, node, mask = heapq.heappop(ends)
            shape = tasks.shape[task]
            give_member(cluster.table, node, mask, shape.cpus_milli, shape.memory_mib, shape.gpu_milli)
            in_use -= shape.gpus_milli
            done += 1
        while arrived < len(tasks.at) and tasks.at[arrived] <= now:
            discipline.add(arrived)
            arrived += 1
        for task, node, mask in discipline.place(now):
            heapq.heappush(ends, (now + tasks.run_s[task], task, node, mask))
            in_use += tasks.shape[task].gpus_milli
            waits.append(now - tasks.at[task])
        used.append(in_use / total)
        ticks += 1
    return {
        "done_per_s": done / seconds,
        "utilisation": 100 * float(np.mean(used[len(used) // 2 :])),
        "wait_ms": 1e3 * float(np.mean(waits)),
    }


def _needs(shape: Shape) -> tuple[int, int, int, int]:
    return shape.cpus_milli, shape.memory_mib, shape.gpus, shape.gpu_milli


def read_nodes(data: Path) -> Cluster:
    cluster = Cluster(2_048)
    for row in _rows(data, NODES_FILE):
        cluster.add_node(
            row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"]
        )
    assert cluster.table.shape[0] > SLOT
    return cluster


def read_shapes(data: Path) -> list[Shape]:
    """Every task of the trace; limits on GPU models are left out for all alike."""
    shapes: list[Shape] = []
    for row in _rows(data, TASKS_FILE):
        gpus = int(row["num_gpu"])
        milli = int(row["gpu_milli"]) if gpus == 1 else 1_000
        shapes.append(Shape(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, milli))
    return shapes


def missing(data: Path) -> str:
    """What of the trace is not in `data` and where it comes from; empty when all is there."""
    absent = [name for name in (NODES_FILE, TASKS_FILE) if _path(data, name) is None]
    where = "alibaba/clusterdata on GitHub, cluster-trace-gpu-v2023/csv"
    return f"{data} has no {' and no '.join(absent)}; they come from {where}" if absent else ""


def _path(data: Path, name: str) -> Path | None:
    return next((path for path in (data / name, data / f"{name}.gz") if path.exists()), None)


def _rows(data: Path, name: str) -> list[dict[str, str]]:
    path = _path(data, name)
    if path is None:
        raise SystemExit(missing(data))
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        return list(csv.DictReader(file))
