"""The projector: tails the journal into the read model, one transaction a batch with the cursor in it.

So a batch counts once whatever happens: after a crash it is projected again from the cursor, and a record that was projected
before is skipped. The read model can be rebuilt from the journal at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import structlog
from sqlalchemy import delete, select

from mintyard.app import projection_jobs, projection_ledger, projection_registry
from mintyard.app.journal import GENESIS, Checkpoint, verify
from mintyard.app.projection import Handler, Projection
from mintyard.app.read_model import schema
from mintyard.app.read_model.batches import write_rows
from mintyard.app.read_model.database import ReadModel, cursor_of
from mintyard.app.read_model.rows import CursorRow
from mintyard.app.tailer import Entry, Tailer
from mintyard.domain.errors import InvariantBroken, MintyardError, Unavailable, VerificationFailed
from mintyard.domain.units import NS_PER_MS
from mintyard.ports.store import Store

_log = structlog.get_logger(__name__)
HANDLERS: Final[dict[type, Handler]] = {
    **projection_jobs.HANDLERS,
    **projection_ledger.HANDLERS,
    **projection_registry.HANDLERS,
}
REBUILD_BATCH_RECORDS: Final = 2_048


class Lag(msgspec.Struct, frozen=True):
    """How far the read model is behind the journal: in records, and the age of the oldest record it lacks, in ms."""

    records: int
    age_ms: int


class Progress(msgspec.Struct, frozen=True):
    """Of a rebuild: projected up to record `seq` of `head`; `rows` written so far."""

    seq: int
    head: int
    rows: int


class Projector:
    """Consumes entries into a read model (see `tailer.Consumer`). One thread uses it; two projectors do no harm, they wait
    for each other."""

    def __init__(self, model: ReadModel) -> None:
        self.model = model
        self.rows_written = 0
        self._projection: Projection | None = None
        with model.read() as (_, cursor):
            self.checkpoint = Checkpoint(cursor.seq, cursor.chain or GENESIS)

    def take(self, entries: Sequence[Entry]) -> None:
        """Project the entries that follow the cursor, in one transaction; those before it are skipped.

        Errors: `VerificationFailed` for a gap or another chain, `StoreUnavailable`; either way nothing was changed."""
        kept, self._projection = self._projection, None
        with self.model.write() as connection:
            cursor = cursor_of(connection)
            if cursor.seq < self.checkpoint.seq:
                # Someone has begun to rebuild it: go on from where it is now.
                self.checkpoint = Checkpoint(cursor.seq, cursor.chain or GENESIS)
                return
            news = _following(entries, cursor)
            if not news:
                self._projection = kept
                self.checkpoint = Checkpoint(cursor.seq, cursor.chain or GENESIS)
                return
            fresh = kept is None or kept.cursor.chain != cursor.chain
            projection = Projection(cursor, HANDLERS) if kept is None or fresh else kept
            projection.open(connection, fresh=fresh)
            projection.load(news)
            for entry in news:
                self._fold(projection, entry)
            written = projection.shelves.write(connection)
            write_rows(connection, schema.cursor, [projection.cursor])
        projection.shelves.tidy()
        self.rows_written += written
        self.checkpoint = Checkpoint(projection.cursor.seq, projection.cursor.chain)
        self._projection = projection

    @staticmethod
    def _fold(projection: Projection, entry: Entry) -> None:
        try:
            projection.fold(entry)
        except Unavailable:
            raise
        except (MintyardError, LookupError, ValueError, TypeError, AttributeError) as error:
            why = (
                f"the read model can't take record {entry.seq} ({type(error).__name__}: {error}); rebuild it"
            )
            raise InvariantBroken(why=why) from error

    def lag(self, store: Store) -> Lag:
        """Against what is durable in `store` now."""
        head = store.head()
        missing = (head.seq if head else 0) - self.checkpoint.seq
        if missing <= 0:
            return Lag(0, 0)
        oldest = next(iter(store.read(self.checkpoint.seq, 1)), head)
        age_ns = self.model.clock() - (oldest.now if oldest else 0)
        return Lag(missing, max(age_ns, 0) // NS_PER_MS)


def _following(entries: Sequence[Entry], cursor: CursorRow) -> list[Entry]:
    """The entries after the cursor; they and its own record must have its chain."""
    for entry in entries:
        if entry.seq == cursor.seq and entry.record.chain != cursor.chain:
            raise VerificationFailed(
                seq=entry.seq, why="the read model was made from another journal; rebuild it"
            )
    news = [entry for entry in entries if entry.seq > cursor.seq]
    verify([entry.record for entry in news], start=Checkpoint(cursor.seq, cursor.chain or GENESIS))
    return news


def open_projector(store: Store, model: ReadModel) -> Projector:
    """A projector whose read model follows `store`. One that was made from another journal, or from one that has since been
    restored from a backup, is rebuilt."""
    projector = Projector(model)
    at = projector.checkpoint
    if at.seq:
        record = next(iter(store.read(at.seq - 1, 1)), None)
        if record is None or record.chain != at.chain:
            _log.warning("read model belongs to another journal; rebuilding it", seq=at.seq)
            rebuild(store, model)
            projector = Projector(model)
    return projector


def rebuild(store: Store, model: ReadModel, told: Callable[[Progress], None] = lambda _: None) -> Progress:
    """Empty the read model and project the whole journal again, batch by batch; readers see it grow. `told` hears of each
    batch. May be broken off and run again; a projector goes on from where it stopped."""
    with model.write() as connection:
        for table in schema.metadata.sorted_tables:
            connection.execute(delete(table))
    projector = Projector(model)
    tailer = Tailer(store, projector, REBUILD_BATCH_RECORDS)
    head = store.head()
    last = head.seq if head else 0
    progress = Progress(0, last, 0)
    while tailer.step():
        seq = projector.checkpoint.seq
        progress = Progress(seq, max(last, seq), projector.rows_written)
        told(progress)
    return progress


def run_projector(
    store: Store, model: ReadModel, stop: threading.Event, told: Callable[[Lag], None] = lambda _: None
) -> None:
    """Project until `stop` is set: what a projector's thread or process runs. `told` hears the lag about once a second."""
    projector = open_projector(store, model)
    heard = [0.0]

    def tended() -> None:
        if time.monotonic() - heard[0] >= 1.0:
            heard[0] = time.monotonic()
            told(projector.lag(store))

    Tailer(store, projector).run(stop, tended)


def dump(model: ReadModel) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table in the order of its key: two read models of one journal are equal. For tests and `doctor`."""
    with model.read() as (connection, _):
        return {
            table.name: [
                tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key.columns))
            ]
            for table in schema.metadata.sorted_tables
        }
