"""Hub: one `mintyard up` as a child process in a folder of its own, stopped in every case, its jobs with it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from mintyard.demo.console import Console, DemoFailed, client_environment, mintyard_command

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 25.0
_JOBS: Final = Path(__file__).parent / "jobs"
_LAST_LINES: Final = 15
_PR_SET_PDEATHSIG: Final = 1
CONFIGURATION: Final = """# GPUs that don't exist, on a machine that does: jobs run for real, their devices are numbers.
engine = "local"

[[engine_options.nodes]]
name = "node"
count = 2
gpus = 2
gpu_model = "demo"
"""


class RunningHub:
    """A context: `start()` returns when requests are taken. `url` is known from then on."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder / "hub"
        self.client = folder
        self.port = port if is_free(port) else 0
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "hub.log"
        self._process: subprocess.Popen[bytes] | None = None
        shutil.copytree(_JOBS, folder / "work", ignore=shutil.ignore_patterns("__pycache__"))
        self.folder.mkdir(mode=0o700)
        (self.folder / "mintyard.toml").write_text(CONFIGURATION)

    def __enter__(self) -> RunningHub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, console: Console) -> None:
        words = ["up", "--folder", str(self.folder), "--port", str(self.port)]
        console.say(f"$ mintyard {' '.join(words)} &")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [mintyard_command(), *words], cwd=self.client, env=console.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_end_with_parent,
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (ready := self._ready()):
            if self._process.poll() is not None:
                raise DemoFailed(
                    f"the hub ended with exit status {self._process.returncode} before it was ready"
                )
            if time.monotonic() > deadline:
                raise DemoFailed(f"the hub was not ready within {START_TIMEOUT_S:.0f} s")
            time.sleep(0.05)
        self.url = ready

    def _ready(self) -> str:
        try:
            return str(json.loads((self.folder / "run" / "ready.json").read_text())["url"])
        except (OSError, ValueError, KeyError):
            return ""

    def wait(self, console: Console) -> None:
        """Until Ctrl-C."""
        console.say()
        console.say(f"The hub goes on at {self.url}; Ctrl-C ends it.")
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """End the jobs that still run, then the hub; harmless when it never began."""
        process = self._process
        if process is None:
            return
        with _undisturbed():
            if process.poll() is None:
                self._cancel_jobs()
                process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._process = None

    def _cancel_jobs(self) -> None:
        """As the administrator; best effort, since the hub may be what failed."""
        environment = client_environment(self.client)

        def run(*words: str) -> str:
            with suppress(subprocess.TimeoutExpired):
                return subprocess.run(
                    [mintyard_command(), *words],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=20,
                    check=False,
                ).stdout
            return ""

        live = run("job", "ls", "--quiet").split()
        if live:
            run("job", "cancel", *live)
            run("job", "wait", "--timeout", "15s", *live)

    def last_words(self) -> list[str]:
        try:
            return self._log.read_text(errors="replace").rstrip().split("\n")[-_LAST_LINES:]
        except OSError:
            return []


class _undisturbed:
    """Ctrl-C does not break off the cleaning up."""

    def __enter__(self) -> None:
        self._former = {
            number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
