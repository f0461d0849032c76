"""Control: what tenants and operators do to jobs that were admitted: cancel, hold, release, requeue, update."""

from __future__ import annotations

from mintyard.domain.commands import ControlJobs, UpdateJob
from mintyard.domain.errors import (
    BudgetTooSmall,
    ChargesChanged,
    Forbidden,
    InvalidRequest,
    NotFound,
    WrongState,
)
from mintyard.domain.events import AnyEvent, HoldExtended, JobEnded, JobMoved, JobUpdated, Line, SpecInterned
from mintyard.domain.ids import is_within
from mintyard.domain.jobs import spec as jobs_spec
from mintyard.domain.jobs.admission import Rehold, ceiling_blocks, check_spec, job_hold
from mintyard.domain.jobs.attempts import end_dependents, void_hold
from mintyard.domain.ledger.charging import Draft, check_covered, take_ceilings, take_line
from mintyard.domain.lifecycle import JOB, LIVE_JOB_STATES
from mintyard.domain.replies import Done
from mintyard.domain.state import Job, SpecEntry, State
from mintyard.domain.tokens.authority import Authority, Scope
from mintyard.domain.tokens.registry import require
from mintyard.domain.units import Unit, format_amount

VERBS = ("cancel", "hold", "release", "requeue")
_OPERATOR_HOLD = "held by an operator"


def find_job(state: State, authority: Authority | None, within: str, number: int) -> Job:
    """The live job, when it belongs to the caller's subtree and the token is not limited to other jobs."""
    job = state.jobs.get(number)
    if job is None or not is_within(job.mandate.account.id, within):
        raise NotFound(what="live job", name=str(number))
    if authority is not None and authority.jobs is not None and number not in authority.jobs:
        raise NotFound(what="live job", name=str(number))
    return job


def tasks_of(state: State, number: int) -> list[int]:
    """The live tasks of an array, or the number itself."""
    array = state.arrays.get(number)
    if array is None:
        return [number]
    return [task for task in range(number + 1, number + 1 + array.size) if task in state.jobs]


def control_job(state: State, command: ControlJobs, now: int, out: list[AnyEvent]) -> Done:
    """Apply the verb to one job (the hub takes the jobs of a command, and an array's tasks, one by one)."""
    within = require(state, command.authority, Scope.JOB_CONTROL, now)
    if command.verb not in VERBS:
        raise InvalidRequest(why=f"{command.verb!r} is none of {', '.join(VERBS)}")
    job = find_job(state, command.authority, within, command.jobs[0])
    operator = command.authority is None or Scope.JOB_OPERATE in command.authority.scopes
    if command.verb == "cancel":
        _cancel(state, job, now, out)
    elif command.verb == "hold":
        _need(job, "hold")
        out.append(
            JobMoved(job.id, "hold", _OPERATOR_HOLD if operator else command.reason or "held by its owner")
        )
    elif command.verb == "release":
        _release(state, job, operator, now, out)
    else:
        _requeue(job, operator, out)
    return Done(job.id, state_after(job, out))


def state_after(job: Job, out: list[AnyEvent]) -> str:
    """The job's state once `out` is applied."""
    state = job.state
    for event in out:
        if isinstance(event, (JobMoved, JobEnded)) and event.job == job.id:
            state = JOB.step(state, event.trigger)
    return state


def _need(job: Job, trigger: str) -> None:
    if not JOB.allows(job.state, trigger):
        raise WrongState(
            what="Job",
            name=str(job.id),
            state=job.state,
            action=trigger,
            allowed=", ".join(JOB.sources(trigger)),
        )


def _cancel(state: State, job: Job, now: int, out: list[AnyEvent]) -> None:
    if job.state == "stopping":
        if job.reason != "cancel":
            out.append(JobMoved(job.id, "stop", "cancel"))
        return
    if job.state in LIVE_JOB_STATES:
        out.append(JobMoved(job.id, "stop", "cancel"))
        return
    void_hold(state, job, out)
    out.append(JobEnded(job.id, "cancel", job.attempt, cost=job.spent, message="cancelled before it started"))
    end_dependents(state, job, "cancelled", now, out)


