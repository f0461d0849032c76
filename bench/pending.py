"""B4: a queue of a million: 1,000,000 waiting tasks of 1,000 tenants, the whole priority formula evaluated again each 100 ms.

Each tick evaluates every waiting task at that instant, with every tenant's share in use changed, takes the best 1,024 out and
puts 1,024 new ones in. Ticks come in real time, so caches are as cold as they are live; `core_share` is CPU of the evaluation
by wall time, `core_share_churn` with taking out and putting in. At the end the order of the best 1,024 is compared with the
plain definition (`PendingQueue.priority`) of every one of the million. `bytes_per_task` counts what the queue allocates; what
a whole hub takes with a million waiting jobs is in `scale`.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc

import numpy as np
from numpy.typing import NDArray

from bench.report import finish, median, table
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.units import NS_PER_MS

TASKS = 1_000_000
TENANTS = 1_000
CLASSES = 64
BEST = 1_024
TICK_MS = 100
START = 1_790_000_000_000_000_000


def run(given: argparse.Namespace) -> None:
    ticks = 50 if given.quick else 300
    rng = np.random.default_rng(1)
    tracemalloc.start()
    queue = PendingQueue()
    _fill(queue, rng, 1, TASKS, START - 3_600_000 * NS_PER_MS)
    gc.collect()
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    usage = rng.integers(0, 1_000, TENANTS)
    queue.evaluate(START, usage, BEST)  # compiled before it is timed
    runs = [_ticks(queue, rng, ticks) for _ in range(given.runs)]
    wrong = _compare(queue, rng)
    evaluate = median([one[0] for one in runs])
    churn = median([one[1] for one in runs])
    slowest = max(one[2] for one in runs)
    figures = {
        "core_share": evaluate / TICK_MS,
        "core_share_churn": (evaluate + churn) / TICK_MS,
        "bytes_per_task": allocated / TASKS,
        "evaluate_ms": evaluate,
        "evaluate_slowest_ms": slowest,
        "wrong_order": wrong,
    }
    print(table(["figure", "value"], [[name, value] for name, value in figures.items()]))
    if wrong:
        raise SystemExit(f"{wrong} of the best {BEST} are not where the plain definition puts them")
    finish("B4", figures)


def _fill(queue: PendingQueue, rng: np.random.Generator, first: int, count: int, since: int) -> None:
    """Jobs from number `first` on, of an hour of arrivals from `since` (ns) on."""
    for start in range(0, count, 65_536):
        some = min(65_536, count - start)
        queue.add_many(
            jobs=range(first + start, first + start + some),
            class_ids=rng.integers(0, CLASSES, some).tolist(),
            tenants=rng.integers(0, TENANTS, some).tolist(),
            bases=rng.integers(1, 1_000, some).tolist(),
            enqueued_at=(since + rng.integers(0, 3_600_000, some) * NS_PER_MS).tolist(),
            begin_at=[0] * some,
            runs=rng.integers(0, 3, some).tolist(),
            groups=[-1] * some,
        )


def _ticks(queue: PendingQueue, rng: np.random.Generator, count: int) -> tuple[float, float, float]:
    """CPU of the evaluation and of taking out and putting in, ms a tick; and of the slowest evaluation."""
    evaluations: list[float] = []
    churns: list[float] = []
    number = int(queue.column("jobs").max()) + 1
    due = time.perf_counter()
    for tick in range(count):
        usage = rng.integers(0, 1_000, TENANTS)
        now = START + tick * TICK_MS * NS_PER_MS
        began = time.thread_time()
        best = queue.evaluate(now, usage, BEST)
        seen = time.thread_time()
        queue.discard_many(best[:, 2].tolist())
        _fill(queue, rng, number, BEST, now - 3_600_000 * NS_PER_MS)
        churns.append((time.thread_time() - seen) * 1e3)
        evaluations.append((seen - began) * 1e3)
        number += BEST
        due += TICK_MS / 1e3
        time.sleep(max(0.0, due - time.perf_counter()))
    return sum(evaluations) / count, sum(churns) / count, max(evaluations)


def _compare(queue: PendingQueue, rng: np.random.Generator) -> int:
    """How many of the best are not what the plain definition says, over all that wait."""
    usage: NDArray[np.int64] = rng.integers(0, 1_000, TENANTS)
    now = START + 60_000 * NS_PER_MS
    best = queue.evaluate(now, usage, BEST)[:, 2].tolist()
    shares = usage.tolist()
    plain = sorted(
        (-queue.priority(job.job, now, shares), job.enqueued_at, job.job) for job in queue.pending()
    )
    return sum(one != other for one, (_, _, other) in zip(best, plain[:BEST], strict=True))
