"""Quota within one round: what each lane may still start, and who has waited long enough for quota to be served next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mintyard.domain.scheduling import queue_kernel, quota_kernel
from mintyard.domain.scheduling.layout import MEMBERS, NEED_CPU, NEED_GPUS, NEED_MEMORY, NEED_MILLI
from mintyard.domain.scheduling.queue import PendingQueue, Scales
from mintyard.domain.scheduling.quota_tables import NO_TABLES, Tables
from mintyard.domain.scheduling.shapes import ShapeTable
from mintyard.domain.units import NS_PER_MS

_NOBODY: Final = np.zeros(0, np.int64)


class RoundQuota:
    """The tables of a round, counted down as jobs start. Without tables nothing is limited."""

    def __init__(self, tables: Tables | None, shapes: ShapeTable) -> None:
        self.limited = tables is not None and len(tables.queue_of) > 0
        self.tables = tables if tables is not None and self.limited else NO_TABLES
        self.heads = _NOBODY
        """Slots of the queue."""
        numbers = shapes.numbers if self.limited else shapes.numbers[:0]
        members = numbers[:, MEMBERS]
        self._needs = np.stack(
            [
                numbers[:, NEED_GPUS] * numbers[:, NEED_MILLI] * members,
                numbers[:, NEED_CPU] * members,
                numbers[:, NEED_MEMORY] * members,
                np.ones_like(members),
            ],
            axis=1,
        )

    def filter(self) -> dict[str, NDArray[np.int64]]:
        """For `PendingQueue.evaluate`: who need not be looked at."""
        if not self.limited:
            return {}
        return {"needs": self._needs, "rooms": quota_kernel.rooms(self.tables)}

    def mark_heads(
        self,
        queue: PendingQueue,
        now: int,
        patience_ms: int,
        usage: Sequence[int] | NDArray[np.integer[Any]],
        scales: Scales | None,
        remaining: NDArray[np.int32],
        can_run: Callable[[int], bool],
    ) -> None:
        """Mark the first in order of those who have waited `patience_ms` for the same queue's or account's quota. Whoever could
        not start anyway, whatever ends, is none: more than there ever is, a throttled array, a class that no node can run."""
        if not self.limited:
            return
        free = quota_kernel.rooms(self.tables)
        keys = quota_kernel.blocked_by(
            self.tables,
            free,
            self._needs,
            queue.count,
            queue.column("flags"),
            queue_kernel.PRESENT | queue_kernel.READY,
            queue.column("lanes"),
            queue.column("classes"),
            queue.column("groups"),
            remaining,
            queue.column("since"),
            now - patience_ms * NS_PER_MS,
        )
        classes = queue.column("classes")[: queue.count]
        for class_id in np.unique(classes[keys >= 0]).tolist():
            if not can_run(class_id):
                keys[classes == class_id] = -1
        most = len(self.tables.cap_left) + len(self.tables.parent)
        first = queue.first_of(keys, most, now, usage, scales)
        self.heads = first[first >= 0]
        queue.column("flags")[self.heads] |= np.uint8(queue_kernel.HEAD)

    def keep(self, lane: int, class_id: int) -> None:
        """Count a job as started that has nodes reserved: quota and nodes must come together, or it never gets both."""
        if self.limited:
            quota_kernel.take(self.tables, lane, self._needs[class_id])

    def unmark(self, queue: PendingQueue) -> None:
        queue.column("flags")[self.heads] &= ~np.uint8(queue_kernel.HEAD)
