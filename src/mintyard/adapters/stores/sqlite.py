"""A store in one SQLite file, with sealed segments and snapshots as files beside it: for one machine.

WAL with `synchronous=FULL`: an acknowledged append survives a power cut as far as the disk keeps its word. One
connection an instance; each process (leader, rival, tailer) opens its own instance on the same file. No network file
system: WAL needs shared memory.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from mintyard.adapters.stores.boot_clock import BootClock, Instant
from mintyard.adapters.stores.folder import Folder
from mintyard.adapters.stores.rules import (
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
from mintyard.adapters.stores.sqlite_file import open_file, translate
from mintyard.domain.errors import (
    CommitUnknown,
    Fenced,
    InvalidRequest,
    StoreCorrupt,
    StoreUnavailable,
    VerificationFailed,
)
from mintyard.domain.limits import SNAPSHOTS_KEPT
from mintyard.ports.store import Lease, Record, Snapshot

DEFAULT_BUSY_MS: Final = 5_000
_ROWS_PER_INSERT: Final = 1_000
_INSERT: Final = "INSERT INTO record (seq, term, now, format, chain, body) VALUES (?, ?, ?, ?, ?, ?)"
_MORE: Final = ", (?, ?, ?, ?, ?, ?)"
_ROWS: Final = (
    "SELECT seq, term, now, format, chain, body FROM record WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
)
_SEGMENTS: Final = """SELECT name, first_seq, last_seq, first_prev, last_chain FROM segment
    WHERE last_seq > ? ORDER BY last_seq"""
# After these the connection's view of the file can't be trusted any more.
_BROKEN_CODES: Final = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
)


class SqliteStore:
    """`path` is the database file; `segments/` and `snapshots/` lie in its folder."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        busy_ms: int = DEFAULT_BUSY_MS,
        clock: BootClock | None = None,
    ) -> None:
        self.path = path
        self._file = os.fspath(path)  # the conversion costs more than the stat
        self._read_only = read_only
        self._busy_ms = busy_ms
        self._clock = clock or BootClock()
        self._segments = Folder(path.parent / "segments")
        self._snapshots = Folder(path.parent / "snapshots")
        self._unpacked: tuple[str, list[Record]] = ("", [])
        self._seen: tuple[tuple[object, ...], int] = ((), 0)
        self._lock = threading.Lock()
        self._closed = False
        self._db: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._connect()

    def acquire(self, holder: str, life_ms: int) -> Lease | None:
        """See the port. The lease ends by the machine's boot clock, or with the boot in which it was granted. Should
        clocks disagree, a lease that this process saw unchanged for `life_ms` of its own time counts as expired, so
        a clock step can't lock the hub for longer. Safety never rests on clocks: the term does that."""
        check_lease(holder, life_ms)
        with self._write() as db:
            row = db.execute("SELECT holder, term, boot, expires_at_ms, life_ms FROM leader").fetchone()
            now = self._clock.now()
            if row[0] not in ("", holder) and self._is_live(row, now):
                return None
            term: int = row[1] + 1
            self._set_lease(db, holder, term, Instant(now.boot, now.ms + life_ms), life_ms)
        return Lease(holder, term, life_ms)

    def renew(self, lease: Lease, life_ms: int) -> Lease:
        check_lease(lease.holder, life_ms)
        with self._write() as db:
            holder, term = db.execute("SELECT holder, term FROM leader").fetchone()
            if (holder, term) != (lease.holder, lease.term):
                raise Fenced(term=lease.term, current=term)
            now = self._clock.now()
            self._set_lease(db, holder, term, Instant(now.boot, now.ms + life_ms), life_ms)
        return Lease(lease.holder, lease.term, life_ms)

    def release(self, lease: Lease) -> None:
        with self._write() as db:
            db.execute(
                "UPDATE leader SET holder = '' WHERE holder = ? AND term = ?", (lease.holder, lease.term)
            )

    def append(self, term: int, records: Sequence[Record]) -> int:
        check_append(term, records)
        with self._write() as db:
            first = records[0].seq if records else None
            if first is None:
                leader = self._leader(db)
                if (why := refusal(term, first, leader)) is not None:
                    raise why
                return leader.head_seq
            last = records[-1]
            moved = db.execute(
                "UPDATE leader SET head_seq = ?, head_chain = ? WHERE term = ? AND holder <> '' AND head_seq = ?",
                (last.seq, last.chain, term, first - 1),
            )
            if moved.rowcount != 1:
                raise refusal(term, first, self._leader(db)) or self._damaged()
            try:
                _insert(db, records)
            except sqlite3.IntegrityError as error:
                why = "a record lies beyond the head row: one of them was altered"
                raise VerificationFailed(seq=first, why=why) from error
            return last.seq

    def head(self) -> Record | None:
        with self._view() as db:
            leader = self._leader(db)
            if not leader.head_seq:
                return None
            before = leader.head_seq - 1
            return check_head(gather(before, 1, self._walk(db, before, 1), leader.head_seq)[0], leader)

    def read(self, after_seq: int, limit: int) -> list[Record]:
        limit = check_read(after_seq, limit)
        with self._view() as db:
            head_seq = self._leader(db).head_seq
            return gather(after_seq, limit, self._walk(db, after_seq, limit), head_seq)

    def seal(self, upto_seq: int) -> int:
        self._require_writable()
        moved = 0
        while run := self._unsealed(upto_seq):
            prev, records = run
            segment, content = pack(prev, records)
            # First the file, durable; then index and rows change together. A crash between leaves a file that
            # nothing names, and the next call writes the same bytes under the same name.
            self._segments.write(segment.name, content)
            with self._write() as db:
                if self._sealed(db)[0] != segment.first_seq - 1:
                    continue  # another process sealed meanwhile
                db.execute(
                    "INSERT INTO segment (name, first_seq, last_seq, first_prev, last_chain) VALUES (?, ?, ?, ?, ?)",
                    (
                        segment.name,
                        segment.first_seq,
                        segment.last_seq,
                        segment.first_prev,
                        segment.last_chain,
                    ),
                )
                db.execute("DELETE FROM record WHERE seq <= ?", (segment.last_seq,))
            moved += len(records)
        return moved

    def save_snapshot(self, snapshot: Snapshot) -> None:
        with self._view() as db:
            check_snapshot(snapshot, self._leader(db).head_seq)
        digest = snapshot_digest(snapshot)
        name = f"{snapshot.seq:020d}-{digest.hex()}"
        self._require_writable()
        self._snapshots.write(name, snapshot.body)
        with self._write() as db:
            rows = db.execute("SELECT seq, name FROM snapshot ORDER BY seq DESC").fetchall()
            kept = sorted({snapshot.seq, *(seq for seq, _ in rows)}, reverse=True)[:SNAPSHOTS_KEPT]
            db.execute(
                "INSERT OR REPLACE INTO snapshot (seq, chain, schema, state_hash, digest, name)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (snapshot.seq, snapshot.chain, snapshot.schema, snapshot.state_hash, digest, name),
            )
            db.execute("DELETE FROM snapshot WHERE seq < ?", (kept[-1],))
            stale = {old for seq, old in rows if seq not in kept or (seq == snapshot.seq and old != name)}
            if snapshot.seq not in kept:
                stale.add(name)
        for old in stale:
            self._snapshots.remove(old)

    def load_snapshot(self, max_schema: int) -> Snapshot | None:
        with self._view() as db:
            head_seq = self._leader(db).head_seq
            rows = db.execute(
                "SELECT seq, chain, schema, state_hash, digest, name FROM snapshot WHERE schema <= ? ORDER BY seq DESC",
                (max_schema,),
            ).fetchall()
        return check_covered(newest_intact(self._snapshot(row) for row in rows), head_seq)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._db is not None:
                self._db.close()
                self._db = None

    # --- transactions -------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        db = open_file(self.path, self._busy_ms, read_only=self._read_only)
        status = os.stat(self._file)
        self._db, self._identity = db, (status.st_dev, status.st_ino)
        return db

    def _require_writable(self) -> None:
        if self._read_only:
            raise StoreUnavailable(why=f"{self.path} was opened for reading only")

    def _live(self) -> sqlite3.Connection:
        """The connection, made anew after a fault. A file that was moved or replaced below an open connection would
        swallow acknowledged records."""
        if self._closed:
            raise StoreUnavailable(why="this store was closed")
        if self._db is None:
            return self._connect()
        try:
            status = os.stat(self._file)
        except OSError as error:
            raise StoreUnavailable(why=f"{self.path}: {error.strerror}") from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise StoreUnavailable(why=f"{self.path} was replaced by another file; restart")
        return self._db

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        self._require_writable()
        with self._lock:
            db = self._live()
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
            except sqlite3.Error as error:
                self._abandon(db, error)
                raise translate(error, self.path) from error
            except BaseException:
                self._abandon(db, None)
                raise
            self._commit(db)

    def _commit(self, db: sqlite3.Connection) -> None:
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            self._abandon(db, error)
            # Without room the commit mark isn't written: nothing happened. After any other failure (fsync) the mark
            # may or may not be on the disk.
            if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                raise translate(error, self.path) from error
            raise CommitUnknown() from error

    @contextmanager
    def _view(self) -> Iterator[sqlite3.Connection]:
        """One unchanging view of the database."""
        with self._lock:
            db = self._live()
            try:
                db.execute("BEGIN")
                yield db
                db.execute("COMMIT")
            except sqlite3.Error as error:
                self._abandon(db, error)
                raise translate(error, self.path) from error
            except BaseException:
                self._abandon(db, None)
                raise

    def _abandon(self, db: sqlite3.Connection, error: sqlite3.Error | None) -> None:
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error as failed:
            error = failed
        if error is not None and _code(error) in _BROKEN_CODES:
            db.close()
            self._db = None

    # --- rows ---------------------------------------------------------------------------------------------------

    def _leader(self, db: sqlite3.Connection) -> Leader:
        row = db.execute("SELECT holder, term, head_seq, head_chain FROM leader").fetchone()
        if row is None:
            raise self._damaged()
        return Leader(*row)

    def _damaged(self) -> StoreCorrupt:
        return StoreCorrupt(store=str(self.path), why="its leader row is missing or contradicts itself")

    def _is_live(self, row: tuple[str, int, str, int, int], now: Instant) -> bool:
        _, _, boot, expires_at_ms, life_ms = row
        if boot != now.boot or expires_at_ms <= now.ms:
            return False
        observed_ms = self._clock.observe_ms()
        if self._seen[0] != row:
            self._seen = (row, observed_ms)
        return observed_ms - self._seen[1] < life_ms

    def _set_lease(
        self, db: sqlite3.Connection, holder: str, term: int, expires: Instant, life_ms: int
    ) -> None:
        db.execute(
            "UPDATE leader SET holder = ?, term = ?, boot = ?, expires_at_ms = ?, life_ms = ?",
            (holder, term, expires.boot, expires.ms, life_ms),
        )

    def _walk(self, db: sqlite3.Connection, after_seq: int, limit: int) -> Iterator[Record]:
        for row in db.execute(_SEGMENTS, (after_seq,)).fetchall():
            yield from self._unpack(Segment(*row))
        sealed = max(after_seq, self._sealed(db)[0])
        for row in db.execute(_ROWS, (sealed, 2**63 - 1, limit)):
            yield Record(*row)

    def _sealed(self, db: sqlite3.Connection) -> tuple[int, bytes]:
        row = db.execute("SELECT last_seq, last_chain FROM segment ORDER BY last_seq DESC LIMIT 1").fetchone()
        return row or (0, NO_CHAIN)

    def _unpack(self, segment: Segment) -> list[Record]:
        if self._unpacked[0] != segment.name:
            content = self._segments.read(segment.name)
            if content is None:
                why = f"segment {segment.name} is missing from {self._segments.path}"
                raise VerificationFailed(seq=segment.first_seq, why=why)
            self._unpacked = (segment.name, unpack(segment, content))
        return self._unpacked[1]

    def _unsealed(self, upto_seq: int) -> tuple[bytes, Sequence[Record]] | None:
        """The next run to seal, with the chain before it."""
        with self._view() as db:
            sealed_seq, chain = self._sealed(db)
            upto = min(upto_seq, self._leader(db).head_seq)
            rows = (Record(*row) for row in db.execute(_ROWS, (sealed_seq, upto, MAX_READ_RECORDS)))
            run = first_run(gather(sealed_seq, MAX_READ_RECORDS, rows, upto)) if upto > sealed_seq else []
        return (chain, run) if run else None

    def _snapshot(self, row: tuple[int, bytes, int, bytes, bytes, str]) -> tuple[Snapshot | None, bytes]:
        seq, chain, schema, state_hash, digest, name = row
        body = self._snapshots.read(name)
        return (None if body is None else Snapshot(seq, chain, schema, state_hash, body)), digest


