"""Holds and escrows on the wire (L3): amounts reserved for something that is not a job, or given to a holder to
spend."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mintyard.domain.limits import DEFAULT_HOLD_LIFE_MS, MAX_ESCROW_LIFE_MS
from mintyard.domain.units import Unit
from mintyard.wire.bounds import AccountId, Amount, AmountOut, Note

Amounts = Annotated[
    dict[Unit, Amount],
    Meta(max_length=len(Unit), description="Decimal string per unit.", examples=[{"money": "2.5"}]),
]


class PlaceHold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold amounts at an account, the caller's own when none is given. With a `holder` it is an escrow: a slice
    that the holder spends without asking and reports in sums. It ends by itself after `life_ms`."""

    amounts: Annotated[Amounts, Meta(min_length=1)]
    account: AccountId | None = None
    life_ms: Annotated[int, Meta(ge=1, le=MAX_ESCROW_LIFE_MS)] = DEFAULT_HOLD_LIFE_MS
    holder: Note = ""
    note: Note = ""


class ExtendHold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add amounts, or let it live `life_ms` from now; None leaves the end as it is."""

    amounts: Amounts = {}
    life_ms: Annotated[int, Meta(ge=1, le=MAX_ESCROW_LIFE_MS)] | None = None


class DrawHold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the holder has spent so far, in total since it was placed: late and repeated reports do no harm."""

    spent: Annotated[Amounts, Meta(min_length=1)]


class SettleHold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replace the hold by what was used in total; the rest is released."""

    used: Amounts


class HoldLine(msgspec.Struct, frozen=True, kw_only=True):
    """An amount held at one account; `resources` names what of a job it pays for, nothing when it isn't a
    job's."""

    account: str
    unit: Unit
    amount: AmountOut
    resources: tuple[Unit, ...] = ()


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A hold. `lines` are the amounts held at the caller's account and below; `drawn` is what an escrow's
    holder has reported so far, `used` what the hold was settled on; `job` is set for a job's own hold."""

    hold: int
    account: str
    state: Literal["held", "settled", "voided", "expired"]
    lines: tuple[HoldLine, ...]
    drawn: dict[Unit, AmountOut] = {}
    used: dict[Unit, AmountOut] = {}
    holder: str = ""
    note: str = ""
    job: int | None = None
    attempt: int | None = None
    placed_at: str | None = None
    expires_at: str | None = None
    closed_at: str | None = None
