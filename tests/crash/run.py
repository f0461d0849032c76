"""One crash run: start a hub, let people use it, kill it N times, and look at everything afterwards."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.crash.checks import Report, check_all, check_meanwhile
from tests.crash.evidence import Evidence
from tests.crash.live_hub import LiveHub
from tests.crash.people import Memory, Person
from tests.crash.tenants import onboard

OTHERS = ("api-0", "api-1", "projector", "planner", "fork-server", "up")
"""What is killed beside the writer, at random; `up` is the supervisor of all, after which the hub is started by hand."""
_OTHER_CHANCE = 0.5
_TWICE_CHANCE = 0.15
_LOAD_S = (0.2, 1.6)


class CrashRun:
    """`run()` returns the report; `told` hears a line after each kill."""

    def __init__(
        self, folder: Path, kills: int, seed: int, told: Callable[[str], None] = lambda line: None
    ) -> None:
        self.folder, self.kills, self.seed = folder, kills, seed
        self.told = told
        self.rng = random.Random(seed)
        self.hub = LiveHub(folder / "hub", restart_pause_s=0.2, lease_ms=2_000)
        self.memory = Memory()
        self.ledger = folder / "evidence"
        self.killed: Counter[str] = Counter()
        self.ran_at_kill: dict[tuple[int, int], int] = {}
        self.down_s: list[float] = []
        self.people: list[Person] = []
        self.checked = 0

    def run(self) -> Report:
        try:
            self.hub.start()
            tokens = onboard(self.hub)
            keys = self.hub.admin.keys
            assert keys is not None
            for number in range(6):
                account = sorted(tokens)[number % len(tokens)]
                person = Person(
                    self.hub,
                    self.memory,
                    number,
                    account,
                    tokens[account],
                    keys,
                    self.folder,
                    self.seed * 1_000 + number,
                )
                self.people.append(person)
                person.start()
            while self.killed["writer"] < self.kills:
                self._round()
            self._stop_people()
            return check_all(self)
        finally:
            for person in self.people:
                person.stopping.set()
            self.hub.destroy()

    # --- killing ----------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        time.sleep(self.rng.uniform(*_LOAD_S))
        if self.rng.random() < _OTHER_CHANCE:
            self._kill(self.rng.choice(OTHERS))
            time.sleep(self.rng.uniform(0, 0.5))
        self._note_running()
        began = time.monotonic()
        pid = self._kill("writer")
        if self.rng.random() < _TWICE_CHANCE and self.killed["writer"] < self.kills:
            # Once more while it recovers.
            self.hub.wait_for_restart("writer", pid)
            time.sleep(self.rng.uniform(0, 3))
            pid = self._kill("writer")
        self.hub.wait_for_restart("writer", pid)
        self.hub.wait_until_it_answers()
        self.down_s.append(time.monotonic() - began)
        found = check_meanwhile(self)
        self.told(
            f"{self.killed['writer']}/{self.kills} kills, {len(self.memory.jobs)} requests taken, {found}"
        )

    def _note_running(self) -> None:
        """What runs now must go on: the same processes, to their own end."""
        for key, pid in Evidence(self.ledger).running().items():
            if psutil.pid_exists(pid):
                self.ran_at_kill.setdefault(key, pid)

    def _kill(self, role: str) -> int | None:
        """Kill it; its pid, None when it wasn't up."""
        if role == "up":
            return self._kill_supervisor()
        pid = self.hub.kill(role)
        if pid is not None:
            self.killed[role] += 1
        return pid

    def _kill_supervisor(self) -> int:
        """Its processes end by themselves when it is gone; jobs and fork server stay."""
        process = self.hub.process
        assert process is not None
        children = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self.killed["up"] += 1
        _, alive = psutil.wait_procs(children, timeout=30)
        if alive:
            self.memory.fault(f"processes outlive their killed supervisor: {alive}")
        self.hub.start()
        return process.pid

    def _stop_people(self) -> None:
        for person in self.people:
            person.stopping.set()
        for person in self.people:
            person.join(180)
            if person.is_alive():
                self.memory.fault(f"{person.name} hangs")
