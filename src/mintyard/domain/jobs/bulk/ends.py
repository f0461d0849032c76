"""Many reports at once, exactly as one after the other: the same events and state, at a fraction of the work.

Within a run of ends that nobody waits for nothing but balances and free capacity changes, so attempts that are alike are settled
once, and what is spent, released and given back is posted as a sum. What is out of the ordinary (a requeue, a refund, a
dependent) closes the run first and goes the way of `attempts`. Reports of starts, usage and nodes read none of that and need not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mintyard.domain.events import AnyEvent, AttemptBegan, HoldClosed, Line
from mintyard.domain.folding import attempt_began, forget_job
from mintyard.domain.jobs.attempts import (
    BLAMELESS,
    amounts_used,
    begins,
    job_ended,
    rate_of,
    run_time_ms,
    verdict,
)
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, Report
from mintyard.domain.ledger.book import Hold
from mintyard.domain.ledger.charging import settle
from mintyard.domain.ledger.prices import bill
from mintyard.domain.lifecycle import JOB, LIVE_JOB_STATES
from mintyard.domain.state import Job, Mandate, SpecEntry, State

Alone = Callable[[Report], list[AnyEvent]]
"""Decides and applies one report the plain way."""


class _Share:
    """What an attempt under a hold like this spends and releases; `count` attempts of this run do."""

    __slots__ = ("account", "ceilings", "charged", "cost", "count", "lines", "released", "spent", "used")

    def __init__(self, hold: Hold) -> None:
        self.lines: tuple[Line, ...] = hold.lines
        self.charged: tuple[str | int, ...] = hold.ceilings
        self.account = hold.account
        self.spent: tuple[int, ...] = ()
        self.released: tuple[int, ...] = ()
        self.ceilings: tuple[str | int, ...] = ()
        self.used: tuple[str | int, ...] = ()
        self.cost = 0
        self.count = 0


class _Run:
    """Ends since the last `close`: balances, what is in use and free capacity lag behind by them."""

    def __init__(self, state: State, now: int) -> None:
        self.state, self.now = state, now
        self.shares: list[_Share] = []
        self._known: dict[tuple[SpecEntry, Mandate, int, int, int], _Share] = {}
        self._ended: list[Job] = []

    def is_plain(self, job: Job, hold: Hold, trigger: str, cause: str) -> bool:
        dependents = self.state.dependents
        return (
            trigger != "requeue"
            and cause not in BLAMELESS
            and not hold.drawn
            and job.id not in dependents
            and (not job.array_job or job.array_job not in dependents)
        )

    def end(self, job: Job, hold: Hold, report: AttemptEnded, trigger: str, events: list[AnyEvent]) -> None:
        """As `attempts.attempt_ended` and the folding of its two events, but for what `close` does."""
        state = self.state
        run_ms = run_time_ms(job, report, self.now)
        share = self._share(job, hold, run_ms)
        share.count += 1
        number = job.id
        events.append(
            HoldClosed(
                hold.id,
                "settle",
                share.spent,
                share.released,
                share.ceilings,
                share.used,
                share.account,
                number,
                job.attempt,
            )
        )
        events.append(job_ended(job, trigger, report, run_ms, share.cost))
        del state.ledger.holds[hold.id]
        if hold.expires_at:
            state.due.drop("hold", hold.id)
        del state.jobs[number]
        if job.array_job:
            state.arrays[job.array_job].active -= 1
        self._ended.append(job)
        state.note_run(job, trigger, run_ms)
        forget_job(state, job, JOB.step(job.state, trigger))

    def _share(self, job: Job, hold: Hold, run_ms: int) -> _Share:
        rate = rate_of(self.state, job, hold.book)
        key = (job.spec, job.mandate, run_ms, hold.book, rate)
        share = self._known.get(key)
        if share is not None and share.lines is hold.lines and share.charged is hold.ceilings:
            return share
        used = bill(job.spec.content.shape, run_ms, self.state.prices[hold.book], rate)
        parts = settle(hold, used)
        share = self._known[key] = _Share(hold)
        share.spent, share.released, share.ceilings = parts.spent, parts.released, parts.ceilings
        share.used, share.cost = amounts_used(used), sum(used.money)
        self.shares.append(share)
        return share

    def close(self) -> None:
        """Post the sums."""
        if not self._ended:
            return
        ledger = self.state.ledger
        for share in self.shares:
            ledger.post_closed(share.spent, share.released, share.ceilings, share.count)
        self.state.free(self._ended)
        self.shares, self._known, self._ended = [], {}, []


def take_reports(state: State, reports: Sequence[Report], now: int, alone: Alone) -> list[AnyEvent]:
    """Decide and apply `reports` in order: the events of all of them."""
    events: list[AnyEvent] = []
    run = _Run(state, now)
    jobs, holds, dependents = state.jobs, state.ledger.holds, state.dependents
    for report in reports:
        if isinstance(report, AttemptEnded):
            job = jobs.get(report.job)
            if job is None or job.attempt != report.attempt or job.state not in LIVE_JOB_STATES:
                continue
            trigger, cause, _ = verdict(job, report)
            hold = holds[job.hold]
            if run.is_plain(job, hold, trigger, cause):
                run.end(job, hold, report, trigger, events)
                continue
            run.close()
        elif isinstance(report, AttemptStarted) and report.job not in dependents:
            job = jobs.get(report.job)
            if job is not None and begins(job, report):
                began = AttemptBegan(report.job, report.attempt, report.boot)
                attempt_began(state, began)
                events.append(began)
            continue
        events += alone(report)
    run.close()
    return events
