"""`mintyard up` as people use it: started, logged in, a real job paid for and run, followed, interrupted, stopped."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-m", "mintyard.cli"]
START_S = 240
SCRIPT = "echo made here > made.txt; echo hello; echo oh >&2; exit 3"


class Site:
    """One person's folder with a hub in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "work").mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MINTYARD_")}
        self.env = inherited | {
            "PYTHONPATH": str(ROOT / "src"),
            "MINTYARD_HOME": str(folder / "home"),
            "NO_COLOR": "1",
        }
        self.log = (folder / "up.log").open("wb")
        words = ["up", "--folder", str(folder / "hub"), "--port", "0", "--name", "site"]
        self.process = subprocess.Popen([*CLI, *words], env=self.env, stdout=self.log, stderr=self.log)

    def wait(self) -> None:
        deadline = time.monotonic() + START_S
        while "you are logged in" not in (said := (self.folder / "up.log").read_text()):
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.2)

    def __call__(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            [*CLI, *words],
            env=self.env,
            cwd=self.folder / "work",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done.stdout

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(60)
        self.log.close()
        assert status == 0, (self.folder / "up.log").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        made.wait()
        yield made
        made.stop()
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()
        made.log.close()


def test_a_job_from_nothing_to_its_receipt(site: Site) -> None:
    assert json.loads(site("whoami", "--json"))["account"] == "/"
    site("onboard", "acme/ann", "--money", "10", "--save", "ann", "-q")
    out = site(
        "job",
        "submit",
        "--wait",
        "-t",
        "2",
        "--wrap",
        SCRIPT,
        status=1,
    )
    number = re.search(r"\d+", out)[0]
    assert (site.folder / "work" / "made.txt").read_text() == "made here\n"
    assert site("job", "logs", number) == "hello\n"
    assert site("job", "logs", "-e", number) == "oh\n"
    site("job", "wait", number, "--passthrough", status=3)
    assert json.loads(site("job", "receipt", number, "--json"))["account"] == "acme/ann"
    assert "9." in site("account", "show", "acme/ann")


def test_doctor_finds_nothing_wrong(site: Site) -> None:
    told = json.loads(site("doctor", "--json", "--verify", "--folder", str(site.folder / "hub")))
    assert told["healthy"] is True
    assert {one["check"] for one in told["findings"]} >= {
        "login",
        "hub",
        "clock",
        "ready",
        "engine",
        "quota",
        "disk",
        "store",
        "journal",
    }
    assert "records verified" in site("journal", "verify", "--folder", str(site.folder / "hub"))


def test_interrupting_a_follower_leaves_the_job(site: Site) -> None:
    number = site("job", "submit", "-q", "-t", "5", "--wrap", "echo started; sleep 100").strip()
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*CLI, "job", "logs", "-f", number], env=site.env, stdout=follower, stderr=follower, stdin=follower,
        start_new_session=True,
    )  # fmt: skip
    os.close(follower)
    said = b""
    deadline = time.monotonic() + 60
    while b"started" not in said and time.monotonic() < deadline:
        if select.select([leader], [], [], 1)[0]:
            said += os.read(leader, 4_096)
    assert b"started" in said
    os.kill(process.pid, signal.SIGINT)
    while process.poll() is None:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                said += os.read(leader, 4_096)
            except OSError:
                break
    assert process.wait(30) == 130
    os.close(leader)
    assert json.loads(site("job", "show", number, "--json"))["state"] == "running"
    assert f"job {number} goes on" in said.decode()
    site("job", "cancel", number)
    site("job", "wait", number, "--timeout", "60s", status=3)
