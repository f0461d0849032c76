"""A store in one schema of a PostgreSQL database: for a hub with replicas.

An append is one transaction of two round trips: fence, head and rows in one statement, then COMMIT. So it is always
known whether a connection was lost before the commit was asked for (nothing was written) or during it (unknown).
Leases go by the database's clock; a step of that clock can end one early or late, the term keeps that harmless.
No transaction-pooling proxy in between: prepared statements and the schema check belong to the connection.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, quote, urlencode

import psycopg

from mintyard.adapters.stores.postgres_schema import conninfo, prepare, statements, translate
from mintyard.adapters.stores.rules import (
    MAX_FIELD,
    MAX_READ_RECORDS,
    Leader,
    check_append,
    check_covered,
    check_head,
    check_lease,
    check_read,
    check_snapshot,
    gather,
    newest_intact,
    refusal,
    snapshot_digest,
)
from mintyard.adapters.stores.segments import NO_CHAIN, Segment, first_run, pack, unpack
from mintyard.domain.errors import (
    CommitUnknown,
    Fenced,
    InvalidRequest,
    StoreCorrupt,
    StoreUnavailable,
    VerificationFailed,
)
from mintyard.domain.limits import MAX_READ_BYTES, SNAPSHOTS_KEPT
from mintyard.ports.store import Lease, Record, Snapshot

DEFAULT_SCHEMA: Final = "mintyard_journal"
DEFAULT_TIMEOUT_MS: Final = 10_000
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")

_Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresStore:
    """`url` is a libpq URL. `timeout_ms` bounds connecting, each statement and each wait for a lock; a COMMIT that
    waits for a synchronous standby is bounded by the server's own settings only (to stop it is to lose the answer)."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        read_only: bool = False,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise InvalidRequest(why="a schema's name is a-z 0-9 _ and at most 63 long")
        self._schema = schema
        self._read_only = read_only
        self._timeout_ms = timeout_ms
        self._conninfo = conninfo(url, timeout_ms, read_only=read_only)
        self._sql = statements(schema)
        self._unpacked: tuple[str, list[Record]] = ("", [])
        self._warning: str | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._db: _Connection | None = None
        with self._lock:
            self._connect()

    def acquire(self, holder: str, life_ms: int) -> Lease | None:
        check_lease(holder, life_ms)
        with self._statement(writes=True) as db:
            row = db.execute(self._sql["acquire"], {"holder": holder, "life": life_ms}).fetchone()
        return None if row is None else Lease(holder, row[0], life_ms)

    def renew(self, lease: Lease, life_ms: int) -> Lease:
        check_lease(lease.holder, life_ms)
        with self._statement(writes=True) as db:
            params = {"holder": lease.holder, "term": lease.term, "life": life_ms}
            if db.execute(self._sql["renew"], params).fetchone() is None:
                raise Fenced(term=lease.term, current=self._leader(db).term)
        return Lease(lease.holder, lease.term, life_ms)

    def release(self, lease: Lease) -> None:
        with self._statement(writes=True) as db:
            db.execute(self._sql["release"], (lease.holder, lease.term))

    def append(self, term: int, records: Sequence[Record]) -> int:
        check_append(term, records)
        if not records:
            with self._statement() as db:
                leader = self._leader(db)
                if (why := refusal(term, None, leader)) is not None:
                    raise why
                return leader.head_seq
        first, last = records[0], records[-1]
        fence = {"last": last.seq, "chain": last.chain, "leader": term, "before": first.seq - 1}
        with self._transaction() as db:
            try:
                # BEGIN travels with the statement.
                with db.pipeline():
                    db.execute("BEGIN", prepare=False)
                    cursor = self._insert(db, fence, records)
            except psycopg.errors.UniqueViolation as error:
                why = "a record lies beyond the head row: one of them was altered"
                raise VerificationFailed(seq=first.seq, why=why) from error
            if cursor.rowcount != len(records):
                raise refusal(term, first.seq, self._leader(db)) or self._damaged()
        return last.seq

    def head(self) -> Record | None:
        with self._statement() as db:
            row = _only(db.execute(self._sql["head"], binary=True).fetchone(), self._damaged)
            leader = Leader(*row[:4])
            if not leader.head_seq:
                return None
            if row[4] == leader.head_seq:
                return check_head(Record(*row[4:]), leader)
        # The last record was sealed.
        return check_head(self.read(leader.head_seq - 1, 1)[0], leader)

    def read(self, after_seq: int, limit: int) -> list[Record]:
        limit = check_read(after_seq, limit)
        with self._statement() as db:
            head_seq, sealed_seq, rows = self._rows(db, after_seq, MAX_FIELD, limit)
            source = rows if sealed_seq <= after_seq else self._walk(db, after_seq, limit)
            return gather(after_seq, limit, source, head_seq)

    def seal(self, upto_seq: int) -> int:
        moved = 0
        while run := self._unsealed(upto_seq):
            prev, records = run
            segment, content = pack(prev, records)
            with self._transaction() as db:
                db.execute("BEGIN")
                db.execute(self._sql["lock_segments"])
                if self._sealed(db)[0] != segment.first_seq - 1:
                    continue  # another process sealed meanwhile
                row = (
                    segment.name,
                    segment.first_seq,
                    segment.last_seq,
                    segment.first_prev,
                    segment.last_chain,
                )
                db.execute(self._sql["add_segment"], (*row, content))
                db.execute(self._sql["drop_rows"], (segment.last_seq,))
            moved += len(records)
        return moved

    def save_snapshot(self, snapshot: Snapshot) -> None:
        s = snapshot
        with self._transaction() as db:
            db.execute("BEGIN")
            check_snapshot(s, self._leader(db).head_seq)
            row = (s.seq, s.chain, s.schema, s.state_hash, snapshot_digest(s), s.body)
            db.execute(self._sql["add_snapshot"], row)
            db.execute(self._sql["drop_snapshots"], (SNAPSHOTS_KEPT,))

    def load_snapshot(self, max_schema: int) -> Snapshot | None:
        with self._statement() as db:
            # The head last: it only grows, so a snapshot ahead of it can't be one made meanwhile.
            snapshot = newest_intact(self._snapshots(db, max_schema))
            return check_covered(snapshot, self._leader(db).head_seq)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._db is not None:
                self._db.close()
                self._db = None

    # --- connections and transactions -----------------------------------------------------------------------------

    def _connect(self) -> _Connection:
        try:
            db = psycopg.connect(self._conninfo, autocommit=True)
        except psycopg.Error as error:
            raise translate(error, self._schema, committing=False, lost=True) from error
        try:
            db.add_notice_handler(self._notice)
            timeout = str(self._timeout_ms)
            db.execute(
                "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)",
                (timeout, timeout),
            )
            (level,) = _only(db.execute("SHOW synchronous_commit").fetchone(), self._damaged)
            if level == "off":
                db.execute("SET synchronous_commit = on")
            prepare(db, self._schema, read_only=self._read_only)
        except psycopg.Error as error:
            db.close()
            raise translate(error, self._schema, committing=False, lost=True) from error
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _require_writable(self) -> None:
        if self._read_only:
            raise StoreUnavailable(why="the store was opened for reading only")

    def _live(self) -> _Connection:
        if self._closed:
            raise StoreUnavailable(why="this store was closed")
        return self._db or self._connect()

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warning = notice.message_primary

    @contextmanager
    def _statement(self, *, writes: bool = False) -> Iterator[_Connection]:
        """For single statements, each its own transaction."""
        if writes:
            self._require_writable()
        with self._lock:
            db = self._live()
            try:
                yield db
            except psycopg.Error as error:
                self._fail(db, error, committing=writes)

    @contextmanager
    def _transaction(self) -> Iterator[_Connection]:
        """The body sends BEGIN itself; then COMMIT, or ROLLBACK when the body raised or no transaction is open."""
        self._require_writable()
        with self._lock:
            db = self._live()
            try:
                yield db
            except psycopg.Error as error:
                self._fail(db, error, committing=False)
            except BaseException:
                self._roll_back(db)
                raise
            self._commit(db)

    def _commit(self, db: _Connection) -> None:
        self._warning = None
        try:
            result = db.execute("COMMIT")
        except psycopg.Error as error:
            self._fail(db, error, committing=True)
        except BaseException:  # an interrupt in the middle of the wait
            self._drop(db)
            raise
        if result.statusmessage != "COMMIT":
            raise StoreUnavailable(why="the server rolled the transaction back")
        if self._warning is not None:
            # The wait for a synchronous standby was cancelled: durable here, perhaps nowhere else.
            self._drop(db)
            raise CommitUnknown()

    def _roll_back(self, db: _Connection) -> None:
        try:
            db.execute("ROLLBACK")
        except psycopg.Error:
            self._drop(db)

    def _fail(self, db: _Connection, error: psycopg.Error, *, committing: bool) -> NoReturn:
        lost = db.broken or db.closed
        if lost:
            self._drop(db)
        else:
            self._roll_back(db)
        raise translate(error, self._schema, committing=committing, lost=lost) from error

    def _drop(self, db: _Connection) -> None:
        db.close()
        self._db = None

    # --- rows -----------------------------------------------------------------------------------------------------

    def _insert(
        self, db: _Connection, fence: dict[str, Any], records: Sequence[Record]
    ) -> psycopg.Cursor[Any]:
        if len(records) == 1:
            (r,) = records
            values = {"seq": r.seq, "term": r.term, "now": r.now, "format": r.format, "body": r.body}
            return db.execute(self._sql["append_one"], fence | values)
        columns = {
            "seqs": [r.seq for r in records],
            "terms": [r.term for r in records],
            "nows": [r.now for r in records],
            "formats": [r.format for r in records],
            "chains": [r.chain for r in records],
            "bodies": [r.body for r in records],
        }
        return db.execute(self._sql["append_many"], fence | columns)

    def _leader(self, db: _Connection) -> Leader:
        return Leader(*_only(db.execute(self._sql["leader"], binary=True).fetchone(), self._damaged))

    def _damaged(self) -> StoreCorrupt:
        return StoreCorrupt(
            store=f"schema {self._schema}", why="its leader row is missing or contradicts itself"
        )

    def _rows(
        self, db: _Connection, after_seq: int, upto_seq: int, limit: int
    ) -> tuple[int, int, list[Record]]:
        """The head, the last sealed record, and rows after `after_seq` (none when it lies before the last sealed
        one), all of one moment."""
        params = {"after": after_seq, "upto": upto_seq, "limit": limit, "size": MAX_READ_BYTES}
        found = db.execute(self._sql["rows"], params, binary=True).fetchall()
        head_seq, sealed_seq = _only(found[0] if found else None, self._damaged)[:2]
        return head_seq, sealed_seq, [Record(*row[2:]) for row in found if row[2] is not None]

    def _walk(self, db: _Connection, after_seq: int, limit: int) -> Iterator[Record]:
        """Segments never change, so they are read one by one; then rows, unless more were sealed meanwhile."""
        while True:
            row = db.execute(self._sql["segment_after"], (after_seq,), binary=True).fetchone()
            if row is None:
                _, sealed_seq, rows = self._rows(db, after_seq, MAX_FIELD, limit)
                if sealed_seq <= after_seq:
                    yield from rows
                    return
                continue
            segment = Segment(*row[:5])
            if self._unpacked[0] != segment.name:
                self._unpacked = (segment.name, unpack(segment, row[5]))
            yield from self._unpacked[1]
            after_seq = segment.last_seq

    def _sealed(self, db: _Connection) -> tuple[int, bytes]:
        row = db.execute(self._sql["sealed"], binary=True).fetchone()
        return (row[0], row[1]) if row else (0, NO_CHAIN)

    def _unsealed(self, upto_seq: int) -> tuple[bytes, Sequence[Record]] | None:
        """The next run to seal, with the chain before it."""
        with self._statement() as db:
            after_seq, chain = self._sealed(db)
            head_seq, sealed_seq, rows = self._rows(db, after_seq, min(upto_seq, MAX_FIELD), MAX_READ_RECORDS)
            upto_seq = min(upto_seq, head_seq)
            if sealed_seq > after_seq or upto_seq <= after_seq:
                return None  # another process seals, or nothing is left
            return chain, first_run(gather(after_seq, MAX_READ_RECORDS, rows, upto_seq))

    def _snapshots(self, db: _Connection, max_schema: int) -> Iterator[tuple[Snapshot | None, bytes]]:
        before = MAX_FIELD
        params = (before, min(max_schema, 2**31 - 1))
        while row := db.execute(self._sql["snapshot_before"], params, binary=True).fetchone():
            yield Snapshot(*row[:5]), row[5]
            params = (row[0], params[1])


def _only(row: tuple[Any, ...] | None, damaged: Callable[[], StoreCorrupt]) -> tuple[Any, ...]:
    if row is None:
        raise damaged()
    return row


def open_postgres(url: str) -> PostgresStore:
    """A libpq URL (`postgresql://USER@HOST/DATABASE?...`) that may also have `schema=NAME`, `mode=ro` and
    `timeout_ms=N`."""
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    schema, mode = options.pop("schema", DEFAULT_SCHEMA), options.pop("mode", "rw")
    timeout = options.pop("timeout_ms", str(DEFAULT_TIMEOUT_MS))
    if mode not in ("ro", "rw") or not (
        timeout.isascii() and timeout.isdigit() and 0 < int(timeout[:10]) <= 600_000
    ):
        raise InvalidRequest(why="a PostgreSQL URL takes mode=ro or rw and timeout_ms=1 to 600000")
    rest = f"{address}?{urlencode(options, quote_via=quote)}" if options else address
    return PostgresStore(rest, schema=schema, read_only=mode == "ro", timeout_ms=int(timeout))
