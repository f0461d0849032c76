"""Inventory of the local engine: this machine as a node, or declared virtual nodes for development.

Reads the machine; knows nothing of jobs.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mintyard.domain.errors import InvalidRequest
from mintyard.domain.jobs.reports import NodeSeen
from mintyard.domain.limits import MAX_CPUS_MILLI, MAX_MEMORY_MIB, MAX_NODES


class NodeOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One declared node, or `count` alike ones (`name` then gets a number appended). 0 cores or memory: the machine's."""

    name: str
    cpus_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_model: str = "virtual"
    labels: tuple[str, ...] = ()
    count: int = 1


def machine_name() -> str:
    """The host's name as a node name: letters, digits, `.` and `-`."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).strip("-.")[:63] or "localhost"


def machine_memory_mib() -> int:
    with open("/proc/meminfo") as file:
        total_kib = next(int(line.split()[1]) for line in file if line.startswith("MemTotal:"))
    return total_kib >> 10


def machine_gpus() -> tuple[int, str]:
    """(number, model) of NVIDIA GPUs by NVML; (0, "") without the library, the driver or a device."""
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        return 0, ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0, ""
    try:
        number = pynvml.nvmlDeviceGetCount()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)) if number else ""
    except pynvml.NVMLError:
        return 0, ""
    finally:
        pynvml.nvmlShutdown()
    return number, name.decode() if isinstance(name, bytes) else name


def machine_node(labels: Sequence[str] = ()) -> NodeSeen:
    """This machine: the cores this process may use, all its memory, its GPUs."""
    gpus, model = machine_gpus()
    cpus_milli = len(os.sched_getaffinity(0)) * 1_000
    return NodeSeen(machine_name(), cpus_milli, machine_memory_mib(), gpus, model, tuple(labels))


def declared_nodes(options: Sequence[Mapping[str, Any]]) -> list[NodeSeen]:
    """Nodes from configuration; their GPUs are virtual. Raises `InvalidRequest`."""
    found: dict[str, NodeSeen] = {}
    machine = machine_node()
    for option in options:
        try:
            one = msgspec.convert(option, NodeOption)
        except msgspec.ValidationError as error:
            raise InvalidRequest(why=f"node of the local engine: {error}") from error
        if not (
            0 <= one.cpus_milli <= MAX_CPUS_MILLI and 0 <= one.memory_mib <= MAX_MEMORY_MIB and one.gpus >= 0
        ):
            raise InvalidRequest(why=f"node {one.name!r}: resources out of range")
        if not 1 <= one.count <= MAX_NODES or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", one.name):
            raise InvalidRequest(why=f"node {one.name!r}: bad name or count")
        for index in range(one.count):
            name = one.name if one.count == 1 else f"{one.name}{index}"
            if name in found:
                raise InvalidRequest(why=f"node {name!r} is declared twice")
            found[name] = NodeSeen(
                name,
                one.cpus_milli or machine.cpus_milli,
                one.memory_mib or machine.memory_mib,
                one.gpus,
                one.gpu_model if one.gpus else "",
                one.labels,
                virtual=True,
            )
    return list(found.values())
