"""The writer: apply first, speak after; a failed commit discards the state; leadership; overload; stopping; idling."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
from tests.unit.hub_material import (
    AUTHORITY,
    SETTINGS,
    founded,
    lead,
    nodes,
    opener,
    submit,
    ticket,
)

from mintyard.adapters.stores.faulty import Fault, FaultPlan, FaultyStore
from mintyard.adapters.stores.memory import MemoryDisk, MemoryStore
from mintyard.app.decisions import Look
from mintyard.app.journal import stream
from mintyard.app.leader import Leader
from mintyard.app.local_link import LocalLink, call
from mintyard.app.record import decode_body
from mintyard.app.recovery import recover
from mintyard.app.replay_journal import replay
from mintyard.app.writer import Phase, Writer, WriterSettings
from mintyard.domain import snapshot
from mintyard.domain.commands import ControlJobs, CreateGrant, SetTokenState, TakeReports
from mintyard.domain.errors import (
    CommitUnknown,
    InvariantBroken,
    MintyardError,
    NotLeader,
    Overloaded,
    StoreUnavailable,
    Unavailable,
)
from mintyard.domain.events import JobAdmitted
from mintyard.domain.replies import Batch, Refusal, Ticket
from mintyard.domain.state import State
from mintyard.domain.units import Unit
from mintyard.ports.store import Record


def link_of(writer: Writer) -> LocalLink:
    return LocalLink(writer, asyncio.get_running_loop())


class Gate(MemoryStore):
    """Appends wait until the test lets them go."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.open = threading.Event()
        self.open.set()
        self.appends: list[int] = []

    def append(self, term: int, records: Any) -> int:
        self.open.wait(30)
        self.appends.append(len(records))
        return super().append(term, records)

    def close(self) -> None:
        """It is opened again and again."""


class Heard:
    """An outbox that notes what was carried at which durable record."""

    def __init__(self) -> None:
        self.effects: list[Any] = []
        self.terms: list[int] = []
        self.pauses = 0

    def resume(self, term: int) -> None:
        self.terms.append(term)

    def take(self, effects: list[Any]) -> None:
        self.effects += effects

    def pause(self) -> None:
        self.pauses += 1


def journal(disk: MemoryDisk) -> list[Record]:
    return list(stream(MemoryStore(disk)))


async def turn(times: int = 50) -> None:
    """Let the loop and the store's thread go on."""
    for _ in range(times):
        await asyncio.sleep(0.001)


async def test_nothing_is_said_before_it_is_durable() -> None:
    disk = MemoryDisk()
    store = Gate(disk)
    outbox = Heard()
    writer = await lead(lambda: store, outbox=outbox)
    link = link_of(writer)
    await founded(link, nodes())
    notices: list[Any] = []
    writer.subscribe(notices.append)
    before = writer.durable_seq
    store.open.clear()
    admitted = asyncio.ensure_future(link.send(submit()))
    suspended = asyncio.ensure_future(link.send(SetTokenState(None, AUTHORITY.root, "suspend")))
    refused = asyncio.ensure_future(link.send(submit()))
    seen = asyncio.ensure_future(asyncio.to_thread(call, writer, Look(lambda state: state.seq)))
    await turn()
    assert writer.state_seq > before  # decided
    assert not any(one.done() for one in (admitted, suspended, refused, seen))
    assert not outbox.effects
    assert not any(notice.suspended for notice in notices)
    assert MemoryStore(disk).head().seq == before  # pyright: ignore[reportOptionalMemberAccess]
    store.open.set()
    answer = await admitted
    assert ticket(answer.reply).job == 1
    assert answer.seq <= writer.durable_seq
    assert [effect.order.job for effect in outbox.effects] == [1]
    assert any(notice.suspended == (AUTHORITY.root,) for notice in notices)
    # The refusal rests on the suspension, so it must not be heard before that is durable.
    refusal = await refused
    assert isinstance(refusal.reply, (Refusal, Batch))
    assert refusal.seq >= (await suspended).seq
    assert (await seen).seq >= answer.seq
    await writer.stop()


