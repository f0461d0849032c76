"""B3: throughput against the classic schedulers.

(a) Control plane: submit -> durable -> placed -> dispatched to a no-op engine -> ended -> durable, through the production
writer and store, with tokens and ceilings, holds on four accounts, settlement, chain, and a projector beside it. Open loop at
three rates and closed loop; ours, round robin and a strict priority queue in one harness. `p99_ms` is scheduled arrival to
order dispatched (durable by then), `complete_p99_ms` to the end being durable.

(b) Capacity: see `capacity.py`; alone by `--part capacity`.

(c) Peers: see `peers.py`; by `--peers`, alone by `--part peers`. (a) alone is `--part control`.

Over HTTP, through all processes of a hub: see `http.py`; alone by `--part http`, left out of `--quick`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.report import finish, median, table
from bench.throughput import capacity, http, peers

RATES = (2_450, 10_000, 20_000)
OURS = ""
_ROOT = Path(__file__).resolve().parents[2]


def run(given: argparse.Namespace) -> None:
    figures: dict[str, float] = {}
    if given.part == "capacity":
        _capacity(figures, given)
    elif given.part == "http":
        http.measure(figures, given)
    elif given.part == "peers":
        _peers(figures, given)
    elif given.part == "control":
        _control(figures, given)
    elif given.quick:
        _quick(figures)
        _capacity(figures, given)
    else:
        _control(figures, given)
        _capacity(figures, given)
        http.measure(figures, given)
        if given.peers:
            _peers(figures, given)
    finish("B3", figures)


def _control(figures: dict[str, float], given: argparse.Namespace) -> None:
    """(a) on every store that is there."""
    stores = [("sqlite", ""), *_postgres()]
    plans = [(name, (*RATES, 0), 10.0) for name in (OURS, "round_robin", "priority_queue")]
    _control_plane(figures, stores, plans, given.runs)


def _peers(figures: dict[str, float], given: argparse.Namespace) -> None:
    """(c)."""
    ours = figures.get("sqlite.saturation_per_s")
    if ours is None:
        runs = [one_run(rate=0, seconds=5.0, seed=seed) for seed in range(1, given.runs + 1)]
        ours = median([one["done_per_s"] for one in runs])
    peers.run(figures, given.runs, ours)


def _quick(figures: dict[str, float]) -> None:
    """SQLite, one process for all runs."""
    cuts = [(OURS, 20_000, 5.0), (OURS, 0, 3.0), ("round_robin", 0, 2.0), ("priority_queue", 0, 2.0)]
    results = measure([{"discipline": name, "rate": rate, "seconds": s} for name, rate, s in cuts])
    rows: list[list[Any]] = []
    for (discipline, rate, _), result in zip(cuts, results, strict=True):
        lag = result.pop("lag")
        rows.append(_row("sqlite", discipline, rate, result, lag))
        _note(figures, f"{discipline}." if discipline else "", "sqlite", rate, result, lag)
    print(table(_HEADER, rows), flush=True)


def _capacity(figures: dict[str, float], given: argparse.Namespace) -> None:
    """(b), at an offered load that nobody can carry."""
    missing = capacity.missing(given.data)
    if missing:
        print(f"(b) left out: {missing}", flush=True)
        return
    seeds, seconds = ((1,), 12.0) if given.quick else ((1, 2, 3), capacity.SECONDS)
    rows: list[list[Any]] = []
    for policy in capacity.POLICIES:
        runs = [capacity.simulate(policy, given.data, 5_000, seed, seconds) for seed in seeds]
        result = {name: median([one[name] for one in runs]) for name in runs[0]}
        rows.append([policy, result["done_per_s"], result["utilisation"], result["wait_ms"]])
        figures[f"utilisation.{policy}"] = result["utilisation"]
    print(
        table(["5,000/s offered", "done/s", "GPU use %", "mean wait of those started, ms"], rows), flush=True
    )


def _postgres() -> list[tuple[str, str]]:
    """The throw-away server of `scripts/postgres.sh`, when its URL is given."""
    url = os.environ.get("MINTYARD_TEST_POSTGRES", "")
    if not url:
        print("PostgreSQL left out: scripts/postgres.sh start DIR, then MINTYARD_TEST_POSTGRES=URL")
    return [("postgresql", url)] if url else []


def _control_plane(
    figures: dict[str, float],
    stores: list[tuple[str, str]],
    plans: list[tuple[str, tuple[int, ...], float]],
    runs: int,
) -> None:
    rows: list[list[Any]] = []
    for store, url in stores:
        for discipline, rates, seconds in plans:
            for rate in rates:
                results = [
                    one_run(store=url, discipline=discipline, rate=rate, seconds=seconds, seed=seed)
                    for seed in range(1, runs + 1)
                ]
                result = {
                    name: median([one[name] for one in results])
                    for name in results[0]
                    if isinstance(results[0][name], (int, float)) and all(name in one for one in results)
                }
                lag = results[-1]["lag"]
                rows.append(_row(store, discipline, rate, result, lag))
                print(
                    f"{store} {discipline or 'ours'} at {rate}/s: {result['done_per_s']:,.0f}/s",
                    file=sys.stderr,
                    flush=True,
                )
                _note(figures, f"{discipline}." if discipline else "", store, rate, result, lag)
    print(table(_HEADER, rows), flush=True)


_HEADER = (
    "store", "discipline", "offered/s", "done/s", "ack p50/p99/p99.9 ms", "dispatch p50/p99/p99.9 ms",
    "complete p50/p99/p99.9 ms", "CPU us/task", "CPU share", "commits/s", "bytes/task", "projector lag ms", "unfinished",
    "load",
)  # fmt: skip


def _row(store: str, discipline: str, rate: int, result: dict[str, float], lag: dict[str, Any]) -> list[Any]:
    def times(name: str) -> str:
        return " / ".join(f"{result.get(f'{name}_{q}_ms', float('nan')):.3g}" for q in ("p50", "p99", "p999"))

    return [
        store, discipline or "ours", f"{rate:,}" if rate else "closed loop", result["done_per_s"], times("ack"),
        times("dispatch"), times("complete"), result["cpu_us"], result["cpu_share"], result["commits_per_s"],
        result["bytes_per_task"], lag.get("age_ms", "-"), int(result["unfinished"]), result["load"],
    ]  # fmt: skip


def _note(
    figures: dict[str, float],
    prefix: str,
    store: str,
    rate: int,
    result: dict[str, float],
    lag: dict[str, Any],
) -> None:
    name = f"{prefix}{store}"
    if rate:
        for figure, key in (("p99_ms", "dispatch_p99_ms"), ("complete_p99_ms", "complete_p99_ms")):
            if key in result:  # nothing of what arrived while measuring got so far
                figures[f"{name}.{figure}.{rate}"] = result[key]
        figures[f"{name}.done_per_s.{rate}"] = result["done_per_s"]
        if lag and not prefix:
            figures[f"{name}.projector_lag_ms.{rate}"] = lag["age_ms"]
    else:
        figures[f"{name}.saturation_per_s"] = result["done_per_s"]
        figures[f"{name}.cpu_us_per_task"] = result["cpu_us"]
        figures[f"{name}.commits_per_s"] = result["commits_per_s"]
        figures[f"{name}.bytes_per_task"] = result["bytes_per_task"]


def one_run(**settings: Any) -> dict[str, Any]:
    """One run in a process of its own."""
    return measure([settings])[0]


def measure(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`bench.throughput.run` of one run after the other, in one process of their own."""
    environment = os.environ | {"PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "bench.throughput.run", *map(json.dumps, settings)],
        stdout=subprocess.PIPE, env=environment, cwd=_ROOT, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()[-len(settings) :]]
