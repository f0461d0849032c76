"""Queues and limits in the core: setting them, what a submit is told, what starts, and that all of it survives."""

from __future__ import annotations

import pytest
from tests.unit.core_world import World

from mintyard.app.explaining import explain_number
from mintyard.app.queue_listing import list_queues
from mintyard.domain import hub
from mintyard.domain.commands import (
    ControlJobs,
    CreateGrant,
    LimitAccount,
    RemoveQueue,
    SetAccountState,
    SetQueue,
    Submit,
    TakeReports,
    Tick,
)
from mintyard.domain.errors import (
    Forbidden,
    InvalidName,
    InvalidSpec,
    LimitReached,
    MintyardError,
    NeverWithinQuota,
    NotFound,
    QueueBusy,
    QueueRefuses,
    ScopeMissing,
)
from mintyard.domain.events import JobPlaced
from mintyard.domain.jobs.reports import NodeSeen, Outcome
from mintyard.domain.jobs.spec import Array, JobRequest, JobSpec, Shape
from mintyard.domain.limits import MAX_QUOTA
from mintyard.domain.replies import Refusal
from mintyard.domain.scheduling.choices import Backfill
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.snapshot import decode, encode, state_hash
from mintyard.domain.units import Unit

GPU = Shape(1_000, 512, gpus=1)


def job(queue: str = "q", shape: Shape = GPU, name: str = "job") -> JobSpec:
    return JobSpec(name, shape, 600_000, queue=queue)


def gpus(count: float) -> Limits:
    return Limits(gpus_milli=round(count * 1_000))


@pytest.fixture
def world() -> World:
    world = World()
    world.do(SetQueue(None, QueueSpec("q", nominal=gpus(2))))
    return world


def test_a_queue_lets_its_quota_run(world: World) -> None:
    jobs = world.submit(*[job()] * 3)
    assert world.round() == jobs[:2]
    world.end(jobs[0])
    assert world.round() == jobs[2:]


def test_quota_is_free_again_however_an_attempt_ends(world: World) -> None:
    first, second, third = world.submit(*[job()] * 3)
    assert world.round() == [first, second]
    world.start(first)
    world.do(ControlJobs(None, "requeue", (first,)))
    world.end(first, outcome=Outcome.STOPPED)
    world.end(second, outcome=Outcome.NODE_LOST)
    assert len(world.round()) == 2
    assert len(world.round()) == 0
    for number in (first, second, third):
        if world.state.jobs[number].placement:
            world.do(ControlJobs(None, "cancel", (number,)))
            world.end(number, outcome=Outcome.STOPPED)
    assert world.state.quotas.used.sum() == 0


def test_without_queues_any_name_will_do_and_with_them_only_theirs() -> None:
    world = World()
    (before,) = world.submit(job("whatever"))
    world.do(SetQueue(None, QueueSpec("q")))
    with pytest.raises(NotFound, match="queue whatever"):
        world.submit(job("whatever", name="another"))
    assert world.round() == [before]


@pytest.mark.parametrize("array", [None, Array((0, 1))])
def test_what_can_never_start_is_refused_at_once(world: World, array: Array | None) -> None:
    world.do(LimitAccount(None, "acme", Limits(jobs=1, cpus_milli=3_000)))
    for shape, what in ((Shape(1_000, 512, gpus=3), "Queue q"), (Shape(4_000, 512), "account acme")):
        with pytest.raises(NeverWithinQuota, match=what):
            world.submit(job(shape=shape), array=array)
    world.submit(job(), array=array)


def test_runs_of_submits_are_told_the_same() -> None:
    """Decided many at once they go by kept terms, which a change of quotas must end."""
    world = World()
    world.submit(job())  # so that spec and mandate are known
    some = [Submit(world.ann, (JobRequest(job()),))] * 4
    changes = (
        (SetQueue(None, QueueSpec("q", accepts=False)), "queue_refuses"),
        (SetQueue(None, QueueSpec("q")), ""),
        (LimitAccount(None, "acme", gpus(0)), "never_within_quota"),
        (LimitAccount(None, "acme", Limits()), ""),
    )
    for change, code in changes:
        hub.begin(world.state, world.state.seq + 1, world.now)
        replies = [reply for _, reply in hub.execute_all(world.state, [*some, change, *some], world.now)]
        after = [reply.problem.code if isinstance(reply, Refusal) else "" for reply in replies[5:]]
        assert after == [code] * 4


def test_who_may_submit(world: World) -> None:
    eve = world.token("zeta/eve")
    world.do(SetQueue(None, QueueSpec("all", accounts=("acme",))))
    world.do(SetQueue(None, QueueSpec("q", "all")))
    world.submit(job())
    with pytest.raises(QueueRefuses, match="zeta/eve"):
        world.submit(job(), authority=eve)
    with pytest.raises(QueueRefuses, match="parent"):
        world.submit(job("all"))
    world.do(SetQueue(None, QueueSpec("all", accepts=False)))
    with pytest.raises(QueueRefuses, match="no new"):
        world.submit(job())


