"""What engines report: facts about attempts and nodes, in any order, late, twice or never.

An attempt is (job, attempt). Usage is cumulative per boot of the agent that counted it, so a later report repairs a
lost one and a duplicate is harmless (L4). `boot` names one run of the counting agent.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """How an attempt ended."""

    EXITED = "exited"
    """User code ended by itself; see exit code or signal."""
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    """The hub asked for it (cancel, preemption)."""
    OUT_OF_MEMORY = "out_of_memory"
    NODE_LOST = "node_lost"
    """The engine is sure that nothing of it runs any more, and it was not the job's doing."""
    NEVER_STARTED = "never_started"
    """The engine could not start it and is sure that it will not run; `message` says why."""


class AttemptStarted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The attempt won its claim and user code runs."""

    job: int
    attempt: int
    boot: str


class AttemptUsage(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Cumulative counters of one boot: `run_ms` on a monotonic clock, CPU time and peak memory from the kernel."""

    job: int
    attempt: int
    boot: str
    run_ms: int
    cpu_ms: int = 0
    peak_memory_mib: int = 0


class AttemptEnded(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The attempt is over and nothing of it runs; its counters are final. `signal` 0 means that it exited with `exit_code`.

    `earlier` has the final `run_ms` of each boot of the counting agent before this one, as far as the agent kept them."""

    job: int
    attempt: int
    boot: str
    outcome: Outcome
    exit_code: int = 0
    signal: int = 0
    run_ms: int = 0
    cpu_ms: int = 0
    peak_memory_mib: int = 0
    message: str = ""
    earlier: dict[str, int] = {}


class NodeSeen(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A node as its engine counts it: joins it, or changes it. `gpus` is the number of devices, each 1,000 milli.

    `virtual` marks declared GPUs that don't exist (development)."""

    node: str
    cpus_milli: int
    memory_mib: int
    gpus: int = 0
    gpu_model: str = ""
    labels: tuple[str, ...] = ()
    virtual: bool = False


class NodeGone(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The engine can't reach the node. What ran there is unknown, not ended: attempts end by their own reports."""

    node: str


Report = AttemptStarted | AttemptUsage | AttemptEnded | NodeSeen | NodeGone
