"""The key ring: made at first start, rotated with overlap, never half written, never read from an open file (T5)."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import biscuit_auth
import msgspec
import pytest
from tests.unit.credentials_material import DAY, KEYS, NOW, make

from mintyard.credentials import (
    KeyRing,
    KeySet,
    KeyState,
    VerifyingKey,
    decode_key_set,
    encode_key_set,
    verify,
)
from mintyard.credentials import keys as room
from mintyard.credentials.keys import MAX_KEYS, RETIREMENT_NS, TRANSITIONS, check_key_set, key_id
from mintyard.domain.errors import (
    IllegalTransition,
    KeyRingDamaged,
    KeyRingExposed,
    KeySetInvalid,
    NotFound,
    TokenKeyDead,
    TokenUnknownKey,
)


def states(keys: KeySet) -> list[str]:
    return [key.state.value for key in keys.keys]


def test_the_first_start_makes_a_private_ring(tmp_path):
    ring = KeyRing.open(tmp_path / "a" / "keys", NOW)
    assert states(ring.key_set) == ["active", "next"]
    folder = tmp_path / "a" / "keys"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = KeyRing.open(folder, NOW + 1)
    assert again.key_set == ring.key_set
    assert again.signing_key == ring.signing_key


def test_the_id_is_the_hash_of_the_key_and_the_pair_is_ed25519(tmp_path):
    ring = KeyRing.open(tmp_path, NOW)
    key = ring.signing_key
    public = bytes(biscuit_auth.KeyPair.from_private_key(key.biscuit()).public_key.to_bytes())
    assert key.key == f"{key_id(public):08x}"
    assert ring.key_set.find(key.key).public == public.hex()
    assert key.private.hex() not in repr(key)
    assert not any(key.private.hex() in text for text in (repr(ring.key_set), encode_key_set(ring.key_set)))


def test_rotation_overlaps_and_old_tokens_live_until_their_key_is_dead(tmp_path):
    ring = KeyRing.open(tmp_path, NOW)
    before = ring.key_set
    old = make(key=ring.signing_key, expires_at=NOW + 366 * DAY)
    after = ring.rotate(NOW + 1)
    assert states(after) == ["retiring", "active", "next"]
    assert after.version == before.version + 1
    new = make(key=ring.signing_key)
    # A verifier that has not heard of the rotation knows the new key already, one that has knows the old one still.
    assert verify(new, before, NOW).key == before.keys[1].key
    assert verify(old, after, NOW).key == before.keys[0].key
    second = ring.rotate(NOW + 2)
    assert states(second) == ["retiring", "retiring", "active", "next"]
    assert verify(old, second, NOW + 365 * DAY)
    assert ring.expire(NOW + RETIREMENT_NS) == second
    third = ring.expire(NOW + 1 + RETIREMENT_NS)
    assert states(third) == ["dead", "retiring", "active", "next"]
    with pytest.raises(TokenKeyDead):
        verify(old, third, NOW)
    assert verify(new, third, NOW)


@pytest.mark.parametrize(
    ("which", "after"), [(0, ["dead", "active", "next"]), (1, ["active", "dead", "next"])]
)
def test_a_withdrawn_key_is_dead_at_once_and_another_takes_over(tmp_path, which, after):
    ring = KeyRing.open(tmp_path, NOW)
    signing = ring.signing_key
    key = ring.key_set.keys[which].key
    keys = ring.withdraw(key, NOW)
    assert states(keys) == after
    assert ring.withdraw(key, NOW) == keys
    assert (ring.signing_key == signing) == (which == 1)
    text = (tmp_path / "keys.json").read_text()
    assert (signing.private.hex() in text) == (which == 1), "the private half of a dead key is gone"
    with pytest.raises(NotFound):
        ring.withdraw("00000000", NOW)


def test_no_key_moves_backwards():
    entry = room._fresh(set(), NOW)
    for source, targets in TRANSITIONS.items():
        at = msgspec.structs.replace(entry, state=source)
        for target in KeyState:
            if target in targets:
                assert at.moved(target, NOW).state is target
            else:
                with pytest.raises(IllegalTransition):
                    at.moved(target, NOW)


def test_the_oldest_dead_keys_are_forgotten(tmp_path):
    ring = KeyRing.open(tmp_path, NOW)
    first = ring.key_set.keys[0].key
    for _ in range(MAX_KEYS + 3):
        ring.withdraw(ring.signing_key.key, NOW)
    keys = ring.key_set
    assert len(keys.keys) == MAX_KEYS
    assert keys.find(first) is None
    assert KeyRing.open(tmp_path, NOW).key_set == keys


@pytest.mark.slow
def test_processes_that_start_at_once_share_one_ring(tmp_path):
    code = (
        "import sys; from mintyard.credentials import KeyRing, encode_key_set;"
        "ring = KeyRing.open(sys.argv[1], 1); print(encode_key_set(ring.key_set)); ring.rotate(2)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, env=environment)
        for _ in range(3)
    ]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len({json.loads(out)["keys"][0]["key"] for out in outputs}) == 1
    assert states(KeyRing.open(tmp_path, 1).key_set) == ["retiring"] * 3 + ["active", "next"]


def test_concurrent_rotations_lose_no_key(tmp_path):
    KeyRing.open(tmp_path, NOW)
    with ThreadPoolExecutor(4) as pool:
        sets = list(pool.map(lambda at: KeyRing.open(tmp_path, NOW).rotate(NOW + at), range(8)))
    final = KeyRing.open(tmp_path, NOW).key_set
    assert final.version == 9
    assert {key.key for keys in sets for key in keys.keys} == {key.key for key in final.keys}


@pytest.mark.parametrize("when", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_ring(tmp_path, monkeypatch, when):
    ring = KeyRing.open(tmp_path, NOW)
    before, files = ring.key_set, {file.name for file in tmp_path.iterdir()}

    def crash(*_, **__):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, when, crash)
        with pytest.raises(OSError, match="full"):
            ring.rotate(NOW)
    assert ring.key_set == before
    assert KeyRing.open(tmp_path, NOW).key_set == before
    assert {file.name for file in tmp_path.iterdir()} <= files | {"lock"}


def test_a_file_that_everybody_can_reach_is_refused(tmp_path, caplog):
    KeyRing.open(tmp_path, NOW)
    file = tmp_path / "keys.json"
    for mode in (0o604, 0o602, 0o601, 0o777):
        file.chmod(mode)
        with pytest.raises(KeyRingExposed):
            KeyRing.open(tmp_path, NOW)
    file.chmod(0o640)
    assert KeyRing.open(tmp_path, NOW).signing_key
    assert "open to its group" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda ring: ring.update(format=9),
        lambda ring: ring.update(extra=1),
        lambda ring: ring.pop("version"),
        lambda ring: ring["keys"].pop(),
        lambda ring: ring["keys"][0].update(state="next"),
        lambda ring: ring["keys"][0].update(private=ring["keys"][1]["private"]),
        lambda ring: ring["keys"][0].update(private="zz"),
        lambda ring: ring["keys"][0].update(public="00"),
        lambda ring: ring["keys"][1].update(state="dead"),
    ],
)
def test_a_damaged_ring_is_refused_and_left_alone(tmp_path, change):
    secret = KeyRing.open(tmp_path, NOW).signing_key.private.hex()
    file = tmp_path / "keys.json"
    ring = json.loads(file.read_text())
    change(ring)
    file.write_text(json.dumps(ring))
    for text in (file.read_text(), "", "{", "[]", "\udcff"):
        file.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(KeyRingDamaged) as error:
            KeyRing.open(tmp_path, NOW)
        assert secret not in f"{error.value!r}"
        assert file.read_bytes() == text.encode(errors="surrogateescape")


def test_key_sets_travel_as_json():
    assert decode_key_set(encode_key_set(KEYS)) == KEYS
    assert decode_key_set(encode_key_set(KEYS).encode()) == KEYS


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"version":1}', '{"version":"1","keys":[]}', "\ud800", "x" * 70_000]
)
def test_what_is_no_key_set_is_refused(text):
    with pytest.raises(KeySetInvalid):
        decode_key_set(text)


def test_key_sets_that_lie_are_refused():
    key = KEYS.keys[0]
    for keys in (
        KeySet(-1, (key,)),
        KeySet(2**62, (key,)),
        KeySet(1, (key, key)),
        KeySet(1, (VerifyingKey("00000001", key.public, key.state),)),
        KeySet(1, (VerifyingKey(key.key, key.public.upper(), key.state),)),
        KeySet(1, (VerifyingKey(key.key, "02" + "00" * 31, key.state),)),
        KeySet(1, (VerifyingKey(key.key, "zz", key.state),)),
    ):
        with pytest.raises(KeySetInvalid):
            check_key_set(keys)


def test_a_lost_ring_is_a_new_hub(tmp_path):
    old = make(key=KeyRing.open(tmp_path / "one", NOW).signing_key)
    with pytest.raises(TokenUnknownKey):
        verify(old, KeyRing.open(tmp_path / "two", NOW).key_set, NOW)
