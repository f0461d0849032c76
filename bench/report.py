"""What every benchmark prints: the machine, a table, and one JSON object as the last line."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

PACKAGES = ("mintyard", "numba", "numpy", "msgspec", "uvloop", "psycopg", "sqlalchemy")


def machine() -> str:
    """Processor, memory, versions, load and date in one paragraph."""
    cpu = platform.processor() or platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = 0
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            memory = int(line.split()[1]) // 1_048_576
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return (
        f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} · {cpu}, {os.cpu_count()} CPUs, {memory} GiB · "
        f"load {load} · Python {platform.python_version()} on {platform.system()} {platform.release()} · {versions}"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats get three significant digits."""
    cells = [[_cell(one) for one in row] for row in rows]
    widths = [
        max(len(name), *(len(row[at]) for row in cells)) if cells else len(name)
        for at, name in enumerate(header)
    ]
    lines = [
        "| " + " | ".join(one.ljust(width) for one, width in zip(row, widths, strict=True)) + " |"
        for row in ([str(name) for name in header], ["-" * width for width in widths], *cells)
    ]
    return "\n".join(lines)


def finish(benchmark: str, figures: Mapping[str, float | int | str]) -> None:
    """The last line."""
    rounded = {name: _rounded(value) for name, value in figures.items()}
    sys.stdout.write(msgspec.json.encode({"id": benchmark, "figures": rounded}).decode() + "\n")
    sys.stdout.flush()


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _rounded(value: float | int | str) -> float | int | str:
    return (
        float(f"{value:.4g}")
        if isinstance(value, float) and abs(value) < 10_000
        else (round(value) if isinstance(value, float) else value)
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
