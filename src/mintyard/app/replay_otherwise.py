"""A counterfactual: a recorded world run again under another policy, by the production core on the recorded clock (S9, S15).

What came from outside stays as it was and when it was: requests, prices, grants, node reports, true run times, lost nodes. What
the engines reported is made anew from when and where jobs start now: an attempt begins after the recorded delay and ends
after its recorded time, or when it is told to; attempts on a node that was lost are lost.

Job and hold numbers may differ from the recorded ones, since refusals may: requests that name them are translated. What can't
be known is said in the counts: a job whose own end was never seen runs to its time limit or until somebody ends it, a request
that was refused when recorded is not in a journal and stays away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

import msgspec

from mintyard.app.decisions import STIRRING
from mintyard.app.effects import engine_of
from mintyard.app.replay_measures import ScheduleMeasures
from mintyard.app.replay_world import Given, Truth, World
from mintyard.domain import events as e
from mintyard.domain import hub
from mintyard.domain.commands import (
    Command,
    ControlJobs,
    DrawHold,
    ExtendHold,
    SettleHold,
    Submit,
    TakeReports,
    Tick,
    UpdateJob,
    VoidHold,
)
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, Outcome, Report
from mintyard.domain.jobs.spec import JobRequest
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.replies import Batch, Done, Refusal, Reply, Ticket
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.state import Job, State
from mintyard.domain.units import NS_PER_MS

BOOT: Final = "replay"
_START, _END = 0, 1
_HOLD_COMMANDS: Final = (DrawHold, ExtendHold, SettleHold, VoidHold)


class Change(msgspec.Struct, frozen=True):
    """Rules that differ from the usual ones of the record; None leaves a rule as it was."""

    policy: Policy | None = None
    backfill: Backfill | None = None
    order: Order | None = None

    def of(self, usual: Tick) -> Tick:
        return msgspec.structs.replace(
            usual,
            policy=self.policy or usual.policy,
            backfill=self.backfill or usual.backfill,
            order=self.order or usual.order,
        )


class Unknown(msgspec.Struct):
    """What the counterfactual had to leave out or assume, in numbers of jobs and requests."""

    refused_now: int = 0
    """Requests that were taken when recorded and are refused now (no balance, another state)."""
    taken_now: int = 0
    """Jobs and arrays of a batch that were refused when recorded and are taken now."""
    without_object: int = 0
    """Requests about a job or hold that does not exist now."""
    no_own_end: int = 0
    """Attempts of jobs that were never seen to end by themselves."""
    refused_by: dict[str, int] = {}


class Otherwise:
    """One run. `go` returns what was measured; `numbers` maps recorded job numbers to those of now."""

    def __init__(
        self,
        world: World,
        change: Change = Change(),  # noqa: B008 - immutable
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.world, self.progress = world, progress
        self.state = State()
        self.round = change.of(world.usual)
        self.measures = ScheduleMeasures(self.state)
        self.numbers: dict[int, int] = {}
        self.unknown = Unknown()
        self._recorded: dict[int, int] = {}
        self._holds: dict[int, int] = {}
        self._due: list[tuple[int, int, int, int]] = []
        """(ns, start or end, job, attempt)."""
        self._ends: dict[tuple[int, int], AttemptEnded] = {}
        self._wakes: list[int] = []
        self._waking: set[int] = set()
        self._seq = 0

    def go(self) -> ScheduleMeasures:
        world = self.world
        given, faults, instants = world.given, world.faults, sorted(set(world.instants))
        at_given = at_fault = at_instant = 0
        while True:
            coming = [
                *instants[at_instant : at_instant + 1],
                *(one.now for one in given[at_given : at_given + 1]),
                *(one.now for one in faults[at_fault : at_fault + 1]),
                *(due for due, *_ in self._due[:1]),
            ]
            if coming or len(self.state.queue):
                coming += self._wakes[:1]
            if not coming:
                break
            now = max(min(coming), self.state.now)
            commands: list[Given] = []
            while at_given < len(given) and given[at_given].now <= now:
                commands.append(given[at_given])
                at_given += 1
            lost: set[str] = set()
            while at_fault < len(faults) and faults[at_fault].now <= now:
                lost |= faults[at_fault].nodes
                at_fault += 1
            plan = False
            while at_instant < len(instants) and instants[at_instant] <= now:
                at_instant, plan = at_instant + 1, True
            while self._wakes and self._wakes[0] <= now:
                self._waking.discard(heappop(self._wakes))
                plan = True
            self._instant(now, commands, lost, plan)
            self.progress(at_given, len(given))
        return self.measures

    def _instant(self, now: int, given: Sequence[Given], lost: set[str], plan: bool) -> None:
        """Everything at `now`: what the engine reports, what was asked, then, as the hub does it, a round where the recorded hub
        had one (`plan`) or something has changed, and further ones as long as they fill up."""
        self._begin(now)
        happened: list[e.AnyEvent] = []
        reports = [*self._lost(now, lost), *self._reports(now)]
        for engine, some in reports:
            happened += self._do(TakeReports(engine, (some,)), now)[0]
        for one in given:
            happened += self._ask(one, now)
        plan = plan or any(type(event) in STIRRING for event in happened)
        while plan:
            events, reply = self._do(self.round, now)
            happened += events
            plan = getattr(reply, "ref", 0) == self.round.limit
        self._answer(happened, now)
        if due := self.state.due.next():
            self._wake(max(due, now + 1))
        self.measures.take(now, happened)

    def _begin(self, now: int) -> None:
        self._seq += 1
        hub.begin(self.state, self._seq, now)

    def _do(self, command: Command, now: int) -> tuple[list[e.AnyEvent], Reply]:
        return hub.execute(self.state, command, now, at_once=True)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _ask(self, given: Given, now: int) -> list[e.AnyEvent]:
        command = self._translated(given.command)
        if command is None:
            self.unknown.without_object += 1
            return []
        events, reply = self._do(command, now)
        if isinstance(reply, Refusal):
            self._count_refused(reply.problem.code)
        elif isinstance(reply, Done) and given.hold and isinstance(reply.ref, int):
            self._holds[given.hold] = reply.ref
        elif isinstance(reply, Batch) and isinstance(command, Submit):
            for before, part in zip(given.made, reply.parts, strict=False):
                if before is not None and isinstance(part, Ticket):
                    self._admitted(before, part)
                elif before is not None:
                    self._count_refused(getattr(part, "code", ""))
                elif isinstance(part, Ticket):
                    self.unknown.taken_now += 1
        return events

    def _count_refused(self, code: str) -> None:
        self.unknown.refused_now += 1
        self.unknown.refused_by[code] = self.unknown.refused_by.get(code, 0) + 1

    def _admitted(self, before: Ticket, part: Ticket) -> None:
        for index in range(before.tasks + 1):
            self.numbers[before.job + index] = part.job + index
            self._recorded[part.job + index] = before.job + index

    def _translated(self, command: Command) -> Command | None:
        """The command with the numbers of now; None when what it is about doesn't exist now."""
        if isinstance(command, Submit):
            jobs = [job for request in command.jobs if (job := self._request(request)) is not None]
            if len(jobs) < len(command.jobs):
                return None
            return msgspec.structs.replace(command, jobs=tuple(jobs))
        if isinstance(command, ControlJobs):
            numbers = tuple(self.numbers[job] for job in command.jobs if job in self.numbers)
            return msgspec.structs.replace(command, jobs=numbers) if numbers else None
        if isinstance(command, UpdateJob):
            job = self.numbers.get(command.job)
            return None if job is None else msgspec.structs.replace(command, job=job)
        if isinstance(command, _HOLD_COMMANDS):
            hold = self._holds.get(command.hold)
            return None if hold is None else msgspec.structs.replace(command, hold=hold)
        return command

    def _request(self, request: JobRequest) -> JobRequest | None:
        edges = [
            msgspec.structs.replace(edge, job=self.numbers.get(edge.job, 0)) if edge.job else edge
            for edge in request.dependencies
        ]
        if any(not edge.job and not edge.ref for edge in edges):
            return None
        return msgspec.structs.replace(request, dependencies=tuple(edges))

    # --- the engine ---------------------------------------------------------------------------------------------------

    def _reports(self, now: int) -> list[tuple[str, Report]]:
        """What is due now, of attempts that are still on."""
        found: list[tuple[str, Report]] = []
        while self._due and self._due[0][0] <= now:
            _, kind, number, attempt = heappop(self._due)
            job = self._live(number, attempt)
            if job is None:
                continue
            if kind == _START:
                found.append((engine_of(self.state, job), AttemptStarted(number, attempt, BOOT)))
            else:
                found.append((engine_of(self.state, job), self._ends.pop((number, attempt))))
        return found

    def _lost(self, now: int, nodes: set[str]) -> list[tuple[str, Report]]:
        if not nodes:
            return []
        found: list[tuple[str, Report]] = []
        for job in list(self.state.jobs.values()):
            if job.state in LIVE_JOB_STATES and any(
                node.name in nodes for node in self.state.running_on(job.placement)
            ):
                run_ms = self._so_far(job, now)
                report = AttemptEnded(job.id, job.attempt, BOOT, Outcome.NODE_LOST, run_ms=run_ms)
                found.append((engine_of(self.state, job), report))
        return found

    def _answer(self, events: Sequence[e.AnyEvent], now: int) -> None:
        """What the engine makes of the orders that follow from these events."""
        for event in events:
            if isinstance(event, e.JobPlaced):
                self._start(event, now)
            elif isinstance(event, e.JobMoved) and event.trigger == "stop":
                job = self.state.jobs.get(event.job)
                if job is not None and job.state == "stopping":
                    report = AttemptEnded(
                        job.id, job.attempt, BOOT, Outcome.STOPPED, run_ms=self._so_far(job, now)
                    )
                    self._ends[job.id, job.attempt] = report
                    heappush(self._due, (now + 1, _END, job.id, job.attempt))
            elif isinstance(event, e.JobAdmitted):
                begin_at = self.state.specs[event.spec].content.begin_at
                if begin_at > now:
                    self._wake(begin_at)

    def _wake(self, at: int) -> None:
        if at not in self._waking:
            self._waking.add(at)
            heappush(self._wakes, at)

    def _start(self, event: e.JobPlaced, now: int) -> None:
        job = self._live(event.job, event.attempt)
        if job is None:
            return
        recorded = self._recorded.get(job.id, 0)
        truth = self._truth(job, recorded)
        delay = truth.delay if truth is not None else self.world.delays.get(recorded, 0)
        heappush(self._due, (now + delay, _START, job.id, job.attempt))
        if truth is None:
            self.unknown.no_own_end += 1
            limit = job.spec.content.time_limit_ms
            end = AttemptEnded(job.id, job.attempt, BOOT, Outcome.TIMED_OUT, run_ms=limit)
            took = limit * NS_PER_MS
        else:
            end = msgspec.structs.replace(
                truth.report, job=job.id, attempt=job.attempt, boot=BOOT, earlier={}
            )
            took = truth.took
        self._ends[job.id, job.attempt] = end
        heappush(self._due, (now + delay + took, _END, job.id, job.attempt))

    def _truth(self, job: Job, recorded: int) -> Truth | None:
        """Own end number k for the attempt after k own ends; the last one again when the record has no more."""
        truths = self.world.truths.get(recorded)
        if not truths:
            return None
        return truths[min(job.retried, len(truths) - 1)]

    def _live(self, number: int, attempt: int) -> Job | None:
        job = self.state.jobs.get(number)
        if job is None or job.attempt != attempt or job.state not in LIVE_JOB_STATES:
            return None
        return job

    @staticmethod
    def _so_far(job: Job, now: int) -> int:
        """Run time in ms at `now`; 0 before user code began."""
        return (now - job.placed_at) // NS_PER_MS if job.state != "starting" else 0
