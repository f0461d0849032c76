"""B8's harness: the workloads of Kueue's baseline, the bound, and an engine that keeps its time."""

from __future__ import annotations

import time
from collections import Counter

from bench.cohorts.b8 import KINDS, Arrival, arrivals, lower_bound_s
from bench.cohorts.sleeping import SleepingEngine

from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted
from mintyard.ports.engine import StartOrder


def test_the_workloads_are_kueues() -> None:
    coming = arrivals(1)
    assert len(coming) == 15_000
    assert Counter(one.kind.name for one in coming) == {"small": 10_500, "medium": 3_000, "large": 1_500}
    assert coming == sorted(coming, key=lambda one: one.at_ms)
    assert coming[-1].at_ms == 60_000
    assert 65 < lower_bound_s(coming) < 67


def test_the_bound_is_the_work_at_the_quota_or_the_last_arrival() -> None:
    small, _, large = KINDS
    assert lower_bound_s([Arrival(0, 0, large)] * 12) == 2.0  # 240 units of 120 for a second each
    assert lower_bound_s([Arrival(0, 0, small), Arrival(5_000, 0, small)]) == 5.2
    assert lower_bound_s([Arrival(0, 0, large), *[Arrival(1_000, 6, large)] * 12]) == 3.0


def test_the_engine_keeps_its_time() -> None:
    engine = SleepingEngine()
    orders = [
        StartOrder(job, 1, name, "a", (), 1, 1, 1_000, 60_000, 0, b"")
        for job, name in ((1, "medium"), (2, "small"))
    ]
    began = time.monotonic()
    engine.start(orders)
    assert [type(one) for one in engine.poll(1)] == [AttemptStarted, AttemptStarted]
    (first,) = engine.poll(1)
    assert (type(first), first.job) == (AttemptEnded, 2)
    assert time.monotonic() - began >= 0.2
    assert engine.poll(0) == []
    (second,) = engine.poll(5)
    assert (second.job, second.run_ms) == (1, 500)
