"""Request shapes interned as class ids: the unit of caching, of "does not fit now", and of demand statistics.

A class is what decides where a member may run: resources, GPU models, labels and the number of members. Priority,
time and storage are not part of it. Ids are dense, in order of first sight, never reused.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.errors import InvalidSpec, LimitReached
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.limits import (
    MAX_CPUS_MILLI,
    MAX_GANG_MEMBERS,
    MAX_GPUS_PER_MEMBER,
    MAX_MEMORY_MIB,
)
from mintyard.domain.scheduling.layout import (
    DEMAND,
    GPU_MILLI,
    MAX_CPU_PER_GPU,
    MEMBERS,
    NEED_CPU,
    NEED_GPUS,
    NEED_MEMORY,
    NEED_MILLI,
    NEED_WHOLE,
    NEED_WIDEST,
    REQUEST_COLUMNS,
)

MAX_CLASSES: Final = 1_000_000
MAX_DEMAND: Final = 2**40
"""Counters stop here, so that sums over all classes stay within 63 bits."""


def canonical(shape: Shape) -> Shape:
    """`shape` reduced to what placement looks at: names sorted and once each, no storage, no share without a GPU."""
    return Shape(
        cpus_milli=shape.cpus_milli,
        memory_mib=shape.memory_mib,
        gpus=shape.gpus,
        gpu_milli=shape.gpu_milli if shape.gpus else GPU_MILLI,
        gpu_models=tuple(sorted(set(shape.gpu_models))),
        labels=tuple(sorted(set(shape.labels))),
        members=shape.members,
    )


def check_shape(shape: Shape) -> None:
    """`InvalidSpec` unless every quantity is within its limit and a share of a GPU is asked of one GPU only."""
    _check("shape.cpus_milli", shape.cpus_milli, 0, MAX_CPUS_MILLI)
    _check("shape.memory_mib", shape.memory_mib, 0, MAX_MEMORY_MIB)
    _check("shape.gpus", shape.gpus, 0, MAX_GPUS_PER_MEMBER)
    _check("shape.members", shape.members, 1, MAX_GANG_MEMBERS)
    if shape.gpus:
        _check("shape.gpu_milli", shape.gpu_milli, 1, GPU_MILLI)
        if shape.gpus > 1 and shape.gpu_milli != GPU_MILLI:
            raise InvalidSpec(field="shape.gpu_milli", why="a share of a GPU is possible only with one GPU")
    if not (shape.cpus_milli or shape.memory_mib or shape.gpus):
        raise InvalidSpec(field="shape", why="it asks for nothing")


def _check(field: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise InvalidSpec(field=field, why=f"{value!r} is not a whole number from {low} to {high}")


class ShapeTable:
    """Class ids, their rows for the kernels (`numbers`, int64 `[classes, REQUEST_COLUMNS]`), and how often each was seen."""

    def __init__(self) -> None:
        self._ids: dict[Shape, int] = {}
        self._shapes: list[Shape] = []
        self._numbers = np.zeros((64, REQUEST_COLUMNS), np.int64)
        self._gpu_cpus = 0
        self._gpu_milli = 0

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def numbers(self) -> NDArray[np.int64]:
        return self._numbers[: len(self._shapes)]

    def shape(self, class_id: int) -> Shape:
        """The canonical shape of a class."""
        return self._shapes[class_id]

    def intern(self, shape: Shape) -> int:
        """The class id of `shape`, a new one when it was never seen. Errors: `InvalidSpec`, `LimitReached`."""
        known = self._ids.get(shape)
        if known is not None:
            return known
        check_shape(shape)
        reduced = canonical(shape)
        class_id = self._ids.get(reduced)
        if class_id is None:
            class_id = self._append(reduced)
        return class_id

    def note_demand(self, class_id: int, jobs: int = 1) -> None:
        """Count `jobs` more requests of a class: they shape what is stranded and what is typical."""
        cells = self._numbers.data
        before = cells[class_id, DEMAND]
        jobs = min(jobs, MAX_DEMAND - before)
        cells[class_id, DEMAND] = before + jobs
        gpus = cells[class_id, NEED_GPUS]
        if gpus:
            members = jobs * cells[class_id, MEMBERS]
            self._gpu_cpus += members * cells[class_id, NEED_CPU]
            self._gpu_milli += members * gpus * cells[class_id, NEED_MILLI]

    @property
    def cpu_per_gpu_milli(self) -> int:
        """milli-cores that GPU jobs seen so far ask for per whole GPU, at most `MAX_CPU_PER_GPU`; 0 before the first."""
        if not self._gpu_milli:
            return 0
        return min(MAX_CPU_PER_GPU, self._gpu_cpus * GPU_MILLI // self._gpu_milli)

    def typical(self, coverage_milli: int = 950, most: int = 256) -> NDArray[np.int64]:
        """Ids of the most wanted classes that make up `coverage_milli` of 1,000 requests (FGD), most first."""
        demand = self.numbers[:, DEMAND]
        order = np.argsort(-demand, kind="stable")[:most]
        order = order[demand[order] > 0]
        if not len(order):
            return order
        reached = np.cumsum(demand[order]) * 1_000 >= int(demand.sum()) * coverage_milli
        return order[: int(np.argmax(reached)) + 1] if reached.any() else order

    def encode(self) -> bytes:
        """Canonical bytes: the same table gives the same bytes on every machine."""
        demand = [int(count) for count in self.numbers[:, DEMAND]]
        return msgspec.msgpack.encode((self._shapes, demand))

    @classmethod
    def decode(cls, data: bytes) -> ShapeTable:
        shapes, demand = msgspec.msgpack.decode(data, type=tuple[list[Shape], list[int]])
        table = cls()
        for shape, count in zip(shapes, demand, strict=True):
            table.note_demand(table.intern(shape), count)
        return table

    def _append(self, shape: Shape) -> int:
        class_id = len(self._shapes)
        if class_id >= MAX_CLASSES:
            raise LimitReached(limit=MAX_CLASSES, what="kinds of request")
        if class_id == len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
        self._numbers[class_id] = request_row(shape)
        self._shapes.append(shape)
        self._ids[shape] = class_id
        return class_id


def request_row(shape: Shape) -> NDArray[np.int64]:
    """What one member of `shape` needs, in the columns of `layout`; the eligibility row is filled in by a round."""
    row = np.zeros(REQUEST_COLUMNS, np.int64)
    row[NEED_CPU] = shape.cpus_milli
    row[NEED_MEMORY] = shape.memory_mib
    row[NEED_GPUS] = shape.gpus
    row[NEED_MILLI] = shape.gpu_milli if shape.gpus else 0
    row[NEED_WHOLE] = shape.gpus if shape.gpus and shape.gpu_milli == GPU_MILLI else 0
    row[NEED_WIDEST] = shape.gpu_milli if shape.gpus else 0
    row[MEMBERS] = shape.members
    return row
