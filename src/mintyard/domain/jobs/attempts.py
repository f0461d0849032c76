"""Attempts: what an engine's report means for the job, its hold and those who wait for it.

Reports may come late, twice, in any order or never: whatever doesn't fit the attempt that is on is dropped. The end of an
attempt settles its hold on the run time that both witnesses allow: the agent's monotonic counters, summed over its boots, and
the interval that the hub itself saw (L4). What failed through no fault of the job is charged and refunded in one step.
"""

from __future__ import annotations

from collections.abc import Container

from mintyard.domain.errors import MintyardError, Refused
from mintyard.domain.events import (
    AnyEvent,
    AttemptBegan,
    DependencyMet,
    HoldClosed,
    HoldPlaced,
    JobEnded,
    JobMoved,
    JobRequeued,
    Refunded,
    UsageCounted,
)
from mintyard.domain.jobs.admission import Rehold, ceiling_blocks, job_hold, satisfies
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, AttemptUsage, Outcome
from mintyard.domain.ledger.book import rows
from mintyard.domain.ledger.charging import Draft, Settlement, settle
from mintyard.domain.ledger.prices import RESOURCES, Bill, bill
from mintyard.domain.lifecycle import JOB, LIVE_JOB_STATES, joint_end
from mintyard.domain.limits import MAX_RETRIES
from mintyard.domain.state import Job, State
from mintyard.domain.units import NS_PER_MS, Unit

USAGE_QUANTUM_MS = 30_000
"""Interim counters are journaled only when they grew by this much; the final report carries the exact total."""
_RESOURCE_NAMES = tuple(unit.value for unit in RESOURCES)
_MONEY_NAME = Unit.MONEY.value
EMPTY = Bill((0, 0, 0, 0), (0, 0, 0, 0))
BLAMELESS = frozenset({"node_lost", "preempted", "operator_requeue"})
"""Causes that are refunded in full and don't count as a retry."""


def attempt_started(state: State, report: AttemptStarted, now: int, out: list[AnyEvent]) -> None:
    job = state.jobs.get(report.job)
    if job is not None and begins(job, report):
        out.append(AttemptBegan(job.id, job.attempt, report.boot))
        if job.began_at == 0:
            meet_dependents(state, job.id, "started", out, {})


def begins(job: Job, report: AttemptStarted) -> bool:
    return job.attempt == report.attempt and job.state == "starting"


def attempt_usage(state: State, report: AttemptUsage, now: int, out: list[AnyEvent]) -> None:
    job = state.jobs.get(report.job)
    if job is None or job.attempt != report.attempt or job.state not in ("running", "stopping"):
        return
    known = job.boots or {}
    if report.boot not in known or report.run_ms - known[report.boot] >= USAGE_QUANTUM_MS:
        out.append(UsageCounted(job.id, job.attempt, report.boot, report.run_ms))


def run_time_ms(job: Job, report: AttemptEnded, now: int) -> int:
    """Billable run time: the agent's counters summed over boots, at most the interval since placement and the time limit."""
    known = job.boots
    if not report.earlier and (not known or (len(known) == 1 and report.boot in known)):
        counted = report.run_ms
        if known and known[report.boot] > counted:
            counted = known[report.boot]
    else:
        boots = dict(known) if known else {}
        for boot, run_ms in report.earlier.items():
            boots[boot] = max(boots.get(boot, 0), run_ms)
        boots[report.boot] = max(boots.get(report.boot, 0), report.run_ms)
        counted = sum(boots.values())
    seen = (now - job.placed_at) // NS_PER_MS
    limit = job.spec.content.time_limit_ms
    run_ms = counted if counted < seen else seen
    if run_ms > limit:
        run_ms = limit
    return run_ms if run_ms > 0 else 0


def attempt_bill(state: State, job: Job, run_ms: int) -> Bill:
    """What the attempt amounts to, at the rate of the GPUs that it really had and the book pinned by its hold."""
    hold = state.ledger.holds.get(job.hold)
    number = hold.book if hold else 0
    return bill(job.spec.content.shape, run_ms, state.prices[number], rate_of(state, job, number))


