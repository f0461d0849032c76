"""Queues, their quotas and limits on accounts (S10)."""

from __future__ import annotations

from collections.abc import Iterable

from mintyard.sdk.aio.connection import AsyncConnection
from mintyard.sdk.aio.listing import AsyncListing
from mintyard.sdk.request import get, post, segment
from mintyard.wire.pages import Change, Page
from mintyard.wire.queues import AccountLimit, Limits, Queue, SetQueue

NO_LIMITS = Limits()


class AsyncQueues:
    """Queues with quotas, and what accounts may have running at once."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    def list(self) -> AsyncListing[Queue]:
        """All queues by name, and how they stand."""
        return AsyncListing(self._connection, "/queues", Page[Queue], {}, paged=False)

    async def show(self, queue: str) -> Queue:
        return await self._connection.send(get(f"/queues/{segment(queue)}", Queue))

    async def set(
        self,
        queue: str,
        *,
        parent: str = "",
        nominal: Limits = NO_LIMITS,
        borrowing: Limits = NO_LIMITS,
        lending: Limits = NO_LIMITS,
        accounts: Iterable[str] = (),
        accepts: bool = True,
        starts: bool = True,
        key: str = "",
    ) -> Change:
        """Make a queue, or change all of one. With no account named, everybody may submit."""
        body = SetQueue(
            queue=queue,
            parent=parent,
            nominal=nominal,
            borrowing=borrowing,
            lending=lending,
            accounts=tuple(accounts),
            accepts=accepts,
            starts=starts,
        )
        return await self._connection.send(post("/queues", Change, body, key=key))

    async def remove(self, queue: str, *, key: str = "") -> Change:
        """Remove a queue that has no jobs and none below it."""
        return await self._connection.send(post(f"/queues/{segment(queue)}/remove", Change, key=key))

    def limits(self) -> AsyncListing[AccountLimit]:
        """Limits on what accounts may have running at once."""
        return AsyncListing(self._connection, "/limits", Page[AccountLimit], {}, paged=False)

    async def limit(self, account: str, limits: Limits, *, key: str = "") -> Change:
        """Limit what an account and all below it may have running at once; empty limits take it away."""
        path = f"/accounts/{segment(account)}/limits"
        return await self._connection.send(post(path, Change, limits, key=key))
