"""Traces: what a cluster's log says was asked for and how long it ran, in one form for every file format.

Rows only; what a replay makes of them (accounts, prices, gangs) is the simulator's. Unknown numbers are `UNKNOWN`, never
a guess: the reader of a row decides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

import msgspec

from mintyard.domain.jobs.spec import Shape
from mintyard.domain.limits import MAX_GANG_MEMBERS

UNKNOWN: Final = -1


class TraceJob(msgspec.Struct, frozen=True, gc=False):
    """One job. `gpus` devices in all, each with `gpu_milli` of 1,000; `cpus_milli` and `memory_mib` in all as well.

    `procs` is set where the format counts processors instead of GPUs. `requested_ms` is the time its user asked for.
    Instants are ms since `Trace.start_ns`.
    """

    name: str
    submit_ms: int
    run_ms: int
    gpus: int = 0
    gpu_milli: int = 1_000
    gpu_models: tuple[str, ...] = ()
    cpus_milli: int = UNKNOWN
    memory_mib: int = UNKNOWN
    procs: int = UNKNOWN
    requested_ms: int = UNKNOWN
    user: str = ""
    queue: str = ""
    tenant: str = ""


class TraceNode(msgspec.Struct, frozen=True, gc=False):
    """One machine: `gpus` whole devices of one model."""

    name: str
    cpus_milli: int
    memory_mib: int
    gpus: int = 0
    gpu_model: str = ""


class Trace(msgspec.Struct, frozen=True):
    """Jobs by submit time, nodes in the file's order (none when the format doesn't say), and what was left out.

    `skipped` counts rows by reason, `assumed` counts rows whose value was taken from elsewhere, by what was taken.
    `start_ns` is the instant of `submit_ms` 0 since the epoch, 0 when the file doesn't say.
    """

    format: str
    jobs: list[TraceJob]
    nodes: list[TraceNode] = []
    skipped: dict[str, int] = {}
    assumed: dict[str, int] = {}
    start_ns: int = 0


class TraceFormat(Protocol):
    """A file format, found by entry point in the group `mintyard.traces`."""

    name: str

    def matches(self, path: Path) -> bool:
        """Whether the file begins as this format does. Errors: `NotFound`, `TraceMalformed` (not text)."""
        ...

    def read(self, path: Path, nodes: Path | None = None) -> Trace:
        """The whole file; `nodes` is the list of machines where the format keeps it apart.

        Errors: `TraceMalformed` with file, line and reason."""
        ...


def shape_of(job: TraceJob, gpus_per_node: int = 8, cpus_milli_per_node: int = 1_000) -> Shape:
    """The job as a gang that adds up to exactly what it used, in equal members that fit on one node.

    GPUs are cut into members of the largest divisor up to `gpus_per_node`, bare processors likewise by
    `cpus_milli_per_node`. Unknown CPUs count as one core a member, unknown memory as 1 MiB. CPUs and memory that don't
    divide are rounded up per member. Raises ValueError when that takes more than `MAX_GANG_MEMBERS` members.
    """
    if job.gpus > 0:
        members = job.gpus // _largest_divisor(job.gpus, gpus_per_node)
    elif job.procs > 0:
        members = job.procs // _largest_divisor(job.procs, max(cpus_milli_per_node // 1_000, 1))
    else:
        members = 1
    if members > MAX_GANG_MEMBERS:
        raise ValueError(f"{job.name}: {members} members, a gang has at most {MAX_GANG_MEMBERS}")
    return Shape(
        cpus_milli=_share(job.cpus_milli, members, 1_000),
        memory_mib=_share(job.memory_mib, members, 1),
        gpus=job.gpus // members if job.gpus > 0 else 0,
        gpu_milli=job.gpu_milli,
        gpu_models=job.gpu_models,
        members=members,
    )


def _share(total: int, members: int, unknown: int) -> int:
    return unknown if total < 0 else max(-(-total // members), 1)


def _largest_divisor(number: int, highest: int) -> int:
    return next(divisor for divisor in range(min(number, max(highest, 1)), 0, -1) if number % divisor == 0)
