"""The engines under test: how each is opened again and again on the same attempts, and how time passes in it.

A bench speaks of programs (`Program`), which the local one turns into real scripts and the simulated one into courses.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from mintyard.adapters.engines.faulty import Faults, FaultyEngine
from mintyard.adapters.engines.local import LocalEngine
from mintyard.adapters.engines.simulated import SimulatedCluster, SimulatedEngine
from mintyard.agent import cgroup, kernel, records
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, NodeSeen, Report
from mintyard.ports.engine import AttemptKey, Engine, MemberPlacement, StartOrder, StopOrder
from mintyard.wire.launch import Launch, encode_launch

EVERY = ["local", "simulated", "faulty-local", "faulty-simulated"]
NODES = [{"name": "node", "cpus_milli": 8_000, "memory_mib": 32_000, "gpus": 8, "count": 4}]
PATIENCE_S = 30.0


class Program(msgspec.Struct, frozen=True):
    """What a member does: print, then run, then end; `failing` is the rank that ends with `exit_code`, -1 each."""

    run_ms: int = 20
    exit_code: int = 0
    signal: int = 0
    ignores_term: bool = False
    memory_mib: int = 0
    stdout: str = ""
    failing: int = -1

    def script(self) -> str:
        lines = ["#!/bin/sh", f"printf %s '{self.stdout}'"]
        if self.ignores_term:
            lines += [
                "trap '' TERM",
                "sh -c 'trap \"\" TERM; sleep 300' &",
                "setsid sh -c 'trap \"\" TERM; sleep 300' &",
            ]
        if self.memory_mib:
            lines.append(
                f"exec {sys.executable} -ISc 'x = b\"x\" * ({self.memory_mib} << 20); import time; time.sleep(60)'"
            )
        if self.failing >= 0:
            lines.append(f"[ $MINTYARD_RANK = {self.failing} ] || exec sleep 300")
        lines.append(f"sleep {self.run_ms / 1_000}")
        if self.signal:
            lines.append(f"kill -{self.signal} $$")
        return "\n".join([*lines, f"exit {self.exit_code}", ""])

    def course(self) -> str:
        words = {
            "run_ms": self.run_ms,
            "exit": self.exit_code,
            "signal": self.signal,
            "memory_mib": self.memory_mib,
            "ignores_term": int(self.ignores_term),
            "member": max(self.failing, 0),
            "stdout": self.stdout,
        }
        return "sim: " + ", ".join(f"{name}={value}" for name, value in words.items() if value != "")


class Bench:
    """Engines of one kind on shared attempts. `engine` is the one in use; `heard` all its reports since the last take."""

    kind = ""

    def __init__(self) -> None:
        self.engine = self.open()
        self.heard: list[Report] = []
        self.boots: set[str] = set()

    def open(self) -> Engine:
        raise NotImplementedError

    def pass_time(self, engine: Engine) -> list[Report]:
        """Let a little time pass and give what `engine` reports of it."""
        raise NotImplementedError

    def payload(self, program: Program) -> bytes:
        raise NotImplementedError

    def order(
        self,
        job: int,
        program: Program | None = None,
        *,
        attempt: int = 1,
        members: int = 1,
        **fields: object,
    ) -> StartOrder:
        base = StartOrder(
            job,
            attempt,
            f"job{job}",
            "acme/vision",
            tuple(MemberPlacement(f"node{index % 4}", (index // 4,)) for index in range(members)),
            1_000,
            512,
            1_000,
            60_000,
            2_000,
            self.payload(program or Program()),
            token="mt_secret",
        )
        return msgspec.structs.replace(base, **fields)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = self.open()

    def listen(self) -> None:
        reports = self.pass_time(self.engine)
        self.boots |= {report.boot for report in reports if not hasattr(report, "node")}
        self.heard += reports

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited {PATIENCE_S} s; heard {self.heard}"
            self.listen()

    def of(self, job: int, kind: type[Report], attempt: int = 1) -> list[Report]:
        return [
            one for one in self.heard if isinstance(one, kind) and (one.job, one.attempt) == (job, attempt)
        ]

    def started(self, job: int, attempt: int = 1) -> AttemptStarted:
        self.until(lambda: bool(self.of(job, AttemptStarted, attempt)))
        return self.of(job, AttemptStarted, attempt)[0]

    def ended(self, job: int, attempt: int = 1) -> AttemptEnded:
        self.until(lambda: bool(self.of(job, AttemptEnded, attempt)))
        return self.of(job, AttemptEnded, attempt)[0]

    def close(self) -> None:
        self.engine.close()


class LocalBench(Bench):
    kind = "local"

    def __init__(self, state: str = "", **options: object) -> None:
        self.state = state or tempfile.mkdtemp(prefix="mintyard-engine-")
        self.options = {"nodes": NODES, "idle_s": 0.3, **options}
        super().__init__()

    def open(self) -> LocalEngine:
        return LocalEngine(self.state, **self.options)

    def reopen_with(self, **options: object) -> None:
        self.options |= options
        self.reopen()

    def pass_time(self, engine: Engine) -> list[Report]:
        return engine.poll(0.1)

    def payload(self, program: Program) -> bytes:
        return encode_launch(Launch(script=program.script()))

    def launch(self, job: int, launch: Launch, **fields: object) -> StartOrder:
        return self.order(job, payload=encode_launch(launch), **fields)

    def log(self, job: int, stream: str = "stdout") -> str:
        return self.engine.read_log(AttemptKey(job, 1), stream, 0, 1 << 20).data.decode()

    def close(self) -> None:
        """Stop what still runs and prove that nothing is left: no process of any attempt, no fork server."""
        self.engine.close()
        with_attempts = LocalEngine(self.state, **self.options)
        deadline = time.monotonic() + PATIENCE_S
        try:
            while True:
                known = [(key, f"{key.job}.{key.attempt}") for key in with_attempts.attempts()]
                left = [key for key, name in known if records.read_attempt(self.state, name).end is None]
                if not left:
                    break
                assert time.monotonic() < deadline, f"still running: {left}"
                with_attempts.stop([StopOrder(key.job, key.attempt, 0) for key in left])
                with_attempts.poll(0.1)
        finally:
            with_attempts.close()
        marks = {f"MINTYARD_MARK={boot}" for boot in self.boots}
        while left := [pid for mark in marks for pid in kernel.marked(mark)] + self.servers():
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.02)
        if own := cgroup.own_group():
            # A fork server killed last could not tidy up.
            cgroup.remove_empty(os.path.join(own, f"mintyard-{os.stat(self.state).st_ino}"))
        shutil.rmtree(self.state)

    def servers(self) -> list[int]:
        """Fork servers of this state folder, and supervisors forked from them, which share their command line."""
        found: list[int] = []
        for pid in kernel.all_pids():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if self.state.encode() in words and kernel.start_time(pid):
                found.append(pid)
        return found


class SimulatedBench(Bench):
    kind = "simulated"

    def __init__(self) -> None:
        self.now_ms = 1_000
        nodes = [NodeSeen(f"node{index}", 8_000, 32_000, 8, "virtual", (), True) for index in range(4)]
        self.cluster = SimulatedCluster(lambda: self.now_ms * 1_000_000, nodes, usage_every_ms=1_000)
        super().__init__()

    def open(self) -> SimulatedEngine:
        return SimulatedEngine(self.cluster)

    def pass_time(self, engine: Engine) -> list[Report]:
        self.now_ms += 10
        return engine.poll(0.0)

    def payload(self, program: Program) -> bytes:
        return encode_launch(Launch(script=program.course()))


FAULTS = Faults(delayed=300, duplicated=300, reordered=500)


class FaultyLocalBench(LocalBench):
    kind = "faulty-local"

    def open(self) -> FaultyEngine:
        return FaultyEngine(super().open(), 7, FAULTS)


class FaultySimulatedBench(SimulatedBench):
    kind = "faulty-simulated"

    def open(self) -> FaultyEngine:
        return FaultyEngine(super().open(), 7, FAULTS)


BENCHES = {
    bench.kind: bench for bench in (LocalBench, SimulatedBench, FaultyLocalBench, FaultySimulatedBench)
}


@contextmanager
def bench_of(kind: str) -> Iterator[Bench]:
    bench = BENCHES[kind]()
    try:
        yield bench
    finally:
        bench.close()
