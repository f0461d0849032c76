"""Rules that every store adapter keeps alike: what may be appended, what a read may return, what a refusal says.

Pure checks without I/O. The hash chain is not checked here: that is the journal's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from mintyard.domain.errors import (
    Conflict,
    Fenced,
    InvalidRequest,
    InvariantBroken,
    JournalGap,
    MintyardError,
    TooLarge,
    VerificationFailed,
)
from mintyard.domain.ids import check_name
from mintyard.domain.limits import (
    MAX_APPEND_BYTES,
    MAX_LEASE_LIFE_MS,
    MAX_READ_BYTES,
    MAX_RECORD_BYTES,
    MAX_RECORDS_PER_APPEND,
    MAX_SNAPSHOT_BYTES,
)
from mintyard.ports.store import Record, Snapshot

HASH_BYTES: Final = 32
MAX_FIELD: Final = 2**63 - 1
MAX_READ_RECORDS: Final = 65_536


class Leader(msgspec.Struct, frozen=True):
    """The one row that lease and head share, so that one update checks the fence and moves the head.

    `holder` is empty when the lease was given up; `head_chain` is empty before the first record.
    """

    holder: str
    term: int
    head_seq: int
    head_chain: bytes


def check_lease(holder: str, life_ms: int) -> None:
    """`InvalidName` or `InvalidRequest` for a holder or life that can't be."""
    check_name("lease holder", holder)
    if not 0 < life_ms <= MAX_LEASE_LIFE_MS:
        raise InvalidRequest(why=f"a lease lives 1 to {MAX_LEASE_LIFE_MS} ms, not {life_ms}")


def check_append(term: int, records: Sequence[Record]) -> None:
    """Refuse before anything is written: a gap inside the batch, a later term than the leader's, sizes, ranges."""
    if len(records) > MAX_RECORDS_PER_APPEND:
        raise TooLarge(
            what="an append", size=f"{len(records)} records", limit=f"{MAX_RECORDS_PER_APPEND} records"
        )
    total = 0
    for place, record in enumerate(records):
        expected = records[0].seq + place
        if record.seq != expected:
            raise JournalGap(expected=expected, given=record.seq)
        if not (
            0 < record.seq <= MAX_FIELD and 0 <= record.now <= MAX_FIELD and 0 <= record.format <= MAX_FIELD
        ):
            raise InvariantBroken(why=f"record {record.seq} has a header out of range")
        if not 0 <= record.term <= term:
            raise InvariantBroken(why=f"record {record.seq} has term {record.term}, its leader has {term}")
        if len(record.chain) != HASH_BYTES:
            raise InvariantBroken(why=f"record {record.seq} has a chain of {len(record.chain)} bytes")
        if len(record.body) > MAX_RECORD_BYTES:
            raise TooLarge(
                what="a record", size=f"{len(record.body)} bytes", limit=f"{MAX_RECORD_BYTES} bytes"
            )
        total += len(record.body)
    if total > MAX_APPEND_BYTES:
        raise TooLarge(what="an append", size=f"{total} bytes", limit=f"{MAX_APPEND_BYTES} bytes")


def refusal(term: int, first_seq: int | None, leader: Leader) -> Conflict | None:
    """Why `leader` doesn't allow an append of `first_seq` (None: of nothing) under `term`; None when it does."""
    if leader.term != term or not leader.holder:
        return Fenced(term=term, current=leader.term)
    if first_seq is not None and first_seq != leader.head_seq + 1:
        return JournalGap(expected=leader.head_seq + 1, given=first_seq)
    return None


def check_read(after_seq: int, limit: int) -> int:
    """The number of records to return at most; `InvalidRequest` for what can't be."""
    if not 0 <= after_seq <= MAX_FIELD or limit < 1:
        raise InvalidRequest(why=f"can't read {limit} records after {after_seq}")
    return min(limit, MAX_READ_RECORDS)


def gather(after_seq: int, limit: int, records: Iterable[Record], head_seq: int) -> list[Record]:
    """The records after `after_seq` within `limit` and `MAX_READ_BYTES`, at least one when there is one.

    A record that lies both in a segment and as a row is given once. `VerificationFailed` for a gap, and when the
    records end before `head_seq`, which the head row knows: nobody is handed a journal with a hole or a cut tail.
    """
    taken: list[Record] = []
    last, size = after_seq, 0
    for record in records:
        if record.seq <= last:
            continue
        if record.seq != last + 1:
            raise VerificationFailed(seq=last + 1, why=f"records {last + 1} to {record.seq - 1} are missing")
        taken.append(record)
        last, size = record.seq, size + len(record.body)
        if len(taken) == limit or size >= MAX_READ_BYTES:
            return taken
    if last < head_seq:
        raise cut_tail(last, head_seq)
    return taken


def check_head(record: Record, leader: Leader) -> Record:
    """`record` when it is the one the head row names."""
    if record.seq != leader.head_seq or record.chain != leader.head_chain:
        raise VerificationFailed(
            seq=leader.head_seq, why="the last record is not the one that the head row names"
        )
    return record


def cut_tail(last_seq: int, known_seq: int) -> MintyardError:
    why = f"the tail is cut: record {known_seq} was durable, the journal ends at {last_seq}"
    return VerificationFailed(seq=last_seq + 1, why=why)


def check_snapshot(snapshot: Snapshot, head_seq: int) -> None:
    """Refuse one that is malformed, too large or ahead of the journal."""
    if not (0 <= snapshot.seq <= MAX_FIELD and 0 <= snapshot.schema < 2**31):
        raise InvariantBroken(why="a snapshot's seq or schema is out of range")
    if len(snapshot.body) > MAX_SNAPSHOT_BYTES:
        raise TooLarge(
            what="a snapshot", size=f"{len(snapshot.body)} bytes", limit=f"{MAX_SNAPSHOT_BYTES} bytes"
        )
    if snapshot.seq > head_seq:
        raise InvariantBroken(
            why=f"a snapshot of record {snapshot.seq} is ahead of the journal, which ends at {head_seq}"
        )


def snapshot_digest(snapshot: Snapshot) -> bytes:
    """BLAKE2b-256 over every field, each variable one with its length before it."""
    state = blake2b(digest_size=HASH_BYTES, person=b"mintyard-snap-1")
    state.update(b"%d:%d:" % (snapshot.seq, snapshot.schema))
    for part in (snapshot.chain, snapshot.state_hash, snapshot.body):
        state.update(b"%d:" % len(part))
        state.update(part)
    return state.digest()


def newest_intact(candidates: Iterable[tuple[Snapshot | None, bytes]]) -> Snapshot | None:
    """The first of `candidates` (newest first, each with the digest it was kept under) that is whole."""
    for snapshot, digest in candidates:
        if snapshot is not None and snapshot_digest(snapshot) == digest:
            return snapshot
    return None


def check_covered(snapshot: Snapshot | None, head_seq: int) -> Snapshot | None:
    """`snapshot`, unless it is ahead of the journal: then the journal has lost its tail (`VerificationFailed`)."""
    if snapshot is not None and snapshot.seq > head_seq:
        raise cut_tail(head_seq, snapshot.seq)
    return snapshot
