"""Nodes and prices on the wire (U12, L5)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mintyard.domain.limits import MAX_NAME_CHARS
from mintyard.wire.bounds import Amount, AmountOut, Instant, Note

NodeVerb = Literal["cordon", "uncordon", "drain", "remove"]
Rates = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)], Amount], Meta(max_length=256)
]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node as its engine counts it. `running` attempts use `used_*` of it now; `virtual` marks declared GPUs that don't
    exist."""

    node: str
    engine: str
    state: Literal["ready", "cordoned", "draining", "lost", "lost_cordoned", "removed"]
    cpus_milli: int
    memory_mib: int
    gpus: int = 0
    gpu_model: str = ""
    labels: tuple[str, ...] = ()
    virtual: bool = False
    running: int = 0
    used_cpus_milli: int = 0
    used_memory_mib: int = 0
    used_gpus_milli: int = 0
    reason: str = ""
    joined_at: str | None = None


class ControlNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`reason` is kept with the node."""

    reason: Note = ""


class SetPrices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A price book: money per hour of one GPU, core, GB of memory and TB of storage; jobs admitted from `effective_from` on
    (at once without it) use it. `gpu_models` has the rates that differ from `gpu`."""

    gpu: Amount = "5"
    cpu: Amount = "0.1"
    memory: Amount = "0.05"
    storage: Amount = "0.02"
    gpu_models: Rates = {}
    effective_from: Instant | None = None


class PriceBook(msgspec.Struct, frozen=True, kw_only=True):
    """A price book that was set. `in_force`: jobs admitted now are priced by it."""

    number: int
    gpu: AmountOut
    cpu: AmountOut
    memory: AmountOut
    storage: AmountOut
    in_force: bool
    gpu_models: dict[str, AmountOut] = {}
    effective_from: str | None = None
    set_at: str | None = None
