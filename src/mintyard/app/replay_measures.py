"""Measures of a schedule, taken from its events alone: waits, slowdown, what was in use, cost. For recorded and other runs alike.

Times are ns of the hub's clock. Nothing is decided here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from mintyard.app.trace_replay_report import Spread, average, spread
from mintyard.app.trace_replay_run import SLOWDOWN_FLOOR_MS
from mintyard.domain import events as e
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.state import State
from mintyard.domain.units import NS_PER_MS

NOT_STARTED: Final = -1


class JobTimes(msgspec.Struct, gc=False):
    """One job: when it came, when it first started (`NOT_STARTED`: never), how it ended. ns, nano-units."""

    number: int
    account: str
    shape: Shape
    submitted_at: int
    started_at: int = NOT_STARTED
    ended_at: int = 0
    trigger: str = ""
    cost: int = 0
    attempts: int = 0


class Figures(msgspec.Struct, frozen=True):
    """What a run comes to. `gpu_percent` of all GPU milli, weighted by time, from the first submit to `until_ms` after it."""

    jobs: int
    succeeded: int
    failed: int
    cancelled: int
    unfinished: int
    wait_ms: Spread
    bounded_slowdown: Spread
    gpu_percent: float
    cpu_percent: float
    last_end_ms: int
    cost: int


class ScheduleMeasures:
    """Takes the events of one run, tick by tick, in order."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.jobs: dict[int, JobTimes] = {}
        self.first_ns = 0
        self.at_ms = array("q")
        self.gpus = array("q")
        self.cpus = array("q")
        self.waiting = array("q")
        self._use = [0, 0]
        self._placed: dict[int, JobTimes] = {}

    def take(self, now: int, events: Iterable[e.AnyEvent]) -> None:
        """Events that are applied already, all at `now`."""
        moved = False
        for event in events:
            if isinstance(event, e.JobAdmitted):
                self._admitted(now, event)
            elif isinstance(event, e.JobPlaced):
                self._started(now, event)
            elif isinstance(event, (e.JobRequeued, e.JobEnded)):
                self._over(now, event)
            else:
                continue
            moved = True
        if moved:
            self._note(now)

    def _admitted(self, now: int, event: e.JobAdmitted) -> None:
        spec = self.state.specs[event.spec].content
        account = self.state.mandates[event.mandate].account.id
        self.jobs[event.job] = JobTimes(event.job, account, spec.shape, now)
        self.first_ns = self.first_ns or now

    def _started(self, now: int, event: e.JobPlaced) -> None:
        job = self.jobs[event.job]
        if job.started_at == NOT_STARTED:
            job.started_at = now
        job.attempts += 1
        self._placed[event.job] = job
        self._bind(job, 1)

    def _over(self, now: int, event: e.JobRequeued | e.JobEnded) -> None:
        job = self.jobs[event.job]
        if self._placed.pop(event.job, None) is not None:
            self._bind(job, -1)
        if isinstance(event, e.JobEnded):
            job.ended_at, job.trigger, job.cost = now, event.trigger, event.cost

    def _bind(self, job: JobTimes, sign: int) -> None:
        count = sign * job.shape.members
        self._use[0] += count * job.shape.gpus_milli
        self._use[1] += count * job.shape.cpus_milli

    def _note(self, now: int) -> None:
        at_ms = (now - self.first_ns) // NS_PER_MS
        if self.at_ms and self.at_ms[-1] == at_ms:
            for row in (self.at_ms, self.gpus, self.cpus, self.waiting):
                row.pop()
        self.at_ms.append(at_ms)
        self.gpus.append(self._use[0])
        self.cpus.append(self._use[1])
        self.waiting.append(len(self.state.queue))

    def figures(self, until_ms: int) -> Figures:
        """At the end of the run; utilisation is counted up to `until_ms` after the first submit."""
        waits: list[int] = []
        slowdowns: list[float] = []
        ends = [job for job in self.jobs.values() if job.trigger]
        for job in self.jobs.values():
            if job.started_at == NOT_STARTED:
                continue
            wait_ms = (job.started_at - job.submitted_at) // NS_PER_MS
            waits.append(wait_ms)
            if job.ended_at:
                run_ms = (job.ended_at - job.started_at) // NS_PER_MS
                slowdowns.append(max((wait_ms + run_ms) / max(run_ms, SLOWDOWN_FLOOR_MS), 1.0))
        total = self.state.cluster.total()
        last = max((job.ended_at for job in ends), default=self.first_ns)
        return Figures(
            jobs=len(self.jobs),
            succeeded=sum(job.trigger == "succeed" for job in ends),
            failed=sum(job.trigger in ("fail", "time_out") for job in ends),
            cancelled=sum(job.trigger in ("cancel", "skip") for job in ends),
            unfinished=len(self.jobs) - len(ends),
            wait_ms=spread(waits),
            bounded_slowdown=spread(slowdowns),
            gpu_percent=self._percent(self.gpus, total.gpus_milli, until_ms),
            cpu_percent=self._percent(self.cpus, total.cpus_milli, until_ms),
            last_end_ms=(last - self.first_ns) // NS_PER_MS,
            cost=sum(job.cost for job in ends),
        )

    def _percent(self, used: Sequence[int], most: int, until_ms: int) -> float:
        return average(self.at_ms, used, until_ms, most) if used and most else 0.0
