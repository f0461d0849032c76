"""Same-policy replay: decide a journal's recorded inputs again and compare with what was recorded, event by event.

A difference means that this version decides otherwise than the one that wrote the record, or that the journal was made
by other means; recovery is not touched by that, since it folds events. The chain is `journal.verify`'s affair.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

import msgspec

from mintyard.app.record import decode_body
from mintyard.domain import hub, snapshot
from mintyard.domain.errors import DecidedOtherwise
from mintyard.domain.events import AnyEvent
from mintyard.domain.state import State
from mintyard.ports.store import Record


class Difference(msgspec.Struct, frozen=True):
    """The first event (`index` from 0 within record `seq`) that came out otherwise; None where one side has no more."""

    seq: int
    index: int
    recorded: AnyEvent | None
    decided: AnyEvent | None

    def error(self) -> DecidedOtherwise:
        old, new = (
            type(one).__name__ if one is not None else "nothing" for one in (self.recorded, self.decided)
        )
        return DecidedOtherwise(seq=self.seq, why=f"event {self.index} is {old}, now it would be {new}")


class ReplayReport(msgspec.Struct, frozen=True):
    """What was replayed without a difference; `state_hash` is of the state after the last record, None beside a difference."""

    records: int
    inputs: int
    events: int
    state_hash: bytes | None
    difference: Difference | None = None


def replay(records: Iterable[Record], state: State | None = None) -> ReplayReport:
    """Decide the inputs of `records` again, from an empty state or from `state` just before the first record."""
    state = state or State()
    count = inputs = events = 0
    for record in records:
        body = decode_body(record)
        hub.begin(state, record.seq, record.now)
        decided: list[AnyEvent] = []
        for command in body.inputs:
            decided += hub.execute(state, command, record.now)[0]
        difference = first_difference(record.seq, body.events, decided)
        if difference is not None:
            return ReplayReport(count, inputs, events, None, difference)
        count, inputs, events = count + 1, inputs + len(body.inputs), events + len(decided)
    return ReplayReport(count, inputs, events, snapshot.state_hash(state))


def first_difference(seq: int, recorded: list[AnyEvent], decided: list[AnyEvent]) -> Difference | None:
    """None when both are alike in type, content and order."""
    if recorded == decided:
        return None
    for index, (old, new) in enumerate(zip_longest(recorded, decided)):
        if type(old) is not type(new) or old != new:
            return Difference(seq, index, old, new)
    return None