async def test_a_notice_comes_before_the_answer_it_belongs_to() -> None:
    writer = await lead(opener(MemoryDisk()))
    await founded(link_of(writer))
    order: list[str] = []
    writer.subscribe(lambda notice: order.append("notice") if notice.revoked else None)
    writer.offer(
        [(SetTokenState(None, AUTHORITY.root, "revoke"), None)], lambda outcomes: order.append("answer")
    )
    while "answer" not in order:
        await asyncio.sleep(0.001)
    assert order == ["notice", "answer"]
    assert writer.revocations.everything().revoked == (AUTHORITY.root,)
    await writer.stop()


async def test_what_piles_up_goes_out_in_one_append() -> None:
    store = Gate(MemoryDisk())
    writer = await lead(lambda: store, WriterSettings(tick_ms=0.1))
    link = link_of(writer)
    await founded(link)
    store.appends.clear()
    store.open.clear()
    waiting = []
    for _ in range(10):
        waiting.append(asyncio.ensure_future(link.send(submit())))
        await asyncio.sleep(0.005)
    store.open.set()
    seqs = [(await one).seq for one in waiting]
    assert len(set(seqs)) > 2  # several ticks,
    assert len(store.appends) == 2  # the first of which was in flight while the others were decided
    await writer.stop()


@pytest.mark.parametrize("fault", [Fault.BEFORE_COMMIT, Fault.AFTER_COMMIT, Fault.DISK_FULL])
async def test_a_failed_commit_discards_the_state(fault: Fault) -> None:
    disk = MemoryDisk()
    faulty = FaultyStore(MemoryStore(disk), FaultPlan(3))
    faulty.close = lambda: None
    faulty.quiet = True
    writer = await lead(lambda: faulty)
    link = link_of(writer)
    await founded(link)
    first = ticket((await link.send(submit("kept"))).reply)
    faulty._plan = FaultPlan(3, script={faulty._calls: fault})
    faulty.quiet = False
    with pytest.raises(CommitUnknown if fault is Fault.AFTER_COMMIT else StoreUnavailable):
        await link.send(submit("doubtful"))
    faulty.quiet = True
    await asyncio.wait_for(writer.leading(), 10)
    second = ticket((await link.send(submit("next"))).reply)
    assert writer.discards == 1
    assert second.job == first.job + (2 if fault is Fault.AFTER_COMMIT else 1)
    assert writer.mismatches == 0
    await writer.stop()
    assert replay(journal(disk)).difference is None


