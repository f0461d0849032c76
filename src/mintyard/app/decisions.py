"""Decisions: one tick after another on the state in memory, synchronous, without store, thread or clock.

Each tick takes commands in order, applies what comes of them so that the next one sees it, plans one scheduling round
when something may have become possible, and leaves a `Decided`: a record to be written and everything that must wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from mintyard.app.effects import Effect, EffectPlanner
from mintyard.app.inbox import Inbox
from mintyard.app.journal import make_record
from mintyard.app.link import Answer
from mintyard.app.record import encode_body
from mintyard.app.revocations import KINDS
from mintyard.domain import events as e
from mintyard.domain import hub
from mintyard.domain.commands import Command, Submit, Tick
from mintyard.domain.errors import MintyardError, Problem, TooLarge
from mintyard.domain.events import AnyEvent
from mintyard.domain.jobs.bulk import submits
from mintyard.domain.limits import MAX_COMMANDS_PER_TICK, MAX_RECORD_BYTES
from mintyard.domain.replies import Refusal
from mintyard.domain.scheduling.choices import DEFAULT_BACKFILL, DEFAULT_ORDER, Backfill, Order
from mintyard.domain.state import State
from mintyard.ports.store import Record

Outcome = Answer | MintyardError
Sink = Callable[[list[tuple[Any, Outcome]]], None]
"""Takes outcomes with their tags, many at a time; called in the writer's loop, must not block."""

DEFAULT_ROUND_LIMIT: Final = 1_024
MAX_TICK_BYTES: Final = 16 * 1_024 * 1_024
"""A tick takes no further commands once its record may have grown to this."""
MAX_COMMAND_BYTES: Final = MAX_RECORD_BYTES - MAX_TICK_BYTES - 4 * 1_024 * 1_024
_TASK_BYTES: Final = 640
"""Room for the events of one admitted task."""
_EVENT_BYTES: Final = 128

STIRRING: Final = frozenset(
    {
        e.AccountLimited,
        e.JobAdmitted,
        e.JobEnded,
        e.JobMoved,
        e.JobRequeued,
        e.JobUpdated,
        e.NodeChanged,
        e.NodeJoined,
        e.NodeMoved,
        e.QueueRemoved,
        e.QueueSet,
    }
)
"""Events after which a job may fit that did not fit before."""
_AFFECTING: Final = frozenset({e.JobPlaced, e.JobMoved})


class Look(msgspec.Struct, frozen=True):
    """A question to the state between two commands; its answer waits like any other until what it saw is durable."""

    at: Callable[[State], Any]


Item = tuple[Command | Look, Sink, Any]
"""What waits to be decided: command, where its outcome goes, and the tag it goes with."""


class Decided:
    """A record with everything that leaves only once it is durable."""

    __slots__ = ("effects", "orders", "record", "replies")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.effects: list[Effect] = []
        self.orders: list[AnyEvent] = []
        self.replies: list[tuple[Sink, Any, Any]] = []


