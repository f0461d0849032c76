"""A log in the Standard Workload Format through the production round, queue, cluster and history, by events, without a hub.

The machine is one node with as many cores as the log's machine has processors: the SP2's processors are interchangeable and the
published figures count nothing else. (As nodes with one core each, every job a gang, the schedule is the same; a test says so.)
All jobs have the same base priority and one tenant, so the default order is first come, first served.
"""

from __future__ import annotations

import gzip
import heapq
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.backfill import Times
from mintyard.domain.scheduling.cluster import Cluster, Placement
from mintyard.domain.scheduling.prediction import History, JobKinds, Kind
from mintyard.domain.scheduling.profile import Run, RunningJobs
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.round import Plan, Rules, plan_round
from mintyard.domain.scheduling.shapes import ShapeTable

NS_PER_S = 1_000_000_000
KTH = "swf/KTH-SP2_filtered.swf.gz"
LUBLIN = "swf/lublin_256.swf.gz"


class Job(NamedTuple):
    """One job of a log; times in s. `limit_s` is what was requested."""

    submit_s: int
    run_s: int
    limit_s: int
    procs: int
    user: str


class Log(NamedTuple):
    """Jobs by submit time, on a machine with `procs` processors."""

    jobs: list[Job]
    procs: int


class Estimates(StrEnum):
    """What the scheduler is told of a job's run time."""

    REQUESTED = "requested"
    """What was requested bounds it; predictions are learned."""
    EXACT = "exact"
    """The run time itself bounds it and predicts it."""
    UNLEARNED = "unlearned"
    """What was requested bounds it and predicts it."""


class Schedule(NamedTuple):
    """Seconds waited, by job of the log; rounds planned; what was learned."""

    wait_s: NDArray[np.int64]
    rounds: int
    history: History


def read_log(path: Path, first: int = 0, most: int = 10**9) -> Log:
    """Jobs `first` to `first + most` of a log. Processors are those requested where they are known: the simulator behind the
    published figures takes these (the SP2 gave 219 jobs others). Run time is cut at the requested time; without that, it is the
    run time."""
    jobs: list[Job] = []
    machine = 0
    with gzip.open(path, "rt") as lines:
        for line in lines:
            if line.startswith(";"):
                if "MaxProcs:" in line or ("MaxNodes:" in line and not machine):
                    machine = int(line.split(":")[1])
                continue
            fields = line.split()
            if len(fields) < 18:
                continue
            submit_s, run_s, given, requested, limit_s = (int(float(fields[at])) for at in (1, 3, 4, 7, 8))
            procs = requested if requested > 0 else given
            limit_s = limit_s if limit_s > 0 else run_s
            if run_s > 0 and 0 < procs <= machine:
                jobs.append(Job(submit_s, min(run_s, limit_s), limit_s, procs, fields[11]))
    jobs.sort(key=lambda job: job.submit_s)
    return Log(jobs[first : first + most], machine)


