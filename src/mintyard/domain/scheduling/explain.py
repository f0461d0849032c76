"""Why a request does not run, what would change it, whether it could ever run, and when it may (feature S15).

Pure reading: nothing here changes cluster or queue. The answers come from the same feasibility as the kernels', so that
an explanation can't disagree with a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.errors import Infeasible
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.cluster import Cluster, Placement
from mintyard.domain.scheduling.feasibility import rooms, rooms_when_empty
from mintyard.domain.scheduling.layout import (
    CPU,
    CPU_TOTAL,
    GPUS,
    IDLE,
    MEMORY,
    MEMORY_TOTAL,
    NEED_CPU,
    NEED_GPUS,
    NEED_MEMORY,
    NEED_MILLI,
    NEED_WHOLE,
    ROWS,
    WHOLE,
    WIDEST,
)
from mintyard.domain.scheduling.queue import PendingQueue, Scales
from mintyard.domain.scheduling.reasons import Reason
from mintyard.domain.scheduling.round import Plan
from mintyard.domain.scheduling.shapes import ShapeTable, canonical, request_row

_DIMENSIONS: Final = ("cpus_milli", "memory_mib", "gpus", "gpu_milli", "members")


class NodeFailures(msgspec.Struct, frozen=True):
    """How many nodes can't run one member now, by what; a node may count in several.

    `gpu_count` nodes have fewer GPUs than wanted, `gpu_busy` have them but not free. `cordoned` nodes take no new work.
    """

    cordoned: int = 0
    gpu_model: int = 0
    label: int = 0
    cpu: int = 0
    memory: int = 0
    gpu_count: int = 0
    gpu_busy: int = 0


class Change(msgspec.Struct, frozen=True):
    """A single change of the request with which it would fit: `dimension` (a field of `Shape`) from `asked` to `fits`."""

    dimension: str
    asked: int
    fits: int


class Feasibility(msgspec.Struct, frozen=True):
    """Whether a request could run on the cluster when nothing else runs; if not, why, and the changes that would do."""

    feasible: bool
    reason: Reason | None = None
    why: str = ""
    fix: str = ""
    changes: tuple[Change, ...] = ()


class Explanation(msgspec.Struct, frozen=True):
    """A request against the cluster now. `members_fit` of `members` fit; `reason` is None when all do.

    `nodes` exist, `eligible` of them take work and have model and labels. `changes` are alternatives: each alone
    would make it fit now.
    """

    reason: Reason | None
    nodes: int
    eligible: int
    members: int
    members_fit: int
    failures: NodeFailures
    changes: tuple[Change, ...]
    ever: Feasibility


class JobExplanation(msgspec.Struct, frozen=True):
    """A waiting job: its reason, how many ready jobs are `ahead`, its request, and roughly the earliest start (ns)."""

    reason: Reason
    ahead: int
    request: Explanation
    earliest: int | None


class Release(msgspec.Struct, frozen=True):
    """What a running job gives back at the latest at `at` (ns)."""

    at: int
    placement: Placement
    shape: Shape


def explain(cluster: Cluster, shape: Shape) -> Explanation:
    """How `shape` stands against the cluster now."""
    shape = canonical(shape)
    need = request_row(shape)
    table = cluster.table[:, : cluster.count]
    eligible = _eligible(cluster, shape)

    def room(trial: Shape) -> int:
        return int(np.where(eligible, rooms(table, request_row(trial)), 0).sum())

    fit = min(room(shape), shape.members)
    ever = feasible_ever(cluster, shape)
    if fit >= shape.members:
        reason = None
    elif not ever.feasible:
        reason = ever.reason
    elif not eligible.any():
        reason = Reason.NO_NODES
    else:
        reason = Reason.FRAGMENTED if _enough_in_all(table, eligible, shape) else Reason.WAITING_FOR_RESOURCES
    changes = () if reason is None else _changes(shape, room)
    return Explanation(
        reason,
        len(cluster),
        int(eligible.sum()),
        shape.members,
        fit,
        _failures(cluster, shape, need),
        changes,
        ever,
    )


def feasible_ever(cluster: Cluster, shape: Shape) -> Feasibility:
    """Whether `shape` could run on all nodes when empty, cordoned ones included; remembered until the nodes change."""
    known = cluster.verdicts.get(shape)
    if known is None:
        known = _feasible_ever(cluster, canonical(shape))
        cluster.remember(shape, known)
    return known


def check_feasible(cluster: Cluster, shape: Shape) -> None:
    """Errors: `Infeasible`, with why and the changes that would do. A cluster without nodes refuses nothing."""
    verdict = feasible_ever(cluster, shape)
    if not verdict.feasible and verdict.reason is not Reason.NO_NODES:
        raise Infeasible(why=verdict.why, fix=verdict.fix)


def earliest_fit(cluster: Cluster, shape: Shape, releases: Iterable[Release], now: int) -> int | None:
    """The earliest instant (ns) at which `shape` fits if nothing else starts: `now`, the end of some release, or None.

    Releases are taken in order of time; on those before `now` (overdue) it fits at `now`.
    """
    scratch = cluster.clone()
    shape = canonical(shape)
    need = request_row(shape)
    eligible = _eligible(scratch, shape)
    room = np.where(eligible, rooms(scratch.table[:, : scratch.count], need), 0)
    free = int(room.sum())
    if free >= shape.members:
        return now
    ordered = sorted(enumerate(releases), key=lambda item: (item[1].at, item[0]))
    for _, release in ordered:
        scratch.give_back(release.placement, release.shape)
        for node in {node for node, _ in release.placement}:
            if eligible[node]:
                after = int(rooms(scratch.table[:, node : node + 1], need)[0])
                free += after - int(room[node])
                room[node] = after
        if free >= shape.members:
            return max(now, release.at)
    return None


def explain_job(
    cluster: Cluster,
    queue: PendingQueue,
    shapes: ShapeTable,
    job: int,
    now: int,
    tenant_usage: Sequence[int] | NDArray[np.integer[Any]],
    *,
    blocked: Reason | None = None,
    remaining_starts: int | None = None,
    releases: Iterable[Release] = (),
    plan: Plan | None = None,
    scales: Scales | None = None,
) -> JobExplanation:
    """Why a waiting job waits. `blocked` is what the core knows (`HELD`, `DEPENDENCY`), `remaining_starts` how many more
    of its array may start, `plan` a round planned at `now`: its reason for the job is the answer when it fits, and a start that
    it reserves is the earliest. `scales` as in `PendingQueue.evaluate`."""
    pending = queue.get(job)
    request = explain(cluster, shapes.shape(pending.class_id))
    ahead = queue.position(job, now, tenant_usage, scales)
    planned = dict(plan.reasons).get(job) if plan is not None else None
    if blocked is not None:
        reason = blocked
    elif not pending.ready:
        reason = Reason.HELD
    elif pending.begin_at > now:
        reason = Reason.BEGIN_TIME
    elif request.reason is Reason.NO_NODES or request.reason is Reason.INFEASIBLE:
        reason = request.reason
    elif remaining_starts is not None and remaining_starts <= 0:
        reason = Reason.ARRAY_THROTTLE
    elif request.reason is not None:
        reason = request.reason
    else:
        reason = planned or Reason.BEHIND_IN_QUEUE
    earliest = None
    reserved = (
        next((start.at for start in plan.starts if start.job == job), None) if plan is not None else None
    )
    if reserved is not None:
        earliest = reserved
    elif request.ever.feasible and reason not in (Reason.HELD, Reason.DEPENDENCY, Reason.NO_NODES):
        earliest = earliest_fit(cluster, shapes.shape(pending.class_id), releases, max(now, pending.begin_at))
    return JobExplanation(reason, ahead, request, earliest)


# --- inside -----------------------------------------------------------------------------------------------------------


def _eligible(cluster: Cluster, shape: Shape) -> NDArray[np.bool_]:
    row = cluster.eligible_rows([(shape.gpu_models, shape.labels)])[0]
    return cluster.eligible[row, : cluster.count] == 1


def _has_model(cluster: Cluster, node: int, shape: Shape) -> bool:
    return not shape.gpu_models or cluster.model_of(node) in shape.gpu_models


def _has_labels(cluster: Cluster, node: int, shape: Shape) -> bool:
    return set(shape.labels).issubset(cluster.labels_of(node))


def _feasible_ever(cluster: Cluster, shape: Shape) -> Feasibility:
    if not len(cluster):
        return Feasibility(False, Reason.NO_NODES, "the cluster has no nodes", "Add a node.")
    kinds = [
        (kind, nodes)
        for kind, nodes in cluster.kinds.items()
        if (not shape.gpu_models or kind.gpu_model in shape.gpu_models)
        and set(shape.labels).issubset(kind.labels)
    ]
    if not kinds:
        asked = ", ".join((*shape.gpu_models, *shape.labels))
        return Feasibility(
            False,
            Reason.INFEASIBLE,
            f"no node has the GPU model and labels asked for ({asked})",
            "Ask for another GPU model or fewer labels.",
        )
    table = np.zeros((ROWS, len(kinds)), np.int64)
    table[[CPU_TOTAL, MEMORY_TOTAL, GPUS]] = np.array(
        [(kind.cpus_milli, kind.memory_mib, kind.gpus) for kind, _ in kinds], np.int64
    ).T
    counts = np.array([nodes for _, nodes in kinds], np.int64)

    def room(trial: Shape) -> int:
        return int((rooms_when_empty(table, request_row(trial)) * counts).sum())

    if room(shape) >= shape.members:
        return Feasibility(True)
    changes = _changes(shape, room)
    why = _why_never(table, shape, room(shape))
    options = [f"{change.dimension} to {change.fits}" for change in changes]
    fix = f"Lower {' or '.join(options)}." if options else "Ask for less in more than one dimension."
    return Feasibility(False, Reason.INFEASIBLE, why, fix, changes)


def _why_never(table: NDArray[np.int64], shape: Shape, room: int) -> str:
    if room:
        return f"it has {shape.members} members, and all suitable nodes together have room for {room}"
    for row, asked, unit in (
        (CPU_TOTAL, shape.cpus_milli, "milli-cores"),
        (MEMORY_TOTAL, shape.memory_mib, "MiB of memory"),
        (GPUS, shape.gpus, "GPUs"),
    ):
        most = int(table[row].max())
        if asked > most:
            return f"a member asks for {asked} {unit}, the largest suitable node has {most}"
    return "no single suitable node has all that a member asks for"


def _changes(shape: Shape, room: Callable[[Shape], int]) -> tuple[Change, ...]:
    """For each dimension the most that fits with the others as asked, where any does; `room` counts members."""
    found: list[Change] = []
    for dimension in _DIMENSIONS:
        asked: int = getattr(shape, dimension)
        if dimension == "gpu_milli" and shape.gpus != 1:
            continue
        low = 1 if dimension in ("members", "gpu_milli") else 0
        if asked <= low:
            continue

        def fit(value: int, dimension: str = dimension) -> bool:
            trial = canonical(msgspec.structs.replace(shape, **{dimension: value}))
            return room(trial) >= trial.members

        most = _most_fitting(fit, low, asked)
        if most is not None:
            found.append(Change(dimension, asked, most))
    return tuple(found)


def _most_fitting(fit: Callable[[int], bool], low: int, asked: int) -> int | None:
    """The largest value from `low` below `asked` for which `fit` holds (it is monotone), or None."""
    if not fit(low):
        return None
    high = asked
    while high - low > 1:
        middle = (low + high) // 2
        if fit(middle):
            low = middle
        else:
            high = middle
    return low


def _enough_in_all(table: NDArray[np.int32], eligible: NDArray[np.bool_], shape: Shape) -> bool:
    """Whether the sums of what is free would do, were it not spread over nodes."""
    free = np.maximum(0, table[:, eligible].astype(np.int64))
    return (
        int(free[CPU].sum()) >= shape.cpus_milli * shape.members
        and int(free[MEMORY].sum()) >= shape.memory_mib * shape.members
        and int(free[IDLE].sum()) >= shape.gpus_milli * shape.members
    )


def _failures(cluster: Cluster, shape: Shape, need: NDArray[np.int64]) -> NodeFailures:
    nodes = np.array(cluster.indices(), np.int64)
    table = cluster.table[:, nodes]
    has_gpus = table[GPUS] >= need[NEED_GPUS]
    row, wanted = (WHOLE, NEED_WHOLE) if need[NEED_WHOLE] else (WIDEST, NEED_MILLI)
    free = table[row] >= need[wanted]
    listed: list[int] = nodes.tolist()
    return NodeFailures(
        cordoned=sum(not cluster.is_schedulable(node) for node in listed),
        gpu_model=sum(not _has_model(cluster, node, shape) for node in listed),
        label=sum(not _has_labels(cluster, node, shape) for node in listed),
        cpu=int((table[CPU] < need[NEED_CPU]).sum()),
        memory=int((table[MEMORY] < need[NEED_MEMORY]).sum()),
        gpu_count=int((~has_gpus).sum()),
        gpu_busy=int((has_gpus & ~free).sum()) if need[NEED_GPUS] else 0,
    )
