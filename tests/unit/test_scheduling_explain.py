"""Explanations agree with decisions: what is said to fit fits, what is said not to doesn't, and no less would do."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mintyard.domain.errors import Infeasible, InvalidSpec
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.cluster import Cluster
from mintyard.domain.scheduling.explain import (
    Change,
    NodeFailures,
    Release,
    check_feasible,
    earliest_fit,
    explain,
    explain_job,
    feasible_ever,
)
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.reasons import Reason
from mintyard.domain.scheduling.round import plan_round
from mintyard.domain.scheduling.shapes import ShapeTable


def yard() -> Cluster:
    cluster = Cluster()
    cluster.add_node("a", 8_000, 8_192, 4, "A100", ("ssd",))
    cluster.add_node("b", 8_000, 8_192, 2, "H100")
    cluster.add_node("c", 16_000, 4_096)
    return cluster


def fits(cluster: Cluster, shape: Shape) -> bool:
    queue, shapes = PendingQueue(), ShapeTable()
    queue.add(1, shapes.intern(shape), 0, 1, 0)
    return bool(plan_round(cluster, queue, shapes, [], 0).placements)


def test_counts_per_dimension() -> None:
    cluster = yard()
    cluster.set_schedulable("b", False)
    cluster.take(((0, 0b0111),), Shape(1_000, 1_024, 3))
    found = explain(cluster, Shape(10_000, 5_000, 2, labels=("ssd",), gpu_models=("A100",)))
    assert found.failures == NodeFailures(
        cordoned=1, gpu_model=2, label=2, cpu=2, memory=1, gpu_count=1, gpu_busy=1
    )
    assert (found.nodes, found.eligible, found.members, found.members_fit) == (3, 1, 1, 0)
    assert found.reason is Reason.INFEASIBLE


def test_reasons() -> None:
    cluster = yard()
    assert explain(cluster, Shape(8_000, 1, 4)).reason is None
    cluster.take(((0, 0b1),), Shape(1_000, 1, 1))
    assert explain(cluster, Shape(1_000, 1, 4)).reason is Reason.FRAGMENTED
    cluster.take(((0, 0b1110),), Shape(1_000, 1, 3))
    assert explain(cluster, Shape(1_000, 1, 4)).reason is Reason.WAITING_FOR_RESOURCES
    assert explain(cluster, Shape(1_000, 1, 5)).reason is Reason.INFEASIBLE
    for name in "abc":
        cluster.set_schedulable(name, False)
    assert explain(cluster, Shape(1, 1)).reason is Reason.NO_NODES
    assert explain(Cluster(), Shape(1, 1)).reason is Reason.NO_NODES


def test_what_would_change_it() -> None:
    cluster = yard()
    cluster.take(((0, 0b11),), Shape(2_000, 1_024, 2))
    found = explain(cluster, Shape(7_000, 1_024, 3))
    assert found.changes == (Change("gpus", 3, 2),)
    gang = explain(cluster, Shape(1_000, 1, 1, members=6))
    assert Change("members", 6, 4) in gang.changes
    assert Change("gpus", 1, 0) in gang.changes


def test_infeasible_says_why_and_what_would_do() -> None:
    cluster = yard()
    with pytest.raises(Infeasible) as caught:
        check_feasible(cluster, Shape(1_000, 1, 8))
    assert caught.value.params["why"] == "a member asks for 8 GPUs, the largest suitable node has 4"
    assert caught.value.cure == "Lower gpus to 4."
    assert feasible_ever(cluster, Shape(1_000, 1, 8)).changes == (Change("gpus", 8, 4),)
    with pytest.raises(Infeasible, match="no node has the GPU model"):
        check_feasible(cluster, Shape(1, 1, 1, gpu_models=("B200",)))
    with pytest.raises(Infeasible, match="room for 6"):
        check_feasible(cluster, Shape(1, 1, 1, members=7))
    with pytest.raises(Infeasible, match="no single suitable node"):
        check_feasible(cluster, Shape(16_000, 8_192))
    check_feasible(Cluster(), Shape(1, 1))
    cluster.set_schedulable("a", False)
    cluster.take(((1, 0b11),), Shape(8_000, 8_192, 2))
    check_feasible(cluster, Shape(8_000, 8_192, 4))


def test_a_verdict_is_forgotten_when_the_nodes_change() -> None:
    cluster = yard()
    wanted = Shape(1_000, 1, 8)
    assert not feasible_ever(cluster, wanted).feasible
    cluster.update_node("a", 8_000, 8_192, 8, "A100")
    assert feasible_ever(cluster, wanted).feasible
    cluster.remove_node("a")
    assert not feasible_ever(cluster, wanted).feasible
    cluster.add_node("d", 8_000, 8_192, 8)
    assert feasible_ever(cluster, wanted).feasible
    for cpus in range(1, 10_000):
        feasible_ever(cluster, Shape(cpus, 1))
    assert len(cluster.verdicts) <= 4_096


def test_earliest_fit_walks_the_releases() -> None:
    cluster = yard()
    big, small = Shape(6_000, 1, 3), Shape(2_000, 1, 2)
    cluster.take(((0, 0b0111),), big)
    cluster.take(((1, 0b11),), small)
    before = cluster.encode()
    releases = [Release(900, ((0, 0b0111),), big), Release(500, ((1, 0b11),), small)]
    assert earliest_fit(cluster, Shape(1_000, 1, 1), releases, 100) == 100
    assert earliest_fit(cluster, Shape(1_000, 1, 2), releases, 100) == 500
    assert earliest_fit(cluster, Shape(1_000, 1, 2), releases, 600) == 600
    assert earliest_fit(cluster, Shape(1_000, 1, 4), releases, 100) == 900
    assert earliest_fit(cluster, Shape(1_000, 1, 1, members=6), releases, 100) == 900
    assert earliest_fit(cluster, Shape(1_000, 1, 5), releases, 100) is None
    assert earliest_fit(cluster, Shape(1_000, 1, 4), [], 100) is None
    assert cluster.encode() == before


def test_a_waiting_job() -> None:
    cluster, queue, shapes = yard(), PendingQueue(), ShapeTable()
    full = Shape(8_000, 1, 4)
    cluster.take(((0, 0b1111),), full)
    for job in (1, 2, 3):
        queue.add(job, shapes.intern(full), 0, 100, job)
    queue.add(4, shapes.intern(Shape(1, 1)), 0, 1, 4)
    queue.add(5, shapes.intern(Shape(1, 1)), 0, 1, 5, begin_at=50)
    queue.add(6, shapes.intern(Shape(1, 1)), 0, 1, 6, ready=False)
    queue.add(7, shapes.intern(Shape(1, 1, 9)), 0, 1, 7)
    releases = [Release(1_000, ((0, 0b1111),), full)]
    third = explain_job(cluster, queue, shapes, 3, 10, [], releases=releases)
    assert (third.reason, third.ahead, third.earliest) == (Reason.WAITING_FOR_RESOURCES, 2, 1_000)
    fourth = explain_job(cluster, queue, shapes, 4, 10, [])
    assert (fourth.reason, fourth.ahead, fourth.earliest) == (Reason.BEHIND_IN_QUEUE, 3, 10)
    assert explain_job(cluster, queue, shapes, 5, 10, []).reason is Reason.BEGIN_TIME
    assert explain_job(cluster, queue, shapes, 5, 10, []).earliest == 50
    assert explain_job(cluster, queue, shapes, 6, 10, []).reason is Reason.HELD
    assert explain_job(cluster, queue, shapes, 7, 10, []).reason is Reason.INFEASIBLE
    assert explain_job(cluster, queue, shapes, 4, 10, [], remaining_starts=0).reason is Reason.ARRAY_THROTTLE
    assert (
        explain_job(cluster, queue, shapes, 4, 10, [], blocked=Reason.DEPENDENCY).reason is Reason.DEPENDENCY
    )
    late = 10**12
    plan = plan_round(cluster, queue, shapes, [], late)
    assert plan.keepers
    assert explain_job(cluster, queue, shapes, 4, late, [], plan=plan).ahead == 3


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_explanations_agree_with_decisions(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster()
    for index in range(rng.randint(1, 6)):
        cluster.add_node(
            f"n{index}",
            rng.randint(0, 8) * 1_000,
            rng.randint(0, 64),
            rng.choice((0, 2, 4)),
            rng.choice("AB"),
        )
        if rng.random() < 0.2:
            cluster.set_schedulable(f"n{index}", False)
    for _ in range(rng.randint(0, 12)):
        gpus = rng.choice((0, 1, 1, 2))
        part = Shape(rng.randint(0, 3_000), rng.randint(1, 16), gpus, 300 if gpus == 1 else 1_000)
        queue, shapes = PendingQueue(), ShapeTable()
        queue.add(1, shapes.intern(part), 0, 1, 0)
        for _, placement in plan_round(cluster, queue, shapes, [], 0).placements:
            cluster.take(placement, part)
    gpus = rng.choice((0, 1, 1, 2, 3))
    shape = Shape(
        rng.randint(0, 9_000),
        rng.randint(1, 80),
        gpus,
        rng.choice((300, 700, 1_000)) if gpus == 1 else 1_000,
        rng.choice(((), ("A",))),
        (),
        rng.choice((1, 1, 2, 5)),
    )
    found = explain(cluster, shape)
    assert (found.reason is None) == fits(cluster, shape)
    for change in found.changes:
        assert fits(cluster, msgspec.structs.replace(shape, **{change.dimension: change.fits}))
        more = msgspec.structs.replace(shape, **{change.dimension: change.fits + 1})
        try:
            assert not fits(cluster, more)
        except InvalidSpec:
            assert change.dimension == "gpus"
    empty = Cluster()
    for node in cluster.indices():
        totals = cluster.node(cluster.name_of(node))
        empty.add_node(totals.name, totals.cpus_milli, totals.memory_mib, totals.gpus, totals.gpu_model)
    assert found.ever.feasible == fits(empty, shape) == feasible_ever(cluster, shape).feasible
