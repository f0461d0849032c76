"""What every store must do, run over all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.conformance.stores.backends import EVERY, Backend, chain_on, make_backend

from mintyard.app.journal import Checkpoint, stream, verify_store
from mintyard.domain.errors import (
    Fenced,
    InvalidName,
    InvalidRequest,
    InvariantBroken,
    JournalGap,
    StoreUnavailable,
    TooLarge,
    VerificationFailed,
)
from mintyard.domain.limits import MAX_READ_BYTES, MAX_RECORD_BYTES, MAX_RECORDS_PER_APPEND
from mintyard.ports.store import Lease, Record, Snapshot, Store

LIFE_MS = 60_000


@pytest.fixture(params=EVERY)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with make_backend(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def store(backend: Backend) -> Store:
    return backend.open()


def lead(store: Store, holder: str = "hub-1") -> Lease:
    lease = store.acquire(holder, LIFE_MS)
    assert lease is not None
    return lease


def filled(store: Store, count: int, size_bytes: int = 100) -> tuple[Lease, list[Record]]:
    lease = lead(store)
    records = chain_on(None, count, lease.term, size_bytes)
    assert store.append(lease.term, records) == count
    return lease, records


def snapshot(record: Record, schema: int = 1, body: bytes = b"state") -> Snapshot:
    return Snapshot(record.seq, record.chain, schema, b"h" * 32, body)


class TestAppend:
    def test_a_new_store_is_empty(self, store: Store) -> None:
        assert store.head() is None
        assert store.read(0, 10) == []
        assert store.load_snapshot(9) is None
        assert store.seal(100) == 0

    def test_what_was_appended_is_read_by_everyone(self, backend: Backend, store: Store) -> None:
        _, records = filled(store, 5)
        for reader in (store, backend.open()):
            assert reader.read(0, 100) == records
            assert reader.read(2, 2) == records[2:4]
            assert reader.read(5, 10) == []
            assert reader.read(99, 10) == []
            assert reader.head() == records[-1]

    def test_it_outlives_the_store_object(self, backend: Backend, store: Store) -> None:
        lease, records = filled(store, 3)
        store.close()
        again = backend.open()
        assert again.head() == records[-1]
        more = chain_on(records[-1], 2, lease.term)
        assert again.append(lease.term, more) == 5
        assert verify_store(again).records == 5

    def test_nothing_is_a_batch_too(self, store: Store) -> None:
        lease, _ = filled(store, 2)
        assert store.append(lease.term, []) == 2
        with pytest.raises(Fenced):
            store.append(lease.term + 1, [])

    @pytest.mark.parametrize("skip", [0, 2])
    def test_a_gap_or_a_repetition_is_refused_whole(self, store: Store, skip: int) -> None:
        lease, records = filled(store, 3)
        ahead = chain_on(records[-1], 4, lease.term)
        given = records[-1:] + ahead if skip == 0 else ahead[1:]
        with pytest.raises(JournalGap) as caught:
            store.append(lease.term, given)
        assert caught.value.params == {"expected": 4, "given": given[0].seq}
        assert store.head() == records[-1]

    def test_a_first_record_that_is_not_record_1(self, store: Store) -> None:
        lease = lead(store)
        with pytest.raises(JournalGap):
            store.append(lease.term, chain_on(None, 2, lease.term)[1:])
        assert store.head() is None

    def test_a_hole_inside_a_batch_leaves_nothing(self, store: Store) -> None:
        lease = lead(store)
        records = chain_on(None, 4, lease.term)
        for given in (records[:2] + records[3:], [*records[:2], records[1]], records[::-1]):
            with pytest.raises(JournalGap):
                store.append(lease.term, given)
        assert store.read(0, 10) == []

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("now", -1),
            ("now", 2**63),
            ("format", 2**63),
            ("format", -1),
            ("chain", b"short"),
            ("term", 2),
            ("term", -1),
        ],
    )
    def test_a_malformed_record_leaves_nothing(self, store: Store, field: str, value: object) -> None:
        lease = lead(store)
        good, bad = chain_on(None, 2, lease.term)
        bad = msgspec.structs.replace(bad, **{field: value})
        with pytest.raises(InvariantBroken):
            store.append(lease.term, [good, bad])
        assert store.head() is None

    def test_sizes_have_limits(self, store: Store) -> None:
        lease = lead(store)
        small = Record(1, lease.term, 0, 0, bytes(32), b"")
        with pytest.raises(TooLarge):
            store.append(lease.term, [Record(1, lease.term, 0, 0, bytes(32), bytes(MAX_RECORD_BYTES + 1))])
        with pytest.raises(TooLarge):
            store.append(lease.term, [small] * (MAX_RECORDS_PER_APPEND + 1))
        assert store.head() is None

    def test_a_body_may_be_empty_or_any_bytes(self, store: Store) -> None:
        lease = lead(store)
        bodies = [b"", b"\0", bytes(range(256)), b"'; DROP TABLE record; --", "é€".encode("utf-16")]
        records = [Record(i + 1, lease.term, 0, 0, bytes(32), body) for i, body in enumerate(bodies)]
        store.append(lease.term, records)
        assert [r.body for r in store.read(0, 10)] == bodies

    def test_fields_keep_63_bits(self, store: Store) -> None:
        lease = lead(store)
        record = Record(1, lease.term, 2**63 - 1, 2**63 - 1, b"\xff" * 32, b"x")
        store.append(lease.term, [record])
        assert store.head() == record

    @pytest.mark.slow
    def test_large_bodies_and_many_records(self, store: Store) -> None:
        lease = lead(store)
        large = chain_on(None, 6, lease.term, 16 * 1_024 * 1_024)
        for record in large:
            store.append(lease.term, [record])
        many = chain_on(large[-1], 20_000, lease.term, 50)
        assert store.append(lease.term, many) == 20_006
        # A read is bounded in bytes, whatever was asked for, and goes on where it stopped.
        first = store.read(0, 10_000)
        assert first == large[: MAX_READ_BYTES // len(large[0].body)]
        assert store.seal(10_000) == 10_000
        assert list(stream(store)) == large + many
        assert verify_store(store).body_bytes == sum(len(r.body) for r in large + many)


class TestRead:
    @pytest.mark.parametrize(("after", "limit"), [(-1, 1), (0, 0), (0, -5), (2**63, 1)])
    def test_nonsense_is_refused(self, store: Store, after: int, limit: int) -> None:
        with pytest.raises(InvalidRequest):
            store.read(after, limit)

    def test_a_huge_limit_is_fine(self, store: Store) -> None:
        _, records = filled(store, 3)
        assert store.read(0, 2**70) == records

    def test_a_closed_store_says_so(self, backend: Backend) -> None:
        store = backend.open()
        store.close()
        store.close()
        with pytest.raises(StoreUnavailable):
            store.head()
        with pytest.raises(StoreUnavailable):
            store.acquire("hub-1", LIFE_MS)


class TestLease:
    def test_one_holds_it(self, backend: Backend, store: Store) -> None:
        lease = lead(store)
        assert lease == Lease("hub-1", 1, LIFE_MS)
        assert backend.open().acquire("hub-2", LIFE_MS) is None

    def test_its_holder_takes_it_again_under_a_higher_term(self, store: Store) -> None:
        first = lead(store)
        second = lead(store)
        assert second.term == first.term + 1
        with pytest.raises(Fenced):
            store.append(first.term, chain_on(None, 1, first.term))
        store.append(second.term, chain_on(None, 1, second.term))

    def test_released_it_is_free_and_its_term_is_over(self, backend: Backend, store: Store) -> None:
        lease, records = filled(store, 1)
        store.release(lease)
        with pytest.raises(Fenced):
            store.append(lease.term, chain_on(records[0], 1, lease.term))
        with pytest.raises(Fenced):
            store.renew(lease, LIFE_MS)
        rival = backend.open().acquire("hub-2", LIFE_MS)
        assert rival == Lease("hub-2", 2, LIFE_MS)
        store.release(lease)  # no longer ours: nothing happens
        assert store.acquire("hub-3", LIFE_MS) is None

    def test_it_expires_and_the_deposed_leader_is_fenced(self, backend: Backend, store: Store) -> None:
        old = store.acquire("hub-1", 1)
        assert old is not None
        other = backend.open()
        new = patiently(lambda: other.acquire("hub-2", LIFE_MS))
        assert new.term == old.term + 1
        with pytest.raises(Fenced) as caught:
            store.append(old.term, chain_on(None, 1, old.term))
        assert caught.value.params == {"term": old.term, "current": new.term}
        with pytest.raises(Fenced):
            store.renew(old, LIFE_MS)
        assert store.head() is None
        other.append(new.term, chain_on(None, 1, new.term))

    def test_renewed_it_lives_on(self, backend: Backend, store: Store) -> None:
        short = store.acquire("hub-1", 50)
        assert short is not None
        assert store.renew(short, LIFE_MS) == Lease("hub-1", short.term, LIFE_MS)
        other = backend.open()
        end = time.monotonic() + 0.15
        while time.monotonic() < end:
            assert other.acquire("hub-2", LIFE_MS) is None
        store.append(short.term, chain_on(None, 1, short.term))

    def test_expired_but_not_taken_its_term_still_counts(self, store: Store) -> None:
        """Only a rival ends a term: between expiry and takeover nobody else can have written."""
        lease = store.acquire("hub-1", 1)
        assert lease is not None
        time.sleep(0.01)
        store.append(lease.term, chain_on(None, 1, lease.term))
        assert store.renew(lease, LIFE_MS).term == lease.term

    def test_the_head_survives_changes_of_leader(self, backend: Backend, store: Store) -> None:
        lease, records = filled(store, 2)
        store.release(lease)
        other = backend.open()
        new = lead(other, "hub-2")
        other.append(new.term, chain_on(records[-1], 1, new.term))
        assert verify_store(store).last_term == 2

    @pytest.mark.parametrize("life_ms", [0, -1, 10**9])
    def test_an_impossible_life_is_refused(self, store: Store, life_ms: int) -> None:
        with pytest.raises(InvalidRequest):
            store.acquire("hub-1", life_ms)

    @pytest.mark.parametrize("holder", ["", " ", "a" * 300, "a\0b", "-x"])
    def test_an_impossible_holder_is_refused(self, store: Store, holder: str) -> None:
        with pytest.raises(InvalidName):
            store.acquire(holder, LIFE_MS)

    def test_many_at_once_one_gets_it(self, backend: Backend) -> None:
        stores = [backend.open() for _ in range(8)]
        start = threading.Barrier(len(stores))
        leases: list[Lease | None] = []

        def race(store: Store, holder: str) -> None:
            start.wait()
            leases.append(store.acquire(holder, LIFE_MS))

        in_threads(lambda i: race(stores[i], f"hub-{i}"), len(stores))
        assert len([lease for lease in leases if lease is not None]) == 1
        assert len(leases) == len(stores)


class TestSeal:
    def test_reads_span_segments_and_rows(self, backend: Backend, store: Store) -> None:
        lease, records = filled(store, 30)
        assert store.seal(10) == 10
        assert store.seal(10) == 0
        assert store.seal(17) == 7
        for reader in (store, backend.open()):
            assert reader.read(0, 100) == records
            for after in range(31):
                assert reader.read(after, 4) == records[after : after + 4]
        more = chain_on(records[-1], 2, lease.term)
        store.append(lease.term, more)
        assert verify_store(store).records == 32

    def test_all_of_it(self, backend: Backend, store: Store) -> None:
        lease, records = filled(store, 5)
        assert store.seal(1_000) == 5
        again = backend.open()
        assert again.head() == records[-1]
        assert again.read(0, 10) == records
        assert again.read(5, 10) == []
        assert again.append(lease.term, chain_on(records[-1], 1, lease.term)) == 6
        assert len(store.read(0, 10)) == 6

    def test_an_altered_segment_is_noticed(self, backend: Backend, store: Store) -> None:
        _, records = filled(store, 9)
        store.seal(6)
        backend.damage_segments()
        fresh = backend.open()
        with pytest.raises(VerificationFailed):
            fresh.read(0, 10)
        with pytest.raises(VerificationFailed):
            verify_store(fresh)
        assert fresh.read(6, 10) == records[6:]

    def test_a_hole_is_never_sealed_over(self, backend: Backend, store: Store) -> None:
        filled(store, 9)
        backend.delete_record(4)
        with pytest.raises(VerificationFailed):
            store.seal(9)

    def test_readers_meanwhile_see_no_hole(self, backend: Backend, store: Store) -> None:
        lease, records = filled(store, 200)
        reader, sealer = backend.open(), backend.open()
        seen: list[list[Record]] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seen.append(list(stream(reader, 0, 37)))

        def seal() -> None:
            try:
                for upto in range(10, 201, 10):
                    sealer.seal(upto)
            finally:
                done.set()

        in_threads(lambda i: (read, seal)[i](), 2)
        assert seen
        assert all(run == records for run in seen)
        assert store.append(lease.term, chain_on(records[-1], 1, lease.term)) == 201

    def test_two_that_seal_at_once_move_each_record_once(self, backend: Backend, store: Store) -> None:
        _, records = filled(store, 100)
        sealers = [backend.open() for _ in range(3)]
        moved: list[int] = []

        def seal(i: int) -> None:
            moved.extend(sealers[i].seal(upto) for upto in range(5 + i, 101, 5))

        in_threads(seal, 3)
        assert sum(moved) + sealers[0].seal(100) == 100
        assert store.read(0, 1_000) == records


class TestDamage:
    """What someone changed below the store is noticed, not handed on."""

    def test_an_altered_body(self, backend: Backend, store: Store) -> None:
        filled(store, 9)
        backend.set_body(5, b"1,000,000 GPU-hours for ann")
        with pytest.raises(VerificationFailed) as caught:
            verify_store(store)
        assert caught.value.params["seq"] == 5

    def test_a_record_cut_from_the_middle(self, backend: Backend, store: Store) -> None:
        _, records = filled(store, 9)
        backend.delete_record(5)
        with pytest.raises(VerificationFailed) as caught:
            store.read(0, 10)
        assert caught.value.params["seq"] == 5
        assert store.read(0, 4) == records[:4]

    def test_a_cut_tail(self, backend: Backend, store: Store) -> None:
        lease, records = filled(store, 9)
        backend.delete_record(9)
        for look in (
            store.head,
            lambda: store.read(0, 100),
            lambda: store.read(8, 1),
            lambda: verify_store(store),
        ):
            with pytest.raises(VerificationFailed):
                look()
        assert store.read(0, 8) == records[:8]
        with pytest.raises((VerificationFailed, JournalGap)):
            store.append(lease.term, chain_on(records[7], 1, lease.term))

    def test_an_expected_head_from_elsewhere(self, store: Store) -> None:
        _, records = filled(store, 9)
        assert verify_store(store, Checkpoint(7, records[6].chain)).last_seq == 9
        with pytest.raises(VerificationFailed):
            verify_store(store, Checkpoint(10, bytes(32)))
        with pytest.raises(VerificationFailed):
            verify_store(store, Checkpoint(7, bytes(32)))


class TestSnapshots:
    def test_the_newest_three_are_kept(self, backend: Backend, store: Store) -> None:
        _, records = filled(store, 9)
        for record in records[:5]:
            store.save_snapshot(snapshot(record, body=b"%d" % record.seq * 1_000))
        for seq in (5, 4, 3):
            newest = backend.open().load_snapshot(1)
            assert newest == snapshot(records[seq - 1], body=b"%d" % seq * 1_000)
            backend.damage_snapshot(seq)
        assert store.load_snapshot(1) is None

    def test_newer_schemas_are_passed_over(self, store: Store) -> None:
        _, records = filled(store, 3)
        store.save_snapshot(snapshot(records[0], schema=1))
        store.save_snapshot(snapshot(records[1], schema=2))
        assert store.load_snapshot(0) is None
        assert store.load_snapshot(1) == snapshot(records[0], schema=1)
        assert store.load_snapshot(2**40) == snapshot(records[1], schema=2)

    def test_one_of_the_same_record_replaces(self, store: Store) -> None:
        _, records = filled(store, 3)
        store.save_snapshot(snapshot(records[2], body=b"first"))
        store.save_snapshot(snapshot(records[2], body=b"second"))
        store.save_snapshot(snapshot(records[2], body=b"second"))
        assert store.load_snapshot(1) == snapshot(records[2], body=b"second")

    def test_an_old_one_does_not_push_out_newer_ones(self, store: Store) -> None:
        _, records = filled(store, 9)
        for seq in (9, 8, 7, 1):
            store.save_snapshot(snapshot(records[seq - 1]))
        assert store.load_snapshot(1) == snapshot(records[8])

    def test_one_ahead_of_the_journal_is_refused(self, store: Store) -> None:
        _, records = filled(store, 3)
        with pytest.raises(InvariantBroken):
            store.save_snapshot(snapshot(chain_on(records[-1], 1, 1)[0]))
        with pytest.raises(InvariantBroken):
            store.save_snapshot(Snapshot(1, b"", -1, b"", b""))
        assert store.load_snapshot(9) is None

    def test_a_large_one(self, store: Store) -> None:
        _, records = filled(store, 1)
        large = snapshot(records[0], body=bytes(range(256)) * 40_000)
        store.save_snapshot(large)
        assert store.load_snapshot(1) == large


def patiently(ask: Callable[[], Lease | None], seconds: float = 10.0) -> Lease:
    """The first lease that `ask` gives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (lease := ask()) is not None:
            return lease
    raise AssertionError("the lease never expired")


def in_threads(work: Callable[[int], object], count: int) -> None:
    """Run `work(0)` to `work(count - 1)` at once; the first error of any is raised here."""
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
