"""What only the PostgreSQL store must do: connections that end at the worst moment, servers that err, schemas."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.conformance.stores.backends import PostgresBackend, chain_on, make_backend

from mintyard.adapters.stores.postgres import PostgresStore, open_postgres
from mintyard.app.journal import verify_store
from mintyard.domain.errors import (
    CommitUnknown,
    InvalidRequest,
    MintyardError,
    StoreCorrupt,
    StoreForeign,
    StoreTooNew,
    StoreUnavailable,
)
from mintyard.ports.store import Lease, Record, Snapshot

pytestmark = pytest.mark.postgres
LIFE_MS = 60_000


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[PostgresBackend]:
    with make_backend("postgresql", tmp_path) as made:
        assert isinstance(made, PostgresBackend)
        yield made


def started(backend: PostgresBackend, count: int = 0) -> tuple[PostgresStore, Lease, list[Record]]:
    store = backend.open()
    assert isinstance(store, PostgresStore)
    lease = store.acquire("hub-1", LIFE_MS)
    assert lease is not None
    records = chain_on(None, count, lease.term)
    store.append(lease.term, records)
    return store, lease, records


def pid_of(store: PostgresStore) -> int:
    return store._live().info.backend_pid


class Attempt:
    """A call in its own thread, and how it ended."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._act = act
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.error