async def chaos(seed: int) -> None:
    """Many callers, a store that fails in every way. Everything acknowledged is in the journal, once, and nothing refused is."""
    rng = random.Random(seed)
    disk = MemoryDisk()
    plan = FaultPlan(
        seed,
        per_mille={
            Fault.BEFORE_COMMIT: 60,
            Fault.AFTER_COMMIT: 60,
            Fault.MID_COMMIT: 60,
            Fault.STALL: 60,
            Fault.RIVAL: 30,
            Fault.DISK_FULL: 20,
        },
    )
    stores: list[FaultyStore] = []

    def open_one() -> FaultyStore:
        store = FaultyStore(MemoryStore(disk), plan, stall_ms=1)
        store.quiet = not stores or stores[0].quiet
        stores.append(store)
        return store

    writer = await lead(open_one, WriterSettings(retry_ms=1, tick_ms=0.2, self_check=True))
    link = link_of(writer)
    await founded(link, nodes(4))
    for store in stores:
        store.quiet = False
    acknowledged: dict[str, int] = {}
    unknown: set[str] = set()
    refused: set[str] = set()

    async def caller(number: int) -> None:
        for turn_ in range(8):
            name = f"c{number}-{turn_}"
            await asyncio.sleep(rng.random() * 0.01)
            try:
                answer = await link.send(submit(name))
            except CommitUnknown:
                unknown.add(name)
            except Unavailable:
                refused.add(name)
            else:
                acknowledged[name] = ticket(answer.reply).job
                assert answer.seq <= writer.durable_seq

    await asyncio.wait_for(asyncio.gather(*(caller(number) for number in range(12))), 60)
    for store in stores:
        store.quiet = True
    await asyncio.wait_for(writer.leading(), 10)
    await link.send(CreateGrant(None, "lab", Unit.MONEY, 1))
    state = (await asyncio.to_thread(call, writer, Look(lambda state: state))).reply
    await writer.stop()
    recovered = recover(MemoryStore(disk))
    assert writer.mismatches == 0
    # Looking began a tick that left no record: its number and time are the only difference there may be.
    state.seq, state.now = recovered.state.seq, recovered.state.now
    assert snapshot.state_hash(recovered.state) == snapshot.state_hash(state)
    records = journal(disk)
    assert replay(records).difference is None
    found: dict[str, list[int]] = {}
    names = {}
    for record in records:
        for event in decode_body(record).events:
            if type(event).__name__ == "SpecInterned":
                names[event.spec] = event.content.name  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(event, JobAdmitted):
                found.setdefault(names[event.spec], []).append(event.job)
    for name, job in acknowledged.items():
        assert found.get(name) == [job], name
    assert all(len(jobs) == 1 for jobs in found.values())
    assert not refused & found.keys()
    assert found.keys() <= acknowledged.keys() | unknown
    assert any(store.injected for store in stores)


