"""Witness: looks at the hub through the Python client, as one of the demo's stored logins, so that nothing is taken on trust."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from mintyard.credentials import CredentialStore
from mintyard.domain.units import Unit
from mintyard.sdk import Hub
from mintyard.sdk.address import address
from mintyard.wire.accounts import Balance
from mintyard.wire.submissions import Receipt

if TYPE_CHECKING:
    from mintyard.demo.console import Console


class Witness:
    """A context; `hub` is the client. `login` is the name of a stored login."""

    def __init__(self, console: Console, login: str) -> None:
        environment = console.environment
        store = CredentialStore(environment=environment)
        found = address(context=login, environment=environment, store=store)
        self.hub = Hub(address_found=found)

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None:
        self.hub.close()

    def balance(self, account: str) -> dict[str, Decimal]:
        """The account's money: granted, refunded, left, held, spent, expired; exact."""
        found = next(one for one in self.hub.accounts.show(account).balances if one.unit is Unit.MONEY)
        names = [name for name in Balance.__struct_fields__ if name != "unit"]
        return {name: Decimal(getattr(found, name)) for name in names}


def paid(receipts: list[Receipt], account: str) -> Decimal:
    """What `account` paid for the jobs of `receipts`, refunds deducted."""
    charges = (
        Decimal(charge.amount) - Decimal(charge.refunded)
        for receipt in receipts
        for attempt in receipt.receipts
        for charge in attempt.charges
        if charge.account == account
    )
    return sum(charges, Decimal(0))
