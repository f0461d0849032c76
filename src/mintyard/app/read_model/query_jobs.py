"""Queries about jobs, their attempts and receipts. Every one is bounded to the caller's subtree in the query itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, select

from mintyard.app.read_model import schema
from mintyard.app.read_model.database import ReadModel
from mintyard.app.read_model.paging import Paging
from mintyard.app.read_model.reach import check_text, newest_first
from mintyard.app.read_model.rows import ArrayRow, AttemptRow, JobRow
from mintyard.app.read_model.views import (
    ArrayView,
    AttemptView,
    JobDetail,
    JobReceipt,
    JobView,
    MemberView,
    Page,
    Receipt,
    SpecSummary,
)
from mintyard.domain.errors import InvalidRequest, NotFound
from mintyard.domain.ids import is_within
from mintyard.domain.lifecycle import JOB, LIVE_JOB_STATES, joint_end
from mintyard.domain.limits import MAX_ARRAY_TASKS

_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,18})(?:_([0-9]{1,10}))?")
_TASKS_AT_ONCE: Final = MAX_ARRAY_TASKS + 1
_spec_decoder = msgspec.json.Decoder(SpecSummary)
_waits_decoder = msgspec.json.Decoder(tuple[tuple[int, str], ...])
_placement_decoder = msgspec.json.Decoder(tuple[MemberView, ...])
_receipt_decoder = msgspec.json.Decoder(Receipt)


class JobFilter(msgspec.Struct, frozen=True, array_like=True):
    """What to list; fields left as they are don't restrict. `account` includes all below it, `name` may end in `*`,
    `array_job` lists the tasks of one array, times are ns of submission in [`since`, `until`)."""

    account: str = ""
    states: tuple[str, ...] = ()
    name: str = ""
    array_job: int = 0
    token: str = ""
    since: int = 0
    until: int = 0


def list_jobs(
    model: ReadModel,
    within: str,
    wanted: JobFilter = JobFilter(),  # noqa: B008 - frozen
    *,
    after: str = "",
    rows: int | None = None,
    only: Sequence[int] | None = None,
    min_seq: int = 0,
) -> Page[JobView]:
    """Jobs and array tasks, the newest first. `only`: the jobs that the caller's token is limited to, if it is.

    Errors: `InvalidRequest` for a filter or cursor that can't be, `NotFound` for an account that isn't the caller's."""
    limited = None if only is None else tuple(only)
    paging = Paging(("jobs", within, wanted, limited), after, rows)
    conditions = _matching(within, wanted, limited)
    if (condition := paging.after(schema.jobs.c.id, descending=True)) is not None:
        conditions.append(condition)
    with model.read(min_seq) as (connection, cursor):
        page = newest_first(connection, schema.jobs, wanted.account or within, paging.rows + 1, conditions)
        query = _joined().where(page).order_by(schema.jobs.c.id.desc())
        found = [_view(*_split(row)) for row in connection.execute(query)]
        return paging.page(found, lambda job: (job.job,), cursor.seq)


def _matching(within: str, wanted: JobFilter, only: tuple[int, ...] | None) -> list[ColumnElement[bool]]:
    """The conditions of a filter, apart from the account."""
    jobs = schema.jobs.c
    if wanted.account and not is_within(wanted.account, within):
        raise NotFound(what="account", name=check_text(wanted.account))
    conditions: list[ColumnElement[bool]] = []
    if wanted.states:
        unknown = sorted(set(wanted.states) - set(JOB.states))
        if unknown:
            raise InvalidRequest(why=f"{check_text(unknown[0])!r} is no state of a job")
        conditions.append(jobs.state.in_(wanted.states))
    if wanted.name:
        name = check_text(wanted.name)
        stem = name.removesuffix("*")
        matches = jobs.name == name
        if stem != name:
            matches = (jobs.name >= stem) & (jobs.name <= stem + "\U0010ffff")
        conditions.append(matches)
    if wanted.token:
        conditions.append(jobs.token == check_text(wanted.token))
    if wanted.array_job:
        conditions.append(jobs.array_job == _number(wanted.array_job))
    if wanted.since:
        conditions.append(jobs.submitted_at >= _number(wanted.since))
    if wanted.until:
        conditions.append(jobs.submitted_at < _number(wanted.until))
    if only is not None:
        conditions.append(jobs.id.in_(only))
    return conditions


def _joined() -> Select[Any]:
    return select(*schema.jobs.c, schema.specs.c.content).join(
        schema.specs, schema.specs.c.id == schema.jobs.c.spec
    )


def _number(value: int) -> int:
    if not 0 <= value < 2**63:
        raise InvalidRequest(why=f"{value} is out of range")
    return value


def _split(row: Any) -> tuple[JobRow, str]:
    return JobRow(*tuple(row)[:-1]), row[-1]


def show_job(
    model: ReadModel, within: str, name: str, *, only: Sequence[int] | None = None, min_seq: int = 0
) -> JobDetail:
    """The job `12`, the array `12` or its task `12_3`, with attempts. `NotFound` also when it belongs to others."""
    with model.read(min_seq) as (connection, cursor):
        job = _find(connection, within, name, only)
        attempts = [] if isinstance(job, ArrayView) else _attempts(connection, job.job)
        return JobDetail(job, tuple(_attempt_view(row) for row in attempts), cursor.seq)


