"""B8: Kueue's performance test (test/performance/scheduler, `baseline`), in real time through the REST API of a whole hub.

5 cohorts of 6 queues; each queue has a quota of 20 and may borrow up to 100. Each gets 350 workloads of 1 for 0.2 s (one each
100 ms, priority 50), 100 of 5 for 0.5 s (each 500 ms, priority 100) and 50 of 20 for 1 s (each 1.2 s, priority 200): 15,000 in
all. Execution is a no-op that takes that long. Every workload is a POST of its own, paid for by a token narrowed offline, held
for, durable, settled. `admission_s.CLASS` is from a workload's admission to the hub to its start, mean, by the hub's own journal;
`makespan_s` from the first arrival to the last end. `lower_bound_s` is what the work and the cohorts' quota allow at best.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

import msgspec

from bench.cohorts.sleeping import RUN_MS
from bench.report import finish, median, table
from bench.throughput.http import drain, hub, onboard
from bench.throughput.http_load import Plan, Result, encode_request
from mintyard.app.journal import stream
from mintyard.app.journal_store import open_store, recorded_url
from mintyard.app.record import decode_body
from mintyard.domain.events import JobAdmitted, JobEnded, JobPlaced, SpecInterned

COHORTS: Final = 5
QUEUES: Final = 6
QUOTA: Final = 20
BORROWING: Final = 100
_ROOT: Final = Path(__file__).resolve().parents[2]


class Kind(NamedTuple):
    """Workloads of one class in one queue."""

    name: str
    count: int
    every_ms: int
    size: int
    priority: int


KINDS: Final = (
    Kind("small", 350, 100, 1, 50),
    Kind("medium", 100, 500, 5, 100),
    Kind("large", 50, 1_200, 20, 200),
)
PUBLISHED: Final = {"makespan_s": "351", "small": "215", "medium": "77", "large": "17"}
"""Kueue's means on its own test machines."""


class Arrival(NamedTuple):
    at_ms: int
    queue: int
    kind: Kind


