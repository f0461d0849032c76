"""Console: runs command lines as a user would, shows each with its output, and insists on the exit status."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mintyard.demo.hub import RunningHub

COMMAND_TIMEOUT_S: Final = 150.0


class DemoFailed(Exception):
    """Something was not as it must be."""


class Console:
    """`folder` holds what the commands work in; they run in its `work/`. Standard error is shown with standard output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.environment = client_environment(folder)
        self._begun = time.monotonic()
        self._colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._step = 0

    # --- commands ---------------------------------------------------------------------------------------------------

    def run(self, line: str, *, expect: int = 0, live: bool = False, most_lines: int = 0) -> str:
        """Show `line` and run it in a shell; its output. `live`: straight to the terminal, for progress bars;
        `most_lines`: show only so many."""
        self.say(self._bold(f"$ {line}"))
        if live and sys.stdout.isatty():
            done = self._shell(line, None)
        else:
            done = self._shell(line, subprocess.STDOUT)
            self._show(done.stdout, most_lines)
        if done.returncode != expect:
            raise DemoFailed(f"`{line}` ended with exit status {done.returncode}, expected was {expect}")
        return done.stdout or ""

    def _shell(self, line: str, errors: int | None) -> subprocess.CompletedProcess[str]:
        """`errors`: what becomes of standard error; None leaves all output to the terminal."""
        try:
            return subprocess.run(
                ["/bin/sh", "-c", line], cwd=self.work, env=self.environment, text=True, stdin=subprocess.DEVNULL,
                stdout=None if errors is None else subprocess.PIPE, stderr=errors, timeout=COMMAND_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"`{line}` took more than {COMMAND_TIMEOUT_S:.0f} s") from None

    # --- what people read -------------------------------------------------------------------------------------------

    def step(self, title: str) -> None:
        self._step += 1
        self.say()
        self.say(self._bold(f"--- {self._step}. {title} ({time.monotonic() - self._begun:.0f} s)"))

    def say(self, text: str = "") -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def check(self, holds: bool, what: str) -> None:
        """Say that `what` holds, or fail."""
        if not holds:
            raise DemoFailed(f"not so: {what}")
        self.say(f"  ok: {what}")

    def failed(self, why: str, last_words: Sequence[str]) -> None:
        self.say()
        self.say(self._bold(f"THE DEMO FAILED: {why}"))
        if last_words:
            self.say("the hub's last words:")
            self.say("\n".join(f"  {line}" for line in last_words))

    def farewell(self, hub: RunningHub, *, well: bool) -> None:
        seconds = time.monotonic() - self._begun
        self.say()
        self.say(
            f"{'Everything was as it must be' if well else 'Ended early'} after {seconds:.0f} s; no process is left."
        )
        home = shlex.quote(str(self.folder))
        mintyard = shlex.quote(mintyard_command())
        self.say("Keep this hub, with its jobs, balances and journal, and start it again:")
        self.say(f"  {mintyard} up --folder {home}/hub")
        self.say(
            f"Its API is then described at {hub.url}/api/v1/openapi.json; as administrator in another terminal:"
        )
        self.say(f"  MINTYARD_HOME={home}/client {mintyard} job ls --all")
        self.say(f"Or remove all of it: rm -r {home}")

    def _show(self, output: str, most_lines: int) -> None:
        lines = output.rstrip("\n").split("\n") if output.strip() else []
        shown = lines[:most_lines] if most_lines else lines
        for line in shown:
            self.say(f"  {line}".rstrip())
        if len(lines) > len(shown):
            self.say(f"  ... {len(lines) - len(shown)} more lines")

    def _bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self._colours else text


def mintyard_command() -> str:
    """The installed `mintyard` beside this Python."""
    return str(Path(sys.executable).parent / "mintyard")


def client_environment(folder: Path) -> dict[str, str]:
    """This process's environment without settings of other hubs, and with this Python first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MINTYARD_")}
    kept["MINTYARD_HOME"] = str(folder / "client")
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    kept["COLUMNS"] = str(min(shutil.get_terminal_size((118, 24)).columns, 118))
    kept["PYTHONUNBUFFERED"] = "1"
    return kept
