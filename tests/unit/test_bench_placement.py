"""The harnesses of B1 (fill) and B4: what arrives, what is placed, and that the queue's order is the plain definition's."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from bench import pending
from bench.placement.fill import ARRIVED_PERCENT, Mix, arrivals, fill

from mintyard.app.traces import open_trace, sample_trace
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.scoring import Policy
from mintyard.ports.traces import TraceNode, shape_of


@pytest.fixture(scope="module")
def sample() -> Mix:
    """The shipped sample's pods on every twentieth of its nodes."""
    trace = open_trace(*sample_trace())
    return Mix("sample", [shape_of(job) for job in trace.jobs], trace.nodes[::20])


@pytest.mark.parametrize("seed", [1, 2])
def test_tasks_arrive_up_to_130_percent(sample: Mix, seed: int) -> None:
    tasks = arrivals(sample, Random(seed))
    arrived = sum(task.gpus_milli for task in tasks)
    most = sample.gpus_milli * ARRIVED_PERCENT // 100
    assert most - 8_000 < arrived <= most
    assert arrivals(sample, Random(seed)) == tasks
    assert arrivals(sample, Random(seed + 1)) != tasks


@pytest.mark.parametrize("policy", list(Policy))
def test_a_fill_is_the_same_each_time_and_never_above_all(sample: Mix, policy: Policy) -> None:
    first = fill(sample, policy, 42)
    assert 50 < first <= 100
    assert fill(sample, policy, 42) == first


@pytest.mark.parametrize(
    ("shape", "percent"),
    [
        (Shape(1_000, 512, 1, 600), 60),  # four of 600 arrive, one fits on each of two GPUs
        (Shape(1_000, 512, 2), 100),  # one arrives
        (Shape(5_000, 512, 1), 50),  # two arrive, the cores are enough for one
    ],
)
def test_what_is_placed_is_counted(shape: Shape, percent: float) -> None:
    mix = Mix("hand", [shape], [TraceNode("n", 8_000, 16_384, 2)])
    for policy in Policy:
        assert fill(mix, policy, 1) == percent


def test_the_best_of_a_queue_are_what_the_plain_definition_says() -> None:
    queue, rng = PendingQueue(), np.random.default_rng(3)
    pending._fill(queue, rng, 1, 3_000, pending.START - 3_600_000 * pending.NS_PER_MS)
    assert pending._compare(queue, rng) == 0
    evaluated, churned, slowest = pending._ticks(queue, rng, 2)
    assert 0 < evaluated <= slowest
    assert churned > 0
    assert len(queue) == 3_000
