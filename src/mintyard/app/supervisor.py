"""Supervisor: `mintyard up`. Starts a hub's processes, watches them, starts again what dies, and stops them in order.

It holds the folder's lock and the listening socket, which API workers inherit, so no connection is refused while one of them
is replaced. It reads and decides nothing. A process that dies is started again after a pause that grows; one that never
comes up ends the hub. TERM or INT: API workers finish what they have, then the writer commits and gives its lease back; jobs go
on. A second one hurries. Processes end by themselves when the supervisor is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
import structlog

import mintyard
from mintyard.app.bootstrap import prepare_folder
from mintyard.app.config import Config
from mintyard.app.engines import kinds
from mintyard.app.instance import Ready, clear_ready, sole_instance, write_ready, write_running
from mintyard.app.journal_store import schemes
from mintyard.app.kernel_cache import use_kernel_cache
from mintyard.domain.errors import ConfigInvalid, Exit

_log = structlog.get_logger(__name__)
_PR_SET_PDEATHSIG: Final = 1
_LIVED_LONG_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.1
MAX_FIRST_TRIES: Final = 3
_INCURABLE: Final = frozenset({Exit.USAGE, Exit.VERIFICATION, Exit.BROKEN})
"""Exit statuses that another try can't change: a bad setting, damaged keys, a damaged journal."""
START_TIMEOUT_S: Final = 120.0
_LOOK_S: Final = 0.05
_KILL_AFTER_S: Final = 5.0
_BACKLOG: Final = 2_048


