"""A store in memory: for tests and simulation, where "durable" means that it outlives the object, not the process.

`MemoryDisk` is what outlives: several stores on one disk are like several processes on one database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

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
from mintyard.domain.errors import Fenced, StoreUnavailable
from mintyard.domain.limits import SNAPSHOTS_KEPT
from mintyard.ports.store import Lease, Record, Snapshot


class MemoryDisk:
    """The contents that stores share; tests may damage them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.leader = Leader("", 0, 0, b"")
        self.expires_at_ms = 0
        self.records: dict[int, Record] = {}
        self.index: list[Segment] = []
        self.segments: dict[str, bytes] = {}
        self.snapshots: dict[int, tuple[Snapshot, bytes]] = {}


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class MemoryStore:
    """`clock_ms` decides when a lease expires: a simulation hands in its virtual one."""

    def __init__(self, disk: MemoryDisk | None = None, clock_ms: Callable[[], int] = _monotonic_ms) -> None:
        self.disk = disk or MemoryDisk()
        self._clock_ms = clock_ms
        self._closed = False

    def acquire(self, holder: str, life_ms: int) -> Lease | None:
        check_lease(holder, life_ms)
        with self._open() as disk:
            now, leader = self._clock_ms(), disk.leader
            if leader.holder not in ("", holder) and now < disk.expires_at_ms:
                return None
            disk.leader = Leader(holder, leader.term + 1, leader.head_seq, leader.head_chain)
            disk.expires_at_ms = now + life_ms
            return Lease(holder, leader.term + 1, life_ms)

    def renew(self, lease: Lease, life_ms: int) -> Lease:
        check_lease(lease.holder, life_ms)
        with self._open() as disk:
            if (disk.leader.holder, disk.leader.term) != (lease.holder, lease.term):
                raise Fenced(term=lease.term, current=disk.leader.term)
            disk.expires_at_ms = self._clock_ms() + life_ms
            return Lease(lease.holder, lease.term, life_ms)

    def release(self, lease: Lease) -> None:
        with self._open() as disk:
            leader = disk.leader
            if (leader.holder, leader.term) == (lease.holder, lease.term):
                disk.leader = Leader("", leader.term, leader.head_seq, leader.head_chain)

    def append(self, term: int, records: Sequence[Record]) -> int:
        check_append(term, records)
        with self._open() as disk:
            leader = disk.leader
            why = refusal(term, records[0].seq if records else None, leader)
            if why is not None:
                raise why
            if not records:
                return leader.head_seq
            disk.records.update((record.seq, record) for record in records)
            last = records[-1]
            disk.leader = Leader(leader.holder, leader.term, last.seq, last.chain)
            return last.seq

    def head(self) -> Record | None:
        with self._open() as disk:
            if not disk.leader.head_seq:
                return None
            found = gather(
                disk.leader.head_seq - 1, 1, self._walk(disk.leader.head_seq - 1), disk.leader.head_seq
            )
            return check_head(found[0], disk.leader)

    def read(self, after_seq: int, limit: int) -> list[Record]:
        limit = check_read(after_seq, limit)
        with self._open() as disk:
            return gather(after_seq, limit, self._walk(after_seq), disk.leader.head_seq)

    def seal(self, upto_seq: int) -> int:
        moved = 0
        with self._open() as disk:
            while True:
                sealed = disk.index[-1].last_seq if disk.index else 0
                rows = (disk.records[seq] for seq in sorted(disk.records) if sealed < seq <= upto_seq)
                run = first_run(gather(sealed, MAX_READ_RECORDS, rows, min(upto_seq, disk.leader.head_seq)))
                if not run:
                    return moved
                prev = disk.index[-1].last_chain if disk.index else NO_CHAIN
                segment, content = pack(prev, run)
                disk.segments[segment.name] = content
                disk.index.append(segment)
                for record in run:
                    del disk.records[record.seq]
                moved += len(run)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        with self._open() as disk:
            check_snapshot(snapshot, disk.leader.head_seq)
            disk.snapshots[snapshot.seq] = (snapshot, snapshot_digest(snapshot))
            for seq in sorted(disk.snapshots)[:-SNAPSHOTS_KEPT]:
                del disk.snapshots[seq]

    def load_snapshot(self, max_schema: int) -> Snapshot | None:
        with self._open() as disk:
            newest_first = [disk.snapshots[seq] for seq in sorted(disk.snapshots, reverse=True)]
            fitting = (kept for kept in newest_first if kept[0].schema <= max_schema)
            return check_covered(newest_intact(fitting), disk.leader.head_seq)

    def close(self) -> None:
        self._closed = True

    def _open(self) -> _Held:
        if self._closed:
            raise StoreUnavailable(why="this store was closed")
        return _Held(self.disk)

    def _walk(self, after_seq: int) -> Iterator[Record]:
        for segment in self.disk.index:
            if segment.last_seq > after_seq:
                yield from unpack(segment, self.disk.segments.get(segment.name, b""))
        for seq in sorted(seq for seq in self.disk.records if seq > after_seq):
            yield self.disk.records[seq]


class _Held:
    """The disk, locked."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def __enter__(self) -> MemoryDisk:
        self._disk.lock.acquire()
        return self._disk

    def __exit__(self, *_: object) -> None:
        self._disk.lock.release()


_DISKS: Final[dict[str, MemoryDisk]] = {}


def open_memory(url: str) -> MemoryStore:
    """`memory://` is a store of its own; all of `memory://NAME` in this process share one disk."""
    name = urlsplit(url).netloc
    return MemoryStore(_DISKS.setdefault(name, MemoryDisk())) if name else MemoryStore()
