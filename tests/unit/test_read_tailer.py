"""Tailers: every durable record once and in order, whatever fails on the way; and a replica that is the state."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.read_model_run import Run

from mintyard.adapters.stores.memory import MemoryStore
from mintyard.app.journal import Checkpoint
from mintyard.app.replica import Replica
from mintyard.app.tailer import START, Entry, Tailer, entries_after
from mintyard.domain import commands as c
from mintyard.domain import snapshot
from mintyard.domain.errors import StoreUnavailable, VerificationFailed
from mintyard.ports.store import Record


class Collector:
    """Keeps what it took; fails at the batches in `failing` (counted from 0) once."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.checkpoint = START
        self.taken: list[int] = []
        self.calls = 0
        self.failing = set(failing)
        self.enough = threading.Event()
        self.wanted = 2**62

    def take(self, entries: Sequence[Entry]) -> None:
        call, self.calls = self.calls, self.calls + 1
        if call in self.failing:
            raise StoreUnavailable(why="test")
        self.taken += [entry.seq for entry in entries]
        self.checkpoint = Checkpoint(entries[-1].seq, entries[-1].record.chain)
        if len(self.taken) >= self.wanted:
            self.enough.set()


def played(ticks: int = 40) -> Run:
    run = Run(9)
    run.found()
    run.play(ticks)
    return run


def head_of(run: Run) -> int:
    assert run.head is not None
    return run.head.seq


def test_every_record_comes_once_and_in_order() -> None:
    run, collector = played(), Collector()
    assert Tailer(run.store, collector, 7).catch_up() == head_of(run)
    assert collector.taken == list(range(1, head_of(run) + 1))
    assert Tailer(run.store, collector, 7).step() == 0
    run.store.seal(head_of(run) - 3)
    again = Collector()
    Tailer(run.store, again, 7).catch_up()
    assert again.taken == collector.taken


def test_a_batch_that_failed_is_handed_over_again() -> None:
    run, collector = played(), Collector(failing=(1, 2, 4))
    collector.wanted = head_of(run)
    stop = threading.Event()
    thread = threading.Thread(target=Tailer(run.store, collector, 11).run, args=(stop,))
    thread.start()
    assert collector.enough.wait(20)
    run.tick(c.OpenAccount(None, "late"))
    collector.enough.clear()
    collector.wanted = head_of(run)
    assert collector.enough.wait(20)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert collector.taken == list(range(1, head_of(run) + 1))


class Damaged:
    """A store that gives one record altered."""

    def __init__(self, store: MemoryStore, place: int, changes: dict[str, object]) -> None:
        self.store, self.place, self.changes = store, place, changes

    def read(self, after_seq: int, limit: int) -> list[Record]:
        return [
            msgspec.structs.replace(record, **self.changes) if record.seq == self.place else record
            for record in self.store.read(after_seq, limit)
        ]


@pytest.mark.parametrize(
    "changes", [{"body": b"\x92\x90\x90"}, {"now": 5}, {"seq": 13}, {"chain": b"x" * 32}]
)
def test_an_altered_record_ends_the_tailer_before_it_is_taken(changes: dict[str, object]) -> None:
    run, collector = played(), Collector()
    tailer = Tailer(Damaged(run.store, 12, changes), collector, 4)
    with pytest.raises(VerificationFailed):
        tailer.run(threading.Event())
    assert collector.taken == list(range(1, 9))


def test_a_body_that_is_no_body_is_refused() -> None:
    from mintyard.app.journal import make_record

    record = make_record(None, 1, 1, 1, b"\xc1 not msgpack")
    with pytest.raises(VerificationFailed, match="can't be read"):
        entries_after(START, [record])


def test_the_replica_is_the_state() -> None:
    run = played()
    replica = Replica()
    entries = entries_after(START, run.store.read(0, 10_000))
    replica.take(entries[:20])
    replica.take(entries[10:30])  # some of them again
    with pytest.raises(VerificationFailed, match="came instead"):
        replica.take(entries[31:])
    assert replica.checkpoint.seq == 30
    assert not replica.broken
    replica.take(entries)
    assert snapshot.state_hash(replica.state) == snapshot.state_hash(run.state)


def test_a_record_that_does_not_fit_breaks_the_replica() -> None:
    run = played()
    entries = entries_after(START, run.store.read(0, 10_000))
    replica = Replica()
    replica.take(entries[:20])
    doubled = msgspec.structs.replace(entries[20], events=[*entries[0].events, *entries[20].events])
    del replica.state.ledger.accounts["acme"]
    with pytest.raises(VerificationFailed, match="don't fit"):
        replica.take([msgspec.structs.replace(doubled, events=entries[1].events)])
    assert replica.broken
