"""`python -m bench [ID ...] [--quick] [--data DIR]`: all benchmarks when none is named."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from bench.report import machine

BENCHMARKS = {
    "B1": "bench.placement.b1",
    "B3": "bench.throughput.b3",
    "B4": "bench.pending",
    "B5": "bench.backfill.b5",
    "B8": "bench.cohorts.b8",
    "scale": "bench.scale",
}
"""Where each benchmark's `run(arguments)` is."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("ids", nargs="*", metavar="ID", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="a cut that ends within 50 s")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder with the data sets")
    parser.add_argument("--part", default="", help="only this part of the benchmark (see its module)")
    parser.add_argument("--runs", type=int, default=3, help="runs of which the median is taken")
    parser.add_argument("--peers", action="store_true", help="other systems too, on this machine")
    given = parser.parse_args()
    unknown = [name for name in given.ids if name not in BENCHMARKS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(BENCHMARKS)}")
    for name in given.ids or BENCHMARKS:
        print(machine(), flush=True)
        importlib.import_module(BENCHMARKS[name]).run(given)
    return 0


def data_folder() -> Path:
    named = os.environ.get("MINTYARD_DATA")
    return Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"


if __name__ == "__main__":
    sys.exit(main())
