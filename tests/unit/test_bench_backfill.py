"""B5's harness: reads a log, gives the schedule of a textbook EASY, on one node as on many."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from bench.backfill.b5 import EASY, RATIO, SJBF, fairness, slowdowns
from bench.backfill.replay import Estimates, Job, Log, read_log, replay
from hypothesis import given, settings
from hypothesis import strategies as st


def random_log(seed: int, jobs: int = 40) -> Log:
    rng = random.Random(seed)
    made: list[Job] = []
    at = 0
    for _ in range(jobs):
        at += rng.choice((0, 0, 1, 7, 30))
        limit = rng.choice((10, 60, 300))
        made.append(Job(at, rng.randint(1, limit), limit, rng.choice((1, 2, 3, 5, 8)), rng.choice("abc")))
    return Log(made, 8)


def textbook(log: Log) -> list[int]:
    """EASY by counting processors: waits by job."""
    free, queue, running = log.procs, list[int](), list[tuple[int, int]]()
    start: dict[int, int] = {}
    events = sorted({job.submit_s for job in log.jobs})
    arrived = 0
    while events:
        now = events.pop(0)
        for number, end in [one for one in running if one[1] <= now]:
            running.remove((number, end))
            free += log.jobs[number].procs
        while arrived < len(log.jobs) and log.jobs[arrived].submit_s <= now:
            queue.append(arrived)
            arrived += 1

        def begin(number: int, now: int = now) -> None:
            queue.remove(number)
            start[number] = now
            end = now + log.jobs[number].run_s
            running.append((number, end))
            if end not in events:
                events.append(end)
                events.sort()

        while queue and log.jobs[queue[0]].procs <= free:
            free -= log.jobs[queue[0]].procs
            begin(queue[0])
        if not queue:
            continue
        spare, shadow = free, 0
        for bound, number in sorted(
            (max(now + 1, start[one] + log.jobs[one].limit_s), one) for one, _ in running
        ):
            if spare >= log.jobs[queue[0]].procs and bound > shadow:
                break
            spare, shadow = spare + log.jobs[number].procs, bound
        spare -= log.jobs[queue[0]].procs
        for number in queue[1:]:
            job = log.jobs[number]
            late = now + job.limit_s > shadow
            if job.procs <= free and (not late or job.procs <= spare):
                free -= job.procs
                spare -= job.procs * late
                begin(number)
    return [start[number] - job.submit_s for number, job in enumerate(log.jobs)]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_schedule_is_that_of_the_textbook(seed: int) -> None:
    log = random_log(seed)
    assert replay(log, EASY).wait_s.tolist() == textbook(log)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), rules=st.sampled_from([EASY, SJBF, RATIO]))
def test_nodes_with_one_core_each_give_the_same_schedule(seed: int, rules: object) -> None:
    log = random_log(seed, 25)
    assert replay(log, rules, nodes=8).wait_s.tolist() == replay(log, rules).wait_s.tolist()


def test_knowing_more_can_only_change_the_schedule_not_lose_a_job() -> None:
    log = random_log(7)
    for estimates in Estimates:
        schedule = replay(log, RATIO, estimates, by_event=True)
        assert (schedule.wait_s >= 0).all()
        found = slowdowns(log, schedule)
        assert (found >= 1).all()
        assert 0 < fairness(found) <= 1
        assert schedule.history.errors.runs == (len(log.jobs) if estimates is Estimates.REQUESTED else 0)


def test_a_log_is_read_as_the_published_figures_need_it(tmp_path: Path) -> None:
    path = tmp_path / "log.swf.gz"
    rows = (
        "1 5 0 100 4 -1 -1 8 60 -1 1 9 1 -1 -1 -1 -1 -1",  # processors as requested, run time cut at the request
        "2 3 0 50 2 -1 -1 -1 -1 -1 1 9 1 -1 -1 -1 -1 -1",  # no request: allocated processors, run time as limit
        "3 9 0 0 2 -1 -1 2 60 -1 1 9 1 -1 -1 -1 -1 -1",
        "4 9 0 9 2 -1 -1 200 60 -1 1 9 1 -1 -1 -1 -1 -1",
    )
    with gzip.open(path, "wt") as file:
        file.write("; MaxNodes: 50\n; MaxProcs: 100\n" + "\n".join(rows) + "\n")
    log = read_log(path)
    assert log.procs == 100
    assert log.jobs == [Job(3, 50, 50, 2, "9"), Job(5, 60, 60, 8, "9")]


def test_missing_data_say_where_they_come_from(tmp_path: Path) -> None:
    import argparse

    from bench.backfill import b5

    given = argparse.Namespace(data=tmp_path, quick=True, part="")
    with pytest.raises(SystemExit, match="Parallel Workloads Archive"):
        b5.run(given)