def wait_until(backend: PostgresBackend, pid: int, condition: str) -> None:
    """Until the server process `pid` is seen in `condition`, a clause over pg_stat_activity."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = backend.admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND " + condition,
            (pid,),
        ).fetchone()
        if found == (1,):
            return
    raise AssertionError(f"{pid} never was {condition}")


def terminate(backend: PostgresBackend, pid: int) -> None:
    backend.admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


def slow_commits(backend: PostgresBackend, then: str = "") -> None:
    """Let each commit of records take long, or fail: a constraint that is checked only at COMMIT."""
    body = then or "PERFORM pg_sleep(60);"
    backend.execute(
        "CREATE FUNCTION {s}.at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        + body
        + " RETURN NULL; END $$"
    )
    backend.execute(
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON {s}.record DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION {s}.at_commit()"
    )


def normal_commits(backend: PostgresBackend) -> None:
    backend.execute("DROP TRIGGER at_commit ON {s}.record")


@contextmanager
def missing_standby(backend: PostgresBackend) -> Iterator[None]:
    """Commits are durable here but wait for a synchronous standby that never comes."""
    try:
        backend.admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    except psycopg.errors.InsufficientPrivilege:
        pytest.skip("the test's user may not change the server's settings")
    try:
        backend.admin.execute("SELECT pg_reload_conf()")
        await_reload(backend)
        yield
    finally:
        backend.admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        backend.admin.execute("SELECT pg_reload_conf()")


def await_reload(backend: PostgresBackend) -> None:
    """Until commits do wait: the server takes a new setting up some time after the reload."""
    with psycopg.connect(backend.server, autocommit=True) as probe:

        def commit_until_ended() -> None:
            while True:
                probe.execute("SELECT pg_logical_emit_message(true, 'probe', '')")

        attempt = Attempt(commit_until_ended)
        wait_until(backend, probe.info.backend_pid, "wait_event = 'SyncRep'")
        terminate(backend, probe.info.backend_pid)
        assert isinstance(attempt.end(), psycopg.OperationalError)


def recovered(backend: PostgresBackend, store: PostgresStore, lease: Lease, head: Record | None) -> None:
    """The store finds `head` on a fresh connection, and goes on from there."""
    assert store.head() == head
    more = chain_on(head, 2, lease.term)
    assert store.append(lease.term, more) == more[-1].seq
    assert verify_store(backend.open()).last_seq == more[-1].seq


class TestLostConnections:
    def test_before_the_commit_nothing_was_written(self, backend: PostgresBackend) -> None:
        store, lease, records = started(backend, 2)
        with psycopg.connect(backend.server) as rival:
            rival.execute(f'SELECT * FROM "{backend.schema}".leader FOR UPDATE')
            attempt = Attempt(lambda: store.append(lease.term, chain_on(records[-1], 1, lease.term)))
            wait_until(backend, pid_of(store), "wait_event_type = 'Lock'")
            terminate(backend, pid_of(store))
            assert isinstance(attempt.end(), StoreUnavailable)
        recovered(backend, store, lease, records[-1])

    def test_in_the_middle_of_the_commit_not_yet_durable(self, backend: PostgresBackend) -> None:
        store, lease, records = started(backend, 2)
        slow_commits(backend)
        attempt = Attempt(lambda: store.append(lease.term, chain_on(records[-1], 3, lease.term)))
        wait_until(backend, pid_of(store), "query = 'COMMIT' AND wait_event = 'PgSleep'")
        terminate(backend, pid_of(store))
        assert isinstance(attempt.end(), CommitUnknown)
        normal_commits(backend)
        recovered(backend, store, lease, records[-1])

    def test_in_the_middle_of_the_commit_already_durable(self, backend: PostgresBackend) -> None:
        store, lease, records = started(backend, 2)
        more = chain_on(records[-1], 3, lease.term)
        with missing_standby(backend):
            attempt = Attempt(lambda: store.append(lease.term, more))
            wait_until(backend, pid_of(store), "wait_event = 'SyncRep'")
            terminate(backend, pid_of(store))
            assert isinstance(attempt.end(), CommitUnknown)
        recovered(backend, store, lease, more[-1])

    def test_a_cancelled_wait_for_the_standby_is_no_commit_to_rely_on(self, backend: PostgresBackend) -> None:
        """The server answers COMMIT with success and a mere warning: durable here, perhaps not on the standby."""
        store, lease, records = started(backend, 2)
        more = chain_on(records[-1], 1, lease.term)
        with missing_standby(backend):
            attempt = Attempt(lambda: store.append(lease.term, more))
            wait_until(backend, pid_of(store), "wait_event = 'SyncRep'")
            backend.admin.execute("SELECT pg_cancel_backend(%s)", (pid_of(store),))
            assert isinstance(attempt.end(), CommitUnknown)
        recovered(backend, store, lease, more[-1])

    def test_while_idle(self, backend: PostgresBackend) -> None:
        store, lease, records = started(backend, 2)
        terminate(backend, pid_of(store))
        with pytest.raises(StoreUnavailable):
            store.append(lease.term, chain_on(records[-1], 1, lease.term))
        recovered(backend, store, lease, records[-1])

    def test_readers_and_leases_come_back_too(self, backend: PostgresBackend) -> None:
        store, lease, records = started(backend, 2)
        terminate(backend, pid_of(store))
        with pytest.raises(StoreUnavailable):
            store.read(0, 9)
        assert store.read(0, 9) == records
        terminate(backend, pid_of(store))
        with pytest.raises(CommitUnknown):  # whether it was renewed is not known
            store.renew(lease, LIFE_MS)
        assert store.renew(lease, LIFE_MS) == lease


class TestServerErrors:
    def test_an_error_at_commit_rolled_everything_back(self, backend: PostgresBackend) -> None:
        store, lease, records = started(backend, 2)
        slow_commits(backend, "RAISE EXCEPTION 'no room' USING ERRCODE = 'disk_full';")
        with pytest.raises(StoreUnavailable, match="no room"):
            store.append(lease.term, chain_on(records[-1], 3, lease.term))
        normal_commits(backend)
        recovered(backend, store, lease, records[-1])

    def test_a_lock_held_too_long(self, backend: PostgresBackend) -> None:
        _, lease, records = started(backend, 2)
        impatient = open_postgres(f"{backend.url}&timeout_ms=50")
        with psycopg.connect(backend.server) as rival:
            rival.execute(f'SELECT * FROM "{backend.schema}".leader FOR UPDATE')
            with pytest.raises(StoreUnavailable):
                impatient.append(lease.term, chain_on(records[-1], 1, lease.term))
            assert impatient.read(0, 9) == records
        recovered(backend, impatient, lease, records[-1])
        impatient.close()

    def test_a_record_beyond_the_head_is_not_overwritten(self, backend: PostgresBackend) -> None:
        store, lease, records = started(backend, 2)
        backend.execute("UPDATE {s}.leader SET head_seq = 1")
        with pytest.raises(MintyardError, match="beyond the head row"):
            store.append(lease.term, chain_on(records[0], 1, lease.term))
        assert backend.execute("SELECT body FROM {s}.record WHERE seq = 2").fetchone() == (records[1].body,)

    def test_durable_even_where_the_server_is_set_otherwise(self, backend: PostgresBackend) -> None:
        store = open_postgres(f"{backend.url}&options=-c%20synchronous_commit%3Doff")
        assert store._live().execute("SHOW synchronous_commit").fetchone() == ("on",)
        store.close()


class TestUnfit:
    def test_nobody_answers(self) -> None:
        with pytest.raises(StoreUnavailable):
            open_postgres("postgresql://hub@127.0.0.1:1/hub?timeout_ms=2000")

    def test_a_schema_of_another_application(self, backend: PostgresBackend) -> None:
        backend.execute("CREATE SCHEMA {s}")
        backend.execute("CREATE TABLE {s}.bookmarks (url text)")
        with pytest.raises(StoreForeign):
            backend.open()
        backend.execute("CREATE TABLE {s}.meta (colour text)")
        with pytest.raises(StoreForeign):
            backend.open()

    def test_a_newer_schema(self, backend: PostgresBackend) -> None:
        started(backend)
        backend.execute("UPDATE {s}.meta SET version = 99")
        with pytest.raises(StoreTooNew):
            backend.open()

    def test_a_missing_table_or_row(self, backend: PostgresBackend) -> None:
        store, _, _ = started(backend)
        backend.execute("DELETE FROM {s}.leader")
        with pytest.raises(StoreCorrupt):
            store.head()
        backend.execute("DROP TABLE {s}.segment")
        with pytest.raises(StoreCorrupt):
            store.read(0, 1)
        with pytest.raises(StoreCorrupt):
            backend.open()

    def test_a_reader_makes_and_writes_nothing(self, backend: PostgresBackend) -> None:
        with pytest.raises(StoreForeign):
            open_postgres(f"{backend.url}&mode=ro")
        _, lease, records = started(backend, 3)
        reader = open_postgres(f"{backend.url}&mode=ro")
        assert reader.read(0, 9) == records
        for write in (
            lambda: reader.append(lease.term, chain_on(records[-1], 1, lease.term)),
            lambda: reader.acquire("hub-2", LIFE_MS),
            lambda: reader.seal(3),
            lambda: reader.save_snapshot(Snapshot(1, b"", 1, b"", b"")),
        ):
            with pytest.raises(StoreUnavailable):
                write()
        reader.close()

    @pytest.mark.parametrize(
        "query",
        [
            "schema=a%22b",
            "schema=",
            "schema=public%3Bdrop",
            "mode=rwx",
            "timeout_ms=0",
            "timeout_ms=x",
            "passwort=hunter2",
        ],
    )
    def test_nonsense_urls_are_refused_without_showing_them(self, query: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            open_postgres(f"postgresql://hub:hunter2@127.0.0.1:1/hub?{query}")
        assert "hunter2" not in str(caught.value)