class Child:
    """One process of the hub. `ready_file` exists, with its process id, once it is up."""

    def __init__(self, name: str, command: list[str], config: Config, pass_fds: tuple[int, ...] = ()) -> None:
        self.name = name
        self.command = command
        self.ready_file = config.run_folder / f"{name}.ready"
        self.process: subprocess.Popen[bytes] | None = None
        self.tries = 0
        self.was_ready = False
        self._pass_fds = pass_fds
        self._longest_pause_s = config.restart_pause_s
        self._started_at = 0.0

    def start(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        self._started_at = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            pass_fds=self._pass_fds,
            start_new_session=True,  # a terminal's interrupt is for the supervisor, which stops them in order
            preexec_fn=_end_with_parent,
        )

    @property
    def is_ready(self) -> bool:
        try:
            ready = self.process is not None and int(self.ready_file.read_text() or 0) == self.process.pid
        except (OSError, ValueError):
            return False
        self.was_ready = self.was_ready or ready
        return ready

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def pause_s(self) -> float:
        """How long to wait before it is started again."""
        self.tries = 0 if time.monotonic() - self._started_at > _LIVED_LONG_S else self.tries + 1
        return min(_FIRST_PAUSE_S * 2 ** min(self.tries, 10), self._longest_pause_s)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Supervisor:
    """`run()` returns the exit status. `told` hears what a person watching should see."""

    def __init__(self, config: Config, told: Callable[[str], None] = lambda line: None) -> None:
        self.config = config
        self._told = told
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failed: str | None = None
        self._status = Exit.UNAVAILABLE
        self._watchers: list[asyncio.Task[None]] = []

    async def run(self) -> Exit:
        check_adapters(self.config)
        try:
            prepare_folder(self.config)
        except OSError as error:
            raise _wrong("folder", f"{error.filename} can't be used ({error.strerror})") from None
        use_kernel_cache(self.config.path / "cache")
        with sole_instance(self.config):
            clear_ready(self.config)
            listening = listen(self.config)
            try:
                port = listening.getsockname()[1]
                self.config = msgspec.structs.replace(self.config, port=port)
                path = str(write_running(self.config))
                return await self._supervise(path, listening)
            finally:
                listening.close()
                clear_ready(self.config)

    async def _supervise(self, path: str, listening: socket.socket) -> Exit:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        python = [sys.executable, "-m"]
        own = [*python, "mintyard.app.processes"]
        self.writer = Child("writer", [*own, "writer", "--config", path], self.config)
        self.tailers = [
            Child(name, [*own, name, "--config", path], self.config) for name in ("projector", "planner")
        ]
        fd = listening.fileno()
        worker = [*python, "mintyard.api", "--config", path, "--fd", str(fd), "--ready"]
        self.workers = [
            Child(name, [*worker, str(self.config.run_folder / f"{name}.ready")], self.config, (fd,))
            for name in (f"api-{number}" for number in range(self.config.workers))
        ]
        try:
            if await self._start():
                url = self.config.public_url
                write_ready(self.config, Ready(os.getpid(), url, mintyard.__version__, time.time_ns()))
                self._told(f"mintyard is ready at {url}")
                await self._stopping.wait()
        finally:
            await self._stop()
        if self._failed:
            _log.error("the hub ends", why=self._failed)
            return self._status
        return Exit.OK

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    # --- starting and watching --------------------------------------------------------------------------------------

    async def _start(self) -> bool:
        """Bring all up, each waiting by itself for what it needs; False when that failed or was broken off."""
        group = [self.writer, *self.tailers, *self.workers]
        for child in group:
            child.start()
            self._watchers.append(asyncio.create_task(self._watch(child)))
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(child.is_ready for child in group):
            if self._stopping.is_set():
                return False
            if time.monotonic() > deadline:
                slow = ", ".join(child.name for child in group if not child.is_ready)
                self._fail(f"{slow} did not come up within {START_TIMEOUT_S:.0f} s")
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def _watch(self, child: Child) -> None:
        """Start `child` again whenever it dies, until the hub stops."""
        while not self._stopping.is_set():
            await _ended(child)
            if self._stopping.is_set() or child.process is None:
                return
            code = child.process.returncode
            pause_s = child.pause_s()
            if not child.is_ready and not child.was_ready:
                if code in _INCURABLE:
                    self._status = Exit(code)
                    self._fail(f"{child.name} can't run (status {code})")
                    return
                if child.tries >= MAX_FIRST_TRIES:
                    self._fail(f"{child.name} ended {child.tries} times before it was up (status {code})")
                    return
            _log.warning(
                "a process ended and is started again", name=child.name, status=code, pause_s=pause_s
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
                return
            child.start()

    def _fail(self, why: str) -> None:
        self._failed = why
        self._stopping.set()

    # --- stopping ---------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Workers first, so that nothing is asked of a writer that has gone; within `stop_s` in all."""
        self._stopping.set()
        clear_ready(self.config)
        deadline = time.monotonic() + self.config.stop_s
        for group in (self.workers, [self.writer], self.tailers):
            for child in group:
                child.signal(signal.SIGTERM)
            await self._wait(group, deadline)
        for task in self._watchers:
            task.cancel()

    async def _wait(self, group: list[Child], deadline: float) -> None:
        while any(child.runs for child in group) and time.monotonic() < deadline:
            if self._hurry.is_set():
                for child in group:
                    child.signal(signal.SIGTERM)  # the second one hurries there as well
                deadline = min(deadline, time.monotonic() + _KILL_AFTER_S)
                self._hurry.clear()
            await asyncio.sleep(_LOOK_S)
        for child in group:
            if child.runs:
                _log.warning("a process does not end and is killed", name=child.name)
                child.signal(signal.SIGKILL)
            if child.process is not None:
                child.process.wait()
            child.ready_file.unlink(missing_ok=True)


async def _ended(child: Child) -> None:
    """Wait until the process ends; it is reaped."""
    process = child.process
    if process is None:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    try:
        loop.add_reader(descriptor, gone.set)
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    process.wait()


def listen(config: Config) -> socket.socket:
    """The hub's listening socket, to be inherited by API workers. `ConfigInvalid` when it can't be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of a name that is empty or too long
        why = error.strerror if isinstance(error, OSError) else "no host name"
        raise _wrong("host", f"can't listen at {config.host}:{config.port} ({why})") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.set_inheritable(True)
    except OSError as error:
        listening.close()
        field = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "host"
        raise _wrong(field, f"can't listen at {config.host}:{config.port} ({error.strerror})") from None
    return listening


def check_adapters(config: Config) -> None:
    """`ConfigInvalid` for a store or an engine that nothing here provides: said once, before any process starts."""
    scheme, colon, _ = config.store_url.partition(":")
    scheme = scheme if colon else ""  # never what may be a password
    for field, given, known in (("store", scheme, schemes()), ("engine", config.engine, kinds())):
        if given not in known:
            raise _wrong(field, f"nothing is known for {given[:64]!r}; there are {', '.join(known)}")


def _wrong(field: str, why: str) -> ConfigInvalid:
    return ConfigInvalid(source="settings", field=field, why=why, suggestion="")


def run(config: Config, told: Callable[[str], None] = lambda line: None) -> Exit:
    """Run a hub in the foreground until it is told to stop; its exit status. Raises `FolderInUse`, `ConfigInvalid`."""

    async def main() -> Exit:
        return await Supervisor(config, told).run()

    return asyncio.run(main())
