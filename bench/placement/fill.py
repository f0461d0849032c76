"""The fill of B1: openb's pods arrive until 130 % of all GPU milli have, none ever leaves; what share of the GPUs is placed.

Tasks are queued in order of arrival and placed by one call of the production round (`plan_round`): classes, queue, kernels and
table are those of a live hub. Nodes are added in an order drawn from the seed, so a tie goes to the first in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import numpy as np

from mintyard.adapters.traces.openb import read_openb
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.cluster import Cluster
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.round import Rules, plan_round
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.scheduling.shapes import ShapeTable
from mintyard.ports.traces import TraceNode, shape_of

ARRIVED_PERCENT: Final = 130
PREFIX: Final = "openb_pod_list_"
NODES: Final = "openb_node_list_gpu_node.csv"


class Mix(msgspec.Struct):
    """One file of pods: the shape of each, and the nodes."""

    name: str
    shapes: list[Shape]
    nodes: list[TraceNode]

    @property
    def gpus_milli(self) -> int:
        return 1_000 * sum(node.gpus for node in self.nodes)


def mixes(folder: Path) -> list[str]:
    """Names of the mixes whose files lie in `folder`."""
    names = {path.name.split(".csv")[0].removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*.csv*")}
    return sorted(names, key=lambda name: (name != "default", name))


def read_mix(folder: Path, name: str) -> Mix:
    pods = _file(folder, f"{PREFIX}{name}.csv")
    trace = read_openb(pods, _file(folder, NODES))
    return Mix(name, [shape_of(job) for job in trace.jobs], trace.nodes)


def _file(folder: Path, name: str) -> Path:
    found = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if found is None:
        raise SystemExit(
            f"{name} is not in {folder}: it is part of Alibaba's cluster-trace-gpu-v2023 (Apache-2.0), "
            "github.com/alibaba/clusterdata; name its folder with --data"
        )
    return found


def arrivals(mix: Mix, random: Random) -> list[Shape]:
    """The whole file shuffled, then drawn from with replacement, until the next would pass 130 % of all GPU milli."""
    order = list(mix.shapes)
    random.shuffle(order)
    most, arrived = mix.gpus_milli * ARRIVED_PERCENT // 100, 0
    chosen: list[Shape] = []
    while True:
        at = len(chosen)
        shape = order[at] if at < len(order) else order[random.randrange(len(order))]
        arrived += shape.gpus * shape.gpu_milli
        if arrived > most:
            return chosen
        chosen.append(shape)


def fill(mix: Mix, policy: Policy, seed: int) -> float:
    """Percent of all GPU milli that are placed at the end."""
    random = Random(seed)
    nodes = list(mix.nodes)
    random.shuffle(nodes)
    tasks = arrivals(mix, random)
    cluster = Cluster(len(nodes))
    for node in nodes:
        cluster.add_node(node.name, node.cpus_milli, node.memory_mib, node.gpus, node.gpu_model)
    shapes, queue = ShapeTable(), PendingQueue()
    for shape in mix.shapes:
        shapes.note_demand(shapes.intern(shape))
    _enqueue(queue, [shapes.intern(shape) for shape in tasks])
    rules = Rules(policy=policy, limit=len(tasks), passes=len(tasks), patience_ms=2**40, reservations=0)
    plan = plan_round(cluster, queue, shapes, np.zeros(1, np.int64), 0, rules)
    placed = sum(tasks[job].gpus * tasks[job].gpu_milli for job, _ in plan.placements)
    return 100 * placed / mix.gpus_milli


def _enqueue(queue: PendingQueue, classes: Sequence[int]) -> None:
    """All of one tenant and weight, so that the first to arrive comes first."""
    count = len(classes)
    queue.add_many(
        jobs=range(count),
        class_ids=classes,
        tenants=[0] * count,
        bases=[1] * count,
        enqueued_at=[0] * count,
        begin_at=[0] * count,
        runs=[0] * count,
        groups=[-1] * count,
    )