def _release(state: State, job: Job, operator: bool, now: int, out: list[AnyEvent]) -> None:
    _need(job, "release")
    if job.reason == _OPERATOR_HOLD and not operator:
        raise Forbidden(what=f"The operator's hold on job {job.id}")
    if job.hold not in state.ledger.holds:
        # It was parked because its next attempt could not be paid; now it must be.
        number, _ = state.price_book(now)
        making = Rehold(state, now, Draft(), state.ledger.next_hold, number)
        out.append(
            job_hold(
                state,
                job.mandate.account,
                ceiling_blocks(job.mandate),
                job.spec,
                making,
                job.id,
                job.attempt + 1,
            )
        )
    out.append(JobMoved(job.id, "block" if job.waiting else "release"))


def _requeue(job: Job, operator: bool, out: list[AnyEvent]) -> None:
    if job.state == "stopping" or job.state not in LIVE_JOB_STATES:
        raise WrongState(
            what="Job", name=str(job.id), state=job.state, action="requeue", allowed="starting, running"
        )
    out.append(JobMoved(job.id, "stop", "operator_requeue" if operator else "user_requeue"))


def update_job(state: State, command: UpdateJob, now: int, out: list[AnyEvent]) -> Done:
    """Change time limit, priority or begin time of a job that has not started. A longer limit extends the hold first; a
    shorter one keeps it, and the settlement releases the rest."""
    within = require(state, command.authority, Scope.JOB_CONTROL, now)
    job = find_job(state, command.authority, within, command.job)
    if job.state not in ("pending", "held", "blocked"):
        raise WrongState(
            what="Job", name=str(job.id), state=job.state, action="update", allowed="pending, held, blocked"
        )
    old = job.spec.content
    operator = command.authority is None or Scope.JOB_OPERATE in command.authority.scopes
    if command.priority is not None and command.priority > old.priority and not operator:
        raise Forbidden(what="A higher priority")
    content = jobs_spec.JobSpec(
        name=old.name,
        shape=old.shape,
        time_limit_ms=old.time_limit_ms if command.time_limit_ms is None else command.time_limit_ms,
        priority=old.priority if command.priority is None else command.priority,
        queue=old.queue,
        retries=old.retries,
        grace_ms=old.grace_ms,
        budget=old.budget,
        begin_at=old.begin_at if command.begin_at is None else command.begin_at,
        inputs=old.inputs,
        outputs=old.outputs,
        payload=old.payload,
    )
    check_spec(content)
    if content == old:
        return Done(job.id, job.state)
    known = state.spec_ids.get(content)
    entry = state.specs[known] if known is not None else SpecEntry(state.next_spec, content, -1)
    _extend(state, job, entry, now, out)
    if known is None:
        out.append(SpecInterned(entry.id, content))
    out.append(JobUpdated(job.id, entry.id))
    return Done(job.id, job.state)


def _extend(state: State, job: Job, entry: SpecEntry, now: int, out: list[AnyEvent]) -> None:
    """Add to the hold what the new ceiling needs more than the old one, at the pinned prices."""
    hold = state.ledger.holds.get(job.hold)
    if hold is None or entry.content.time_limit_ms <= job.spec.content.time_limit_ms:
        return
    book = state.prices[hold.book]
    ceiling = entry.ceiling(hold.book, book)
    cost = ceiling.amount(Unit.MONEY, 15)
    if entry.content.budget is not None and cost > entry.content.budget:
        raise BudgetTooSmall(
            cost=format_amount(cost, Unit.MONEY), budget=format_amount(entry.content.budget, Unit.MONEY)
        )
    plan = state.ledger.plan(job.mandate.account, entry.mask)
    check_covered(plan, entry.mask, job.mandate.account.id)
    at = {(item.account, item.unit, item.mask): item for item in plan}
    draft = Draft()
    added: list[Line] = []
    for line in hold.lines:
        more = ceiling.amount(line.unit, line.mask) - line.amount
        item = at.get((state.ledger.grants[line.legs[0]].account, line.unit, line.mask))
        if more > 0 and item is None:
            raise ChargesChanged(account=job.mandate.account.id)
        added.append(
            take_line(item, more, now, draft) if more > 0 and item else Line(line.unit, line.mask, 0, ())
        )
    old = job.spec.ceiling(hold.book, book)
    difference = {
        unit: max(ceiling.amount(unit, 15) - old.amount(unit, 15), 0)
        for block in job.mandate.blocks
        for unit in block.ceilings
    }
    ceilings, limits = take_ceilings(state.ledger, ceiling_blocks(job.mandate), difference, draft, now)
    out.append(HoldExtended(hold.id, tuple(added), ceilings, hold.expires_at, limits))