def test_a_limit_on_an_account_spans_queues(world: World) -> None:
    world.do(SetQueue(None, QueueSpec("r")))
    world.do(LimitAccount(None, "acme", gpus(1)))
    ann = world.submit(job("q"), job("r"))
    assert world.round() == ann[:1]
    world.do(LimitAccount(None, "acme", Limits()))
    assert world.round() == ann[1:]


def test_only_operators_set_queues_and_only_who_is_above_limits() -> None:
    world = World()
    operator = world.token("/", "operator")
    owner = world.token("acme", "owner")
    world.do(SetQueue(operator, QueueSpec("q")))
    world.do(RemoveQueue(operator, "q"))
    for command in (
        SetQueue(owner, QueueSpec("q")),
        RemoveQueue(owner, "q"),
        SetQueue(world.ann, QueueSpec("q")),
    ):
        with pytest.raises((ScopeMissing, Forbidden)):
            world.do(command)
    world.do(LimitAccount(owner, "acme/vision", gpus(1)))
    assert isinstance(world.refused(LimitAccount(owner, "acme", gpus(100))), Forbidden)
    assert isinstance(world.refused(LimitAccount(owner, "zeta", gpus(1))), NotFound)
    assert isinstance(world.refused(LimitAccount(world.ann, "acme/vision/ann", Limits())), ScopeMissing)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (QueueSpec("a b"), InvalidName),
        (QueueSpec(""), InvalidName),
        (QueueSpec("x", "nowhere"), NotFound),
        (QueueSpec("x", "x"), NotFound),
        (QueueSpec("top", "leaf"), InvalidSpec),
        (QueueSpec("x", nominal=gpus(-1)), InvalidSpec),
        (QueueSpec("x", nominal=Limits(jobs=MAX_QUOTA + 1)), InvalidSpec),
        (QueueSpec("x", borrowing=gpus(1)), InvalidSpec),
        (QueueSpec("x", lending=gpus(1)), InvalidSpec),
        (QueueSpec("x", accounts=("nobody",)), NotFound),
        (QueueSpec("x", accounts=("acme",) * 257), InvalidSpec),
        (QueueSpec("x", "busy"), QueueBusy),
    ],
)
def test_a_queue_that_can_not_be_is_refused(spec: QueueSpec, error: type[MintyardError]) -> None:
    world = World()
    for one in (QueueSpec("top"), QueueSpec("leaf", "top"), QueueSpec("busy")):
        world.do(SetQueue(None, one))
    world.submit(job("busy"))
    assert isinstance(world.refused(SetQueue(None, spec)), error)


def test_queues_lie_five_deep_at_most() -> None:
    world = World()
    for number in range(5):
        world.do(SetQueue(None, QueueSpec(f"q{number}", f"q{number - 1}" if number else "")))
    assert isinstance(world.refused(SetQueue(None, QueueSpec("q5", "q4"))), InvalidSpec)
    world.do(SetQueue(None, QueueSpec("above")))
    assert isinstance(world.refused(SetQueue(None, QueueSpec("q0", "above"))), InvalidSpec)


def test_removing(world: World) -> None:
    world.do(SetQueue(None, QueueSpec("all")))
    world.do(SetQueue(None, QueueSpec("r", "all")))
    assert isinstance(world.refused(RemoveQueue(None, "all")), QueueBusy)
    assert isinstance(world.refused(RemoveQueue(None, "none")), NotFound)
    (number,) = world.submit(job("r"))
    assert isinstance(world.refused(RemoveQueue(None, "r")), QueueBusy)
    world.do(ControlJobs(None, "cancel", (number,)))
    world.do(RemoveQueue(None, "r"))
    world.do(RemoveQueue(None, "all"))
    assert list(world.state.quotas.queues) == ["q"]


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mintyard.domain.queues.MAX_QUEUES", 2)
    world = World()
    for name in ("a", "b"):
        world.do(SetQueue(None, QueueSpec(name)))
    assert isinstance(world.refused(SetQueue(None, QueueSpec("c"))), LimitReached)
    world.do(SetQueue(None, QueueSpec("b", "a")))


def test_setting_the_same_again_is_no_event(world: World) -> None:
    world.do(SetQueue(None, QueueSpec("q", nominal=gpus(2))))
    assert world.events == []
    world.do(LimitAccount(None, "zeta", Limits()))
    assert world.events == []


