"""Mint, narrow, verify, inspect, seal: what comes out, and that nothing forged comes in (T1, T2, T4)."""

import os
import random
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.credentials_material import (
    DAY,
    KEYS,
    NOW,
    PUBLIC,
    make,
    make_key,
    make_minted,
    parse,
    put_together,
    take_apart,
)

from mintyard.credentials import (
    PATTERN,
    KeySet,
    KeyState,
    Restrictions,
    inspect,
    looks_like_token,
    narrow,
    read,
    seal,
    verify,
)
from mintyard.credentials.ed25519 import sign
from mintyard.domain.errors import (
    InvalidName,
    InvalidSpec,
    MintyardError,
    NotAcceptableTime,
    TokenBadSignature,
    TokenExpired,
    TokenKeyDead,
    TokenMalformed,
    TokenNotYetValid,
    TokenSealed,
    TokenUnknownKey,
    TooLarge,
    Widening,
)
from mintyard.domain.limits import MAX_AMOUNT, MAX_TOKEN_BYTES
from mintyard.domain.tokens.authority import ROLES, Block, Caps, Scope
from mintyard.domain.units import NS_PER_S, Unit


def test_a_minted_token_reads_as_it_was_asked_for():
    minted = make_minted(
        serial=os.urandom(16),
        not_before=NOW - 1,
        caps=Caps(gpus_milli=4000, memory_mib=1),
        ceilings={Unit.GPU: 36_000_000, Unit.MONEY: 0},
        clusters=("b", "a"),
        models=("meta-llama/Llama-3.1-8B",),
        jobs=(7, 3),
        parents=("ab" * 16,),
    )
    authority = verify(minted.token, KEYS, NOW)
    assert authority == minted.authority
    assert authority.account == "acme/vision"
    assert authority.scopes == frozenset(ROLES["member"])
    assert (authority.expires_at, authority.not_before, authority.issued_at) == (NOW + DAY, NOW, NOW)
    assert authority.caps == Caps(4000, None, 1)
    assert (authority.clusters, authority.models, authority.jobs) == (
        ("a", "b"),
        ("meta-llama/Llama-3.1-8B",),
        (3, 7),
    )
    assert authority.parents == ("ab" * 16,)
    assert authority.key == PUBLIC.key
    assert authority.blocks == (Block(minted.block, NOW + DAY, {Unit.GPU: 36_000_000, Unit.MONEY: 0}),)


def test_block_ids_are_the_hash_of_the_library_s_revocation_ids():
    from hashlib import blake2b

    token = narrow(make(), KEYS, Restrictions(jobs=(1,)))
    ids = [blake2b(bytes.fromhex(one)).hexdigest()[:32] for one in parse(token).revocation_ids]
    assert [block.block for block in read(token, KEYS).blocks] == ids


def test_equal_serials_still_make_tokens_of_their_own():
    assert make_minted().block != make_minted().block


def test_times_are_cut_to_whole_seconds_inwards():
    token = make(expires_at=NOW + DAY + 999_999_999, not_before=NOW + 1)
    authority = read(token, KEYS)
    assert (authority.expires_at, authority.not_before) == (NOW + DAY, NOW + NS_PER_S)
    with pytest.raises(TokenNotYetValid):
        verify(token, KEYS, NOW + NS_PER_S - 1)
    assert verify(token, KEYS, NOW + NS_PER_S)
    assert verify(token, KEYS, NOW + DAY - 1)
    with pytest.raises(TokenExpired) as error:
        verify(token, KEYS, NOW + DAY)
    assert "2026-12-01T" in str(error.value)


