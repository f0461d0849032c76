"""Attempts of the local engine as its state folder shows them, and the reports that follow from what has changed.

Reads files and remembers what was told; knows no sockets. Every method is called under the engine's lock.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

from mintyard.adapters.engines.cores import Cores
from mintyard.agent import orphans, records
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, AttemptUsage, Outcome, Report

_MOURN_S: Final = 2.0
"""How long the fork server, which sees more, may bury an attempt before the engine does."""


class _Told:
    """What was reported of one attempt."""

    def __init__(self, job: int, attempt: int) -> None:
        self.job, self.attempt = job, attempt
        self.started = self.ended = False
        self.usage: tuple[int, int, int] = (0, 0, 0)
        self.dead_since = 0.0


class AttemptTable:
    """All attempts that aren't acknowledged. `refresh` looks at everything, `touch` at one."""

    def __init__(self, state: str, cores: Cores) -> None:
        self._state, self._cores = state, cores
        self._told: dict[str, _Told] = {}
        self._reports: list[Report] = []
        self._listed_ns = -1
        self._recovered = False

    def keys(self) -> set[tuple[int, int]]:
        return {(one.job, one.attempt) for one in self._told.values()}

    def any_live(self) -> bool:
        return any(not one.ended for one in self._told.values())

    def take_reports(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def refresh(self) -> None:
        """New attempts, usage, ends, and the dead without an end."""
        if not self._recovered:
            self._recover()
            self._recovered = True
        folder = os.path.join(self._state, "attempts")
        changed_ns = os.stat(folder).st_mtime_ns
        if changed_ns != self._listed_ns:
            # Taken before listing: a change during it is seen next time.
            self._listed_ns = changed_ns if time.time_ns() - changed_ns > 50_000_000 else -1
            for name in os.listdir(folder):
                if name not in self._told:
                    self.touch(name)
        for key, one in list(self._told.items()):
            if not one.ended:
                self.touch(key)
                self._mourn(key, one)

    def _recover(self) -> None:
        """A claim without its second link was cut short in the making: list it, so that it gets its end."""
        for entry in os.scandir(os.path.join(self._state, "claims")):
            if records.parse_key(entry.name) is None:
                continue
            found = entry.stat()
            if found.st_nlink == 1 and found.st_size != records.FORGOTTEN_BYTES:
                try:
                    os.link(entry.path, os.path.join(self._state, "attempts", entry.name))
                except FileExistsError:
                    pass

    def touch(self, key: str) -> None:
        """Report what is new of `key`; a name that is no attempt, or an acknowledged one, is passed over."""
        one = self._told.get(key)
        if one is None:
            parsed = records.parse_key(key)
            if parsed is None or not os.path.lexists(os.path.join(self._state, "attempts", key)):
                return
            one = self._told[key] = _Told(*parsed)
        found = None if one.ended else records.read_attempt(self._state, key)
        if found is None:
            return
        if not one.started and found.started:
            one.started = True
            self._cores.adopt(key, found.started.get("cores", []))
            self._reports.append(AttemptStarted(one.job, one.attempt, str(found.started["boot"])))
        if found.end:
            one.ended = True
            self._cores.release(key)
            self._reports.append(_ended(one.job, one.attempt, found.end))
        elif one.started and (usage := records.read_record(records.file_path(self._state, key, "usage"))):
            counted = (usage["run_ms"], usage["cpu_ms"], usage["peak_memory_mib"])
            if counted != one.usage:
                one.usage = counted
                self._reports.append(AttemptUsage(one.job, one.attempt, str(usage["boot"]), *counted))

    def _mourn(self, key: str, one: _Told) -> None:
        if one.ended or records.is_held(self._state, key):
            one.dead_since = 0.0
            return
        one.dead_since = one.dead_since or time.monotonic()
        if time.monotonic() - one.dead_since >= _MOURN_S:
            try:
                orphans.bury(self._state, key, patience_s=0.2)
            except OSError:
                return  # a full disk: tried again at the next refresh
            self.touch(key)

    def forget(self, key: str) -> int:
        """Acknowledge: 1 when `key` had an end on record, else 0 and nothing is changed. The rename is the whole of it."""
        found = records.read_attempt(self._state, key)
        if found is None or found.end is None:
            return 0
        for name in ("script", "stop", "usage"):
            _unlink(records.file_path(self._state, key, name))
        try:
            os.rename(os.path.join(self._state, "attempts", key), os.path.join(self._state, "kept", key))
        except FileNotFoundError:
            return 0
        self._told.pop(key, None)
        return 1


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _ended(job: int, attempt: int, end: dict[str, Any]) -> AttemptEnded:
    return AttemptEnded(
        job,
        attempt,
        str(end["boot"]),
        Outcome(end["outcome"]),
        int(end.get("exit_code", 0)),
        int(end.get("signal", 0)),
        int(end.get("run_ms", 0)),
        int(end.get("cpu_ms", 0)),
        int(end.get("peak_memory_mib", 0)),
        str(end.get("message", "")),
    )
