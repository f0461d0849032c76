"""One round: order, backfill, reservations, throttles, gangs; it leaves no trace and never plans what isn't free."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling import kernels
from mintyard.domain.scheduling.cluster import Cluster
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.reasons import Reason
from mintyard.domain.scheduling.round import Plan, Rules, plan_round
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.scheduling.shapes import ShapeTable
from mintyard.domain.units import NS_PER_MS

PATIENT = 120_000 * NS_PER_MS


class Yard:
    """A cluster with a queue."""

    def __init__(self, *nodes: tuple[int, int]) -> None:
        self.cluster, self.queue, self.shapes = Cluster(), PendingQueue(), ShapeTable()
        self.running: dict[int, tuple[object, Shape]] = {}
        for index, (cpus, gpus) in enumerate(nodes):
            self.cluster.add_node(f"n{index}", cpus, 100_000, gpus)

    def submit(self, job: int, shape: Shape, base: int = 100, at: int = 0, group: int = -1) -> None:
        class_id = self.shapes.intern(shape)
        self.shapes.note_demand(class_id)
        self.queue.add(job, class_id, 0, base, at, group=group)

    def plan(self, now: int = 0, rules: Rules | None = None, remaining: list[int] | None = None) -> Plan:
        before = self.cluster.encode(), self.queue.column("flags").tobytes(), self.shapes.encode()
        plan = plan_round(self.cluster, self.queue, self.shapes, [], now, rules or Rules(), remaining)
        after = self.cluster.encode(), self.queue.column("flags").tobytes(), self.shapes.encode()
        assert after == before
        return plan

    def start(self, plan: Plan) -> list[int]:
        for job, placement in plan.placements:
            shape = self.shapes.shape(self.queue.get(job).class_id)
            self.cluster.take(placement, shape)
            assert self.queue.discard(job)
            self.running[job] = (placement, shape)
        return [job for job, _ in plan.placements]

    def end(self, job: int) -> None:
        self.cluster.give_back(*self.running.pop(job))


def test_by_priority_then_age_then_number() -> None:
    yard = Yard((3_000, 0))
    one = Shape(1_000, 1)
    yard.submit(1, one, at=5)
    yard.submit(2, one, at=4)
    yard.submit(3, one, base=200, at=6)
    yard.submit(4, one, at=4)
    plan = yard.plan(now=6)
    assert [job for job, _ in plan.placements] == [3, 2, 4]
    assert plan.reasons == [(1, Reason.WAITING_FOR_RESOURCES)]


def test_a_smaller_job_fills_the_gap_until_patience_ends() -> None:
    yard = Yard((4_000, 0))
    yard.submit(1, Shape(3_000, 1))
    assert yard.start(yard.plan()) == [1]
    yard.submit(2, Shape(4_000, 1), base=1_000)
    yard.submit(3, Shape(1_000, 1))
    young = yard.plan(now=1)
    assert [job for job, _ in young.placements] == [3]
    assert young.keepers == ()
    old = yard.plan(now=PATIENT)
    assert old.placements == []
    assert (old.keepers, old.kept) == ((2,), (0,))
    assert dict(old.reasons) == {
        2: Reason.WAITING_FOR_RESOURCES,
        3: Reason.RESERVED_FOR_HIGHER_PRIORITY,
    }
    yard.end(1)
    assert [job for job, _ in yard.plan(now=PATIENT).placements] == [2]


def test_only_the_nodes_needed_are_kept_and_only_from_those_behind() -> None:
    yard = Yard((4_000, 0), (4_000, 0), (2_000, 0))
    yard.submit(1, Shape(3_000, 1))
    yard.submit(2, Shape(1_000, 1))
    yard.start(yard.plan())
    yard.submit(3, Shape(4_000, 1), base=50)
    yard.submit(4, Shape(1_000, 1), base=1_000)
    for job in range(5, 12):
        yard.submit(job, Shape(1_000, 1), base=1)
    plan = yard.plan(now=PATIENT)
    started = dict(plan.placements)
    assert 4 in started
    assert plan.keepers[0] == 3
    kept = {node for node in plan.kept if node < 2}
    assert kept
    assert all(node not in kept for job, ((node, _),) in plan.placements if job >= 5)


def test_a_large_job_does_not_starve() -> None:
    """A stream of small jobs, always enough to fill the cluster, and one that needs a whole node."""
    yard = Yard((4_000, 0), (4_000, 0))
    number, ends = 2, {}
    yard.submit(1, Shape(4_000, 1))
    for job in range(100, 108):
        yard.submit(job, Shape(1_000, 1), base=10_000)
    for tick in range(400):
        now = tick * 1_000 * NS_PER_MS
        for job in [job for job, at in ends.items() if at <= now]:
            yard.end(job)
            del ends[job]
        yard.submit(1_000 + number, Shape(1_000, 1), base=200, at=now)
        number += 1
        for job in yard.start(yard.plan(now=now)):
            if job == 1:
                return
            ends[job] = now + (5 + job % 7) * 1_000 * NS_PER_MS
    pytest.fail("the large job never started")


def test_a_gang_is_all_or_nothing_and_members_share_a_node() -> None:
    yard = Yard((2_000, 2), (2_000, 1))
    yard.submit(1, Shape(500, 1, 1, members=4))
    assert yard.plan().placements == []
    yard.queue.discard(1)
    yard.submit(2, Shape(500, 1, 1, members=3))
    ((job, placement),) = yard.plan().placements
    assert job == 2
    assert sorted(placement) == [(0, 1), (0, 2), (1, 1)]


def test_throttles_count_down_within_a_round() -> None:
    yard = Yard((100_000, 0))
    for job in range(1, 601):
        yard.submit(job, Shape(100, 1), base=1_000, group=0)
    for job in range(1_001, 1_011):
        yard.submit(job, Shape(100, 1), group=1)
    plan = yard.plan(remaining=[2, 3])
    assert [job for job, _ in plan.placements] == [1, 2, 1_001, 1_002, 1_003]
    assert dict(plan.reasons)[3] is Reason.ARRAY_THROTTLE
    assert len(yard.plan(remaining=[-1]).placements) == 10
    assert len(yard.plan().placements) == 610


def test_limit_and_windows() -> None:
    yard = Yard((10_000_00, 0))
    for job in range(1, 2_001):
        yard.submit(job, Shape(100, 1))
    assert [job for job, _ in yard.plan(rules=Rules(limit=1_500)).placements] == list(range(1, 1_501))
    assert len(yard.plan().placements) == 2_000
    assert yard.plan(rules=Rules(limit=0)).placements == []
    assert dict(yard.plan(rules=Rules(limit=1)).reasons)[2] is Reason.BEHIND_IN_QUEUE


def test_many_jobs_that_can_not_fit_hide_none_that_can() -> None:
    """Ten thousand of a class that does not fit stand before one that does, and cost one scan."""
    yard = Yard((4_000, 0))
    for job in range(1, 10_001):
        yard.submit(job, Shape(5_000, 1), base=1_000)
    yard.submit(10_001, Shape(4_000, 1))
    plan = yard.plan()
    assert [job for job, _ in plan.placements] == [10_001]
    assert plan.failing == (0,)


def test_no_nodes_no_jobs_cordoned() -> None:
    yard = Yard()
    yard.submit(1, Shape(1, 1))
    assert yard.plan() == Plan([], [])
    yard.cluster.add_node("n", 10, 10)
    yard.cluster.set_schedulable("n", False)
    assert yard.plan().placements == []
    yard.cluster.set_schedulable("n", True)
    assert len(yard.plan().placements) == 1


def test_held_and_future_jobs_do_not_start() -> None:
    yard = Yard((4_000, 0))
    yard.submit(1, Shape(1, 1))
    yard.queue.set_ready(1, False)
    yard.queue.add(2, 0, 0, 100, 0, begin_at=10)
    assert yard.plan(now=9).placements == []
    assert [job for job, _ in yard.plan(now=10).placements] == [2]


def test_an_error_in_mid_round_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = Yard((4_000, 0))
    yard.submit(1, Shape(1_000, 1))
    real = kernels.place_kernel(kernels.STRANDED)
    calls = 0

    def failing(kind: int) -> object:
        def place(*args: object) -> object:
            nonlocal calls
            calls += 1
            real(*args)
            raise MemoryError

        return place

    before = yard.cluster.encode(), yard.queue.column("flags").tobytes()
    monkeypatch.setattr(kernels, "place_kernel", failing)
    with pytest.raises(MemoryError):
        plan_round(yard.cluster, yard.queue, yard.shapes, [], 0)
    assert calls == 1
    assert (yard.cluster.encode(), yard.queue.column("flags").tobytes()) == before


@pytest.mark.parametrize("policy", list(Policy))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_plans_can_be_carried_out_and_do_not_depend_on_slots(policy: Policy, seed: int) -> None:
    rng = random.Random(seed)
    yard = Yard(*[(rng.choice((4_000, 16_000)), rng.choice((0, 2, 8))) for _ in range(rng.randint(1, 12))])
    job = 0
    for tick in range(6):
        now = tick * 50_000 * NS_PER_MS
        for _ in range(rng.randint(0, 40)):
            job += 1
            gpus = rng.choice((0, 0, 1, 1, 2))
            milli = rng.choice((200, 500, 1_000)) if gpus == 1 else 1_000
            shape = Shape(rng.choice((500, 3_000)), 64, gpus, milli, members=rng.choice((1, 1, 3)))
            yard.submit(job, shape, rng.choice((1, 100)), now, rng.choice((-1, -1, 0, 1)))
        rules = Rules(policy, limit=rng.choice((5, 4_096)), reservations=rng.choice((0, 2)))
        remaining = [rng.randrange(4), 2]
        plan = yard.plan(now, rules, remaining)
        twin = PendingQueue()
        waiting = yard.queue.pending()
        rng.shuffle(waiting)
        for each in waiting:
            twin.add(
                each.job,
                each.class_id,
                each.tenant,
                each.base,
                each.enqueued_at,
                each.begin_at,
                group=each.group,
            )
        copy = Cluster.decode(yard.cluster.encode())
        shapes = ShapeTable.decode(yard.shapes.encode())
        assert plan_round(copy, twin, shapes, [], now, rules, remaining) == plan
        starts = [0, 0]
        for number, _ in plan.placements:
            if yard.queue.get(number).group >= 0:
                starts[yard.queue.get(number).group] += 1
        assert starts[0] <= remaining[0]
        assert starts[1] <= remaining[1]
        assert len(plan.placements) <= rules.limit
        started = yard.start(plan)
        assert len(set(started)) == len(started)
        for number in rng.sample(sorted(yard.running), len(yard.running) // 2):
            yard.end(number)
