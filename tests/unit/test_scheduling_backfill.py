"""Reservations in time: as the plain reference plans them, kept whatever is backfilled, and explained."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.backfill_reference import Held, Round, Waiting

from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.backfill import MAX_CONSERVATIVE, Times
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.cluster import Cluster, Placement
from mintyard.domain.scheduling.feasibility import Need
from mintyard.domain.scheduling.layout import WEIGHT_CPU, WEIGHT_GPU
from mintyard.domain.scheduling.prediction import History, JobKinds
from mintyard.domain.scheduling.profile import Run, RunningJobs, run_rows
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.reasons import Reason
from mintyard.domain.scheduling.reference import node_views
from mintyard.domain.scheduling.round import Plan, Rules, plan_round
from mintyard.domain.scheduling.scoring import Policy, set_weights
from mintyard.domain.scheduling.shapes import ShapeTable, request_row
from mintyard.domain.units import NS_PER_MS

S = 1_000 * NS_PER_MS
EASY = Rules(Policy.BEST_FIT, backfill=Backfill.EASY, reservations=1, patience_ms=1 << 50)


class Yard:
    """A cluster with a queue and jobs that run; times in s."""

    def __init__(self, *nodes: tuple[int, int]) -> None:
        self.cluster, self.queue, self.shapes = Cluster(), PendingQueue(), ShapeTable()
        self.kinds, self.history = JobKinds(), History()
        self.running: RunningJobs[SimpleNamespace] = RunningJobs(self.describe)
        self.live: dict[int, SimpleNamespace] = {}
        self.limits: dict[int, int] = {}
        for index, (cpus, gpus) in enumerate(nodes):
            self.cluster.add_node(f"n{index}", cpus, 0, gpus, "ab"[index % 2])

    @staticmethod
    def describe(live: SimpleNamespace) -> Run:
        return live.end, live.placement, live.shape_class

    def submit(
        self, job: int, shape: Shape, limit_s: int, at_s: int = 0, base: int = 100, user: str = "u"
    ) -> None:
        shape_class = self.shapes.intern(shape)
        kind = (user, "", shape_class, 1_000 * limit_s)
        number = self.kinds.intern(0, job, kind)
        self.queue.add(job, shape_class, 0, base, at_s * S, kind=number)
        self.limits[job] = limit_s

    def plan(self, now_s: int, rules: Rules = EASY) -> Plan:
        before = self.cluster.encode(), self.queue.column("flags").tobytes()
        times = Times(self.running.rows, self.kinds, self.history)
        plan = plan_round(self.cluster, self.queue, self.shapes, [], now_s * S, rules, None, times)
        assert (self.cluster.encode(), self.queue.column("flags").tobytes()) == before
        return plan

    def start(self, now_s: int, plan: Plan) -> list[int]:
        for job, placement in plan.placements:
            shape_class = self.queue.get(job).class_id
            self.cluster.take(placement, self.shapes.shape(shape_class))
            self.queue.discard(job)
            end = (now_s + self.limits[job]) * S
            live = SimpleNamespace(id=job, end=end, placement=placement, shape_class=shape_class)
            self.live[job] = live
            self.running.start(live)
        return [job for job, _ in plan.placements]

    def end(self, job: int) -> None:
        live = self.live.pop(job)
        self.running.end(live)
        self.cluster.give_back(live.placement, self.shapes.shape(live.shape_class))


def test_easy_fills_what_ends_in_time_and_what_is_spare() -> None:
    yard = Yard((10_000, 0))
    yard.submit(1, Shape(7_000, 0), 100)
    assert yard.start(0, yard.plan(0)) == [1]
    yard.submit(2, Shape(8_000, 0), 50, at_s=1)  # the first that doesn't fit: at 100 s, 2 cores are spare
    yard.submit(3, Shape(3_000, 0), 200, at_s=2)  # too long, and more than is spare
    assert dict(yard.plan(10).reasons)[3] is Reason.RESERVED_FOR_HIGHER_PRIORITY
    yard.submit(4, Shape(1_000, 0), 200, at_s=3)  # spare
    yard.submit(5, Shape(2_000, 0), 90, at_s=4)  # ends at 100 s
    yard.submit(6, Shape(2_000, 0), 91, at_s=5)
    plan = yard.plan(10)
    assert [job for job, _ in plan.placements] == [4, 5]
    assert [(one.job, one.at) for one in plan.starts] == [(2, 100 * S)]
    assert (plan.keepers, plan.kept) == ((2,), (0,))
    assert {job: reason for job, reason in plan.reasons if job != 2} == dict.fromkeys(
        (3, 6), Reason.WAITING_FOR_RESOURCES
    )
    assert yard.plan(10) == plan


def test_conservative_gives_everyone_a_start() -> None:
    yard = Yard((10_000, 0))
    yard.submit(1, Shape(10_000, 0), 100)
    yard.start(0, yard.plan(0))
    yard.submit(2, Shape(6_000, 0), 50, at_s=1)
    yard.submit(3, Shape(6_000, 0), 50, at_s=2)
    yard.submit(4, Shape(4_000, 0), 120, at_s=3)
    plan = yard.plan(10, Rules(backfill=Backfill.CONSERVATIVE))
    assert [(one.job, one.at // S) for one in plan.starts] == [(2, 100), (4, 100), (3, 150)]
    for job in range(5, 100):
        yard.submit(job, Shape(9_000, 0), 10, at_s=job)
    assert len(yard.plan(100, Rules(backfill=Backfill.CONSERVATIVE)).starts) == MAX_CONSERVATIVE


def test_a_patient_job_reserves_beside_the_first() -> None:
    yard = Yard((4_000, 0), (4_000, 0))
    for job in (1, 2):
        yard.submit(job, Shape(3_000, 0), 100 * job)
    yard.start(0, yard.plan(0))
    yard.submit(3, Shape(4_000, 0), 50, at_s=1)
    yard.submit(4, Shape(4_000, 0), 50, at_s=2)
    yard.submit(5, Shape(1_000, 0), 500, at_s=3)
    young = yard.plan(10, Rules(backfill=Backfill.EASY))
    assert [one.job for one in young.starts] == [3]
    assert [job for job, _ in young.placements] == [5]
    old = yard.plan(90, Rules(backfill=Backfill.EASY))
    assert [(one.job, one.at // S) for one in old.starts] == [(3, 100), (4, 150)]
    assert [job for job, _ in old.placements] == [5]  # on the node that nobody needs


def test_what_can_never_fit_reserves_nothing_and_hides_nobody() -> None:
    yard = Yard((4_000, 0))
    yard.submit(1, Shape(3_000, 0), 100)
    yard.start(0, yard.plan(0))
    yard.submit(2, Shape(9_000, 0), 10, base=1_000)
    yard.submit(3, Shape(4_000, 0), 10, base=900)
    yard.submit(4, Shape(1_000, 0), 100)
    plan = yard.plan(10)
    assert [one.job for one in plan.starts] == [3]
    assert plan.placements == []
    assert dict(plan.reasons)[2] is Reason.WAITING_FOR_RESOURCES


def test_what_should_have_ended_may_end_at_any_moment() -> None:
    yard = Yard((4_000, 0))
    yard.submit(1, Shape(3_000, 0), 10)
    yard.start(0, yard.plan(0))
    yard.submit(2, Shape(4_000, 0), 10, at_s=1)
    yard.submit(3, Shape(1_000, 0), 1, at_s=2)
    plan = yard.plan(20)
    assert plan.starts[0].at == 20 * S + 1
    assert plan.placements == []


def test_shortest_first_takes_the_shorter_of_those_behind() -> None:
    yard = Yard((10_000, 0))
    yard.submit(1, Shape(8_000, 0), 100)
    yard.start(0, yard.plan(0))
    yard.submit(2, Shape(10_000, 0), 50, at_s=1)
    yard.submit(3, Shape(2_000, 0), 80, at_s=2)
    yard.submit(4, Shape(2_000, 0), 40, at_s=3)
    in_order = yard.plan(10)
    assert [job for job, _ in in_order.placements] == [3]
    shortest = yard.plan(10, Rules(backfill=Backfill.EASY, shortest_first=True))
    assert [job for job, _ in shortest.placements] == [4]


def test_jobs_that_may_not_start_do_not_fill_the_windows() -> None:
    """Thousands that fit now but would delay the first stand before one that ends in time."""
    yard = Yard((10_000, 0))
    yard.submit(1, Shape(9_000, 0), 100)
    yard.start(0, yard.plan(0))
    yard.submit(2, Shape(10_000, 0), 50, base=10_000)
    for job in range(3, 3_003):
        shape_class = yard.shapes.intern(Shape(1_000, 0))
        kind = yard.kinds.intern(1, 0, ("u", "", shape_class, 500_000))
        yard.queue.add(job, shape_class, 0, 1_000, 0, kind=kind)
    yard.submit(5_000, Shape(1_000, 0), 20, base=1)
    plan = yard.plan(10, EASY)
    assert [job for job, _ in plan.placements] == [5_000]
    assert len(plan.reasons) < 500


def random_yard(rng: random.Random) -> Yard:
    return Yard(
        *[(rng.choice((2_000, 4_000, 8_000)), rng.choice((0, 2, 4))) for _ in range(rng.randint(1, 5))]
    )


def random_shape(rng: random.Random) -> Shape:
    gpus = rng.choice((0, 0, 1, 1, 2))
    milli = rng.choice((300, 500, 1_000)) if gpus == 1 else 1_000
    models = rng.choice(((), (), ("a",)))
    return Shape(
        rng.choice((500, 1_000, 3_000)), 0, gpus, milli, gpu_models=models, members=rng.choice((1, 1, 2, 3))
    )


def expected(yard: Yard, now_s: int, rules: Rules) -> Round:
    """The reference's plan."""
    top = yard.queue.evaluate(now_s * S, [], len(yard.queue))
    pending = [yard.queue.get(job) for job in top[:, 2].tolist()]
    classes = sorted({one.class_id for one in pending} | {live.shape_class for live in yard.live.values()})
    shapes = [yard.shapes.shape(one) for one in classes]
    waiting_rows = np.array([request_row(shape) for shape in shapes]).reshape(len(shapes), -1)
    set_weights(Policy.BEST_FIT, waiting_rows, yard.cluster.table[:, : yard.cluster.count])
    needs: dict[int, Need] = {}
    for index, (one, shape) in enumerate(zip(classes, shapes, strict=True)):
        weights = tuple(waiting_rows[index, WEIGHT_CPU : WEIGHT_GPU + 1].tolist())
        milli = shape.gpu_milli if shape.gpus else 0
        needs[one] = Need(shape.cpus_milli, 0, shape.gpus, milli, weights, index)
    views = node_views(yard.cluster, [(shape.gpu_models, shape.labels) for shape in shapes])
    running = [
        Held(0, live.end, live.placement, needs[live.shape_class]) for _, live in sorted(yard.live.items())
    ]
    conservative = rules.backfill is Backfill.CONSERVATIVE
    most = MAX_CONSERVATIVE if conservative else rules.reservations
    made = Round(views, running, now_s * S, most, conservative)
    patience = rules.patience_ms * NS_PER_MS
    made.plan([
        Waiting(one.job, needs[one.class_id], yard.shapes.shape(one.class_id).members, yard.limits[one.job] * S,
                now_s * S - one.enqueued_at >= patience, one.class_id)
        for one in pending
    ])  # fmt: skip
    return made


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), backfill=st.sampled_from([Backfill.EASY, Backfill.CONSERVATIVE]))
def test_as_the_plain_reference_plans(seed: int, backfill: Backfill) -> None:
    rng = random.Random(seed)
    yard = random_yard(rng)
    rules = Rules(Policy.BEST_FIT, backfill=backfill, patience_ms=rng.choice((5_000, 20_000)), reservations=3)
    job, now_s = 0, 0
    for _ in range(5):
        now_s += rng.randint(1, 15)
        for _ in range(rng.randint(1, 8)):
            job += 1
            yard.submit(job, random_shape(rng), rng.choice((3, 10, 30)), now_s, rng.choice((50, 100)))
        reference = expected(yard, now_s, rules)
        plan = yard.plan(now_s, rules)
        assert plan.placements == reference.started
        made: list[tuple[int, int, Placement]] = [(one.job, one.at, one.placement) for one in plan.starts]
        assert sorted(made) == sorted(
            (number, one.begin, one.placement) for number, one in reference.reserved
        )
        yard.start(now_s, plan)
        for number in rng.sample(sorted(yard.live), rng.randint(0, len(yard.live))):
            yard.end(number)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.sampled_from(list(Order)), shortest=st.booleans())