def arrivals(part: int) -> list[Arrival]:
    """In order of time; every `part`th workload of each class only."""
    found = [
        Arrival(number * kind.every_ms, queue, kind)
        for kind in KINDS
        for queue in range(COHORTS * QUEUES)
        for number in range(1, kind.count // part + 1)
    ]
    return sorted(found, key=lambda one: (one.at_ms, one.queue, one.kind.size))


def lower_bound_s(coming: Sequence[Arrival]) -> float:
    """No schedule ends before all work that comes from some instant on is done at a whole cohort's quota, nor before its last
    arrival has run. From the first arrival on."""
    first = coming[0].at_ms
    least = max(one.at_ms + RUN_MS[one.kind.name] for one in coming)
    for cohort in range(COHORTS):
        left = 0
        for one in reversed(coming):
            if one.queue // QUEUES == cohort:
                left += one.kind.size * RUN_MS[one.kind.name]
                least = max(least, one.at_ms + left / (QUOTA * QUEUES))
    return (least - first) / 1e3


def run(given: argparse.Namespace) -> None:
    once(arrivals(25))  # kernels are compiled, and kept, before anything is measured
    coming = arrivals(3 if given.quick else 1)
    runs = [once(coming) for _ in range(1 if given.quick else given.runs)]
    bound = lower_bound_s(coming)
    figures = {"makespan_s": median([one["makespan_s"] for one in runs]), "lower_bound_s": bound}
    for name in RUN_MS:
        figures[f"admission_s.{name}"] = median([one[name] for one in runs])
    figures["over_bound"] = figures["makespan_s"] / bound
    figures["use_percent"] = median([one["use_percent"] for one in runs])
    rows = [
        ["makespan, s", figures["makespan_s"], f"{bound:.1f} at best", PUBLISHED["makespan_s"]],
        *([f"mean admission of {n}, s", figures[f"admission_s.{n}"], "", PUBLISHED[n]] for n in RUN_MS),
        ["quota in use, %", figures["use_percent"], "100", "at least 50"],
    ]
    print(table(["figure", "ours", "bound", "Kueue's own (published)"], rows))
    finish("B8", figures)


def once(coming: Sequence[Arrival]) -> dict[str, float]:
    """One run in a hub of its own."""
    with hub(engine="bench.cohorts.sleeping:SleepingEngine", options={}) as live:
        tokens = onboard(live)
        with live.client() as client:
            for cohort in range(COHORTS):
                _set(client, {"queue": f"cohort-{cohort}"})
                for queue in range(QUEUES):
                    _set(
                        client,
                        {
                            "queue": queue_name(cohort * QUEUES + queue),
                            "parent": f"cohort-{cohort}",
                            "nominal": {"cpus_milli": 1_000 * QUOTA},
                            "borrowing": {"cpus_milli": 1_000 * BORROWING},
                        },
                    )
        host = f"127.0.0.1:{live.port}"
        requests = [
            encode_request("/api/v1/jobs", tokens[one.queue % len(tokens)], _job(one), host) for one in coming
        ]
        first = coming[0].at_ms
        plan = Plan(
            host="127.0.0.1",
            port=live.port,
            requests=requests,
            due=[(one.at_ms - first) / 1e3 for one in coming],
            connections=32,
            seconds=(coming[-1].at_ms - first) / 1e3 + 1,
            warm_s=0,
        )
        environment = os.environ | {"PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
        done = subprocess.run(
            [sys.executable, "-m", "bench.throughput.http_load"], input=msgspec.msgpack.encode(plan),
            stdout=subprocess.PIPE, env=environment, cwd=_ROOT, check=True,
        )  # fmt: skip
        found = msgspec.json.decode(done.stdout.splitlines()[-1], type=Result)
        if found.acknowledged != len(coming):
            raise SystemExit(f"{found.acknowledged} of {len(coming)} were taken: {found.statuses}")
        left = drain(live, 600)
        if left:
            raise SystemExit(f"{left} workloads have not ended")
        return _measured(recorded_url(str(live.folder)), len(coming))


def queue_name(number: int) -> str:
    return f"queue-{number:02}"


def _job(one: Arrival) -> dict[str, Any]:
    return {
        "launch": {"argv": ["true"]}, "name": one.kind.name, "time_limit_ms": 60_000, "priority": one.kind.priority,
        "cpus_milli": 1_000 * one.kind.size, "memory_mib": 1, "queue": queue_name(one.queue),
    }  # fmt: skip


def _set(client: Any, body: dict[str, Any]) -> None:
    answer = client.post("/queues", json=body)
    assert answer.is_success, answer.text


def _measured(url: str, jobs: int) -> dict[str, float]:
    """Waits by class, makespan and use from the journal; the most in use of any cohort is checked against its quota."""
    names: dict[int, tuple[str, int, int]] = {}
    admitted: dict[int, tuple[int, int]] = {}
    waits: dict[str, list[float]] = {name: [] for name in RUN_MS}
    used = [0] * COHORTS
    first = last = work = 0
    store = open_store(url)
    for record in stream(store):
        for event in decode_body(record).events:
            if isinstance(event, SpecInterned):
                number = int(event.content.queue.rpartition("-")[2])
                names[event.spec] = (event.content.name, number // QUEUES, event.content.shape.cpus_milli)
            elif isinstance(event, JobAdmitted):
                admitted[event.job] = (record.now, event.spec)
                first = first or record.now
            elif isinstance(event, JobPlaced):
                at, spec = admitted[event.job]
                name, cohort, cpus = names[spec]
                waits[name].append((record.now - at) / 1e9)
                used[cohort] += cpus
                assert used[cohort] <= 1_000 * QUOTA * QUEUES, "a cohort is over its quota"
            elif isinstance(event, JobEnded):
                name, cohort, cpus = names[admitted[event.job][1]]
                used[cohort] -= cpus
                work += cpus * RUN_MS[name]
                last = record.now
    store.close()
    started = sum(map(len, waits.values()))
    assert started == jobs, f"{started} of {jobs} started"
    makespan_s = (last - first) / 1e9
    quota = 1_000 * QUOTA * QUEUES * COHORTS
    return {
        "makespan_s": makespan_s,
        "use_percent": 100 * work / 1e3 / (quota * makespan_s),
        **{name: mean(some) for name, some in waits.items()},
    }
