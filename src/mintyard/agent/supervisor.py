"""Supervisor: one small process per attempt that wins its claim, runs its members, bounds them and records the end.

It owns everything below it (it is their subreaper), enforces time and memory limits on the boot clock, and writes the
end durably before it goes; it needs neither the hub nor the fork server. An attempt is over when `wait4` says that no
child is left, which is exact: orphans come back to their subreaper.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from typing import Any

from mintyard.agent import kernel, logs, member, records
from mintyard.agent.cgroup import Group

EXITED, TIMED_OUT, STOPPED = "exited", "timed_out", "stopped"
OUT_OF_MEMORY, NODE_LOST, NEVER_STARTED = "out_of_memory", "node_lost", "never_started"
TERMINATED = "terminated"
"""Recorded as an exit of user code."""
_AWAITED = frozenset({signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM})
_USAGE_MS = 1_000
_DURABLE_USAGE_MS = 15_000
_KILL_AGAIN_MS = 20
_RETRY_S = 1.0
PORTS = range(20_000, 32_000)
"""Where MASTER_PORT is taken from: below Linux's ephemeral range, so that no outgoing connection takes it first."""


class CannotStart(Exception):
    """User code was not run, and won't be."""


def free_port(seed: int) -> tuple[int, socket.socket | None]:
    """A port nobody listens on, and a lock that keeps other supervisors of this machine from taking it as well."""
    for step in range(len(PORTS)):
        port = PORTS[(seed * 7_919 + step) % len(PORTS)]
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(f"\0mintyard-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            lock.close()
            continue
        return port, lock
    raise CannotStart("no free port for MASTER_PORT")


class Supervisor:
    """One attempt, from its claim to its end. `notify` carries hints to the fork server and may fail silently."""

    def __init__(self, state: str, spec: dict[str, Any], cgroup_base: str, notices: int) -> None:
        self.state, self.spec, self.key = state, spec, spec["key"]
        self.boot = os.urandom(8).hex()
        self.cgroup_base, self.notices = cgroup_base, notices
        self.claim_handle = -1
        self.group = Group("", "", 0)
        self.alive: dict[int, int] = {}
        self.status: list[int] = []
        self.cause = ""
        self.exit: tuple[int, int, str] | None = None
        self.begun_ms: int | None = None
        self.kill_at_ms: int | None = None
        self.usage_at_ms = self.durable_at_ms = self.watch_at_ms = 0
        self.cpu_ms = self.peak_mib = 0
        self.memory_mib = spec["memory_mib"] * len(spec["members"])
        self.port_lock: socket.socket | None = None

    def notify(self, letter: str, text: str = "") -> None:
        try:
            os.write(self.notices, f"{letter} {self.key} {text}"[:500].replace("\n", " ").encode() + b"\n")
        except OSError:
            pass

    # --- claim and start --------------------------------------------------------------------------------------------

    def claim(self) -> bool:
        """Whether this process may run the attempt. The held lock lives in a descriptor that only ends with it."""
        pid = os.getpid()
        content = {
            "pid": pid,
            "started": kernel.start_time(pid),
            "boot": self.boot,
            "machine": kernel.boot_id(),
        }
        held = records.claim(self.state, self.key, content)
        if held is None:
            self.notify("L")
            return False
        self.claim_handle = held
        return True

    def launch(self) -> None:
        """Start all members or none. Raises CannotStart, OSError."""
        spec = self.spec
        self._prepare_folder()
        if spec["script"]:
            path = records.file_path(self.state, self.key, "script")
            with open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o700), "w"
            ) as file:
                file.write(spec["script"])
        argv = member.command_of(spec, records.file_path(self.state, self.key, "script"))
        port, self.port_lock = (
            free_port(spec["job"] * 31 + spec["attempt"]) if len(spec["members"]) > 1 else (0, None)
        )
        self.group = Group(self.cgroup_base, self.key, self.memory_mib)
        barrier_r, barrier_w = os.pipe()
        opened: set[str] = set()
        logs_of = [self._open_logs(opened, one) for one in spec["members"]]
        for index, one in enumerate(spec["members"]):
            one["env"]["MINTYARD_MARK"] = self.boot
            if port:
                one["env"]["MASTER_PORT"] = str(port)
            self._fork(index, one, argv, logs_of[index], (barrier_r, barrier_w))
        os.close(barrier_r)
        for handles in logs_of:
            for handle in handles:
                os.close(handle)
        for handle in self.status:
            answer = os.read(handle, 4_096)
            if answer != b"r":
                raise CannotStart(
                    answer[2:].decode(errors="replace") or "a member died before it could start"
                )
        if os.path.exists(records.file_path(self.state, self.key, "stop")):
            raise CannotStart("stopped before it started")
        # Recorded before the barrier opens: whoever finds no `started` may be sure that no user code ran.
        names = {stream: [one[stream] for one in spec["members"]] for stream in ("stdout", "stderr")}
        started = {
            "boot": self.boot,
            "workdir": spec["workdir"],
            "cores": [m["cores"] for m in spec["members"]],
            "cgroup": self.group.path,
            **names,
        }
        records.write_started(self.claim_handle, started)
        self.begun_ms = kernel.boot_clock_ms()
        self.usage_at_ms = self.begun_ms + _USAGE_MS
        self.durable_at_ms = self.begun_ms + _DURABLE_USAGE_MS
        os.write(barrier_w, b"g" * len(spec["members"]))
        os.close(barrier_w)
        self._await_execution()
        self.notify("S")

    def _prepare_folder(self) -> None:
        if not self.spec["workdir"]:
            self.spec["workdir"] = os.path.join(self.state, "work", str(self.spec["job"]))
            os.makedirs(self.spec["workdir"], mode=0o700, exist_ok=True)
            if self.spec["slurm"]:
                for one in self.spec["members"]:
                    one["env"].setdefault("SLURM_SUBMIT_DIR", self.spec["workdir"])
        workdir = self.spec["workdir"]
        if not os.path.isabs(workdir):
            raise CannotStart(f"the working folder {workdir!r} is not an absolute path")
        if not os.path.isdir(workdir):
            raise CannotStart(f"the working folder {workdir!r} does not exist")
        if not os.access(workdir, os.X_OK):
            raise CannotStart(f"the working folder {workdir!r} may not be entered")

    def _open_logs(self, opened: set[str], one: dict[str, Any]) -> tuple[int, int]:
        """Descriptors of stdout and stderr. As with sbatch, a named file starts empty, and a later attempt appends."""
        handles: list[int] = []
        for stream in ("stdout", "stderr"):
            flags, name = os.O_WRONLY | os.O_CREAT | os.O_APPEND, one[stream]
            try:
                if not name:
                    path = records.file_path(self.state, self.key, stream)
                    handles.append(os.open(path, flags | os.O_CLOEXEC, 0o600))
                    continue
                if self.spec["attempt"] == 1 and name not in opened:
                    flags |= os.O_TRUNC
                opened.add(name)
                handles.append(logs.open_within(self.spec["workdir"], name, flags))
            except (OSError, ValueError) as error:
                raise CannotStart(f"{stream} {name!r} can't be opened: {error}") from error
        return handles[0], handles[1]

    def _fork(
        self,
        index: int,
        one: dict[str, Any],
        argv: list[str],
        handles: tuple[int, int],
        barrier: tuple[int, int],
    ) -> None:
        status_r, status_w = os.pipe()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            raise CannotStart(f"no process for member {index}: {error.strerror}") from error
        if pid == 0:
            os.close(barrier[1])
            member.become(self.spec, one, argv, member.Streams(*handles, status_w, barrier[0]), parent)
        os.close(status_w)
        self.status.append(status_r)
        self.alive[pid] = index
        self.group.add(pid)

    def _await_execution(self) -> None:
        """Until each member became user code or failed to; a failure is an exit with 126 or 127 and its reason."""
        for index, handle in enumerate(self.status):
            answer = os.read(handle, 4_096)
            os.close(handle)
            if answer[:1] == b"x" and self.exit is None:
                where = f"member {index}: " if len(self.status) > 1 else ""
                self.exit = (answer[1], 0, where + answer[2:].decode(errors="replace"))

    # --- watch ------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Return when nothing of the attempt is left."""
        limit_ms = (self.begun_ms or 0) + self.spec["time_limit_ms"]
        while self._reap():
            now = kernel.boot_clock_ms()
            if self.alive and not self.cause and self.spec["time_limit_ms"] and now >= limit_ms:
                self._end(TIMED_OUT, self.spec["grace_ms"])
            if self.kill_at_ms is not None and now >= self.kill_at_ms:
                self._kill()
                self.kill_at_ms = now + _KILL_AGAIN_MS
            if now >= self.watch_at_ms:
                self._sample(now)
            due = [self.watch_at_ms, self.kill_at_ms or self.watch_at_ms]
            if self.alive and not self.cause and self.spec["time_limit_ms"]:
                due.append(limit_ms)
            wait_s = max(0.0, min(due) - kernel.boot_clock_ms()) / 1_000
            caught = signal.sigtimedwait(_AWAITED, min(wait_s, 1.0))
            if caught is not None and caught.si_signo != signal.SIGCHLD:
                self._asked_to_stop(caught.si_signo, caught.si_pid)

    def _reap(self) -> bool:
        """Collect what ended; False when no child is left."""
        while True:
            try:
                pid, status, _ = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            index = self.alive.pop(pid, None)
            if index is not None:
                self._member_ended(index, os.waitstatus_to_exitcode(status))

    def _member_ended(self, index: int, code: int) -> None:
        if not self.cause and code == -signal.SIGKILL and self.group.kernel_killed():
            self.cause = OUT_OF_MEMORY
        members = len(self.spec["members"])
        if code and self.exit is None:
            how = f"signal {-code}" if code < 0 else f"{code}"
            why = f"member {index} ended with {how}" if members > 1 else ""
            self.exit = (max(code, 0), max(-code, 0), why)
        if (code or not self.alive) and self.kill_at_ms is None:
            # One member's failure is the gang's; and what a finished job left in the background ends with it.
            self._terminate(self.spec["grace_ms"])

    def _asked_to_stop(self, number: int, sender: int) -> None:
        if number == signal.SIGTERM:
            # init (or the kernel, 0) shuts the node down. What the job itself sends, or a process that is gone, is no loss
            # of the node, which is free of charge.
            foreign = sender in (0, 1) or (
                kernel.start_time(sender) != 0 and sender not in kernel.descendants(os.getpid())
            )
            self._end(NODE_LOST if foreign else TERMINATED, self.spec["grace_ms"])
            return
        stop = records.read_record(records.file_path(self.state, self.key, "stop")) or {}
        self._end(STOPPED, int(stop.get("grace_ms", self.spec["grace_ms"])))

    def _end(self, cause: str, grace_ms: int) -> None:
        if self.alive and not self.cause:
            self.cause = cause
        self._terminate(grace_ms)

    def _terminate(self, grace_ms: int) -> None:
        due = kernel.boot_clock_ms() + grace_ms
        if self.kill_at_ms is None or due < self.kill_at_ms:
            self.kill_at_ms = due
            below = kernel.descendants(os.getpid())
            kernel.signal_all(below, signal.SIGTERM)
            kernel.signal_all(below, signal.SIGCONT)

    def _kill(self) -> None:
        self.group.kill()
        kernel.signal_all(kernel.descendants(os.getpid()), signal.SIGKILL)

    def _sample(self, now: int) -> None:
        below = kernel.descendants(os.getpid())
        used = kernel.resident_mib(below)
        if self.memory_mib and used > self.memory_mib and not self.group.limits_memory:
            # Forked pages are counted for each process; before killing for it, count them exactly.
            used = kernel.proportional_mib(below)
            if used > self.memory_mib:
                self._end(OUT_OF_MEMORY, 0)
        self.peak_mib = max(self.peak_mib, used)
        near = self.memory_mib and not self.group.limits_memory and used * 2 > self.memory_mib
        bounded = self.memory_mib and not self.group.limits_memory
        self.watch_at_ms = now + (50 if near else 200 if bounded else _USAGE_MS)
        if now >= self.usage_at_ms:
            self.usage_at_ms = now + _USAGE_MS
            self.cpu_ms = max(self.cpu_ms, kernel.cpu_ms(below) + _reaped_cpu_ms())
            durable = now >= self.durable_at_ms
            if durable:
                self.durable_at_ms = now + _DURABLE_USAGE_MS
            try:
                records.write_record(
                    records.file_path(self.state, self.key, "usage"), self._counters(), durable
                )
            except OSError as error:
                self.notify("X", f"usage: {error.strerror}")

    def _counters(self) -> dict[str, Any]:
        run_ms = kernel.boot_clock_ms() - self.begun_ms if self.begun_ms is not None else 0
        return {"boot": self.boot, "run_ms": run_ms, "cpu_ms": self.cpu_ms, "peak_memory_mib": self.peak_mib}

    # --- end --------------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Kill and reap all that is left; used before user code ran, or after a fault of ours."""
        while self._left():
            self._kill()
            time.sleep(_KILL_AGAIN_MS / 1_000)

    def _left(self) -> bool:
        try:
            while os.wait4(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True

    def record(self, outcome: str, message: str) -> None:
        """Write the end, however long the disk refuses; until then the attempt counts as running, never as forgotten."""
        if self.begun_ms is not None:
            self.cpu_ms = max(self.cpu_ms, _reaped_cpu_ms())
            peak_one = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
            self.peak_mib = max(self.peak_mib, peak_one, self.group.peak_mib())
        code, number, why = self.exit or (0, 0, "")
        end = {
            **self._counters(),
            "outcome": outcome,
            "exit_code": code,
            "signal": number,
            "message": (message or why)[:2_000],
        }
        while True:
            try:
                records.write_end(self.claim_handle, end)
                break
            except OSError as error:
                self.notify("X", f"end: {error.strerror}")
                time.sleep(_RETRY_S)
        self.group.remove()
        self.notify("E")


def _reaped_cpu_ms() -> int:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((usage.ru_utime + usage.ru_stime) * 1_000)


_MESSAGES = {
    TIMED_OUT: "reached its time limit",
    OUT_OF_MEMORY: "used more memory than it asked for",
    NODE_LOST: "the node was shut down",
    TERMINATED: "its supervisor was asked to end",
}


def supervise(state: str, spec: dict[str, Any], cgroup_base: str, notices: int) -> int:
    """Run one attempt to its end; the exit status of this process: 0 recorded, 1 not claimed."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    kernel.become_subreaper()
    one = Supervisor(state, spec, cgroup_base, notices)
    try:
        if not one.claim():
            return 0
    except OSError as error:
        one.notify("F", f"the claim can't be written: {error.strerror}")
        return 0
    try:
        one.launch()
        one.watch()
    except CannotStart as error:
        one.abandon()
        one.record(NEVER_STARTED, str(error))
    except Exception as error:  # noqa: BLE001  whatever went wrong here, the attempt must not run on unwatched
        one.abandon()
        outcome = NEVER_STARTED if one.begun_ms is None else NODE_LOST
        one.record(outcome, f"the supervisor failed: {type(error).__name__}: {error}")
    else:
        cause = one.cause or EXITED
        one.record(EXITED if cause == TERMINATED else cause, _MESSAGES.get(cause, ""))
    return 0