def test_nothing_that_is_backfilled_delays_a_reservation(seed: int, order: Order, shortest: bool) -> None:
    """No job runs longer than its limit, so the first in line starts when it was promised, or before, as long as it stays the
    first; by response ratio another may overtake it."""
    rng = random.Random(seed)
    yard = random_yard(rng)
    rules = Rules(
        Policy.BEST_FIT,
        backfill=Backfill.EASY,
        reservations=1,
        patience_ms=1 << 50,
        order=order,
        shortest_first=shortest,
    )
    ends: dict[int, int] = {}
    promised: dict[int, int] = {}
    first, job = 0, 0
    for now_s in range(60):
        for number in [number for number, at in ends.items() if at <= now_s]:
            yard.end(number)
            del ends[number]
        for _ in range(rng.choice((0, 1, 2)) if now_s < 40 else 0):
            job += 1
            yard.submit(job, random_shape(rng), rng.choice((2, 5, 20)), now_s)
        plan = yard.plan(now_s, rules)
        started = yard.start(now_s, plan)
        for number in started:
            ends[number] = now_s + rng.randint(1, yard.limits[number])
        if first in started:
            assert now_s * S <= promised[first]
        leader = plan.keepers[0] if plan.keepers else 0
        if leader and leader == first:
            assert plan.starts[0].at <= max(promised[leader], now_s * S + 1)
            assert now_s * S < promised[leader]
        if leader:
            promised[leader] = plan.starts[0].at
        first = leader


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rows_are_what_runs(seed: int) -> None:
    rng = random.Random(seed)
    running: RunningJobs[SimpleNamespace] = RunningJobs(Yard.describe)
    live: dict[int, SimpleNamespace] = {}
    for step in range(60):
        if live and rng.random() < 0.45:
            running.end(live.pop(rng.choice(sorted(live))))
        else:
            number = rng.choice([one for one in range(1, 40) if one not in live])
            placement = tuple((rng.randrange(5), 0) for _ in range(rng.randint(1, 3)))
            live[number] = SimpleNamespace(
                id=number, end=rng.randrange(9), placement=placement, shape_class=step
            )
            running.start(live[number])
        if rng.random() < 0.3:
            wanted = run_rows((number, Yard.describe(one)) for number, one in live.items())
            assert running.rows().tolist() == wanted.tolist()


@pytest.mark.parametrize("backfill", list(Backfill))
def test_the_hot_path_is_the_same_plan_where_everything_fits(backfill: Backfill) -> None:
    yard = Yard((100_000, 4), (100_000, 0))
    for job in range(1, 200):
        yard.submit(job, Shape(500, 0), 10)
    plans = [yard.plan(1, Rules(backfill=one)) for one in (Backfill.NODES, backfill)]
    assert plans[0] == plans[1]
    assert len(plans[0].placements) == 199


def test_a_history_that_has_counted_nothing_yet_is_not_passed_over() -> None:
    """What was noted counts in the next round, whether or not anybody asked before."""
    yard = Yard((1_000, 0))
    yard.submit(1, Shape(1_000, 0), 1_000, user="slow")
    yard.submit(2, Shape(1_000, 0), 1_000, user="fast")
    fast = ("fast", "", yard.queue.get(2).class_id, 1_000_000)
    for _ in range(20):
        yard.history.note(fast, 1_000)
        yard.history.note(("slow", *fast[1:]), 1_000_000)
    rules = Rules(backfill=Backfill.EASY, order=Order.RESPONSE_RATIO)
    assert [job for job, _ in yard.plan(100, rules).placements] == [2]