def rate_of(state: State, job: Job, number: int) -> int:
    """The price of the GPUs that the attempt has, by price book `number`."""
    book = state.prices[number]
    if not book.gpu_models:
        return book.gpu_nano
    return book.gpu_rate([node.gpu_model for node in state.running_on(job.placement)] or [""])


def amounts_used(used: Bill) -> tuple[str | int, ...]:
    """For the receipt: flat (unit, amount, ...), money last."""
    amounts = [part for pair in zip(_RESOURCE_NAMES, used.stock, strict=True) if pair[1] for part in pair]
    return (*amounts, _MONEY_NAME, sum(used.money))


def attempt_ended(state: State, report: AttemptEnded, now: int, out: list[AnyEvent]) -> None:
    job = state.jobs.get(report.job)
    if job is None or job.attempt != report.attempt or job.state not in LIVE_JOB_STATES:
        return
    run_ms = run_time_ms(job, report, now)
    used = attempt_bill(state, job, run_ms)
    trigger, cause, retry = verdict(job, report)
    share = _settle(state, job, used, cause, out)
    cost = 0 if cause in BLAMELESS else sum(used.money)
    if trigger == "requeue":
        draft = _given_back(share, cause in BLAMELESS)
        hold, waiting_for = _next_hold(state, job, draft, now)
        if hold is not None:
            out.append(hold)
        moved, message = ("requeue", report.message) if hold is not None else ("park", waiting_for)
        out.append(JobRequeued(job.id, job.attempt, cause, moved, retry, run_ms, message[:500], cost))
        return
    out.append(job_ended(job, trigger, report, run_ms, cost))
    end_dependents(state, job, JOB.step(job.state, trigger), now, out)


def job_ended(job: Job, trigger: str, report: AttemptEnded, run_ms: int, cost: int) -> JobEnded:
    """The end of a job by the end of its last attempt, which cost `cost` nano-units."""
    return JobEnded(
        job.id,
        trigger,
        job.attempt,
        report.exit_code,
        report.signal,
        run_ms,
        max(report.cpu_ms, 0),
        max(report.peak_memory_mib, 0),
        job.spent + cost,
        report.message[:500],
    )


def verdict(job: Job, report: AttemptEnded) -> tuple[str, str, bool]:
    """(trigger, cause, whether it counts as a retry) for the way in which the attempt ended."""
    outcome = report.outcome
    if outcome is Outcome.EXITED and report.exit_code == 0 and report.signal == 0:
        return "succeed", "done", False
    content = job.spec.content
    if (
        job.state == "stopping" and outcome not in (Outcome.EXITED, Outcome.TIMED_OUT)
    ) or outcome is Outcome.STOPPED:
        if job.reason in BLAMELESS and job.requeued < MAX_RETRIES:
            return "requeue", job.reason, False
        if job.reason == "user_requeue":
            return "requeue", job.reason, False
        return "cancel", "cancelled", False
    if outcome is Outcome.TIMED_OUT:
        return "time_out", "timed_out", False
    if outcome is Outcome.NODE_LOST:
        return ("requeue", "node_lost", False) if job.requeued < MAX_RETRIES else ("fail", "node_lost", False)
    if job.retried < content.retries and job.state != "stopping":
        return "requeue", "failed", True
    return "fail", "failed", False


def _settle(state: State, job: Job, used: Bill, cause: str, out: list[AnyEvent]) -> Settlement:
    """Close the attempt's hold on `used`; refund all of it when the cause is not the job's."""
    hold = state.ledger.holds[job.hold]
    share = settle(hold, used)
    out.append(
        HoldClosed(
            hold.id,
            "settle",
            share.spent,
            share.released,
            share.ceilings,
            amounts_used(used),
            hold.account,
            job.id,
            job.attempt,
        )
    )
    if cause in BLAMELESS and share.spent:
        ceilings = tuple(
            part
            for block, unit, spent, _ in rows(share.ceilings, 4)
            if spent
            for part in (block, unit, spent)
        )
        out.append(Refunded(share.spent, ceilings, cause, job.id, job.attempt))
    return share


