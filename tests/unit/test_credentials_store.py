"""The client's file: private, whole, by context; the environment wins (T4, U-features)."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.credentials_material import KEYS, make

from mintyard.credentials import Context, CredentialStore, encode_key_set
from mintyard.credentials import store as room
from mintyard.credentials.store import home
from mintyard.domain.errors import (
    CredentialsDamaged,
    InvalidName,
    KeySetInvalid,
    LimitReached,
    NotFound,
    TokenMissing,
)

ONE = Context("http://one:8080", make(), KEYS)
TWO = Context("http://two:8080", make(), None)


@pytest.fixture
def environment():
    return {}


@pytest.fixture
def store(tmp_path, environment):
    return CredentialStore(tmp_path / "home", environment)


def test_where_home_is(tmp_path):
    assert home({"MINTYARD_HOME": str(tmp_path)}) == tmp_path
    assert home({"MINTYARD_HOME": str(tmp_path), "XDG_CONFIG_HOME": "/x"}) == tmp_path
    assert str(home({"XDG_CONFIG_HOME": "/x"})) == "/x/mintyard"
    for ignored in ({}, {"XDG_CONFIG_HOME": "relative"}, {"MINTYARD_HOME": "", "XDG_CONFIG_HOME": ""}):
        assert home(ignored).parts[-2:] == (".config", "mintyard")


def test_token_and_key_set_are_kept_side_by_side_and_private(store):
    with pytest.raises(TokenMissing):
        store.credential()
    store.save("default", ONE)
    credential = store.credential()
    assert (credential.token, credential.hub, credential.keys) == (ONE.token, ONE.hub, KEYS)
    assert credential.warnings == ()
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert ONE.token not in f"{credential!r} {ONE!r} {store.contexts()!r}"


def test_contexts(store, environment):
    store.save("one", ONE)
    store.save("two", TWO)
    assert store.current == "two"
    assert store.credential("one").token == ONE.token
    store.use("one")
    assert store.credential().hub == ONE.hub
    environment["MINTYARD_CONTEXT"] = "two"
    assert (store.current, store.credential().token) == ("two", TWO.token)
    environment["MINTYARD_HUB"] = "http://elsewhere"
    assert store.credential().hub == "http://elsewhere"
    for missing in (store.use, store.remove, store.credential):
        with pytest.raises(NotFound):
            missing("three")
    environment.clear()
    store.remove("one")
    assert (store.current, list(store.contexts())) == ("two", ["two"])
    store.remove("two")
    with pytest.raises(TokenMissing):
        store.credential()


def test_a_context_without_a_token_has_none(store):
    store.save("one", Context("http://one"))
    with pytest.raises(TokenMissing):
        store.credential()


def test_the_environment_wins_but_for_a_named_context(store, environment):
    store.save("one", ONE)
    environment.update(
        MINTYARD_TOKEN=f" {TWO.token}\n", MINTYARD_KEYS=encode_key_set(KEYS), MINTYARD_HUB="http://job"
    )
    credential = store.credential()
    assert (credential.token, credential.hub, credential.keys) == (TWO.token, "http://job", KEYS)
    assert credential.source == "MINTYARD_TOKEN"
    assert store.credential("one").token == ONE.token
    environment["MINTYARD_KEYS"] = "{"
    with pytest.raises(KeySetInvalid):
        store.credential()
    del environment["MINTYARD_KEYS"]
    assert store.credential().keys is None
    environment["MINTYARD_TOKEN"] = "  "
    assert store.credential().token == ONE.token


def test_an_open_file_is_used_with_a_warning(store):
    store.save("one", ONE)
    store.path.chmod(0o644)
    (warning,) = store.credential().warnings
    assert "chmod 600" in warning
    assert ONE.token not in warning
    store.save("one", ONE)
    assert store.credential().warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 1, "colour": "red"}',
        '{"format": 2}',
        '{"format": 1, "contexts": {"a": {"token": 1}}}',
        "\x00",
    ],
)
def test_a_damaged_file_is_named_and_left_alone(store, text):
    store.save("one", ONE)
    store.path.write_text(text)
    for attempt in (
        store.credential,
        store.contexts,
        lambda: store.save("two", TWO),
        lambda: store.use("one"),
    ):
        with pytest.raises(CredentialsDamaged):
            attempt()
    assert store.path.read_text() == text


def test_a_lying_key_set_in_the_file_is_refused(store):
    store.save("one", ONE)
    held = json.loads(store.path.read_text())
    held["contexts"]["one"]["keys"]["keys"][0]["key"] = "00000000"
    store.path.write_text(json.dumps(held))
    with pytest.raises(KeySetInvalid):
        store.credential()


def test_bad_names_and_too_many_contexts_are_refused(store, monkeypatch):
    monkeypatch.setattr(room, "MAX_CONTEXTS", 3)
    with pytest.raises(InvalidName):
        store.save("../x y", ONE)
    for number in range(3):
        store.save(f"c{number}", TWO)
    with pytest.raises(LimitReached):
        store.save("one-more", TWO)
    store.save("c0", ONE)


def test_logins_at_once_lose_nothing(store):
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: store.save(f"c{number}", TWO), range(24)))
    assert len(store.contexts()) == 24


def test_a_crash_while_writing_leaves_the_old_file(store, monkeypatch):
    store.save("one", ONE)

    def crash(*_):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(OSError, match="full"):
            store.save("two", TWO)
    assert store.credential().token == ONE.token
    assert sorted(file.name for file in store.path.parent.iterdir()) == [
        ".credentials.lock",
        "credentials.json",
    ]


def test_an_unreadable_place_is_named(tmp_path):
    (tmp_path / "credentials.json").mkdir()
    with pytest.raises(CredentialsDamaged):
        CredentialStore(tmp_path, {}).credential()
