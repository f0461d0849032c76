"""Accounts, grants and statements (L1, L2, L8)."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from mintyard.domain.limits import DEFAULT_PRIORITY
from mintyard.domain.units import Unit
from mintyard.sdk.aio.connection import AsyncConnection
from mintyard.sdk.aio.listing import AsyncListing
from mintyard.sdk.request import amount, get, instant, post, segment
from mintyard.wire.accounts import Account, AdjustGrant, CreateGrant, Grant, OpenAccount, RefundGrant
from mintyard.wire.pages import Change, Page

Quantity = str | int | float | Decimal
"""An amount in the unit people write; text is exact."""


class AsyncAccounts:
    """The token's account and those below it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def open(self, account: str, *, key: str = "") -> Change:
        """Open an account below one that exists. `AlreadyExists`."""
        return await self._connection.send(post("/accounts", Change, OpenAccount(account=account), key=key))

    def list(self, *, below: str = "", state: str = "") -> AsyncListing[Account]:
        """Accounts with their balances, each before those below it."""
        return AsyncListing(self._connection, "/accounts", Page[Account], {"below": below, "state": state})

    async def show(self, account: str) -> Account:
        return await self._connection.send(get(f"/accounts/{segment(account)}", Account))

    async def _move(self, account: str, trigger: str, key: str) -> Change:
        return await self._connection.send(post(f"/accounts/{segment(account)}/{trigger}", Change, key=key))

    async def suspend(self, account: str, *, key: str = "") -> Change:
        """Suspend an account and those below it."""
        return await self._move(account, "suspend", key)

    async def resume(self, account: str, *, key: str = "") -> Change:
        return await self._move(account, "resume", key)

    async def close(self, account: str, *, key: str = "") -> Change:
        """Close an account for good."""
        return await self._move(account, "close", key)


class AsyncGrants:
    """What accounts may spend."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(
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
        return await self._connection.send(post("/grants", Change, body, key=key))

    def list(self, *, account: str = "", unit: Unit | str = "", state: str = "") -> AsyncListing[Grant]:
        query = {"account": account, "unit": str(unit), "state": state}
        return AsyncListing(self._connection, "/grants", Page[Grant], query)

    async def show(self, grant: int) -> Grant:
        return await self._connection.send(get(f"/grants/{segment(grant)}", Grant))

    async def adjust(
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
        return await self._connection.send(post(f"/grants/{segment(grant)}/adjust", Change, body, key=key))

    async def end(self, grant: int, *, key: str = "") -> Change:
        """End a grant now: what is left expires."""
        return await self._connection.send(post(f"/grants/{segment(grant)}/end", Change, key=key))

    async def refund(
        self, grant: int, amount_back: Quantity, cause: str = "goodwill", *, key: str = ""
    ) -> Change:
        """Give back to a grant, at most what was spent from it."""
        body = RefundGrant(amount=amount(amount_back), cause=cause)
        return await self._connection.send(post(f"/grants/{segment(grant)}/refund", Change, body, key=key))
