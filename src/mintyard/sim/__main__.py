"""`python -m mintyard.sim --seeds N`: run N seeds and print what they did; the first broken invariant ends with status 14."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from random import Random

from mintyard.adapters.stores.faulty import Fault, FaultPlan, FaultyStore
from mintyard.adapters.stores.memory import MemoryStore
from mintyard.ports.store import Store
from mintyard.sim.run import Simulation, Tally

FAULTS = {Fault.BEFORE_COMMIT: 15, Fault.AFTER_COMMIT: 15, Fault.MID_COMMIT: 15, Fault.DISK_FULL: 5}


def open_store(random: Random, clock_ms: Callable[[], int]) -> tuple[Store, Store, Callable[[], None]]:
    """A store in memory that fails before, in and after commits."""
    inner = MemoryStore(clock_ms=clock_ms)
    faulty = FaultyStore(inner, FaultPlan(random.getrandbits(32), per_mille=FAULTS), stall=lambda ms: None)

    def quiet() -> None:
        faulty.quiet = True

    return faulty, inner, quiet


def simulate(seed: int, commands: int, crashes: int) -> Tally | str:
    """The tally of one seed, or the traceback of what it broke."""
    try:
        return Simulation(seed, open_store).run(commands, crashes)
    except Exception:  # noqa: BLE001 - whatever it is, it is the seed's finding
        return traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mintyard.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--commands", type=int, default=1_000)
    parser.add_argument("--crashes", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began = time.monotonic()
    total = Tally(0)
    failed: list[tuple[int, str]] = []
    seeds = range(options.first, options.first + options.seeds)
    with ProcessPoolExecutor(options.workers) as pool:
        work = (pool.submit(simulate, seed, options.commands, options.crashes) for seed in seeds)
        for done, (seed, future) in enumerate(zip(seeds, list(work), strict=True), 1):
            result = future.result()
            if isinstance(result, str):
                failed.append((seed, result))
                print(f"seed {seed} broke an invariant:\n{result}", file=sys.stderr, flush=True)
                if len(failed) >= 5:
                    pool.shutdown(cancel_futures=True)
                    break
            else:
                _add(total, result)
            if done % 100 == 0:
                print(
                    f"{done} of {options.seeds} seeds, {time.monotonic() - began:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    print(_report(total, options.seeds, len(failed), time.monotonic() - began))
    return 14 if failed else 0


def _add(total: Tally, one: Tally) -> None:
    for name in (
        "commands",
        "crashes",
        "lost_ticks",
        "commit_faults",
        "records",
        "admitted",
        "ended",
        "retried_asks",
    ):
        setattr(total, name, getattr(total, name) + getattr(one, name))
    for code, count in one.refused.items():
        total.refused[code] = total.refused.get(code, 0) + count


def _report(total: Tally, seeds: int, failed: int, seconds: float) -> str:
    refused = ", ".join(
        f"{code} {count}" for code, count in sorted(total.refused.items(), key=lambda item: -item[1])
    )
    return (
        f"{seeds} seeds in {seconds:.0f} s: {total.commands} commands, {total.crashes} crashes, "
        f"{total.commit_faults} failed commits, {total.lost_ticks} ticks lost with them, {total.records} records, "
        f"{total.admitted} jobs admitted, {total.ended} ended, {total.retried_asks} asks repeated\n"
        f"refused: {refused}\n"
        f"{seeds - failed} passed, {failed} failed"
    )


if __name__ == "__main__":
    sys.exit(main())
