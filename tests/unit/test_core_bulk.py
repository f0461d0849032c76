"""What is decided at once is what it is one after the other: events, replies, state, and what is derived."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core_world import GPU_JOB, HOUR_NS, START, World, usd

from mintyard.domain import commands as c
from mintyard.domain import hub, snapshot
from mintyard.domain.events import AnyEvent, HoldClosed, JobEnded, Refunded
from mintyard.domain.jobs.bulk import ends, submits
from mintyard.domain.jobs.reports import (
    AttemptEnded,
    AttemptStarted,
    AttemptUsage,
    NodeGone,
    NodeSeen,
    Outcome,
    Report,
)
from mintyard.domain.jobs.spec import Array, Dependency, JobRequest, JobSpec, Shape, When
from mintyard.domain.ledger.book import Hold
from mintyard.domain.ledger.charging import Settlement
from mintyard.domain.ledger.prices import Bill, PriceBook
from mintyard.domain.limits import MAX_RETRIES
from mintyard.domain.replies import Batch, Refusal, Reply
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import Authority, Block, Caps
from mintyard.domain.units import NS_PER_MS, Unit, parse_amount

SPECS = (
    JobSpec("small", Shape(500, 256), 60_000),
    JobSpec("small", Shape(500, 256), 60_000, priority=7),
    GPU_JOB,
    JobSpec("gang", Shape(1_000, 512, gpus=1, members=2), 600_000, begin_at=START + HOUR_NS),
    JobSpec("long", Shape(8_000, 1_024), 86_400_000),
    JobSpec("dear", Shape(4_000, 1_024, gpus=4), 3_600_000, budget=usd("1")),
    JobSpec("never", Shape(1_000, 512, gpus=1, gpu_models=("tpu",))),
    JobSpec("files", Shape(), inputs=("a",), outputs=("b",)),
    JobSpec("wrong", Shape(0, 256)),
)


def twins(seed: int) -> tuple[World, World, list[Authority]]:
    """Two equal hubs, and tokens of every kind: plain, with ceilings, narrowed, capped, suspended, expired, unknown."""
    rng = random.Random(seed)
    amounts = [rng.choice((1, 3, 20, 400)) for _ in range(8)]
    worlds = (World(grants=False), World(grants=False))
    tokens: list[Authority] = []
    for world in worlds:
        for account, whole in zip(
            ("/", "acme", "acme/vision", "acme/vision/ann", "zeta"), amounts, strict=False
        ):
            world.do(c.CreateGrant(None, account, Unit.MONEY, usd(str(whole)), 100))
            world.do(c.CreateGrant(None, account, Unit.MONEY, usd(str(amounts[-1])), 50, 0, START + HOUR_NS))
            world.do(c.CreateGrant(None, account, Unit.MONEY, usd("5"), 10, START + HOUR_NS // 2))
        world.do(c.CreateGrant(None, "acme/vision", Unit.GPU, parse_amount("30", Unit.GPU)))
        capped = world.token("acme/vision/ann", caps=Caps(gpus_milli=1_000))
        ceiled = world.token("acme/vision/ann", ceilings={Unit.MONEY: usd(str(amounts[5])), Unit.CPU: 10**12})
        narrow = Block("b" * 32, ceiled.expires_at, {Unit.MONEY: usd(str(amounts[6]))})
        suspended = world.token("acme/vision")
        world.do(c.SetTokenState(None, suspended.root, "suspend"))
        tokens = [
            world.ann,
            capped,
            ceiled,
            msgspec.structs.replace(ceiled, blocks=(*ceiled.blocks, narrow)),
            world.token("zeta/eve"),
            suspended,
            msgspec.structs.replace(world.ann, expires_at=START - 1),
            msgspec.structs.replace(world.ann, blocks=(Block("9" * 32, world.ann.expires_at),)),
        ]
    return worlds[0], worlds[1], tokens


def share(rng: random.Random) -> c.Command:
    """Queues and limits that change what is admitted and what starts."""
    if rng.random() < 0.3:
        limits = Limits(rng.choice((None, 1_000, 3_000)), jobs=rng.choice((None, 1, 4)))
        return c.LimitAccount(None, rng.choice(("acme", "acme/vision/ann", "zeta")), limits)
    nominal = Limits(
        rng.choice((None, 2_000, 4_000)), rng.choice((None, 4_000)), jobs=rng.choice((None, 2, 6))
    )
    spec = QueueSpec("default", "", nominal, accepts=rng.random() < 0.8, starts=rng.random() < 0.8)
    return c.SetQueue(None, spec)


def requests(rng: random.Random, tokens: list[Authority], live: list[int]) -> list[c.Command]:
    """Mostly plain submits in streaks, with everything else between them."""
    asked: list[c.Command] = []
    for _ in range(rng.randint(1, 6)):
        some = rng.choices(tokens, (6, 3, 6, 6, 3, 1, 1, 1), k=2)
        specs = rng.choices(SPECS, (6, 6, 6, 3, 3, 1, 1, 1, 1), k=3)
        for _ in range(rng.randint(1, 12)):
            request = JobRequest(rng.choice(specs))
            roll = rng.random()
            if roll < 0.04:
                request = JobRequest(request.spec, array=Array((1, 2)))
            elif roll < 0.08 and live:
                request = JobRequest(request.spec, dependencies=(Dependency(When.OK, job=rng.choice(live)),))
            elif roll < 0.12:
                request = JobRequest(request.spec, held=True)
            jobs = (request,) * rng.choice((1, 1, 1, 1, 1, 1, 2))
            asked.append(c.Submit(rng.choice(some), jobs, rng.random() < 0.8, rng.random() < 0.05))
        asked.append(
            rng.choice(
                (
                    c.Tick(),
                    c.Submit(None, (JobRequest(SPECS[0]),)),
                    c.ControlJobs(None, "cancel", tuple(rng.sample(live, min(len(live), 3)) or [1])),
                    c.AdjustGrant(None, rng.randint(1, 12), rng.randint(-9, 9) * usd("1")),
                    c.EndGrant(None, rng.randint(1, 12)),
                    c.SetTokenState(None, tokens[1].root, rng.choice(("suspend", "resume"))),
                    c.SetAccountState(None, "acme/vision", rng.choice(("suspend", "resume", "resume"))),
                    share(rng),
                    c.SetPrices(
                        None, PriceBook(START + rng.randint(0, 2) * HOUR_NS // 4, rng.randint(1, 4) * 10**9)
                    ),
                    c.TakeReports("local", (NodeSeen(f"n{rng.randint(1, 2)}", 16_000, 16_384, 4, "tpu"),)),
                )
            )
        )
    return asked


def one_by_one(state: State, asked: list[c.Command], now: int) -> list[tuple[list[AnyEvent], Reply]]:
    return [hub.execute(state, command, now) for command in asked]


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_at_once_is_one_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    plain, fast, tokens = twins(seed)
    now = START
    for _ in range(rng.randint(1, 8)):
        now += rng.choice((0, 0, 1, 1_000, 1_000_000)) * NS_PER_MS
        live = list(plain.state.jobs)
        asked = requests(rng, tokens, live)
        for world in (plain, fast):
            hub.begin(world.state, world.state.seq + 1, now)
        wanted = one_by_one(plain.state, asked, now)
        got = list(hub.execute_all(fast.state, asked, now))
        assert got == wanted
        fast.state.ledger.check()
        assert snapshot.encode(fast.state) == snapshot.encode(plain.state)
        assert fast.state.queue.pending() == plain.state.queue.pending()
        assert [(s.id, s.count) for s in fast.state.specs.values()] == [
            (s.id, s.count) for s in plain.state.specs.values()
        ]
        assert {m.id: m.count for m in fast.state.mandates.values()} == {
            m.id: m.count for m in plain.state.mandates.values()
        }
        for name, account in plain.state.ledger.accounts.items():
            twin = fast.state.ledger.accounts[name]
            assert (twin.live_jobs, twin.tenant) == (account.live_jobs, account.tenant)


def asks(world: World, count: int, spec: JobSpec = SPECS[0]) -> list[c.Submit]:
    return [c.Submit(world.ann, (JobRequest(spec),)) for _ in range(count)]


def replies_of(world: World, asked: list[c.Submit]) -> list[Reply]:
    hub.begin(world.state, world.state.seq + 1, world.now)
    return [reply for _, reply in hub.execute_all(world.state, asked, world.now)]


def test_most_of_a_run_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    alone: list[c.Command] = []
    execute = hub.execute

    def counted(
        state: State, command: c.Command, now: int, *, at_once: bool = False
    ) -> tuple[list[AnyEvent], Reply]:
        alone.append(command)
        return execute(state, command, now, at_once=at_once)

    monkeypatch.setattr(hub, "execute", counted)
    replies = replies_of(world, asks(world, 2 * submits.MAX_RUN + 5))
    assert len(alone) == 1  # the first use of spec and mandate
    assert [reply.parts[0].job for reply in replies if isinstance(reply, Batch)] == list(
        range(1, 2 * submits.MAX_RUN + 6)
    )


def test_exactly_as_many_as_the_balance_pays_for() -> None:
    world = World()
    price = world.state.price_book(world.now)[1]
    (cost,) = {part.cost for reply in replies_of(world, asks(world, 1, GPU_JOB)) for part in reply.parts}
    fitting = usd("20") // cost
    assert price.gpu_nano
    replies = replies_of(world, asks(world, 2 * fitting, GPU_JOB))
    assert sum(isinstance(reply, Batch) for reply in replies) == fitting - 1
    assert [isinstance(reply, Refusal) for reply in replies] == [False] * (fitting - 1) + [True] * (
        fitting + 1
    )
    assert world.grant("acme/vision/ann").left == usd("20") - fitting * cost


def test_what_is_released_is_drawn_on_again_in_order() -> None:
    """Terms that passed a grant over because nothing was left of it don't outlive the tick."""
    world = World()
    low = world.do(c.CreateGrant(None, "acme/vision/ann", Unit.MONEY, usd("0.0005"), 1)).ref
    replies_of(world, asks(world, 1, GPU_JOB))  # takes all of the small grant and some of the other
    assert world.state.ledger.grants[low].left == 0
    replies_of(world, asks(world, 5))
    replies_of(world, asks(world, 5))
    world.do(c.ControlJobs(None, "cancel", (1,)))
    assert world.state.ledger.grants[low].left == usd("0.0005")
    replies_of(world, asks(world, 5))
    assert world.state.ledger.grants[low].left < usd("0.0005")


