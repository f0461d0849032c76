"""Dispatch: effects of durable events, reconciliation of every pair of views, job tokens, engines that fail in every way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.hub_material import AUTHORITY, SETTINGS, SHAPE, founded, opener, submit, ticket

from mintyard.adapters.engines.faulty import Faults, FaultyEngine
from mintyard.adapters.engines.simulated import Course, SimulatedCluster, SimulatedEngine
from mintyard.adapters.stores.memory import MemoryDisk, MemoryStore
from mintyard.app.decisions import Look
from mintyard.app.dispatch import Dispatch, EngineDispatch, sound
from mintyard.app.effects import LiveAttempt, Start, gpus_of
from mintyard.app.job_tokens import JobTokens
from mintyard.app.journal import stream
from mintyard.app.leader import Leader
from mintyard.app.local_link import LocalLink, call
from mintyard.app.reconciliation import compare, explain_end
from mintyard.app.record import decode_body
from mintyard.app.signing import SigningKeys
from mintyard.app.writer import Writer
from mintyard.credentials import KeyRing, decode_key_set, verify
from mintyard.credentials.store import ENV_HUB, ENV_KEYS
from mintyard.domain.commands import ControlJobs, Submit, TakeReports
from mintyard.domain.errors import StoreUnavailable
from mintyard.domain.events import AttemptBegan, JobEnded, JobPlaced, JobRequeued
from mintyard.domain.jobs.reports import AttemptEnded, NodeSeen, Outcome
from mintyard.domain.jobs.spec import Array, JobRequest, JobSpec
from mintyard.domain.replies import Ticket
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import NS_PER_S
from mintyard.ports.engine import AttemptKey, MemberPlacement, StartOrder
from mintyard.wire.launch import Launch, decode_launch, encode_launch

A, B, C, D = (AttemptKey(number, 1) for number in range(1, 5))
NODES = [NodeSeen(f"n{number}", 8_000, 32_768) for number in range(3)]


def live(key: AttemptKey, state: str) -> LiveAttempt:
    return LiveAttempt(key, state, 700)


def test_reconciliation_starts_stops_and_names_what_was_lost() -> None:
    mending = compare(
        {A, AttemptKey(2, 1), C},
        [live(A, "running"), live(AttemptKey(2, 2), "starting"), live(C, "stopping"), live(D, "running")],
    )
    assert mending.start == (AttemptKey(2, 2),)
    assert [(order.job, order.attempt) for order in mending.stop] == [(3, 1), (4, 1), (2, 1)]
    assert mending.lost == {D}
    assert compare({A}, [live(A, "starting")]).start == ()
    assert compare(set(), [live(A, "stopping")]).lost == frozenset()
    assert compare(set(), []) == compare([], [])


def test_only_the_engine_s_answer_ends_a_lost_attempt() -> None:
    never = AttemptEnded(4, 1, "b", Outcome.NEVER_STARTED)
    assert explain_end(never, {D}).outcome is Outcome.NODE_LOST
    assert explain_end(never, set()) is never
    ended = AttemptEnded(4, 1, "b", Outcome.EXITED)
    assert explain_end(ended, {D}) is ended


def test_masks_are_indices() -> None:
    assert gpus_of(0) == ()
    assert gpus_of(0b1000_0000_0000_0101) == (0, 2, 15)


def start_of(payload: bytes, time_limit_ms: int = 60_000) -> Start:
    order = StartOrder(
        7, 2, "j", "lab/team", (MemberPlacement("n0"),), 1_000, 100, 1_000, time_limit_ms, 5_000, payload
    )
    return Start("local", order, ("ab" * 16,))


def test_a_job_s_token_is_the_narrowest(tmp_path: Path) -> None:
    keys = SigningKeys(tmp_path)
    now = time.time_ns()
    tokens = JobTokens(keys, "http://hub:8080", lambda: now)
    tokens.hub_name = "yard"
    order = tokens.equip(
        start_of(encode_launch(Launch(argv=("env",), env={"A": "1", ENV_HUB: "http://evil"})))
    )
    authority = verify(order.token, keys.key_set, now)
    assert authority.scopes == {Scope.JOB_READ}
    assert (authority.account, authority.jobs, authority.parents) == ("lab/team", (7,), ("ab" * 16,))
    assert authority.clusters == ("yard",)
    assert now + 65 * NS_PER_S < authority.expires_at <= now + 30 * 60 * NS_PER_S
    env = decode_launch(order.payload).env
    assert env["A"] == "1"
    assert env[ENV_HUB] == "http://hub:8080"
    assert decode_key_set(env[ENV_KEYS]) == keys.key_set
    assert order.token not in repr(start_of(b""))
    assert tokens.equip(start_of(b"\xc1")).payload == b"\xc1"  # the engine says what is wrong with it
    tokens.equip(start_of(b"", time_limit_ms=366 * 86_400_000))  # as long as a token may live, not longer


def test_later_tokens_of_a_form_say_what_their_own_orders_ask(tmp_path: Path) -> None:
    keys = SigningKeys(tmp_path)
    now = time.time_ns()
    tokens = JobTokens(keys, clock=lambda: now)
    first = start_of(b"")
    asked = [
        msgspec.structs.replace(first, order=msgspec.structs.replace(first.order, job=job, account=account))
        for job, account in ((7, "lab/team"), (8, "lab/team"), (9, "lab"), (10, "lab"))
    ]
    made = [verify(tokens.equip(start).token, keys.key_set, now) for start in asked]
    assert [(one.jobs, one.account) for one in made] == [((s.order.job,), s.order.account) for s in asked]
    assert len({one.root for one in made}) == len(made)
    assert {one.scopes for one in made} == {frozenset({Scope.JOB_READ})}
    assert {(one.parents, one.expires_at) for one in made} == {(("ab" * 16,), made[0].expires_at)}


def test_a_withdrawn_key_signs_no_job_s_token(tmp_path: Path) -> None:
    keys = SigningKeys(tmp_path)
    old = keys.signing_key.key
    KeyRing.open(tmp_path, time.time_ns()).withdraw(old, time.time_ns())
    tokens = JobTokens(keys)
    token = tokens.equip(start_of(b"")).token
    assert verify(token, keys.key_set, time.time_ns()).key != old
    assert keys.version == 2


def test_a_report_of_wrong_types_stays_out_of_the_journal() -> None:
    fine = AttemptEnded(1, 1, "b", Outcome.EXITED)
    false = AttemptEnded(2, 1, "b", Outcome.EXITED, exit_code=True)
    huge = AttemptEnded(3, 1, "b", Outcome.EXITED, run_ms=2**70)
    nan = AttemptEnded(4, 1, "b", Outcome.EXITED, cpu_ms=float("nan"))  # pyright: ignore[reportArgumentType]
    assert sound([fine, false, huge, NODES[0], nan]) == [fine, NODES[0]]
    assert sound([]) == []


class Yard:
    """A writer with a dispatch to a simulated engine on the machine's clock."""

    def __init__(self, tmp_path: Path, disk: MemoryDisk | None = None, **faults: Any) -> None:
        self.disk = disk or MemoryDisk()
        self.cluster = SimulatedCluster(time.time_ns, NODES, self._course)
        self.course: Callable[[StartOrder], Course] = lambda order: Course(run_ms=30)
        self.keys = SigningKeys(tmp_path / "keys")
        self.starts: list[tuple[int, int]] = []
        self.seed = int(faults.pop("seed", 0))
        self.faults = Faults(**faults)

    def _course(self, order: StartOrder) -> Course:
        self.starts.append((order.job, order.attempt))
        return self.course(order)

    async def open(self) -> LocalLink:
        self.engine = FaultyEngine(
            SimulatedEngine(self.cluster, name="local"),
            self.seed,
            self.faults,
            lambda: SimulatedEngine(self.cluster, name="local"),
        )
        self.outbox = Dispatch()
        self.errors: list[tuple[str, str]] = []
        self.writer = Writer(Leader(opener(self.disk), "same", 60_000), SETTINGS, self.outbox)
        self.dispatch = EngineDispatch(
            self.engine,
            self.writer,
            JobTokens(self.keys),
            poll_s=0.01,
            inventory_s=0.05,
            failed=lambda engine, what: self.errors.append((engine, what)),
        )
        self.outbox.add(self.dispatch)
        self.outbox.start(self.writer)
        await self.writer.start()
        await self.writer.leading()
        return LocalLink(self.writer, asyncio.get_running_loop())

    async def close(self) -> None:
        await self.writer.stop()
        await asyncio.to_thread(self.outbox.close)

    async def look(self, at: Callable[[Any], Any]) -> Any:
        while True:
            try:
                return (await asyncio.to_thread(call, self.writer, Look(at))).reply
            except StoreUnavailable:  # what was seen was undone
                await asyncio.sleep(0.005)

    async def until(self, at: Callable[[Any], Any], wanted: Any, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while (found := await self.look(at)) != wanted:
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.005)

    def events(self, *kinds: type) -> list[Any]:
        records = stream(MemoryStore(self.disk))
        return [
            event for record in records for event in decode_body(record).events if isinstance(event, kinds)
        ]


