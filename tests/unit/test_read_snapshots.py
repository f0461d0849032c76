"""Snapshots: saved when due, read back, recovered from, lifted from an older schema, and never in the way of the journal."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from tests.unit.read_model_run import Run

from mintyard.app import snapshots
from mintyard.app.recovery import recover
from mintyard.app.snapshots import SnapshotRules, Snapshotter, run_snapshots
from mintyard.domain import snapshot
from mintyard.domain.errors import InvariantBroken
from mintyard.domain.limits import SNAPSHOTS_KEPT
from mintyard.ports.store import Snapshot


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def played(seed: int = 1) -> Run:
    run = Run(seed)
    run.found()
    run.play(30)
    return run


def head_of(run: Run) -> int:
    assert run.head is not None
    return run.head.seq


def test_due_after_records_or_after_time() -> None:
    run, clock = played(), Clock()
    snapshotter = Snapshotter(run.store, SnapshotRules(every_records=1_000, every_s=60), elapsed_s=clock)
    assert not snapshotter.due()
    snapshotter.tailer.catch_up()
    assert snapshotter.tend() == 0
    clock.now_s = 61
    assert snapshotter.tend() == head_of(run)
    clock.now_s = 200
    assert snapshotter.tend() == 0  # nothing new
    eager = Snapshotter(run.store, SnapshotRules(every_records=3, every_s=1e9), elapsed_s=clock)
    assert eager.saved_seq == head_of(run)
    while head_of(run) < eager.saved_seq + 3:
        run.play(1)
    eager.tailer.catch_up()
    assert eager.tend() == head_of(run)


def test_recovery_from_the_snapshot_gives_the_same_state() -> None:
    run = played()
    snapshotter = Snapshotter(run.store)
    snapshotter.tailer.catch_up()
    saved = snapshotter.save()
    run.play(20)
    found = recover(run.store)
    assert found.snapshot_seq == saved
    assert found.folded == head_of(run) - saved
    assert snapshot.state_hash(found.state) == snapshot.state_hash(run.state)


def test_segments_below_the_oldest_kept_snapshot_are_sealed() -> None:
    run = played()
    snapshotter = Snapshotter(run.store)
    made = []
    for _ in range(SNAPSHOTS_KEPT):
        assert not run.store.disk.segments
        snapshotter.tailer.catch_up()
        made.append(snapshotter.save())
        run.play(5)
    assert run.store.disk.segments
    assert min(run.store.disk.records) == made[0] + 1
    assert [record.seq for record in run.store.read(0, 10_000)] == list(range(1, head_of(run) + 1))
    assert snapshot.state_hash(recover(run.store).state) == snapshot.state_hash(run.state)


def test_one_that_does_not_come_back_is_an_error_and_seals_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = played()
    snapshotter = Snapshotter(run.store)
    snapshotter.tailer.catch_up()
    save = run.store.save_snapshot

    def damaging(made: Snapshot) -> None:
        save(msgspec.structs.replace(made, body=made.body[:-1] + b"\x01"))

    monkeypatch.setattr(run.store, "save_snapshot", damaging)
    before = snapshotter.saved_seq
    with pytest.raises(InvariantBroken, match="does not come back"):
        snapshotter.save()
    assert snapshotter.saved_seq == before
    assert not run.store.disk.segments
    assert snapshot.state_hash(recover(run.store).state) == snapshot.state_hash(run.state)


def test_one_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = played()
    snapshotter = Snapshotter(run.store)
    snapshotter.tailer.catch_up()
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_BYTES", 100)
    with pytest.raises(InvariantBroken, match="above the limit"):
        snapshotter.save()
    assert run.store.load_snapshot(snapshot.SCHEMA) is None


def test_an_empty_journal_has_no_snapshot() -> None:
    run = Run()
    assert Snapshotter(run.store).save() == 0
    assert run.store.load_snapshot(snapshot.SCHEMA) is None


def test_a_snapshot_of_an_older_schema_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schema n - 1 as a test makes it up: the currency had another name, and there was no format."""
    run = played()
    raw: dict[str, Any] = msgspec.msgpack.decode(snapshot.encode(run.state))
    raw["coin"] = raw.pop("currency")
    del raw["format"]
    old = msgspec.msgpack.encode(raw)

    def lift(content: dict[str, Any]) -> dict[str, Any]:
        return {**content, "currency": content["coin"], "format": 1}

    monkeypatch.setitem(snapshot.UPCASTS, snapshot.SCHEMA - 1, lift)
    state = snapshot.decode(old, snapshot.SCHEMA - 1)
    assert snapshot.state_hash(state) == snapshot.state_hash(run.state)
    with pytest.raises(InvariantBroken, match="newer"):
        snapshot.decode(old, snapshot.SCHEMA + 1)


def test_a_thread_saves_until_it_is_stopped() -> None:
    run, stop = played(), threading.Event()
    thread = threading.Thread(target=run_snapshots, args=(run.store, stop, SnapshotRules(every_records=1)))
    thread.start()
    for _ in range(10_000):
        if (found := run.store.load_snapshot(snapshot.SCHEMA)) is not None and found.seq == head_of(run):
            break
        stop.wait(0.001)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert recover(run.store).snapshot_seq == head_of(run)
