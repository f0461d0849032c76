"""Quota: amounts against a plain recursion, and that no round ever lets more run than queues and accounts allow."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling import quota_kernel
from mintyard.domain.scheduling.backfill import Times
from mintyard.domain.scheduling.choices import Backfill
from mintyard.domain.scheduling.cluster import Cluster
from mintyard.domain.scheduling.prediction import History, JobKinds
from mintyard.domain.scheduling.profile_kernel import RUN_COLUMNS
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.quota import NO_LIMIT, Limits, QueueSpec, need_of
from mintyard.domain.scheduling.quota_report import limit_standings, queue_standings, shortages
from mintyard.domain.scheduling.quota_state import Quotas
from mintyard.domain.scheduling.reasons import Reason
from mintyard.domain.scheduling.round import Plan, Rules, plan_round
from mintyard.domain.scheduling.shapes import ShapeTable
from mintyard.sim.quota_shadow import RESOURCES, Tree

S = 1_000_000_000
GPU = Shape(1_000, 512, gpus=1)


def tree_of(quotas: Quotas) -> Tree:
    """The plain recursion over the same queues, with the same in use."""
    tree = Tree()
    tree.queues = dict(quotas.queues)
    for lane, row in zip(quotas.lanes, quotas.used.tolist(), strict=True):
        for resource, amount in zip(RESOURCES, row, strict=True):
            tree.used[lane.queue, resource] += amount
    return tree


def random_limits(rng: random.Random, often: float = 0.7) -> Limits:
    def one(most: int) -> int | None:
        return rng.randint(0, most) if rng.random() < often else None

    gpus = one(8)
    return Limits(gpus * 1_000 if gpus is not None else None, one(20_000), one(20_000), one(6))


def random_quotas(rng: random.Random) -> Quotas:
    """Two or three levels, with and without every kind of limit; names sort against the order of the tree, too."""
    quotas = Quotas()
    names = ["m", "z", "a", "q", "k", "c"]
    for index, name in enumerate(names):
        parent = rng.choice(["", *names[:index]]) if index else ""
        said = (random_limits(rng, 0.4), random_limits(rng, 0.4)) if parent else (Limits(), Limits())
        quotas.set_queue(QueueSpec(name, parent, random_limits(rng), *said))
    for account in ("lab", "lab/ann", "org"):
        if rng.random() < 0.6:
            quotas.limit_account(account, random_limits(rng))
    return quotas


LANES = [
    (queue, account) for queue in ("a", "q", "k", "c", "free") for account in ("lab/ann", "lab/bo", "org")
]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_amounts_are_those_of_a_plain_recursion(seed: int) -> None:
    rng = random.Random(seed)
    quotas = random_quotas(rng)
    for queue, account in LANES:
        quotas.count(
            quotas.lane(queue, account),
            Shape(rng.randint(1, 4_000), 512, rng.randint(0, 4)),
            rng.randint(0, 3),
        )
    tables, tree = quotas.tables(), tree_of(quotas)
    for index, resource in enumerate(RESOURCES):
        for name, row in quotas.rows.items():
            found = int(quota_kernel.available(tables, row, index))
            if tree.is_limited(name, resource):
                assert found == tree.available(name, resource)
                assert int(tables.total[row, index]) == tree.subtree(name, resource)
            else:
                assert found > NO_LIMIT // 2
    empty = Quotas()
    for spec in quotas.queues.values():
        empty.set_queue(spec)
    tree = tree_of(empty)
    for name in quotas.queues:
        for resource, most in zip(RESOURCES, empty.most(name, "nobody")[0], strict=True):
            limited = tree.is_limited(name, resource)
            assert most == (tree.available(name, resource) if limited else NO_LIMIT)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_counting_down_is_counting_anew(seed: int) -> None:
    """Starting jobs one by one in the tables leaves what tables made after them say."""
    rng = random.Random(seed)
    quotas = random_quotas(rng)
    for queue, account in LANES:
        quotas.lane(queue, account)
    tables = quotas.tables()
    for _ in range(12):
        lane = rng.randrange(len(LANES))
        shape = Shape(
            rng.randint(1, 4_000), rng.randint(1, 4_000), rng.randint(0, 2), members=rng.randint(1, 2)
        )
        need = np.array(need_of(shape), np.int64)
        fits = bool(quota_kernel.fits(tables, lane, need))
        assert fits == (not shortages(quotas, *LANES[lane], shape))
        if fits:
            quota_kernel.take(tables, lane, need)
            quotas.count(lane, shape, 1)
        anew = quotas.tables()
        assert tables.usage.tolist() == anew.usage.tolist()
        assert tables.cap_left.tolist() == anew.cap_left.tolist()


class Yard:
    """Rounds over ten nodes of eight GPUs; jobs of one class, or several, in queues."""

    def __init__(self, quotas: Quotas, nodes: int = 10) -> None:
        self.quotas = quotas
        self.cluster, self.queue, self.shapes, self.kinds = (
            Cluster(),
            PendingQueue(),
            ShapeTable(),
            JobKinds(),
        )
        for number in range(nodes):
            self.cluster.add_node(f"n{number}", 64_000, 262_144, 8)
        self.jobs: dict[int, tuple[int, Shape]] = {}
        self.running: dict[int, tuple[tuple[int, int], ...]] = {}
        self.next = 1

    def submit(
        self,
        queue: str,
        shape: Shape = GPU,
        count: int = 1,
        *,
        at: int = 0,
        base: int = 100,
        account: str = "lab",
        group: int = -1,
    ) -> list[int]:
        numbers = list(range(self.next, self.next + count))
        lane = self.quotas.lane(queue, account)
        for job in numbers:
            self.queue.add(job, self.shapes.intern(shape), 0, base, at * S, lane=lane, group=group)
            self.jobs[job] = (lane, shape)
        self.next += count
        return numbers

    remaining: Sequence[int] | None = None

    def plan(self, now: int, rules: Rules | None = None) -> Plan:
        tables = self.quotas.tables() if self.quotas else None
        times = Times(lambda: np.zeros((0, RUN_COLUMNS), np.int64), self.kinds, History())
        return plan_round(
            self.cluster,
            self.queue,
            self.shapes,
            [],
            now * S,
            rules or Rules(),
            self.remaining,
            times,
            tables,
        )

    def start(self, now: int, rules: Rules | None = None) -> list[int]:
        started = self.plan(now, rules).placements
        for job, placement in started:
            lane, shape = self.jobs[job]
            self.queue.discard(job)
            self.cluster.take(placement, shape)
            self.quotas.count(lane, shape, 1)
            self.running[job] = placement
        return [job for job, _ in started]

    def end(self, *jobs: int) -> None:
        for job in jobs:
            lane, shape = self.jobs[job]
            self.cluster.give_back(self.running.pop(job), shape)
            self.quotas.count(lane, shape, -1)


def gpus(count: int) -> Limits:
    return Limits(gpus_milli=count * 1_000)


def cohort(*queues: QueueSpec) -> Quotas:
    quotas = Quotas()
    for spec in (QueueSpec("all"), *queues):
        quotas.set_queue(spec)
    return quotas


def test_a_queue_has_its_quota_and_no_more() -> None:
    quotas = Quotas()
    quotas.set_queue(QueueSpec("q", nominal=gpus(3)))
    yard = Yard(quotas)
    jobs = yard.submit("q", count=5)
    free = yard.submit("other", count=2)
    plan = yard.plan(0)
    assert dict(plan.reasons) == dict.fromkeys(jobs[3:], Reason.QUEUE_QUOTA)
    assert yard.start(0) == [*jobs[:3], *free]
    yard.end(jobs[1])
    assert yard.start(1) == [jobs[3]]


def test_unused_quota_is_lent_within_limits() -> None:
    quotas = cohort(
        QueueSpec("a", "all", gpus(4), lending=gpus(3)),
        QueueSpec("b", "all", gpus(2), borrowing=gpus(2)),
        QueueSpec("c", "all", gpus(0)),
    )
    yard = Yard(quotas)
    b = yard.submit("b", count=6)
    c = yard.submit("c", count=6, at=1)
    assert yard.start(1) == [*b[:4], c[0]]  # all is 6, a keeps one for itself
    a = yard.submit("a", count=4, at=2)
    assert yard.start(2) == a[:1]
    yard.end(*b[:4], c[0])
    assert sorted(yard.start(3)) == [*b[4:], *c[1:4]]
    standings = {one.spec.name: one for one in queue_standings(quotas, {})}
    assert standings["a"].used[0] == 1_000
    assert standings["a"].available[0] == 0
    assert standings["c"].borrowed[0] == 3_000
    assert standings["all"].used[0] == 6_000
    assert standings["all"].available[1] == -1


def test_a_limit_on_an_account_binds_all_below_it_in_every_queue() -> None:
    quotas = Quotas()
    quotas.limit_account("lab", Limits(jobs=3))
    quotas.limit_account("lab/ann", gpus(1))
    yard = Yard(quotas)
    ann = yard.submit("x", count=3, account="lab/ann")
    bo = yard.submit("y", count=3, account="lab/bo")
    other = yard.submit("y", count=2, account="labour")
    assert yard.start(0) == [ann[0], *bo[:2], *other]
    (lab, of_ann) = limit_standings(quotas)
    assert (lab.used[3], of_ann.used[0]) == (3, 1_000)
    assert shortages(quotas, "x", "lab/ann", GPU)[0].account == "lab/ann"


def test_a_stopped_queue_starts_nothing_and_bars_nobody() -> None:
    quotas = cohort(QueueSpec("a", "all", gpus(4), starts=False), QueueSpec("b", "all", gpus(4)))
    yard = Yard(quotas)
    yard.submit("a", count=3)
    b = yard.submit("b", count=9, at=1)
    assert yard.start(1_000) == b[:8]
    quotas.set_queue(QueueSpec("all", starts=False))
    yard.end(*b[:8])
    assert yard.start(1_001) == []


BIG = Shape(1_000, 512, gpus=1, members=4)


@pytest.mark.parametrize("backfill", list(Backfill))
def test_who_has_waited_long_for_quota_is_not_starved_by_small_ones(backfill: Backfill) -> None:
    """Four at once never come together while each that ends gives way to another small one, unless the queue is barred."""
    quotas = Quotas()
    quotas.set_queue(QueueSpec("q", nominal=gpus(4)))
    yard = Yard(quotas)
    rules = Rules(backfill=backfill)
    running = yard.submit("q", count=4)
    assert yard.start(0, rules) == running
    (big,) = yard.submit("q", BIG, at=1)
    started: list[int] = []
    for second in range(2, 200, 2):
        yard.submit("q", count=2, at=second)
        yard.end(running.pop(0))
        started = yard.start(second, rules)
        running += started
        if big in started:
            break
    assert big in started
    assert 60 <= second <= 75


def test_a_head_bars_only_what_it_is_short_of() -> None:
    """Strict order within one resource must not block another one, nor another queue."""
    quotas = cohort(
        QueueSpec("q", "all", Limits(gpus_milli=2_000, cpus_milli=10_000)), QueueSpec("r", "all", gpus(2))
    )
    yard = Yard(quotas)
    first = yard.submit("q", count=1)
    assert yard.start(0) == first
    (big,) = yard.submit("q", Shape(1_000, 512, gpus=1, members=4), at=1)
    borrowed = yard.submit("r", count=2, at=2)
    assert yard.start(2) == borrowed
    small = yard.submit("q", Shape(1_000, 512), count=2, at=3)
    also = yard.submit("q", count=1, at=3)
    assert yard.start(100) == small
    yard.end(*borrowed)
    more = yard.submit("r", count=4, at=101)
    # The head of q has one left of its nominal two set aside; r has its own two.
    assert yard.start(101) == more[:2]
    yard.end(*first, *more[:2])
    assert big in yard.start(102)
    assert also[0] in yard.jobs


def test_who_is_short_under_its_account_bars_only_that_account() -> None:
    quotas = Quotas()
    quotas.set_queue(QueueSpec("q", nominal=gpus(8)))
    quotas.limit_account("lab/ann", gpus(2))
    yard = Yard(quotas)
    first = yard.submit("q", count=1, account="lab/ann")
    assert yard.start(0) == first
    yard.submit("q", Shape(1_000, 512, gpus=1, members=2), at=1, account="lab/ann")
    behind = yard.submit("q", count=1, at=2, account="lab/ann")
    others = yard.submit("q", count=7, at=3, account="lab/bo")
    assert yard.start(100) == others
    assert behind[0] not in yard.running


def test_many_that_are_short_hide_nobody() -> None:
    """More wait for quota than one round looks at, all before the one that may start."""
    quotas = Quotas()
    for number in range(12):
        quotas.set_queue(QueueSpec(f"q{number}", nominal=gpus(0)))
    yard = Yard(quotas)
    for number in range(12):
        yard.submit(f"q{number}", count=2_000, base=5_000)
    (last,) = yard.submit("open", at=1)
    assert yard.start(100) == [last]


def within(quotas: Quotas) -> bool:
    """Nothing runs beyond any limit: of each tree in all, of what a queue may borrow, of each account."""
    tree = tree_of(quotas)
    for resource in RESOURCES:
        for name, spec in quotas.queues.items():
            if not tree.is_limited(name, resource):
                continue
            used, borrowing = tree.usage(name, resource), getattr(spec.borrowing, resource)
            if not spec.parent and used > tree.subtree(name, resource):
                return False
            if spec.parent and borrowing is not None and used > tree.subtree(name, resource) + borrowing:
                return False
    for standing in limit_standings(quotas):
        if any(one > limit for one, limit in zip(standing.used, standing.limits.row(NO_LIMIT), strict=True)):
            return False
    return True


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), backfill=st.sampled_from(Backfill))
def test_no_round_lets_more_run_than_is_allowed(seed: int, backfill: Backfill) -> None:
    """And what waits at the end of a round with no head in its way is short of quota or of nodes."""
    rng = random.Random(seed)
    quotas = random_quotas(rng)
    yard = Yard(quotas, nodes=3)
    now = 0
    for _ in range(8):
        now += rng.choice((1, 30, 120))
        for _ in range(rng.randint(0, 6)):
            queue, account = rng.choice(LANES)
            shape = Shape(
                rng.choice((500, 3_000)),
                rng.choice((500, 3_000)),
                rng.randint(0, 3),
                members=rng.randint(1, 2),
            )
            yard.submit(queue, shape, at=now, account=account, base=rng.randint(1, 1_000))
        for job in list(yard.running):
            if rng.random() < 0.3:
                yard.end(job)
        started = yard.start(now, Rules(limit=rng.choice((1, 1_000)), backfill=backfill))
        assert within(quotas)
        assert not yard.queue.column("flags")[: yard.queue.count].max(initial=0) & 12
        assert len(set(started)) == len(started)


def test_without_quotas_a_round_is_as_before() -> None:
    quotas = Quotas()
    yard, limited = Yard(quotas), Quotas()
    limited.set_queue(QueueSpec("elsewhere", nominal=gpus(0)))
    other = Yard(limited)
    for one in (yard, other):
        one.submit("x", count=50)
        one.submit("y", BIG, count=30, at=1)
    assert yard.plan(100).placements == other.plan(100).placements


def drained(yard: Yard, big: int, seconds: int, rules: Rules, *queues: str) -> int | None:
    """Each second the job that has run longest ends and each of `queues` gets another small one: when `big` starts."""
    order = sorted(yard.running)
    for second in range(1, seconds):
        for queue in queues:
            yard.submit(queue, at=second)
        for _ in range(min(2, len(order))):
            yard.end(order.pop(0))
        started = yard.start(second, rules)
        if big in started:
            return second
        order += started
    return None


def test_a_job_that_lacks_both_quota_and_nodes_gets_both() -> None:
    """Quota without nodes and nodes without quota, each taken by small ones in turn, are no start."""
    quotas = Quotas()
    quotas.set_queue(QueueSpec("q", nominal=gpus(8)))
    quotas.set_queue(QueueSpec("o"))
    yard = Yard(quotas, nodes=2)
    yard.submit("q", count=8)
    yard.submit("o", count=8)
    assert len(yard.start(0)) == 16
    (big,) = yard.submit("q", Shape(1_000, 512, gpus=8), at=1)
    assert drained(yard, big, 600, Rules(), "q", "o", "q", "o") is not None


def test_who_can_never_start_bars_nobody() -> None:
    """Lowered below it since it came; or its nodes are gone."""
    quotas = Quotas()
    quotas.set_queue(QueueSpec("q", nominal=gpus(3)))
    quotas.limit_account("lab/ann", gpus(2))
    yard = Yard(quotas)
    first = yard.submit("q", count=3)
    assert yard.start(0) == first
    yard.submit("q", BIG, at=1)
    yard.submit("q", Shape(1_000, 512, gpus=3), at=1, account="lab/ann")
    yard.submit("q", Shape(1_000, 512, gpus=2, gpu_models=("gone",)), at=1)
    yard.end(first[0])
    small = yard.submit("q", count=1, at=2)
    assert yard.start(1_000) == small
    yard.end(first[1])
    also = yard.submit("q", count=1, at=3, account="lab/ann")
    assert yard.start(1_001) == also


def test_a_throttled_array_is_not_served_in_anothers_place() -> None:
    quotas = Quotas()
    quotas.set_queue(QueueSpec("q", nominal=gpus(4)))
    yard = Yard(quotas)
    yard.submit("q", count=4)
    yard.start(0)
    yard.remaining = [0]
    yard.submit("q", BIG, at=1, group=0)
    (big,) = yard.submit("q", BIG, at=1)
    assert drained(yard, big, 200, Rules(), "q", "q", "q") is not None


def test_who_is_short_only_because_of_others_of_the_round_bars_those_behind() -> None:
    """An urgent one takes one of four each time they are free, and the rest must not go to later ones."""
    quotas = Quotas()
    quotas.set_queue(QueueSpec("q", nominal=gpus(4)))
    yard = Yard(quotas)
    yard.submit("q", BIG, at=0)
    (urgent,) = yard.submit("q", at=100, base=10_000)
    yard.submit("q", count=4, at=90, base=1)
    assert yard.start(100) == [urgent]


@pytest.mark.parametrize("backfill", list(Backfill))
def test_a_head_bars_although_its_class_fits_nowhere(backfill: Backfill) -> None:
    """With all reservations given, and more than a first window of others before it."""
    quotas = Quotas()
    quotas.set_queue(QueueSpec("q", nominal=gpus(8)))
    yard = Yard(quotas, nodes=2)
    hold = yard.submit("o", count=14)
    mine = yard.submit("q", count=2)
    assert sorted(yard.start(0)) == [*hold, *mine]
    yard.submit("o", Shape(1_000, 512, gpus=8), count=300, at=1)
    yard.submit("q", Shape(1_000, 512, gpus=8), at=2)
    yard.end(mine[0])
    small = yard.submit("q", count=2, at=3)
    started = yard.start(1_000, Rules(backfill=backfill))
    assert not set(small) & set(started)
