"""What only the SQLite store must do: files, rooms that fill up, foreign files, clocks."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.stores.backends import SqliteBackend, chain_on

from mintyard.adapters.stores.boot_clock import BootClock, Instant
from mintyard.adapters.stores.sqlite import SqliteStore, open_sqlite
from mintyard.app.journal import verify_store
from mintyard.domain.errors import (
    InvalidRequest,
    MintyardError,
    StoreCorrupt,
    StoreForeign,
    StoreTooNew,
    StoreUnavailable,
    VerificationFailed,
)
from mintyard.ports.store import Lease, Record, Snapshot

LIFE_MS = 60_000


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    made = SqliteBackend(tmp_path / "hub")
    yield made
    made.close()


def started(backend: SqliteBackend, count: int = 0) -> tuple[SqliteStore, Lease, list[Record]]:
    store = backend.open()
    assert isinstance(store, SqliteStore)
    lease = store.acquire("hub-1", LIFE_MS)
    assert lease is not None
    records = chain_on(None, count, lease.term)
    store.append(lease.term, records)
    return store, lease, records


class TestFile:
    def test_nobody_else_may_read_it(self, backend: SqliteBackend) -> None:
        store, _, records = started(backend, 3)
        store.seal(2)
        store.save_snapshot(Snapshot(1, records[0].chain, 1, b"", b"state"))
        files = [path for path in backend.folder.rglob("*") if path.is_file()]
        assert len(files) >= 4
        for path in [backend.folder, *backend.folder.rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    def test_it_is_durable_by_its_settings(self, backend: SqliteBackend) -> None:
        store, _, _ = started(backend)
        db = store._live()
        found = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert found == ["wal", 2]

    def test_a_commit_syncs_the_log(self, backend: SqliteBackend, tmp_path: Path) -> None:
        """Not only set but done: seen from the kernel's side, where strace is there and allowed."""
        trace = tmp_path / "trace"
        script = (
            "import sys; sys.path[:0] = ['src', '.']\n"
            "from tests.conformance.stores.backends import chain_on, open_by_scheme\n"
            f"s = open_by_scheme({backend.url!r}); l = s.acquire('h', 60000); p = None\n"
            "for _ in range(20):\n    r = chain_on(p, 1, l.term); s.append(l.term, r); p = r[-1]\n"
        )
        command = [
            "strace",
            "-f",
            "-e",
            "trace=fdatasync,fsync",
            "-o",
            str(trace),
            sys.executable,
            "-c",
            script,
        ]
        try:
            done = subprocess.run(
                command, cwd=Path(__file__).parents[2], capture_output=True, timeout=60, check=False
            )
        except FileNotFoundError:
            pytest.skip("strace is not installed")
        if done.returncode and b"ptrace" in done.stderr:
            pytest.skip("strace is not allowed here")
        assert done.returncode == 0, done.stderr
        assert trace.read_text().count("sync(") >= 21

    def test_a_reader_makes_no_file_and_writes_nothing(self, backend: SqliteBackend) -> None:
        with pytest.raises(StoreUnavailable):
            open_sqlite(backend.url + "?mode=ro")
        assert not backend.folder.exists()
        store, lease, records = started(backend, 4)
        reader = open_sqlite(backend.url + "?mode=ro")
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
        assert not (backend.folder / "segments").exists()
        assert store.head() == records[-1]

    def test_a_replaced_file_takes_no_more_records(self, backend: SqliteBackend) -> None:
        """Else appends to a deleted file would be acknowledged and lost."""
        store, lease, records = started(backend, 2)
        backend.path.rename(backend.folder / "moved.db")
        more = chain_on(records[-1], 1, lease.term)
        with pytest.raises(StoreUnavailable):
            store.append(lease.term, more)
        backend.path.write_bytes(b"")
        with pytest.raises(StoreUnavailable):
            store.append(lease.term, more)
        backend.path.unlink()
        (backend.folder / "moved.db").rename(backend.path)
        assert store.append(lease.term, more) == 3

    def test_a_lock_held_too_long_is_an_error_that_passes(self, backend: SqliteBackend) -> None:
        store, lease, records = started(backend, 1)
        impatient = open_sqlite(backend.url + "?busy_ms=20")
        blocker = sqlite3.connect(backend.path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        more = chain_on(records[-1], 1, lease.term)
        with pytest.raises(StoreUnavailable):
            impatient.append(lease.term, more)
        assert impatient.read(0, 10) == records
        blocker.execute("ROLLBACK")
        blocker.close()
        assert impatient.append(lease.term, more) == 2
        impatient.close()
        assert store.head() == more[0]


class TestUnfit:
    @pytest.mark.parametrize(
        "content", [b"not a database, just some text" * 100, bytes(range(256)) * 64, b"x"]
    )
    def test_a_file_that_is_no_database(self, backend: SqliteBackend, content: bytes) -> None:
        backend.folder.mkdir()
        backend.path.write_bytes(content)
        with pytest.raises(StoreForeign):
            backend.open()
        assert backend.path.read_bytes() == content

    def test_a_file_of_another_application(self, backend: SqliteBackend) -> None:
        backend.folder.mkdir()
        backend.execute("CREATE TABLE bookmarks (url TEXT)")
        before = backend.path.read_bytes()
        with pytest.raises(StoreForeign):
            backend.open()
        assert backend.path.read_bytes() == before

    def test_a_folder(self, backend: SqliteBackend) -> None:
        backend.path.mkdir(parents=True)
        with pytest.raises(StoreForeign):
            backend.open()

    def test_a_newer_schema(self, backend: SqliteBackend) -> None:
        started(backend)[0].close()
        backend.execute("PRAGMA user_version = 99")
        with pytest.raises(StoreTooNew) as caught:
            backend.open()
        assert (caught.value.params["found"], caught.value.params["known"]) == (99, 1)

    def test_damaged_pages(self, backend: SqliteBackend) -> None:
        store, _, _ = started(backend, 2_000)
        store.close()
        content = bytearray(backend.path.read_bytes())
        content[8_192:] = os.urandom(len(content) - 8_192)
        backend.path.write_bytes(content)
        with pytest.raises((StoreCorrupt, VerificationFailed)):
            verify_store(backend.open())

    def test_a_missing_leader_row(self, backend: SqliteBackend) -> None:
        store, lease, records = started(backend, 1)
        backend.execute("DELETE FROM leader")
        for act in (store.head, lambda: store.append(lease.term, chain_on(records[0], 1, lease.term))):
            with pytest.raises(StoreCorrupt):
                act()

    @pytest.mark.parametrize(
        "url",
        ["sqlite:", "sqlite:///", "sqlite://host/x.db", "sqlite:///x.db?mode=rwc", "sqlite:///x.db?busy_ms=-1",
         "sqlite:///x.db?busy_ms=99999999999", "sqlite:///x.db?cache=shared", "sqlite:///a%00b"],
    )  # fmt: skip
    def test_nonsense_urls(self, url: str) -> None:
        with pytest.raises(InvalidRequest):
            open_sqlite(url)

    def test_a_name_that_leads_out_of_the_folder(self, backend: SqliteBackend) -> None:
        store, _, _ = started(backend, 3)
        store.seal(2)
        backend.execute("UPDATE segment SET name = '../journal.db'")
        with pytest.raises(MintyardError, match="can't name a file"):
            backend.open().read(0, 9)


class TestSegmentFiles:
    def test_a_crash_between_file_and_rows_leaves_both_and_no_harm(
        self, backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, _, records = started(backend, 9)
        write = store._segments.write

        def crash(name: str, content: bytes) -> None:
            write(name, content)
            raise KeyboardInterrupt

        monkeypatch.setattr(store._segments, "write", crash)
        with pytest.raises(KeyboardInterrupt):
            store.seal(6)
        again = backend.open()
        (left,) = (backend.folder / "segments").iterdir()
        assert again.read(0, 99) == records
        assert again.seal(6) == 6
        assert list((backend.folder / "segments").iterdir()) == [left]
        assert again.read(0, 99) == records

    def test_rows_that_came_back_are_given_once(self, backend: SqliteBackend) -> None:
        store, _, records = started(backend, 9)
        store.seal(6)
        for r in records[2:6]:
            backend.execute(
                "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)",
                r.seq,
                r.term,
                r.now,
                r.format,
                r.chain,
                r.body,
            )
        assert store.read(0, 99) == records
        assert store.read(4, 99) == records[4:]

    def test_a_missing_segment_is_named(self, backend: SqliteBackend) -> None:
        store, _, _ = started(backend, 9)
        store.seal(6)
        store.close()
        (path,) = (backend.folder / "segments").iterdir()
        path.unlink()
        with pytest.raises(VerificationFailed, match=path.name):
            backend.open().read(0, 9)

    def test_an_unwritable_folder_moves_nothing(self, backend: SqliteBackend) -> None:
        store, lease, records = started(backend, 9)
        (backend.folder / "segments").write_text("a file where the folder should be")
        with pytest.raises(StoreUnavailable):
            store.seal(6)
        assert store.read(0, 99) == records
        assert store.append(lease.term, chain_on(records[-1], 1, lease.term)) == 10


def fill_up(store: SqliteStore, lease: Lease, size_bytes: int) -> Record:
    """Append until no room is left; the last record that was acknowledged."""
    head = store.head()
    for _ in range(10_000):
        records = chain_on(head, 2, lease.term, size_bytes)
        try:
            store.append(lease.term, records)
        except StoreUnavailable:
            assert head is not None
            return head
        head = records[-1]
    raise AssertionError("the disk never filled up")


class TestDiskFull:
    def test_a_full_database_keeps_what_was_acknowledged_and_goes_on_later(
        self, backend: SqliteBackend
    ) -> None:
        store, lease, _ = started(backend, 1)
        store._live().execute("PRAGMA max_page_count = 60")
        last = fill_up(store, lease, 10_000)
        assert store.head() == last
        assert verify_store(backend.open()).last_seq == last.seq
        store._live().execute("PRAGMA max_page_count = 100000")
        assert store.append(lease.term, chain_on(last, 2, lease.term, 10_000)) == last.seq + 2
        assert verify_store(store).last_seq == last.seq + 2

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
    def test_a_full_file_system(self, tmp_path: Path) -> None:
        mount = tmp_path / "small"
        mount.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", mount], capture_output=True
        ).returncode:
            pytest.skip("mounting is not allowed here")
        backend = SqliteBackend(mount / "hub")
        try:
            ballast = mount / "ballast"
            ballast.write_bytes(bytes(1_000_000))
            store, lease, records = started(backend, 1)
            last = fill_up(store, lease, 50_000)
            assert store.head() == last
            with pytest.raises(StoreUnavailable):
                store.save_snapshot(Snapshot(1, records[0].chain, 1, b"", os.urandom(2_000_000)))
            assert not any((backend.folder / "snapshots").iterdir())
            ballast.unlink()
            assert store.append(lease.term, chain_on(last, 1, lease.term, 1_000)) == last.seq + 1
            fresh = backend.open()
            assert verify_store(fresh).last_seq == last.seq + 1
            assert fresh.load_snapshot(9) is None
        finally:
            backend.close()
            subprocess.run(["umount", mount], check=True)


class TurnedClock(BootClock):
    """A clock that tests turn: `boot` empty is the wall clock."""

    def __init__(self, boot: str = "boot-1") -> None:
        super().__init__()
        self.boot, self.ms, self.observed_ms = boot, 1_000_000, 0

    def now(self) -> Instant:
        return Instant(self.boot, self.ms)

    def observe_ms(self) -> int:
        return self.observed_ms


class TestLeaseClock:
    def pair(self, backend: SqliteBackend, clock: TurnedClock) -> tuple[SqliteStore, SqliteStore]:
        backend.folder.mkdir(exist_ok=True)
        stores = SqliteStore(backend.path, clock=clock), SqliteStore(backend.path, clock=clock)
        backend._opened += stores
        return stores

    def test_to_the_millisecond(self, backend: SqliteBackend) -> None:
        clock = TurnedClock()
        one, two = self.pair(backend, clock)
        assert one.acquire("hub-1", 500) is not None
        clock.ms += 499
        assert two.acquire("hub-2", 500) is None
        clock.ms += 1
        assert two.acquire("hub-2", 500) == Lease("hub-2", 2, 500)

    def test_a_reboot_frees_it(self, backend: SqliteBackend) -> None:
        clock = TurnedClock()
        one, two = self.pair(backend, clock)
        assert one.acquire("hub-1", 3_600_000) is not None
        clock.boot, clock.ms = "boot-2", 5
        assert two.acquire("hub-2", 500) is not None

    def test_a_wall_clock_set_back_locks_nobody_out(self, backend: SqliteBackend) -> None:
        """By that clock the lease would last a year; who has watched it unchanged for its life may take it."""
        clock = TurnedClock(boot="")
        one, two = self.pair(backend, clock)
        lease = one.acquire("hub-1", 500)
        assert lease is not None
        clock.ms -= 365 * 86_400_000
        assert two.acquire("hub-2", 500) is None
        clock.observed_ms += 499
        assert two.acquire("hub-2", 500) is None
        clock.observed_ms += 1
        assert two.acquire("hub-2", 500) == Lease("hub-2", 2, 500)

    def test_one_that_is_renewed_is_never_taken_by_watching(self, backend: SqliteBackend) -> None:
        clock = TurnedClock(boot="")
        one, two = self.pair(backend, clock)
        lease = one.acquire("hub-1", 500)
        assert lease is not None
        for _ in range(10):
            assert two.acquire("hub-2", 500) is None
            clock.ms += 300
            clock.observed_ms += 300
            lease = one.renew(lease, 500)

    def test_the_real_clock_runs_forward_within_one_boot(self) -> None:
        clock = BootClock()
        first, second = clock.now(), clock.now()
        assert first.boot == second.boot
        assert first.ms <= second.ms
        assert clock.observe_ms() <= clock.observe_ms()
