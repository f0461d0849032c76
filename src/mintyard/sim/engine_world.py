"""The engine's side of a simulation: what truly runs, whatever the hub believes, and the reports about it.

Reports are delayed, repeated, reordered and lost until asked again; orders are lost; agents restart; nodes vanish and come
back. The world itself checks the promise that matters most: no job ever has two attempts running at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random

import msgspec

from mintyard.domain.errors import EngineUnavailable, InvariantBroken
from mintyard.domain.jobs.reports import (
    AttemptEnded,
    AttemptStarted,
    AttemptUsage,
    NodeGone,
    NodeSeen,
    Outcome,
    Report,
)
from mintyard.domain.units import NS_PER_MS
from mintyard.ports.engine import AttemptKey, LogChunk, StartOrder, StopOrder

START_DELAY_MS = 4_000


class Attempt(msgspec.Struct):
    """The truth about one attempt. Instants in ns; `began_at` 0 while it waits to start."""

    order: StartOrder
    starts_at: int
    begun: bool = False
    began_at: int = 0
    ends_at: int = 0
    outcome: Outcome = Outcome.EXITED
    exit_code: int = 0
    boots: dict[str, int] = {}
    boot_began_at: int = 0
    ended: AttemptEnded | None = None


class EngineWorld:
    """A port `Engine` on a virtual clock, and the faults it is given by `random`."""

    name = "simulated"

    def __init__(self, random: Random, now: int, faults: float = 0.15) -> None:
        self.random = random
        self.now = now
        self.faults = faults
        self.inventory: dict[str, NodeSeen] = {}
        self.unreachable: set[str] = set()
        self.known: dict[tuple[int, int], Attempt] = {}
        self.fenced: set[tuple[int, int]] = set()
        self.mail: list[tuple[int, int, Report]] = []
        self.mail_number = 0
        self.down = False
        self.ends: dict[tuple[int, int], tuple[int, int]] = {}
        """(run time, time limit) in ms of every attempt that ended, kept for the final accounting."""
        for index in range(random.randint(2, 5)):
            node = NodeSeen(
                f"node-{index}",
                random.choice((4_000, 8_000, 16_000)),
                random.choice((8_192, 16_384)),
                random.choice((0, 2, 4, 8)),
                random.choice(("a100", "h100")),
            )
            self.inventory[node.node] = node if node.gpus else msgspec.structs.replace(node, gpu_model="")

    # --- the port ---------------------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeSeen]:
        self._answer()
        return [node for name, node in self.inventory.items() if name not in self.unreachable]

    def start(self, orders: Sequence[StartOrder]) -> None:
        self._answer()
        for order in orders:
            key = (order.job, order.attempt)
            if key in self.known or self._faulty():
                continue
            delay = self.random.randint(0, START_DELAY_MS) * NS_PER_MS
            attempt = self.known[key] = Attempt(order, self.now + delay)
            if key in self.fenced or self.random.random() < 0.03:
                self._end(
                    key,
                    attempt,
                    Outcome.NEVER_STARTED,
                    "it was stopped first" if key in self.fenced else "no such image",
                )

    def stop(self, orders: Sequence[StopOrder]) -> None:
        self._answer()
        for order in orders:
            key = (order.job, order.attempt)
            if self._faulty():
                continue
            self.fenced.add(key)
            attempt = self.known.get(key)
            if attempt is None:
                attempt = self.known[key] = Attempt(
                    StartOrder(order.job, order.attempt, "", "", (), 0, 0, 0, 0, 0, b""), self.now
                )
            if attempt.ended is None and not attempt.begun:
                self._end(key, attempt, Outcome.NEVER_STARTED, "it was stopped first")
            elif attempt.ended is None:
                attempt.ends_at = min(
                    attempt.ends_at, self.now + self.random.randint(0, order.grace_ms + 500) * NS_PER_MS
                )
                attempt.outcome = Outcome.STOPPED

    def poll(self, timeout_s: float) -> list[Report]:
        self._answer()
        due: list[Report] = []
        while self.mail and self.mail[0][0] <= self.now:
            due.append(heappop(self.mail)[2])
        if self.random.random() < 0.3:
            self.random.shuffle(due)
        return due

    def attempts(self) -> list[AttemptKey]:
        self._answer()
        for key, attempt in self.known.items():
            # Whatever was lost on the way is told again to a hub that asks.
            if attempt.ended is not None:
                self._send(attempt.ended)
            elif attempt.begun:
                self._send(AttemptStarted(*key, self._boot(key, attempt)))
        return [AttemptKey(*key) for key in self.known]

    def acknowledge(self, ended: Sequence[AttemptKey]) -> None:
        self._answer()
        for key in ended:
            attempt = self.known.get((key.job, key.attempt))
            if attempt is not None and attempt.ended is not None:
                del self.known[key.job, key.attempt]

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk:
        return LogChunk(b"", offset, True)

    def close(self) -> None:
        """Nothing is held."""

    # --- time and mishaps -------------------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Let the world run until `now`."""
        while True:
            step = min(
                (
                    at
                    for a in self.known.values()
                    if a.ended is None
                    for at in [a.ends_at if a.begun else a.starts_at]
                ),
                default=now + 1,
            )
            if step > now:
                break
            self.now = max(self.now, step)
            for key, attempt in list(self.known.items()):
                self._move(key, attempt)
        self.now = now

    def _move(self, key: tuple[int, int], attempt: Attempt) -> None:
        if attempt.ended is not None:
            return
        if not attempt.begun and attempt.starts_at <= self.now:
            if any(
                other.begun and other.ended is None for (job, _), other in self.known.items() if job == key[0]
            ):
                raise InvariantBroken(
                    why=f"job {key[0]} runs twice: attempt {key[1]} started while another is on"
                )
            self._begin(key, attempt)
        elif attempt.begun and attempt.ends_at <= self.now:
            self._end(key, attempt, attempt.outcome)

    def _begin(self, key: tuple[int, int], attempt: Attempt) -> None:
        limit = attempt.order.time_limit_ms
        length = self.random.choice(
            (self.random.randint(0, 2_000), self.random.randint(0, limit + limit // 4))
        )
        attempt.begun = True
        attempt.began_at = attempt.boot_began_at = self.now
        attempt.outcome = Outcome.EXITED if length < limit else Outcome.TIMED_OUT
        attempt.exit_code = self.random.choice((0, 0, 0, 0, 1, 137)) if length < limit else 0
        attempt.ends_at = self.now + min(length, limit + self.random.randint(0, 300)) * NS_PER_MS
        self._send(AttemptStarted(*key, self._boot(key, attempt)))

    def _boot(self, key: tuple[int, int], attempt: Attempt) -> str:
        return f"{key[0]}.{key[1]}.{len(attempt.boots)}"

    def _run_ms(self, attempt: Attempt) -> int:
        return (self.now - attempt.boot_began_at) // NS_PER_MS if attempt.begun else 0

    def _end(self, key: tuple[int, int], attempt: Attempt, outcome: Outcome, message: str = "") -> None:
        attempt.ended = AttemptEnded(
            *key,
            self._boot(key, attempt),
            outcome,
            attempt.exit_code if outcome is Outcome.EXITED else 0,
            15 if outcome is Outcome.STOPPED else 0,
            self._run_ms(attempt),
            message=message,
            earlier=dict(attempt.boots),
        )
        self.ends[key] = (attempt.ended.run_ms + sum(attempt.boots.values()), attempt.order.time_limit_ms)
        self._send(attempt.ended)

    def mishap(self) -> None:
        """One random event of the world: agent restart, usage report, node lost, node back, node dead, engine down or up."""
        kind = self.random.randrange(7)
        running = [(key, a) for key, a in self.known.items() if a.begun and a.ended is None]
        if kind == 0 and running:
            key, attempt = self.random.choice(running)
            attempt.boots[self._boot(key, attempt)] = self._run_ms(attempt)
            attempt.boot_began_at = self.now
        elif kind == 1:
            for key, attempt in running:
                self._send(AttemptUsage(*key, self._boot(key, attempt), self._run_ms(attempt)))
        elif kind == 2 and len(self.unreachable) < len(self.inventory) - 1:
            name = self.random.choice(sorted(self.inventory))
            self.unreachable.add(name)
            self._send(NodeGone(name))
        elif kind == 3:
            for name in sorted(self.unreachable):
                self._send(self.inventory[name])
            self.unreachable.clear()
        elif kind == 4 and self.random.random() < 0.3:
            self._kill_node(self.random.choice(sorted(self.inventory)))
        elif kind == 5:
            self.down = self.random.random() < 0.3
        elif kind == 6 and self.random.random() < 0.2:
            self.lose_mail()

    def _kill_node(self, name: str) -> None:
        for key, attempt in list(self.known.items()):
            if attempt.ended is None and any(member.node == name for member in attempt.order.members):
                self._end(key, attempt, Outcome.NODE_LOST, f"{name} died")

    def lose_mail(self) -> None:
        """The engine restarts: reports that were under way are gone."""
        self.mail.clear()

    def heal(self) -> None:
        """No more faults: used to let a run come to its end."""
        self.faults = 0.0
        self.down = False
        for name in sorted(self.unreachable):
            self._send(self.inventory[name])
        self.unreachable.clear()

    def _answer(self) -> None:
        if self.down:
            raise EngineUnavailable(engine=self.name, why="it is down")

    def _faulty(self) -> bool:
        return self.random.random() < self.faults

    def _send(self, report: Report) -> None:
        for _ in range(2 if self._faulty() else 1):
            if self._faulty() and not isinstance(report, NodeSeen):
                continue
            delay = self.random.randint(0, 2_000 if self._faulty() else 50) * NS_PER_MS
            self.mail_number += 1
            heappush(self.mail, (self.now + delay, self.mail_number, report))
