"""The demo is a test of the whole: it checks itself; here its exit status, what it leaves behind, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mintyard.demo.console import Console, DemoFailed
from mintyard.demo.story import only, submitted

pytestmark = pytest.mark.slow
_TIMEOUT_S = 400
_FORK_SERVER_S = 60


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that name `folder` or work in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(folder) in words or place.startswith(str(folder)):
            found.append(f"{entry.name}: {words}")
    return found


def left_running(folder: Path) -> list[str]:
    """What still runs once the fork server, which outlives the hub for its idle time, has had time to end."""
    deadline = time.monotonic() + _FORK_SERVER_S
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def begin(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "mintyard.demo", "--folder", str(folder), "--port", "0"]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


@pytest.mark.acceptance
def test_the_whole_story(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = begin(folder)
    output, _ = demo.communicate(timeout=_TIMEOUT_S)
    assert demo.returncode == 0, output
    for said in (
        "best of 9", "quota_exhausted", "ceiling_reached", "timed_out", "waiting_for_resources", "1,213",
        "records verified", ", exactly", "Everything was as it must be", "openapi.json",
    ):  # fmt: skip
        assert said in output, f"{said!r} is not in:\n{output}"
    assert "mint_" not in output, "a token was shown"
    assert left_running(folder) == []


@pytest.mark.acceptance
def test_interrupted_it_cleans_up(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = begin(folder)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("$ mintyard node ls"):
            break
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, output
    assert "interrupted" in output
    assert left_running(folder) == []


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("of yours")
    demo = begin(tmp_path)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 2
    assert "not empty" in output
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_an_unexpected_exit_status_fails_the_demo(tmp_path: Path) -> None:
    console = Console(tmp_path)
    console.work.mkdir()
    assert console.run("echo hello") == "hello\n"
    with pytest.raises(DemoFailed, match="exit status 3, expected was 0"):
        console.run("exit 3")
    console.run("exit 3", expect=3)
    with pytest.raises(DemoFailed, match="not so: two is three"):
        console.check(False, "two is three")


def test_job_numbers_are_read_from_what_the_command_line_says() -> None:
    assert submitted("Submitted job 1 (a)\nSubmitted job 2 (b) with 9 tasks\n") == {"a": 1, "b": 2}
    assert only("warning: something\nSubmitted job 14\n") == 14
    with pytest.raises(DemoFailed):
        only("error: no\n")
