"""Accounts and grants on the wire (L1, L2)."""

from __future__ import annotations

from typing import Literal

import msgspec

from mintyard.domain.limits import DEFAULT_PRIORITY
from mintyard.domain.units import Unit
from mintyard.wire.bounds import AccountId, Amount, AmountOut, Instant, Note, Number, Priority


class OpenAccount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Open an account below one that exists."""

    account: AccountId


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over an account's own grants of one unit: granted + refunded = left + held + spent + expired."""

    unit: Unit
    granted: AmountOut
    refunded: AmountOut
    left: AmountOut
    held: AmountOut
    spent: AmountOut
    expired: AmountOut


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """An account. `parent` is None for the hub itself; `balances` has the units that were ever granted to it."""

    account: str
    parent: str | None
    state: Literal["active", "suspended", "closed"]
    balances: tuple[Balance, ...] = ()
    opened_at: str | None = None


class CreateGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Give an amount of one unit to an account. A lower `priority` is used up first; without `expires_at` it never ends."""

    account: AccountId
    unit: Unit
    amount: Amount
    priority: Priority = DEFAULT_PRIORITY
    starts_at: Instant | None = None
    expires_at: Instant | None = None
    note: Note = ""


class AdjustGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add to a grant or take back of what is left (one of both); None leaves priority or expiry as it is."""

    add: Amount | None = None
    take_back: Amount | None = None
    priority: Priority | None = None
    expires_at: Instant | None = None


class RefundGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Give back to a grant, at most what was spent from it."""

    amount: Amount
    cause: Note = "goodwill"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A grant with where its amount is now."""

    grant: Number
    account: str
    unit: Unit
    state: Literal["active", "expired", "ended"]
    priority: int
    granted: AmountOut
    refunded: AmountOut
    left: AmountOut
    held: AmountOut
    spent: AmountOut
    expired: AmountOut
    starts_at: str | None = None
    expires_at: str | None = None
    created_at: str | None = None
    closed_at: str | None = None
    note: str = ""
