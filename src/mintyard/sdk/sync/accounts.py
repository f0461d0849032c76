"""Accounts, grants and statements (L1, L2, L8)."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from mintyard.domain.limits import DEFAULT_PRIORITY
from mintyard.domain.units import Unit
from mintyard.sdk.request import amount, get, instant, post, segment
from mintyard.sdk.sync.connection import Connection
from mintyard.sdk.sync.listing import Listing
from mintyard.wire.accounts import Account, AdjustGrant, CreateGrant, Grant, OpenAccount, RefundGrant
from mintyard.wire.pages import Change, Page

Quantity = str | int | float | Decimal
"""An amount in the unit people write; text is exact."""


class Accounts:
    """The token's account and those below it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def open(self, account: str, *, key: str = "") -> Change:
        """Open an account below one that exists. `AlreadyExists`."""
        return self._connection.send(post("/accounts", Change, OpenAccount(account=account), key=key))

    def list(self, *, below: str = "", state: str = "") -> Listing[Account]:
        """Accounts with their balances, each before those below it."""
        return Listing(self._connection, "/accounts", Page[Account], {"below": below, "state": state})

    def show(self, account: str) -> Account:
        return self._connection.send(get(f"/accounts/{segment(account)}", Account))

    def _move(self, account: str, trigger: str, key: str) -> Change:
        return self._connection.send(post(f"/accounts/{segment(account)}/{trigger}", Change, key=key))

    def suspend(self, account: str, *, key: str = "") -> Change:
        """Suspend an account and those below it."""
        return self._move(account, "suspend", key)

    def resume(self, account: str, *, key: str = "") -> Change:
        return self._move(account, "resume", key)

    def close(self, account: str, *, key: str = "") -> Change:
        """Close an account for good."""
        return self._move(account, "close", key)


class Grants:
    """What accounts may spend."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self,
        account: str,
        unit: Unit | str,
        amount_given: Quantity,
        *,
        priority: int = DEFAULT_PRIORITY,
        starts_at: str | datetime | None = None,
        expires_at: str | datetime | None = None,
        note: str = "",
        key: str = "",
    ) -> Change:
        """Give an amount to an account below the token's own; a lower priority is used up first."""
        body = CreateGrant(
            account=account,
            unit=Unit(unit),
            amount=amount(amount_given, unit),
            priority=priority,
            starts_at=instant(starts_at, "starts_at"),
            expires_at=instant(expires_at, "expires_at"),
            note=note,
        )
        return self._connection.send(post("/grants", Change, body, key=key))

    def list(self, *, account: str = "", unit: Unit | str = "", state: str = "") -> Listing[Grant]:
        query = {"account": account, "unit": str(unit), "state": state}
        return Listing(self._connection, "/grants", Page[Grant], query)

    def show(self, grant: int) -> Grant:
        return self._connection.send(get(f"/grants/{segment(grant)}", Grant))

    def adjust(
        self,
        grant: int,
        *,
        add: Quantity | None = None,
        take_back: Quantity | None = None,
        priority: int | None = None,
        expires_at: str | datetime | None = None,
        key: str = "",
    ) -> Change:
        """Add to a grant, take back of what is left, change its priority or end."""
        body = AdjustGrant(
            add=None if add is None else amount(add),
            take_back=None if take_back is None else amount(take_back),
            priority=priority,
            expires_at=instant(expires_at, "expires_at"),
        )
        return self._connection.send(post(f"/grants/{segment(grant)}/adjust", Change, body, key=key))

    def end(self, grant: int, *, key: str = "") -> Change:
        """End a grant now: what is left expires."""
        return self._connection.send(post(f"/grants/{segment(grant)}/end", Change, key=key))

    def refund(self, grant: int, amount_back: Quantity, cause: str = "goodwill", *, key: str = "") -> Change:
        """Give back to a grant, at most what was spent from it."""
        body = RefundGrant(amount=amount(amount_back), cause=cause)
        return self._connection.send(post(f"/grants/{segment(grant)}/refund", Change, body, key=key))
