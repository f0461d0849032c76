"""Jobs over REST (S1, U1, U12): submit one or thousands, list, show, control and update."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mintyard.api.answers import Answer
from mintyard.api.call import Call
from mintyard.api.job_views import job_of, view_of
from mintyard.api.pages import paged
from mintyard.api.parameters import MIN_SEQ, PAGED, Parameter, flag, instant, integer, text
from mintyard.api.resources.accounts import change
from mintyard.api.routes import Table, changed, shown
from mintyard.app.link import Answer as Told
from mintyard.app.read_model import queries
from mintyard.domain import commands
from mintyard.domain.errors import (
    AccountClosed,
    BudgetTooSmall,
    CapExceeded,
    CeilingReached,
    DependencyCycle,
    DependencyUnknown,
    Forbidden,
    Infeasible,
    InvalidAmount,
    InvalidName,
    InvalidSpec,
    LimitReached,
    MintyardError,
    NeverWithinQuota,
    NotFound,
    Problem,
    QueueRefuses,
    QuotaExhausted,
    TooLarge,
    WrongResourceType,
    WrongState,
    from_problem,
)
from mintyard.domain.jobs import spec as core
from mintyard.domain.lifecycle import JOB
from mintyard.domain.replies import Batch, Done, Ticket
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit, format_amount
from mintyard.wire import submissions as wire
from mintyard.wire.bounds import parse_instant
from mintyard.wire.jobs import Job, check_refs, to_request
from mintyard.wire.pages import Change, Page
from mintyard.wire.problems import details_of, details_of_problem

JOBS = Table("jobs")
_TURN_JOBS: Final = 256
"""So many jobs are translated before other requests get a turn."""
_QUOTA = (QuotaExhausted, CeilingReached, CapExceeded, WrongResourceType, BudgetTooSmall, AccountClosed)
_SPEC = (
    InvalidSpec,
    InvalidAmount,
    InvalidName,
    TooLarge,
    DependencyUnknown,
    DependencyCycle,
    Infeasible,
    NeverWithinQuota,
    QueueRefuses,
    NotFound,
)
DRY_RUN = flag("dry_run", "Answer as if, and change nothing.")


def read_states(value: str) -> tuple[str, ...]:
    states = tuple(value.split(","))
    if not set(states) <= set(JOB.states):
        raise ValueError(f"must be states of a job, joined by commas: {', '.join(JOB.states)}")
    return states


STATES = Parameter(
    "state",
    read_states,
    {
        "type": "string",
        "pattern": f"^({'|'.join(JOB.states)})(,({'|'.join(JOB.states)}))*$",
        "maxLength": 256,
    },
    "Only jobs in one of these states, joined by commas.",
    (),
)


def ticket_of(ticket: Ticket, seq: int) -> wire.Ticket:
    return wire.Ticket(
        job=ticket.job,
        state=ticket.state,  # pyright: ignore[reportArgumentType] (a state of the life cycle)
        tasks=ticket.tasks,
        cost=format_amount(ticket.cost, Unit.MONEY),
        seq=seq,
    )


@JOBS.add(
    "POST",
    "/jobs",
    "Submit a job",
    body=Job,
    answer=wire.Ticket,
    status=201,
    query=(DRY_RUN,),
    scope=Scope.JOB_SUBMIT,
    refusals=(*_QUOTA, *_SPEC, LimitReached),
)
async def submit_job(call: Call, body: Job) -> Answer:
    """One job, array or gang. It is admitted and its cost is held, or it is refused with what is short and by
    how much."""
    command = commands.Submit(call.bearer, (to_request(body),), True, call.query["dry_run"], call.key)
    answer = await call.send(command)
    reply = answer.reply
    ticket = reply.parts[0] if isinstance(reply, Batch) else reply
    assert isinstance(ticket, Ticket)
    made = changed(call, answer, ticket_of(ticket, answer.seq), 201)
    if not call.query["dry_run"]:
        made.headers.append((b"location", b"/api/v1/jobs/%d" % ticket.job))
    return made


@JOBS.add(
    "POST",
    "/jobs/batch",
    "Submit many jobs in one request",
    body=wire.SubmitBatch,
    answer=wire.BatchAnswer,
    scope=Scope.JOB_SUBMIT,
    refusals=(*_QUOTA, *_SPEC, LimitReached),
)
async def submit_batch(call: Call, body: wire.SubmitBatch) -> Answer:
    """Atomic: all jobs are admitted, or the first refusal is the answer. Otherwise every job has a line of
    its own."""
    requests, refused = await _requests(body)
    told: Told | None = None
    parts: tuple[Done | Ticket | Problem, ...] = ()
    if requests:
        command = commands.Submit(call.bearer, tuple(requests), body.atomic, body.dry_run, call.key)
        told = await call.send(command)
        assert isinstance(told.reply, Batch)
        parts = told.reply.parts
    seq = told.seq if told else call.services.feed.durable_seq
    rest = iter(parts)
    lines: list[wire.BatchLine] = []
    admitted = 0
    for index in range(len(body.jobs)):
        error = refused.get(index)
        if error is not None:
            lines.append(wire.BatchLine(problem=details_of(error, call.request_id)))
            continue
        part = next(rest)
        if isinstance(part, Ticket):
            admitted += 1
            lines.append(wire.BatchLine(ticket=ticket_of(part, seq)))
        else:
            assert isinstance(part, Problem)
            lines.append(wire.BatchLine(problem=details_of_problem(part, call.request_id)))
    made = wire.BatchAnswer(lines=tuple(lines), admitted=admitted, refused=len(lines) - admitted, seq=seq)
    return Answer(made, 200, [(b"x-mintyard-seq", b"%d" % seq)])


async def _requests(body: wire.SubmitBatch) -> tuple[list[core.JobRequest], dict[int, MintyardError]]:
    """The core's form of the jobs, and for a batch that isn't atomic the refusal of each that can't be translated.

    Equal jobs are translated once: thousands of the same are the usual batch."""
    if body.atomic:
        check_refs(body.jobs)
    elif any(job.ref or any(edge.ref for edge in job.dependencies) for job in body.jobs):
        raise InvalidSpec(field="ref", why="jobs can name each other only in an atomic batch")
    requests: list[core.JobRequest] = []
    refused: dict[int, MintyardError] = {}
    last: Job | None = None
    for index, job in enumerate(body.jobs):
        if index % _TURN_JOBS == _TURN_JOBS - 1:
            await asyncio.sleep(0)
        if last is not None and job == last:
            requests.append(requests[-1])
            continue
        try:
            requests.append(to_request(job))
            last = job
        except MintyardError as error:
            if body.atomic:
                raise
            refused[index] = error
            last = None
    return requests, refused


@JOBS.add(
    "GET",
    "/jobs",
    "List jobs",
    answer=Page[wire.JobView],
    query=(
        STATES,
        text("account", "Only jobs of this account and those below it."),
        text("name", "Only jobs of this name; it may end in `*`."),
        integer("array_job", "Only the tasks of this array."),
        text("token", "Only jobs submitted with this token.", most=32, pattern=r"^[0-9a-f]{32}$"),
        instant("since", "Only jobs submitted at this instant or later."),
        instant("until", "Only jobs submitted before this instant."),
        *PAGED,
    ),
    scope=Scope.JOB_READ,
    refusals=(NotFound,),
)
async def list_jobs(call: Call) -> Answer:
    """The newest first."""
    query = call.query
    wanted = queries.JobFilter(
        account=query["account"],
        states=query["state"],
        name=query["name"],
        array_job=query["array_job"] or 0,
        token=query["token"],
        since=query["since"] or 0,
        until=query["until"] or 0,
    )
    found = await call.look(
        queries.list_jobs,
        call.within,
        wanted,
        after=query["cursor"],
        rows=query["limit"],
        only=call.bearer.jobs,
    )
    return paged(call, "/jobs", found, job_of)


@JOBS.add(
    "GET",
    "/jobs/{job}",
    "Show a job with its attempts",
    answer=wire.JobView,
    query=(MIN_SEQ,),
    scope=Scope.JOB_READ,
    refusals=(NotFound,),
)
async def show_job(call: Call) -> Answer:
    detail = await call.look(queries.show_job, call.within, call.path["job"], only=call.bearer.jobs)
    return shown(view_of(detail), detail.seq)


# --- control --------------------------------------------------------------------------------------------------------


async def number_of(call: Call) -> int:
    """The number of the path's job; `12_3` is looked up, since only the read model knows an array's indices."""
    name: str = call.path["job"]
    number, index = queries.job_number(name)
    if index < 0:
        return number
    detail = await call.look_now(queries.show_job, call.within, name, only=call.bearer.jobs)
    return detail.job.job


_VERB: dict[str, Any] = {
    "body": wire.ControlJob,
    "optional_body": True,
    "answer": Change,
    "scope": Scope.JOB_CONTROL,
    "refusals": (NotFound, Forbidden, WrongState, QuotaExhausted, CeilingReached, WrongResourceType),
}


async def _control(call: Call, verb: str, body: wire.ControlJob) -> Answer:
    number = await number_of(call)
    answer = await call.send(commands.ControlJobs(call.bearer, verb, (number,), body.reason, call.key))
    reply = answer.reply
    if isinstance(reply, Done):
        return changed(call, answer, change(answer))
    # An array: its tasks were taken one by one. Done when any was, refused when none.
    assert isinstance(reply, Batch)
    done = [part for part in reply.parts if isinstance(part, Done)]
    if not done:
        problem = next((part for part in reply.parts if isinstance(part, Problem)), None)
        raise NotFound(what="live job", name=str(number)) if problem is None else from_problem(problem)
    return changed(call, answer, Change(ref=number, state=done[-1].state, seq=answer.seq))


@JOBS.add("POST", "/jobs/{job}/cancel", "Cancel a job or all tasks of an array", **_VERB)
async def cancel_job(call: Call, body: wire.ControlJob) -> Answer:
    return await _control(call, "cancel", body)


@JOBS.add("POST", "/jobs/{job}/hold", "Keep a job from starting", **_VERB)
async def hold_job(call: Call, body: wire.ControlJob) -> Answer:
    return await _control(call, "hold", body)


@JOBS.add("POST", "/jobs/{job}/release", "Let a held job compete again", **_VERB)
async def release_job(call: Call, body: wire.ControlJob) -> Answer:
    return await _control(call, "release", body)


@JOBS.add("POST", "/jobs/{job}/requeue", "Stop a job and queue it again", **_VERB)
async def requeue_job(call: Call, body: wire.ControlJob) -> Answer:
    return await _control(call, "requeue", body)


@JOBS.add(
    "POST",
    "/jobs/control",
    "Do the same to many jobs",
    body=wire.ControlJobs,
    answer=wire.ControlAnswer,
    scope=Scope.JOB_CONTROL,
)
async def control_jobs(call: Call, body: wire.ControlJobs) -> Answer:
    """Each job is taken by itself; an array's number stands for its live tasks."""
    command = commands.ControlJobs(call.bearer, body.verb, body.jobs, body.reason, call.key)
    try:
        answer = await call.send(command)
    except (NotFound, Forbidden, WrongState, QuotaExhausted, CeilingReached, WrongResourceType) as error:
        seq = call.services.feed.durable_seq
        line = wire.ControlLine(problem=details_of(error, call.request_id))
        return shown(wire.ControlAnswer(lines=(line,), seq=seq), seq)
    parts = answer.reply.parts if isinstance(answer.reply, Batch) else (answer.reply,)
    lines = tuple(
        wire.ControlLine(change=Change(ref=part.ref, state=part.state, seq=answer.seq))
        if isinstance(part, Done)
        else wire.ControlLine(problem=details_of_problem(part, call.request_id))  # pyright: ignore[reportArgumentType]
        for part in parts
    )
    return changed(call, answer, wire.ControlAnswer(lines=lines, seq=answer.seq))


@JOBS.add(
    "PATCH",
    "/jobs/{job}",
    "Change a job that has not started",
    body=wire.UpdateJob,
    answer=Change,
    scope=Scope.JOB_CONTROL,
    refusals=(
        NotFound, Forbidden, WrongState, InvalidSpec, BudgetTooSmall, QuotaExhausted, CeilingReached, WrongResourceType,
    ),
)  # fmt: skip
async def update_job(call: Call, body: wire.UpdateJob) -> Answer:
    begin_at = parse_instant(body.begin_at, "begin_at") if body.begin_at else None
    number = await number_of(call)
    command = commands.UpdateJob(call.bearer, number, body.time_limit_ms, body.priority, begin_at, call.key)
    answer = await call.send(command)
    return changed(call, answer, change(answer))