def test_what_a_ceiling_has_spent_counts_in_a_run() -> None:
    world = World()
    token = world.token("acme/vision/ann", ceilings={Unit.GPU: parse_amount("3", Unit.GPU)})
    (job,) = world.submit(GPU_JOB, authority=token)
    world.round()
    world.start(job)
    world.end(job, run_ms=1_800_000)
    asked = [c.Submit(token, (JobRequest(GPU_JOB),)) for _ in range(3)]
    assert [isinstance(reply, Batch) for reply in replies_of(world, asked)] == [True, True, False]
    counter = world.state.ledger.counters[token.root, Unit.GPU]
    assert (counter.held, counter.spent) == (parse_amount("2", Unit.GPU), parse_amount("0.5", Unit.GPU))


def test_a_budget_is_held_against_the_prices_of_now() -> None:
    world = World()
    short = msgspec.structs.replace(GPU_JOB, time_limit_ms=60_000)
    (cost,) = {part.cost for reply in replies_of(world, asks(world, 1, short)) for part in reply.parts}
    spec = msgspec.structs.replace(short, budget=cost)
    assert all(isinstance(reply, Batch) for reply in replies_of(world, asks(world, 2, spec)))
    world.do(
        c.SetPrices(None, PriceBook(world.now, gpu_nano=2 * world.state.price_book(world.now)[1].gpu_nano))
    )
    codes = [reply.problem.code for reply in replies_of(world, asks(world, 3, spec))]
    assert codes == ["budget_too_small"] * 3


