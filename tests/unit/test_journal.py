"""The hash chain: what it covers, and that verification finds every change."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.adapters.stores.memory import MemoryStore
from mintyard.app.journal import GENESIS, Checkpoint, chain_of, make_record, stream, verify, verify_store
from mintyard.domain.errors import InvariantBroken, VerificationFailed
from mintyard.domain.limits import MAX_RECORD_BYTES
from mintyard.ports.store import Record, Snapshot


def chain(count: int, term: int = 1) -> list[Record]:
    records: list[Record] = []
    for i in range(count):
        prev = records[-1] if records else None
        records.append(make_record(prev, term + i // 4, 1_000 + i, 1, b"tick %d" % i))
    return records


def replaced(record: Record, **fields: object) -> Record:
    return Record(**({name: getattr(record, name) for name in record.__struct_fields__} | fields))


def rechained(records: list[Record]) -> list[Record]:
    """As a forger who knows the algorithm would: every chain fits again."""
    last, fixed = GENESIS, []
    for r in records:
        last = chain_of(last, r.seq, r.term, r.now, r.format, r.body)
        fixed.append(replaced(r, chain=last))
    return fixed


def where(records: list[Record], **known: object) -> int:
    with pytest.raises(VerificationFailed) as caught:
        verify(records, **known)
    return caught.value.params["seq"]


class TestChain:
    def test_the_format_is_fixed(self) -> None:
        """Journals are kept for years: these values never change."""
        assert GENESIS.hex() == GENESIS_HEX
        first = make_record(None, 1, 1_700_000_000_000_000_000, 1, b"")
        second = make_record(first, 2, 1_700_000_000_000_000_001, 1, b"body")
        assert (first.chain.hex(), second.chain.hex()) == (FIRST_HEX, SECOND_HEX)

    @given(st.lists(st.binary(max_size=50), max_size=8))
    def test_made_records_verify(self, bodies: list[bytes]) -> None:
        records: list[Record] = []
        for body in bodies:
            records.append(make_record(records[-1] if records else None, 3, 7, 2, body))
        report = verify(records)
        assert (report.records, report.last_seq) == (len(bodies), len(bodies))
        assert report.body_bytes == sum(map(len, bodies))
        assert report.chain == (records[-1].chain if records else GENESIS)

    @pytest.mark.parametrize(
        ("term", "now", "format"),
        [
            (-1, 5, 1),
            (1, -1, 1),
            (1, 5, -1),
            (2**63, 5, 1),
            (1, 2**63, 1),
            (1, 5, 2**63),
            (0, 2_000, 1),
            (1, 4, 1),
        ],
    )
    def test_no_record_goes_back_or_out_of_range(self, term: int, now: int, format: int) -> None:
        with pytest.raises(InvariantBroken):
            make_record(chain(1)[0], term, now, format, b"")

    def test_a_body_has_a_limit(self) -> None:
        with pytest.raises(InvariantBroken):
            make_record(None, 1, 1, 1, bytes(MAX_RECORD_BYTES + 1))


class TestVerify:
    @pytest.mark.parametrize(
        "change",
        [
            lambda r: {"term": r.term + 1},
            lambda r: {"now": r.now + 1},
            lambda r: {"format": r.format + 1},
            lambda r: {"body": r.body + b"\0"},
            lambda r: {"body": r.body[:-1]},
            lambda r: {"chain": r.chain[:-1] + bytes([r.chain[-1] ^ 1])},
            lambda r: {"chain": b""},
            lambda r: {"term": -1},
            lambda r: {"now": 2**64},
        ],
    )
    @pytest.mark.parametrize("at", [0, 4, 8])
    def test_any_altered_field(self, at: int, change: Callable[[Record], dict[str, object]]) -> None:
        records = chain(9)
        records[at] = replaced(records[at], **change(records[at]))
        assert where(records) == at + 1

    @given(st.data())
    def test_any_flipped_bit_of_a_body(self, data: st.DataObject) -> None:
        records = chain(6)
        at = data.draw(st.integers(0, 5))
        body = bytearray(records[at].body)
        bit = data.draw(st.integers(0, len(body) * 8 - 1))
        body[bit // 8] ^= 1 << bit % 8
        records[at] = replaced(records[at], body=bytes(body))
        assert where(records) == at + 1

    @given(st.permutations(range(6)))
    def test_any_other_order(self, order: list[int]) -> None:
        records = chain(6)
        if order == sorted(order):
            assert verify([records[i] for i in order]).records == 6
        else:
            # The first one out of place, or the one whose place it took.
            first = next(i for i, at in enumerate(order) if i != at)
            assert where([records[i] for i in order]) == first + 1

    @pytest.mark.parametrize("at", range(8))
    def test_one_cut_out(self, at: int) -> None:
        records = chain(9)
        del records[at]
        assert where(records) == at + 1

    @pytest.mark.parametrize("at", range(9))
    def test_one_doubled(self, at: int) -> None:
        records = chain(9)
        records.insert(at, records[at])
        assert where(records) == at + 1

    def test_two_bodies_swapped(self) -> None:
        records = chain(9)
        records[3], records[6] = (
            replaced(records[3], body=records[6].body),
            replaced(records[6], body=records[3].body),
        )
        assert where(records) == 4

    def test_cut_out_and_numbered_anew(self) -> None:
        records = chain(9)
        del records[4]
        records = [replaced(r, seq=i + 1) for i, r in enumerate(records)]
        assert where(records) == 5

    @pytest.mark.parametrize(("field", "value"), [("term", 0), ("now", 5)])
    def test_a_term_or_time_that_goes_back_though_chained(self, field: str, value: int) -> None:
        records = chain(9)
        records[5] = replaced(records[5], **{field: value})
        assert where(rechained(records)) == 6

    def test_a_journal_of_another_origin(self) -> None:
        record = chain(1)[0]
        assert (
            where([replaced(record, chain=chain_of(bytes(32), 1, record.term, record.now, 1, record.body))])
            == 1
        )

    def test_a_part_from_a_trusted_record_on(self) -> None:
        records = chain(9)
        start = Checkpoint(4, records[3].chain)
        report = verify(records[4:], start=start)
        assert (report.first_seq, report.last_seq, report.records) == (5, 9, 5)
        assert where(records[4:]) == 1
        assert where(records[5:], start=start) == 5
        assert where(records[4:], start=Checkpoint(4, records[4].chain)) == 5

    def test_nothing_verifies_to_nothing(self) -> None:
        assert verify([]).last_seq == 0


class TestCutTail:
    def test_it_shows_only_against_a_known_head(self) -> None:
        records = chain(9)
        head = Checkpoint(9, records[8].chain)
        assert verify(records[:7]).last_seq == 7
        assert where(records[:7], expected_head=head) == 8
        assert where([], expected_head=head) == 1
        assert verify(records, head).last_seq == 9

    def test_records_after_the_known_head_are_welcome(self) -> None:
        records = chain(9)
        assert verify(records, Checkpoint(5, records[4].chain)).last_seq == 9

    def test_a_history_written_anew_shows_at_the_known_record(self) -> None:
        records = chain(9)
        forged = rechained([replaced(r, body=b"rich") if r.seq == 3 else r for r in records])
        assert verify(forged).last_seq == 9
        assert where(forged, expected_head=Checkpoint(9, records[8].chain)) == 9
        assert where(forged, known=[Checkpoint(4, records[3].chain), Checkpoint(9, forged[8].chain)]) == 4

    def test_known_records_that_contradict_each_other(self) -> None:
        records = chain(3)
        known = [Checkpoint(2, records[1].chain), Checkpoint(2, bytes(32))]
        assert where(records, known=known) == 2
        assert where(records[2:], start=Checkpoint(2, records[1].chain), known=known[1:]) == 2

    def test_a_snapshot_knows_too(self) -> None:
        store, records = filled(9)
        store.save_snapshot(Snapshot(7, records[6].chain, 1, b"", b""))
        assert verify_store(store).last_seq == 9
        cut_with_its_head_row(store, 5)
        with pytest.raises(VerificationFailed):
            verify_store(store)

    def test_so_does_a_snapshot_whose_record_was_replaced(self) -> None:
        store, records = filled(9)
        store.save_snapshot(Snapshot(7, bytes(32), 1, b"", b""))
        with pytest.raises(VerificationFailed) as caught:
            verify_store(store)
        assert caught.value.params["seq"] == 7
        assert verify(records).last_seq == 9


class TestStream:
    @pytest.mark.parametrize("batch", [1, 2, 9, 10, 1_000])
    def test_all_of_it_in_batches(self, batch: int) -> None:
        store, records = filled(9)
        assert list(stream(store, 0, batch)) == records
        assert list(stream(store, 4, batch)) == records[4:]

    def test_records_that_come_meanwhile(self) -> None:
        store, records = filled(3)
        reader = stream(store, 0, 2)
        assert list(itertools.islice(reader, 2)) == records[:2]
        more = make_record(records[-1], 1, 5_000, 1, b"late")
        store.append(1, [more])
        assert list(reader) == [records[2], more]


def filled(count: int) -> tuple[MemoryStore, list[Record]]:
    store = MemoryStore()
    for _ in range(3):
        store.acquire("hub-1", 60_000)
    records = chain(count)
    store.append(3, records)
    store.acquire("hub-1", 60_000)
    store.disk.leader = type(store.disk.leader)(
        "hub-1", 1, store.disk.leader.head_seq, store.disk.leader.head_chain
    )
    return store, records


def cut_with_its_head_row(store: MemoryStore, upto: int) -> None:
    """As someone would who knows the head row, but not the snapshot."""
    disk = store.disk
    disk.records = {seq: r for seq, r in disk.records.items() if seq <= upto}
    disk.leader = type(disk.leader)("hub-1", 1, upto, disk.records[upto].chain)


GENESIS_HEX = "2057c62cacc4ff5b3d5079c31b162c8ef7d3934a40b26a8342ca018c613b6dcc"
FIRST_HEX = "5a012f4be643b5c5bc54dbf97c089ebf6a4e5a21fa5d4acb89c8a5c1b8204ada"
SECOND_HEX = "8a71cda7fa526a1a02b868069c6e6c9539000bbc4c4bdb965da47d7c06cf0daa"