def test_a_snapshot_keeps_queues_limits_and_what_is_in_use(world: World) -> None:
    world.do(LimitAccount(None, "acme", gpus(3)))
    world.submit(*[job()] * 3)
    world.round()
    again = decode(encode(world.state))
    assert state_hash(again) == state_hash(world.state)
    assert again.quotas.queues == world.state.quotas.queues
    assert list_queues(again, "/").queues == list_queues(world.state, "/").queues
    assert list_queues(again, "/").limits == list_queues(world.state, "/").limits


def test_listing(world: World) -> None:
    world.do(LimitAccount(None, "acme", gpus(3)))
    world.submit(*[job()] * 3)
    world.round()
    found = list_queues(world.state, "/")
    (queue,) = found.queues
    assert (queue.used[0], queue.used[3], queue.available[0], queue.waiting) == (2_000, 2, 0, 1)
    assert [one.account for one in found.limits] == ["acme"]
    assert list_queues(world.state, "zeta").limits == ()


def test_explain_says_whose_quota_is_short_and_by_how_much(world: World) -> None:
    world.do(LimitAccount(None, "acme", Limits(cpus_milli=2_500)))
    *_, last = world.submit(*[job()] * 3)
    world.round()
    found = explain_number(world.state, last, "acme", world.now)
    assert found.reason == "queue_quota"
    assert "Queue q has 0 GPUs left; the job asks for 1 GPUs." in found.details
    assert "The limit of account acme has 0.5 cores left; the job asks for 1 cores." in found.details
    assert any("queue q" in change for change in found.changes)
    assert found.starts_at is None
    world.do(SetQueue(None, QueueSpec("q", nominal=gpus(2), starts=False)))
    found = explain_number(world.state, last, "acme", world.now)
    assert found.reason == "queue_stopped"
    assert world.round() == []


def test_explain_is_about_nodes_where_quota_is_left(world: World) -> None:
    world.do(SetQueue(None, QueueSpec("q", nominal=gpus(9))))
    *_, last = world.submit(*[job()] * 5)
    assert len(world.round()) == 4
    assert explain_number(world.state, last, "acme", world.now).reason == "waiting_for_resources"


def test_accounts_that_are_closed_keep_their_limit(world: World) -> None:
    world.do(LimitAccount(None, "zeta", gpus(1)))
    world.do(SetAccountState(None, "zeta", "suspend"))
    world.do(LimitAccount(None, "zeta", gpus(2)))
    assert world.state.quotas.accounts["zeta"] == gpus(2)


def test_lent_quota_is_not_taken_back_by_force_but_not_lent_again(world: World) -> None:
    """Without preemption the owner waits for what it lent; what comes free goes to it once it has waited long."""
    world.do(SetQueue(None, QueueSpec("all")))
    world.do(SetQueue(None, QueueSpec("q", "all", gpus(2))))
    world.do(SetQueue(None, QueueSpec("r", "all", gpus(2))))
    borrowers = world.submit(*[job("r")] * 4)
    assert world.round() == borrowers
    (mine,) = world.submit(job("q", Shape(1_000, 512, gpus=2)))
    later = world.submit(*[job("r")] * 2)
    world.end(borrowers[0], 10_000)
    assert world.round() == later[:1]
    world.end(borrowers[1], 80_000)
    assert world.round() == []
    world.end(borrowers[2], 1_000)
    assert world.round() == [mine]


def test_more_nodes_than_quota_is_fine(world: World) -> None:
    world.do(TakeReports("local", tuple(NodeSeen(f"m{n}", 8_000, 16_384, 4, "a100") for n in range(4))))
    jobs = world.submit(*[job()] * 6)
    assert world.round() == jobs[:2]


@pytest.mark.parametrize("backfill", list(Backfill))
def test_a_job_that_lacks_both_quota_and_nodes_gets_both(backfill: Backfill) -> None:
    """Quota without nodes and nodes without quota, each taken by small ones in turn, are no start."""
    world = World()
    for account in ("acme", "acme/vision", "acme/vision/ann"):
        world.do(CreateGrant(None, account, Unit.MONEY, 10**15))
    world.do(TakeReports("local", (NodeSeen("n2", 8_000, 16_384, 4, "a100"),)))
    world.do(SetQueue(None, QueueSpec("q", nominal=gpus(4))))
    world.do(SetQueue(None, QueueSpec("o")))
    running = world.submit(*[job("q"), job("o")] * 4)
    assert sorted(world.round()) == running
    (big,) = world.submit(job("q", Shape(1_000, 512, gpus=4)))
    for _ in range(300):
        world.submit(job("q"), job("o"))
        for _ in range(2):
            world.end(running.pop(0))
        world.do(Tick(backfill=backfill))
        running += [event.job for event in world.events if isinstance(event, JobPlaced)]
        if big in running:
            return
    raise AssertionError("it never started")