def _insert(db: sqlite3.Connection, records: Sequence[Record]) -> None:
    """One statement for up to `_ROWS_PER_INSERT` rows: `executemany` takes and gives the interpreter lock per row."""
    for start in range(0, len(records), _ROWS_PER_INSERT):
        rows = records[start : start + _ROWS_PER_INSERT]
        values = [value for r in rows for value in (r.seq, r.term, r.now, r.format, r.chain, r.body)]
        db.execute(_INSERT + _MORE * (len(rows) - 1), values)


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def open_sqlite(url: str) -> SqliteStore:
    """`sqlite:///relative/path`, `sqlite:////absolute/path`; `?mode=ro` to read only, `?busy_ms=N` to wait for locks."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    path = unquote(parts.path)[1:]
    unknown = options.keys() - {"mode", "busy_ms"}
    busy = options.get("busy_ms", str(DEFAULT_BUSY_MS))
    if parts.netloc or not path or "\0" in path:
        raise InvalidRequest(why="an SQLite URL is sqlite:///PATH, with a fourth slash for an absolute path")
    if unknown or options.get("mode", "rw") not in ("ro", "rw") or not (busy.isascii() and busy.isdigit()):
        raise InvalidRequest(why="an SQLite URL takes ?mode=ro or rw and ?busy_ms=NUMBER")
    if int(busy[:10]) > 600_000:
        raise InvalidRequest(why="busy_ms is at most 600000")
    return SqliteStore(Path(path), read_only=options.get("mode") == "ro", busy_ms=int(busy))