# --- reports and rounds ---------------------------------------------------------------------------------------------

WORK = (
    JobSpec("small", Shape(500, 256), 60_000),
    JobSpec("share", Shape(500, 256, gpus=1, gpu_milli=250), 60_000),
    JobSpec("tries", Shape(250, 128), 60_000, retries=1),
    JobSpec("gang", Shape(1_000, 512, gpus=1, members=2), 600_000),
    JobSpec("model", Shape(1_000, 512, gpus=2, gpu_models=("tpu",)), 600_000),
)


def machines(world: World, rng: random.Random) -> list[c.Command]:
    del world
    return [
        c.TakeReports(
            "local",
            tuple(NodeSeen(f"n{n}", 32_000, 65_536, 8, rng.choice(("a100", "tpu"))) for n in range(1, 4)),
        ),
        c.SetPrices(None, PriceBook(START, 10**9, gpu_models={"tpu": 7 * 10**8})),
    ]


def some_work(rng: random.Random, tokens: list[Authority], live: list[int]) -> list[c.Command]:
    asked: list[c.Command] = []
    for _ in range(rng.randint(1, 8)):
        options: dict[str, Array | tuple[Dependency, ...]] = {}
        if rng.random() < 0.2:
            options["array"] = Array((1, 2, 3), throttle=rng.choice((0, 2)))
        if live and rng.random() < 0.3:
            when = rng.choice((When.OK, When.ANY, When.STARTED, When.NOT_OK))
            options["dependencies"] = (Dependency(when, job=rng.choice(live)),)
        request = JobRequest(rng.choice(WORK), **options)
        asked.append(c.Submit(rng.choice(tokens[:4]), (request,) * rng.randint(1, 3), False))
    return asked


