"""Philly: Microsoft's deep-learning jobs of 2017 (ATC 2019) as one CSV of submit time, duration, GPUs and cluster.

Timestamps are local time without a zone. They are compared as they stand: across a change of the clocks, two jobs may
lie an hour closer or further apart than they were. The file lists no machines.
"""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from mintyard.adapters.traces.openb import read_nodes
from mintyard.adapters.traces.rows import MAX_MS, Row, counts, has_columns, in_order, read_csv
from mintyard.domain.units import NS_PER_MS
from mintyard.ports.traces import Trace, TraceJob

NAME: Final = "philly"
COLUMNS: Final = ("timestamp", "duration", "num_gpus")
MAX_GPUS: Final = 65_536
_EPOCH: Final = datetime(1970, 1, 1)
"""Without a zone, as the file."""


def read_philly(path: Path, nodes: Path | None = None) -> Trace:
    """Jobs; `tenant` is the virtual cluster; CPUs and memory are unknown. `submit_ms` counts from the first job.
    Left out and counted: jobs without a run time. Errors: `NotFound`, `TraceMalformed`.
    """
    skipped: Counter[str] = Counter()
    rows: list[tuple[int, int, int, str]] = []
    first_line = 0
    for row in read_csv(path, COLUMNS):
        first_line = first_line or row.line
        at_ms = _instant_ms(row)
        run_ms = row.seconds_ms("duration") if row.text("duration") else 0
        gpus = row.count("num_gpus", 0, MAX_GPUS)
        if run_ms == 0:
            skipped["no run time"] += 1
            continue
        rows.append((at_ms, run_ms, gpus, sys.intern(row.text("cluster"))))
    start_ms = min((row[0] for row in rows), default=0)
    jobs: list[TraceJob] = []
    for number, (at_ms, run_ms, gpus, cluster) in enumerate(rows, start=1):
        jobs.append(TraceJob(f"philly-{number}", at_ms - start_ms, run_ms, gpus, tenant=cluster))
    machines = read_nodes(nodes) if nodes is not None else []
    return Trace(NAME, in_order(jobs), machines, counts(skipped), {}, start_ms * NS_PER_MS)


def _instant_ms(row: Row) -> int:
    """Wall clock as ms since 1970-01-01 00:00 of the same clock."""
    text = row.text("timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise row.refuse(f"timestamp is {text[:40]!r}, allowed is 2017-10-09 07:01:55") from None
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    at_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if not 0 <= at_ms <= MAX_MS:
        raise row.refuse(f"timestamp is {text[:40]!r}, allowed are the years 1970 to 2069")
    return at_ms


class PhillyFormat:
    """The format as `app` finds it."""

    name = NAME

    def matches(self, path: Path) -> bool:
        return has_columns(path, COLUMNS)

    def read(self, path: Path, nodes: Path | None = None) -> Trace:
        return read_philly(path, nodes)


FORMAT: Final = PhillyFormat()