@pytest.mark.parametrize("seed", range(6))
async def test_seeded_faults(seed: int) -> None:
    await chaos(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
async def test_many_seeded_faults(seed: int) -> None:
    await chaos(seed)


async def test_a_command_that_breaks_the_core_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    writer = await lead(opener(disk))
    link = link_of(writer)
    await founded(link)
    from mintyard.domain import hub

    honest = hub.execute

    def execute(state: State, command: Any, now: int, **way: Any) -> Any:
        if isinstance(command, TakeReports):
            state.jobs.clear()  # half changed
            raise RuntimeError("broken")
        return honest(state, command, now, **way)

    monkeypatch.setattr(hub, "execute", execute)
    fine = asyncio.ensure_future(link.send(submit("before")))
    broken = asyncio.ensure_future(link.send(nodes()))
    after = asyncio.ensure_future(link.send(submit("after")))
    with pytest.raises(InvariantBroken):
        await broken
    with pytest.raises(StoreUnavailable):
        await fine
    assert ticket((await after).reply).job == 1
    assert writer.discards == 1
    await writer.stop()
    assert replay(journal(disk)).difference is None


async def test_too_many_commands_are_turned_away() -> None:
    store = Gate(MemoryDisk())
    writer = await lead(lambda: store, WriterSettings(max_inflight=10))
    link = link_of(writer)
    await founded(link)
    store.open.clear()
    waiting = [asyncio.ensure_future(link.send(submit())) for _ in range(10)]
    await turn(5)
    with pytest.raises(Overloaded):
        await link.send(submit())
    writer.offer([(nodes(), None)], lambda outcomes: None, ours=True)  # the hub's own are never turned away
    store.open.set()
    for one in waiting:
        ticket((await one).reply)
    ticket((await link.send(submit())).reply)
    assert writer.queued == 0
    await writer.stop()


async def test_a_stalled_store_bounds_what_is_decided_ahead() -> None:
    store = Gate(MemoryDisk())
    writer = await lead(lambda: store, WriterSettings(tick_ms=0.0, max_commands_per_tick=1))
    link = link_of(writer)
    await founded(link)
    before = writer.durable_seq
    store.open.clear()
    waiting = [asyncio.ensure_future(link.send(submit())) for _ in range(600)]
    await turn(100)
    from mintyard.app.writer import MAX_UNSENT_RECORDS

    assert writer.state_seq - before <= MAX_UNSENT_RECORDS + 1
    store.open.set()
    await asyncio.gather(*waiting)
    await writer.stop()


async def test_a_second_writer_waits_and_takes_over() -> None:
    disk = MemoryDisk()
    now = [0]
    store = opener(disk, lambda: now[0])
    first = await lead(store, life_ms=1_000)
    link = link_of(first)
    await founded(link)
    second = Writer(Leader(store, life_ms=1_000), SETTINGS)
    await second.start()
    await turn(30)
    assert second.phase is Phase.STANDBY
    with pytest.raises(NotLeader):
        await link_of(second).send(submit())
    ticket((await link.send(submit())).reply)
    now[0] += 5_000  # the store's clock: the first one's lease has run out, which it does not know
    await asyncio.wait_for(second.leading(), 10)
    with pytest.raises(NotLeader):
        await link.send(submit("fenced"))
    assert first.phase is Phase.STANDBY
    assert ticket((await link_of(second).send(submit())).reply).job == 2
    await first.stop()
    await second.stop()


async def test_a_leader_falls_silent_by_its_own_clock() -> None:
    """The store doesn't answer any more: when its lease may have run out, the leader says nothing more, and nothing late."""
    store = Gate(MemoryDisk())
    outbox = Heard()
    writer = await lead(lambda: store, life_ms=400, outbox=outbox)
    link = link_of(writer)
    await founded(link, nodes())
    store.open.clear()
    with pytest.raises(CommitUnknown):
        await asyncio.wait_for(link.send(submit()), 10)
    assert writer.phase is Phase.STANDBY
    with pytest.raises(NotLeader):
        await link.send(submit())
    assert not outbox.effects
    store.open.set()
    await asyncio.wait_for(writer.leading(), 10)
    state: State = (await asyncio.to_thread(call, writer, Look(lambda state: state))).reply
    assert len(state.jobs) == 1  # the late append had still been its own
    await writer.stop()


async def test_stopping_commits_what_was_taken_and_frees_the_lease() -> None:
    disk = MemoryDisk()
    writer = await lead(opener(disk))
    link = link_of(writer)
    await founded(link)
    waiting = [asyncio.ensure_future(link.send(submit())) for _ in range(100)]
    await asyncio.sleep(0)
    await writer.stop()
    assert sorted([ticket((await one).reply).job for one in waiting]) == list(range(1, 101))
    with pytest.raises(NotLeader):
        await link.send(submit())
    assert disk.leader.holder == ""
    assert len(recover(MemoryStore(disk)).state.jobs) == 100


async def test_an_idle_hub_writes_nothing() -> None:
    disk = MemoryDisk()
    writer = await lead(opener(disk), WriterSettings(round_every_ms=5, heartbeat_ms=5))
    link = link_of(writer)
    await founded(link, nodes(1))
    await link.send(submit("too wide", retries=0))
    await link.send(ControlJobs(AUTHORITY, "hold", (1,)))
    notices: list[Any] = []
    writer.subscribe(notices.append)
    await turn(20)
    head = writer.durable_seq
    await turn(100)
    assert writer.durable_seq == head
    assert notices  # it is heard all the same
    await writer.stop()


async def test_what_falls_due_happens_without_a_command() -> None:
    writer = await lead(opener(MemoryDisk()))
    link = link_of(writer)
    await founded(link, nodes())
    now = (await asyncio.to_thread(call, writer, Look(lambda state: state.now))).reply
    answer = await link.send(CreateGrant(None, "lab", Unit.MONEY, 1_000, expires_at=now + 150_000_000))
    soon = await link.send(submit("later", begin_at=now + 150_000_000))

    def look(state: State) -> tuple[str, str]:
        return state.ledger.grants[answer.reply.ref].state, state.jobs[ticket(soon.reply).job].state  # pyright: ignore

    for _ in range(500):
        found = (await asyncio.to_thread(call, writer, Look(look))).reply
        if found == ("expired", "starting"):
            break
        await asyncio.sleep(0.01)
    assert found == ("expired", "starting")
    await writer.stop()


def test_threads_against_a_balance_for_exactly_n_jobs() -> None:
    """64 threads, money for 37 jobs: 37 are admitted, whatever the order."""
    disk = MemoryDisk()
    affordable, cost = 37, 0
    ready, done = threading.Event(), threading.Event()
    held: dict[str, Any] = {}

    async def serve() -> None:
        writer = await lead(opener(disk))
        await founded(link_of(writer), money=1)
        held["writer"] = writer
        ready.set()
        while not done.is_set():
            await asyncio.sleep(0.005)
        await writer.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        writer: Writer = held["writer"]
        probe = call(writer, submit("probe"), 30).reply
        problem = probe.problem if isinstance(probe, Refusal) else probe.parts[0]
        assert problem.code == "quota_exhausted", problem
        from mintyard.domain.units import parse_amount

        cost = parse_amount(problem.params["needed"].split()[0], Unit.MONEY)
        call(writer, CreateGrant(None, "lab", Unit.MONEY, affordable * cost - 1), 30)
        tickets: list[Ticket] = []
        refusals: list[Any] = []
        lock = threading.Lock()

        def client() -> None:
            for _ in range(3):
                reply = call(writer, submit(), 30).reply
                part = reply.parts[0] if isinstance(reply, Batch) else reply
                with lock:
                    (tickets if isinstance(part, Ticket) else refusals).append(part)

        clients = [threading.Thread(target=client) for _ in range(64)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
    finally:
        done.set()
        thread.join()
    assert len(tickets) == affordable
    assert len(refusals) == 64 * 3 - affordable
    assert len(recover(MemoryStore(disk)).state.jobs) == affordable


async def test_a_damaged_journal_is_not_led() -> None:
    disk = MemoryDisk()
    writer = await lead(opener(disk))
    await founded(link_of(writer))
    await writer.stop()
    record = disk.records[2]
    disk.records[2] = Record(
        record.seq, record.term, record.now, record.format, record.chain, record.body + b" "
    )
    writer = Writer(Leader(opener(disk), life_ms=60_000), SETTINGS)
    await writer.start()
    await turn(30)
    assert writer.phase is Phase.STANDBY
    with pytest.raises(MintyardError, match="does not verify at record 2"):
        await link_of(writer).send(submit())
    assert disk.leader.holder == ""  # another may look at it
    await writer.stop()


async def test_recovery_uses_a_snapshot_and_refuses_a_false_one() -> None:
    disk = MemoryDisk()
    writer = await lead(opener(disk))
    link = link_of(writer)
    await founded(link, nodes())
    for _ in range(5):
        await link.send(submit())
    await writer.stop()
    whole = recover(MemoryStore(disk))
    from mintyard.ports.store import Snapshot

    assert whole.head is not None
    halfway = 6
    state = State()
    from mintyard.app.recovery import fold

    for record in journal(disk)[:halfway]:
        fold(state, record)
    chain = journal(disk)[halfway - 1].chain
    good = Snapshot(halfway, chain, snapshot.SCHEMA, snapshot.state_hash(state), snapshot.encode(state))
    MemoryStore(disk).save_snapshot(good)
    again = recover(MemoryStore(disk))
    assert again.snapshot_seq == halfway
    assert again.folded == whole.head.seq - halfway
    assert snapshot.state_hash(again.state) == snapshot.state_hash(whole.state)
    disk.snapshots.clear()
    MemoryStore(disk).save_snapshot(
        Snapshot(halfway, chain, snapshot.SCHEMA, b"0" * 32, snapshot.encode(state))
    )
    suspicious = recover(MemoryStore(disk))
    assert suspicious.snapshot_seq == 0
    assert snapshot.state_hash(suspicious.state) == snapshot.state_hash(whole.state)
