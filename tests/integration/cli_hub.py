"""A hub behind the real API and the command line as its user: fixtures and verbs for the tests of the commands."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.api_hub import ApiHub, started

from mintyard.cli import main
from mintyard.credentials import encode_key_set
from mintyard.domain import commands as c
from mintyard.domain.errors import REGISTRY
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, Outcome
from mintyard.domain.units import NS_PER_S


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiHub]:
    for running in started(tmp_path_factory.mktemp("hub")):
        running.onboard("acme")
        running.add_node("n1", cpus=64_000, gpus=4)
        yield running


class Cli:
    """Runs commands in this process as one token; `ok` expects success."""

    def __init__(self, hub: ApiHub, patch: pytest.MonkeyPatch, capture: Any, folder: Path) -> None:
        self.hub, self.patch, self.capture = hub, patch, capture
        patch.setenv("MINTYARD_HOME", str(folder / "home"))
        patch.setenv("MINTYARD_HUB", hub.url)
        patch.setenv("MINTYARD_KEYS", encode_key_set(hub.keys.key_set))
        patch.delenv("MINTYARD_CONTEXT", raising=False)
        patch.chdir(folder)
        self.become(hub.mint("acme", "owner", expires_at=hub.now() + 86_400 * NS_PER_S))

    def become(self, token: str) -> None:
        self.patch.setenv("MINTYARD_TOKEN", token)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self.capture.readouterr()
        status = main(list(words))
        out, err = self.capture.readouterr()
        return status, out, err

    def ok(self, *words: str) -> str:
        status, out, err = self(*words)
        assert status == 0, (words, out, err)
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "--json"))

    def refused(self, *words: str) -> tuple[int, str]:
        """Exit status and code of a refusal; its problem object on stderr is well formed."""
        status, _, err = self(*words, "--json")
        problem = json.loads(err)
        assert problem["detail"]
        assert problem["remedy"] is not None
        assert REGISTRY[problem["code"]].exit_status == status
        return status, problem["code"]


@pytest.fixture
def cli(
    hub: ApiHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return Cli(hub, monkeypatch, capsys, tmp_path)


@pytest.fixture
def admin(cli: Cli) -> Cli:
    cli.become(cli.hub.admin())
    return cli


def submit(cli: Cli, *words: str) -> int:
    return int(cli.ok("job", "submit", "-q", *(words or ("--wrap", "echo hello", "-t", "5"))))


def finish(hub: ApiHub, job: int, outcome: Outcome = Outcome.EXITED, code: int = 0, signal: int = 0) -> None:
    """Let the engine report the whole life of a job that was placed."""
    for _ in range(200):
        with hub.client(hub.admin()) as client:
            shown = client.get(f"/api/v1/jobs/{job}").json()
        if shown["state"] in ("starting", "running", "stopping"):
            break
        hub.send(c.Tick())
        time.sleep(0.02)
    attempt = shown["attempt"]
    if shown["state"] == "starting":
        hub.send(c.TakeReports("sim", (AttemptStarted(job, attempt, "b"),)))
    hub.send(
        c.TakeReports("sim", (AttemptEnded(job, attempt, "b", outcome, code, signal, 60_000, 1_000, 64),))
    )
