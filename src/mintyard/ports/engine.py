"""Engine: runs attempts of jobs on nodes. The hub decides when, where and at what price; the engine executes.

An attempt starts at most once: before user code runs, its supervisor must win `claim(job, attempt)`; a loser exits
without running anything. Starting the same attempt again is therefore harmless. All methods block, may be called from
several threads, and take batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mintyard.domain.jobs.reports import NodeSeen, Report


class MemberPlacement(msgspec.Struct, frozen=True, array_like=True):
    """Where one member of a gang runs: the node's name and the indices of its GPUs there."""

    node: str
    gpus: tuple[int, ...] = ()


class StartOrder(msgspec.Struct, frozen=True, array_like=True):
    """Start one attempt. `payload` is the encoded `wire.launch.Launch`; `token` is the job's own, narrowest credential
    and must be kept out of logs and listings. `gpu_milli` is the share of each GPU."""

    job: int
    attempt: int
    name: str
    account: str
    members: tuple[MemberPlacement, ...]
    cpus_milli: int
    memory_mib: int
    gpu_milli: int
    time_limit_ms: int
    grace_ms: int
    payload: bytes
    array_job: int = 0
    array_index: int = -1
    array_indices: tuple[int, ...] = ()
    token: str = ""


class StopOrder(msgspec.Struct, frozen=True, array_like=True):
    """Stop one attempt: TERM, the grace period, then KILL to all of it. Unknown attempts are reported as ended
    (`NEVER_STARTED`) and their claim is taken, so that they can never start later."""

    job: int
    attempt: int
    grace_ms: int


class AttemptKey(msgspec.Struct, frozen=True, array_like=True):
    job: int
    attempt: int


class LogChunk(msgspec.Struct, frozen=True):
    """Bytes of one stream from `offset`; `ended` when the attempt is over and nothing more will come."""

    data: bytes
    offset: int
    ended: bool


class Engine(Protocol):
    """Errors: `EngineUnavailable` (whether orders took effect is unknown: reconcile)."""

    name: str

    def nodes(self) -> list[NodeSeen]:
        """The inventory, as the engine sees it now."""
        ...

    def start(self, orders: Sequence[StartOrder]) -> None:
        """Begin to start; what becomes of it comes as reports. Idempotent per attempt."""
        ...

    def stop(self, orders: Sequence[StopOrder]) -> None:
        """Begin to stop; idempotent."""
        ...

    def poll(self, timeout_s: float) -> list[Report]:
        """Reports since the last call, waiting up to `timeout_s` for the first. A report is given again after a restart
        of either side unless `acknowledge` was called for its attempt."""
        ...

    def attempts(self) -> list[AttemptKey]:
        """Every attempt this engine knows and has not been told to forget: for reconciliation after a restart.
        An adopted one reports its start and, when over, its end again by `poll`."""
        ...

    def acknowledge(self, ended: Sequence[AttemptKey]) -> None:
        """The ends of these are durable in the hub: they need not be reported again. Logs stay."""
        ...

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk:
        """`stream` is `stdout` or `stderr`; raises `NotFound` for an unknown attempt."""
        ...

    def close(self) -> None:
        """Let go without stopping any job."""
        ...
