"""What a tenant asks for: the job as the core sees it.

What the job runs (command, environment, files to fetch) is the engine's business and travels as opaque `payload`
bytes; the core only knows its size. Every quantity is an integer in the smallest unit.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from mintyard.domain.limits import DEFAULT_GRACE_MS, DEFAULT_PRIORITY, DEFAULT_TIME_LIMIT_MS


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """Resources of one member of a job, and how many members start together (a gang is all or nothing).

    `gpus` devices a member, each with `gpu_milli` of 1,000 (a fraction only when `gpus` is 1). `gpu_models` and `labels`
    restrict the nodes; an empty tuple allows any model. `storage_mb` is paid for, not placed.
    """

    cpus_milli: int = 1_000
    memory_mib: int = 512
    gpus: int = 0
    gpu_milli: int = 1_000
    gpu_models: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    members: int = 1
    storage_mb: int = 0

    @property
    def gpus_milli(self) -> int:
        """milli-GPU of one member."""
        return self.gpus * self.gpu_milli


class When(StrEnum):
    """How a dependency is satisfied, in the words of `sbatch --dependency`."""

    OK = "afterok"
    ANY = "afterany"
    NOT_OK = "afternotok"
    STARTED = "after"


class Dependency(msgspec.Struct, frozen=True, array_like=True):
    """An edge to a job of the same request (`ref`) or to one submitted before (`job`, a number); exactly one is given."""

    when: When = When.OK
    ref: str = ""
    job: int = 0


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A job array: one task per index; at most `throttle` run at once (0: no limit)."""

    indices: tuple[int, ...]
    throttle: int = 0


class JobSpec(msgspec.Struct, frozen=True, array_like=True):
    """One job, task array or gang. `budget` is a cap on its cost in nano-units; `begin_at` an instant in ns, 0 is at once.

    `inputs` and `outputs` are file names: a job that reads what another of the same request writes waits for it.
    `retries` is how often a failed attempt is started again; loss of a node or preemption does not count.
    """

    name: str
    shape: Shape = Shape()
    time_limit_ms: int = DEFAULT_TIME_LIMIT_MS
    priority: int = DEFAULT_PRIORITY
    queue: str = "default"
    retries: int = 0
    grace_ms: int = DEFAULT_GRACE_MS
    budget: int | None = None
    begin_at: int = 0
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    payload: bytes = b""


class JobRequest(msgspec.Struct, frozen=True, array_like=True):
    """A job within a submit command: its spec, its name for dependencies (`ref`), its array and its edges."""

    spec: JobSpec
    ref: str = ""
    array: Array | None = None
    dependencies: tuple[Dependency, ...] = ()
    held: bool = False
