"""Local engine (feature E1): real processes on this machine, under supervisors that outlive the hub.

The state folder (`agent.records`) is the truth; hints from the fork server only make its reading prompt, so a lost hint
costs a second, never a report. Any number of engines may use one folder at once: claims decide. What runs and how is
the agent's; here orders become claims and files become reports.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mintyard.adapters.engines.attempts import AttemptTable
from mintyard.adapters.engines.connection import AgentConnection, Hint, connect, connect_to_running
from mintyard.adapters.engines.cores import Cores
from mintyard.adapters.engines.environment import inherited
from mintyard.adapters.engines.inventory import declared_nodes, machine_node
from mintyard.adapters.engines.orders import Unstartable, supervisor_spec
from mintyard.adapters.engines.retention import prune_claims, prune_logs
from mintyard.agent import kernel, records
from mintyard.agent.logs import open_within
from mintyard.domain.errors import EngineUnavailable, InvalidRequest, NotFound
from mintyard.domain.jobs.reports import NodeSeen, Report
from mintyard.domain.limits import MAX_FRAME_BYTES, MAX_GRACE_MS
from mintyard.ports.engine import AttemptKey, LogChunk, StartOrder, StopOrder

_TICK_S: Final = 1.0
_SEND_AGAIN_S: Final = 2.0
_PRUNE_EVERY: Final = 512
_KEEP_CLAIMS_DAYS: Final = 7.0


class _Pending:
    """An order that was sent and of which no claim is seen yet; its token lives only here and on the socket."""

    def __init__(self, spec: dict[str, Any], due: float) -> None:
        self.spec, self.due = spec, due


class LocalEngine:
    """The Engine port over a state folder (made 0700 when missing).

    `nodes`: declared virtual nodes (see `inventory.NodeOption`); none: this machine. `cgroup`: `auto`, `off`, or the
    folder of a delegated cgroup v2. `idle_s`: how long the fork server outlives its last use. `keep_attempts` and
    `keep_log_mib` (0: no bound) limit the logs of acknowledged attempts. Raises `EngineUnavailable`, `InvalidRequest`."""

    def __init__(
        self,
        state: str,
        *,
        name: str = "local",
        nodes: Sequence[Mapping[str, Any]] = (),
        labels: Sequence[str] = (),
        cgroup: str = "auto",
        idle_s: float = 30.0,
        keep_attempts: int = 10_000,
        keep_log_mib: int = 0,
    ) -> None:
        self.name = name
        self._state = os.path.abspath(state)
        self._cgroup, self._idle_s = cgroup, idle_s
        self._keep_attempts, self._keep_log_mib = keep_attempts, keep_log_mib
        self._nodes = {
            node.node: node for node in (declared_nodes(nodes) if nodes else [machine_node(labels)])
        }
        try:
            records.prepare(self._state)
            self._state_handle = os.open(self._state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise EngineUnavailable(
                engine=name, why=f"state folder {self._state}: {error.strerror}"
            ) from error
        self._base = inherited(os.environ)
        self._cores = Cores(os.sched_getaffinity(0))
        self._table = AttemptTable(self._state, self._cores)
        self._pending: dict[str, _Pending] = {}
        self._lock = threading.RLock()
        self._polling = threading.Lock()
        self._connection: AgentConnection | None = None
        self._broken: list[AgentConnection] = []
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._next_tick = 0.0
        self._acknowledged = 0
        self._closed = False

    def nodes(self) -> list[NodeSeen]:
        return list(self._nodes.values())

    # --- orders -----------------------------------------------------------------------------------------------------

    def start(self, orders: Sequence[StartOrder]) -> None:
        """As the port says. An order that can never start (bad payload, unknown node) ends NEVER_STARTED."""
        with self._lock:
            self._check_open()
            specs: list[dict[str, Any]] = []
            for order in orders:
                key = _checked_key(order.job, order.attempt)
                if key in self._pending or os.path.lexists(records.claim_path(self._state, key)):
                    continue
                cores = self._cores.take(key, order.cpus_milli, len(order.members))
                try:
                    spec = supervisor_spec(order, self._nodes, self._base, cores)
                except Unstartable as error:
                    self._cores.release(key)
                    self._prevent(key, str(error))
                    continue
                self._pending[key] = _Pending(spec, time.monotonic() + _SEND_AGAIN_S)
                specs.append(spec)
            if specs:
                self._send(specs)

    def stop(self, orders: Sequence[StopOrder]) -> None:
        with self._lock:
            self._check_open()
            for order in orders:
                key = _checked_key(order.job, order.attempt)
                self._pending.pop(key, None)
                if records.read_attempt(self._state, key) is None and self._prevent(
                    key, "stopped before it started"
                ):
                    continue
                self._stop_claimed(key, min(max(order.grace_ms, 0), MAX_GRACE_MS))

    def _stop_claimed(self, key: str, grace_ms: int) -> None:
        found = records.read_attempt(self._state, key)
        if found is None or not found.claim or found.end or not records.is_held(self._state, key):
            return
        try:
            records.write_record(records.file_path(self._state, key, "stop"), {"grace_ms": grace_ms})
        except OSError as error:
            why = f"the stop can't be written: {error.strerror}"
            raise EngineUnavailable(engine=self.name, why=why) from error
        kernel.signal_exactly(int(found.claim["pid"]), int(found.claim["started"]), signal.SIGUSR1)

    def _prevent(self, key: str, why: str) -> bool:
        """Take the claim of an attempt so that it can never start, and record that; False when it is claimed already."""
        boot = os.urandom(8).hex()
        end = {"boot": boot, "outcome": "never_started", "message": why[:2_000]}
        try:
            handle = records.claim(self._state, key, {"boot": boot, "machine": kernel.boot_id()}, end)
        except OSError as error:
            raise EngineUnavailable(engine=self.name, why=f"state folder: {error.strerror}") from error
        if handle is None:
            return False
        os.close(handle)
        self._table.touch(key)
        os.eventfd_write(self._wake, 1)
        return True

    def _send(self, specs: list[dict[str, Any]]) -> None:
        """Orders are idempotent, so a failure is answered by a new connection and everything once more."""
        messages = [{"op": "start", "spec": spec} for spec in specs]
        for trial in (1, 2):
            connection = self._connected()
            try:
                connection.send(messages)
                return
            except OSError as error:
                self._discard(connection)
                if trial == 2:
                    raise EngineUnavailable(
                        engine=self.name, why=f"its fork server broke off: {error}"
                    ) from error

    def _connected(self) -> AgentConnection:
        if self._connection is None:
            self._connection = connect(self._state, self._state_handle, self._idle_s, self._cgroup)
            os.eventfd_write(self._wake, 1)
        return self._connection

    def _discard(self, connection: AgentConnection) -> None:
        """Closed later by the poller, which may be waiting on its descriptor."""
        if self._connection is connection:
            self._connection = None
        self._broken.append(connection)
        os.eventfd_write(self._wake, 1)

    # --- reports ----------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Report]:
        deadline = time.monotonic() + max(0.0, timeout_s)
        with self._polling:
            while True:
                with self._lock:
                    self._check_open()
                    self._look()
                    reports = self._table.take_reports()
                    descriptors = [self._wake]
                    if self._connection is not None:
                        descriptors.append(self._connection.fileno())
                now = time.monotonic()
                if reports or now >= deadline:
                    return reports
                waiter = select.poll()
                for descriptor in descriptors:
                    waiter.register(descriptor, select.POLLIN)
                waiter.poll(max(0.0, min(deadline, self._next_tick) - now) * 1_000 + 1)

    def _look(self) -> None:
        for connection in self._broken:
            connection.close()
        self._broken.clear()
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        connection = self._connection
        if connection is not None:
            for hint in connection.hints():
                self._heed(hint)
            if connection.broken:
                connection.close()
                self._connection = None
        if time.monotonic() >= self._next_tick:
            self._refresh()
            self._send_again()
            if self._connection is None and self._table.any_live():
                # What an earlier engine started is then heard of at once, not by the second.
                self._connection = connect_to_running(self._state_handle)
            self._next_tick = time.monotonic() + _TICK_S

    def _refresh(self) -> None:
        try:
            self._table.refresh()
        except OSError as error:
            raise EngineUnavailable(engine=self.name, why=f"state folder: {error.strerror}") from error

    def _heed(self, hint: Hint) -> None:
        if hint.letter in "SEL":
            self._pending.pop(hint.key, None)
            self._table.touch(hint.key)
        # F (no claim: disk or process table full) stays pending and is sent again.

    def _send_again(self) -> None:
        now, due = time.monotonic(), list[dict[str, Any]]()
        for key, pending in list(self._pending.items()):
            if os.path.lexists(records.claim_path(self._state, key)):
                del self._pending[key]
                self._table.touch(key)
            elif now >= pending.due:
                pending.due = now + _SEND_AGAIN_S
                due.append(pending.spec)
        if due:
            self._send(due)

    def attempts(self) -> list[AttemptKey]:
        with self._lock:
            self._check_open()
            self._refresh()
            keys = self._table.keys() | {records.parse_key(key) for key in self._pending}
            return [AttemptKey(*key) for key in sorted(key for key in keys if key)]

    def acknowledge(self, ended: Sequence[AttemptKey]) -> None:
        with self._lock:
            self._check_open()
            for one in ended:
                try:
                    self._acknowledged += self._table.forget(_checked_key(one.job, one.attempt))
                except OSError as error:
                    raise EngineUnavailable(
                        engine=self.name, why=f"state folder: {error.strerror}"
                    ) from error
            if self._acknowledged >= _PRUNE_EVERY:
                self._acknowledged = 0
                self.prune()

    def prune(self) -> None:
        """Remove the logs and claims that retention no longer keeps; `acknowledge` does it now and then."""
        prune_logs(self._state, self._keep_attempts, self._keep_log_mib)
        prune_claims(self._state, _KEEP_CLAIMS_DAYS)

    # --- logs -------------------------------------------------------------------------------------------------------

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk:
        """As the port says; of a gang whose members name files of their own, the first member's is read.

        Raises also `InvalidRequest` for another stream, a negative offset or a limit outside 1 to 64 MiB."""
        if stream not in ("stdout", "stderr") or offset < 0 or not 0 < limit <= MAX_FRAME_BYTES:
            raise InvalidRequest(why="a log is read by stream stdout or stderr, offset from 0, limit from 1")
        name = _checked_key(key.job, key.attempt)
        attempt = records.read_attempt(self._state, name)
        if attempt is None and name in self._pending:
            return LogChunk(b"", offset, False)
        if attempt is None or attempt.forgotten:
            raise NotFound(what="log of attempt", name=name)
        ended = attempt.end is not None
        try:
            handle = _open_log(self._state, name, attempt, stream)
        except (OSError, ValueError):
            # Not yet made, or taken away or replaced by the job itself: nothing to show.
            return LogChunk(b"", offset, ended)
        try:
            data = os.pread(handle, limit, offset)
            size = os.fstat(handle).st_size
        finally:
            os.close(handle)
        return LogChunk(data, offset, ended and offset + len(data) >= size)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        with self._polling, self._lock:
            for connection in [*self._broken, *([self._connection] if self._connection else [])]:
                connection.close()
            self._broken.clear()
            self._connection = None
            os.close(self._wake)
            os.close(self._state_handle)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineUnavailable(engine=self.name, why="it is closed")


def _checked_key(job: int, attempt: int) -> str:
    if job < 0 or attempt < 0:
        raise InvalidRequest(why=f"job {job}, attempt {attempt}: neither can be negative")
    return records.key_of(job, attempt)


def _open_log(state: str, key: str, attempt: records.Attempt, stream: str) -> int:
    started = attempt.started or {}
    names = started.get(stream) or [""]
    if names[0]:
        return open_within(str(started["workdir"]), str(names[0]), os.O_RDONLY)
    return os.open(records.file_path(state, key, stream), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
