"""Explanations of one job: why it waits, what would let it start, when that may be (S15). Reads a state only.

The reasons come from the production round planned on that state; here they become sentences with numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mintyard.app.questions import Explanation
from mintyard.app.quoting import releases
from mintyard.domain.commands import Tick
from mintyard.domain.errors import NotFound
from mintyard.domain.ids import is_within
from mintyard.domain.ledger.charging import iso_time
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.scheduling import explain as scheduling
from mintyard.domain.scheduling.backfill import PlannedStart
from mintyard.domain.scheduling.choices import Order
from mintyard.domain.scheduling.quota_report import Shortage, is_stopped, shortages, shown_amount
from mintyard.domain.scheduling.reasons import Reason
from mintyard.domain.scheduling.round import plan_round
from mintyard.domain.scheduling_round import quota_tables, remaining_starts, rules_of, tenant_usage, times
from mintyard.domain.state import ArrayJob, Job, State

DEFAULT_ROUND: Final = Tick()
_LISTED: Final = 10
"""Of a long list, such as the jobs that one waits for, so many are named."""
_UNITS: Final = {
    "cpus_milli": "milli-cores a member",
    "memory_mib": "MiB of memory a member",
    "gpus": "GPUs a member",
    "gpu_milli": "milli-GPU",
    "members": "members",
}


def explain_number(
    state: State, number: int, within: str, now: int, round_: Tick = DEFAULT_ROUND
) -> Explanation:
    """A live job, an array (by the first of its tasks that waits), or one that ended lately. `NotFound` for any other, and
    for every job outside the subtree of `within`. `round_` is how the writer plans."""
    job = state.jobs.get(number)
    if job is not None and is_within(job.mandate.account.id, within):
        return _explain(state, job, now, round_)
    array = state.arrays.get(number)
    if array is not None and is_within(array.account, within):
        return _explain_array(state, array, now, round_)
    ended = state.ended.get(number)
    if job is None and array is None and ended is not None and is_within(ended[1], within):
        return Explanation(number, ended[0], ended[0], (f"The job is over: {ended[0]}.",), seq=state.seq)
    raise NotFound(what="live job", name=str(number))


def _explain_array(state: State, array: ArrayJob, now: int, round_: Tick) -> Explanation:
    tasks = [
        state.jobs[task] for task in range(array.id + 1, array.id + 1 + array.size) if task in state.jobs
    ]
    waiting = [job for job in tasks if job.state not in LIVE_JOB_STATES]
    shown = _explain(state, (waiting or tasks)[0], now, round_)
    first = f"{len(tasks)} of {array.size} tasks are live, {len(tasks) - len(waiting)} of them have started."
    about = f"The following is about task {shown.job}."
    return Explanation(
        array.id,
        shown.state,
        shown.reason,
        (first, about, *shown.details),
        shown.changes,
        shown.ahead,
        shown.starts_at,
        state.seq,
    )


def _explain(state: State, job: Job, now: int, round_: Tick) -> Explanation:
    if job.state in LIVE_JOB_STATES:
        return _explain_live(state, job)
    if job.state == "held":
        details = (f"It is held: {job.reason}." if job.reason else "It is held.",)
        parked = job.hold not in state.ledger.holds
        changes = ["Release it" + (" once its account can pay for another attempt." if parked else ".")]
        return Explanation(job.id, job.state, Reason.HELD.value, details, tuple(changes), seq=state.seq)
    if job.state == "blocked":
        details = (f"It waits for {job.waiting} of its dependencies.", *_sources(state, job))
        return Explanation(job.id, job.state, Reason.DEPENDENCY.value, details, seq=state.seq)
    return _explain_pending(state, job, now, round_)


def _explain_live(state: State, job: Job) -> Explanation:
    nodes = ", ".join(node.name for node in state.running_on(job.placement)[:_LISTED])
    details = [f"Attempt {job.attempt} was placed at {iso_time(job.placed_at)} on {nodes}."]
    if job.state == "stopping" and job.reason:
        details.append(f"It is being stopped: {job.reason}.")
    return Explanation(
        job.id, job.state, job.state, tuple(details), starts_at=job.began_at or job.placed_at, seq=state.seq
    )


def _sources(state: State, job: Job) -> Iterator[str]:
    """The jobs that it waits for. Those of other tenants can't be among them."""
    found = 0
    for source, waiting in state.dependents.items():
        for number, when in waiting:
            if number == job.id:
                found += 1
                if found > _LISTED:
                    yield "There are more."
                    return
                live = state.jobs.get(source)
                yield f"Job {source} ({live.state if live else 'array'}): {when}."


