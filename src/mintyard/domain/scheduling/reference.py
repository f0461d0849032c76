"""The plain reference of placement: slow, obvious, the oracle that the kernels are tested against. No numba."""

from __future__ import annotations

from collections.abc import Sequence

from mintyard.domain.limits import MAX_GPUS_PER_MEMBER
from mintyard.domain.scheduling import scoring
from mintyard.domain.scheduling.cluster import Cluster, Constraint, Placement
from mintyard.domain.scheduling.feasibility import Need, NodeView, choose_slots, room
from mintyard.domain.scheduling.layout import (
    CPU,
    CPU_TOTAL,
    GPU_MILLI,
    GPUS,
    LATENCY,
    MEMORY,
    MEMORY_TOTAL,
    SLOT,
)
from mintyard.domain.scheduling.scoring import Policy

_SHARES = {Policy.LEAST_LOADED: (60, 40, 0), Policy.LEAST_LOADED_NETWORK: (60, 30, 10)}


def node_views(cluster: Cluster, constraints: Sequence[Constraint]) -> list[NodeView]:
    """Every index of `cluster` as a plain view; `eligible` of a view answers `constraints` in order."""
    views: list[NodeView] = []
    for node in range(cluster.count):
        column: list[int] = cluster.table[:, node].tolist()
        views.append(
            NodeView(
                cpu=column[CPU],
                memory=column[MEMORY],
                cpu_total=column[CPU_TOTAL],
                memory_total=column[MEMORY_TOTAL],
                slots=column[SLOT : SLOT + min(column[GPUS], MAX_GPUS_PER_MEMBER)],
                latency=column[LATENCY],
                eligible=tuple(cluster.is_eligible(node, constraint) for constraint in constraints),
            )
        )
    return views


class Reference:
    """Places members one by one on plain node views, which it changes."""

    def __init__(
        self, nodes: list[NodeView], policy: Policy, cpu_per_gpu_milli: int = 0, typical: Sequence[Need] = ()
    ) -> None:
        self.nodes, self.policy = nodes, policy
        self.cpu_per_gpu_milli, self.typical = cpu_per_gpu_milli, typical

    def place(self, need: Need, members: int) -> Placement | None:
        """A placement of all members, taken from the views; None, and nothing taken, when they don't all fit."""
        usable = [node for node in self.nodes if node.eligible[need.eligible]]
        if sum(room(node, need) for node in usable) < members:
            return None
        placement: list[tuple[int, int]] = []
        for _ in range(members):
            feasible = [
                index
                for index, node in enumerate(self.nodes)
                if node.eligible[need.eligible] and room(node, need) > 0
            ]
            _, index, mask = min(self._choice(index, need) for index in feasible)
            self._take(self.nodes[index], need, mask)
            placement.append((index, mask))
        return tuple(placement)

    def _choice(self, index: int, need: Need) -> tuple[tuple[int, ...], int, int]:
        node = self.nodes[index]
        if self.policy is Policy.FGD:
            score, mask = self._fragmentation_choice(node, need)
            return (-score,), index, mask
        if self.policy is Policy.STRANDED:
            key = scoring.stranded_key(node, need, self.cpu_per_gpu_milli)
        elif self.policy in _SHARES:
            key = scoring.loaded_key(node, need, _SHARES[self.policy])
        elif self.policy is Policy.GPU_PACKING:
            key = scoring.packing_key(node, need)
        else:
            key = scoring.linear_key(node, need)
        return key, index, choose_slots(node, need)

    def _fragmentation_choice(self, node: NodeView, need: Need) -> tuple[int, int]:
        weight = sum(kind.demand for kind in self.typical)
        before = scoring.fragmentation(node, self.typical)
        if need.gpus and need.milli < GPU_MILLI:
            masks = [1 << slot for slot, free in enumerate(node.slots) if free >= need.milli]
        else:
            masks = [choose_slots(node, need)]
        best = (-1, 0)
        for mask in masks:
            trial = NodeView(node.cpu, node.memory, node.cpu_total, node.memory_total, list(node.slots))
            trial.eligible = node.eligible
            self._take(trial, need, mask)
            change = before - scoring.fragmentation(trial, self.typical)
            score = scoring.fragmentation_score(change, weight)
            if score > best[0]:
                best = (score, mask)
        return best

    @staticmethod
    def _take(node: NodeView, need: Need, mask: int) -> None:
        node.cpu -= need.cpu
        node.memory -= need.memory
        for slot in range(len(node.slots)):
            if mask >> slot & 1:
                node.slots[slot] -= need.milli
