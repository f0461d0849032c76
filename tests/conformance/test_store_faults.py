"""The faulty store keeps its promises: each fault is what it says, and a seed gives the same faults each time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.stores.backends import chain_on

from mintyard.adapters.stores.faulty import Fault, FaultPlan, FaultyStore
from mintyard.adapters.stores.memory import MemoryDisk, MemoryStore
from mintyard.app.journal import verify_store
from mintyard.domain.errors import CommitUnknown, Fenced, InvariantBroken, StoreUnavailable, Unavailable
from mintyard.ports.store import Lease

LIFE_MS = 60_000


class Bench:
    """A leader on a faulty store; call 0 was its `acquire`."""

    def __init__(self, plan: FaultPlan) -> None:
        self.disk = MemoryDisk()
        self.stalls: list[int] = []
        self.store = FaultyStore(MemoryStore(self.disk), plan, stall=self.stalls.append, stall_ms=250)
        lease = self.store.acquire("hub-1", LIFE_MS)
        assert lease is not None
        self.lease: Lease = lease

    def append(self, count: int = 1) -> int:
        head = MemoryStore(self.disk).head()
        return self.store.append(self.lease.term, chain_on(head, count, self.lease.term))

    def durable_seq(self) -> int:
        return self.disk.leader.head_seq


def with_fault(fault: Fault, seed: int = 0) -> Bench:
    return Bench(FaultPlan(seed, script={1: fault}))


def test_before_the_commit() -> None:
    bench = with_fault(Fault.BEFORE_COMMIT)
    with pytest.raises(StoreUnavailable):
        bench.append(2)
    assert bench.durable_seq() == 0
    assert bench.append(2) == 2


def test_after_the_commit_the_records_are_there() -> None:
    bench = with_fault(Fault.AFTER_COMMIT)
    with pytest.raises(CommitUnknown):
        bench.append(2)
    assert bench.durable_seq() == 2
    assert bench.append() == 3


def test_in_the_middle_both_ends_occur_and_an_outage_follows() -> None:
    outcomes = set()
    for seed in range(40):
        bench = with_fault(Fault.MID_COMMIT, seed)
        with pytest.raises(CommitUnknown):
            bench.append(2)
        (injected,) = bench.store.injected
        assert bench.durable_seq() == (2 if injected.durable else 0)
        away = 0
        while True:
            try:
                bench.store.head()
                break
            except StoreUnavailable:
                away += 1
        outcomes.add((injected.durable, away))
    assert outcomes == {(durable, away) for durable in (False, True) for away in (0, 1, 2)}


def test_a_stall_is_only_late() -> None:
    bench = with_fault(Fault.STALL)
    assert bench.append() == 1
    assert bench.stalls == [250]


def test_a_rival_really_takes_the_lease() -> None:
    bench = with_fault(Fault.RIVAL)
    with pytest.raises(Fenced) as caught:
        bench.append()
    assert caught.value.params == {"term": 1, "current": 2}
    assert bench.durable_seq() == 0
    with pytest.raises(Fenced):
        bench.append()
    lease = bench.store.acquire("hub-1", LIFE_MS)
    assert lease == Lease("hub-1", 3, LIFE_MS)


def test_a_full_disk_refuses_writes_for_a_while_and_never_reads() -> None:
    lengths = set()
    for seed in range(20):
        bench = with_fault(Fault.DISK_FULL, seed)
        refused = 0
        while True:
            assert bench.store.read(0, 9) == [] if refused != 1 else True
            try:
                bench.append()
                break
            except StoreUnavailable:
                refused += 1
        # Call 1 was the read; the fault scripted for a write is ignored there.
        lengths.add(refused)
    assert lengths == {0}
    for seed in range(20):
        bench = with_fault(Fault.DISK_FULL, seed)
        refused = 0
        while bench.durable_seq() == 0:
            try:
                bench.append()
            except StoreUnavailable:
                refused += 1
                assert bench.store.read(0, 9) == []
        lengths.add(refused)
    assert lengths == {0, 1, 2, 3}


def test_quiet_ends_all_faults() -> None:
    bench = Bench(FaultPlan(per_mille={Fault.BEFORE_COMMIT: 0}))
    bench.store._plan = FaultPlan(per_mille={Fault.BEFORE_COMMIT: 1_000})
    with pytest.raises(StoreUnavailable):
        bench.append()
    bench.store.quiet = True
    assert bench.append() == 1


@pytest.mark.parametrize("rates", [{Fault.STALL: -1}, {Fault.STALL: 600, Fault.RIVAL: 600}])
def test_impossible_rates(rates: dict[Fault, int]) -> None:
    with pytest.raises(InvariantBroken):
        FaultPlan(per_mille=rates)


def drive(seed: int, calls: int) -> tuple[list[object], MemoryDisk, int]:
    """A leader that recovers from whatever happens; what was acknowledged must be durable, and once."""
    disk = MemoryDisk()
    rates = dict.fromkeys(Fault, 60)
    store = FaultyStore(MemoryStore(disk), FaultPlan(seed, per_mille=rates), stall=lambda ms: None)
    log: list[object] = []
    lease: Lease | None = None
    head = None
    acknowledged = 0
    for _ in range(calls):
        try:
            if lease is None:
                lease = store.acquire("hub-1", LIFE_MS)
                assert lease is not None
                head = store.head()
                assert acknowledged <= (head.seq if head else 0)
            records = chain_on(head, 2, lease.term)
            acknowledged = store.append(lease.term, records)
            head = records[-1]
            store.seal(acknowledged // 2)
            log.append(acknowledged)
        except (Unavailable, Fenced) as error:
            # Whatever it was: discard what is known and recover from the store.
            log.append(type(error).__name__)
            lease = None
    return [*log, *store.injected], disk, acknowledged


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_leader_that_recovers_loses_nothing_and_a_seed_repeats(seed: int) -> None:
    log, disk, acknowledged = drive(seed, 120)
    assert verify_store(MemoryStore(disk)).last_seq >= acknowledged > 0
    again, _, _ = drive(seed, 120)
    assert again == log


def test_all_faults_occur() -> None:
    seen = {entry.fault for entry in drive(1, 400)[0] if hasattr(entry, "fault")}
    assert seen == set(Fault)