def test_narrowing_needs_no_private_key_and_keeps_the_parent_s_blocks():
    parent = make_minted(ceilings={Unit.GPU: 100})
    child = narrow(
        parent.token,
        KEYS,
        Restrictions(
            account="acme/vision/ann",
            scopes=frozenset({Scope.JOB_SUBMIT}),
            expires_at=NOW + 10 * NS_PER_S,
            caps=Caps(gpus_milli=1000),
            ceilings={Unit.GPU: 10},
            clusters=("a", "b"),
        ),
    )
    grandchild = narrow(child, KEYS, Restrictions(clusters=("b",), jobs=(5,), ceilings={Unit.GPU: 3}))
    authority = verify(grandchild, KEYS, NOW)
    assert authority.account == "acme/vision/ann"
    assert authority.scopes == {Scope.JOB_SUBMIT}
    assert authority.clusters == ("b",)
    assert authority.jobs == (5,)
    assert authority.root == parent.block
    assert [block.ceilings for block in authority.blocks] == [{Unit.GPU: 100}, {Unit.GPU: 10}, {Unit.GPU: 3}]
    assert [block.expires_at for block in authority.blocks] == [NOW + DAY, *[NOW + 10 * NS_PER_S] * 2]
    assert verify(parent.token, KEYS, NOW) == parent.authority, "the parent is as it was"


@pytest.mark.parametrize(
    "wider",
    [
        Restrictions(account="acme"),
        Restrictions(account="acme/visions"),
        Restrictions(account="/"),
        Restrictions(scopes=frozenset({Scope.GRANT_WRITE, Scope.JOB_READ})),
        Restrictions(expires_at=NOW + DAY + NS_PER_S),
        Restrictions(caps=Caps(gpus_milli=5)),
        Restrictions(clusters=("a", "c")),
        Restrictions(jobs=(2,)),
        Restrictions(models=("m2",)),
        Restrictions(ceilings={Unit.CPU: 11}),
    ],
)
def test_asking_for_more_than_one_has_is_named(wider):
    token = make(caps=Caps(4), clusters=("a", "b"), jobs=(1,), models=("m",), ceilings={Unit.CPU: 10})
    with pytest.raises(Widening):
        narrow(token, KEYS, wider)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"account": "Acme"}, InvalidName),
        ({"account": 'a"); token("'}, InvalidName),
        ({"account": "/".join("a" * 9)}, InvalidName),
        ({"serial": b"short"}, InvalidSpec),
        ({"serial": "0" * 16}, InvalidSpec),
        ({"scopes": ()}, InvalidSpec),
        ({"scopes": ("job:fly",)}, InvalidSpec),
        ({"expires_at": NOW}, NotAcceptableTime),
        ({"expires_at": NOW + 367 * DAY}, NotAcceptableTime),
        ({"expires_at": float("nan")}, InvalidSpec),
        ({"expires_at": -1}, InvalidSpec),
        ({"expires_at": 2**63}, InvalidSpec),
        ({"issued_at": -1}, InvalidSpec),
        ({"not_before": NOW + 2 * DAY}, NotAcceptableTime),
        ({"not_before": 0.5}, InvalidSpec),
        ({"caps": Caps(gpus_milli=-1)}, InvalidSpec),
        ({"caps": Caps(cpus_milli=MAX_AMOUNT + 1)}, InvalidSpec),
        ({"caps": Caps(memory_mib=1.5)}, InvalidSpec),
        ({"caps": Caps(memory_mib=True)}, InvalidSpec),
        ({"ceilings": {Unit.GPU: -1}}, InvalidSpec),
        ({"ceilings": {Unit.GPU: float("nan")}}, InvalidSpec),
        ({"clusters": ()}, InvalidSpec),
        ({"clusters": ("a", "a")}, InvalidSpec),
        ({"clusters": ('a", "b',)}, InvalidName),
        ({"clusters": ("a" * 129,)}, InvalidName),
        ({"models": ("",)}, InvalidName),
        ({"models": ("a\n",)}, InvalidName),
        ({"jobs": (0,)}, InvalidSpec),
        ({"jobs": ("1",)}, InvalidSpec),
        ({"parents": ("xyz",)}, InvalidSpec),
        ({"parents": ("ab" * 16,) * 2}, InvalidSpec),
        ({"clusters": tuple(f"cluster-{i:04}" for i in range(400))}, TooLarge),
    ],
)
def test_bad_values_are_refused_before_anything_is_signed(change, error):
    with pytest.raises(error):
        make(**change)


