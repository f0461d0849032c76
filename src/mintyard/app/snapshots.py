"""Snapshots, made by a tailer so that the writer never stops for one; and the sealing of journal segments behind them.

A snapshot is the state's canonical bytes with the schema they are written in and the hash of the state, never a pickle. It is
good only once it was read back from the store and gives the same bytes again; until then nothing is sealed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import msgspec
import structlog

from mintyard.app.replica import Replica
from mintyard.app.tailer import Tailer
from mintyard.domain import snapshot
from mintyard.domain.errors import InvariantBroken, Unavailable
from mintyard.domain.limits import MAX_SNAPSHOT_BYTES, SNAPSHOTS_KEPT
from mintyard.ports.store import Snapshot, Store

_log = structlog.get_logger(__name__)
_RESTART_PAUSE_S: Final = 1.0


class SnapshotRules(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot is due after `every_records` records, or after `every_s` seconds when at least one has come."""

    every_records: int = 20_000
    every_s: float = 900.0


class Snapshotter:
    """Folds the journal in a state of its own and saves it now and then. One thread uses it; several do no harm."""

    def __init__(
        self,
        store: Store,
        rules: SnapshotRules = SnapshotRules(),  # noqa: B008 - frozen
        *,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._rules = rules
        self._elapsed_s = elapsed_s
        self._replica = Replica.start(store)
        self.tailer = Tailer(store, self._replica)
        self.saved_seq = self._replica.checkpoint.seq
        """Of the newest snapshot."""
        self._saved_s = elapsed_s()
        self._made: deque[int] = deque(maxlen=SNAPSHOTS_KEPT)

    def due(self) -> bool:
        records = self._replica.checkpoint.seq - self.saved_seq
        waited_s = self._elapsed_s() - self._saved_s
        return records >= self._rules.every_records or (records > 0 and waited_s >= self._rules.every_s)

    def tend(self) -> int:
        """Save a snapshot when one is due; its record, 0 when none was."""
        return self.save() if self.due() else 0

    def save(self) -> int:
        """Save the state as it is, read it back, and seal the segments below the oldest snapshot kept; its record.

        Errors: `InvariantBroken` when what comes back is something else or it is too large, and what the store raises."""
        state, checkpoint = self._replica.state, self._replica.checkpoint
        self._saved_s = self._elapsed_s()
        if checkpoint.seq == 0:
            return 0
        body = snapshot.encode(state)
        if len(body) > MAX_SNAPSHOT_BYTES:
            raise InvariantBroken(
                why=f"a snapshot of {len(body)} bytes is above the limit of {MAX_SNAPSHOT_BYTES}"
            )
        made = Snapshot(
            checkpoint.seq, checkpoint.chain, snapshot.SCHEMA, blake2b(body, digest_size=32).digest(), body
        )
        self._store.save_snapshot(made)
        self._verify(made)
        self.saved_seq = made.seq
        if not self._made or self._made[-1] != made.seq:
            self._made.append(made.seq)
        if len(self._made) == SNAPSHOTS_KEPT:
            self._store.seal(self._made[0])
        return made.seq

    def _verify(self, made: Snapshot) -> None:
        """Another snapshotter may have saved a later one meanwhile; that one is verified by its maker."""
        found = self._store.load_snapshot(snapshot.SCHEMA)
        if found is not None and found.seq > made.seq:
            return
        if (
            found is None
            or found != made
            or snapshot.encode(snapshot.decode(found.body, found.schema)) != made.body
        ):
            raise InvariantBroken(why=f"the snapshot of record {made.seq} does not come back as it was saved")

    def run(self, stop: threading.Event) -> None:
        """Follow the journal and save what is due until `stop` is set."""
        self.tailer.run(stop, self._tend_safely)

    def _tend_safely(self) -> None:
        """A snapshot that fails is no reason to stop: the journal has everything; it is tried again when next due."""
        try:
            seq = self.tend()
        except InvariantBroken as error:
            _log.error("snapshot failed", why=str(error))
            self.saved_seq = self._replica.checkpoint.seq
            return
        if seq:
            _log.info("snapshot saved", seq=seq)


def run_snapshots(store: Store, stop: threading.Event, rules: SnapshotRules = SnapshotRules()) -> None:  # noqa: B008
    """What a snapshotter's thread or process runs: `run` after the store could be read."""
    while not stop.is_set():
        try:
            snapshotter = Snapshotter(store, rules)
        except Unavailable as error:
            _log.warning("snapshots wait for the store", why=str(error))
            stop.wait(_RESTART_PAUSE_S)
            continue
        snapshotter.run(stop)
        return
