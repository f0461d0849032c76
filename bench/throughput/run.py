"""Runs in one process: `python -m bench.throughput.run SETTINGS ...` prints one JSON object a run of what was measured.

The production writer, store thread, store and core over the no-op engine; the load comes from within the writer's loop. CPU is
that of this process: writer, store thread, engine and load generator together.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import numpy as np
import structlog
import uvloop

from bench.throughput import tenants
from bench.throughput.disciplines import installed, warm
from bench.throughput.load import ClosedLoad, Load, OpenLoad
from bench.throughput.noop import DirectOutbox, NoopEngine
from mintyard.app.journal_store import open_store
from mintyard.app.leader import Leader
from mintyard.app.local_link import LocalLink
from mintyard.app.processes import _SWITCH_S
from mintyard.app.warmup import warm_up
from mintyard.app.writer import Writer, WriterSettings
from mintyard.domain.replies import Refusal
from mintyard.ports.store import Record


class Settings(msgspec.Struct, kw_only=True):
    """`rate` 0 is closed loop with `window` tasks in flight. `store` is a URL; empty: SQLite in a folder of its own."""

    store: str = ""
    discipline: str = ""
    rate: float = 0.0
    seconds: float = 5.0
    warm_s: float = 1.0
    window: int = 2_048
    seed: int = 1
    projector: bool = True
    tick_ms: float = 2.0
    drain_s: float = 3.0
    """How long what is still open may take to end."""
    profile: str = ""


class CountingLeader(Leader):
    """Counts what is appended."""

    commits = records = bytes = 0

    def append(self, records: Sequence[Record]) -> int:
        self.commits += 1
        self.records += len(records)
        self.bytes += sum(len(record.body) for record in records)
        return super().append(records)


class Meter:
    """The counters at one instant."""

    def __init__(self, leader: CountingLeader, load: Load) -> None:
        self.at = time.perf_counter()
        self.cpu = time.process_time()
        self.completed, self.commits, self.bytes = load.completed, leader.commits, leader.bytes
        self.records = leader.records
        self.loop_at = time.monotonic()


async def run(settings: Settings, folder: Path) -> dict[str, Any]:
    url = settings.store or f"sqlite:///{folder / 'journal.db'}"
    leader = CountingLeader(lambda: open_store(url), life_ms=60_000)
    outbox = DirectOutbox(NoopEngine(), lambda jobs: None, lambda jobs: None)
    writer = Writer(leader, WriterSettings(tick_ms=settings.tick_ms), outbox)
    outbox.writer = writer
    await writer.start()
    await writer.leading()
    link = LocalLink(writer, asyncio.get_running_loop())
    tokens = tenants.authorities(tenants.now_ns())
    for command in tenants.opening(tokens):
        answer = await link.send(command)
        if isinstance(answer.reply, Refusal):
            raise SystemExit(f"{type(command).__name__}: {answer.reply.problem}")
    mix = tenants.submits(tokens)
    seconds = settings.seconds + settings.warm_s
    load: Any
    if settings.rate:
        load = OpenLoad(writer, mix, settings.rate, seconds, settings.seed)
    else:
        load = ClosedLoad(writer, mix, settings.window, round(100_000 * seconds))
    outbox._dispatched, outbox._completed = load.dispatched, load.ended
    projector = _projector(url, folder) if settings.projector else None
    gc.collect()
    gc.freeze()
    load.start()
    await asyncio.sleep(settings.warm_s)
    if settings.profile:
        _profile(settings, True)
    before = Meter(leader, load)
    await asyncio.sleep(settings.seconds)
    after = Meter(leader, load)
    if settings.profile:
        _profile(settings, False)
    lag = _lag(folder) if projector else {}
    if not settings.rate:
        load.stop()
    deadline = time.monotonic() + settings.drain_s
    while load.completed + load.refused < load.offered and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    result = _result(settings, load, before, after) | {"lag": lag}
    await writer.stop(hurry=True)
    if projector:
        projector.kill()  # nothing of it is kept
        projector.wait()
    return result


def _result(settings: Settings, load: Load, before: Meter, after: Meter) -> dict[str, Any]:
    done = max(after.completed - before.completed, 1)
    wall = after.at - before.at
    result: dict[str, Any] = {
        "done_per_s": done / wall,
        "cpu_us": (after.cpu - before.cpu) / done * 1e6,
        "cpu_share": (after.cpu - before.cpu) / wall,
        "commits_per_s": (after.commits - before.commits) / wall,
        "records_per_s": (after.records - before.records) / wall,
        "bytes_per_task": (after.bytes - before.bytes) / done,
        "refused": load.refused,
        "unfinished": load.offered - load.completed - load.refused,
        "late_ms": load.late_s * 1e3,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024,
        "load": os.getloadavg()[0],
    }
    due = load.due_at[: load.offered]
    window = (due >= before.loop_at) & (due < after.loop_at) & (load.job_of[: load.offered] > 0)
    jobs = load.job_of[: load.offered][window]
    for name, times in (
        ("ack", load.acked_at[: load.offered][window]),
        ("dispatch", load.dispatched_at[jobs]),
        ("complete", load.completed_at[jobs]),
    ):
        took = (times - due[window])[times > 0] * 1e3
        if len(took):
            for label, q in (("p50", 50), ("p99", 99), ("p999", 99.9)):
                result[f"{name}_{label}_ms"] = float(np.percentile(took, q))
    return result


def _projector(url: str, folder: Path) -> subprocess.Popen[bytes]:
    read_url = url if url.startswith("postgresql") else f"sqlite:///{folder / 'read.db'}"
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.throughput.projector", url, read_url, str(folder / "lag.json")]
    )
    deadline = time.monotonic() + 20
    while not (folder / "lag.json").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def _lag(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "lag.json").read_text())
    except OSError:
        return {}


_profiler: Any = None


def _profile(settings: Settings, begin: bool) -> None:
    global _profiler
    if begin:
        import cProfile

        _profiler = cProfile.Profile()
        _profiler.enable()
    else:
        _profiler.disable()
        _profiler.dump_stats(settings.profile)


@contextmanager
def fresh_database(url: str) -> Iterator[str]:
    """A new database on the server of `url`, dropped at the end; nothing for "" (SQLite)."""
    if not url:
        yield url
        return
    import psycopg

    parts = urlsplit(url)
    name = f"bench_{os.getpid()}_{time.monotonic_ns()}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            yield urlunsplit(parts._replace(path=f"/{name}", netloc=parts.netloc or "")).replace(
                ":///", "://@/"
            )
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.setswitchinterval(_SWITCH_S)
    warm_up()
    for words in sys.argv[1:] or ["{}"]:
        settings = msgspec.json.decode(words, type=Settings)
        if settings.discipline:
            warm()
        folder = Path(tempfile.mkdtemp(prefix="mintyard-bench-"))
        try:
            with installed(settings.discipline), fresh_database(settings.store) as store:
                settings.store = store
                print(json.dumps(uvloop.run(run(settings, folder))), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        gc.unfreeze()


if __name__ == "__main__":
    main()
