"""What a journal says of the world outside the hub: who asked for what and when, which nodes came and went, how long each job
truly ran. The same whatever the scheduler decides, which is what a counterfactual needs (S9, S15).

Read by deciding the recorded inputs again, one by one, so that it is known which job came of which request. A journal that
this version decides otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mintyard.app.record import decode_body
from mintyard.app.replay_journal import first_difference
from mintyard.app.replay_measures import ScheduleMeasures
from mintyard.domain import hub
from mintyard.domain.commands import Command, PlaceHold, Submit, TakeReports, Tick
from mintyard.domain.events import AnyEvent
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, NodeGone, NodeSeen, Outcome
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.replies import Batch, Done, Reply, Ticket
from mintyard.domain.state import State
from mintyard.domain.units import NS_PER_MS
from mintyard.ports.store import Record

_CUT = frozenset({Outcome.STOPPED, Outcome.NODE_LOST})
"""Ends that were not the job's own: what it would have done is not known from them."""


class Given(msgspec.Struct, frozen=True):
    """A command from outside at `now` (ns), as recorded. `made` are the tickets of its parts (None: refused) and the hold that
    came of it, 0 for none."""

    now: int
    command: Command
    made: tuple[Ticket | None, ...] = ()
    hold: int = 0


class Truth(msgspec.Struct, frozen=True):
    """How one attempt went by itself. Times in ns: until it began, and from then to its end."""

    report: AttemptEnded
    delay: int
    took: int


class Fault(msgspec.Struct, frozen=True):
    """At `now` everything on these nodes was lost.

    Of an attempt that spans nodes: those that were reported gone, or all where none was. A node that went with nothing on it
    is in no fault: whether it would have taken what ran there is not known."""

    now: int
    nodes: frozenset[str]


class World(msgspec.Struct):
    """All of it, in order of time. `truths` are each recorded job's own ends, attempt by attempt; `delays` how long its first
    attempt took to begin; `instants` when the recorded hub planned rounds; `rounds` how many by which rules."""

    given: list[Given]
    truths: dict[int, list[Truth]]
    delays: dict[int, int]
    faults: list[Fault]
    instants: list[int]
    rounds: dict[Tick, int]
    recorded: ScheduleMeasures
    state: State
    records: int = 0
    last: int = 0

    @property
    def usual(self) -> Tick:
        """The rules by which most rounds were planned."""
        return max(self.rounds, key=lambda tick: self.rounds[tick], default=Tick())


def text_of(tick: Tick) -> str:
    """The rules of a round in words."""
    return f"{tick.policy.value} / {tick.backfill.value} / {tick.order.value}"


def read_world(records: Iterable[Record]) -> World:
    """Errors: `DecidedOtherwise` where this version decides another event than was recorded."""
    state = State()
    world = World([], {}, {}, [], [], {}, ScheduleMeasures(state), state)
    reader = _Reader(state, world)
    for record in records:
        reader.take(record)
    return world


class _Reader:
    def __init__(self, state: State, world: World) -> None:
        self.state, self.world = state, world
        self.began: dict[tuple[int, int], int] = {}
        self.gone: set[str] = set()
        """Nodes reported gone and not seen since."""

    def take(self, record: Record) -> None:
        state, world, now = self.state, self.world, record.now
        body = decode_body(record)
        hub.begin(state, record.seq, now)
        decided: list[AnyEvent] = []
        for command in body.inputs:
            if isinstance(command, TakeReports):
                self._reports(command, now)
            events, reply = hub.execute(state, command, now)
            decided += events
            if isinstance(command, Tick):
                world.instants.append(now)
                world.rounds[command] = world.rounds.get(command, 0) + 1
            elif not isinstance(command, TakeReports):
                world.given.append(Given(now, command, _tickets(command, reply), _hold(command, reply)))
        difference = first_difference(record.seq, body.events, decided)
        if difference is not None:
            raise difference.error()
        world.recorded.take(now, decided)
        world.records, world.last = world.records + 1, now

    def _reports(self, command: TakeReports, now: int) -> None:
        """Nodes are kept as they were reported; attempts give what is true of their jobs."""
        nodes = [report for report in command.reports if isinstance(report, (NodeSeen, NodeGone))]
        for report in nodes:
            (self.gone.add if isinstance(report, NodeGone) else self.gone.discard)(report.node)
        lost: set[str] = set()
        for report in command.reports:
            if isinstance(report, (NodeSeen, NodeGone)):
                continue
            job = self.state.jobs.get(report.job)
            if job is None or job.attempt != report.attempt or job.state not in LIVE_JOB_STATES:
                continue
            key = (report.job, report.attempt)
            if isinstance(report, AttemptStarted):
                self.began.setdefault(key, now)
                self.world.delays.setdefault(report.job, now - job.placed_at)
            elif isinstance(report, AttemptEnded):
                if report.outcome is Outcome.NODE_LOST:
                    names = {node.name for node in self.state.running_on(job.placement)}
                    lost |= names & self.gone or names
                elif report.outcome not in _CUT:
                    # A job that was told to end but came to its own end first has told the truth, too.
                    began = self.began.get(key, job.placed_at)
                    truth = Truth(report, began - job.placed_at, max(now - began, report.run_ms * NS_PER_MS))
                    self.world.truths.setdefault(report.job, []).append(truth)
                self.began.pop(key, None)
        if nodes:
            self.world.given.append(Given(now, TakeReports(command.engine, tuple(nodes))))
        if lost:
            self.world.faults.append(Fault(now, frozenset(lost)))


def _tickets(command: Command, reply: Reply) -> tuple[Ticket | None, ...]:
    if not isinstance(command, Submit) or not isinstance(reply, Batch):
        return ()
    return tuple(part if isinstance(part, Ticket) else None for part in reply.parts)


def _hold(command: Command, reply: Reply) -> int:
    if isinstance(command, PlaceHold) and isinstance(reply, Done) and isinstance(reply.ref, int):
        return reply.ref
    return 0