def some_reports(rng: random.Random, state: State) -> c.TakeReports:
    """What engines may say of the live jobs, in streaks of the same end, with late, doubled and other reports between."""
    reports: list[Report] = []
    live = [job for job in state.jobs.values() if job.placement]
    run_ms = rng.choice((0, 5, 1_000, 90_000))
    for job in rng.sample(live, rng.randint(0, len(live))):
        attempt = job.attempt - (rng.random() < 0.05)
        if rng.random() < 0.5:
            reports.append(AttemptStarted(job.id, attempt, "boot"))
        if rng.random() < 0.1:
            reports.append(AttemptUsage(job.id, attempt, "boot", rng.choice((10, 40_000))))
        if rng.random() < 0.85:
            outcome = rng.choices(list(Outcome), (20, 1, 1, 1, 2, 1))[0]
            reports.append(
                AttemptEnded(
                    job.id,
                    attempt,
                    rng.choice(("boot", "boot", "later")),
                    outcome,
                    rng.choice((0, 0, 0, 0, 1)),
                    run_ms=rng.choice((run_ms, run_ms, run_ms, 7)),
                    earlier=rng.choice(({}, {}, {}, {"boot": 3})),
                )
            )
        if rng.random() < 0.1:
            reports.append(rng.choice(reports) if reports else NodeGone("n2"))
        if rng.random() < 0.1:
            reports.append(
                rng.choice((NodeGone("n1"), NodeSeen(f"n{rng.randint(1, 4)}", 32_000, 65_536, 8, "a100")))
            )
    return c.TakeReports("local", tuple(reports))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_reports_and_rounds_at_once_are_one_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    plain, fast, tokens = twins(seed)
    now = START
    for step in range(rng.randint(2, 12)):
        now += rng.choice((0, 1_000, 1_000_000)) * NS_PER_MS
        live = list(plain.state.jobs)
        asked = machines(plain, rng) if not step else some_work(rng, tokens, live)
        if rng.random() < 0.2:
            asked.append(
                c.ControlJobs(
                    None,
                    rng.choice(("cancel", "requeue")),
                    tuple(rng.sample(live, min(len(live), 2)) or [1]),
                )
            )
        if rng.random() < 0.3:
            asked.insert(rng.randrange(len(asked) + 1), share(rng))
        asked += [c.Tick(), some_reports(rng, plain.state), c.Tick(rng.randint(1, 5))]
        for world in (plain, fast):
            hub.begin(world.state, world.state.seq + 1, now)
        # Reports are drawn from the state before the round: some are late, some name a job that isn't placed yet.
        assert list(hub.execute_all(fast.state, asked, now)) == one_by_one(plain.state, asked, now)
        same(fast.state, plain.state)


def same(one: State, other: State) -> None:
    one.ledger.check()
    assert snapshot.encode(one) == snapshot.encode(other)
    assert one.queue.pending() == other.queue.pending()
    assert (one.cluster.table == other.cluster.table).all()
    assert one.cluster.gains == other.cluster.gains
    assert one.nodes == other.nodes
    assert one.arrays == other.arrays
    assert one.queue.class_counts == other.queue.class_counts
    for name, account in other.ledger.accounts.items():
        twin = one.ledger.accounts[name]
        assert (twin.live_jobs, twin.in_use) == (account.live_jobs, account.in_use)


def test_ends_alike_are_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    jobs = world.submit(*[WORK[0]] * 12)
    assert world.round() == jobs
    settled: list[Hold] = []
    honest = ends.settle

    def counted(hold: Hold, used: Bill) -> Settlement:
        settled.append(hold)
        return honest(hold, used)

    monkeypatch.setattr(ends, "settle", counted)
    world.now += 10_000 * NS_PER_MS
    reports = tuple(
        AttemptEnded(job, 1, "boot", Outcome.EXITED, run_ms=1_000 + job % 2 * 500) for job in jobs
    )
    hub.begin(world.state, world.state.seq + 1, world.now)
    events, _ = hub.execute(world.state, c.TakeReports("local", reports), world.now, at_once=True)
    assert len(settled) == 2
    assert len(events) == 24
    assert not world.state.jobs
    assert world.grant("acme").held == 0
    assert world.grant("acme").spent == sum(event.cost for event in events if isinstance(event, JobEnded))


def test_what_failed_for_good_without_blame_is_refunded() -> None:
    world = World()
    (job,) = world.submit(WORK[0])
    world.round()
    world.state.jobs[job].requeued = MAX_RETRIES
    world.now += 10_000 * NS_PER_MS
    lost = AttemptEnded(job, 1, "boot", Outcome.NODE_LOST, run_ms=5_000)
    hub.begin(world.state, world.state.seq + 1, world.now)
    events, _ = hub.execute(world.state, c.TakeReports("local", (lost,)), world.now, at_once=True)
    assert [type(event) for event in events] == [HoldClosed, Refunded, JobEnded]
    assert world.grant("acme").left == usd("20")