@pytest.mark.parametrize(
    "bad",
    [
        Restrictions(),
        Restrictions(expires_at=float("nan")),
        Restrictions(not_before="now"),
        Restrictions(scopes=frozenset({"job:fly"})),
        Restrictions(caps=Caps(gpus_milli=-1)),
        Restrictions(jobs=()),
    ],
)
def test_bad_restrictions_are_refused(bad):
    with pytest.raises(InvalidSpec):
        narrow(make(), KEYS, bad)


def test_names_of_full_length_fit():
    name, account = "n" * 128, "a" * 63 + "/" + "b" * 63
    authority = read(make(clusters=(name,), account=account), KEYS)
    assert (authority.clusters, authority.account) == ((name,), account)


def test_a_token_of_the_whole_platform():
    token = narrow(make(account="/", scopes=ROLES["admin"]), KEYS, Restrictions(account="acme"))
    assert read(token, KEYS).account == "acme"


def test_eight_blocks_are_the_end():
    token = make()
    for job in range(9, 2, -1):
        token = narrow(token, KEYS, Restrictions(jobs=tuple(range(1, job))))
    assert len(read(token, KEYS).blocks) == 8
    with pytest.raises(TooLarge):
        narrow(token, KEYS, Restrictions(jobs=(1,)))


def test_a_sealed_token_works_and_can_t_be_narrowed():
    token = narrow(make(), KEYS, Restrictions(jobs=(1, 2)))
    sealed = seal(token, KEYS)
    assert sealed != token
    assert verify(sealed, KEYS, NOW) == verify(token, KEYS, NOW)
    assert seal(sealed, KEYS) == sealed
    with pytest.raises(TokenSealed):
        narrow(sealed, KEYS, Restrictions(jobs=(1,)))
    assert inspect(sealed, KEYS).sealed


def test_seals_of_many_tokens_hold():
    for _ in range(
        25
    ):  # another key, block and signature each time; `seal` itself has the library check them
        assert verify(seal(make(), KEYS), KEYS, NOW)


@pytest.mark.parametrize(
    ("private", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
    ],
)
def test_the_seal_s_signature_by_the_vectors_of_rfc_8032(private, message, signature):
    assert sign(bytes.fromhex(private), bytes.fromhex(message)).hex() == signature


def test_inspection_shows_each_block_and_no_secret():
    token = narrow(make(serial=b"\x07" * 16), KEYS, Restrictions(expires_at=NOW + NS_PER_S))
    view = inspect(token, KEYS)
    assert (view.key, view.key_state, view.serial, view.sealed) == (
        PUBLIC.key,
        KeyState.ACTIVE,
        "07" * 16,
        False,
    )
    assert view.blocks[0].adds.account == "acme/vision"
    assert view.blocks[1].adds == Restrictions(expires_at=NOW + NS_PER_S)
    assert view.blocks[1].statements == (f"check if time($time), $time < {_iso(NOW + NS_PER_S)};",)
    envelope = take_apart(token)
    for secret in (token[10:60], envelope.proof.hex(), envelope.blocks[0].signature.hex()):
        assert secret not in repr(view)
    assert "mint_" not in repr(make_minted())


