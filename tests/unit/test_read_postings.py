"""Two derivations of the ledger - balances folded by the book, entries from events alone - tell the same in every unit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.read_model_run import Run

from mintyard.app.record import decode_body
from mintyard.domain.events import GrantAdjusted, GrantClosed, GrantCreated, HoldClosed, Refunded
from mintyard.domain.ledger.book import LEDGER_ACCOUNTS
from mintyard.domain.ledger.postings import Posting, cause, postings
from mintyard.domain.units import Unit


def _open(number: int) -> bool:
    return number != 2


def test_a_grant_is_issued_and_taken_back() -> None:
    created = GrantCreated(1, "acme", Unit.MONEY, 100, 0, 0, 0, "")
    assert postings(created, _open) == [Posting(1, "issued", "left", 100)]
    assert postings(GrantAdjusted(1, -30, 0, 0), _open) == [Posting(1, "left", "issued", 30)]
    assert postings(GrantAdjusted(1, 0, 5, 0), _open) == []
    assert postings(GrantClosed(1, "end", 70), _open) == [Posting(1, "left", "expired", 70)]


def test_what_returns_to_a_closed_grant_expires() -> None:
    event = HoldClosed(1, "settle", (1, 10, 2, 20), (1, 3, 2, 4, 3, 0), ())
    assert postings(event, _open) == [
        Posting(1, "held", "spent", 10),
        Posting(2, "held", "spent", 20),
        Posting(1, "held", "left", 3),
        Posting(2, "held", "expired", 4),
    ]
    assert postings(Refunded((2, 5, 1, 6), (), "node_lost"), _open) == [
        Posting(2, "refunds", "expired", 5),
        Posting(1, "refunds", "left", 6),
    ]
    assert cause(Refunded((2, 5), (), "node_lost")) == "refund: node_lost"


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_book_and_postings_agree(seed: int) -> None:
    run = Run(seed)
    run.found()
    run.play(60)
    grants: dict[int, dict[str, int]] = {}
    open_grants: set[int] = set()
    units: dict[int, Unit] = {}
    moved = 0
    for record in run.store.read(0, 10_000):
        for event in decode_body(record).events:
            if isinstance(event, GrantCreated):
                grants[event.grant] = dict.fromkeys(LEDGER_ACCOUNTS, 0)
                open_grants.add(event.grant)
                units[event.grant] = event.unit
            for entry in postings(event, open_grants.__contains__):
                assert entry.amount > 0
                grants[entry.grant][entry.debit] -= entry.amount
                grants[entry.grant][entry.credit] += entry.amount
                moved += 1
            if isinstance(event, GrantClosed):
                open_grants.remove(event.grant)
    assert moved > 20
    book = run.state.ledger
    book.check()
    for number, grant in book.grants.items():
        expected = (-grant.granted, -grant.refunded, grant.left, grant.held, grant.spent, grant.expired)
        assert tuple(grants[number].values()) == expected
    for unit in Unit:
        sums = [sum(grants[n][name] for n in grants if units[n] is unit) for name in LEDGER_ACCOUNTS]
        assert sums == book.totals[unit]
        assert sum(sums) == 0
