"""Postings: the double entry that each ledger event stands for, derived from events alone.

A second, independent derivation: `book.py` folds events into balances, here they become entries of a journal; both must tell
the same, and every entry takes from one ledger account what it gives to another. No balance may be read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from mintyard.domain.events import (
    AnyEvent,
    GrantAdjusted,
    GrantClosed,
    GrantCreated,
    HoldClosed,
    HoldDrawn,
    HoldExtended,
    HoldPlaced,
    Line,
    Refunded,
)


class Posting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`amount` (> 0, smallest units of the grant's unit) moves from the ledger account `debit` to `credit` of one grant.

    Ledger accounts are those of `book.LEDGER_ACCOUNTS`: a grant is fed from `issued` and `refunds`, and what it was fed lies
    in `left`, `held`, `spent` and `expired`.
    """

    grant: int
    debit: str
    credit: str
    amount: int


IsOpen = Callable[[int], bool]
"""Whether a grant (number) is still open just before the event: into a closed one nothing returns, it expires."""


def postings(event: AnyEvent, is_open: IsOpen) -> list[Posting]:
    """The entries of one event in order, without empty ones; none for an event that moves no amount."""
    match event:
        case GrantCreated():
            return _entry(event.grant, "issued", "left", event.amount)
        case GrantAdjusted():
            if event.delta < 0:
                return _entry(event.grant, "left", "issued", -event.delta)
            return _entry(event.grant, "issued", "left", event.delta)
        case GrantClosed():
            return _entry(event.grant, "left", "expired", event.amount)
        case HoldPlaced() | HoldExtended():
            return _reserved(event.lines)
        case HoldDrawn():
            return [Posting(grant, "held", "spent", amount) for grant, amount in _legs(event.spent)]
        case HoldClosed():
            spent = [Posting(grant, "held", "spent", amount) for grant, amount in _legs(event.spent)]
            return spent + _returned(event.released, "held", is_open)
        case Refunded():
            return _returned(event.legs, "refunds", is_open)
        case _:
            return []


def cause(event: AnyEvent) -> str:
    """Why the amounts of a ledger event moved, as a statement names it; empty for other events."""
    match event:
        case GrantCreated():
            return "grant"
        case GrantAdjusted():
            return "adjust"
        case HoldPlaced():
            return "hold"
        case HoldExtended():
            return "extend"
        case HoldDrawn():
            return "draw"
        case GrantClosed() | HoldClosed():
            return event.trigger
        case Refunded():
            return f"refund: {event.cause}" if event.cause else "refund"
        case _:
            return ""


def _entry(grant: int, debit: str, credit: str, amount: int) -> list[Posting]:
    return [Posting(grant, debit, credit, amount)] if amount else []


def _reserved(lines: tuple[Line, ...]) -> list[Posting]:
    return [Posting(grant, "left", "held", amount) for line in lines for grant, amount in _legs(line.legs)]


def _returned(legs: tuple[int, ...], source: str, is_open: IsOpen) -> list[Posting]:
    return [
        Posting(grant, source, "left" if is_open(grant) else "expired", amount)
        for grant, amount in _legs(legs)
    ]


def _legs(flat: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(grant, amount) of a flat tuple, empty amounts left out."""
    return ((flat[at], flat[at + 1]) for at in range(0, len(flat), 2) if flat[at + 1])