def _iso(ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ns // NS_PER_S))


# --- forgery --------------------------------------------------------------------------------------------------------


def test_text_is_found_by_scanners_and_no_other_text_is():
    token = make()
    assert PATTERN.fullmatch(token)
    assert looks_like_token(token)
    assert PATTERN.findall(f'{{"t":"{token}"}} and {token[:90]}') == [token]
    assert not looks_like_token(token[:-1] + ("A" if token[-1] != "A" else "Q"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mint_",
        "mint_AAAA",
        "mint_AAAAA",
        "Bearer x",
        "mint_" + "A" * MAX_TOKEN_BYTES,
        "mint_" + "é" * 300,
        "mint_" + "\ud800" * 300,
        "mint_" + "=" * 300,
        make()[5:],
        make() + "=",
        make() + "\n",
        make()[:-1],
        make()[:-8],
        make().replace("mint_", "MINT_"),
        " " + make(),
        make()[:50] + " " + make()[50:],
        make()[:50] + "+" + make()[51:],
        None,
        b"mint_AAAA",
        7,
    ],
)
def test_what_is_no_token_is_malformed(text):
    with pytest.raises(TokenMalformed):
        verify(text, KEYS, NOW)


def test_every_changed_character_is_refused():
    token = narrow(make(), KEYS, Restrictions(jobs=(1,)))
    for at in range(len(token)):
        for other in ("A", "_", "9"):
            if token[at] != other:
                with pytest.raises(TokenMalformed):
                    verify(token[:at] + other + token[at + 1 :], KEYS, NOW)


@pytest.mark.parametrize("sealed", [False, True])
def test_every_changed_byte_behind_a_right_checksum_is_refused(sealed):
    from mintyard.credentials.envelope import decode_text, encode_text

    token = narrow(make(), KEYS, Restrictions(jobs=(1,)))
    raw = decode_text(seal(token, KEYS) if sealed else token)
    rng = random.Random(1)
    for at in range(len(raw)):
        for bit in rng.sample(range(8), 3):
            forged = bytearray(raw)
            forged[at] ^= 1 << bit
            with pytest.raises((TokenMalformed, TokenBadSignature, TokenUnknownKey)):
                verify(encode_text(bytes(forged)), KEYS, NOW)


@given(st.binary(max_size=400))
def test_random_bytes_behind_a_right_checksum_are_refused(noise):
    from mintyard.credentials.envelope import encode_text

    with pytest.raises((TokenMalformed, TokenBadSignature, TokenUnknownKey)):
        verify(encode_text(noise), KEYS, NOW)


@settings(max_examples=50)
@given(st.data())
def test_cut_inserted_and_repeated_bytes_are_refused(data):
    from mintyard.credentials.envelope import decode_text, encode_text

    raw = decode_text(_SAMPLE)
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(raw)), st.integers(0, len(raw)))))
    other = data.draw(st.sampled_from([b"", raw[start:end] * 2, bytes(end - start), raw[:start]]))
    forged = raw[:start] + other + raw[end:]
    if forged != raw:
        with pytest.raises((TokenMalformed, TokenBadSignature, TokenUnknownKey, TooLarge)):
            verify(encode_text(forged), KEYS, NOW)


_SAMPLE = narrow(make(), KEYS, Restrictions(jobs=(1,)))


def test_an_altered_signature_of_the_same_meaning_is_refused():
    # s + L signs the same message in lax verifiers and would give the block another revocation id and counter.
    envelope = take_apart(make())
    first = envelope.blocks[0]
    order = 2**252 + 27742317777372353535851937790883648493
    lifted = int.from_bytes(first.signature[32:], "little") + order
    forged = first._replace(signature=first.signature[:32] + lifted.to_bytes(32, "little"))
    with pytest.raises(TokenBadSignature):
        verify(put_together(envelope, blocks=(forged,)), KEYS, NOW)


def test_blocks_swapped_between_tokens_are_refused():
    one = take_apart(narrow(make(), KEYS, Restrictions(jobs=(1,))))
    two = take_apart(narrow(make(), KEYS, Restrictions(jobs=(1, 2))))
    for blocks in (
        (one.blocks[0], two.blocks[1]),
        (two.blocks[0], one.blocks[1]),
        (one.blocks[1], one.blocks[0]),
        (one.blocks[0], one.blocks[1], two.blocks[1]),
        (one.blocks[0], one.blocks[1], one.blocks[1]),
        (one.blocks[0], one.blocks[0]),
    ):
        for proof in (one.proof, two.proof):
            with pytest.raises((TokenBadSignature, TokenMalformed)):
                verify(put_together(one, blocks=blocks, proof=proof), KEYS, NOW)


