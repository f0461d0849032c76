"""Projection: folds events into rows of the read model. What a row says is decided in the `projection_*` modules.

Deterministic: the rows follow from the records alone, whatever the batches they came in. Where the transaction begins and
ends is the projector's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

import msgspec
from sqlalchemy import Connection

from mintyard.app.projection_receipts import price_book
from mintyard.app.projection_shelf import Shelves
from mintyard.app.read_model.rows import CursorRow, GrantRow
from mintyard.app.read_model.views import SpecSummary
from mintyard.app.tailer import Entry
from mintyard.domain import events as e
from mintyard.domain.ledger.postings import cause, postings
from mintyard.domain.ledger.prices import PriceBook

Handler = Callable[["Projection", Any], None]
SILENT: Final = frozenset(
    {e.AccountLimited, e.AccountTokensRevoked, e.DependencyMet, e.KeyRemembered, e.QueueRemoved, e.QueueSet}
)
"""Events that change nothing which the read model shows (queues are shown by the planner)."""
REMOVED: Final = -1
"""The place of a node that was removed."""
SUMMARIES_KEPT: Final = 20_000
_spec_decoder = msgspec.json.Decoder(SpecSummary)


class Places:
    """Which node is where in the cluster: placements name nodes by place. A new node takes the lowest free one."""

    def __init__(self, names: Mapping[int, str] | None = None) -> None:
        self.names = {place: name for place, name in (names or {}).items() if place != REMOVED}
        self._free = [place for place in range(max(self.names, default=-1)) if place not in self.names]
        heapify(self._free)

    def take(self, name: str) -> int:
        place = heappop(self._free) if self._free else len(self.names)
        self.names[place] = name
        return place

    def leave(self, place: int) -> None:
        del self.names[place]
        heappush(self._free, place)


def _move(grant: GrantRow, side: str, amount: int) -> None:
    """Add `amount` to one of the grant's ledger accounts; its sources are kept as what they gave."""
    if side == "held":
        grant.held += amount
    elif side == "left":
        grant.left += amount
    elif side == "spent":
        grant.spent += amount
    elif side == "expired":
        grant.expired += amount
    elif side == "issued":
        grant.granted -= amount
    else:
        grant.refunded -= amount


class Projection:
    """The fold's place: the shelves, the cursor, where in the journal it is, and what each kind of event does."""

    def __init__(self, cursor: CursorRow, handlers: Mapping[type, Handler]) -> None:
        self.cursor = cursor
        self.handlers = handlers
        self.shelves = Shelves()
        self.places = Places()
        self.now = 0
        self.seq = 0
        self.ordinal = 0
        self._summaries: dict[int, SpecSummary] = {}
        self._books: dict[int, PriceBook] = {}

    def open(self, connection: Connection, *, fresh: bool) -> None:
        """Work within a transaction; `fresh` when nothing is at hand yet."""
        self.shelves.open(connection, fresh=fresh)
        if fresh:
            self.places = Places({row.index: row.name for row in self.shelves.nodes.rows.values()})

    def spec(self, number: int) -> SpecSummary:
        """The summary of an interned spec."""
        known = self._summaries.get(number)
        if known is None:
            if len(self._summaries) >= SUMMARIES_KEPT:
                self._summaries.clear()
            known = self._summaries[number] = _spec_decoder.decode(self.shelves.specs.get(number).content)
        return known

    def book(self, number: int) -> PriceBook:
        """A price book; one that was set never changes."""
        known = self._books.get(number)
        if known is None:
            known = self._books[number] = price_book(self.shelves.prices.get(number))
        return known

    def fold(self, entry: Entry) -> None:
        """All events of one record; the cursor moves to it."""
        self.seq, self.now, self.ordinal = entry.seq, entry.now, 0
        for event in entry.events:
            handler = self.handlers.get(type(event))
            if handler is not None:
                handler(self, event)
        cursor = self.cursor
        cursor.seq, cursor.chain = entry.seq, entry.record.chain
        cursor.term, cursor.at = entry.record.term, entry.now

    def post(self, event: e.AnyEvent, hold: int = 0, job: int = 0, attempt: int = 0) -> None:
        """Write the event's postings and move the grants' balances by them."""
        why, seq, now, ordinal = cause(event), self.seq, self.now, self.ordinal
        grants, rows = self.shelves.grants, self.shelves.postings
        for entry in postings(event, lambda grant: grants.get(grant).state == "active"):
            number, debit, credit, amount = entry.grant, entry.debit, entry.credit, entry.amount
            grant = grants.change(number)
            _move(grant, debit, -amount)
            _move(grant, credit, amount)
            rows.append(
                (
                    seq,
                    ordinal,
                    now,
                    grant.account,
                    number,
                    grant.unit,
                    debit,
                    credit,
                    amount,
                    why,
                    hold,
                    job,
                    attempt,
                )
            )
            ordinal += 1
        self.ordinal = ordinal

    def load(self, entries: Sequence[Entry]) -> None:
        """Have at hand, by few queries, most of the rows that these records will touch."""
        jobs: set[int] = set()
        holds: set[int] = set()
        grants: set[int] = set()
        specs: set[int] = set()
        for entry in entries:
            for event in entry.events:
                match event:
                    case e.JobAdmitted():
                        specs.add(event.spec)
                    case e.HoldPlaced():
                        for line in event.lines:
                            grants.update(line.legs[::2])
                    case e.HoldClosed():
                        holds.add(event.hold)
                        grants.update(event.spent[::2])
                        grants.update(event.released[::2])
                    case e.JobMoved() | e.JobPlaced() | e.AttemptBegan() | e.UsageCounted():
                        jobs.add(event.job)
                    case e.JobRequeued() | e.JobEnded():
                        jobs.add(event.job)
                    case _:
                        pass
        shelves = self.shelves
        shelves.jobs.load(jobs)
        shelves.attempts.load(
            (job, row.attempt)
            for job in jobs
            if (row := shelves.jobs.rows.get(job)) is not None and row.attempt
        )
        shelves.holds.load(holds)
        shelves.grants.load(grants)
        specs.update(row.spec for job in jobs if (row := shelves.jobs.rows.get(job)) is not None)
        shelves.specs.load(specs)
