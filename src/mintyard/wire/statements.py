"""Statements and the journal's head on the wire (L8): what an account was given and has used within a time."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mintyard.domain.units import Unit
from mintyard.wire.accounts import Balance
from mintyard.wire.bounds import AmountOut


class StatementLine(msgspec.Struct, frozen=True, kw_only=True):
    """One posting: `amount` moved from `debit` to `credit` for `cause`; `left`, `held` and `spent` are the
    account's after it."""

    seq: int
    ordinal: int
    at: str
    cause: str
    debit: str
    credit: str
    amount: AmountOut
    left: AmountOut
    held: AmountOut
    spent: AmountOut
    grant: int | None = None
    hold: int | None = None
    job: int | None = None
    attempt: int | None = None


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """What moved at one account in one unit in [`since`, `until`), with the balance before the first line shown
    and after the last. `next` is the cursor of the following page, whose `opening` is this page's `closing`."""

    account: str
    unit: Unit
    opening: Balance
    lines: tuple[StatementLine, ...]
    closing: Balance
    since: str | None = None
    until: str | None = None
    next: str | None = None
    seq: int = 0


class JournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """The last record read here. `chain` is its hash over everything before it: kept elsewhere, it shows a cut
    or swapped journal."""

    seq: int
    term: int
    at: str | None
    chain: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change in the caller's subtree, as the watch stream carries it. `id` (record and place in it) is the
    SSE id to resume after; `kind` names the event, `data` has its fields."""

    id: str
    at: str
    kind: str
    account: str
    data: dict[str, Any]
    job: int | None = None
