"""The plain reference of a round with reservations in time: slow, obvious, the oracle that the kernels are tested against."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from mintyard.domain.scheduling.cluster import Placement
from mintyard.domain.scheduling.feasibility import Need, NodeView, choose_slots, room
from mintyard.domain.scheduling.reference import Reference
from mintyard.domain.scheduling.scoring import Policy


@dataclass
class Held:
    """Something that holds resources from `begin` until before `end`."""

    begin: int
    end: int
    placement: Placement
    need: Need


@dataclass
class Waiting:
    job: int
    need: Need
    members: int
    limit: int
    patient: bool
    shape_class: int


@dataclass
class Round:
    """`nodes` is what is free now; `running` ends at its `end` at the latest."""

    nodes: list[NodeView]
    running: list[Held]
    now: int
    most: int
    at_once: bool
    started: list[tuple[int, Placement]] = field(default_factory=list)
    reserved: list[tuple[int, Held]] = field(default_factory=list)

    def plan(self, jobs: list[Waiting]) -> None:
        hopeless: set[int] = set()
        for job in jobs:
            placement = self._place_now(job)
            if placement is not None:
                self.started.append((job.job, placement))
                self._change(self.nodes, placement, job.need, -1)
                self.running.append(Held(self.now, self.now + job.limit, placement, job.need))
                continue
            first = not self.reserved
            if len(self.reserved) < self.most and (first or self.at_once or job.patient):
                if job.shape_class in hopeless:
                    continue
                held = self._reserve(job)
                if held is None:
                    hopeless.add(job.shape_class)
                else:
                    self.reserved.append((job.job, held))

    def _place_now(self, job: Waiting) -> Placement | None:
        free = self._free_throughout(self.now, job.limit)
        return Reference(free, Policy.BEST_FIT).place(job.need, job.members)

    def _reserve(self, job: Waiting) -> Held | None:
        instants = {max(self.now + 1, held.end) for held in self.running}
        for _, held in self.reserved:
            instants |= {held.begin, held.end}
        for at in sorted(instants):
            free = self._free_throughout(at, job.limit)
            if sum(self._room(node, job) for node in free) >= job.members:
                return Held(at, at + job.limit, self._choose(free, job), job.need)
        return None

    def _choose(self, free: list[NodeView], job: Waiting) -> Placement:
        before = [min(self._room(node, job), job.members) for node in self.nodes]
        chosen: list[tuple[int, int]] = []
        for turn in range(3):
            for index, node in enumerate(free):
                most = min(self._room(node, job), job.members)
                if turn == 0 and before[index]:
                    continue
                if turn == 1:
                    most -= before[index]
                for _ in range(min(most, job.members - len(chosen))):
                    mask = choose_slots(node, job.need)
                    self._change(free, ((index, mask),), job.need, -1)
                    chosen.append((index, mask))
        return tuple(chosen)

    def _free_throughout(self, at: int, length: int) -> list[NodeView]:
        """The least that is free at `at` and whenever a reservation begins until `at + length`."""
        least = self._free(at)
        for _, held in self.reserved:
            if at < held.begin < at + length:
                other = self._free(held.begin)
                for node, view in zip(least, other, strict=True):
                    node.cpu, node.memory = min(node.cpu, view.cpu), min(node.memory, view.memory)
                    node.slots = [min(pair) for pair in zip(node.slots, view.slots, strict=True)]
        return least

    def _free(self, at: int) -> list[NodeView]:
        free = copy.deepcopy(self.nodes)
        for held in self.running:
            if max(held.end, self.now + 1) <= at:
                self._change(free, held.placement, held.need, 1)
        for _, held in self.reserved:
            if held.begin <= at < held.end:
                self._change(free, held.placement, held.need, -1)
        return free

    @staticmethod
    def _room(node: NodeView, job: Waiting) -> int:
        return room(node, job.need) if node.eligible[job.need.eligible] else 0

    @staticmethod
    def _change(nodes: list[NodeView], placement: Placement, need: Need, sign: int) -> None:
        for index, mask in placement:
            node = nodes[index]
            node.cpu += sign * need.cpu
            node.memory += sign * need.memory
            for slot in range(len(node.slots)):
                if mask >> slot & 1:
                    node.slots[slot] += sign * need.milli
