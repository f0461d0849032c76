"""Scale: 1,000,000 waiting and 10,000 running jobs on 10,000 nodes in one hub: memory, round, restart from snapshot and journal.

`--quick` takes a tenth of the waiting jobs. Half of the jobs are tasks of arrays, half plain ones; 32 specs, 16 tenants.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.report import finish, table
from bench.throughput import tenants
from mintyard.app.record import Body, encode_body
from mintyard.app.warmup import warm_up
from mintyard.domain import hub, snapshot
from mintyard.domain.commands import Command, Submit, Tick
from mintyard.domain.events import AnyEvent
from mintyard.domain.jobs.spec import Array, JobRequest, JobSpec, Shape
from mintyard.domain.replies import Refusal
from mintyard.domain.state import State

NODES = 10_000
RUNNING = 10_000
_BATCH = 1_000
_MIB = 1_048_576


class Journal:
    """A hub in memory that keeps the bodies of its records."""

    def __init__(self) -> None:
        self.state = State()
        self.now = tenants.now_ns()
        self.bodies: list[tuple[int, bytes]] = []

    def execute(self, *commands: Command) -> list[AnyEvent]:
        self.now += 1_000_000
        events: list[AnyEvent] = []
        hub.begin(self.state, self.state.seq + 1, self.now)
        for command in commands:
            made, reply = hub.execute(self.state, command, self.now)
            if isinstance(reply, Refusal):
                raise SystemExit(f"{type(command).__name__}: {reply.problem}")
            events += made
        self.bodies.append((self.now, encode_body(commands, events)))
        return events


def run(given: argparse.Namespace) -> None:
    waiting = 100_000 if given.quick else 1_000_000
    warm_up()
    base = rss()
    rows: list[list[Any]] = []
    figures: dict[str, float] = {}

    def note(name: str, value: float, unit: str) -> None:
        figures[name] = value
        rows.append([name, value, unit])

    journal, built_s = timed(lambda: build(waiting))
    state = journal.state
    size = sum(len(body) for _, body in journal.bodies)
    note("journal_mib", size / _MIB, "MiB")
    gc.collect()
    note("rss_mib", (rss() - base - size) / _MIB, "MiB above the empty process, journal left out")
    note("bytes_per_job", (rss() - base - size) / (waiting + RUNNING), "B")
    note("submit_us", built_s / (waiting + RUNNING) * 1e6, "CPU us a job")
    took = [timed(lambda: journal.execute(Tick(64)))[1] * 1e3 for _ in range(5)]
    note("round_first_ms", took[0], "ms, nothing fits")
    note("round_ms", sorted(took)[2], "ms, nothing fits")
    body, took_s = timed(lambda: snapshot.encode(state))
    note("snapshot_s", took_s, "s to encode")
    note("snapshot_mib", len(body) / _MIB, "MiB")
    digest = snapshot.state_hash(state)
    jobs = len(state.jobs)
    journal.state = state = State()
    gc.collect()
    restored, took_s = timed(lambda: snapshot.decode(body, snapshot.SCHEMA))
    note("restart_snapshot_s", took_s, "CPU s")
    assert len(restored.jobs) == jobs
    assert snapshot.state_hash(restored) == digest
    del restored
    gc.collect()
    folded, took_s = timed(lambda: fold(journal.bodies))
    note("restart_journal_s", took_s, "CPU s")
    assert snapshot.state_hash(folded) == digest
    print(table(["figure", "value", "unit"], rows))
    finish("scale", figures)


def build(waiting: int) -> Journal:
    journal = Journal()
    tokens = tenants.authorities(journal.now)
    for command in tenants.opening(tokens, NODES):
        journal.execute(command)
    filler = JobSpec("fill", Shape(64_000, 65_536), 3_600_000, payload=b"x" * 200)
    for at in range(0, RUNNING, _BATCH):
        many = [Submit(tokens[number % 16], (JobRequest(filler),)) for number in range(at, at + _BATCH)]
        journal.execute(*many)
    while any(job.state == "pending" for job in journal.state.jobs.values()):
        journal.execute(Tick(4_096))
    specs = [
        JobSpec(f"wait-{at}", Shape(64_000 + 1_000 * at, 65_536), 3_600_000, 100 + at % 5, payload=b"x" * 200)
        for at in range(32)
    ]
    indices = tuple(range(_BATCH))
    for batch in range(waiting // _BATCH):
        if batch % 2:
            array = JobRequest(specs[batch % 32], array=Array(indices))
            journal.execute(Submit(tokens[batch % 16], (array,)))
        else:
            journal.execute(
                *[Submit(tokens[one % 16], (JobRequest(specs[one * 7 % 32]),)) for one in range(_BATCH)]
            )
    return journal


def fold(bodies: list[tuple[int, bytes]]) -> State:
    decoder = msgspec.msgpack.Decoder(Body)
    state = State()
    for seq, (now, body) in enumerate(bodies, 1):
        hub.begin(state, seq, now)
        for event in decoder.decode(body).events:
            hub.apply(state, event)
    return state


def timed(act: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the CPU seconds that it took."""
    began = time.process_time()
    result = act()
    return result, time.process_time() - began


def rss() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096
