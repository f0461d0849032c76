"""The run: arrivals and ends in order of virtual time, each instant one tick, and what is measured on the way.

The engine is simulated as simply as can be: an attempt starts when it is placed, runs for the trace's time, and is cut at
its limit. What it reports goes through the same door as any engine's reports.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import groupby
from typing import Final

from mintyard.app.trace_replay_hub import ENGINE, ReplayHub
from mintyard.app.trace_replay_workload import NEVER, Arrival, Workload
from mintyard.domain import events as e
from mintyard.domain.commands import Command, ControlJobs, RevokeAccountTokens, Submit, TakeReports, Tick
from mintyard.domain.errors import Problem
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, Outcome
from mintyard.domain.jobs.spec import JobRequest
from mintyard.domain.replies import Batch, Refusal, Reply
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.cluster import Amounts
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.units import NS_PER_MS

ROUND_LIMIT: Final = 1_024
INSTANT_JOBS: Final = 2_048
"""Jobs of one instant in one record; what comes at the same time beyond that follows in the next."""
SLOWDOWN_FLOOR_MS: Final = 10_000
"""Tau of the bounded slowdown (Feitelson): shorter runs count as this long."""
BOOT: Final = "virtual"


class Tally:
    """What one tenant had."""

    __slots__ = ("cost", "done", "gpu_milli_ms", "jobs", "refused", "timed_out")

    def __init__(self) -> None:
        self.jobs = self.done = self.timed_out = self.refused = self.cost = self.gpu_milli_ms = 0


class Measures:
    """Everything measured: per job, per tenant, and what was in use from each instant (ms) on."""

    def __init__(self) -> None:
        self.waits_ms = array("q")
        self.slowdowns = array("d")
        self.ends_ms = array("q")
        self.refused: Counter[str] = Counter()
        self.tenants: dict[str, Tally] = {}
        self.at_ms = array("q")
        self.in_use: tuple[array[int], array[int], array[int]] = (array("q"), array("q"), array("q"))
        self.pending = array("q")

    def note(self, at_ms: int, use: Sequence[int], pending: int) -> None:
        """From `at_ms` on, `use` (milli-GPU, milli-cores, MiB) is taken; of several at one instant the last one counts."""
        if self.at_ms and self.at_ms[-1] == at_ms:
            for row, value in zip(self.in_use, use, strict=True):
                row[-1] = value
            self.pending[-1] = pending
            return
        self.at_ms.append(at_ms)
        for row, value in zip(self.in_use, use, strict=True):
            row.append(value)
        self.pending.append(pending)


class Run:
    """One replay in progress."""

    def __init__(
        self,
        hub: ReplayHub,
        workload: Workload,
        policy: Policy,
        fill: bool,
        progress: Callable[[int, int], None] = lambda done, total: None,
        *,
        backfill: Backfill,
        order: Order,
    ) -> None:
        self.hub, self.workload, self.fill = hub, workload, fill
        self.round = Tick(ROUND_LIMIT, policy, backfill, order)
        self.measures = Measures()
        self.progress = progress
        self.next = 0
        self.ends: list[tuple[int, int, int]] = []
        self.live: dict[int, Arrival] = {}
        self.submitted_ms: dict[int, int] = {}
        self.placed_ms: dict[int, int] = {}
        self.use = [0, 0, 0]
        self.finished = 0
        self.last_ms = 0

    @property
    def total(self) -> Amounts:
        return self.hub.state.cluster.total()

    def go(self) -> Measures:
        """To the end: every job done, refused or never placed. The tokens are revoked by the last record."""
        arrivals = self.workload.arrivals
        self.measures.note(0, self.use, 0)
        steps = 0
        while self.next < len(arrivals) or self.ends:
            at = min(
                arrivals[self.next].at_ms if self.next < len(arrivals) else self.ends[0][0],
                self.ends[0][0] if self.ends else arrivals[-1].at_ms,
            )
            self.instant(at)
            steps += 1
            if steps % 64 == 0:
                self.progress(self.finished, len(arrivals))
        self.hub.order([RevokeAccountTokens(None, self.workload.organisation)], self._ns(self.last_ms))
        self.progress(self.finished, len(arrivals))
        return self.measures

    def instant(self, at_ms: int) -> None:
        """Ends and arrivals at `at_ms`, a round if anything changed, and the starts that it made."""
        self.last_ms = at_ms
        commands: list[Command] = []
        reports = self._reports(at_ms)
        if reports:
            commands.append(TakeReports(ENGINE, tuple(reports)))
        coming = self._arrivals(at_ms)
        submits = [
            Submit(
                self.hub.token(account, self._ns(at_ms)), tuple(JobRequest(job.spec) for job in jobs), False
            )
            for account, jobs in coming
        ]
        waiting = len(self.hub.state.queue) > 0 or bool(submits)
        commands += submits
        if waiting:
            commands.append(self.round)
        events, replies = self.hub.take(commands, self._ns(at_ms))
        first = 1 if reports else 0
        for (_, jobs), reply in zip(coming, replies[first : first + len(coming)], strict=True):
            self._answered(at_ms, jobs, reply)
        self._happened(at_ms, events)
        while waiting and getattr(replies[-1], "ref", 0) == ROUND_LIMIT:
            events, replies = self.hub.take([self.round], self._ns(at_ms))
            self._happened(at_ms, events)
        if self.fill and len(self.hub.state.queue):
            self._turn_away(at_ms)
        self.measures.note(at_ms, self.use, len(self.hub.state.queue))

    def _ns(self, at_ms: int) -> int:
        return self.workload.start_ns + at_ms * NS_PER_MS

    def _reports(self, at_ms: int) -> list[AttemptEnded]:
        """The reports of what ends now. A job whose run time is longer than its limit was cut there."""
        reports: list[AttemptEnded] = []
        ends = self.ends
        while ends and ends[0][0] == at_ms and len(reports) < INSTANT_JOBS:
            _, number, attempt = heappop(ends)
            arrival = self.live[number]
            limit_ms = arrival.spec.time_limit_ms
            outcome = Outcome.TIMED_OUT if arrival.run_ms > limit_ms else Outcome.EXITED
            run_ms = min(arrival.run_ms, limit_ms)
            reports.append(AttemptEnded(number, attempt, BOOT, outcome, run_ms=run_ms))
        return reports

    def _arrivals(self, at_ms: int) -> list[tuple[str, list[Arrival]]]:
        """What arrives now, neighbours of one account together."""
        arrivals, start = self.workload.arrivals, self.next
        end = start
        while end < len(arrivals) and arrivals[end].at_ms == at_ms and end - start < INSTANT_JOBS:
            end += 1
        self.next = end
        return [
            (account, list(jobs)) for account, jobs in groupby(arrivals[start:end], lambda job: job.account)
        ]

    def _answered(self, at_ms: int, jobs: Sequence[Arrival], reply: Reply) -> None:
        parts = reply.parts if isinstance(reply, Batch) else ()
        for index, job in enumerate(jobs):
            tally = self._tally(job)
            tally.jobs += 1
            part = reply.problem if isinstance(reply, Refusal) else parts[index]
            if isinstance(part, Problem):
                self.measures.refused[part.code] += 1
                tally.refused += 1
                self.finished += 1
            else:
                number = getattr(part, "job")  # noqa: B009 - an admitted job's part is a ticket
                self.live[number] = job
                self.submitted_ms[number] = at_ms

    def _happened(self, at_ms: int, events: Sequence[e.AnyEvent]) -> None:
        started: list[AttemptStarted] = []
        for event in events:
            if type(event) is e.JobPlaced:
                self._placed(at_ms, event)
                started.append(AttemptStarted(event.job, event.attempt, BOOT))
            elif type(event) is e.JobEnded:
                self._ended(event)
        if started:
            self.hub.take([TakeReports(ENGINE, tuple(started))], self._ns(at_ms))

    def _placed(self, at_ms: int, event: e.JobPlaced) -> None:
        arrival = self.live[event.job]
        self._bind(arrival, 1)
        self.placed_ms[event.job] = at_ms
        wait_ms = at_ms - self.submitted_ms.pop(event.job)
        run_ms = min(arrival.run_ms, arrival.spec.time_limit_ms)
        self.measures.waits_ms.append(wait_ms)
        if arrival.run_ms != NEVER:
            floor_ms = max(run_ms, SLOWDOWN_FLOOR_MS)
            self.measures.slowdowns.append(max((wait_ms + run_ms) / floor_ms, 1.0))
            heappush(self.ends, (at_ms + run_ms, event.job, event.attempt))

    def _ended(self, event: e.JobEnded) -> None:
        arrival = self.live.pop(event.job)
        tally = self._tally(arrival)
        self.finished += 1
        if self.placed_ms.pop(event.job, None) is None:
            return
        self._bind(arrival, -1)
        self.measures.ends_ms.append(self.last_ms)
        shape = arrival.spec.shape
        tally.done += event.trigger == "succeed"
        tally.timed_out += event.trigger == "time_out"
        tally.cost += event.cost
        tally.gpu_milli_ms += shape.members * shape.gpus_milli * event.run_ms

    def _turn_away(self, at_ms: int) -> None:
        """In a fill, what finds no place at once is turned away."""
        waiting = tuple(self.submitted_ms)
        events, _ = self.hub.take([ControlJobs(None, "cancel", waiting, "no place")], self._ns(at_ms))
        for event in events:
            if type(event) is e.JobEnded:
                self._tally(self.live[event.job]).refused += 1
                self.measures.refused["no_place"] += 1
                del self.submitted_ms[event.job]
        self._happened(at_ms, events)

    def _bind(self, arrival: Arrival, sign: int) -> None:
        shape = arrival.spec.shape
        count = sign * shape.members
        self.use[0] += count * shape.gpus_milli
        self.use[1] += count * shape.cpus_milli
        self.use[2] += count * shape.memory_mib

    def _tally(self, arrival: Arrival) -> Tally:
        """By the account right below the organisation."""
        tenant = "/".join(arrival.account.split("/", 2)[:2])
        found = self.measures.tenants.get(tenant)
        if found is None:
            found = self.measures.tenants[tenant] = Tally()
        return found