class Decisions:
    """The state of one term of leadership: made by recovery, discarded when a commit fails."""

    def __init__(
        self,
        state: State,
        head: Record | None,
        round_limit: int = DEFAULT_ROUND_LIMIT,
        timer: Callable[[], float] = lambda: 0.0,
        *,
        backfill: Backfill = DEFAULT_BACKFILL,
        order: Order = DEFAULT_ORDER,
    ) -> None:
        self.state = state
        self.head = head
        self.stirred = True
        """Whether a round may find something to place."""
        self.planned = False
        """Whether the last tick held a round."""
        self.round_s = 0.0
        """What that round took by `timer`, which decides nothing."""
        self._timer = timer
        self.kinds: list[type] = []
        """Type of each command of the last tick, in the order of its replies."""
        self._round_limit = round_limit
        self._backfill, self._order = backfill, order
        self._effects = EffectPlanner()
        self._replies: list[tuple[Sink, Any, Any]] = []

    @property
    def seq(self) -> int:
        """The last record decided."""
        return self.head.seq if self.head else 0

    @property
    def waiting_jobs(self) -> bool:
        """Whether jobs compete for nodes that exist."""
        return len(self.state.queue) > 0 and len(self.state.cluster) > 0

    def undone(self) -> list[tuple[Sink, Any]]:
        """Who was answered within a tick that an exception broke off, the one that broke it last; this state is unusable."""
        return [(sink, tag) for sink, tag, _ in self._replies]

    def decide(
        self,
        inbox: Inbox[Item],
        now: int,
        term: int,
        plan: bool,
        may_plan: bool,
        spent: Callable[[], bool],
        limit: int = MAX_COMMANDS_PER_TICK,
    ) -> tuple[Decided | None, list[tuple[Sink, Any, Any]]]:
        """One tick at `now` (ns): what to write (None: nothing happened) and the replies that go with it.

        `plan` adds a round, `may_plan` does when the tick stirred something, `spent` says when the tick has taken its time.
        An exception means a fault of ours: then the state must be discarded (see `undone`)."""
        state = self.state
        execute = hub.execute
        inputs: list[Command] = []
        events: list[AnyEvent] = []
        self._replies = replies = []
        self.kinds = kinds = []
        self.planned = False
        hub.begin(state, self.seq + 1, now)
        size = count = 0
        while inbox and count < limit:
            command, sink, tag = inbox.popleft()
            count += 1
            replies.append((sink, tag, None))
            kinds.append(type(command))
            if type(command) is Look:
                replies[-1] = (sink, tag, _look(command, state))
                continue
            if type(command) is Submit:
                if submits.is_plain(command):
                    behind = _plain_behind(inbox, limit - count)
                    if behind:
                        count += len(behind)
                        size += self._submit_run(command, behind, inputs, events, now)
                        if size + len(events) * _EVENT_BYTES > MAX_TICK_BYTES or spent():
                            break
                        continue
                weight = submit_bytes(command)
                if weight > MAX_COMMAND_BYTES:
                    replies[-1] = (sink, tag, Refusal(_too_large(weight)))
                    continue
                size += weight
            made, reply = execute(state, command, now, at_once=True)  # pyright: ignore[reportArgumentType] (a Look was handled)
            replies[-1] = (sink, tag, reply)
            if made:
                inputs.append(command)  # pyright: ignore[reportArgumentType]
                events += made
                if size + len(events) * _EVENT_BYTES > MAX_TICK_BYTES or spent():
                    break
            elif count & 63 == 0 and spent():
                break
        stirred = self.stirred or any(type(event) in STIRRING for event in events)
        if plan or (stirred and may_plan and self.waiting_jobs):
            stirred = self._round(inputs, events, now)
        self.stirred = stirred
        return (self._decided(inputs, events, now, term) if events else None), replies

    def _submit_run(
        self, first: Submit, behind: list[Item], inputs: list[Command], events: list[AnyEvent], now: int
    ) -> int:
        """Decide a run of plain submits, the first of which has its place among the replies; about how many bytes it adds."""
        replies = self._replies
        at = len(replies) - 1
        replies += [(sink, tag, None) for _, sink, tag in behind]
        self.kinds += [Submit] * len(behind)
        commands: list[Any] = [first, *[command for command, _, _ in behind]]
        for command, (made, reply) in zip(commands, hub.submit_all(self.state, commands, now), strict=True):
            sink, tag, _ = replies[at]
            replies[at] = (sink, tag, reply)
            at += 1
            if made:
                inputs.append(command)
                events += made
        return sum(map(submit_bytes, commands))

    def _round(self, inputs: list[Command], events: list[AnyEvent], now: int) -> bool:
        """Plan a round; whether another one should follow at once."""
        self.planned = True
        began = self._timer()
        round_ = Tick(self._round_limit, backfill=self._backfill, order=self._order)
        made, reply = hub.execute(self.state, round_, now, at_once=True)
        if made:
            inputs.append(round_)
            events += made
        self.round_s = self._timer() - began
        return getattr(reply, "ref", 0) == self._round_limit

    def _decided(self, inputs: list[Command], events: list[AnyEvent], now: int, term: int) -> Decided:
        body = encode_body(inputs, events)
        self.head = make_record(self.head, term, now, self.state.format, body)
        decided = Decided(self.head)
        kinds = {type(event) for event in events}
        if not kinds.isdisjoint(_AFFECTING):
            decided.effects = self._effects.of_events(self.state, events)
        if not kinds.isdisjoint(KINDS):
            decided.orders = [event for event in events if type(event) in KINDS]
        return decided

    def effects(self) -> EffectPlanner:
        return self._effects


def _plain_behind(inbox: Inbox[Item], most: int) -> list[Item]:
    """The plain submits that are next, as many as go with one more in a run; they leave the inbox."""
    behind: list[Item] = []
    most = min(most, submits.MAX_RUN - 1)
    while inbox and len(behind) < most and submits.is_plain(inbox.first()[0]):
        behind.append(inbox.popleft())
    return behind


def _look(look: Look, state: State) -> Any:
    try:
        return look.at(state)
    except MintyardError as error:
        return error


def submit_bytes(command: Submit) -> int:
    """About how many bytes a submit adds to its record: the payloads twice, as input and interned, and events by task."""
    size = 0
    for request in command.jobs:
        spec = request.spec
        size += 2 * len(spec.payload) + _TASK_BYTES
        if spec.inputs or spec.outputs:
            size += 2 * sum(map(len, spec.inputs)) + 2 * sum(map(len, spec.outputs))
        if request.array is not None:
            size += len(request.array.indices) * _TASK_BYTES
    return size


def _too_large(weight: int) -> Problem:
    return TooLarge(what="The request", size=f"{weight} bytes", limit=f"{MAX_COMMAND_BYTES} bytes").problem()
