"""One scheduling round: from cluster, queue and an instant to a plan, worked out on a copy of the node table.

1. Each class with jobs that wait is tried once: a class that does not fit now costs one scan, however many jobs it has.
2. The queue is evaluated at `now`; the best of the classes that fit are placed in order in one kernel call. What does not
   fit is skipped and lower priorities may start (backfill).
3. So that backfill starves nobody: a job that has waited `patience_ms` and does not fit keeps nodes for itself, the ones
   that lack least of what it needs, and no job behind it in this round starts on those. At most `reservations` jobs do so;
   as nodes that drain lack less and less, the choice settles. (EASY by end times comes on top of this rule, not instead.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.scheduling import kernels, queue_kernel
from mintyard.domain.scheduling.cluster import Cluster, Placement
from mintyard.domain.scheduling.feasibility import lack_milli, rooms_when_empty
from mintyard.domain.scheduling.layout import (
    DEMAND,
    ELIGIBLE,
    FAILED,
    JOB_CLASS,
    JOB_COLUMNS,
    JOB_GROUP,
    JOB_OFFSET,
    JOB_RESERVES,
    JOB_STATUS,
    MEMBERS,
    PLACED,
    THROTTLED,
)
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.reasons import Reason
from mintyard.domain.scheduling.scoring import Policy, fragmentation_steps, parameters, set_weights
from mintyard.domain.scheduling.shapes import ShapeTable

KINDS: Final[dict[Policy, int]] = {
    Policy.STRANDED: kernels.STRANDED,
    Policy.BEST_FIT: kernels.LINEAR,
    Policy.DOT_PRODUCT: kernels.LINEAR,
    Policy.LEAST_LOADED: kernels.LOADED,
    Policy.LEAST_LOADED_NETWORK: kernels.LOADED,
    Policy.GPU_PACKING: kernels.PACKING,
    Policy.FGD: kernels.FRAGMENTATION,
}
_FIRST_WINDOW: Final = 256
_LARGEST_WINDOW: Final = 4_096


class Rules(msgspec.Struct, frozen=True):
    """What a round may do. `limit` starts at most, `passes` evaluations of the queue at most."""

    policy: Policy = Policy.STRANDED
    limit: int = 4_096
    passes: int = 8
    patience_ms: int = 60_000
    """After this wait a job that does not fit keeps nodes for itself."""
    reservations: int = 4


class Plan(msgspec.Struct, frozen=True):
    """Jobs to start, in order, with their nodes; and why others that were looked at don't start now.

    `failing` are the classes that did not fit when the round began; `kept` the nodes kept for the jobs in `keepers`.
    """

    placements: list[tuple[int, Placement]]
    reasons: list[tuple[int, Reason]]
    failing: tuple[int, ...] = ()
    keepers: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


DEFAULT_RULES: Final = Rules()


def plan_round(
    cluster: Cluster,
    queue: PendingQueue,
    shapes: ShapeTable,
    tenant_usage: Sequence[int] | NDArray[np.integer[Any]],
    now: int,
    rules: Rules = DEFAULT_RULES,
    remaining: Sequence[int] | NDArray[np.integer[Any]] | None = None,
) -> Plan:
    """The jobs to start at `now` (ns) and where. Deterministic: equal arguments give an equal plan.

    `tenant_usage` is each tenant's dominant share in use in 1/1,000, by tenant index; `remaining` how many more tasks
    of each throttled array may start, by group index (a group beyond its end is not throttled).
    """
    if not len(queue) or not len(cluster) or rules.limit <= 0:
        return Plan([], [])
    planner = _Round(cluster, queue, shapes, tenant_usage, now, rules, remaining)
    try:
        planner.run()
    finally:
        planner.unmark()
    return planner.plan()


class _Round:
    """The scratch state of one round."""

    def __init__(
        self,
        cluster: Cluster,
        queue: PendingQueue,
        shapes: ShapeTable,
        tenant_usage: Sequence[int] | NDArray[np.integer[Any]],
        now: int,
        rules: Rules,
        remaining: Sequence[int] | NDArray[np.integer[Any]] | None,
    ) -> None:
        self.cluster, self.queue, self.now, self.rules = cluster, queue, now, rules
        self.table = cluster.table.copy()
        self.usage = tenant_usage
        self.classes = np.array(sorted(queue.class_counts), np.int64)
        typical = shapes.typical() if rules.policy is Policy.FGD else np.zeros(0, np.int64)
        everyone = np.concatenate([self.classes, typical])
        needs = shapes.numbers[everyone]
        constraints = [(shape.gpu_models, shape.labels) for shape in map(shapes.shape, everyone.tolist())]
        needs[:, ELIGIBLE] = cluster.eligible_rows(constraints)
        self.needs = needs[: len(self.classes)]
        self.typical = _scaled(needs[len(self.classes) :])
        set_weights(rules.policy, self.needs, cluster.table[:, : cluster.count])
        self.local = np.zeros(int(self.classes[-1]) + 1, np.int64)
        self.local[self.classes] = np.arange(len(self.classes))
        self.parameters = parameters(rules.policy, shapes.cpu_per_gpu_milli)
        self.steps = np.array(fragmentation_steps(), np.int64)
        self.place = kernels.place_kernel(KINDS[rules.policy])
        self.is_open = np.ones(cluster.table.shape[1], np.uint8)
        groups = queue.column("groups")[: queue.count]
        self.remaining = np.full(max(0, int(groups.max(initial=-1)) + 1), 2**31 - 1, np.int32)
        if remaining is not None:
            given = np.asarray(remaining, np.int64)[: len(self.remaining)]
            self.remaining[: len(given)] = np.clip(given, 0, 2**31 - 1)
        self.seen: list[NDArray[np.int64]] = []
        self.placements: list[tuple[int, Placement]] = []
        self.reasons: dict[int, Reason] = {}
        self.keepers: list[int] = []
        self.cant_keep: set[int] = set()
        """Local class numbers that found too few open nodes to keep; nodes only close, so they stay so for the round."""
        kernels.mark_failing(self.table, cluster.count, cluster.eligible, self.is_open, self.needs)
        self.failing = tuple(self.classes[self.needs[:, FAILED] == 1].tolist())

    def run(self) -> None:
        window = _FIRST_WINDOW
        for _ in range(self.rules.passes):
            candidates = self._candidates(window)
            self._place(candidates)
            if len(candidates) < window or len(self.placements) >= self.rules.limit:
                return
            window = min(_LARGEST_WINDOW, 4 * window)

    def unmark(self) -> None:
        """Forget which jobs were looked at."""
        flags = self.queue.column("flags")
        for slots in self.seen:
            flags[slots] &= ~np.uint8(queue_kernel.SEEN)

    def plan(self) -> Plan:
        kept = np.flatnonzero(self.is_open[: self.cluster.count] == 0)
        reasons = sorted(self.reasons.items())
        return Plan(self.placements, reasons, self.failing, tuple(self.keepers), tuple(kept.tolist()))

    def _candidates(self, window: int) -> NDArray[np.int64]:
        """The best `window` jobs not seen yet, and mark them seen."""
        wanted = np.zeros(len(self.local), np.uint8)
        failed = self.needs[:, FAILED] == 1
        may_keep = len(self.keepers) < self.rules.reservations
        wanted[self.classes] = np.where(
            failed, queue_kernel.WAITS if may_keep else queue_kernel.SKIP, queue_kernel.WANTED
        )
        top = self.queue.evaluate(
            self.now,
            self.usage,
            window,
            wanted=wanted,
            remaining=self.remaining,
            patience_ms=self.rules.patience_ms,
        )
        slots = top[:, 3]
        self.queue.column("flags")[slots] |= np.uint8(queue_kernel.SEEN)
        self.seen.append(slots)
        return top

    def _place(self, top: NDArray[np.int64]) -> None:
        cluster, slots = self.cluster, top[:, 3]
        jobs = np.zeros((len(top), JOB_COLUMNS), np.int64)
        jobs[:, JOB_CLASS] = self.local[self.queue.column("classes")[slots]]
        jobs[:, JOB_GROUP] = self.queue.column("groups")[slots]
        sizes = self.needs[jobs[:, JOB_CLASS], MEMBERS]
        ends = np.cumsum(sizes)
        jobs[:, JOB_OFFSET] = ends - sizes
        waited_ms = (self.now - self.queue.column("since")[slots]) // 1_000_000
        jobs[:, JOB_RESERVES] = waited_ms >= self.rules.patience_ms
        for class_index in self.cant_keep:
            jobs[jobs[:, JOB_CLASS] == class_index, JOB_RESERVES] = 0
        members = np.zeros((int(ends[-1]) if len(ends) else 0, 2), np.int64)
        start = 0
        while start < len(jobs):
            if len(self.keepers) >= self.rules.reservations:
                jobs[start:, JOB_RESERVES] = 0
            limit = self.rules.limit - len(self.placements)
            end, _ = self.place(
                self.table,
                cluster.count,
                cluster.eligible,
                self.is_open,
                self.needs,
                self.typical,
                self.steps,
                self.parameters,
                jobs,
                self.remaining,
                members,
                start,
                limit,
            )
            self._record(top, jobs, members, start, end)
            if end < len(jobs) and len(self.placements) >= self.rules.limit:
                for job in top[end:, 2].tolist():
                    self.reasons[job] = Reason.BEHIND_IN_QUEUE
                return
            last = end - 1
            if end > start and jobs[last, JOB_RESERVES] and jobs[last, JOB_STATUS] not in (PLACED, THROTTLED):
                class_index = int(jobs[last, JOB_CLASS])
                if not self._keep_nodes(int(top[last, 2]), self.needs[class_index]):
                    self.cant_keep.add(class_index)
                    jobs[end:, JOB_RESERVES] &= jobs[end:, JOB_CLASS] != class_index
            start = end

    def _record(
        self,
        top: NDArray[np.int64],
        jobs: NDArray[np.int64],
        members: NDArray[np.int64],
        start: int,
        end: int,
    ) -> None:
        numbers: list[int] = top[start:end, 2].tolist()
        rows: list[list[int]] = jobs[start:end].tolist()
        sizes: list[int] = self.needs[jobs[start:end, JOB_CLASS], MEMBERS].tolist()
        # Only this stretch: every job that keeps nodes ends one, so reading on to the end would grow with the square.
        first = rows[0][JOB_OFFSET] if rows else 0
        last = rows[-1][JOB_OFFSET] + sizes[-1] if rows else 0
        pairs = [(node, mask) for node, mask in members[first:last].tolist()]
        why: dict[int, Reason] = {}
        for job, (class_index, _, offset, _, status), size in zip(numbers, rows, sizes, strict=True):
            if status == PLACED:
                self.placements.append((job, tuple(pairs[offset - first : offset - first + size])))
            elif status == THROTTLED:
                self.reasons[job] = Reason.ARRAY_THROTTLE
            else:
                if class_index not in why:
                    why[class_index] = self._why_no_fit(self.needs[class_index])
                self.reasons[job] = why[class_index]

    def _why_no_fit(self, need: NDArray[np.int64]) -> Reason:
        if self.keepers and kernels.fits(
            self.table,
            self.cluster.count,
            self.cluster.eligible[int(need[ELIGIBLE])],
            np.ones_like(self.is_open),
            need,
        ):
            return Reason.RESERVED_FOR_HIGHER_PRIORITY
        return Reason.WAITING_FOR_RESOURCES

    def _keep_nodes(self, job: int, need: NDArray[np.int64]) -> bool:
        """Close the nodes that lack least of what a member needs, enough of them for all members when empty; whether
        there were enough."""
        count = self.cluster.count
        table = self.table[:, :count].astype(np.int64)
        usable = (self.cluster.eligible[int(need[ELIGIBLE]), :count] & self.is_open[:count]) == 1
        room = np.where(usable, rooms_when_empty(table, need), 0)
        if int(room.sum()) < int(need[MEMBERS]):
            return False
        lack = lack_milli(table, need)
        order = np.argsort(np.where(room > 0, lack, 1 << 40), kind="stable")
        enough = int(np.searchsorted(np.cumsum(room[order]), int(need[MEMBERS]))) + 1
        self.is_open[order[:enough]] = 0
        self.keepers.append(job)
        return True


def _scaled(typical: NDArray[np.int64]) -> NDArray[np.int64]:
    """Typical classes with demand scaled to sum to about 2^20, so that no weighted sum overflows."""
    total = int(typical[:, DEMAND].sum())
    if total > 1 << 20:
        typical[:, DEMAND] = np.maximum(1, typical[:, DEMAND] // (total >> 20))
    return typical
