"""SWF: Standard Workload Format 2.2 of the Parallel Workloads Archive (Feitelson), 18 numbers a line, -1 is unknown.

The header's `MaxProcs` and `MaxNodes` give the machine. It says nothing of memory per node, so nodes get more than any
job asks for. Fields beyond the 18th (dialects) are ignored.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from mintyard.adapters.traces.openb import read_nodes
from mintyard.adapters.traces.rows import Row, counts, first_line, in_order, open_lines
from mintyard.domain import limits
from mintyard.domain.errors import TraceMalformed
from mintyard.domain.units import NS_PER_S
from mintyard.ports.traces import UNKNOWN, Trace, TraceJob, TraceNode

NAME: Final = "swf"
FIELDS: Final = (
    "job", "submit", "wait", "run", "procs", "cpu time", "memory", "requested procs", "requested time",
    "requested memory", "status", "user", "group", "executable", "queue", "partition", "preceding job", "think time",
)  # fmt: skip
MAX_PROCS: Final = 100_000_000
MAX_ID: Final = 2**53
NODE_MEMORY_MIB: Final = limits.MAX_MEMORY_MIB
_COLUMNS: Final = {field: index for index, field in enumerate(FIELDS)}
_HEADER: Final = re.compile(r";\s*(MaxProcs|MaxNodes|UnixStartTime):\s*(-?[0-9]{1,15})\s*$")
_PARTIAL: Final = frozenset({2, 3, 4})
"""Status of a burst of a checkpointed job; the whole job has a line of its own."""


def read_swf(path: Path, nodes: Path | None = None) -> Trace:
    """Jobs and the machine of the header (or of an openb node list). Left out and counted: jobs without run time or
    processors, larger than the machine, or bursts of another line's job. Errors: `NotFound`, `TraceMalformed`.
    """
    header: dict[str, int] = {}
    skipped: Counter[str] = Counter()
    assumed: Counter[str] = Counter()
    jobs: list[TraceJob] = []
    for number, line in open_lines(path):
        if line.startswith(";"):
            if found := _HEADER.match(line):
                header[found[1]] = int(found[2])
            continue
        values = line.split()
        if len(values) < len(FIELDS):
            why = f"{len(values)} fields, the format has {len(FIELDS)}"
            raise TraceMalformed(path=str(path), line=number, why=why)
        job = _job(Row(path, number, _COLUMNS, values), _machine_procs(header), skipped, assumed)
        if job is not None:
            jobs.append(job)
    machines = read_nodes(nodes) if nodes is not None else machine_nodes(header)
    start_ns = max(header.get("UnixStartTime", 0), 0) * NS_PER_S
    return Trace(NAME, in_order(jobs), machines, counts(skipped), counts(assumed), start_ns)


def machine_nodes(header: dict[str, int]) -> list[TraceNode]:
    """`MaxNodes` equal nodes that have `MaxProcs` processors together, the rest spread over the first ones."""
    procs = _machine_procs(header)
    nodes = min(header.get("MaxNodes", 0), procs, limits.MAX_NODES)
    if nodes < 1 or procs // nodes * 1_000 > limits.MAX_CPUS_MILLI:
        nodes = min(procs, limits.MAX_NODES)
    if nodes < 1:
        return []
    each, rest = divmod(procs, nodes)
    width = len(str(nodes - 1))
    return [
        TraceNode(f"node-{index:0{width}}", (each + (index < rest)) * 1_000, NODE_MEMORY_MIB)
        for index in range(nodes)
    ]


def _machine_procs(header: dict[str, int]) -> int:
    """Processors of the machine, 0 when the header doesn't say."""
    known = [header[name] for name in ("MaxProcs", "MaxNodes") if header.get(name, 0) > 0]
    return min(known[0], MAX_PROCS) if known else 0


def _job(row: Row, machine_procs: int, skipped: Counter[str], assumed: Counter[str]) -> TraceJob | None:
    submit_ms = row.seconds_ms("submit")
    run_ms = row.seconds_ms("run", lowest_s=UNKNOWN)
    procs = row.count("procs", UNKNOWN, MAX_PROCS)
    if procs <= 0:
        procs = row.count("requested procs", UNKNOWN, MAX_PROCS)
        if procs > 0:
            assumed["requested instead of allocated processors"] += 1
    requested_ms = row.seconds_ms("requested time", lowest_s=UNKNOWN)
    requested_kib = row.count("requested memory", UNKNOWN, 2**40)
    reason = ""
    if row.count("status", UNKNOWN, 99) in _PARTIAL:
        reason = "burst of another line's job"
    elif run_ms <= 0:
        reason = "no run time"
    elif procs <= 0:
        reason = "no processors"
    elif machine_procs and procs > machine_procs:
        reason = "larger than the machine"
    if reason:
        skipped[reason] += 1
        return None
    return TraceJob(
        name=row.text("job"),
        submit_ms=submit_ms,
        run_ms=run_ms,
        cpus_milli=procs * 1_000,
        memory_mib=-(-requested_kib * procs // 1_024) if requested_kib > 0 else UNKNOWN,
        procs=procs,
        requested_ms=requested_ms if requested_ms > 0 else UNKNOWN,
        user=_named(row, "user"),
        queue=_named(row, "queue"),
        tenant=_named(row, "group"),
    )


def _named(row: Row, column: str) -> str:
    number = row.count(column, UNKNOWN, MAX_ID)
    return sys.intern(str(number)) if number >= 0 else ""


class SwfFormat:
    """The format as `app` finds it."""

    name = NAME

    def matches(self, path: Path) -> bool:
        line = first_line(path)
        values = line.split()
        return line.startswith(";") or (
            len(values) >= len(FIELDS) and all(_is_number(value) for value in values[:18])
        )

    def read(self, path: Path, nodes: Path | None = None) -> Trace:
        return read_swf(path, nodes)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


FORMAT: Final = SwfFormat()
