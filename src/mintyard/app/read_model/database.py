"""The read model's database: opening it, migrating it, reading consistently and waiting until it has caught up.

SQLite in a file of its own (WAL; `synchronous=NORMAL`, since everything can be rebuilt from the journal) or a schema of its
own in PostgreSQL. What is read or written is decided elsewhere.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from mintyard.app.read_model import schema
from mintyard.app.read_model.rows import CursorRow
from mintyard.domain.errors import InvalidRequest, InvariantBroken, NotCaughtUp, StoreUnavailable

DEFAULT_WAIT_MS: Final = 2_000
"""How long a reader waits for the record that it asked for."""
MAX_WAIT_MS: Final = 30_000
POOL_CONNECTIONS: Final = 4
BUSY_MS: Final = 5_000
_FIRST_PAUSE_S: Final = 0.000_5
_LONGEST_PAUSE_S: Final = 0.02
_MIGRATION_LOCK: Final = 0x6D696E74


class ReadModel:
    """A pool of a few connections; methods block, so an event loop calls them in threads. One instance serves many threads.

    Errors: `StoreUnavailable` when the database can't be reached or has no tables yet, `NotCaughtUp` from `read`."""

    def __init__(
        self, engine: Engine, *, clock: Callable[[], int] = time.time_ns, wait_ms: int = DEFAULT_WAIT_MS
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.wait_ms = min(wait_ms, MAX_WAIT_MS)

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    @contextmanager
    def read(self, min_seq: int = 0, wait_ms: int | None = None) -> Iterator[tuple[Connection, CursorRow]]:
        """A connection in one read transaction and the cursor it sees, which is at record `min_seq` or later.

        Waits up to `wait_ms` (default: the model's) for it, then raises `NotCaughtUp`."""
        if not 0 <= min_seq < 2**63:
            raise InvalidRequest(why=f"min_seq {min_seq} is out of range")
        limit_ms = self.wait_ms if wait_ms is None else min(max(wait_ms, 0), MAX_WAIT_MS)
        deadline = time.monotonic() + limit_ms / 1_000
        pause_s = _FIRST_PAUSE_S
        while True:
            with translated(), self.engine.connect() as connection:
                found = cursor_of(connection)
                if found.seq >= min_seq:
                    yield connection, found
                    return
            if time.monotonic() >= deadline:
                raise NotCaughtUp(seq=found.seq, min_seq=min_seq, retry_after_s=1)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection in one write transaction, committed at the end; one writer at a time."""
        with translated(), self.engine.connect() as connection:
            postgres = self.dialect == "postgresql"
            if postgres:
                # What is read must be as of after the lock was got, not as of when it was asked for.
                connection.execution_options(isolation_level="READ COMMITTED")
            connection.info["write"] = True
            try:
                with connection.begin():
                    if postgres:
                        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
                    yield connection
            finally:
                connection.info.pop("write", None)

    def close(self) -> None:
        self.engine.dispose()


def cursor_of(connection: Connection) -> CursorRow:
    """The cursor that this transaction sees; at 0 before the first record."""
    row = connection.execute(select(schema.cursor)).one_or_none()
    return CursorRow(*row) if row is not None else CursorRow(1, 0, b"", 0, 0)


@contextmanager
def translated() -> Iterator[None]:
    """Driver errors as ours. The driver's text may name hosts, never a password: libpq and SQLite leave it out."""
    try:
        yield
    except PoolTimeout as error:
        raise StoreUnavailable(why="all connections to the read model are in use") from error
    except DBAPIError as error:
        lines = str(error.orig).strip().splitlines()
        why = f"read model: {lines[0] if lines else type(error.orig).__name__}"
        if isinstance(error, (DataError, IntegrityError, NotSupportedError, ProgrammingError)):
            raise InvariantBroken(why=why) from error
        raise StoreUnavailable(why=why) from error


def open_read_model(
    url: str,
    *,
    migrate: bool = False,
    schema_name: str = schema.SCHEMA_NAME,
    clock: Callable[[], int] = time.time_ns,
    wait_ms: int = DEFAULT_WAIT_MS,
) -> ReadModel:
    """The read model at `sqlite:///PATH` or `postgresql://...` (there in the schema `schema_name`).

    `migrate` (the projector's process) creates or updates the tables first; others need tables that are up to date.
    Errors: `InvalidRequest` for another URL, `StoreUnavailable`, `StoreTooNew`.
    """
    from mintyard.app.read_model.migration import check_schema, migrate_schema

    model = ReadModel(_engine(url, schema_name), clock=clock, wait_ms=wait_ms)
    try:
        if migrate:
            migrate_schema(model, schema_name)
        else:
            check_schema(model)
    except BaseException:
        model.close()
        raise
    return model


def _engine(url: str, schema_name: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidRequest(why="the read model's URL can't be read") from None
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        if not schema_name.isidentifier() or not schema_name.isascii():
            raise InvalidRequest(why=f"{schema_name!r} can't name a schema")
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_size=POOL_CONNECTIONS,
            max_overflow=0,
            pool_timeout=BUSY_MS / 1_000,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",
            connect_args={
                "options": f"-csearch_path={schema_name}",
                "application_name": "mintyard read model",
            },
        )
    if parsed.drivername != "sqlite" or not parsed.database or parsed.database == ":memory:":
        raise InvalidRequest(why="the read model's URL is sqlite:///PATH or postgresql://...")
    if not Path(parsed.database).parent.is_dir():
        raise StoreUnavailable(why=f"read model: there is no folder {Path(parsed.database).parent}")
    engine = create_engine(
        parsed,
        pool_size=POOL_CONNECTIONS,
        max_overflow=0,
        pool_timeout=BUSY_MS / 1_000,
        connect_args={"timeout": BUSY_MS / 1_000, "check_same_thread": False},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    """Transactions are begun by `_begin_sqlite`, so that a read sees one state of all tables."""
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-16000", "temp_store=MEMORY"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.info.get("write") else "BEGIN")
