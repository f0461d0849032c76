"""Queues, their quotas and limits on accounts (S10)."""

from __future__ import annotations

from collections.abc import Iterable

from mintyard.sdk.request import get, post, segment
from mintyard.sdk.sync.connection import Connection
from mintyard.sdk.sync.listing import Listing
from mintyard.wire.pages import Change, Page
from mintyard.wire.queues import AccountLimit, Limits, Queue, SetQueue

NO_LIMITS = Limits()


class Queues:
    """Queues with quotas, and what accounts may have running at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Listing[Queue]:
        """All queues by name, and how they stand."""
        return Listing(self._connection, "/queues", Page[Queue], {}, paged=False)

    def show(self, queue: str) -> Queue:
        return self._connection.send(get(f"/queues/{segment(queue)}", Queue))

    def set(
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
        return self._connection.send(post("/queues", Change, body, key=key))

    def remove(self, queue: str, *, key: str = "") -> Change:
        """Remove a queue that has no jobs and none below it."""
        return self._connection.send(post(f"/queues/{segment(queue)}/remove", Change, key=key))

    def limits(self) -> Listing[AccountLimit]:
        """Limits on what accounts may have running at once."""
        return Listing(self._connection, "/limits", Page[AccountLimit], {}, paged=False)

    def limit(self, account: str, limits: Limits, *, key: str = "") -> Change:
        """Limit what an account and all below it may have running at once; empty limits take it away."""
        path = f"/accounts/{segment(account)}/limits"
        return self._connection.send(post(path, Change, limits, key=key))
