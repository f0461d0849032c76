"""Recovery: the state as the store has it, from the newest usable snapshot and the records after it.

The chain is verified on the way, record by record before it is folded, up to the store's head; what doesn't verify is
never led. Folding applies outcomes only: nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b

import msgspec
import structlog

from mintyard.app.journal import Checkpoint, stream, verify
from mintyard.app.record import decode_body
from mintyard.domain import hub, snapshot
from mintyard.domain.errors import MintyardError, VerificationFailed
from mintyard.domain.state import State
from mintyard.ports.store import Record, Snapshot, Store

_log = structlog.get_logger(__name__)


class Recovered(msgspec.Struct, frozen=True):
    """`head` is the last record, None for an empty journal; `folded` counts the records after `snapshot_seq`."""

    state: State
    head: Record | None
    snapshot_seq: int
    folded: int


def fold(state: State, record: Record) -> None:
    """Apply one verified record; `VerificationFailed` when its events don't fit the state."""
    body = decode_body(record)
    try:
        hub.begin(state, record.seq, record.now)
        for event in body.events:
            hub.apply(state, event)
    except (MintyardError, LookupError, ValueError, TypeError, AttributeError) as error:
        why = f"its events don't fit the state before it ({type(error).__name__}: {error})"
        raise VerificationFailed(seq=record.seq, why=why) from error


def recover(store: Store, beat: Callable[[], None] = lambda: None) -> Recovered:
    """The state at the store's head. `beat` is called now and then (a leader renews its lease by it).

    Raises `VerificationFailed`, `StoreUnavailable`, `StoreCorrupt`. Nobody else may append meanwhile."""
    head = store.head()
    kept = store.load_snapshot(snapshot.SCHEMA)
    state, start = from_snapshot(store, kept) if kept is not None else (State(), None)
    beat()
    folded = 0

    def folding() -> Iterator[Record]:
        nonlocal folded
        for record in stream(store, start.seq if start else 0):
            yield record  # verified before the next one is asked for
            fold(state, record)
            folded += 1
            if folded % 256 == 0:
                beat()

    report = verify(folding(), Checkpoint(head.seq, head.chain) if head else None, start=start)
    last = head.seq if head else 0
    if report.last_seq != last:
        raise VerificationFailed(
            seq=last + 1, why=f"the head is {last}, but records go on to {report.last_seq}"
        )
    return Recovered(state, head, start.seq if start else 0, folded)


def from_snapshot(store: Store, kept: Snapshot) -> tuple[State, Checkpoint | None]:
    """The snapshot's state, or an empty one when the snapshot isn't what it says: the journal has everything."""
    why = _fault(store, kept)
    if not why:
        try:
            return snapshot.decode(kept.body, kept.schema), Checkpoint(kept.seq, kept.chain)
        except (MintyardError, msgspec.DecodeError, LookupError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
    _log.warning("snapshot not used; folding the whole journal", seq=kept.seq, why=why)
    return State(), None


def _fault(store: Store, kept: Snapshot) -> str:
    if kept.seq == 0:
        return "it is of no record"
    if kept.schema == snapshot.SCHEMA and blake2b(kept.body, digest_size=32).digest() != kept.state_hash:
        return "its state hash differs"
    record = next(iter(store.read(kept.seq - 1, 1)), None)
    if record is None or record.seq != kept.seq or record.chain != kept.chain:
        return "the journal has another chain there"
    return ""
