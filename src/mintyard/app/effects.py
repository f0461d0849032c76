"""Effects: what the engines must be told once a record is durable, taken from its events and the state right after them.

Orders carry no token yet: a job's own is minted when the order leaves, and is never kept here, journaled or logged.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mintyard.domain.events import AnyEvent, JobMoved, JobPlaced
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.state import Job, State
from mintyard.ports.engine import AttemptKey, MemberPlacement, StartOrder, StopOrder

NOWHERE = ""
"""The engine of a gang whose members lie on nodes of several engines: no engine can start it."""


class Start(msgspec.Struct, frozen=True):
    """Start an attempt at `engine`; `parents` are the block ids that the job's token stems from."""

    engine: str
    order: StartOrder
    parents: tuple[str, ...]


class Stop(msgspec.Struct, frozen=True):
    engine: str
    order: StopOrder


Effect = Start | Stop


class LiveAttempt(msgspec.Struct, frozen=True, array_like=True):
    """An attempt that the state counts as on: `state` is starting, running or stopping."""

    key: AttemptKey
    state: str
    grace_ms: int


class EffectPlanner:
    """Makes effects; remembers the indices of throttled and other arrays while their tasks start."""

    def __init__(self) -> None:
        self._indices: dict[int, tuple[int, ...]] = {}

    def of_events(self, state: State, events: Iterable[AnyEvent]) -> list[Effect]:
        """The effects of one tick's events, with the state as it is after the whole tick."""
        effects: list[Effect] = []
        for event in events:
            if type(event) is JobPlaced:
                job = state.jobs.get(event.job)
                if job is not None and job.attempt == event.attempt and job.state == "starting":
                    effects.append(self.start(state, job))
            elif type(event) is JobMoved and event.trigger == "stop":
                job = state.jobs.get(event.job)
                if job is not None and job.state == "stopping":
                    effects.append(stop(state, job))
        return effects

    def start(self, state: State, job: Job) -> Start:
        """The order for the attempt that `job` is on."""
        content = job.spec.content
        shape = content.shape
        nodes = state.nodes_by_index
        if len(job.placement) == 1:
            ((node, mask),) = job.placement
            members = (MemberPlacement(nodes[node].name, gpus_of(mask)),)
        else:
            members = tuple([MemberPlacement(nodes[at].name, gpus_of(bits)) for at, bits in job.placement])
        order = StartOrder(
            job=job.id,
            attempt=job.attempt,
            name=content.name,
            account=job.mandate.account.id,
            members=members,
            cpus_milli=shape.cpus_milli,
            memory_mib=shape.memory_mib,
            gpu_milli=shape.gpu_milli,
            time_limit_ms=content.time_limit_ms,
            grace_ms=content.grace_ms,
            payload=content.payload,
            array_job=job.array_job,
            array_index=job.array_index,
            array_indices=self._array_indices(state, job.array_job) if job.array_job else (),
        )
        return Start(engine_of(state, job), order, job.mandate.parents)

    def _array_indices(self, state: State, array: int) -> tuple[int, ...]:
        """Indices of the array's tasks that were live when its first one started here."""
        known = self._indices.get(array)
        if known is None:
            if len(self._indices) >= 1_024:
                self._indices = {kept: i for kept, i in self._indices.items() if kept in state.arrays}
            last = array + state.arrays[array].size
            tasks = (state.jobs.get(number) for number in range(array + 1, last + 1))
            known = self._indices[array] = tuple(task.array_index for task in tasks if task is not None)
        return known


def stop(state: State, job: Job) -> Stop:
    return Stop(engine_of(state, job), StopOrder(job.id, job.attempt, job.spec.content.grace_ms))


def engine_of(state: State, job: Job) -> str:
    """The engine of the nodes that a live job is placed on, `NOWHERE` when they have different ones."""
    if len(job.placement) == 1:
        return state.nodes_by_index[job.placement[0][0]].engine
    engines = {node.engine for node in state.running_on(job.placement)}
    return engines.pop() if len(engines) == 1 else NOWHERE


def gpus_of(mask: int) -> tuple[int, ...]:
    """Indices of the bits that are set."""
    if not mask:
        return ()
    return tuple(index for index in range(mask.bit_length()) if mask >> index & 1)


def live_attempts(state: State, engine: str) -> list[LiveAttempt]:
    """Every attempt that the state counts as on at `engine`. Walks all jobs: for reconciliation only."""
    return [
        LiveAttempt(AttemptKey(job.id, job.attempt), job.state, job.spec.content.grace_ms)
        for job in state.jobs.values()
        if job.state in LIVE_JOB_STATES and engine_of(state, job) == engine
    ]
