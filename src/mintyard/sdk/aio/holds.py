"""Holds and escrows, nodes and prices (L3, L5, L8, U12)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from mintyard.domain.limits import DEFAULT_HOLD_LIFE_MS
from mintyard.domain.units import Unit
from mintyard.sdk.aio.accounts import Quantity
from mintyard.sdk.aio.connection import AsyncConnection
from mintyard.sdk.aio.listing import AsyncListing
from mintyard.sdk.request import amount, amounts, get, instant, post, segment
from mintyard.sdk.submission import milliseconds
from mintyard.wire.holds import DrawHold, ExtendHold, Hold, PlaceHold, SettleHold
from mintyard.wire.nodes import ControlNode, Node, PriceBook, SetPrices
from mintyard.wire.pages import Change, Page

Amounts = Mapping[Unit | str, Quantity]
Life = str | float | timedelta
"""`"1h"`, or seconds."""


class AsyncHolds:
    """Amounts set aside for something that is not a job; with a holder an escrow."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def place(
        self,
        held: Amounts,
        *,
        account: str = "",
        life: Life | None = None,
        holder: str = "",
        note: str = "",
        key: str = "",
    ) -> Change:
        """Hold amounts at an account (empty: the token's own) for `life`, an hour by default."""
        body = PlaceHold(
            amounts=amounts(held),
            account=account or None,
            life_ms=DEFAULT_HOLD_LIFE_MS if life is None else milliseconds(life, "life"),
            holder=holder,
            note=note,
        )
        return await self._connection.send(post("/holds", Change, body, key=key))

    def list(self, *, account: str = "", state: str = "", job: int | None = None) -> AsyncListing[Hold]:
        """Open holds; with `state="any"` closed ones as well, with `job=0` those that are not a job's."""
        return AsyncListing(
            self._connection, "/holds", Page[Hold], {"account": account, "state": state, "job": job}
        )

    async def show(self, hold: int) -> Hold:
        return await self._connection.send(get(f"/holds/{segment(hold)}", Hold))

    async def extend(
        self, hold: int, added: Amounts | None = None, *, life: Life | None = None, key: str = ""
    ) -> Change:
        """Add amounts, or let it live `life` from now."""
        body = ExtendHold(
            amounts=amounts(added or {}), life_ms=None if life is None else milliseconds(life, "life")
        )
        return await self._connection.send(post(f"/holds/{segment(hold)}/extend", Change, body, key=key))

    async def draw(self, hold: int, spent: Amounts, *, key: str = "") -> Change:
        """Report what an escrow's holder has spent in total so far."""
        body = DrawHold(spent=amounts(spent))
        return await self._connection.send(post(f"/holds/{segment(hold)}/draw", Change, body, key=key))

    async def settle(self, hold: int, used: Amounts, *, key: str = "") -> Change:
        """Replace the hold by what was used; the rest is released."""
        body = SettleHold(used=amounts(used))
        return await self._connection.send(post(f"/holds/{segment(hold)}/settle", Change, body, key=key))

    async def void(self, hold: int, *, key: str = "") -> Change:
        """Release a hold; what an escrow has drawn stays spent."""
        return await self._connection.send(post(f"/holds/{segment(hold)}/void", Change, key=key))


class AsyncNodes:
    """Nodes, and whether they take work."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    def list(self, *, state: str = "", engine: str = "") -> AsyncListing[Node]:
        return AsyncListing(self._connection, "/nodes", Page[Node], {"state": state, "engine": engine})

    async def show(self, node: str) -> Node:
        return await self._connection.send(get(f"/nodes/{segment(node)}", Node))

    async def _control(self, node: str, verb: str, reason: str, key: str) -> Change:
        path = f"/nodes/{segment(node)}/{verb}"
        return await self._connection.send(post(path, Change, ControlNode(reason=reason), key=key))

    async def cordon(self, node: str, reason: str = "", *, key: str = "") -> Change:
        """Take no new work on a node."""
        return await self._control(node, "cordon", reason, key)

    async def uncordon(self, node: str, reason: str = "", *, key: str = "") -> Change:
        """Take work on a node again."""
        return await self._control(node, "uncordon", reason, key)

    async def drain(self, node: str, reason: str = "", *, key: str = "") -> Change:
        """Let a node run empty."""
        return await self._control(node, "drain", reason, key)

    async def remove(self, node: str, reason: str = "", *, key: str = "") -> Change:
        """Forget a node that runs nothing."""
        return await self._control(node, "remove", reason, key)


class AsyncPrices:
    """Price books, the present one and those to come."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    def list(self) -> AsyncListing[PriceBook]:
        """All books, oldest first; the one that jobs are priced by now has `in_force`."""
        return AsyncListing(self._connection, "/prices", Page[PriceBook], {}, paged=False)

    async def set(
        self,
        *,
        gpu: Quantity = "5",
        cpu: Quantity = "0.1",
        memory: Quantity = "0.05",
        storage: Quantity = "0.02",
        gpu_models: Mapping[str, Quantity] | None = None,
        effective_from: str | datetime | None = None,
        key: str = "",
    ) -> Change:
        """Set money per hour of a GPU, a core, a GB of memory and a TB of storage, for jobs admitted from then on."""
        body = SetPrices(
            gpu=amount(gpu, Unit.MONEY),
            cpu=amount(cpu, Unit.MONEY),
            memory=amount(memory, Unit.MONEY),
            storage=amount(storage, Unit.MONEY),
            gpu_models={model: amount(rate, Unit.MONEY) for model, rate in (gpu_models or {}).items()},
            effective_from=instant(effective_from, "effective_from"),
        )
        return await self._connection.send(post("/prices", Change, body, key=key))
