"""`python -m tests.crash --kills N [--seed S] [--folder F]`: the crash test of a real hub; exit status 1 when a check fails."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.run import CrashRun


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how often the writer is killed")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_007)
    parser.add_argument("--folder", type=Path, help="keep everything here (default: a temporary folder)")
    given = parser.parse_args(arguments)
    if given.kills < 1:
        parser.error("--kills must be at least 1")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="mintyard-crash-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    print(f"crash test, seed {given.seed}, in {folder}", flush=True)
    run = CrashRun(folder, given.kills, given.seed, lambda line: print(line, flush=True))
    report = run.run()
    for line in report.lines():
        print(line)
    facts, down = report.facts, sorted(run.down_s)
    others = ", ".join(f"{count} {role}" for role, count in sorted(run.killed.items()) if role != "writer")
    print(f"drained in {facts['drain_s']} s, stopped in {facts['stop_s']} s")
    print(f"states {facts['states']}, killed besides: {others or 'nothing'}")
    print(
        f"{run.killed['writer']} kills, {facts['jobs']} jobs, {facts['attempts']} attempts, {facts['adopted']} adopted, "
        f"{facts['repeats']} requests repeated, {facts['holds']} holds, {facts['records']} records, "
        f"back after {down[len(down) // 2]:.1f} s (median), {down[-1]:.1f} s (longest), "
        f"{time.monotonic() - began:.0f} s in all, seed {given.seed}"
    )
    print(f"{len(report.faults) - len(report.failed)} passed, {len(report.failed)} failed")
    if report.failed:
        print(f"the hub's files and log are kept in {folder}")
    elif not given.folder:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