def jobs(state: Any) -> dict[int, str]:
    return {job.id: job.state for job in state.jobs.values()}


async def test_a_job_runs_from_submit_to_acknowledged_end(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    link = await yard.open()
    await founded(link)
    await yard.until(lambda state: len(state.nodes), 3)
    ticket((await link.send(submit())).reply)
    array = JobRequest(JobSpec("sweep", SHAPE), array=Array((3, 5, 8)))
    reply = (await link.send(Submit(AUTHORITY, (array,)))).reply
    assert isinstance(reply.parts[0], Ticket)  # pyright: ignore[reportAttributeAccessIssue]
    await yard.until(jobs, {})
    assert sorted(yard.starts) == [(1, 1), (3, 1), (4, 1), (5, 1)]
    orders = {one.order.job: one.order for one in yard.cluster.attempts.values()}
    assert orders[4].array_indices == (3, 5, 8)
    assert (orders[4].array_job, orders[4].array_index) == (2, 5)
    assert len({order.token for order in orders.values()}) == 4
    while not all(one.acknowledged for one in yard.cluster.attempts.values()):
        await asyncio.sleep(0.005)
    bodies = b"".join(record.body for record in stream(MemoryStore(yard.disk)))
    assert not any(order.token.encode() in bodies for order in orders.values())
    await yard.close()


async def test_a_cancelled_job_is_stopped(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.course = lambda order: Course(run_ms=10**9)
    link = await yard.open()
    await founded(link)
    ticket((await link.send(submit())).reply)
    await yard.until(jobs, {1: "running"})
    await link.send(ControlJobs(AUTHORITY, "cancel", (1,)))
    await yard.until(jobs, {})
    assert yard.events(JobEnded)[0].trigger == "cancel"
    await yard.close()


async def test_an_engine_that_is_away_keeps_its_jobs_and_is_mended_when_it_is_back(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.course = lambda order: Course(run_ms=200)
    link = await yard.open()
    await founded(link)
    ticket((await link.send(submit())).reply)
    await yard.until(jobs, {1: "running"})
    yard.engine.down = "a cable"
    ticket((await link.send(submit())).reply)  # placed, but its order can't leave
    await yard.until(jobs, {1: "running", 2: "starting"})
    while not yard.dispatch.away:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert await yard.look(jobs) == {1: "running", 2: "starting"}
    yard.engine.down = ""
    await yard.until(jobs, {})
    assert yard.starts == [(1, 1), (2, 1)]
    assert not yard.dispatch.away
    assert yard.errors
    await yard.close()


async def test_a_restarted_hub_adopts_what_runs_and_mends_the_rest(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.course = lambda order: Course(run_ms=10**9 if order.job != 2 else 40)
    link = await yard.open()
    await founded(link)
    for _ in range(5):
        ticket((await link.send(submit(retries=0))).reply)
    await yard.until(
        lambda state: {n: s for n, s in jobs(state).items() if n != 2}, dict.fromkeys((1, 3, 4, 5), "running")
    )
    await yard.close()
    # While no hub runs: 2 ends, the engine loses all memory of 3, and something runs that nobody wants.
    await asyncio.sleep(0.05)
    del yard.cluster.attempts[3, 1]
    stray = StartOrder(77, 1, "stray", "lab", (MemberPlacement("n0"),), 1_000, 1, 0, 10**9, 0, b"")
    yard.cluster.claim(stray)
    link = await yard.open()
    await yard.until(
        lambda state: (2 in state.jobs, state.jobs[1].state, state.jobs[4].state),
        (False, "running", "running"),
    )
    # 3 is requeued without blame, once the engine has promised that its first attempt can never run.
    await yard.until(lambda state: (state.jobs[3].attempt, state.jobs[3].state), (2, "running"))
    assert [(event.job, event.cause) for event in yard.events(JobRequeued)] == [(3, "node_lost")]
    assert yard.starts.count((1, 1)) == 1
    while not yard.cluster.attempts[77, 1].ended:
        await asyncio.sleep(0.005)
    await yard.close()


async def test_a_deposed_leader_sends_nothing(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    link = await yard.open()
    await founded(link)
    yard.dispatch.pause()
    ticket((await link.send(submit())).reply)
    await asyncio.sleep(0.05)
    assert yard.starts == []
    yard.dispatch.resume(99)
    await yard.until(jobs, {})
    assert yard.starts == [(1, 1)]
    await yard.close()


async def test_nodes_come_change_and_go(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    link = await yard.open()
    await founded(link)
    await yard.until(lambda state: len(state.nodes), 3)
    yard.cluster.nodes["n1"] = NodeSeen("n1", 4_000, 1_024)
    yard.cluster.nodes["n9"] = NodeSeen("n9", 4_000, 1_024)
    yard.cluster.gone.add("n2")
    await yard.until(
        lambda state: {name: (node.state, node.cpus_milli) for name, node in state.nodes.items()},
        {"n0": ("ready", 8_000), "n1": ("ready", 4_000), "n2": ("lost", 8_000), "n9": ("ready", 4_000)},
    )
    head = yard.writer.durable_seq
    await asyncio.sleep(0.2)
    assert yard.writer.durable_seq == head  # what is unchanged is not journaled
    await yard.close()


async def test_a_report_that_breaks_the_core_does_not_block_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mintyard.domain import hub

    yard = Yard(tmp_path)
    honest = hub.execute

    def execute(state: Any, command: Any, now: int, **way: Any) -> Any:
        if isinstance(command, TakeReports) and any(
            getattr(report, "job", 0) == 2 for report in command.reports
        ):
            raise RuntimeError("broken")
        return honest(state, command, now, **way)

    link = await yard.open()
    await founded(link)
    monkeypatch.setattr(hub, "execute", execute)
    reply = (
        await link.send(Submit(AUTHORITY, tuple(JobRequest(JobSpec("job", SHAPE)) for _ in range(3))))
    ).reply
    assert len(reply.parts) == 3  # pyright: ignore[reportAttributeAccessIssue]
    await yard.until(jobs, {2: "starting"})
    assert not yard.cluster.attempts[2, 1].acknowledged
    await yard.close()


async def chaos(tmp_path: Path, seed: int) -> None:
    """An engine that loses orders, repeats, delays, reorders and withholds reports; a hub that is restarted in between."""
    yard = Yard(
        tmp_path,
        seed=seed,
        delayed=200,
        duplicated=200,
        reordered=200,
        dropped=50,
        order_lost=100,
        order_unknown=100,
        unavailable=50,
        delay_polls=5,
    )
    yard.course = lambda order: Course(run_ms=1 + order.job * 7 % 40, exit_code=int(order.job % 3 == 0))
    link = await yard.open()
    await founded(link)
    for round_ in range(3):
        for _ in range(12):
            ticket((await link.send(submit(retries=1))).reply)
        await asyncio.sleep(0.05)
        if round_ < 2:
            await yard.close()
            link = await yard.open()
    yard.engine.faults = Faults()
    # What was withheld as if a hub had crashed after reading it comes again after a restart.
    await yard.close()
    yard.faults = Faults()
    await yard.open()
    await yard.until(jobs, {}, 60)
    await yard.close()
    assert len(yard.starts) == len(set(yard.starts))  # no attempt twice
    ended = [event.job for event in yard.events(JobEnded)]
    assert sorted(ended) == list(range(1, 37))
    placed = [(event.job, event.attempt) for event in yard.events(JobPlaced)]
    assert len(placed) == len(set(placed))
    began = [(event.job, event.attempt) for event in yard.events(AttemptBegan)]
    assert set(began) <= set(yard.starts)
    triggers = {event.job: event.trigger for event in yard.events(JobEnded)}
    assert all(triggers[job] == ("fail" if job % 3 == 0 else "succeed") for job in triggers), triggers


@pytest.mark.parametrize("seed", range(3))
async def test_seeded_engine_faults(tmp_path: Path, seed: int) -> None:
    await chaos(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
async def test_many_seeded_engine_faults(tmp_path: Path, seed: int) -> None:
    await chaos(tmp_path, seed)


async def test_reports_wait_out_a_hub_that_can_t_take_them(tmp_path: Path) -> None:
    """The store is away when an attempt ends: the report is given again until it is durable."""
    from mintyard.adapters.stores.faulty import FaultPlan, FaultyStore

    yard = Yard(tmp_path)
    yard.course = lambda order: Course(run_ms=50)
    link = await yard.open()
    await founded(link)
    ticket((await link.send(submit())).reply)
    await yard.until(jobs, {1: "running"})
    yard.writer._leader._open_store = lambda: FaultyStore(MemoryStore(yard.disk), FaultPlan(0))
    yard.writer._leader._store.close()  # pyright: ignore[reportOptionalMemberAccess]
    await yard.until(jobs, {})
    assert yard.writer.discards >= 1
    await yard.close()
