"""openb: Alibaba's cluster-trace-gpu-v2023 (FGD, USENIX ATC 2023), one CSV of pods and one of nodes.

Times are seconds from an unnamed start. `gpu_milli` below 1,000 shares one GPU; `gpu_spec` lists the models that will
do. Some published variants have no times: their pods are all submitted at 0 with an unknown run time.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Final

from mintyard.adapters.traces.rows import Row, counts, has_columns, in_order, read_csv
from mintyard.domain import limits
from mintyard.ports.traces import UNKNOWN, Trace, TraceJob, TraceNode

NAME: Final = "openb"
POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_TIMES: Final = ("creation_time", "deletion_time")


def read_openb(pods: Path, nodes: Path | None = None) -> Trace:
    """Pods (and nodes). A pod's run time is deletion - scheduling; one that was never scheduled counts as living from
    its creation to its deletion and is counted in `assumed`.

    Errors: `NotFound`, `TraceMalformed`.
    """
    assumed: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    jobs: list[TraceJob] = []
    for row in read_csv(pods, POD_COLUMNS):
        submit_ms, run_ms = _times(row, assumed)
        if run_ms < 0 and run_ms != UNKNOWN:
            skipped["ends before it starts"] += 1
            continue
        jobs.append(_pod(row, submit_ms, run_ms))
    machines = read_nodes(nodes) if nodes is not None else []
    return Trace(NAME, in_order(jobs), machines, counts(skipped), counts(assumed))


def read_nodes(path: Path) -> list[TraceNode]:
    """The machines in the file's order. Errors: `NotFound`, `TraceMalformed`, also for a name given twice."""
    nodes: list[TraceNode] = []
    names: set[str] = set()
    for row in read_csv(path, NODE_COLUMNS):
        name, gpus = row.text("sn"), row.count("gpu", 0, 1_024)
        if not name or name in names:
            raise row.refuse(f"sn is {name[:40]!r}; each node needs a name of its own")
        if len(names) >= limits.MAX_NODES:
            raise row.refuse(f"more than {limits.MAX_NODES} nodes")
        names.add(name)
        cpus_milli = row.count("cpu_milli", 1, limits.MAX_CPUS_MILLI)
        memory_mib = row.count("memory_mib", 1, limits.MAX_MEMORY_MIB)
        nodes.append(
            TraceNode(name, cpus_milli, memory_mib, gpus, sys.intern(row.text("model")) if gpus else "")
        )
    return nodes


def _times(row: Row, assumed: Counter[str]) -> tuple[int, int]:
    """Submit and run time in ms; a run time below `UNKNOWN` when the pod ends before it starts."""
    if any(column not in row for column in _TIMES):
        assumed["submitted at 0, run time unknown"] += 1
        return 0, UNKNOWN
    submit_ms = row.seconds_ms("creation_time")
    if not row.text("deletion_time"):
        return submit_ms, UNKNOWN
    if row.text("scheduled_time"):
        start_ms = row.seconds_ms("scheduled_time")
    else:
        assumed["never scheduled, lived from creation to deletion"] += 1
        start_ms = submit_ms
    run_ms = row.seconds_ms("deletion_time") - start_ms
    return submit_ms, run_ms if run_ms >= 0 else UNKNOWN - 1


def _pod(row: Row, submit_ms: int, run_ms: int) -> TraceJob:
    gpus = row.count("num_gpu", 0, limits.MAX_GPUS_PER_MEMBER)
    gpu_milli = row.count("gpu_milli", 1 if gpus else 0, 1_000)
    if gpus > 1 and gpu_milli != 1_000:
        raise row.refuse(f"gpu_milli is {gpu_milli} with num_gpu {gpus}; only a single GPU can be shared")
    models = dict.fromkeys(model.strip() for model in row.text("gpu_spec").split("|")) if gpus else {}
    return TraceJob(
        name=row.text("name"),
        submit_ms=submit_ms,
        run_ms=run_ms,
        gpus=gpus,
        gpu_milli=gpu_milli if gpus else 1_000,
        gpu_models=tuple(sys.intern(model) for model in models if model),
        cpus_milli=row.count("cpu_milli", 0, limits.MAX_CPUS_MILLI),
        memory_mib=row.count("memory_mib", 0, limits.MAX_MEMORY_MIB),
        queue=sys.intern(row.text("qos")),
    )


class OpenbFormat:
    """The format as `app` finds it."""

    name = NAME

    def matches(self, path: Path) -> bool:
        return has_columns(path, POD_COLUMNS)

    def read(self, path: Path, nodes: Path | None = None) -> Trace:
        return read_openb(path, nodes)


FORMAT: Final = OpenbFormat()
