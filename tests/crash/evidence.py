"""Evidence of what truly ran: each job's command appends lines to one file, and this reads them.

The file is written by the jobs' own shells (O_APPEND, one `write` a line) and knows nothing of the hub: `S` the command
began, `E` it ended by itself, `T` it was told to end, `M` a file that it reads was not there; each with job, attempt,
process id and wall-clock ns.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MISSING_INPUT = 3
"""Exit status of a command whose input was not there: a broken order of a DAG."""


class Run(NamedTuple):
    """One execution of a command. `ended` is 0 when no end was written, `ended_pid` is who wrote it."""

    pid: int
    began: int
    ended: int
    ended_pid: int
    natural: bool
    """It came to its end by itself."""


def script(file: Path, sleep_s: float, reads: Sequence[Path] = (), writes: Sequence[Path] = ()) -> str:
    """A job's command that leaves evidence in `file`, checks the files it reads and makes those it writes."""
    ledger = shlex.quote(str(file))
    lines = [
        "#!/bin/sh",
        # A signal to the whole group may end `date` without an answer: then it is asked again, or the trap speaks instead.
        'note() { now=; until [ "$now" ]; do now=$(date +%s%N); done',
        f'echo "$1 $MINTYARD_JOB $MINTYARD_ATTEMPT $$ $now" >> {ledger}; }}',
        "trap 'note T; exit 143' TERM",
        "note S",
        *(f"test -e {shlex.quote(str(path))} || {{ note M; exit {MISSING_INPUT}; }}" for path in reads),
        f"sleep {sleep_s:.3f} &",
        "wait $!",
        *(f"echo $MINTYARD_JOB > {shlex.quote(str(path))}" for path in writes),
        "note E",
    ]
    return "\n".join(lines) + "\n"


class Evidence:
    """What the file says by (job, attempt)."""

    def __init__(self, file: Path) -> None:
        self.runs: dict[tuple[int, int], list[Run]] = defaultdict(list)
        self.missing_inputs: list[tuple[int, int]] = []
        self.faults: list[str] = []
        if file.exists():
            for line in file.read_text().splitlines():
                self._take(line)

    def _take(self, line: str) -> None:
        parts = line.split()
        if len(parts) != 5 or not all(part.isdigit() for part in parts[1:]):
            self.faults.append(f"torn line {line!r}")
            return
        kind, (job, attempt, pid, at) = parts[0], map(int, parts[1:])
        if kind == "S":
            self.runs[job, attempt].append(Run(pid, at, 0, 0, False))
            return
        runs = self.runs.get((job, attempt))
        if not runs:
            # Told to end before it came to say that it had begun.
            if kind != "T":
                self.faults.append(f"{kind} before S: job {job} attempt {attempt}")
        elif kind == "M":
            self.missing_inputs.append((job, attempt))
        elif runs[-1].ended == 0:
            runs[-1] = runs[-1]._replace(ended=at, ended_pid=pid, natural=kind == "E")

    def running(self) -> dict[tuple[int, int], int]:
        """The process ids of commands that have begun and not ended."""
        return {key: runs[-1].pid for key, runs in self.runs.items() if runs[-1].ended == 0}

    def of_job(self, job: int) -> list[tuple[int, Run]]:
        """(attempt, run) of one job in the order in which they began."""
        found = [
            (attempt, run) for (number, attempt), runs in self.runs.items() if number == job for run in runs
        ]
        return sorted(found, key=lambda one: one[1].began)

    def by_job(self) -> dict[int, list[tuple[int, Run]]]:
        found: dict[int, list[tuple[int, Run]]] = defaultdict(list)
        for (job, attempt), runs in self.runs.items():
            found[job] += [(attempt, run) for run in runs]
        for runs in found.values():
            runs.sort(key=lambda one: one[1].began)
        return found
