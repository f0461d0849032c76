"""Configuration: precedence, bounds, unknown names with the likely one meant; the folder's lock and files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mintyard.app.config import FIELDS, Config, load_config
from mintyard.app.instance import (
    Ready,
    clear_ready,
    lease_holder,
    read_ready,
    read_running,
    sole_instance,
    write_ready,
    write_running,
)
from mintyard.domain.errors import ConfigInvalid, FolderInUse


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path: Path) -> None:
    file = write(tmp_path / "mintyard.toml", 'port = 1\nworkers = 2\nlog_level = "debug"\nname = "yard"\n')
    environment = {"MINTYARD_PORT": "2", "MINTYARD_WORKERS": "3", "MINTYARD_CONFIG": str(file)}
    config = load_config({"port": 3, "workers": None}, environment)
    assert (config.port, config.workers, config.log_level, config.name) == (3, 3, "debug", "yard")
    assert config.currency == "USD"


def test_the_folder_s_own_file_is_read(tmp_path: Path) -> None:
    write(tmp_path / "mintyard.toml", "[engine_options]\nlabels = ['ssd']\n")
    config = load_config({"folder": str(tmp_path)}, {})
    assert config.engine_options == {"labels": ["ssd"]}
    assert config.store_url == f"sqlite:///{tmp_path}/journal/journal.db"
    assert config.public_url == "http://127.0.0.1:8080"


def test_tables_in_the_environment_are_json(tmp_path: Path) -> None:
    environment = {
        "MINTYARD_ENGINE_OPTIONS": '{"nodes": [{"name": "n", "gpus": 2}]}',
        "MINTYARD_FOLDER": str(tmp_path),
    }
    assert load_config({}, environment).engine_options["nodes"][0]["gpus"] == 2
    with pytest.raises(ConfigInvalid, match="no JSON object"):
        load_config({}, environment | {"MINTYARD_ENGINE_OPTIONS": "[1]"})


@pytest.mark.parametrize(
    ("flags", "environment", "text", "message"),
    [
        ({"prot": 1}, {}, "", "prot: there is no such setting"),
        ({}, {"MINTYARD_WORKRES": "1"}, "", "MINTYARD_WORKRES: unknown"),
        ({}, {}, "wokers = 1\n", "wokers: there is no such setting"),
        ({"port": 70_000}, {}, "", "port"),
        ({}, {"MINTYARD_PORT": "many"}, "", "port"),
        ({}, {}, 'port = "8080"\n', "port"),
        ({"log_level": "loud"}, {}, "", "log_level"),
        ({"workers": 0}, {}, "", "flags: workers: Expected `int` >= 1."),
        ({"name": ""}, {}, "", "flags: name: '' can't name a hub"),
        ({}, {}, 'currency = "a b"\n', "currency: 'a b' can't name a currency"),
        ({"tick_ms": float("nan")}, {}, "", "tick_ms"),
        ({}, {}, "port = \n", "can't be read"),
        ({}, {"MINTYARD_CONFIG": "/nowhere/mintyard.toml"}, "", "does not exist"),
    ],
)
def test_bad_settings_are_refused(
    tmp_path: Path, flags: dict[str, Any], environment: dict[str, str], text: str, message: str
) -> None:
    write(tmp_path / "mintyard.toml", text)
    with pytest.raises(ConfigInvalid) as caught:
        load_config({"folder": str(tmp_path), **flags}, environment)
    assert message in str(caught.value)


def test_the_likely_name_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load_config({"folder": str(tmp_path), "wokers": 1}, {})
    assert "Did you mean workers?" in caught.value.cure


def test_variables_of_jobs_and_clients_are_let_alone(tmp_path: Path) -> None:
    environment = {
        f"MINTYARD_{name}": "x" for name in ("TOKEN", "KEYS", "HUB", "JOB", "NODE", "TEST_POSTGRES", "HOME")
    }
    assert load_config({"folder": str(tmp_path)}, environment) == Config(folder=str(tmp_path))


def test_every_setting_has_a_default_that_is_valid() -> None:
    for name in FIELDS:
        value = getattr(Config(folder="/x"), name)
        assert getattr(load_config({"folder": "/x", name: value}, {}), name) == value


def test_one_hub_a_folder(tmp_path: Path) -> None:
    config = Config(folder=str(tmp_path))
    with sole_instance(config), pytest.raises(FolderInUse, match=str(os.getpid())), sole_instance(config):
        pass
    with sole_instance(config):
        pass


def test_processes_get_the_configuration_in_force(tmp_path: Path) -> None:
    config = Config(folder=str(tmp_path), port=9, engine_options={"nodes": [{"name": "n"}]})
    config.run_folder.mkdir()
    path = write_running(config)
    assert read_running(path) == config
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigInvalid):
        read_running(tmp_path / "none")


def test_a_ready_file_of_a_dead_hub_does_not_count(tmp_path: Path) -> None:
    config = Config(folder=str(tmp_path))
    config.run_folder.mkdir()
    assert read_ready(config) is None
    write_ready(config, Ready(os.getpid(), "http://h", "1", 0))
    assert read_ready(config) == Ready(os.getpid(), "http://h", "1", 0)
    write_ready(config, Ready(2**22 + 1, "http://h", "1", 0))
    assert read_ready(config) is None
    clear_ready(config)
    clear_ready(config)


def test_a_folder_keeps_its_name_as_holder_of_the_lease(tmp_path: Path) -> None:
    one, other = Config(folder=str(tmp_path / "a")), Config(folder=str(tmp_path / "b"))
    for config in (one, other):
        config.run_folder.mkdir(parents=True)
    assert lease_holder(one) == lease_holder(one) != lease_holder(other)
