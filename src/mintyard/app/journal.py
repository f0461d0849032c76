"""Journal: the hash chain over records, how one is made and how a run of them is verified.

Here is the only place that computes a chain. What a body means is the core's affair, where records lie the store's;
neither may enter. A chain shows any change inside it; that its tail was cut shows only against a head known from
elsewhere (the store's head row, a snapshot, a projector's cursor, a checkpoint kept off the machine).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from mintyard.domain.errors import InvariantBroken, VerificationFailed
from mintyard.domain.limits import MAX_RECORD_BYTES
from mintyard.ports.store import Record, Store

CHAIN_BYTES: Final = 32
GENESIS: Final = blake2b(b"mintyard journal, genesis, version 1", digest_size=CHAIN_BYTES).digest()
"""The chain before record 1; its text keeps these chains apart from those of any other program or version."""

_HEADER: Final = struct.Struct(">QQQQ")
_MAX_FIELD: Final = 2**63 - 1
"""The stores keep signed 64-bit integers."""
_READ_RECORDS: Final = 1_000
_ANY_SCHEMA: Final = 2**31 - 1


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """A record known by number and chain from another source than the records themselves."""

    seq: int
    chain: bytes


class VerifyReport(msgspec.Struct, frozen=True):
    """What was verified: `records` many, the last being `last_seq` with `chain`; `body_bytes` is the sum of bodies."""

    records: int
    first_seq: int
    last_seq: int
    chain: bytes
    last_term: int
    last_now: int
    body_bytes: int


def chain_of(prev_chain: bytes, seq: int, term: int, now: int, format: int, body: bytes) -> bytes:
    """BLAKE2b-256 (RFC 7693) of the previous chain, the header as four big-endian 64-bit integers, and the body."""
    state = blake2b(prev_chain, digest_size=CHAIN_BYTES)
    state.update(_HEADER.pack(seq, term, now, format))
    state.update(body)
    return state.digest()


def make_record(prev: Record | None, term: int, now: int, format: int, body: bytes) -> Record:
    """The record after `prev` (None: the first). `InvariantBroken` when a field is out of range or goes back."""
    seq = prev.seq + 1 if prev else 1
    why = _fault(seq, term, now, format, body)
    if why is None and prev is not None:
        why = _regress(prev.term, prev.now, term, now)
    if why is not None:
        raise InvariantBroken(why=f"record {seq}: {why}")
    return Record(
        seq, term, now, format, chain_of(prev.chain if prev else GENESIS, seq, term, now, format, body), body
    )


def verify(
    records: Iterable[Record],
    expected_head: Checkpoint | None = None,
    *,
    start: Checkpoint | None = None,
    known: Sequence[Checkpoint] = (),
) -> VerifyReport:
    """Check a run of records in constant memory; `VerificationFailed(seq, why)` names the first bad place.

    `start` is the trusted record before the run (None: the run begins at record 1). `expected_head` and `known` must
    be met on the way, so a cut tail is noticed up to the highest of them; records after it are welcome.
    """
    last = start or Checkpoint(0, GENESIS)
    first_seq, term, now, count, size = last.seq + 1, 0, 0, 0, 0
    awaited = _by_seq([*known, *([expected_head] if expected_head else [])], last)
    for record in records:
        _check_place(last.seq, record.seq)
        why = _fault(record.seq, record.term, record.now, record.format, record.body)
        if why is not None:
            raise VerificationFailed(seq=record.seq, why=why)
        expected = chain_of(last.chain, record.seq, record.term, record.now, record.format, record.body)
        if record.chain != expected:
            raise VerificationFailed(seq=record.seq, why="it or the record before it was altered or replaced")
        if (why := _regress(term, now, record.term, record.now)) is not None:
            raise VerificationFailed(seq=record.seq, why=why)
        if awaited.pop(record.seq, record.chain) != record.chain:
            raise VerificationFailed(
                seq=record.seq, why="its chain differs from the one known from elsewhere"
            )
        last = Checkpoint(record.seq, record.chain)
        term, now, count, size = record.term, record.now, count + 1, size + len(record.body)
    if awaited:
        why = f"the tail is cut: record {max(awaited)} is known, the journal ends at {last.seq}"
        raise VerificationFailed(seq=last.seq + 1, why=why)
    return VerifyReport(count, first_seq, last.seq, last.chain, term, now, size)


def stream(store: Store, after_seq: int = 0, batch: int = _READ_RECORDS) -> Iterator[Record]:
    """Every durable record after `after_seq`, read in batches, until the head at that time."""
    while records := store.read(after_seq, batch):
        yield from records
        after_seq = records[-1].seq


def checkpoints(store: Store) -> list[Checkpoint]:
    """What the store says beside its records: its head row and its newest snapshot. To be taken before the records are read."""
    known: list[Checkpoint] = []
    if (head := store.head()) is not None:
        known.append(Checkpoint(head.seq, head.chain))
    if (snapshot := store.load_snapshot(_ANY_SCHEMA)) is not None and snapshot.seq > 0:
        known.append(Checkpoint(snapshot.seq, snapshot.chain))
    return known


def verify_store(store: Store, expected_head: Checkpoint | None = None) -> VerifyReport:
    """Verify a whole journal against itself, the store's head row, its newest snapshot and `expected_head`.

    A journal that grows meanwhile is fine: the head is taken first.
    """
    return verify(stream(store), expected_head, known=checkpoints(store))


def _by_seq(known: Sequence[Checkpoint], start: Checkpoint) -> dict[int, bytes]:
    """Checkpoints still ahead of `start`, by record; two of one record, or one at the start, must agree."""
    chains = {start.seq: start.chain}
    for checkpoint in known:
        if chains.setdefault(checkpoint.seq, checkpoint.chain) != checkpoint.chain:
            raise VerificationFailed(seq=checkpoint.seq, why="two chains are known for it")
    return {seq: chain for seq, chain in chains.items() if seq > start.seq}


def _check_place(last_seq: int, seq: int) -> None:
    if seq == last_seq + 1:
        return
    if seq == last_seq:
        why = "it comes twice"
    elif seq < last_seq:
        why = f"it comes after record {last_seq}: reordered or duplicated"
    else:
        raise VerificationFailed(seq=last_seq + 1, why=f"records {last_seq + 1} to {seq - 1} are missing")
    raise VerificationFailed(seq=seq, why=why)


def _fault(seq: int, term: int, now: int, format: int, body: bytes) -> str | None:
    for name, value in (("seq", seq), ("term", term), ("now", now), ("format", format)):
        if not 0 <= value <= _MAX_FIELD:
            return f"{name} {value} is out of range"
    if len(body) > MAX_RECORD_BYTES:
        return f"its body has {len(body)} bytes, the limit is {MAX_RECORD_BYTES}"
    return None


def _regress(prev_term: int, prev_now: int, term: int, now: int) -> str | None:
    if term < prev_term:
        return f"term goes back from {prev_term} to {term}"
    if now < prev_now:
        return f"time goes back from {prev_now} to {now} ns"
    return None
