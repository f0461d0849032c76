"""Simulated engine: the port over a virtual clock; runs nothing, draws no random number, reads no clock of its own.

What an attempt does comes from a function of its order, by default from its script: `sim: run_ms=3000, exit=1`. What
outlives the engine object is a `SimulatedCluster`, as the state folder does for the local one: open another engine
on the same cluster to simulate a restart of the hub. Faults beyond the port's own are `faulty.FaultyEngine`'s.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from mintyard.domain.errors import EngineUnavailable, InvalidRequest, NotFound
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
from mintyard.wire.launch import decode_launch

Key = tuple[int, int]


class Course(msgspec.Struct, frozen=True):
    """What would happen to an attempt left alone. `start_delay_ms` lies between the order and the claim's winner running.

    `ignores_term` makes a stop take its whole grace; `peak_memory_mib` above the order's memory ends it OUT_OF_MEMORY
    at `run_ms`; `failed_member` names the gang member whose `exit_code` or `signal` it is. `stdout` is its log."""

    run_ms: int = 1_000
    exit_code: int = 0
    signal: int = 0
    start_delay_ms: int = 0
    peak_memory_mib: int = 0
    ignores_term: bool = False
    failed_member: int = 0
    never_started: str = ""
    stdout: str = ""


_FIELD = re.compile(r"\s*([a-z_]+)\s*=\s*([^,\s]+)\s*")
_WORDS = {"exit": "exit_code", "member": "failed_member", "memory_mib": "peak_memory_mib"}


def scripted_course(order: StartOrder) -> Course:
    """The course that `order.payload` asks for: a script `sim: run_ms=5, exit=1, signal=9, memory_mib=64,
    start_delay_ms=5, ignores_term=1, member=2`; an order without one runs a second and exits 0."""
    try:
        launch = decode_launch(order.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Course(never_started=f"the payload is no launch: {error}")
    line = next((line[4:] for line in launch.script.splitlines() if line.startswith("sim:")), "")
    if not line:
        return Course(stdout=launch.script)
    values: dict[str, Any] = {}
    for part in line.split(","):
        match = _FIELD.fullmatch(part)
        if match is None:
            return Course(never_started=f"the script's sim line is malformed at {part.strip()!r}")
        values[_WORDS.get(match[1], match[1])] = match[2]
    try:
        return msgspec.convert(values, Course, strict=False)
    except msgspec.ValidationError as error:
        return Course(never_started=f"the script's sim line is malformed: {error}")


class _Attempt:
    """A claimed attempt. Instants in ms of the virtual clock; `ends_ms` may come forward by a stop or a lost node."""

    def __init__(self, order: StartOrder, course: Course, claimed_ms: int, boot: str) -> None:
        self.order, self.course, self.boot = order, course, boot
        self.begins_ms = claimed_ms + course.start_delay_ms
        self.outcome, self.exit_code, self.signal, self.message = (
            Outcome.EXITED,
            course.exit_code,
            course.signal,
            "",
        )
        run_ms = course.run_ms
        if course.signal or course.exit_code:
            how = f"signal {course.signal}" if course.signal else f"{course.exit_code}"
            self.message = f"member {course.failed_member} ended with {how}" if len(order.members) > 1 else ""
        if order.memory_mib and course.peak_memory_mib > order.memory_mib * len(order.members):
            self.outcome, self.exit_code, self.signal = Outcome.OUT_OF_MEMORY, 0, 9
            self.message = "used more memory than it asked for"
        if order.time_limit_ms and run_ms > order.time_limit_ms:
            self._cut(Outcome.TIMED_OUT, "reached its time limit")
            run_ms = order.time_limit_ms + (order.grace_ms if course.ignores_term else 0)
        self.ends_ms = self.begins_ms + run_ms
        self.ended = self.acknowledged = self.cut_short = False
        self.run_ms = 0

    def _cut(self, outcome: Outcome, message: str) -> None:
        self.outcome, self.message, self.exit_code = outcome, message, 0
        self.signal = 9 if self.course.ignores_term else 15

    def stop(self, now_ms: int, grace_ms: int) -> None:
        ends_ms = now_ms + (grace_ms if self.course.ignores_term else 0)
        if ends_ms >= self.ends_ms:
            return
        self.ends_ms = ends_ms
        if self.outcome is not Outcome.TIMED_OUT or now_ms < self.begins_ms + self.order.time_limit_ms:
            self._cut(Outcome.STOPPED, "")

    def lose(self, now_ms: int) -> None:
        self.outcome, self.exit_code, self.signal, self.message = Outcome.NODE_LOST, 0, 0, "the node was lost"
        self.ends_ms = now_ms


class SimulatedCluster:
    """Nodes, claims and attempts: what is still there when an engine object goes. `clock_ns` is the virtual clock."""

    def __init__(
        self,
        clock_ns: Callable[[], int],
        nodes: Iterable[NodeSeen],
        course: Callable[[StartOrder], Course] = scripted_course,
        usage_every_ms: int = 60_000,
    ) -> None:
        self.clock_ns, self.course, self.usage_every_ms = clock_ns, course, usage_every_ms
        self.nodes = {node.node: node for node in nodes}
        self.gone: set[str] = set()
        self.attempts: dict[Key, _Attempt] = {}
        self.down = ""
        self.boots = 0

    def now_ms(self) -> int:
        return self.clock_ns() // NS_PER_MS

    def lose_node(self, node: str, confirmed: bool = True) -> None:
        """`node` vanishes. `confirmed`: the engine is sure that nothing runs there; else its attempts run on unseen."""
        self.gone.add(node)
        now_ms = self.now_ms()
        for one in self.attempts.values():
            if confirmed and not one.ended and any(member.node == node for member in one.order.members):
                one.lose(now_ms)

    def return_node(self, node: str) -> None:
        self.gone.discard(node)

    def next_event_ms(self) -> int | None:
        """When the next attempt begins or ends, for a simulator that jumps from event to event; None: never."""
        now_ms = self.now_ms()
        times = [
            t
            for one in self.attempts.values()
            if not one.ended
            for t in (one.begins_ms, one.ends_ms)
            if t > now_ms
        ]
        return min(times, default=None)

    def claim(self, order: StartOrder) -> bool:
        key = (order.job, order.attempt)
        if key in self.attempts:
            return False
        self.boots += 1
        course = self.course(order)
        known = [self.nodes.get(member.node) for member in order.members]
        if not course.never_started and (
            not known or None in known or self.gone & {m.node for m in order.members}
        ):
            course = Course(never_started="there is no such node here")
        self.attempts[key] = _Attempt(order, course, self.now_ms(), f"sim-{self.boots}")
        return True


class SimulatedEngine:
    """The Engine port over a `SimulatedCluster`; `poll` never waits, since only its owner moves the clock."""

    def __init__(self, cluster: SimulatedCluster, *, name: str = "simulated") -> None:
        self.name = name
        self.cluster = cluster
        self._told_start: set[Key] = set()
        self._told_end: set[Key] = set()
        self._told_usage: dict[Key, int] = {}
        self._told_gone: set[str] = set()
        self._due: list[tuple[int, Key]] = []
        self._closed = False
        for key in cluster.attempts:
            self._watch(key)

    def _check(self) -> None:
        if self._closed or self.cluster.down:
            raise EngineUnavailable(engine=self.name, why=self.cluster.down or "it is closed")

    def _watch(self, key: Key) -> None:
        one = self.cluster.attempts[key]
        if not one.acknowledged:
            for at_ms in (one.begins_ms, one.ends_ms):
                heapq.heappush(self._due, (at_ms, key))

    def nodes(self) -> list[NodeSeen]:
        self._check()
        return [node for name, node in self.cluster.nodes.items() if name not in self.cluster.gone]

    def start(self, orders: Sequence[StartOrder]) -> None:
        self._check()
        for order in orders:
            if order.job < 0 or order.attempt < 0:
                raise InvalidRequest(why=f"job {order.job}, attempt {order.attempt}: neither can be negative")
            self.cluster.claim(order)
            self._watch((order.job, order.attempt))

    def stop(self, orders: Sequence[StopOrder]) -> None:
        self._check()
        now_ms = self.cluster.now_ms()
        for order in orders:
            key = (order.job, order.attempt)
            one = self.cluster.attempts.get(key)
            if one is None:
                never = StartOrder(order.job, order.attempt, "", "", (), 0, 0, 0, 0, 0, b"")
                course = Course(never_started="stopped before it started")
                self.cluster.attempts[key] = _Attempt(never, course, now_ms, "sim-stop")
            elif not one.ended:
                if now_ms < one.begins_ms:
                    one.course = Course(never_started="stopped before it started")
                one.stop(now_ms, order.grace_ms)
            self._watch(key)

    def poll(self, timeout_s: float) -> list[Report]:
        self._check()
        cluster, now_ms = self.cluster, self.cluster.now_ms()
        gone, back = sorted(cluster.gone - self._told_gone), sorted(self._told_gone - cluster.gone)
        reports: list[Report] = [*(NodeGone(node) for node in gone), *(cluster.nodes[node] for node in back)]
        for key, one in cluster.attempts.items() if gone or back else ():
            # What is known of them changes with their nodes: look at them now.
            if not one.acknowledged and any(
                member.node in gone or member.node in back for member in one.order.members
            ):
                heapq.heappush(self._due, (now_ms, key))
        self._told_gone = set(cluster.gone)
        while self._due and self._due[0][0] <= now_ms:
            reports.extend(self._advance(heapq.heappop(self._due)[1], now_ms))
        for key, at_ms in list(self._told_usage.items()):
            if now_ms - at_ms >= cluster.usage_every_ms and not self._hidden(cluster.attempts[key]):
                self._told_usage[key] = now_ms
                one = cluster.attempts[key]
                run_ms = now_ms - one.begins_ms
                reports.append(
                    AttemptUsage(*key, one.boot, run_ms, _cpu_ms(one, run_ms), one.course.peak_memory_mib)
                )
        return reports

    def _hidden(self, one: _Attempt) -> bool:
        """Nothing is heard from a node that is gone, but what the engine is sure of without it."""
        sure = one.outcome is Outcome.NODE_LOST or bool(one.course.never_started)
        return not sure and any(m.node in self.cluster.gone for m in one.order.members)

    def _advance(self, key: Key, now_ms: int) -> list[Report]:
        one = self.cluster.attempts[key]
        if one.acknowledged or key in self._told_end:
            return []
        if self._hidden(one):
            return []  # looked at again when its node is back
        reports: list[Report] = []
        never = one.course.never_started
        ran = not never and one.begins_ms <= one.ends_ms
        if ran and one.begins_ms <= now_ms and key not in self._told_start:
            self._told_start.add(key)
            self._told_usage[key] = one.begins_ms
            reports.append(AttemptStarted(*key, one.boot))
        if never or one.ends_ms <= now_ms:
            one.ended = True
            self._told_end.add(key)
            self._told_usage.pop(key, None)
            if never:
                reports.append(AttemptEnded(*key, one.boot, Outcome.NEVER_STARTED, message=never))
            else:
                one.run_ms = max(0, one.ends_ms - one.begins_ms)
                cpu_ms, peak = _cpu_ms(one, one.run_ms), one.course.peak_memory_mib
                how = (one.outcome, one.exit_code, one.signal, one.run_ms, cpu_ms, peak, one.message)
                reports.append(AttemptEnded(*key, one.boot, *how))
        return reports

    def attempts(self) -> list[AttemptKey]:
        self._check()
        return [
            AttemptKey(*key) for key, one in sorted(self.cluster.attempts.items()) if not one.acknowledged
        ]

    def acknowledge(self, ended: Sequence[AttemptKey]) -> None:
        self._check()
        for key in ended:
            one = self.cluster.attempts.get((key.job, key.attempt))
            if one is not None and one.ended:
                one.acknowledged = True

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk:
        self._check()
        if stream not in ("stdout", "stderr") or offset < 0 or limit < 1:
            raise InvalidRequest(why="a log is read by stream stdout or stderr, offset from 0, limit from 1")
        one = self.cluster.attempts.get((key.job, key.attempt))
        if one is None:
            raise NotFound(what="log of attempt", name=f"{key.job}.{key.attempt}")
        text = one.course.stdout.encode() if stream == "stdout" else b""
        data = text[offset : offset + limit]
        return LogChunk(data, offset, one.ended and offset + len(data) >= len(text))

    def close(self) -> None:
        self._closed = True


def _cpu_ms(one: _Attempt, run_ms: int) -> int:
    return run_ms * one.order.cpus_milli * len(one.order.members) // 1_000


def open_simulated(
    nodes: Iterable[NodeSeen],
    clock_ns: Callable[[], int],
    course: Callable[[StartOrder], Course] = scripted_course,
) -> SimulatedEngine:
    """A simulated engine on a cluster of its own."""
    return SimulatedEngine(SimulatedCluster(clock_ns, nodes, course))
