"""Console: runs command lines as a user would, shows each with its output, and insists on the exit status."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mintyard.demo.hub import RunningHub

COMMAND_TIMEOUT_S: Final = 150.0
_KEPT_LINES: Final = 30


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

    def run(
        self, line: str, *, expect: int = 0, live: bool = False, most_lines: int = 0, token: str = ""
    ) -> str:
        """Show and run `line`, a command of mintyard; its output. `live`: straight to the terminal, for progress bars.

        `most_lines` shows only so many lines; `token` is used instead of the stored one."""
        words = shlex.split(line)
        self.say(self._bold(f"$ {line}"))
        environment = self.environment | ({"MINTYARD_TOKEN": token} if token else {})
        if live and sys.stdout.isatty():
            status, output = self._run_live(words, environment)
        else:
            status, output = self._run(words, environment)
            self._show(output, most_lines)
        if status != expect:
            raise DemoFailed(f"`{line}` ended with exit status {status}, expected was {expect}")
        return output

    def ask(self, line: str, *, token: str = "") -> Any:
        """The answer of a command as JSON, not shown."""
        environment = self.environment | ({"MINTYARD_TOKEN": token} if token else {})
        words = [*mintyard_command(), *shlex.split(line)[1:], "-o", "json"]
        done = subprocess.run(
            words, cwd=self.work, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DemoFailed(f"`{line}` ended with exit status {done.returncode}: {done.stderr.strip()}")
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise DemoFailed(f"`{line} -o json` answered no JSON: {done.stdout[:200]}") from None

    def _run(self, words: list[str], environment: dict[str, str]) -> tuple[int, str]:
        try:
            done = subprocess.run(
                [*mintyard_command(), *words[1:]], cwd=self.work, env=environment, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"`{shlex.join(words)}` took more than {COMMAND_TIMEOUT_S:.0f} s") from None
        return done.returncode, done.stdout

    def _run_live(self, words: list[str], environment: dict[str, str]) -> tuple[int, str]:
        command = [*mintyard_command(), *words[1:]]
        done = subprocess.run(command, cwd=self.work, env=environment, timeout=COMMAND_TIMEOUT_S, check=False)
        return done.returncode, ""

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
        mintyard = (
            shlex.quote(mintyard_command()[0]) if len(mintyard_command()) == 1 else "python -m mintyard.cli"
        )
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


def mintyard_command() -> list[str]:
    """The installed `mintyard` beside this Python, or the module when there is no script."""
    script = Path(sys.executable).parent / "mintyard"
    return [str(script)] if script.exists() else [sys.executable, "-m", "mintyard.cli"]


def client_environment(folder: Path) -> dict[str, str]:
    """This process's environment without settings of other hubs, and with this Python first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MINTYARD_")}
    kept["MINTYARD_HOME"] = str(folder / "client")
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    kept["COLUMNS"] = str(min(shutil.get_terminal_size((118, 24)).columns, 118))
    kept["PYTHONUNBUFFERED"] = "1"
    return kept
