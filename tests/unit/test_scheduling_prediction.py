"""Run times predicted from history: exact integers, bounded memory, the same however it is cut; and order by response ratio."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mintyard.domain.scheduling.prediction import (
    MAX_SCALE_MS,
    MIN_SCALE_MS,
    TEMPLATES,
    History,
    JobKinds,
    Kind,
    templates,
)
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.units import NS_PER_MS

LIMIT = 3_600_000


def kind(user: str = "u", name: str = "n", shape: int = 0, limit: int = LIMIT) -> Kind:
    return (user, name, shape, limit)


class Plain:
    """The definition, without arrays."""

    def __init__(self) -> None:
        self.rows: dict[object, tuple[int, int]] = {}

    def predict(self, one: Kind) -> int:
        expected = one[3] // 2
        for template in reversed(templates(one)):
            if template in self.rows:
                total, weight = self.rows[template]
                expected = (total + expected * 1_024) // (weight + 1_024)
        return max(1, min(one[3], expected))

    def note(self, one: Kind, run: int) -> None:
        for template in templates(one):
            total, weight = self.rows.get(template, (0, 0))
            self.rows[template] = (total + run * 1_024 - total // 5, weight + 1_024 - weight // 5)


def test_without_history_half_the_limit_then_what_was_seen() -> None:
    history = History()
    assert history.predict(kind()) == LIMIT // 2
    for _ in range(50):
        history.note(kind(), 60_000)
    assert 60_000 <= history.predict(kind()) < 63_000
    assert history.predict(kind(user="other")) < LIMIT // 3  # by its limit
    assert history.predict(kind(user="other", limit=10)) == 5
    assert history.predict(kind(name="longer", limit=2 * LIMIT)) < LIMIT // 2  # by its user
    assert history.errors.runs == 50
    assert 0 < history.errors.absolute_ms < history.errors.limit_absolute_ms


def test_never_more_than_the_limit_nor_less_than_one() -> None:
    history = History()
    for _ in range(9):
        history.note(kind(limit=100_000), 100_000)
        history.note(kind(user="z", limit=1), 0)
    assert history.predict(kind(limit=50)) <= 50
    assert history.predict(kind(user="z", limit=1)) == 1


runs = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from("xy"),
        st.integers(0, 2),
        st.integers(1, 5),
        st.integers(0, 10**10),
    ),
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(runs=runs, seed=st.integers(0, 99))
def test_as_defined_and_however_it_is_cut(runs: list[tuple[str, str, int, int, int]], seed: int) -> None:
    rng = random.Random(seed)
    plain, once, often = Plain(), History(), History()
    for user, name, shape, limit, run in runs:
        one = kind(user, name, shape, limit * 1_000)
        plain.note(one, run)
        once.note(one, run)
        often.note(one, run)
        if rng.random() < 0.5:
            often.settle()
        if rng.random() < 0.1:
            often = History.decode(often.encode())
    assert once.encode() == often.encode()
    for user in "abcd":
        one = kind(user, "x", 1, 2_000)
        assert once.predict(one) == often.predict(one) == plain.predict(one)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_memory_is_bounded_however_it_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    once, often = History(most=40), History(most=40)
    for _ in range(300):
        one = kind(f"u{rng.randrange(30)}", limit=rng.randrange(1, 9) * 1_000)
        run = rng.randrange(10_000)
        once.note(one, run)
        often.note(one, run)
        if rng.random() < 0.4:
            often.settle()
            assert len(often) <= 40
    assert once.encode() == often.encode()
    assert TEMPLATES <= len(once) <= 40
    fresh = once.predict(one)
    assert fresh == often.predict(one)


def test_kinds_follow_history_and_forget_what_nobody_waits_for() -> None:
    history, kinds = History(), JobKinds()
    numbers = [kinds.intern(0, spec, kind(user=f"u{spec}", limit=1_000 * (spec + 1))) for spec in range(20)]
    assert kinds.intern(0, 3, kind(user="u3", limit=4_000)) == numbers[3]
    assert kinds.predicted_ms(history)[numbers].tolist() == [500 * (spec + 1) for spec in range(20)]
    history.note(kind(user="u3", limit=4_000), 4_000)
    expected = [history.predict(kind(user=f"u{spec}", limit=1_000 * (spec + 1))) for spec in range(20)]
    assert kinds.predicted_ms(history)[numbers].tolist() == expected
    assert kinds.sweep(np.array(numbers)) is None
    moved = kinds.sweep(np.array([numbers[7], numbers[3], numbers[7]]))
    assert moved is not None
    assert len(kinds) == 3
    assert kinds.find(0, 7) == moved[numbers[7]] == 2
    assert kinds.find(0, 8) == 0
    assert kinds.limits_ms[moved[numbers[3]]] == 4_000
    assert kinds.predicted_ms(history)[moved[numbers[3]]] == expected[3]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_order_by_response_ratio(seed: int) -> None:
    """Kernel, plain definition and position agree; the scale stays within its bounds; every job grows."""
    rng = random.Random(seed)
    queue, history, kinds = PendingQueue(), History(), JobKinds()
    now = 10**18
    for job in range(1, 40):
        one = kind(rng.choice("abc"), limit=rng.choice((5, 60_000, LIMIT, 300 * 86_400_000)))
        if rng.random() < 0.3:
            history.note(one, rng.randrange(one[3] + 1))
        number = kinds.intern(ord(one[0]), one[3], one)
        queue.add(job, 0, 0, rng.choice((1, 100)), now - rng.randrange(10**15), kind=number)
    scales = kinds.scales(history)
    usage = [rng.randrange(500)]
    found = queue.evaluate(now, usage, 100, scales=scales)[:, 2].tolist()
    keys = {job: (-queue.priority(job, now, usage, scales), queue.get(job).enqueued_at, job) for job in found}
    assert found == sorted(keys, key=keys.__getitem__)
    assert [queue.position(job, now, usage, scales) for job in found] == list(range(len(found)))
    expected = kinds.predicted_ms(history)
    for job in found:
        pending = queue.get(job)
        scale_ms = min(max(int(expected[pending.kind]), MIN_SCALE_MS), MAX_SCALE_MS)
        later = pending.enqueued_at + 3 * scale_ms * NS_PER_MS
        at_once = queue.priority(job, pending.enqueued_at, [0], scales)
        assert abs(queue.priority(job, later, [0], scales) - 4 * at_once) <= at_once // 1_000
