"""Leader: the right to write, on the store's side of the writer. One thread uses it.

The store's lease row decides who leads; each append carries the term, so a deposed leader can't write. Beyond that a leader
stops speaking by its own monotonic clock before its lease can have run out: `valid` counts from before each request to the
store, so it errs on the safe side whatever the store's clock does.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from mintyard.app.recovery import Recovered, recover
from mintyard.domain.errors import Fenced, MintyardError
from mintyard.ports.store import Lease, Record, Store

DEFAULT_LEASE_LIFE_MS: Final = 10_000
SILENCE_PARTS: Final = 10
"""A leader falls silent when a tenth of its lease is left."""
RENEW_PARTS: Final = 3


def holder_name() -> str:
    """A name for this process as holder of the lease: no two processes have the same one."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{os.urandom(4).hex()}"


class Leader:
    """Holds a store connection and the lease on it; every recovery starts from a fresh connection."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        holder: str = "",
        life_ms: int = DEFAULT_LEASE_LIFE_MS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holder = holder or holder_name()
        self.life_ms = life_ms
        self._open_store = open_store
        self._monotonic = monotonic
        self._store: Store | None = None
        self._lease: Lease | None = None
        self._until = 0.0

    @property
    def term(self) -> int:
        """The term led under, 0 when there is none."""
        return self._lease.term if self._lease else 0

    @property
    def valid(self) -> bool:
        """Whether this process may speak for the hub now."""
        return self._monotonic() < self._until

    @property
    def silent_in_s(self) -> float:
        """Seconds until `valid` ends, unless the lease is renewed."""
        return self._until - self._monotonic()

    @property
    def renew_every_s(self) -> float:
        return self.life_ms / 1_000 / RENEW_PARTS

    def regain(self) -> Recovered | None:
        """Take the lease on a fresh connection and recover the state; None while another process leads.

        Raises what opening, acquiring and recovering raise; nothing is led then."""
        self._let_go()
        self._store = store = self._open_store()
        asked_at = self._monotonic()
        lease = store.acquire(self.holder, self.life_ms)
        if lease is None:
            return None
        self._hold(lease, asked_at)
        try:
            return recover(store, self._beat)
        except MintyardError:
            self.release()
            raise

    def append(self, records: Sequence[Record]) -> int:
        """As the store's; `Fenced` as well when there is no lease."""
        store, lease = self._held()
        return store.append(lease.term, records)

    def renew(self) -> None:
        """Extend the lease; `Fenced` when another took it, `StoreUnavailable` leaves it as it is."""
        store, lease = self._held()
        asked_at = self._monotonic()
        try:
            self._hold(store.renew(lease, self.life_ms), asked_at)
        except Fenced:
            self._until = 0.0
            raise

    def release(self) -> None:
        """Give the lease up, so that a standby need not wait; a store that can't be reached lets it expire."""
        lease, self._lease, self._until = self._lease, None, 0.0
        if lease is not None and self._store is not None:
            with suppress(MintyardError):
                self._store.release(lease)

    def close(self) -> None:
        self.release()
        self._let_go()

    def _held(self) -> tuple[Store, Lease]:
        if self._store is None or self._lease is None:
            raise Fenced(term=0, current=0)
        return self._store, self._lease

    def _hold(self, lease: Lease, asked_at: float) -> None:
        self._lease = lease
        self._until = asked_at + self.life_ms / 1_000 * (1 - 1 / SILENCE_PARTS)

    def _beat(self) -> None:
        if self._lease is not None and self.silent_in_s < self.life_ms / 1_000 * (1 - 1 / RENEW_PARTS):
            self.renew()

    def _let_go(self) -> None:
        """Close the connection; the lease stays in the store, where `holder` may take it again under a new term."""
        store, self._store, self._lease, self._until = self._store, None, None, 0.0
        if store is not None:
            with suppress(MintyardError):
                store.close()
