"""B3 (c): no-op tasks through other systems and through ours, on this machine, one after the other in the same minutes.

A peer is measured when it is there: Ray, Dask and Celery in the Python that `MINTYARD_PEERS_PYTHON` names (by default this
one: `pip install ray distributed "celery[redis]"`), Redis and Slurm from Debian (`redis-server`; `munge slurmctld slurmd
slurm-client`, as root). Ours twice: `ours_control`, the hub's decisions with an engine that does nothing, all of them durable,
which is what a system of decisions should be compared with; `ours_processes`, real processes through the local engine, which
is what Slurm starts too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.report import median, table
from mintyard.app.config import Config
from mintyard.app.embedded import EmbeddedHub
from mintyard.domain.commands import Submit
from mintyard.domain.jobs.spec import Array, JobRequest, JobSpec, Shape
from mintyard.wire.launch import Launch, encode_launch

COUNTS = {"ray": 5_000, "dask": 5_000, "celery": 5_000, "slurm": 500}
PROCESSES = 500
_NEEDS = {"ray": "ray", "dask": "distributed", "celery": "celery"}
_PROGRAMS = {"celery": "redis-server", "slurm": "slurmctld"}


def run(figures: dict[str, float], runs: int, ours_per_s: float) -> None:
    """`ours_per_s` is the closed loop of (a)."""
    rows: list[list[Any]] = [["ours_control", "closed loop of (a), every step durable", ours_per_s, 1.0]]
    figures["peer.ours_control_per_s"] = ours_per_s
    rate = median([processes_per_s() for _ in range(runs)])
    figures["peer.ours_processes_per_s"] = rate
    rows.append(["ours_processes", f"{PROCESSES} real processes (`true`)", rate, ours_per_s / rate])
    for name, count in COUNTS.items():
        if missing := _missing(name):
            print(f"{name} left out: {missing}", flush=True)
            continue
        results = [_measure(name, count) for _ in range(runs)]
        rate = median([result["per_s"] for result in results])
        figures[f"peer.{name}_per_s"] = rate
        rows.append([name, f"{results[0]['version']}, {count:,} tasks", rate, ours_per_s / rate])
    print(table(["system", "what", "tasks/s", "ours_control is ... times that"], rows), flush=True)


def processes_per_s() -> float:
    """Real processes from submit to all settled, through an embedded hub with the local engine."""
    folder = Path(tempfile.mkdtemp(prefix="mintyard-bench-"))
    nodes = [{"name": "n", "cpus_milli": 8_000, "memory_mib": 16_384}]
    config = Config(folder=str(folder), port=0, engine_options={"nodes": nodes}, log_level="error")
    launch = encode_launch(Launch(argv=("/bin/true",)))
    spec = JobSpec("noop", Shape(1_000, 64), 60_000, payload=launch)
    try:
        with EmbeddedHub(config, read_side=False) as hub:
            state = hub.leader_side.writer._decisions.state  # pyright: ignore
            _settle(hub, state, spec, 20)
            began = time.perf_counter()
            _settle(hub, state, spec, PROCESSES)
            return PROCESSES / (time.perf_counter() - began)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _settle(hub: EmbeddedHub, state: Any, spec: JobSpec, count: int) -> None:
    hub.run(hub.link.send(Submit(None, (JobRequest(spec, array=Array(tuple(range(count)))),))))
    while state.jobs:
        time.sleep(0.01)


def _missing(name: str) -> str:
    program = _PROGRAMS.get(name)
    if program and shutil.which(program) is None:
        return f"no {program}"
    if name == "slurm" and os.geteuid() != 0:
        return "its daemons need root"
    module = _NEEDS.get(name)
    if module:
        found = subprocess.run([_python(), "-c", f"import {module}"], capture_output=True, check=False)
        if found.returncode:
            return f"no module {module} (MINTYARD_PEERS_PYTHON names a Python that has it)"
    return ""


def _measure(name: str, count: int) -> dict[str, Any]:
    script = Path(__file__).with_name("peer_tasks.py")
    done = subprocess.run(
        [_python(), "-P", str(script), name, str(count)], stdout=subprocess.PIPE, check=True, timeout=900
    )
    return json.loads(done.stdout.splitlines()[-1])


def _python() -> str:
    return os.environ.get("MINTYARD_PEERS_PYTHON") or sys.executable
