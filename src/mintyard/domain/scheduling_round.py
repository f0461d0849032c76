"""The round within a tick: what the planner needs from the state, and its plan as events."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mintyard.domain.events import AnyEvent, JobPlaced
from mintyard.domain.scheduling.backfill import Times
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.quota_tables import Tables
from mintyard.domain.scheduling.round import Rules, plan_round
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.state import State


def tenant_usage(state: State) -> NDArray[np.int64]:
    """Each tenant's dominant share of what the nodes have, in 1/1,000, by tenant index (S3). Kept by the state until the next
    call: read it only. Only tenants whose attempts changed since the last call are worked out again."""
    total = state.cluster.total()
    kept = state.shares
    if kept.total != total or len(kept.milli) != len(state.tenants):
        kept.total = total
        kept.milli = np.zeros(len(state.tenants), np.int64)
        kept.stale = set(range(len(state.tenants)))
    for index in kept.stale:
        gpus, cpus, memory = state.tenants[index].in_use
        kept.milli[index] = max(
            gpus * 1_000 // total.gpus_milli if total.gpus_milli else 0,
            cpus * 1_000 // total.cpus_milli if total.cpus_milli else 0,
            memory * 1_000 // total.memory_mib if total.memory_mib else 0,
        )
    kept.stale.clear()
    return kept.milli


def remaining_starts(state: State) -> list[int]:
    """How many more tasks of each throttled array may start, by group index."""
    return [
        max(array.throttle - array.active, 0) if (array := state.arrays.get(number)) else 0
        for number in state.groups
    ]


def times(state: State) -> Times:
    """What the round may know of time; kinds of jobs that nobody waits with are forgotten."""
    if len(state.kinds) > state.kinds.sweep_from:
        renumbered = state.kinds.sweep(state.queue.kinds())
        if renumbered is not None:
            state.queue.renumber(renumbered)
    return Times(state.running.rows, state.kinds, state.history)


def quota_tables(state: State) -> Tables | None:
    """What each lane may start now; None while nothing is limited."""
    return state.quotas.tables() if state.quotas else None


def rules_of(limit: int, policy: Policy, backfill: Backfill, order: Order) -> Rules:
    """The rules of a tick: whoever orders by predicted run times also fills gaps with the shortest first."""
    by_ratio = order is Order.RESPONSE_RATIO
    return Rules(policy, limit, backfill=backfill, order=order, shortest_first=by_ratio)


def place_pending(
    state: State,
    now: int,
    limit: int,
    policy: Policy,
    out: list[AnyEvent],
    backfill: Backfill,
    order: Order,
) -> int:
    """One round of at most `limit` starts, nodes chosen by `policy`; how many jobs were placed."""
    if not len(state.queue) or not len(state.cluster):
        return 0
    rules = rules_of(limit, policy, backfill, order)
    plan = plan_round(
        state.cluster,
        state.queue,
        state.shapes,
        tenant_usage(state),
        now,
        rules,
        remaining_starts(state),
        times(state),
        quota_tables(state),
    )
    for number, placement in plan.placements:
        out.append(JobPlaced(number, state.jobs[number].attempt + 1, placement))
    return len(plan.placements)
