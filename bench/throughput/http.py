"""B3 over HTTP: a whole hub - its own processes, SQLite FULL, as `mintyard up` starts it - and load from another process.

The hub's engine starts and ends every attempt at once (`noop.ThreadedNoopEngine`, found by an entry point that lies in the
hub's folder), its nodes are as many as openb's. Accounts, grants and tokens are made through the API: users on the fourth
level, a grant of money on each of three levels above and on their own, tokens narrowed once with ceilings. A task is
acknowledged when its answer has come, which the hub sends once the record is durable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from bench.report import median, table
from bench.throughput import tenants
from bench.throughput.http_load import Plan, Result, encode_request
from mintyard.credentials import Restrictions, narrow
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit

_ROOT = Path(__file__).resolve().parents[2]
RATES = (2_450, 1_000, 500, 250)
"""Of single posts; the first that is carried with a p99 of at most `GOAL_MS` ends the search."""
GOAL_MS = 31.0
BATCH = 100
BATCH_CONNECTIONS = 8
SINGLE_CONNECTIONS = 64
_AMOUNT = "90000000"
_CEILING = 10**16
_DRAIN_S = 60.0


def measure(figures: dict[str, float], given: argparse.Namespace) -> None:
    """Notes `http_batch_per_s`, `http_single_per_s`, `http_single_p99_ms` (at 2,450/s) and what belongs to them."""
    rows: list[list[Any]] = []
    for workers in (1, 2):
        with hub(workers=workers) as live:
            load = Load(live)
            load.once(load.singles, seconds=2.0)  # kernels, caches, interned specs
            prefix = "http_" if workers == 1 else "http_workers_2."
            runs = [
                load.once(load.batches, jobs=BATCH, connections=BATCH_CONNECTIONS) for _ in range(given.runs)
            ]
            rows.append(_row(workers, f"batches of {BATCH}", runs))
            figures[f"{prefix}batch_per_s"] = _middle(runs, "jobs_per_s")
            figures[f"{prefix}batch_ended_per_s"] = _middle(runs, "ended_per_s")
            runs = [load.once(load.singles) for _ in range(given.runs)]
            rows.append(_row(workers, "single posts", runs))
            figures[f"{prefix}single_per_s"] = _middle(runs, "jobs_per_s")
            for rate in RATES if workers == 1 else ():
                runs = [load.once(load.singles, rate=rate, seed=seed) for seed in range(1, given.runs + 1)]
                rows.append(_row(workers, f"single posts, {rate:,}/s offered", runs))
                p99, carried = _middle(runs, "p99_ms"), _middle(runs, "jobs_per_s") / rate
                figures[f"{prefix}single_p99_ms" + ("" if rate == RATES[0] else f".{rate}")] = p99
                figures[f"{prefix}single_carried.{rate}"] = carried
                if carried > 0.98 and p99 <= GOAL_MS:
                    break
    print(table(_HEADER, rows), flush=True)


_ROLES = ("load", "api", "writer", "projector", "planner")
_HEADER = (
    "API workers", "load", "acked/s", "ended/s", "p50/p99/p99.9 ms", "requests", "refused", "unanswered",
    "CPU us a task: " + " / ".join(_ROLES), "load late ms", "machine load",
)  # fmt: skip


def _row(workers: int, name: str, runs: list[dict[str, Any]]) -> list[Any]:
    times = " / ".join(f"{_middle(runs, q):.3g}" for q in ("p50_ms", "p99_ms", "p999_ms"))
    costs = " / ".join(f"{median([one['cpu_us'][role] for one in runs]):.0f}" for role in _ROLES)
    return [
        workers, name, _middle(runs, "jobs_per_s"), _middle(runs, "ended_per_s"), times,
        int(_middle(runs, "answered")), int(_middle(runs, "refused")), int(_middle(runs, "unanswered")), costs,
        _middle(runs, "late_ms"), os.getloadavg()[0],
    ]  # fmt: skip


def _middle(runs: list[dict[str, Any]], name: str) -> float:
    return median([float(one[name]) for one in runs])


# --- the hub --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hub(
    workers: int = 1,
    engine: str = "bench.throughput.noop:ThreadedNoopEngine",
    options: dict[str, Any] | None = None,
) -> Iterator[Any]:
    """A hub with the no-op engine, or another one of ours, in a temporary folder; stopped in order."""
    from tests.crash.live_hub import LiveHub

    with tempfile.TemporaryDirectory(prefix="mintyard-b3-") as folder:
        live = LiveHub(
            Path(folder) / "hub", workers=workers, lease_ms=10_000, engine="bench_noop",
            engine_options={"count": tenants.NODES} if options is None else options, log_level="warning",
        )  # fmt: skip
        entry = Path(folder) / "entry" / "mintyard_bench-0.dist-info"
        entry.mkdir(parents=True)
        (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: mintyard-bench\nVersion: 0\n")
        (entry / "entry_points.txt").write_text(f"[mintyard.engines]\nbench_noop = {engine}\n")
        paths = (live.environment["PYTHONPATH"], str(_ROOT), str(entry.parent))
        live.environment["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            yield live.start()
            live.stop()
        finally:
            live.destroy()


def onboard(live: Any) -> list[str]:
    """Accounts, grants and a narrowed token for each user, by the API."""
    with live.client() as client:
        for account in tenants.accounts():
            if account != tenants.ROOT:
                _post(client, "/accounts", {"account": account})
            for priority in range(100, 100 + tenants.GRANTS):
                grant = {"account": account, "unit": "money", "amount": _AMOUNT, "priority": priority}
                _post(client, "/grants", grant)
        keys = live.admin.keys
        assert keys is not None
        limits = Restrictions(
            scopes=frozenset({Scope.JOB_SUBMIT, Scope.JOB_READ}),
            ceilings={Unit.MONEY: _CEILING, Unit.CPU: _CEILING},
        )
        users = [account for account in tenants.accounts() if account.count("/") == 2]
        wish = {"role": "service", "life_s": 86_400}
        return [
            narrow(_post(client, "/tokens", {"account": user, **wish})["token"], keys, limits)
            for user in users
        ]


def _post(client: httpx.Client, path: str, body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.is_success, f"{path} {body}: {answer.status_code} {answer.text}"
    return answer.json()


def job(at: int) -> dict[str, Any]:
    """The spec number `at` of the mix, as in `tenants.submits`."""
    body: dict[str, Any] = {
        "launch": {"argv": ["true", str(at)]}, "name": f"task-{at}", "time_limit_ms": 60_000, "priority": 100 + at % 5,
        "cpus_milli": 1_000 * (1 + at % 4), "memory_mib": 512 << at % 3,
    }  # fmt: skip
    if at % 8 == 0:
        body |= {"gpus": 1, "gpu_milli": 250 * (1 + at // 8)}
    return body


# --- load -----------------------------------------------------------------------------------------------------------


class Load:
    """Requests for one hub, and runs of the load process."""

    def __init__(self, live: Any) -> None:
        self.live = live
        host = f"127.0.0.1:{live.port}"
        tokens = onboard(live)
        count = tenants.USERS * tenants.SPECS
        self.singles = [
            encode_request("/api/v1/jobs", tokens[at % len(tokens)], job(at * 7 % tenants.SPECS), host)
            for at in range(count)
        ]
        jobs = [job(at * 7 % tenants.SPECS) for at in range(BATCH)]
        self.batches = [encode_request("/api/v1/jobs/batch", token, {"jobs": jobs}, host) for token in tokens]

    def once(self, requests: list[bytes], **about: Any) -> dict[str, Any]:
        """One run, after which all tasks have ended: the load's `Result` with `ended_per_s` and CPU by role."""
        plan = Plan(
            host="127.0.0.1",
            port=self.live.port,
            requests=requests,
            **({"connections": SINGLE_CONNECTIONS} | about),
        )
        environment = os.environ | {"PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
        before, began = self._cpu(), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "bench.throughput.http_load"], input=msgspec.msgpack.encode(plan),
            stdout=subprocess.PIPE, env=environment, cwd=_ROOT, check=True,
        )  # fmt: skip
        found = msgspec.json.decode(done.stdout.splitlines()[-1], type=Result)
        left = drain(self.live)
        seconds = time.monotonic() - began
        after = self._cpu()
        tasks = max(1, found.acknowledged)
        used = {role: (after[role] - before[role]) / tasks * 1e6 for role in before}
        refused = sum(n for status, n in found.statuses.items() if status and not 200 <= status < 300)
        result = msgspec.structs.asdict(found) | {
            "refused": refused, "ended_per_s": (found.acknowledged - left) / seconds, "left": left,
            "cpu_us": used | {"load": found.cpu_s / tasks * 1e6},
        }  # fmt: skip
        print(json.dumps({"requests": len(requests), **about} | result), file=sys.stderr, flush=True)
        return result

    def _cpu(self) -> dict[str, float]:
        """CPU seconds so far by role."""
        used = dict.fromkeys(_ROLES[1:], 0.0)
        for name, pid in self.live.pids().items():
            times = psutil.Process(pid).cpu_times()
            used[name.split("-")[0]] += times.user + times.system
        return used


def drain(live: Any, most_s: float = _DRAIN_S) -> int:
    """Wait until no task is live; how many still are after `most_s`."""
    deadline, live_jobs = time.monotonic() + most_s, 1
    while live_jobs and time.monotonic() < deadline:
        time.sleep(0.2)
        text = httpx.get(f"{live.url}/metrics", trust_env=False, timeout=20).text
        live_jobs = live_of(text)
    return live_jobs


def live_of(text: str) -> int:
    """Live jobs by the hub's metrics; at least 1 when they don't say."""
    lines = [line for line in text.splitlines() if line.startswith("mintyard_jobs{")]
    known = "mintyard_journal_seq " in text
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines) if known else 1
