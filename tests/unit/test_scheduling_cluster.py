"""The cluster: amounts never lost or doubled, indices stable, bytes canonical."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mintyard.domain.errors import AlreadyExists, InvalidSpec, InvariantBroken, NotFound
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.cluster import Amounts, Cluster
from mintyard.domain.scheduling.layout import GPU_MILLI, IDLE, WHOLE, WIDEST

SHARE = Shape(1_000, 512, 1, 400)
PAIR = Shape(2_000, 1_024, 2)


def small() -> Cluster:
    cluster = Cluster(1)
    cluster.add_node("a", 8_000, 8_192, 4, "A100", ("ssd",))
    cluster.add_node("b", 4_000, 4_096)
    return cluster


def summary(cluster: Cluster, name: str) -> tuple[int, int, int]:
    node = cluster.index_of(name)
    return tuple(int(cluster.table[row, node]) for row in (WHOLE, WIDEST, IDLE))


def test_take_and_give_back() -> None:
    cluster = small()
    before = cluster.encode()
    cluster.take(((0, 0b0011),), PAIR)
    cluster.take(((0, 0b0100),), SHARE)
    assert cluster.used() == Amounts(3_000, 1_536, 2_400)
    assert cluster.in_use(0) == Amounts(3_000, 1_536, 2_400)
    assert summary(cluster, "a") == (1, 1_000, 1_600)
    cluster.give_back(((0, 0b0011),), PAIR)
    cluster.give_back(((0, 0b0100),), SHARE)
    assert cluster.encode() == before
    assert cluster.total() == Amounts(12_000, 12_288, 4_000)


@pytest.mark.parametrize(
    ("placement", "shape"),
    [
        (((1, 0), (1, 0)), Shape(3_000, 1, members=2)),
        (((1, 0), (1, 0)), Shape(1, 3_000, members=2)),
        (((0, 0b1), (0, 0b1)), Shape(1, 1, 1, 600, members=2)),
        (((0, 0b10000),), Shape(1, 1, 1, 100)),
        (((0, 0b1),), PAIR),
        (((0, 0b1),), Shape(1, 1)),
        (((2, 0),), Shape(1, 1)),
        (((-1, 0),), Shape(1, 1)),
        (((0, 1 << 16),), SHARE),
        (((1, 0), (0, 0b11), (9, 0b11)), PAIR),
    ],
)
def test_what_is_not_free_is_not_taken_and_nothing_changes(
    placement: tuple[tuple[int, int], ...], shape: Shape
) -> None:
    cluster = small()
    before = cluster.encode()
    with pytest.raises(InvariantBroken):
        cluster.take(placement, shape)
    assert cluster.encode() == before


def test_a_second_release_is_refused_and_nothing_changes() -> None:
    cluster = small()
    gang = Shape(1_000, 512, 1, 400, members=2)
    cluster.take(((0, 0b1), (0, 0b1)), gang)
    cluster.take(((0, 0b10),), Shape(500, 1, 1, 100))
    cluster.give_back(((0, 0b1), (0, 0b1)), gang)
    before = cluster.encode()
    for placement in (((0, 0b1), (0, 0b1)), ((0, 0b10), (0, 0b10))):
        with pytest.raises(InvariantBroken):
            cluster.give_back(placement, gang)
        assert cluster.encode() == before


def test_an_update_keeps_what_is_in_use_and_may_go_below_zero() -> None:
    cluster = small()
    cluster.take(((0, 0b1100),), PAIR)
    cluster.update_node("a", 1_000, 512, 2, "A100", ("ssd",))
    node = cluster.node("a")
    assert (node.cpus_free_milli, node.memory_free_mib) == (-1_000, -512)
    assert node.slots == (1_000, 1_000, -1_000, -1_000)
    assert summary(cluster, "a") == (2, 1_000, 2_000)
    with pytest.raises(InvariantBroken):
        cluster.take(((0, 0),), Shape(1, 0))
    again = Cluster.decode(cluster.encode())
    assert again.encode() == cluster.encode()
    for each in (cluster, again):
        each.give_back(((0, 0b1100),), PAIR)
        assert each.in_use(0) == Amounts()
        assert each.node("a").slots == (1_000, 1_000)
        assert each.node("a").cpus_free_milli == 1_000


def test_a_release_that_fails_on_a_shrunk_node_is_undone() -> None:
    cluster = small()
    cluster.take(((0, 0b1100),), PAIR)
    cluster.update_node("a", 0, 0, 0)
    before = cluster.encode()
    with pytest.raises(InvariantBroken):
        cluster.give_back(((0, 0b1100), (0, 0b0011)), PAIR)
    assert cluster.encode() == before


def test_indices_are_stable_and_the_lowest_free_one_is_used_again() -> None:
    cluster = Cluster(1)
    for name in "abcd":
        cluster.add_node(name, 1, 1)
    for name in "ca":
        cluster.remove_node(name)
    assert [cluster.index_of(name) for name in "bd"] == [1, 3]
    assert cluster.indices() == [1, 3]
    copy = Cluster.decode(cluster.encode())
    for each in (cluster, copy):
        assert [each.add_node(name, 1, 1) for name in "xyz"] == [0, 2, 4]
    assert copy.encode() == cluster.encode()
    assert [cluster.name_of(node) for node in range(5)] == list("xbydz")


def test_bad_nodes_are_refused_and_leave_nothing() -> None:
    cluster = small()
    before = cluster.encode()
    for totals in (
        (-1, 1, 0),
        (1, -1, 0),
        (1, 1, 17),
        (1, 1, -1),
        (2**40, 1, 0),
        (1, 2**60, 0),
        (True, 1, 0),
        (1.5, 1, 0),
    ):
        with pytest.raises(InvalidSpec):
            cluster.add_node("x", *totals)
        with pytest.raises(InvalidSpec):
            cluster.update_node("a", *totals)
    with pytest.raises(AlreadyExists):
        cluster.add_node("a", 1, 1)
    for call in (cluster.remove_node, cluster.index_of, cluster.node):
        with pytest.raises(NotFound):
            call("x")
    with pytest.raises(InvalidSpec):
        cluster.set_latency("a", 1_001)
    cluster.take(((1, 0),), Shape(1, 1))
    with pytest.raises(InvariantBroken):
        cluster.remove_node("b")
    cluster.give_back(((1, 0),), Shape(1, 1))
    assert cluster.encode() == before


def test_eligibility_follows_the_nodes() -> None:
    cluster = small()
    constraints = [
        ((), ()),
        (("A100",), ()),
        ((), ("ssd",)),
        (("H100", "A100"), ("ssd",)),
        ((), ("nowhere",)),
    ]

    def masks() -> list[list[int]]:
        return [cluster.eligible[row, : cluster.count].tolist() for row in cluster.eligible_rows(constraints)]

    assert masks() == [[1, 1], [1, 0], [1, 0], [1, 0], [0, 0]]
    cluster.set_schedulable("a", False)
    assert masks() == [[0, 1], [0, 0], [0, 0], [0, 0], [0, 0]]
    cluster.set_schedulable("a", True)
    cluster.update_node("b", 1, 1, 0, "H100", ("ssd", "nowhere"))
    assert masks() == [[1, 1], [1, 0], [1, 1], [1, 1], [0, 1]]
    cluster.remove_node("a")
    assert masks() == [[0, 1], [0, 0], [0, 1], [0, 1], [0, 1]]
    cluster.add_node("c", 1, 1, 0, "A100", ())
    assert masks() == [[1, 1], [1, 0], [0, 1], [0, 1], [0, 1]]


def test_the_cache_of_constraints_is_bounded_and_stays_right() -> None:
    cluster = small()
    for index in range(3_000):
        cluster.eligible_rows([((), (f"label{index}",))])
    assert len(cluster.eligible) <= 2_048
    (row,) = cluster.eligible_rows([((), ("ssd",))])
    assert cluster.eligible[row, :2].tolist() == [1, 0]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_histories(seed: int) -> None:
    """Sums equal what was taken, clone and decode equal the original, and the order of caching leaves no trace."""
    rng = random.Random(seed)
    cluster = Cluster(rng.randint(1, 8))
    running: list[tuple[tuple[tuple[int, int], ...], Shape]] = []
    names: list[str] = []
    for step in range(60):
        action = rng.random()
        if action < 0.25 or not names:
            names.append(f"n{step}")
            cluster.add_node(names[-1], rng.randint(0, 9_000), rng.randint(0, 9_000), rng.randint(0, 16))
        elif action < 0.35:
            cluster.update_node(
                rng.choice(names), rng.randint(0, 9_000), rng.randint(0, 9_000), rng.randint(0, 16)
            )
        elif action < 0.4:
            cluster.set_schedulable(rng.choice(names), rng.random() < 0.5)
        elif action < 0.45:
            name = rng.choice(names)
            if cluster.in_use(cluster.index_of(name)) == Amounts():
                cluster.remove_node(name)
                names.remove(name)
        elif action < 0.5:
            cluster.eligible_rows([((), (rng.choice("abc"),))])
        elif action < 0.8:
            gpus = rng.randint(0, 2)
            shape = Shape(
                rng.randint(0, 3_000),
                rng.randint(0, 3_000),
                gpus,
                rng.choice((300, 1_000)) if gpus == 1 else 1_000,
            )
            mask = sum(1 << slot for slot in rng.sample(range(16), gpus))
            placement = ((rng.choice(cluster.indices()), mask),)
            before = cluster.encode()
            try:
                cluster.take(placement, shape)
            except InvariantBroken:
                assert cluster.encode() == before
            else:
                running.append((placement, shape))
        elif running:
            cluster.give_back(*running.pop(rng.randrange(len(running))))
    used = cluster.used()
    assert used.cpus_milli == sum(shape.cpus_milli for _, shape in running)
    assert used.memory_mib == sum(shape.memory_mib for _, shape in running)
    assert used.gpus_milli == sum(shape.gpus_milli for _, shape in running)
    for node in cluster.indices():
        slots = cluster.node(cluster.name_of(node)).slots[: cluster.node(cluster.name_of(node)).gpus]
        assert summary(cluster, cluster.name_of(node)) == (
            sum(slot == GPU_MILLI for slot in slots),
            max([0, *slots]),
            sum(max(0, slot) for slot in slots),
        )
    copy, clone = Cluster.decode(cluster.encode()), cluster.clone()
    assert copy.encode() == clone.encode() == cluster.encode()
    assert copy.kinds == clone.kinds == cluster.kinds
    for each in (copy, clone):
        assert each.add_node("new", 5, 5) == cluster.clone().add_node("new", 5, 5)
    kept = cluster.encode()
    for placement, shape in running:
        clone.give_back(placement, shape)
    assert cluster.encode() == kept


MANY = (
    (0, Shape(500, 128)),
    (1, Shape(500, 128, gpus=1, gpu_milli=250)),
    (2, Shape(1_000, 256, gpus=2)),
    (3, Shape(250, 64, gpus=1, members=2)),
)


def random_placements(rng: random.Random, count: int) -> list[tuple[tuple[tuple[int, int], ...], int, Shape]]:
    """Some of them on nodes or GPUs that there are none of, or with another number of GPUs."""
    made: list[tuple[tuple[tuple[int, int], ...], int, Shape]] = []
    for _ in range(count):
        number, shape = rng.choice(MANY)
        members = []
        for _ in range(shape.members):
            slots = rng.sample(range(8 if rng.random() < 0.99 else 12), shape.gpus)
            mask = sum(1 << slot for slot in slots) if rng.random() < 0.99 else 7
            members.append((rng.randrange(4) if rng.random() < 0.995 else rng.choice((-1, 4, 99)), mask))
        made.append((tuple(members), number, shape))
    return made


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), gpus=st.integers(0, 8), count=st.integers(0, 40))
def test_many_are_taken_and_given_back_as_one_after_the_other(seed: int, gpus: int, count: int) -> None:
    rng = random.Random(seed)
    many, single = Cluster(2), Cluster(2)
    for cluster in (many, single):
        for name in range(4):
            cluster.add_node(f"n{name}", 64_000, 65_536, gpus, "", ())
    taken = random_placements(rng, count)
    if both_fail(lambda: many.take_many(taken), lambda: [single.take(p, s) for p, _, s in taken]):
        return
    assert (many.table == single.table).all()
    given = rng.choices(taken, k=count) if rng.random() < 0.3 and taken else rng.sample(taken, count)
    if both_fail(lambda: many.give_back_many(given), lambda: [single.give_back(p, s) for p, _, s in given]):
        return
    assert (many.table == single.table).all()
    assert many.gains == single.gains


def both_fail(*ways: Callable[[], object]) -> bool:
    failed: list[bool] = []
    for way in ways:
        try:
            way()
        except InvariantBroken:
            failed.append(True)
        else:
            failed.append(False)
    assert len(set(failed)) == 1
    return failed[0]
