"""Store: keeps the journal, its snapshots and the lease that says who may append.

The store knows nothing of events: a record is a sealed body of bytes with the header that its hash covers. All methods
block and are called from one thread at a time for one leader; readers may use further connections of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One journal record, one tick: `chain` = BLAKE2b-256 over the previous record's chain, the header and the body."""

    seq: int
    term: int
    now: int
    format: int
    chain: bytes
    body: bytes


class Lease(msgspec.Struct, frozen=True):
    """The right to append under `term`, until `expires_in_ms` after it was granted by the store's own clock."""

    holder: str
    term: int
    expires_in_ms: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Encoded state after record `seq`, with that record's chain, the schema it is written in and the state hash."""

    seq: int
    chain: bytes
    schema: int
    state_hash: bytes
    body: bytes


class Store(Protocol):
    """Durable, fenced, append-only. Errors: `StoreUnavailable` (nothing was written), `CommitUnknown` (find out by
    reading the head on a fresh connection), `Fenced` (another term leads), `Conflict` family for a gap in `seq`."""

    def acquire(self, holder: str, life_ms: int) -> Lease | None:
        """Take the lease when it is free, expired or already `holder`'s, under a term one higher; None while another holds it."""
        ...

    def renew(self, lease: Lease, life_ms: int) -> Lease:
        """Extend it under the same term, or raise `Fenced`."""
        ...

    def release(self, lease: Lease) -> None:
        """Give it up; nothing happens when it is no longer ours."""
        ...

    def append(self, term: int, records: Sequence[Record]) -> int:
        """Write `records` (consecutive from head + 1) in one durable transaction, or none of them; the last `seq`.

        The term is compared with the lease row in the same transaction."""
        ...

    def head(self) -> Record | None:
        """The last durable record, None when there is none."""
        ...

    def read(self, after_seq: int, limit: int) -> list[Record]:
        """Durable records with seq > `after_seq` in order, at most `limit`; sealed segments included."""
        ...

    def seal(self, upto_seq: int) -> int:
        """Move records up to `upto_seq` into sealed, compressed, hash-named segments; how many records moved."""
        ...

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep it, and of the older ones the two newest."""
        ...

    def load_snapshot(self, max_schema: int) -> Snapshot | None:
        """The newest intact one with schema <= `max_schema`."""
        ...

    def close(self) -> None: ...