def test_a_block_can_t_be_dropped_without_the_token_it_was_added_to():
    parent = make()
    child = narrow(parent, KEYS, Restrictions(jobs=(1,)))
    grandchild = narrow(child, KEYS, Restrictions(scopes=frozenset({Scope.JOB_READ})))
    held = take_apart(grandchild)
    for keep in (1, 2):
        with pytest.raises(TokenBadSignature):
            verify(put_together(held, blocks=held.blocks[:keep]), KEYS, NOW)
    sealed = take_apart(seal(grandchild, KEYS))
    with pytest.raises(TokenBadSignature):
        verify(put_together(sealed, blocks=sealed.blocks[:2]), KEYS, NOW)
    # What does not hold, by design: who has the wider token has it. Only its proof makes the shorter chain valid.
    shorter = put_together(held, blocks=held.blocks[:2], proof=take_apart(child).proof)
    assert shorter == child


def test_keys_unknown_dead_next_and_retiring():
    key, public = make_key()
    token = make(key=key)
    with pytest.raises(TokenUnknownKey):
        verify(token, KEYS, NOW)
    for state in KeyState:
        keys = KeySet(2, (PUBLIC, type(public)(public.key, public.public, state)))
        if state is KeyState.DEAD:
            with pytest.raises(TokenKeyDead):
                verify(token, keys, NOW)
        else:
            assert verify(token, keys, NOW).key == public.key


def test_a_token_relabelled_with_a_known_key_is_a_bad_signature():
    key, _ = make_key()
    envelope = take_apart(make(key=key))
    with pytest.raises(TokenBadSignature):
        verify(put_together(envelope, key_id=int(PUBLIC.key, 16)), KEYS, NOW)


def test_refusals_of_structure_touch_no_curve(monkeypatch):
    from mintyard.credentials import tokens

    def fail(*_):
        raise AssertionError("a signature was checked")

    token = narrow(make(), KEYS, Restrictions(jobs=(1,)))
    envelope = take_apart(token)
    nine = (*envelope.blocks, *[envelope.blocks[1]] * 7)
    monkeypatch.setattr(tokens, "_signed", fail)
    with pytest.raises(TokenUnknownKey):
        verify(put_together(envelope, key_id=1), KEYS, NOW)
    for text in ("mint_" + "A" * 400, token[:-9], "x" * 500, put_together(envelope, blocks=nine)):
        with pytest.raises(TokenMalformed):
            verify(text, KEYS, NOW)
    with pytest.raises(AssertionError):
        verify(token, KEYS, NOW)


def test_errors_never_carry_the_token():
    token = make()
    for text in (token[:-1], token, token.replace("mint", "Mint")):
        with pytest.raises(MintyardError) as caught:
            verify(text, KEYS, NOW + 9 * DAY)
        assert token[8:40] not in f"{caught.value!r} {caught.value} {caught.value.cure}"


def test_importing_credentials_stays_light():
    code = (
        "import sys; before = set(sys.modules); import mintyard.credentials;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} & "
        "{'numpy', 'numba', 'sqlalchemy', 'httpx', 'litestar', 'cryptography', 'yaml', 'rich', 'asyncio'}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.acceptance
def test_twenty_thousand_valid_verifications_under_load_and_no_refusal():
    token = _SAMPLE
    for job in ((1,), (1,)):
        token = narrow(token, KEYS, Restrictions(jobs=job))
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for _ in range(20_000):
            assert verify(token, KEYS, NOW).jobs == (1,)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
