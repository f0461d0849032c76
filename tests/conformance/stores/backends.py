"""The stores under test: how each is opened, again and again, on the same contents, and how to damage it."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from mintyard.adapters.stores.faulty import FaultPlan, FaultyStore
from mintyard.adapters.stores.memory import MemoryDisk, MemoryStore, open_memory
from mintyard.adapters.stores.postgres import open_postgres
from mintyard.adapters.stores.sqlite import open_sqlite
from mintyard.app.journal import make_record
from mintyard.ports.store import Record, Store

POSTGRES = pytest.param("postgresql", marks=pytest.mark.postgres)
DURABLE = ["sqlite", POSTGRES]
EVERY = ["memory", "sqlite", POSTGRES, "faulty"]


class Backend:
    """One set of contents; every store that `open` gives works on it and is closed at the end."""

    kind: str
    url: str = ""

    def __init__(self) -> None:
        self._opened: list[Store] = []

    def open(self) -> Store:
        store = self._open()
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()

    def _open(self) -> Store:
        raise NotImplementedError

    def delete_record(self, seq: int) -> None:
        raise NotImplementedError

    def set_body(self, seq: int, body: bytes) -> None:
        raise NotImplementedError

    def damage_snapshot(self, seq: int) -> None:
        raise NotImplementedError

    def damage_segments(self) -> None:
        raise NotImplementedError


class MemoryBackend(Backend):
    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()

    def _open(self) -> Store:
        return MemoryStore(self.disk)

    def delete_record(self, seq: int) -> None:
        del self.disk.records[seq]

    def set_body(self, seq: int, body: bytes) -> None:
        r = self.disk.records[seq]
        self.disk.records[seq] = Record(r.seq, r.term, r.now, r.format, r.chain, body)

    def damage_snapshot(self, seq: int) -> None:
        snapshot, digest = self.disk.snapshots[seq]
        self.disk.snapshots[seq] = (snapshot, flip(digest))

    def damage_segments(self) -> None:
        self.disk.segments = {name: flip(content) for name, content in self.disk.segments.items()}


class FaultyBackend(MemoryBackend):
    """The wrapper without faults must be no different from what it wraps."""

    kind = "faulty"

    def _open(self) -> Store:
        return FaultyStore(MemoryStore(self.disk), FaultPlan())


class SqliteBackend(Backend):
    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.path = folder / "journal.db"
        self.url = f"sqlite:///{self.path}"

    def _open(self) -> Store:
        return open_sqlite(self.url)

    def execute(self, statement: str, *params: object) -> None:
        db = sqlite3.connect(self.path, isolation_level=None)
        try:
            db.execute(statement, params)
        finally:
            db.close()

    def delete_record(self, seq: int) -> None:
        self.execute("DELETE FROM record WHERE seq = ?", seq)

    def set_body(self, seq: int, body: bytes) -> None:
        self.execute("UPDATE record SET body = ? WHERE seq = ?", body, seq)

    def damage_snapshot(self, seq: int) -> None:
        (path,) = (self.folder / "snapshots").glob(f"{seq:020d}-*")
        path.write_bytes(flip(path.read_bytes()))

    def damage_segments(self) -> None:
        for path in (self.folder / "segments").iterdir():
            path.write_bytes(flip(path.read_bytes()))


class PostgresBackend(Backend):
    kind = "postgresql"

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server = server
        self.schema = f"test_{uuid.uuid4().hex[:16]}"
        self.url = f"{server}{'&' if '?' in server else '?'}schema={self.schema}"
        self.admin = psycopg.connect(server, autocommit=True)
        # While a test lets commits wait for a standby that doesn't exist, ours must not.
        self.admin.execute("SET synchronous_commit = local")

    def _open(self) -> Store:
        return open_postgres(self.url)

    def execute(self, statement: str, params: tuple[object, ...] = ()) -> psycopg.Cursor[tuple[object, ...]]:
        return self.admin.execute(SQL(statement).format(s=Identifier(self.schema)), params)

    def close(self) -> None:
        super().close()
        self.execute("DROP SCHEMA IF EXISTS {s} CASCADE")
        self.admin.close()

    def delete_record(self, seq: int) -> None:
        self.execute("DELETE FROM {s}.record WHERE seq = %s", (seq,))

    def set_body(self, seq: int, body: bytes) -> None:
        self.execute("UPDATE {s}.record SET body = %s WHERE seq = %s", (body, seq))

    def damage_snapshot(self, seq: int) -> None:
        self.execute("UPDATE {s}.snapshot SET body = body || 'x' WHERE seq = %s", (seq,))

    def damage_segments(self) -> None:
        self.execute("UPDATE {s}.segment SET content = set_byte(content, 60, 255 - get_byte(content, 60))")


def postgres_server() -> str:
    """The URL of the test server; without one the test is skipped, in CI it fails."""
    url = os.environ.get("MINTYARD_TEST_POSTGRES")
    if url:
        return url
    reason = "MINTYARD_TEST_POSTGRES is not set: scripts/postgres.sh start DIR prints a URL for it"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def make_backend(kind: str, folder: Path) -> Iterator[Backend]:
    makers = {
        "memory": MemoryBackend,
        "faulty": FaultyBackend,
        "sqlite": lambda: SqliteBackend(folder),
        "postgresql": lambda: PostgresBackend(postgres_server()),
    }
    backend = makers[kind]()
    try:
        yield backend
    finally:
        backend.close()


def open_by_scheme(url: str) -> Store:
    """For processes under test, which may run from a source tree where no entry point is installed."""
    openers = {"memory": open_memory, "sqlite": open_sqlite, "postgresql": open_postgres}
    return openers[url.partition(":")[0]](url)


def chain_on(prev: Record | None, count: int, term: int, size_bytes: int = 100) -> list[Record]:
    """`count` records after `prev` with bodies that differ."""
    records: list[Record] = []
    for _ in range(count):
        seq = prev.seq + 1 if prev else 1
        body = (b"%d " % seq * (size_bytes // 2 + 1))[:size_bytes]
        prev = make_record(prev, term, 1_700_000_000_000_000_000 + seq, 1, body)
        records.append(prev)
    return records


def flip(content: bytes) -> bytes:
    """`content` with one bit changed in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
