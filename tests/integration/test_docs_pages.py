"""The commands in tutorial and how-to pages work: each page's `sh` blocks run in order, in a shell, against a real hub.

The tutorial has a fresh hub, as has the quick start in the README. The how-to pages share their logins, as for a reader who tries
one after the other. `console` blocks are for reading only (installing, PostgreSQL), save the quick start's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
TUTORIAL = DOCS / "tutorial" / "first-job.md"
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
ADDRESS = "http://127.0.0.1:8080"
"""What pages call the hub, and the key under which the real address is kept."""
PLACE = "~/.local/share/mintyard"
START_TIMEOUT_S = 120
PAGE_TIMEOUT_S = 300
_BLOCK = re.compile(r"^```sh( hub)?\n(.*?)^```$", re.M | re.S)


def blocks(page: Path, *, hub: bool) -> list[str]:
    return [text for mark, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if bool(mark) == hub]


@contextmanager
def running_hub(folder: Path) -> Iterator[dict[str, str]]:
    """A hub started as the tutorial says; the environment of its users."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MINTYARD_")} | {
        "MINTYARD_FOLDER": str(folder / "hub"),
        "MINTYARD_HOME": str(folder / "client"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    (start,) = blocks(TUTORIAL, hub=True)
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        ["bash", "-c", f"exec {start}"], env=environment | {"MINTYARD_PORT": "0"}, stdin=subprocess.DEVNULL,
        stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield environment | {ADDRESS: wait_until_ready(process, folder)}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (folder / "log").read_text()
        log.close()


def wait_until_ready(process: subprocess.Popen[bytes], folder: Path) -> str:
    """The hub's URL, once the administrator is logged in as well."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "client" / "credentials.json").exists():
            return str(json.loads((folder / "hub" / "run" / "ready.json").read_text())["url"])
        time.sleep(0.05)
    raise AssertionError((folder / "log").read_text())


def run(page: Path, environment: dict[str, str], folder: Path, script: str = "") -> str:
    script = script or "\n".join(blocks(page, hub=False))
    script = script.replace(ADDRESS, environment[ADDRESS]).replace(PLACE, environment["MINTYARD_FOLDER"])
    environment = {name: value for name, value in environment.items() if name != ADDRESS}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-x", "-c", script], env=environment, cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PAGE_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8_000:]
    return done.stdout


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_hub(tmp_path_factory.mktemp("docs") / "hub") as environment:
        yield environment


def test_the_tutorial(tmp_path: Path) -> None:
    with running_hub(tmp_path / "hub") as environment:
        said = run(TUTORIAL, environment, tmp_path)
    assert "49999995000000" in said
    assert "\n385\n" in said
    assert "quota_exhausted" in said
    assert "exit status 5" in said


def test_the_quick_start(tmp_path: Path) -> None:
    """The console block after `mintyard up`, then the Python and the curl snippet, as they stand."""
    text = README.read_text(encoding="utf-8")
    start = next(
        found for found in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S) if "onboard" in found
    )
    (python,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    (curl,) = (found for found in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) if "curl" in found)
    script = f"{start.replace('$ ', '')}\npython3 - <<'END'\n{python}END\n{curl}"
    with running_hub(tmp_path / "hub") as environment:
        said = run(README, environment, tmp_path, script)
    assert "hello from " in said
    assert "\nsucceeded\n" in said
    assert re.search(r'^{"job":3,', said, re.M), said[-2_000:]


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_how_to(page: Path, hub: dict[str, str], tmp_path: Path) -> None:
    said = run(page, hub, tmp_path)
    expected = {
        "narrow-a-token": ("hello", "ceiling_reached", "token_revoked"),
        "grant-and-limit": ("budget_too_small", "campus/physics/bob"),
        "run-a-dag": ("dependency_cycle", "succeeded"),
        "use-batch-scripts": ("not supported, ignored: --mail-type", "task none", "task 3"),
        "share-with-queues": ("queue research set", "cpus=4,jobs=20", "queue centre removed"),
        "operate": ("records verified", "mintyard_", "cordoned"),
    }[page.stem]
    for words in expected:
        assert words in said, f"{words!r} is not in:\n{said}"
