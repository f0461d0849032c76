"""Quotes: what jobs may cost at most, whether they would be admitted now, and when they would start. Reads a state only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mintyard.app.questions import Quote, QuoteLine
from mintyard.domain import hub
from mintyard.domain.commands import Submit
from mintyard.domain.errors import InvalidSpec, MintyardError, TooLarge
from mintyard.domain.ids import ROOT, is_within
from mintyard.domain.jobs.admission import check_spec, list_cost
from mintyard.domain.jobs.spec import JobRequest, Shape
from mintyard.domain.ledger.prices import Bill
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.limits import MAX_JOBS_PER_COMMAND
from mintyard.domain.replies import Refusal
from mintyard.domain.scheduling.explain import Release, earliest_fit, explain
from mintyard.domain.state import SpecEntry, State
from mintyard.domain.tokens.authority import Authority, Scope
from mintyard.domain.tokens.registry import reach, require
from mintyard.domain.units import NS_PER_MS, Unit

_SHAPES_ESTIMATED: Final = 16
"""Of different shapes in one request, so many are given a start estimate; the latest of them counts."""


def quote_jobs(state: State, authority: Authority | None, jobs: Sequence[JobRequest], now: int) -> Quote:
    """The cost ceiling, the charge at each account that the caller may see with what is left there, and the refusal that
    submitting at once would give. Raises what bars the caller from asking at all (token, scope, account)."""
    require(state, authority, Scope.JOB_SUBMIT, now)
    within = authority.account if authority else ROOT
    account = reach(state, ROOT, within)
    _, reply = hub.decide(state, Submit(authority, tuple(jobs), atomic=True, dry_run=True), now)
    refusal = reply.problem if isinstance(reply, Refusal) else None
    try:
        bills = _bills(state, jobs, now)
    except MintyardError as error:
        return Quote(0, state.currency, (), refusal=refusal or error.problem(), seq=state.seq)
    lines = [line for line in _lines(state, account.id, bills, now) if is_within(line.account, within)]
    per_job = tuple(list_cost(bill) * tasks for bill, _, tasks in bills)
    starts_at, reason = _start(state, jobs, now)
    return Quote(
        sum(per_job),
        state.currency,
        per_job,
        tuple(lines),
        refusal,
        starts_at if refusal is None else None,
        reason if refusal is None else refusal.code,
        state.seq,
    )


def _bills(state: State, jobs: Sequence[JobRequest], now: int) -> list[tuple[Bill, int, int]]:
    """(bill of one attempt, mask of resources, tasks) of each request. No spec is interned."""
    if not 1 <= len(jobs) <= MAX_JOBS_PER_COMMAND:
        raise TooLarge(what="The number of jobs", size=len(jobs), limit=MAX_JOBS_PER_COMMAND)
    number, book = state.price_book(now)
    bills: list[tuple[Bill, int, int]] = []
    for job in jobs:
        check_spec(job.spec)
        if job.array is not None and not job.array.indices:
            raise InvalidSpec(field="array", why="takes at least one index")
        entry = SpecEntry(0, job.spec, -1)
        tasks = len(job.array.indices) if job.array is not None else 1
        bills.append((entry.ceiling(number, book), entry.mask, tasks))
    return bills


def _lines(
    state: State, account: str, bills: Sequence[tuple[Bill, int, int]], now: int
) -> Iterable[QuoteLine]:
    """What all jobs together would hold at each account on the path, with what its usable grants have left."""
    amounts: dict[tuple[str, Unit], int] = {}
    left: dict[tuple[str, Unit], int] = {}
    payer = state.ledger.accounts[account]
    for bill, mask, tasks in bills:
        for entry in state.ledger.plan(payer, mask):
            key = (entry.account, entry.unit)
            amounts[key] = amounts.get(key, 0) + tasks * bill.amount(entry.unit, entry.mask)
            left[key] = sum(grant.left for grant in entry.grants if grant.usable(now))
    return [QuoteLine(name, unit, amount, left[name, unit]) for (name, unit), amount in amounts.items()]


def releases(state: State) -> list[Release]:
    """What running jobs give back, at the latest when their time limits end."""
    return [
        Release(
            job.placed_at + job.spec.content.time_limit_ms * NS_PER_MS,
            job.placement,
            job.spec.content.shape,
        )
        for job in state.jobs.values()
        if job.state in LIVE_JOB_STATES
    ]


def _start(state: State, jobs: Sequence[JobRequest], now: int) -> tuple[int | None, str]:
    """When the last of the jobs could start if nothing else came, and what the first that can't start now waits for."""
    wanted: dict[Shape, int] = {}
    for job in jobs:
        wanted[job.spec.shape] = max(wanted.get(job.spec.shape, 0), job.spec.begin_at)
    latest, reason = now, ""
    freed = releases(state)
    for shape, begin_at in list(wanted.items())[:_SHAPES_ESTIMATED]:
        found = explain(state.cluster, shape)
        if found.reason is not None and not reason:
            reason = found.reason.value
        at = earliest_fit(state.cluster, shape, freed, max(now, begin_at))
        if at is None:
            return None, reason
        latest = max(latest, at)
    return latest, reason
