"""The pending queue: order exact and as defined, however slots are used; nothing starves; memory bounded."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mintyard.domain.errors import InvariantBroken
from mintyard.domain.scheduling import queue_kernel
from mintyard.domain.scheduling.queue import PendingJob, PendingQueue
from mintyard.domain.units import NS_PER_MS

HOUR = 3_600_000 * NS_PER_MS


def plain_order(queue: PendingQueue, now: int, usage: list[int]) -> list[int]:
    ready = [job for job in queue.pending() if job.ready and max(job.begin_at, job.enqueued_at) <= now]
    ready.sort(key=lambda job: (-queue.priority(job.job, now, usage), job.enqueued_at, job.job))
    return [job.job for job in ready]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_order_is_the_plain_definition(seed: int) -> None:
    rng = random.Random(seed)
    queue = PendingQueue(age_scale_ms=rng.choice((1, 1_000, 300_000)))
    waiting: list[int] = []
    now = 10 * HOUR
    for job in range(1, rng.choice((2, 30, 300))):
        queue.add(
            rng.choice((job, job * 1_000)) if job * 1_000 not in queue and job not in queue else 10**9 + job,
            rng.randrange(5),
            rng.randrange(4),
            rng.choice((-5, 0, 1, 100, 100, 100, 10_000, 10**9)),
            rng.choice((0, now - HOUR, now - rng.randrange(10**12), now)),
            rng.choice((0, 0, 0, now - 5, now + 1)),
            ready=rng.random() < 0.9,
            runs=rng.choice((0, 0, 1, 5, 1_000)),
        )
    waiting = [job.job for job in queue.pending()]
    for job in rng.sample(waiting, len(waiting) // 3):
        assert queue.discard(job)
        assert not queue.discard(job)
    for job in (each.job for each in queue.pending()[::7]):
        queue.set_ready(job, rng.random() < 0.5)
        queue.set_base(job, rng.randrange(1, 500))
    usage = [rng.choice((0, 10, 1_000, 10**9)) for _ in range(rng.randint(0, 4))]
    order = plain_order(queue, now, usage)
    for most in (1, 3, 64, 10_000):
        top = queue.evaluate(now, usage, most)
        assert top[:, 2].tolist() == order[:most]
        assert top[:, 0].tolist() == [queue.priority(job, now, usage) for job in order[:most]]
    for job in rng.sample(order, min(3, len(order))):
        assert queue.position(job, now, usage) == order.index(job)


def test_order_does_not_depend_on_slots() -> None:
    """A queue rebuilt from a snapshot in another order gives the same answer."""
    rng = random.Random(7)
    queue = PendingQueue()
    for job in range(1, 400):
        queue.add(job, 0, job % 3, rng.choice((50, 100)), rng.randrange(5) * NS_PER_MS)
    for job in range(1, 400, 2):
        queue.discard(job)
    for job in range(1_000, 1_100):
        queue.add(job, 0, job % 3, 100, 3 * NS_PER_MS)
    again = PendingQueue()
    shuffled = queue.pending()
    rng.shuffle(shuffled)
    for job in shuffled:
        again.add(job.job, job.class_id, job.tenant, job.base, job.enqueued_at, job.begin_at, ready=job.ready)
    usage = [0, 100, 200]
    assert np.array_equal(
        queue.evaluate(HOUR, usage, 1_000)[:, :3], again.evaluate(HOUR, usage, 1_000)[:, :3]
    )
    assert again.class_counts == queue.class_counts == {0: len(queue)}


def test_waiting_raises_and_usage_and_runs_lower() -> None:
    queue = PendingQueue(age_scale_ms=1_000)
    queue.add(1, 0, 0, 100, 0)
    queue.add(2, 0, 0, 100, 0, runs=8)
    first = queue.priority(1, 0, [])
    assert first == 100 << 24 >> 8
    assert queue.priority(1, 1_000 * NS_PER_MS, []) == 2 * first
    assert queue.priority(1, 0, [1_000]) == first // 2
    assert queue.priority(2, 0, []) == first // 2


def test_nothing_starves() -> None:
    """Whatever keeps arriving at the highest base, a job of the lowest comes first in the end."""
    queue = PendingQueue()
    queue.add(1, 0, 0, 1, 0)
    scale = queue.age_scale_ms * NS_PER_MS
    queue.add(2, 0, 0, 10_000, 10_001 * scale)
    assert queue.evaluate(10_001 * scale, [1_000], 1)[0, 2] == 1
    assert queue.evaluate(9_000 * scale, [1_000], 1)[0, 2] == 1


def test_begin_time_counts_as_the_start_of_waiting() -> None:
    queue = PendingQueue()
    queue.add(1, 0, 0, 100, 0, begin_at=HOUR)
    assert len(queue.evaluate(HOUR - 1, [], 5)) == 0
    assert queue.evaluate(HOUR, [], 5)[0, 0] == queue.priority(1, 0, [])
    assert queue.get(1) == PendingJob(1, 0, 0, 100, 0, HOUR)


def test_classes_and_throttles_are_left_out() -> None:
    queue = PendingQueue()
    for job in range(1, 9):
        queue.add(job, job % 2, 0, 100, 0, group=(-1, 0, 1, -1)[job % 4])
    wanted = np.array([queue_kernel.SKIP, queue_kernel.WANTED], np.uint8)
    assert queue.evaluate(0, [], 9, wanted=wanted)[:, 2].tolist() == [1, 3, 5, 7]
    remaining = np.array([0], np.int32)
    assert queue.evaluate(0, [], 9, wanted=wanted, remaining=remaining)[:, 2].tolist() == [3, 7]
    wanted[0] = queue_kernel.WAITS
    assert queue.evaluate(0, [], 9, wanted=wanted, patience_ms=1)[:, 2].tolist() == [1, 3, 5, 7]
    assert len(queue.evaluate(NS_PER_MS, [], 9, wanted=wanted, patience_ms=1)) == 8


def test_misuse_is_refused() -> None:
    queue = PendingQueue()
    queue.add(1, 0, 0, 1, 0)
    with pytest.raises(InvariantBroken):
        queue.add(1, 0, 0, 1, 0)
    for call in (queue.get, lambda job: queue.set_ready(job, True), lambda job: queue.position(job, 0, [])):
        with pytest.raises(InvariantBroken):
            call(2)
    assert 1 in queue
    assert 2 not in queue
    assert "1" not in queue
    assert queue.discard(1)
    assert not queue.class_counts
    assert len(queue.evaluate(0, [], 5)) == 0
    with pytest.raises(ValueError):
        PendingQueue(0)


def test_a_slot_is_small_and_used_again() -> None:
    queue = PendingQueue()
    for job in range(10_000):
        queue.add(job, 0, 0, 1, 0)
        if job >= 100:
            queue.discard(job - 100)
    assert queue.count <= 101
    assert queue.bytes_per_slot <= 60
    assert [job.job for job in queue.pending()] == list(range(9_900, 10_000))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_many_at_once_are_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    one, many = PendingQueue(), PendingQueue()
    numbers = rng.sample(range(1, rng.choice((10, 2_000, 10**9))), 9)
    before, numbers = numbers[:3], numbers[3:]
    rows = [
        PendingJob(
            number,
            rng.randrange(4),
            rng.randrange(3),
            rng.choice((-5, 1, 100, 10**9)),
            rng.choice((0, HOUR, rng.randrange(10**15))),
            rng.choice((0, rng.randrange(10**15))),
            True,
            rng.choice((0, 3, 1_000)),
            rng.choice((-1, 0, 2)),
        )
        for number in numbers
    ]
    for queue in (one, many):
        for number in before:
            queue.add(number, 7, 0, 50, HOUR)
        queue.discard(before[1])
    for row in rows:
        one.add(
            row.job,
            row.class_id,
            row.tenant,
            row.base,
            row.enqueued_at,
            row.begin_at,
            runs=row.runs,
            group=row.group,
        )
    columns: dict[str, list[int]] = {
        "jobs": [row.job for row in rows],
        "class_ids": [row.class_id for row in rows],
        "tenants": [row.tenant for row in rows],
        "bases": [row.base for row in rows],
        "enqueued_at": [row.enqueued_at for row in rows],
        "begin_at": [row.begin_at for row in rows],
        "runs": [row.runs for row in rows],
        "groups": [row.group for row in rows],
    }
    many.add_many(**columns)
    assert many.pending() == one.pending()
    assert many.class_counts == one.class_counts
    assert len(many) == len(one)
    for wrong in (columns["jobs"], [before[0], *columns["jobs"][1:]], [numbers[0]] * len(numbers)):
        with pytest.raises(InvariantBroken):
            many.add_many(**columns | {"jobs": wrong})
    assert many.pending() == one.pending()
    for number in [*numbers, before[0], before[2]]:
        assert many.discard(number)
    assert not len(many)
    assert not many.class_counts


def test_none_at_once_is_nothing() -> None:
    queue = PendingQueue()
    queue.add_many(
        jobs=[], class_ids=[], tenants=[], bases=[], enqueued_at=[], begin_at=[], runs=[], groups=[]
    )
    assert queue.pending() == []
