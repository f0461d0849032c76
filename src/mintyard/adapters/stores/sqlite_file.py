"""The SQLite file of a journal: made, checked and opened; what SQLite's errors mean.

Only this adapter's own schema is here. Versions: `application_id` says whose file it is, `user_version` which schema.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from mintyard.adapters.stores.folder import sync_folder
from mintyard.domain.errors import MintyardError, StoreCorrupt, StoreForeign, StoreTooNew, StoreUnavailable

APPLICATION_ID: Final = 0x4D59_4A31
SCHEMA: Final = 1
_MIN_PAGE_BYTES: Final = 512
_RETRY_S: Final = 0.005

_DDL: Final = (
    """CREATE TABLE leader (
        id INTEGER PRIMARY KEY CHECK (id = 1), holder TEXT NOT NULL, term INTEGER NOT NULL, boot TEXT NOT NULL,
        expires_at_ms INTEGER NOT NULL, life_ms INTEGER NOT NULL,
        head_seq INTEGER NOT NULL, head_chain BLOB NOT NULL) STRICT""",
    "INSERT INTO leader VALUES (1, '', 0, '', 0, 0, 0, x'')",
    """CREATE TABLE record (
        seq INTEGER PRIMARY KEY, term INTEGER NOT NULL, now INTEGER NOT NULL, format INTEGER NOT NULL,
        chain BLOB NOT NULL, body BLOB NOT NULL) STRICT""",
    """CREATE TABLE segment (
        last_seq INTEGER PRIMARY KEY, first_seq INTEGER NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE,
        first_prev BLOB NOT NULL, last_chain BLOB NOT NULL) STRICT""",
    """CREATE TABLE snapshot (
        seq INTEGER PRIMARY KEY, chain BLOB NOT NULL, schema INTEGER NOT NULL, state_hash BLOB NOT NULL,
        digest BLOB NOT NULL, name TEXT NOT NULL) STRICT""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA}",
)


def open_file(path: Path, busy_ms: int, *, read_only: bool) -> sqlite3.Connection:
    """A checked connection in autocommit mode; the file is made (0600) when there is none, unless `read_only`.

    Errors: `StoreForeign`, `StoreTooNew`, `StoreCorrupt`, `StoreUnavailable`.
    """
    if not read_only:
        _make(path)
    elif not path.is_file():
        raise StoreUnavailable(why=f"there is no {path}")
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=busy_ms / 1_000,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise translate(error, path) from error
    try:
        _prepare_in_time(db, path, busy_ms, read_only=read_only)
    except sqlite3.Error as error:
        db.close()
        raise translate(error, path) from error
    except BaseException:
        db.close()
        raise
    return db


def translate(error: sqlite3.Error, path: Path) -> MintyardError:
    """What an error outside COMMIT means: nothing was written."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_CORRUPT:
        return StoreCorrupt(store=str(path), why=str(error))
    if code == sqlite3.SQLITE_NOTADB:
        return StoreForeign(store=str(path), why="it is no SQLite database, or its first page is damaged")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(why=f"another process kept {path} locked for too long")
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable(why=f"no room is left for {path}")
    return StoreUnavailable(why=f"{path}: {error}")


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if not path.is_file():
            raise StoreForeign(store=str(path), why="it is not a file") from None
        if 0 < path.stat().st_size < _MIN_PAGE_BYTES:
            # SQLite would take so short a file for a new database and write over it.
            raise StoreForeign(store=str(path), why="it is too short to be a database") from None
        return
    except OSError as error:
        raise StoreUnavailable(why=f"can't make {path}: {error.strerror}") from error
    os.close(handle)
    sync_folder(path.parent)


def _prepare_in_time(db: sqlite3.Connection, path: Path, busy_ms: int, *, read_only: bool) -> None:
    """SQLite's own busy time-out doesn't cover the change of a new file to WAL: of several processes that make it at
    once, all but one are refused at once (https://sqlite.org/pragma.html#pragma_journal_mode, `SQLITE_BUSY`)."""
    end = time.monotonic() + busy_ms / 1_000
    while True:
        try:
            _prepare(db, path, read_only=read_only)
            return
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(_RETRY_S)


def _prepare(db: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    if not _ours(db, path):
        if read_only:
            raise StoreForeign(store=str(path), why="it is empty")
        _expect(db, path, "journal_mode = WAL", "wal")
        _create(db, path)
    _expect(db, path, "journal_mode = WAL", "wal")
    for pragma in ("synchronous = FULL", "fullfsync = 1", "checkpoint_fullfsync = 1", "cell_size_check = 1"):
        db.execute(f"PRAGMA {pragma}")
    _expect(db, path, "synchronous", 2)
    if read_only:
        db.execute("PRAGMA query_only = 1")


def _create(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        if not _ours(db, path):  # another process may have been first
            for statement in _DDL:
                db.execute(statement)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _ours(db: sqlite3.Connection, path: Path) -> bool:
    """True for a journal of this schema, False for an empty file."""
    application, version, objects = db.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
        " (SELECT count(*) FROM sqlite_schema)"
    ).fetchone()
    if application == APPLICATION_ID:
        if version > SCHEMA:
            raise StoreTooNew(store=str(path), found=version, known=SCHEMA)
        if version < 1 or not objects:
            raise StoreCorrupt(store=str(path), why=f"its schema version is {version}")
        return True
    if application or version or objects:
        raise StoreForeign(store=str(path), why="the file belongs to another application")
    return False


def _expect(db: sqlite3.Connection, path: Path, pragma: str, wanted: str | int) -> None:
    (got,) = db.execute(f"PRAGMA {pragma}").fetchone()
    if got != wanted:
        raise StoreUnavailable(
            why=f"{path} doesn't allow {pragma} (it says {got}): is it on a network file system?"
        )