def _given_back(share: Settlement, refunded: bool) -> Draft:
    """What the next hold may draw on again although it isn't applied yet. What goes to grants that are closed does no harm
    here: nothing is drawn from those."""
    draft = Draft()
    draft.give(share.released)
    if refunded:
        draft.give(share.spent)
    for block, unit, spent, freed in rows(share.ceilings, 4):
        draft.counters[block, Unit(unit)] = -freed - (spent if refunded else 0)
    return draft


def _next_hold(state: State, job: Job, draft: Draft, now: int) -> tuple[HoldPlaced | None, str]:
    """The hold for the job's next attempt; when it doesn't fit, None and why: the job is then held, not lost."""
    number, _ = state.price_book(now)
    making = Rehold(state, now, draft, state.ledger.next_hold, number)
    account, blocks = job.mandate.account, ceiling_blocks(job.mandate)
    try:
        return job_hold(state, account, blocks, job.spec, making, job.id, job.attempt + 1), ""
    except Refused as refusal:
        return None, describe(refusal)


def describe(error: MintyardError) -> str:
    return f"{error.code}: {error}"[:500]


# --- those who wait -------------------------------------------------------------------------------------------------


def meet_dependents(
    state: State, source: int, final: str, out: list[AnyEvent], met: dict[int, int], gone: Container[int] = ()
) -> list[int]:
    """Count `source` having reached `final` for those who wait for it: the ready ones move on, and the numbers of those that
    can never run are returned. `met` counts edges met within this command that are not applied yet, `gone` are jobs that it has
    ended already."""
    never: list[int] = []
    for number, when in state.dependents.get(source, ()):
        job = state.jobs.get(number)
        if job is None or number in gone or job.waiting == 0 or (final == "started" and when != "after"):
            continue
        if when == "after" and final != "started" and state.began(source):
            continue
        if not satisfies(when, final):
            never.append(number)
            continue
        met[number] = met.get(number, 0) + 1
        out.append(DependencyMet(number))
        if met[number] == job.waiting and job.state == "blocked":
            out.append(JobMoved(number, "ready"))
    return never


def end_dependents(state: State, job: Job, final: str, now: int, out: list[AnyEvent]) -> None:
    """Everything that follows from one job's end: dependents released or skipped, and what follows from their end in turn."""
    if not job.array_job and job.id not in state.dependents:
        return
    met: dict[int, int] = {}
    finished: dict[int, int] = {}
    bad: dict[int, str] = {}
    gone: set[int] = {job.id}
    ends = [(job.id, job.array_job, final)]
    while ends:
        number, array, outcome = ends.pop()
        never = meet_dependents(state, number, outcome, out, met, gone)
        if array:
            finished[array] = finished.get(array, 0) + 1
            bad[array] = joint_end(bad.get(array, state.arrays[array].bad), outcome)
            if finished[array] == state.arrays[array].live:
                never += meet_dependents(state, array, bad[array] or "succeeded", out, met, gone)
        for skipped in never:
            dependent = state.jobs[skipped]
            if skipped not in gone and dependent.state in ("blocked", "held"):
                gone.add(skipped)
                void_hold(state, dependent, out)
                out.append(JobEnded(skipped, "skip", message=f"job {number} {outcome}"))
                ends.append((skipped, dependent.array_job, "skipped"))


def void_hold(state: State, job: Job, out: list[AnyEvent]) -> None:
    """Release the hold of a job that has no attempt on, if it has one."""
    hold = state.ledger.holds.get(job.hold)
    if hold is not None:
        share = settle(hold, EMPTY)
        out.append(
            HoldClosed(
                hold.id, "void", (), share.released, share.ceilings, (), hold.account, job.id, hold.attempt
            )
        )
