"""Where the CPU of a task goes, without clock, store and threads: `python -m bench.throughput.split [--tasks N] [--rounds N]`.

Batches go through `Decisions` and the outbox's path step by step; each step's figure is the least of many batches, so that
neighbours on the machine disturb it little. For finding what costs, not for claims.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import Any

from bench.report import table
from bench.throughput import tenants
from bench.throughput.noop import NoopEngine
from mintyard.app.decisions import Decisions
from mintyard.app.inbox import Inbox
from mintyard.app.link import Answer
from mintyard.domain import hub
from mintyard.domain.commands import TakeReports
from mintyard.domain.state import State

STEPS = ("submit", "round", "orders", "engine", "started", "ended", "answers")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=256, help="tasks a batch")
    parser.add_argument("--rounds", type=int, default=200, help="batches")
    parser.add_argument("--profile", default="", help="leave a profile of all steps here")
    given = parser.parse_args()
    costs = measure(given.tasks, given.rounds, given.profile)
    rows = [[step, min(times), sorted(times)[len(times) // 2]] for step, times in costs.items()]
    rows.append(["sum", sum(row[1] for row in rows), sum(row[2] for row in rows)])
    print(table(["step", "least us/task", "median us/task"], rows))


def measure(tasks: int, rounds: int, profile: str = "") -> dict[str, list[float]]:
    """CPU microseconds a task of each step, one figure a batch."""
    state = State()
    now = tenants.now_ns()
    tokens = tenants.authorities(now)
    for seq, command in enumerate(tenants.opening(tokens), 1):
        hub.begin(state, seq, now)
        hub.execute(state, command, now)
    decisions = Decisions(state, None)
    mix = tenants.submits(tokens)
    engine = NoopEngine()
    costs: dict[str, list[float]] = {step: [] for step in STEPS}
    sunk: list[Any] = []
    sink = sunk.extend
    gc.collect()
    gc.freeze()
    profiler = _profiler() if profile else None
    for batch in range(rounds):
        now += 3_000_000
        first = batch * tasks
        if profiler and batch == rounds // 10:
            profiler.enable()
        inbox: Inbox[Any] = Inbox()
        inbox.extend((mix[tag % len(mix)], sink, tag) for tag in range(first, first + tasks))
        clock = _Clock(costs, tasks)
        _, replies = decisions.decide(inbox, now, 1, False, False, _never, tasks)
        clock.lap("submit")
        placed, _ = decisions.decide(Inbox(), now, 1, True, True, _never)
        clock.lap("round")
        assert placed is not None
        orders = [effect.order for effect in placed.effects]
        clock.lap("orders")
        engine.start(orders)
        reports = engine.poll(0)
        clock.lap("engine")
        now += 3_000_000
        for step, half in (("started", reports[::2]), ("ended", reports[1::2])):
            inbox.extend([(TakeReports(tenants.ENGINE, tuple(half)), sink, half)], ours=True)
            clock.again()
            decisions.decide(inbox, now, 1, False, False, _never)
            clock.lap(step)
        sink([(tag, Answer(1, reply)) for _, tag, reply in replies])
        sunk.clear()
        clock.lap("answers")
    if profiler:
        profiler.disable()
        profiler.dump_stats(profile)
    assert not state.jobs
    return costs


class _Clock:
    def __init__(self, costs: dict[str, list[float]], tasks: int) -> None:
        self.costs, self.tasks = costs, tasks
        self.at = time.thread_time()

    def again(self) -> None:
        self.at = time.thread_time()

    def lap(self, step: str) -> None:
        self.costs[step].append((time.thread_time() - self.at) / self.tasks * 1e6)
        self.at = time.thread_time()


def _never() -> bool:
    return False


def _profiler() -> Any:
    import cProfile

    return cProfile.Profile()


if __name__ == "__main__":
    main()
