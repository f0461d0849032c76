"""The supervisor's pauses and what it refuses at once; with real processes: `tests/integration/test_up.py`."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from mintyard.app.config import Config
from mintyard.app.supervisor import Child, Supervisor, listen
from mintyard.domain.errors import ConfigInvalid


def test_the_pause_of_what_keeps_dying_doubles_up_to_the_limit(tmp_path: Path) -> None:
    child = Child("writer", ["false"], Config(folder=str(tmp_path), restart_pause_s=1.0))
    child._started_at = float("inf")  # it has not lived for long, whatever the clock says
    assert [child.pause_s() for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_what_lived_long_is_started_again_at_once(tmp_path: Path) -> None:
    child = Child("writer", ["false"], Config(folder=str(tmp_path)))
    child._started_at, child.tries = float("-inf"), 7
    assert child.pause_s() == 0.1


@pytest.mark.parametrize(
    ("settings", "field", "why"),
    [
        ({"engine": "slurm"}, "engine", "'slurm'; there are local"),
        ({"store": "mysql://root:secret@db/hub"}, "store", "'mysql'; there are memory, postgresql, sqlite"),
        ({"store": "secret"}, "store", "''; there are"),
        ({"folder": "/proc/hub"}, "folder", "/proc/hub can't be used (No such file or directory)"),
    ],
)
def test_what_can_never_run_is_refused_before_anything_starts(
    tmp_path: Path, settings: dict[str, str], field: str, why: str
) -> None:
    config = Config(**{"folder": str(tmp_path / "hub"), **settings})
    with pytest.raises(ConfigInvalid) as caught:
        asyncio.run(Supervisor(config).run())
    assert caught.value.params["field"] == field
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize(
    ("host", "field", "why"),
    [
        ("127.0.0.1", "port", "in use"),
        ("host.invalid", "host", "(Name"),
        ("a..b", "host", ""),
        ("192.0.2.1", "host", ""),
    ],
)
def test_an_address_that_can_t_be_had_is_a_matter_of_settings(host: str, field: str, why: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigInvalid) as caught:
            listen(Config(host=host, port=port))
    assert caught.value.params["field"] == field
    assert f"{host}:{port}" in str(caught.value)
    assert why in str(caught.value)