def _explain_pending(state: State, job: Job, now: int, round_: Tick) -> Explanation:
    """By the production round, planned on the state as it is."""
    usage, remaining = tenant_usage(state), remaining_starts(state)
    known = times(state)
    rules = rules_of(round_.limit, round_.policy, round_.backfill, round_.order)
    plan = plan_round(
        state.cluster, state.queue, state.shapes, usage, now, rules, remaining, known, quota_tables(state)
    )
    group = state.group_of.get(job.array_job)
    found = scheduling.explain_job(
        state.cluster,
        state.queue,
        state.shapes,
        job.id,
        now,
        usage,
        remaining_starts=remaining[group] if group is not None else None,
        releases=releases(state),
        plan=plan,
        scales=known.kinds.scales(known.history) if rules.order is Order.RESPONSE_RATIO else None,
    )
    content = job.spec.content
    short = shortages(state.quotas, content.queue, job.mandate.account.id, content.shape)
    stopped = is_stopped(state.quotas, content.queue)
    promised = next((start for start in plan.starts if start.job == job.id), None)
    details = (*_of_quota(content.queue, short, stopped), *_details(state, job, found, now, promised))
    if any(number == job.id for number, _ in plan.placements):
        details = ("The next round starts it.", *details)
    changes = tuple(
        f"Ask for {change.fits} {_UNITS[change.dimension]} instead of {change.asked}."
        for change in found.request.changes
    )
    if found.reason is Reason.INFEASIBLE and found.request.ever.fix and not changes:
        changes = (found.request.ever.fix,)
    reason = found.reason
    if reason not in (Reason.BEGIN_TIME, Reason.ARRAY_THROTTLE, Reason.INFEASIBLE, Reason.NO_NODES):
        if stopped:
            reason = Reason.QUEUE_STOPPED
        elif short:
            reason = Reason.QUEUE_QUOTA
    if short or stopped:
        changes = (*_quota_changes(content.queue, short, stopped), *changes)
    earliest = None if short or stopped else found.earliest
    return Explanation(job.id, job.state, reason.value, details, changes, found.ahead, earliest, state.seq)


def _of_quota(queue: str, short: Sequence[Shortage], stopped: bool) -> Iterator[str]:
    if stopped:
        yield f"Queue {queue} starts nothing now."
        return
    for one in short:
        whose = f"Queue {one.queue}" if one.queue else f"The limit of account {one.account}"
        asked, left = (shown_amount(one.resource, amount) for amount in (one.asked, one.left))
        yield f"{whose} has {left} left; the job asks for {asked}."


def _quota_changes(queue: str, short: Sequence[Shortage], stopped: bool) -> Iterator[str]:
    if stopped:
        yield f"Have queue {queue} start jobs again."
        return
    for one in short:
        whose = f"queue {one.queue}" if one.queue else f"account {one.account}"
        more = shown_amount(one.resource, one.asked - one.left)
        yield f"Wait until jobs of {whose} end, or have its limit raised by {more}."


def _details(
    state: State, job: Job, found: scheduling.JobExplanation, now: int, promised: PlannedStart | None
) -> Iterator[str]:
    request, failures = found.request, found.request.failures
    yield f"{found.ahead} ready jobs come before it."
    if found.reason is Reason.BEGIN_TIME:
        yield f"Its begin time is {iso_time(job.spec.content.begin_at)}."
    if found.reason is Reason.ARRAY_THROTTLE:
        array = state.arrays[job.array_job]
        yield f"{array.active} tasks of its array run, the array allows {array.throttle}."
    if found.reason is Reason.INFEASIBLE:
        yield f"It could never run here: {request.ever.why}."
    yield (
        f"{request.members_fit} of {request.members} members fit now; "
        f"{request.eligible} of {request.nodes} nodes are open to it."
    )
    for count, what in (
        (failures.cordoned, "take no new work"),
        (failures.gpu_model, "have another GPU model"),
        (failures.label, "lack a label that it asks for"),
        (failures.cpu, "have too few cores free"),
        (failures.memory, "have too little memory free"),
        (failures.gpu_count, "have too few GPUs"),
        (failures.gpu_busy, "have the GPUs, but not free"),
    ):
        if count:
            yield f"{count} of {request.nodes} nodes {what}."
    if promised is not None:
        nodes = ", ".join(
            dict.fromkeys(state.cluster.name_of(node) for node, _ in promised.placement[:_LISTED])
        )
        yield f"It has a start reserved at {iso_time(promised.at)} at the latest, on {nodes}; nothing behind it delays that."
    elif found.earliest is not None and found.earliest > now:
        yield f"By the time limits of what runs it fits at {iso_time(found.earliest)} at the latest."
