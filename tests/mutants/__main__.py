"""`python -m tests.mutants`: run simulation and core tests against every mutant; survivors are listed and end with status 1.

The mutant's source is replaced while it is imported, in a process of its own; nothing on disk changes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import SourceLoader
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, Mutant

CHILD = "MINTYARD_MUTANT"


class MutatingLoader(SourceFileLoader, SourceLoader):
    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self.mutant = mutant

    def get_code(self, fullname: str):
        source = self.get_data(self.path).decode()
        assert self.mutant.old in source, f"{self.mutant} does not occur"
        return compile(source.replace(self.mutant.old, self.mutant.new, 1), self.path, "exec")


class MutatingFinder:
    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, fullname: str, path=None, target=None):
        if fullname != self.mutant.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = MutatingLoader(fullname, spec.origin, self.mutant)
        return spec


def source_of(module: str) -> str:
    spec = PathFinder.find_spec(module.rpartition(".")[2], [str(Path("src", *module.split(".")[:-1]))])
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def child(number: int, seeds: int, commands: int) -> int:
    """Status 0 when nothing noticed the mutant. Number -1 is no mutant at all."""
    if number >= 0:
        sys.meta_path.insert(0, MutatingFinder(MUTANTS[number]))
    from mintyard.sim.__main__ import simulate

    for seed in range(1, seeds + 1):
        found = simulate(seed, commands, 5)
        if isinstance(found, str):
            sys.stderr.write(f"simulation, seed {seed}: {found.strip().splitlines()[-1][:200]}\n")
            return 1
    import pytest

    core = [f"tests/unit/{name}" for name in sorted(os.listdir("tests/unit")) if name.startswith("test_core")]
    status = pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", *core])
    if status:
        sys.stderr.write("core tests\n")
    return int(status)


def attempt(number: int, seeds: int, commands: int) -> tuple[bool, str]:
    environment = os.environ | {CHILD: str(number)}
    command = [sys.executable, "-m", "tests.mutants", "--seeds", str(seeds), "--commands", str(commands)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    except subprocess.TimeoutExpired:
        return True, "it never ends"
    lines = [line for line in done.stderr.strip().splitlines() if line]
    return done.returncode != 0, lines[-1] if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--commands", type=int, default=500)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, nargs="*", default=None)
    options = parser.parse_args()
    if CHILD in os.environ:
        return child(int(os.environ[CHILD]), options.seeds, options.commands)
    stale = [mutant for mutant in MUTANTS if mutant.old not in source_of(mutant.module)]
    if stale:
        print("these mutants do not occur in the source any more:", *stale, sep="\n  ")
        return 1
    noticed, how = attempt(-1, 2, options.commands)
    if noticed:
        print("the core without any mutant is not found sound:", how)
        return 1
    began = time.monotonic()
    numbers = options.only if options.only is not None else list(range(len(MUTANTS)))
    survivors = []
    with ThreadPoolExecutor(options.workers) as pool:
        results = pool.map(lambda number: attempt(number, options.seeds, options.commands), numbers)
        for number, (killed, how) in zip(numbers, results, strict=True):
            mutant = MUTANTS[number]
            print(
                f"{number:3} {'killed  ' if killed else 'SURVIVED'} {mutant.module}: {mutant.old[:60]!r} {how}",
                flush=True,
            )
            if not killed:
                survivors.append(number)
    print(f"{len(numbers)} mutants in {time.monotonic() - began:.0f} s, survivors: {survivors or 'none'}")
    print(f"{len(numbers) - len(survivors)} passed, {len(survivors)} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