class Limits(History):
    """Predicts time limits."""

    def predict_all(self, rows: NDArray[np.int64], limits_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        return limits_ms


LIMITS = Limits()


class Live:
    """A job that runs, as `RunningJobs` wants it."""

    __slots__ = ("end", "id", "limit_end", "placement", "shape", "shape_class")

    def __init__(self, id: int, limit_end: int, placement: Placement, shape: Shape, shape_class: int) -> None:
        self.id, self.limit_end, self.placement = id, limit_end, placement
        self.shape, self.shape_class = shape, shape_class


def describe(live: Live) -> Run:
    return live.limit_end, live.placement, live.shape_class


class Machine:
    """The scheduler's data with one log's jobs in it."""

    def __init__(self, log: Log, estimates: Estimates = Estimates.REQUESTED, nodes: int = 1) -> None:
        self.log, self.estimates, self.nodes = log, estimates, nodes
        self.cluster = Cluster(nodes)
        for index in range(nodes):
            self.cluster.add_node(f"n{index}", log.procs * 1_000 // nodes, 0)
        self.queue, self.shapes = PendingQueue(), ShapeTable()
        self.kinds, self.history = JobKinds(), History()
        self.running: RunningJobs[Live] = RunningJobs(describe)
        self.live: dict[int, Live] = {}
        self.specs: dict[Kind, int] = {}

    def submit(self, number: int) -> None:
        job = self.log.jobs[number]
        shape = self._shape(job)
        shape_class = self.shapes.intern(shape)
        kind = self.kinds.intern(0, self._spec_of(number), self.kind_of(number))
        self.queue.add(number + 1, shape_class, 0, 100, job.submit_s * NS_PER_S, kind=kind)

    def kind_of(self, number: int) -> Kind:
        """Account, name (the logs have none), shape, limit."""
        job = self.log.jobs[number]
        limit_s = job.run_s if self.estimates is Estimates.EXACT else job.limit_s
        return (job.user, "job", self.shapes.intern(self._shape(job)), 1_000 * limit_s)

    def end(self, number: int) -> None:
        live = self.live.pop(number)
        self.cluster.give_back(live.placement, live.shape)
        self.running.end(live)
        if self.estimates is Estimates.REQUESTED:
            self.history.note(self.kind_of(number), 1_000 * self.log.jobs[number].run_s)

    def plan(self, now_s: int, rules: Rules) -> Plan:
        history = self.history if self.estimates is Estimates.REQUESTED else LIMITS
        times = Times(self.running.rows, self.kinds, history)
        return plan_round(self.cluster, self.queue, self.shapes, [], now_s * NS_PER_S, rules, None, times)

    def start(self, now_s: int, plan: Plan) -> list[int]:
        """Carry out a plan; the jobs started."""
        for job, placement in plan.placements:
            pending = self.queue.get(job)
            shape = self.shapes.shape(pending.class_id)
            limit_ms = int(self.kinds.limits_ms[pending.kind])
            self.cluster.take(placement, shape)
            self.queue.discard(job)
            live = Live(job, now_s * NS_PER_S + limit_ms * 1_000_000, placement, shape, pending.class_id)
            self.live[job - 1] = live
            self.running.start(live)
        return [job - 1 for job, _ in plan.placements]

    def _shape(self, job: Job) -> Shape:
        if self.nodes == 1:
            return Shape(job.procs * 1_000, 0)
        return Shape(1_000, 0, members=job.procs)

    def _spec_of(self, number: int) -> int:
        return self.specs.setdefault(self.kind_of(number), len(self.specs))


Watcher = Callable[[Machine, int], None]


def replay(
    log: Log,
    rules: Rules,
    estimates: Estimates = Estimates.REQUESTED,
    *,
    nodes: int = 1,
    by_event: bool = False,
    watch: Watcher | None = None,
) -> Schedule:
    """Every job of a log under `rules`: all ends and arrivals of an instant, then a round; `by_event` a round after each, ends
    before arrivals. `watch(machine, job)` is called when a job has arrived."""
    machine = Machine(log, estimates, nodes)
    jobs = log.jobs
    start_s = np.zeros(len(jobs), np.int64)
    ends: list[tuple[int, int]] = []
    arrived = rounds = 0
    while arrived < len(jobs) or ends:
        soonest = ends[0][0] if ends else 1 << 62
        now_s = min(soonest, jobs[arrived].submit_s) if arrived < len(jobs) else soonest
        due = 1 if by_event else len(jobs)
        while due and ends and ends[0][0] == now_s:
            machine.end(heapq.heappop(ends)[1])
            due -= 1
        while due and arrived < len(jobs) and jobs[arrived].submit_s == now_s:
            machine.submit(arrived)
            if watch is not None:
                watch(machine, arrived)
            arrived += 1
            due -= 1
        if not len(machine.queue):
            continue
        rounds += 1
        for started in machine.start(now_s, machine.plan(now_s, rules)):
            start_s[started] = now_s
            heapq.heappush(ends, (now_s + jobs[started].run_s, started))
    submit_s = np.array([job.submit_s for job in jobs], np.int64)
    return Schedule(start_s - submit_s, rounds, machine.history)
