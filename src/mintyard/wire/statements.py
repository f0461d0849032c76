"""Statements and the journal's head on the wire (L8): what an account was given and has used within a time."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mintyard.domain.units import Unit
from mintyard.wire.bounds import AmountOut


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One movement at an account: `kind` is grant, adjust, spend, refund, expire; `amount` is what it added (or took, with a
    minus) in `unit`; `ref` names the grant, job or hold."""

    at: str
    seq: int
    account: str
    kind: str
    unit: Unit
    amount: AmountOut
    grant: int | None = None
    job: int | None = None
    hold: int | None = None
    note: str = ""


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one unit over the statement's time and subtree."""

    unit: Unit
    granted: AmountOut
    spent: AmountOut
    refunded: AmountOut
    expired: AmountOut


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """What an account and those below it were given and used from `starts_at` (inclusive) to `ends_at` (exclusive)."""

    account: str
    starts_at: str
    ends_at: str
    currency: str
    totals: tuple[Total, ...]
    items: tuple[Entry, ...]
    next: str | None = None
    seq: int = 0


class JournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """The last record read here. `chain` is its hash over everything before it: kept elsewhere, it shows a cut or swapped
    journal."""

    seq: int
    term: int
    at: str | None
    chain: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change in the caller's subtree, as the watch stream carries it. `id` (record and place in it) is the SSE id to
    resume after; `kind` names the event, `data` has its fields."""

    id: str
    at: str
    kind: str
    account: str
    data: dict[str, Any]
    job: int | None = None
