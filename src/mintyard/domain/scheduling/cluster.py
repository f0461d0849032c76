"""The nodes as a structure of arrays: what is free, what there is, who may run where. No queue, no policy, no clock.

A placement is one (node index, GPU bit mask) for each member of a gang; the job's `Shape` gives the amounts. Indices
are stable while a node exists; the lowest free one is used again. Memory: 108 bytes a node and a byte for each set of
constraints in use.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.errors import AlreadyExists, InvalidSpec, InvariantBroken, LimitReached, NotFound
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.limits import MAX_CPUS_MILLI, MAX_GPUS_PER_MEMBER, MAX_MEMORY_MIB, MAX_NODES
from mintyard.domain.scheduling.kernels import change_members, derive, give_member, take_member
from mintyard.domain.scheduling.layout import (
    CPU,
    CPU_INVERSE,
    CPU_TOTAL,
    GPU_MILLI,
    GPUS,
    LATENCY,
    MEMORY,
    MEMORY_INVERSE,
    MEMORY_TOTAL,
    ONE,
    ROWS,
    SLOT,
)

Placement = tuple[tuple[int, int], ...]
Constraint = tuple[tuple[str, ...], tuple[str, ...]]
"""GPU models allowed (none: any) and labels wanted, each sorted and once."""
MAX_CONSTRAINTS_CACHED: Final = 1_024
MAX_VERDICTS_CACHED: Final = 4_096
_FEW_JOBS: Final = 8
"""So many are faster one after the other."""
_SHORT: Final = ("", "CPU", "memory", "GPU", "something", "another number of GPUs")


class NodeTotals(msgspec.Struct, frozen=True, array_like=True):
    """What a node has, and what is left of it. `slots` is the free milli of each GPU, of removed ones in use too."""

    name: str
    cpus_milli: int
    memory_mib: int
    gpus: int
    gpu_model: str
    labels: tuple[str, ...]
    schedulable: bool
    cpus_free_milli: int
    memory_free_mib: int
    slots: tuple[int, ...]
    latency_milli: int = 0


class NodeKind(msgspec.Struct, frozen=True):
    """What nodes can have in common: totals, model and labels."""

    cpus_milli: int
    memory_mib: int
    gpus: int
    gpu_model: str
    labels: tuple[str, ...]


class Amounts(msgspec.Struct, frozen=True, array_like=True):
    """A sum of resources: milli-cores, MiB, milli-GPU."""

    cpus_milli: int = 0
    memory_mib: int = 0
    gpus_milli: int = 0


class Cluster:
    """All nodes of one hub. Not thread-safe; `take` and `give_back` change all members or none."""

    def __init__(self, capacity: int = 64) -> None:
        self.table: NDArray[np.int32] = np.zeros((ROWS, max(1, capacity)), np.int32)
        self._cells = self.table.data
        """The same memory: single cells are read and written faster here than through the array or a kernel's call."""
        self.eligible: NDArray[np.uint8] = np.zeros((1, max(1, capacity)), np.uint8)
        self.count = 0
        """Columns in use: every index below it is, or was, a node."""
        self.gains = 0
        """Grows when something may fit that did not before."""
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        self._models: list[str] = []
        self._labels: list[tuple[str, ...]] = []
        self._schedulable: list[bool] = []
        self._by_model: dict[str, set[int]] = {}
        self._by_label: dict[str, set[int]] = {}
        self._constraints: dict[Constraint, int] = {((), ()): 0}
        self._free: list[int] = []
        self.kinds: dict[NodeKind, int] = {}
        """How many nodes there are of each kind: enough to say what could ever run."""
        self.verdicts: dict[Shape, Any] = {}
        """What `explain.feasible_ever` found since the nodes last changed: a cache, never part of the state."""
        self._total: Amounts | None = None

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    # --- nodes ------------------------------------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        cpus_milli: int,
        memory_mib: int,
        gpus: int = 0,
        gpu_model: str = "",
        labels: Iterable[str] = (),
    ) -> int:
        """Index of the new, schedulable node. Errors: `AlreadyExists`, `InvalidSpec`, `LimitReached`."""
        if name in self._index:
            raise AlreadyExists(what="node", name=name)
        _check_totals(cpus_milli, memory_mib, gpus)
        if len(self._index) >= MAX_NODES:
            raise LimitReached(limit=MAX_NODES, what="nodes")
        node = self._new_index()
        self._index[name] = node
        self._names[node] = name
        self._schedulable[node] = True
        self.table[:, node] = 0
        self._set_totals(node, cpus_milli, memory_mib, gpus)
        self._set_traits(node, gpu_model, labels)
        self.gains += 1
        return node

    def update_node(
        self,
        name: str,
        cpus_milli: int,
        memory_mib: int,
        gpus: int = 0,
        gpu_model: str = "",
        labels: Iterable[str] = (),
    ) -> int:
        """Change what a node has; what is in use stays in use, so free may fall below zero and nothing more fits."""
        node = self.index_of(name)
        _check_totals(cpus_milli, memory_mib, gpus)
        self._drop_traits(node)
        self._set_totals(node, cpus_milli, memory_mib, gpus)
        self._set_traits(node, gpu_model, labels)
        self.gains += 1
        return node

    def remove_node(self, name: str) -> None:
        """Forget a node on which nothing is in use; its index may be given to another node."""
        node = self.index_of(name)
        if self.in_use(node) != Amounts():
            raise InvariantBroken(why=f"node {name} is removed while in use")
        self._drop_traits(node)
        del self._index[name]
        self._names[node] = ""
        self._models[node] = ""
        self._labels[node] = ()
        self._schedulable[node] = False
        self.table[:, node] = 0
        self._total = None
        self.eligible[:, node] = 0
        heapq.heappush(self._free, node)

    def set_schedulable(self, name: str, schedulable: bool) -> None:
        """Whether new work may start there; what runs goes on."""
        node = self.index_of(name)
        if self._schedulable[node] != schedulable:
            self._schedulable[node] = schedulable
            self._set_eligible(node)
            self.gains += 1

    def set_latency(self, name: str, latency_milli: int) -> None:
        """Network cost of a node, 0 (none) to 1,000 (worst), for scores that look at it."""
        node = self.index_of(name)
        if type(latency_milli) is not int or not 0 <= latency_milli <= 1_000:
            raise InvalidSpec(
                field="latency_milli", why=f"{latency_milli!r} is not a whole number from 0 to 1000"
            )
        self.table[LATENCY, node] = latency_milli

    def index_of(self, name: str) -> int:
        """Errors: `NotFound`."""
        node = self._index.get(name)
        if node is None:
            raise NotFound(what="node", name=name)
        return node

    def name_of(self, node: int) -> str:
        """The node's name, empty for an index that is free."""
        return self._names[node]

    def is_schedulable(self, node: int) -> bool:
        return self._schedulable[node]

    def model_of(self, node: int) -> str:
        return self._models[node]

    def labels_of(self, node: int) -> tuple[str, ...]:
        return self._labels[node]

    def indices(self) -> list[int]:
        """Indices of all nodes, ascending."""
        return sorted(self._index.values())

    def node(self, name: str) -> NodeTotals:
        """A view of one node. Errors: `NotFound`."""
        return self._totals(self.index_of(name))

    # --- what is taken ------------------------------------------------------------------------------------------------

    def take(self, placement: Placement, shape: Shape) -> None:
        """Take what each member needs, all or nothing. Errors: `InvariantBroken` when anything is not free."""
        cpus, memory, milli = shape.cpus_milli, shape.memory_mib, shape.gpu_milli
        if len(placement) == 1 and not shape.gpus:
            ((node, mask),) = placement
            cells = self._cells
            if not mask and not self._misfit(node, 0, shape):
                cpus_left, memory_left = cells[CPU, node] - cpus, cells[MEMORY, node] - memory
                if cpus_left >= 0 and memory_left >= 0:
                    cells[CPU, node], cells[MEMORY, node] = cpus_left, memory_left
                    return
        for done, (node, mask) in enumerate(placement):
            short = (
                self._misfit(node, mask, shape)
                or _SHORT[take_member(self.table, node, mask, cpus, memory, milli)]
            )
            if short:
                for back, taken in placement[:done]:
                    give_member(self.table, back, taken, cpus, memory, milli)
                raise InvariantBroken(why=f"{short} of node {self._label(node)} is taken beyond what is free")

    def give_back(self, placement: Placement, shape: Shape) -> None:
        """Give back what `take` took, all or nothing. Errors: `InvariantBroken` when it is more than is in use."""
        cpus, memory, milli = shape.cpus_milli, shape.memory_mib, shape.gpu_milli
        if len(placement) == 1 and not shape.gpus:
            ((node, mask),) = placement
            cells = self._cells
            if not mask and not self._misfit(node, 0, shape):
                cpus_free, memory_free = cells[CPU, node] + cpus, cells[MEMORY, node] + memory
                if cpus_free <= cells[CPU_TOTAL, node] and memory_free <= cells[MEMORY_TOTAL, node]:
                    cells[CPU, node], cells[MEMORY, node] = cpus_free, memory_free
                    self.gains += 1
                    return
        for done, (node, mask) in enumerate(placement):
            over = (
                self._misfit(node, mask, shape)
                or _SHORT[give_member(self.table, node, mask, cpus, memory, milli)]
            )
            if over:
                for back, given in placement[:done]:
                    _untake(self.table, back, given, cpus, memory, milli)
                raise InvariantBroken(why=f"{over} of node {self._label(node)} is given back twice")
        self.gains += 1

    def take_many(self, taken: Sequence[tuple[Placement, int, Shape]]) -> None:
        """`take` for one after the other; the number is the same only for equal shapes. Errors: as `take`; then the table is
        not to be used any more."""
        if len(taken) < _FEW_JOBS:
            for placement, _, shape in taken:
                self.take(placement, shape)
            return
        self._change(taken, 1, "is taken beyond what is free")

    def give_back_many(self, given: Sequence[tuple[Placement, int, Shape]]) -> None:
        """`give_back` for one after the other, as `take_many`."""
        if len(given) < _FEW_JOBS:
            for placement, _, shape in given:
                self.give_back(placement, shape)
            return
        self._change(given, -1, "is given back twice")
        self.gains += len(given)

    def _change(self, changed: Sequence[tuple[Placement, int, Shape]], sign: int, fault: str) -> None:
        rows: dict[int, int] = {}
        needs: list[tuple[int, int, int, int]] = []
        members: list[tuple[int, int]] = []
        member_kinds: list[int] = []
        for placement, number, shape in changed:
            row = rows.get(number)
            if row is None:
                row = rows[number] = len(needs)
                needs.append((shape.cpus_milli, shape.memory_mib, shape.gpu_milli, shape.gpus))
            members += placement
            member_kinds += (row,) * len(placement)
        at, short = change_members(
            self.table,
            self.count,
            np.array(members, np.int64).reshape(-1, 2),
            np.array(member_kinds, np.int64),
            np.array(needs, np.int64).reshape(-1, 4),
            sign,
        )
        if short:
            raise InvariantBroken(why=f"{_SHORT[short]} of node {self._label(members[at][0])} {fault}")

    def in_use(self, node: int) -> Amounts:
        """What is taken on one node."""
        column = self.table[:, node]
        gpus = int(column[GPUS])
        slots = column[SLOT:]
        used = gpus * GPU_MILLI - int(slots.sum())
        return Amounts(int(column[CPU_TOTAL] - column[CPU]), int(column[MEMORY_TOTAL] - column[MEMORY]), used)

    def used(self) -> Amounts:
        """What is taken in all."""
        total = self.total()
        return Amounts(
            total.cpus_milli - self._sum(CPU),
            total.memory_mib - self._sum(MEMORY),
            total.gpus_milli - sum(self._sum(SLOT + slot) for slot in range(MAX_GPUS_PER_MEMBER)),
        )

    def total(self) -> Amounts:
        """What all nodes have, schedulable or not."""
        if self._total is None:
            self._total = Amounts(self._sum(CPU_TOTAL), self._sum(MEMORY_TOTAL), self._sum(GPUS) * GPU_MILLI)
        return self._total

    def _sum(self, row: int) -> int:
        return int(self.table[row, : self.count].sum(dtype=np.int64))

    # --- who may run where ------------------------------------------------------------------------------------------

    def eligible_rows(self, constraints: Sequence[Constraint]) -> list[int]:
        """Rows of `eligible` for these constraints: 1 where a node is schedulable and has model and labels.

        Rows are a cache: kept up to date by node changes, valid until the next call.
        """
        if len(self._constraints) > MAX_CONSTRAINTS_CACHED:
            self._constraints = {((), ()): 0}
            self.eligible = self.eligible[:1].copy()
        return [self._eligible_row(constraint) for constraint in constraints]

    def is_eligible(self, node: int, constraint: Constraint) -> bool:
        """Whether model and labels of a schedulable node satisfy the constraint."""
        models, labels = constraint
        return (
            self._schedulable[node]
            and (not models or self._models[node] in models)
            and all(label in self._labels[node] for label in labels)
        )

    def nodes_with_model(self, model: str) -> set[int]:
        return self._by_model.get(model, set())

    def nodes_with_label(self, label: str) -> set[int]:
        return self._by_label.get(label, set())

    def remember(self, shape: Shape, verdict: Any) -> None:
        """Keep a verdict until a node is added, changed or removed."""
        if len(self.verdicts) >= MAX_VERDICTS_CACHED:
            self.verdicts.clear()
        self.verdicts[shape] = verdict

    # --- copies -----------------------------------------------------------------------------------------------------

    def clone(self) -> Cluster:
        """An independent copy, for scratch work."""
        copy = Cluster(1)
        copy.table = self.table.copy()
        copy._cells = copy.table.data
        copy.eligible = self.eligible.copy()
        copy.count, copy.gains = self.count, self.gains
        copy._names, copy._models, copy._labels = self._names[:], self._models[:], self._labels[:]
        copy._schedulable, copy._free = self._schedulable[:], self._free[:]
        copy._index = dict(self._index)
        copy._by_model = {model: set(nodes) for model, nodes in self._by_model.items()}
        copy._by_label = {label: set(nodes) for label, nodes in self._by_label.items()}
        copy.kinds = dict(self.kinds)
        copy._constraints = dict(self._constraints)
        return copy

    def encode(self) -> bytes:
        """Canonical bytes: equal clusters give equal bytes on every machine, whatever was cached."""
        return msgspec.msgpack.encode(
            [self._totals(node) if self._names[node] else None for node in range(self.count)]
        )

    @classmethod
    def decode(cls, data: bytes) -> Cluster:
        """The cluster that `encode` wrote."""
        cluster = cls()
        nodes = msgspec.msgpack.decode(data, type=list[NodeTotals | None])
        for node, totals in enumerate(nodes):
            index = cluster._new_index()
            if index != node:
                raise InvariantBroken(why="node indices of a snapshot are not dense")
            if totals is not None:
                cluster._restore(node, totals)
        cluster._free = [node for node, totals in enumerate(nodes) if totals is None]
        return cluster

    # --- inside -------------------------------------------------------------------------------------------------------

    def _restore(self, node: int, totals: NodeTotals) -> None:
        self._index[totals.name] = node
        self._names[node] = totals.name
        self._schedulable[node] = totals.schedulable
        self._set_totals(node, totals.cpus_milli, totals.memory_mib, totals.gpus)
        self.table[CPU, node] = totals.cpus_free_milli
        self.table[MEMORY, node] = totals.memory_free_mib
        self.table[LATENCY, node] = totals.latency_milli
        self.table[SLOT : SLOT + len(totals.slots), node] = totals.slots
        derive(self.table, node)
        self._set_traits(node, totals.gpu_model, totals.labels)

    def _totals(self, node: int) -> NodeTotals:
        column: list[int] = self.table[:, node].tolist()
        slots = column[SLOT:]
        while len(slots) > column[GPUS] and slots[-1] == 0:
            slots.pop()
        return NodeTotals(
            self._names[node],
            column[CPU_TOTAL],
            column[MEMORY_TOTAL],
            column[GPUS],
            self._models[node],
            self._labels[node],
            self._schedulable[node],
            column[CPU],
            column[MEMORY],
            tuple(slots),
            column[LATENCY],
        )

    def _label(self, node: int) -> str:
        return self._names[node] if 0 <= node < self.count and self._names[node] else f"number {node}"

    def _misfit(self, node: int, mask: int, shape: Shape) -> str:
        if not 0 <= node < self.count or not self._names[node]:
            return "something"
        if mask.bit_count() != shape.gpus or mask >> MAX_GPUS_PER_MEMBER:
            return "another number of GPUs"
        return ""

    def _new_index(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        node = self.count
        if node == self.table.shape[1]:
            self.table = np.concatenate([self.table, np.zeros_like(self.table)], axis=1)
            self._cells = self.table.data
            self.eligible = np.concatenate([self.eligible, np.zeros_like(self.eligible)], axis=1)
        self.count += 1
        self._names.append("")
        self._models.append("")
        self._labels.append(())
        self._schedulable.append(False)
        return node

    def _set_totals(self, node: int, cpus_milli: int, memory_mib: int, gpus: int) -> None:
        self._total = None
        column = self.table[:, node]
        column[CPU] += cpus_milli - column[CPU_TOTAL]
        column[MEMORY] += memory_mib - column[MEMORY_TOTAL]
        before = int(column[GPUS])
        column[SLOT + before : SLOT + max(before, gpus)] += GPU_MILLI
        column[SLOT + gpus : SLOT + max(before, gpus)] -= GPU_MILLI
        column[CPU_TOTAL], column[MEMORY_TOTAL], column[GPUS] = cpus_milli, memory_mib, gpus
        column[CPU_INVERSE] = ONE // cpus_milli if cpus_milli else 0
        column[MEMORY_INVERSE] = ONE // memory_mib if memory_mib else 0
        derive(self.table, node)

    def _set_traits(self, node: int, gpu_model: str, labels: Iterable[str]) -> None:
        self._models[node] = gpu_model
        self._labels[node] = tuple(sorted(set(labels)))
        self.verdicts.clear()
        kind = self._kind(node)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self._by_model.setdefault(gpu_model, set()).add(node)
        for label in self._labels[node]:
            self._by_label.setdefault(label, set()).add(node)
        self._set_eligible(node)

    def _drop_traits(self, node: int) -> None:
        self.verdicts.clear()
        kind = self._kind(node)
        self.kinds[kind] -= 1
        if not self.kinds[kind]:
            del self.kinds[kind]
        _discard(self._by_model, self._models[node], node)
        for label in self._labels[node]:
            _discard(self._by_label, label, node)

    def _kind(self, node: int) -> NodeKind:
        cpus, memory, gpus = self.table[[CPU_TOTAL, MEMORY_TOTAL, GPUS], node].tolist()
        return NodeKind(cpus, memory, gpus, self._models[node], self._labels[node])

    def _set_eligible(self, node: int) -> None:
        for constraint, row in self._constraints.items():
            self.eligible[row, node] = self.is_eligible(node, constraint)

    def _eligible_row(self, constraint: Constraint) -> int:
        row = self._constraints.get(constraint)
        if row is not None:
            return row
        row = len(self._constraints)
        if row >= len(self.eligible):
            self.eligible = np.concatenate([self.eligible, np.zeros_like(self.eligible)])
        models, labels = constraint
        sets: list[set[int]] = (
            [set[int]().union(*(self.nodes_with_model(model) for model in models))] if models else []
        )
        sets += [self.nodes_with_label(label) for label in labels]
        nodes = sets[0].intersection(*sets[1:])
        mask = self.eligible[row]
        mask[:] = 0
        mask[np.fromiter(nodes, np.int64, len(nodes))] = 1
        mask &= self.eligible[0]
        self._constraints[constraint] = row
        return row


def _untake(table: NDArray[np.int32], node: int, mask: int, cpus: int, memory: int, milli: int) -> None:
    """Undo `give_member`; unlike `take_member` it works below zero, where an update may have left the node."""
    column = table[:, node]
    column[CPU] -= cpus
    column[MEMORY] -= memory
    for slot in range(MAX_GPUS_PER_MEMBER):
        if mask >> slot & 1:
            column[SLOT + slot] -= milli
    derive(table, node)


def _discard(groups: dict[str, set[int]], key: str, node: int) -> None:
    members = groups[key]
    members.discard(node)
    if not members:
        del groups[key]


def _check_totals(cpus_milli: int, memory_mib: int, gpus: int) -> None:
    for field, value, most in (
        ("cpus_milli", cpus_milli, MAX_CPUS_MILLI),
        ("memory_mib", memory_mib, MAX_MEMORY_MIB),
        ("gpus", gpus, MAX_GPUS_PER_MEMBER),
    ):
        if type(value) is not int or not 0 <= value <= most:
            raise InvalidSpec(field=field, why=f"{value!r} is not a whole number from 0 to {most}")