def receipt(
    model: ReadModel, within: str, name: str, *, only: Sequence[int] | None = None, min_seq: int = 0
) -> JobReceipt:
    """What a job (not an array: its tasks have theirs) has cost, attempt by attempt. Charges at accounts above the caller's
    are left out."""
    with model.read(min_seq) as (connection, cursor):
        job = _find(connection, within, name, only)
        if isinstance(job, ArrayView):
            raise InvalidRequest(
                why=f"job {job.job} is an array; ask for a task of it, such as {job.job}_INDEX"
            )
        receipts: list[Receipt] = []
        for row in _attempts(connection, job.job):
            if row.receipt:
                whole = _receipt_decoder.decode(row.receipt)
                charges = tuple(line for line in whole.charges if is_within(line.account, within))
                receipts.append(msgspec.structs.replace(whole, charges=charges))
        return JobReceipt(job.job, job.account, job.state, tuple(receipts), job.cost, cursor.seq)


def job_number(name: str) -> tuple[int, int]:
    """(number, array index or -1) of a job's name as people write it, or `InvalidRequest`."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) >= 2**63:
        raise InvalidRequest(why=f"{check_text(name)!r} is no job number such as 12 or 12_3")
    return int(match[1]), int(match[2]) if match[2] else -1


def _find(connection: Connection, within: str, name: str, only: Sequence[int] | None) -> JobView | ArrayView:
    number, index = job_number(name)
    jobs, arrays = schema.jobs.c, schema.arrays.c
    here = jobs.id == number if index < 0 else (jobs.array_job == number) & (jobs.array_index == index)
    row = connection.execute(_joined().where(here)).one_or_none()
    found: JobView | ArrayView | None = _view(*_split(row)) if row is not None else None
    if found is None and index < 0:
        content = select(*schema.arrays.c, schema.specs.c.content).join(
            schema.specs, schema.specs.c.id == arrays.spec
        )
        row = connection.execute(content.where(arrays.id == number)).one_or_none()
        found = _array_view(connection, ArrayRow(*tuple(row)[:-1]), row[-1]) if row is not None else None
    if found is None or not is_within(found.account, within) or (only is not None and found.job not in only):
        raise NotFound(what="job", name=name)
    return found


def _view(job: JobRow, content: str) -> JobView:
    spec = _spec_decoder.decode(content)
    return JobView(
        job=job.id,
        account=job.account,
        token=job.token,
        state=job.state,
        spec=spec,
        array_job=job.array_job,
        array_index=job.array_index,
        submitted_at=job.submitted_at,
        queued_at=job.queued_at,
        placed_at=job.placed_at,
        began_at=job.began_at,
        ended_at=job.ended_at,
        attempt=job.attempt,
        exit_code=_exit_code(job),
        signal=job.signal,
        run_ms=job.run_ms,
        cpu_ms=job.cpu_ms,
        peak_memory_mib=job.peak_memory_mib,
        cost=job.cost,
        reason=job.reason,
        waits_for=_waits_decoder.decode(job.waits_for),
    )


def _exit_code(row: JobRow | AttemptRow) -> int | None:
    """Only where user code ran to its own end: succeeded or failed without a signal."""
    ended = row.state in ("succeeded", "failed") and row.began_at > 0
    return row.exit_code if ended and not row.signal else None


def _array_view(connection: Connection, array: ArrayRow, content: str) -> ArrayView:
    jobs = schema.jobs.c
    query = (
        select(jobs.state, jobs.cost, jobs.ended_at).where(jobs.array_job == array.id).limit(_TASKS_AT_ONCE)
    )
    states: Counter[str] = Counter()
    cost = ended_at = 0
    for state, task_cost, task_ended_at in connection.execute(query):
        states[state] += 1
        cost += task_cost
        ended_at = max(ended_at, task_ended_at)
    ended = sum(states[state] for state in JOB.terminal)
    if ended < states.total():
        state, ended_at = "running" if any(states[s] for s in LIVE_JOB_STATES) else "pending", 0
    else:
        state = reduce(joint_end, (final for final, count in states.items() if count), "") or "succeeded"
    return ArrayView(
        array.id,
        array.account,
        state,
        _spec_decoder.decode(content),
        array.size,
        array.throttle,
        array.submitted_at,
        ended_at,
        dict(sorted(states.items())),
        cost,
    )


def _attempts(connection: Connection, job: int) -> list[AttemptRow]:
    attempts = schema.attempts.c
    query = select(schema.attempts).where(attempts.job == job).order_by(attempts.attempt)
    return [AttemptRow(*row) for row in connection.execute(query)]


def _attempt_view(row: AttemptRow) -> AttemptView:
    return AttemptView(
        row.attempt,
        row.state,
        _placement_decoder.decode(row.placement),
        row.placed_at,
        row.began_at,
        row.ended_at,
        _exit_code(row),
        row.signal,
        row.run_ms,
        row.cpu_ms,
        row.peak_memory_mib,
        row.cost,
        row.message,
    )
