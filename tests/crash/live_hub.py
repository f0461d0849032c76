"""A real hub for tests: `mintyard up` in a folder of its own, on loopback, with processes of its own that can be killed.

Everything it starts lives in `folder` and is named by it, so that nothing else is ever signalled.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from mintyard.app.bootstrap import ADMIN_CONTEXT, admin_credentials
from mintyard.app.config import Config
from mintyard.app.instance import Ready, read_ready
from mintyard.credentials import Context

ROLES = ("writer", "projector", "planner", "api-0", "api-1")
_COMMAND = (sys.executable, "-m", "mintyard.cli", "up")
_SOURCE = Path(__file__).parents[2] / "src"
START_TIMEOUT_S = 120.0
_LOOK_S = 0.02
NODES = ({"name": "n", "cpus_milli": 8_000, "memory_mib": 16_384, "gpus": 4, "count": 2},)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def new_key() -> str:
    """An idempotency key: a UUIDv7 (RFC 9562)."""
    raw = bytearray((time.time_ns() // 1_000_000).to_bytes(6, "big") + secrets.token_bytes(10))
    raw[6] = raw[6] & 0x0F | 0x70
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def environment(folder: Path) -> dict[str, str]:
    """What the hub's processes see: nothing of the caller's hub, and compiled modules kept between starts."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MINTYARD_")}
    env |= {
        "MINTYARD_FOLDER": str(folder),
        "MINTYARD_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_SOURCE), env.get("PYTHONPATH", "")))),
    }
    if env.pop("PYTHONDONTWRITEBYTECODE", ""):
        env["PYTHONPYCACHEPREFIX"] = str(
            Path(tempfile.gettempdir()) / f"mintyard-tests-{os.getuid()}" / "pycache"
        )
    return env


def processes_of(folder: Path) -> list[psutil.Process]:
    """Everything alive of the hub in `folder`: its processes, its fork server and supervisors, its jobs' commands."""
    found: list[psutil.Process] = []
    me = psutil.Process()
    spared = {me.pid, *(parent.pid for parent in me.parents())}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if (
                process.pid not in spared
                and process.status() != psutil.STATUS_ZOMBIE
                and _is_of(process, folder)
            ):
                found.append(process)
    return found


def _is_of(process: psutil.Process, folder: Path) -> bool:
    """Not by a mere mention of the folder: an editor or a shell may name it as well."""
    if str(folder / "engine") in process.cmdline():
        return True
    environ = process.environ()
    is_job = "MINTYARD_JOB" in environ and Path(process.cwd()).is_relative_to(folder)
    return is_job or environ.get("MINTYARD_FOLDER") == str(folder)


def wait_for(condition: Callable[[], Any], timeout_s: float, what: str, pause_s: float = _LOOK_S) -> Any:
    """The first true value of `condition`; an AssertionError that says `what` was awaited."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(pause_s)


class LiveHub:
    """`start()` returns when the hub is ready; `stop()` asks it to end in order and returns its exit status."""

    def __init__(self, folder: Path, *, port: int = 0, nodes: Iterable[Any] = NODES, **settings: Any) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.log = folder / "hub.log"
        self.wrapper: tuple[str, ...] = ()
        """A command that runs the hub's."""
        self.process: subprocess.Popen[bytes] | None = None
        options = {"cgroup": "off", "idle_s": 1.0, "nodes": list(nodes)}
        defaults = {"workers": 2, "lease_ms": 2_000, "stop_s": 20.0, "log_format": "json"}
        given = {"port": self.port, "engine_options": options} | defaults | settings
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mintyard.toml").write_text(toml(given))
        self.config = Config(folder=str(folder), **given)
        self.environment = environment(folder)

    # --- its life ---------------------------------------------------------------------------------------------------

    def launch(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                (*self.wrapper, *_COMMAND),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def start(self, timeout_s: float = START_TIMEOUT_S) -> LiveHub:
        process = self.launch()

        def is_up() -> Ready | None:
            assert process.poll() is None, f"the hub ended with {process.returncode}:\n{self.tail()}"
            ready = read_ready(self.config)
            return ready if ready is not None and ready.pid == process.pid else None

        wait_for(is_up, timeout_s, "the hub is up")
        self.wait_until_it_answers(timeout_s)
        return self

    def wait_until_it_answers(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until `/ready` says so: the leader is heard and the read model has caught up."""

        def ready() -> bool:
            try:
                with httpx.Client(verify=False, trust_env=False, timeout=2) as client:
                    return client.get(f"{self.url}/ready").status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(ready, timeout_s, "the hub is ready")

    def wait_for_restart(self, role: str, killed: int | None, timeout_s: float = START_TIMEOUT_S) -> int:
        """Until another process has taken the place of `killed`; its pid."""

        def another() -> int | None:
            pid = self.pids().get(role)
            return pid if pid != killed else None

        return wait_for(another, timeout_s, f"{role} is started again")

    def stop(self, timeout_s: float = 60.0) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def destroy(self) -> None:
        """Kill all that is left of it, jobs included; for the end of a test."""
        for _ in range(20):
            left = processes_of(self.folder)
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            if self.process is not None:
                self.process.wait()
            if not left:
                return
            psutil.wait_procs(left, timeout=1)

    def tail(self, lines: int = 40) -> str:
        """The end of the hub's log, for messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    # --- its processes ----------------------------------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        """The hub's processes by role, those that are up."""
        assert self.process is not None
        found: dict[str, int] = {}
        with suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                with suppress(psutil.Error):
                    role = _role_of(child.cmdline())
                    if role and child.status() != psutil.STATUS_ZOMBIE:
                        found[role] = child.pid
        return found

    def fork_server(self) -> int | None:
        """The local engine's, which is nobody's child."""
        state = str(self.config.path / "engine")
        for process in processes_of(self.folder):
            with suppress(psutil.Error):
                line = process.cmdline()
                if state in line and "mintyard.agent.forkserver" in " ".join(line) and _is_first(process):
                    return process.pid
        return None

    def kill(self, role: str) -> int | None:
        """SIGKILL one of its processes; its pid, None when it isn't up."""
        pid = self.fork_server() if role == "fork-server" else self.pids().get(role)
        if pid is None:
            return None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return pid

    # --- its use ----------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> Context:
        return admin_credentials(self.config).contexts()[ADMIN_CONTEXT]

    def client(self, token: str = "", timeout_s: float = 20.0) -> httpx.Client:
        """A connection of its own, as the administrator unless another token is given."""
        headers = {"authorization": f"Bearer {token or self.admin.token}"}
        return httpx.Client(
            base_url=f"{self.url}/api/v1", headers=headers, timeout=timeout_s, verify=False, trust_env=False
        )


def _is_first(process: psutil.Process) -> bool:
    """Not one of the supervisors that the fork server has forked, which look alike."""
    parent = process.parent()
    return parent is None or parent.cmdline() != process.cmdline()


def _role_of(command: list[str]) -> str:
    for at, part in enumerate(command[:-1]):
        if part == "mintyard.app.processes":
            return command[at + 1]
        if part == "--ready":
            return Path(command[at + 1]).stem
    return ""


def toml(settings: dict[str, Any]) -> str:
    """Settings as TOML: JSON's scalars, lists and inline tables are nearly that."""
    return "".join(f"{name} = {_value(value)}\n" for name, value in settings.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return msgspec.json.encode(value).decode()
