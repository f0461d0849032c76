"""One scheduling round: from cluster, queue and an instant to a plan, worked out on a copy of the node table.

1. Each class with jobs that wait is tried once: a class that does not fit now costs one scan, however many jobs it has.
2. The queue is evaluated at `now`; the best of the classes that fit are placed in order in one kernel call. What does not
   fit is skipped and lower priorities may start (backfill).
3. So that backfill starves nobody, those who don't fit reserve, by one of two rules (`Backfill`). *Nodes*: a job that has waited
   `patience_ms` keeps nodes for itself, the ones that lack least of what it needs, and no job behind it in this round starts on
   those; as nodes that drain lack less and less, the choice settles. *EASY* and *conservative*: a job reserves the earliest
   instant at which it fits by the time limits of what runs, the first that does not fit at once, others after `patience_ms` (or
   at once); jobs behind start where they delay no reservation. At most `reservations` do so.
4. Jobs are taken in order of priority; with `Order.RESPONSE_RATIO` the priority of a job ages by its predicted run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.scheduling import kernels, profile_kernel, queue_kernel
from mintyard.domain.scheduling.backfill import (
    MAX_CONSERVATIVE,
    Behind,
    PlannedStart,
    Times,
    shortest_first,
)
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.cluster import Cluster, Placement
from mintyard.domain.scheduling.feasibility import lack_milli, rooms_when_empty
from mintyard.domain.scheduling.layout import (
    DEMAND,
    ELIGIBLE,
    FAILED,
    HEAD,
    JOB_CLASS,
    JOB_COLUMNS,
    JOB_GROUP,
    JOB_HEAD,
    JOB_LANE,
    JOB_OFFSET,
    JOB_RESERVES,
    JOB_STATUS,
    MEMBERS,
    OVER_QUOTA,
    PATIENT,
    PLACED,
    THROTTLED,
)
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.quota_round import RoundQuota
from mintyard.domain.scheduling.quota_tables import Tables
from mintyard.domain.scheduling.reasons import Reason
from mintyard.domain.scheduling.scoring import Policy, fragmentation_steps, parameters, set_weights
from mintyard.domain.scheduling.shapes import ShapeTable
from mintyard.domain.units import NS_PER_MS

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
    backfill: Backfill = Backfill.NODES
    order: Order = Order.AGEING
    shortest_first: bool = False
    """Behind a reservation in time, candidates are taken by predicted run time instead of priority (SJBF)."""

    @property
    def in_time(self) -> bool:
        """Whether reservations are instants, not nodes."""
        return self.backfill is not Backfill.NODES


class Plan(msgspec.Struct, frozen=True):
    """Jobs to start, in order, with their nodes; and why others that were looked at don't start now.

    `failing` are the classes that did not fit when the round began; `kept` the nodes kept for the jobs in `keepers`.
    """

    placements: list[tuple[int, Placement]]
    reasons: list[tuple[int, Reason]]
    failing: tuple[int, ...] = ()
    keepers: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    starts: tuple[PlannedStart, ...] = ()
    """Reservations in time, by begin: the latest starts of `keepers` by the time limits of what runs."""


DEFAULT_RULES: Final = Rules()


def plan_round(
    cluster: Cluster,
    queue: PendingQueue,
    shapes: ShapeTable,
    tenant_usage: Sequence[int] | NDArray[np.integer[Any]],
    now: int,
    rules: Rules = DEFAULT_RULES,
    remaining: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    times: Times | None = None,
    quota: Tables | None = None,
) -> Plan:
    """The jobs to start at `now` (ns) and where. Deterministic: equal arguments give an equal plan.

    `tenant_usage` is each tenant's dominant share in use in 1/1,000, by tenant index; `remaining` how many more tasks
    of each throttled array may start, by group index (a group beyond its end is not throttled). `times` is needed by rules that
    look at time: what is not known runs for ever. `quota` says what each lane of the queue may start and is counted down; None is
    no limit.
    """
    if not len(queue) or not len(cluster) or rules.limit <= 0:
        return Plan([], [])
    planner = _Round(cluster, queue, shapes, tenant_usage, now, rules, remaining, times or Times(), quota)
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
        times: Times,
        quota: Tables | None,
    ) -> None:
        self.cluster, self.queue, self.now, self.rules = cluster, queue, now, rules
        self.shapes, self.times = shapes, times
        self.quota = RoundQuota(quota, shapes)
        by_ratio = rules.order is Order.RESPONSE_RATIO
        self.scales = times.kinds.scales(times.history) if by_ratio else None
        self.behind: Behind | None = None
        """Once there is a reservation in time."""
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
        self.kind = KINDS[rules.policy]
        self.place = kernels.place_kernel(self.kind)
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
        self.quota.mark_heads(
            self.queue,
            self.now,
            self.rules.patience_ms,
            self.usage,
            self.scales,
            self.remaining,
            self._can_run,
        )
        window = _FIRST_WINDOW
        for _ in range(self.rules.passes):
            candidates = self._candidates(window)
            self._place(candidates)
            if len(candidates) < window or len(self.placements) >= self.rules.limit:
                return
            window = min(_LARGEST_WINDOW, 4 * window)
            self._mark_failing()

    def _can_run(self, class_id: int) -> bool:
        """Whether the nodes that take work could run a class if nothing else ran."""
        need, count = self.needs[self.local[class_id]], self.cluster.count
        usable = self.cluster.eligible[int(need[ELIGIBLE]), :count] == 1
        table = self.table[:, :count].astype(np.int64)
        return int(np.where(usable, rooms_when_empty(table, need), 0).sum()) >= int(need[MEMBERS])

    def _mark_failing(self) -> None:
        """Find the classes for which there is no room left, so that the next window holds none of them."""
        cluster, behind = self.cluster, self.behind
        levels, requests = (
            (self.table[None], self.needs[None]) if behind is None else (behind.levels, behind.requests)
        )
        profile_kernel.mark_levels(levels, cluster.count, cluster.eligible, self.is_open, requests)

    def unmark(self) -> None:
        """Forget which jobs were looked at."""
        flags = self.queue.column("flags")
        for slots in self.seen:
            flags[slots] &= ~np.uint8(queue_kernel.SEEN)
        self.quota.unmark(self.queue)

    def plan(self) -> Plan:
        kept = np.flatnonzero(self.is_open[: self.cluster.count] == 0).tolist()
        starts: tuple[PlannedStart, ...] = ()
        if self.behind is not None:
            made = self.behind.reservations
            starts = tuple(PlannedStart(one.job, one.at, one.placement) for one in made)
            kept = sorted({node for one in made for node, _ in one.placement})
        reasons = sorted(self.reasons.items())
        return Plan(self.placements, reasons, self.failing, tuple(self.keepers), tuple(kept), starts)

    @property
    def most(self) -> int:
        """Reservations allowed."""
        return MAX_CONSERVATIVE if self.rules.backfill is Backfill.CONSERVATIVE else self.rules.reservations

    @property
    def patience_ms(self) -> int:
        """How long a job must have waited to reserve."""
        at_once = self.rules.backfill is Backfill.CONSERVATIVE or (self.rules.in_time and not self.keepers)
        return 0 if at_once else self.rules.patience_ms

    def _candidates(self, window: int) -> NDArray[np.int64]:
        """The best `window` jobs not seen yet, and mark them seen."""
        kept = queue_kernel.WAITS if len(self.keepers) < self.most else queue_kernel.SKIP
        if self.behind is not None:
            wanted = self.behind.wanted(self.local, self.times.kinds.classes, kept)
        else:
            wanted = np.zeros(len(self.local), np.uint8)
            failed = self.needs[:, FAILED] == 1
            wanted[self.classes] = np.where(failed, kept, queue_kernel.WANTED)
        top = self.queue.evaluate(
            self.now,
            self.usage,
            window,
            wanted=wanted,
            remaining=self.remaining,
            patience_ms=self.patience_ms,
            scales=self.scales,
            wanted_by_kind=self.behind is not None,
            **self.quota.filter(),
        )
        slots = top[:, 3]
        self.queue.column("flags")[slots] |= np.uint8(queue_kernel.SEEN)
        self.seen.append(slots)
        return top

    def _place(self, top: NDArray[np.int64]) -> None:
        jobs = self._candidate_rows(top)
        ends = jobs[-1:, JOB_OFFSET] + self.needs[jobs[-1:, JOB_CLASS], MEMBERS]
        members = np.zeros((int(ends.sum()), 2), np.int64)
        self._reorder(top, jobs, 0)
        start = 0
        while start < len(jobs):
            self._allow(top, jobs, start)
            end = self._run(top, jobs, members, start)
            self._record(top, jobs, members, start, end)
            if end < len(jobs) and len(self.placements) >= self.rules.limit:
                for job in top[end:, 2].tolist():
                    self.reasons[job] = Reason.BEHIND_IN_QUEUE
                return
            last = end - 1
            if (
                end > start
                and jobs[last, JOB_RESERVES]
                and jobs[last, JOB_STATUS] not in (PLACED, THROTTLED, OVER_QUOTA)
            ):
                class_index = int(jobs[last, JOB_CLASS])
                if not self._keep(int(top[last, 2]), class_index):
                    self.cant_keep.add(class_index)
                else:
                    self.quota.keep(int(jobs[last, JOB_LANE]), int(self.classes[class_index]))
                    self._reorder(top, jobs, end)
            start = end

    def _candidate_rows(self, top: NDArray[np.int64]) -> NDArray[np.int64]:
        slots = top[:, 3]
        jobs = np.zeros((len(top), JOB_COLUMNS), np.int64)
        jobs[:, JOB_CLASS] = self.local[self.queue.column("classes")[slots]]
        jobs[:, JOB_GROUP] = self.queue.column("groups")[slots]
        jobs[:, JOB_LANE] = self.queue.column("lanes")[slots]
        is_head = self.queue.column("flags")[slots] & np.uint8(queue_kernel.HEAD) != 0
        waited = self.now - self.queue.column("since")[slots] >= self.rules.patience_ms * NS_PER_MS
        jobs[:, JOB_HEAD] = np.where(is_head, HEAD, np.where(waited, PATIENT, 0))
        sizes = self.needs[jobs[:, JOB_CLASS], MEMBERS]
        jobs[:, JOB_OFFSET] = np.cumsum(sizes) - sizes
        return jobs

    def _allow(self, top: NDArray[np.int64], jobs: NDArray[np.int64], start: int) -> None:
        """Who of the candidates from `start` on may reserve."""
        if len(self.keepers) >= self.most:
            jobs[start:, JOB_RESERVES] = 0
            return
        waited_ms = (self.now - self.queue.column("since")[top[start:, 3]]) // 1_000_000
        jobs[start:, JOB_RESERVES] = waited_ms >= self.patience_ms
        for class_index in self.cant_keep:
            jobs[start:, JOB_RESERVES] &= jobs[start:, JOB_CLASS] != class_index

    def _reorder(self, top: NDArray[np.int64], jobs: NDArray[np.int64], start: int) -> None:
        if self.behind is not None and self.rules.shortest_first:
            expected = self.times.kinds.predicted_ms(self.times.history)
            shortest_first(expected[self.queue.column("kinds")[top[:, 3]]], top, jobs, self.needs, start)

    def _run(
        self, top: NDArray[np.int64], jobs: NDArray[np.int64], members: NDArray[np.int64], start: int
    ) -> int:
        """Place candidates from `start` on; the index after the last one seen."""
        cluster, limit = self.cluster, self.rules.limit - len(self.placements)
        if self.behind is not None:
            return self.behind.place(
                self.kind,
                cluster.count,
                cluster.eligible,
                self.is_open,
                self.typical,
                self.steps,
                self.parameters,
                jobs,
                self.remaining,
                self.quota.tables,
                members,
                slots=top[:, 3],
                start=start,
                limit=limit,
            )
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
            self.quota.tables,
            members,
            start,
            limit,
        )
        return end

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
        for job, (class_index, _, offset, _, status, _, _), size in zip(numbers, rows, sizes, strict=True):
            if status == PLACED:
                self.placements.append((job, tuple(pairs[offset - first : offset - first + size])))
            elif status == THROTTLED:
                self.reasons[job] = Reason.ARRAY_THROTTLE
            elif status == OVER_QUOTA:
                self.reasons[job] = Reason.QUEUE_QUOTA
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

    def _keep(self, job: int, class_index: int) -> bool:
        """Let a job reserve, by the rule; whether it could."""
        need = self.needs[class_index]
        if not self.rules.in_time:
            return self._keep_nodes(job, need)
        behind = self.behind or Behind(
            self.cluster, self.queue, self.shapes, self.now, self.times, self.table, self.needs
        )
        if not behind.reserve(job, need, self.placements):
            return False
        self.behind, self.table, self.needs = behind, behind.levels[0], behind.requests[0]
        self.keepers.append(job)
        return True

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
