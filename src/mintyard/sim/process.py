"""The hub's process in a simulation: ticks, commits, what is said and done only after a commit, crashes and recovery.

It keeps the rules of the live writer (apply first, speak after; a commit that failed or whose fate is unknown discards the
state) in one thread, so that a crash can be put between any two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from mintyard.app.clock import HubClock
from mintyard.app.effects import EffectPlanner, Start, stop
from mintyard.app.journal import make_record
from mintyard.app.record import encode_body
from mintyard.app.recovery import recover
from mintyard.domain import hub, snapshot
from mintyard.domain.commands import Command
from mintyard.domain.commands import TakeReports as TakeReportsCommand
from mintyard.domain.errors import CommitUnknown, EngineUnavailable, InvariantBroken, StoreUnavailable
from mintyard.domain.events import AnyEvent, JobEnded, JobRequeued
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.replies import Reply
from mintyard.ports.engine import AttemptKey, Engine, StopOrder
from mintyard.ports.store import Record, Snapshot, Store

MAX_TRIES = 1_000
Speak = Callable[[int, Reply], None]


class Unspoken(msgspec.Struct):
    """A tick that was applied but is not durable: its record, its replies by ticket, its events."""

    record: Record
    replies: list[tuple[int, Reply]]
    events: list[AnyEvent]


class Process:
    """One life after another of a hub on one store. `speak(ticket, reply)` is called only for durable replies."""

    def __init__(
        self, store: Store, engine: Engine, speak: Speak, wall: Callable[[], int], elapsed: Callable[[], int]
    ) -> None:
        self.store = store
        self.engine = engine
        self.speak = speak
        self.wall = wall
        self.elapsed = elapsed
        self.lives = 0
        self.start()

    def start(self) -> None:
        """Recover from the store, whatever the last life was about to say."""
        self.lives += 1
        for _ in range(MAX_TRIES):
            try:
                lease = self.store.acquire("hub", 60_000)
                recovered = recover(self.store)
                break
            except (StoreUnavailable, CommitUnknown):
                continue
        else:
            raise InvariantBroken(why=f"the store did not answer {MAX_TRIES} times")
        if lease is None:
            raise InvariantBroken(why="the lease was not given out to its own holder")
        self.term = lease.term
        self.head, self.state = recovered.head, recovered.state
        self.effects = EffectPlanner()
        self.clock = HubClock(self.state.now, self.wall, self.elapsed)
        self.unspoken: list[Unspoken] = []

    def tick(self, commands: Sequence[tuple[int, Command]]) -> None:
        """Decide and apply `commands` (with their tickets) as one record, not yet durable."""
        state = self.state
        now = self.clock.now()
        hub.begin(state, state.seq + 1, now)
        events: list[AnyEvent] = []
        inputs: list[Command] = []
        replies: list[tuple[int, Reply]] = []
        outcomes = hub.execute_all(state, [command for _, command in commands], now)
        for (ticket, command), (happened, reply) in zip(commands, outcomes, strict=True):
            events += happened
            if happened:
                inputs.append(command)
            replies.append((ticket, reply))
        previous = self.unspoken[-1].record if self.unspoken else self.head
        record = make_record(previous, self.term, now, hub.FORMAT, encode_body(inputs, events))
        self.unspoken.append(Unspoken(record, replies, events))

    def commit(self) -> None:
        """Make what was applied durable, then speak and act. A commit that failed ends this life's state."""
        waiting, self.unspoken = self.unspoken, []
        if not waiting:
            return
        try:
            self.store.append(self.term, [tick.record for tick in waiting])
        except (StoreUnavailable, CommitUnknown):
            self.start()
            return
        self.head = waiting[-1].record
        for tick in waiting:
            for ticket, reply in tick.replies:
                self.speak(ticket, reply)
        self.durable = [event for tick in waiting for event in tick.events]
        self._act(self.durable)

    def _act(self, events: Sequence[AnyEvent]) -> None:
        """What durable events ask of the engine. An order that doesn't get through is found by `reconcile`."""
        try:
            for effect in self.effects.of_events(self.state, events):
                if isinstance(effect, Start):
                    self.engine.start([effect.order])
                else:
                    self.engine.stop([effect.order])
            over = [e for e in events if isinstance(e, (JobEnded, JobRequeued)) and e.attempt]
            self.engine.acknowledge([AttemptKey(event.job, event.attempt) for event in over])
        except EngineUnavailable:
            return

    def reconcile(self) -> None:
        """Bring what the engine does and what the state says together; only what is durable may be acted on."""
        if self.unspoken:
            return
        try:
            known = {(key.job, key.attempt) for key in self.engine.attempts()}
            for job in list(self.state.jobs.values()):
                if job.state == "starting" and (job.id, job.attempt) not in known:
                    self.engine.start([self.effects.start(self.state, job).order])
                elif job.state == "stopping":
                    self.engine.stop([stop(self.state, job).order])
            for number, attempt in sorted(known):
                job = self.state.jobs.get(number)
                if job is None or job.attempt != attempt or job.state not in LIVE_JOB_STATES:
                    self.engine.stop([StopOrder(number, attempt, 0)])
                    self.engine.acknowledge([AttemptKey(number, attempt)])
        except EngineUnavailable:
            return

    def keep_snapshot(self) -> None:
        """Save the durable state, as the snapshot tailer does."""
        if self.head is None or self.unspoken:
            return
        body = snapshot.encode(self.state)
        kept = Snapshot(
            self.head.seq, self.head.chain, snapshot.SCHEMA, snapshot.state_hash(self.state), body
        )
        with suppress(StoreUnavailable, CommitUnknown):
            self.store.save_snapshot(kept)

    def reports(self) -> Command | None:
        """What the engine has to say, as one command."""
        try:
            reports = self.engine.poll(0)
        except EngineUnavailable:
            return None
        return TakeReportsCommand(self.engine.name, tuple(reports)) if reports else None
