"""What a holder may append by the library but mintyard must not read: Datalog, escapes, third parties (T4)."""

import time

import biscuit_auth
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.credentials_material import (
    KEYS,
    NOW,
    PUBLIC,
    append,
    make,
    parse,
    put_together,
    sign_first,
    take_apart,
)

from mintyard.credentials import Restrictions, narrow, read, verify
from mintyard.credentials.envelope import SignedBlock, decode_text, encode_text, split
from mintyard.credentials.grammar import read_block
from mintyard.credentials.keys import verifier
from mintyard.domain.errors import TokenBadSignature, TokenMalformed, TooLarge
from mintyard.domain.tokens.authority import Scope

TOKEN = make(jobs=(1, 2))
EXPENSIVE = (
    "".join(f"n({i});" for i in range(40))
    + "check if n($a), n($b), n($c), n($d), n($e), n($f), $a + $b + $c + $d + $e + $f < 0;"
)
DEEP = "check if " + "(" * 60 + "true" + ")" * 60


@pytest.mark.parametrize(
    "source",
    [
        'scope("grant:write")',
        'account("acme")',
        'token("00000000000000000000000000000000")',
        "issued(1)",
        'parent("00000000000000000000000000000000")',
        "time(2020-01-01T00:00:00Z)",
        'operation("job:read")',
        "right($x) <- operation($x)",
        "job(1) <- time($t)",
        "reject if true",
        "reject if time($time), $time > 2020-01-01T00:00:00Z",
        "check all time($time), $time < 2030-01-01T00:00:00Z",
        "check if true",
        "check if false",
        "check if 1 < 2",
        'check if "a" == "a"',
        "check if time($time)",
        "check if time($t), $t < 2030-01-01T00:00:00Z",
        "check if time($time), $time > 2020-01-01T00:00:00Z",
        "check if time($time), $time < 2020-01-01T00:00:00Z or time($time)",
        "check if time($time), $time < 9999-12-31T23:59:59Z",
        "check if time($time), $time < 2030-01-01T00:00:00Z trusting previous",
        'check if account("acme/vision") trusting authority',
        f"check if job($job), {{1}}.contains($job) trusting ed25519/{PUBLIC.public}",
        "check if job($job), {1}.contains($job), $job > 0",
        "check if job($job), !{1}.contains($job)",
        "check if job($job), [1].contains($job)",
        "check if job($job), {,}.contains($job)",
        'check if job($job), {"1"}.contains($job)',
        "check if job($job), {-1}.contains($job)",
        "check if cluster($cluster), {1}.contains($cluster)",
        'check if cluster("a")',
        'check if cluster($cluster), $cluster == "a"',
        'check if cluster($cluster), {".a"}.contains($cluster)',
        "check if gpus_milli($gpus_milli), $gpus_milli <= -1",
        "check if gpus_milli($gpus_milli), $gpus_milli >= 1",
        "check if gpus_milli($gpus_milli), $gpus_milli <= 1 || true",
        "check if gpus_milli($gpus_milli), $gpus_milli <= 9223372036854775807",
        "check if gpus_milli($gpus_milli), $gpus_milli <= 4611686018427387905",
        "check if gpus_milli($cpus_milli), $cpus_milli <= 1",
        "check if gpus($gpus), $gpus <= 1",
        'check if use("gpu_minutes", $use), $use <= 1',
        'check if use($unit, $use), $use <= 1; check if use("money", $use), $use <= 1',
        "check if job($job), {1}.contains($job); check if job($job), {2}.contains($job)",
        'check if use("money", $use), $use <= 1; check if use("money", $use), $use <= 2',
        'check if account("acme/visions")',
        'check if account("other")',
        'check if account("acme/vision/")',
        'check if account("acme/vision/../x")',
        'check if operation($operation), {"a"}.any($x -> $x == "a")',
        'check if "x".extern::anything()',
        EXPENSIVE,
        DEEP,
    ],
)
def test_statements_outside_the_vocabulary_are_refused_at_once(source):
    hostile = append(TOKEN, source)
    start = time.thread_time()
    with pytest.raises(TokenMalformed):
        verify(hostile, KEYS, NOW)
    assert time.thread_time() - start < 0.02


def test_an_endless_rule_is_refused_unread():
    rules = "".join(f"n({i});" for i in range(30)) + "m($a, $b, $c, $d) <- n($a), n($b), n($c), n($d);"
    hostile = append(TOKEN, rules)
    start = time.thread_time()
    with pytest.raises(TokenMalformed):
        verify(hostile, KEYS, NOW)
    assert time.thread_time() - start < 0.02


def test_blocks_behind_a_hostile_one_don_t_hide_it():
    hostile = append(append(TOKEN, "check if true"), "check if job($job), {1}.contains($job)")
    with pytest.raises(TokenMalformed):
        verify(hostile, KEYS, NOW)
    with pytest.raises(TokenMalformed):
        narrow(hostile, KEYS, Restrictions(jobs=(1,)))


def test_third_party_blocks_are_refused():
    biscuit = parse(TOKEN)
    other = biscuit_auth.KeyPair()
    block = biscuit.third_party_request().create_block(
        other.private_key, biscuit_auth.BlockBuilder("check if job($job), {1}.contains($job)")
    )
    with pytest.raises(TokenMalformed):
        verify(encode_text(bytes(biscuit.append_third_party(other.public_key, block).to_bytes())), KEYS, NOW)


def test_a_hand_written_block_of_the_vocabulary_is_read():
    token = append(
        TOKEN, 'check if cluster($cluster), {"b", "a"}.contains($cluster); check if account("acme/vision/x")'
    )
    authority = read(token, KEYS)
    assert (authority.clusters, authority.account) == (("a", "b"), "acme/vision/x")


def test_scopes_of_a_later_version_take_away_only():
    token = append(TOKEN, 'check if operation($operation), {"job:read", "job:teleport"}.contains($operation)')
    assert read(token, KEYS).scopes == {Scope.JOB_READ}
    token = append(TOKEN, 'check if operation($operation), {"job:teleport"}.contains($operation)')
    assert read(token, KEYS).scopes == frozenset()


# --- escapes: the library prints strings as they are, so a string could look like statements --------------------------

ESCAPES = [
    '1"); check if true; scope("',
    'a"}.contains($cluster);\ncheck if job($job), {1, 2, 3}.contains($job);\ncheck if cluster($cluster), {"a',
    'a", "b',
    'a"',
    "a\\",
    "a\nb",
    "a;b",
    "a b",
    "a(b",
    "é",
    "\x00",
    "a\u202eb",
    "",
    "a" * 129,
]


@pytest.mark.parametrize("text", ESCAPES)
@pytest.mark.parametrize(
    "source", ["check if account({x})", "scope({x})", "check if use({x}, $use), $use <= 1"]
)
def test_strings_that_could_hide_statements_are_refused(text, source):
    with pytest.raises(TokenMalformed):
        verify(append(TOKEN, source, {"x": text}), KEYS, NOW)


@pytest.mark.parametrize("text", ESCAPES)
def test_members_that_could_hide_statements_are_refused(text):
    members = {"x": {"b", text}}
    with pytest.raises(TokenMalformed):
        verify(append(TOKEN, "check if cluster($cluster), {x}.contains($cluster)", members), KEYS, NOW)


REST = (
    'issued(1); check if account("acme"); check if operation($operation), {"job:read"}.contains($operation);'
    "check if time($time), $time < 2030-01-01T00:00:00Z;"
)


def test_the_printed_form_alone_would_have_been_fooled():
    # The reason for checking symbols: this one string prints as two statements of the vocabulary.
    smuggled = "0" * 32 + '");\nparent("' + "1" * 32
    token = sign_first("token({x});" + REST, {"x": smuggled})
    _, origin = read_block(parse(token).block_source(0), first=True)
    assert origin.parents == ("1" * 32,)
    with pytest.raises(TokenMalformed, match="characters"):
        verify(token, KEYS, NOW)


@given(st.text(max_size=140))
def test_whatever_string_is_signed_into_the_first_block_it_is_one_string_or_refused(text):
    source = 'token("00000000000000000000000000000000");' + REST
    source += "check if cluster($cluster), {x}.contains($cluster)"
    try:
        authority = read(sign_first(source, {"x": {"zz", text}}), KEYS)
    except (TokenMalformed, TooLarge):
        return
    assert authority.clusters == tuple(sorted({"zz", text}))
    assert authority.account == "acme"


@pytest.mark.parametrize(
    "missing", ["token", "issued", "check if account", "check if operation", "check if time"]
)
def test_a_first_block_must_say_all_that_it_has_to(missing):
    statements = [
        'token("00000000000000000000000000000000")',
        "issued(1)",
        'check if account("acme")',
        'check if operation($operation), {"job:read"}.contains($operation)',
        "check if time($time), $time < 2030-01-01T00:00:00Z",
    ]
    assert read(sign_first(";".join(statements)), KEYS).account == "acme"
    with pytest.raises(TokenMalformed, match="lacks"):
        read(sign_first(";".join(s for s in statements if not s.startswith(missing))), KEYS)


def test_the_wire_has_one_form_only():
    envelope = take_apart(TOKEN)
    block = envelope.blocks[0]
    raw = decode_text(TOKEN)
    for other in (
        raw + b"\x28\x01",  # an unknown field at the end
        b"\x28\x01" + raw,
        raw[:6] + raw[6:].replace(b"\x12\x24\x08\x00\x12\x20", b"\x12\x24\x08\x01\x12\x20", 1),  # P-256
        b"\x08\x80\x00" + raw[6:],  # a key id with a needless byte
        b"\x08\xff\xff\xff\xff\x7f" + raw[6:],  # a key id beyond 32 bits
        raw[6:],  # no key id
        raw[:6] + raw[-36:],  # no block
    ):
        with pytest.raises(TokenMalformed):
            split(other)
    for data in (
        block.data + b"\x12\x01a",  # a context
        block.data.replace(b"\x18\x03", b"\x18\x04"),
        block.data.replace(b"\x18\x03", b""),
        b"\x0a\x00" + block.data,
        b"\x0a\x81\x00a" + block.data,
        block.data + b"\x3a\x02\x08\x00",  # a scope for the whole block
        block.data + b"\x2a\x00",  # a rule
        block.data + b"\x42\x24\x08\x00\x12\x20" + bytes(32),  # public keys
        b"",
    ):
        with pytest.raises(TokenMalformed):
            split(decode_text(put_together(envelope, blocks=(SignedBlock(data, *block[1:]),))))


def test_a_hostile_block_without_a_right_signature_is_refused_too():
    hostile = take_apart(append(TOKEN, "check if job($job), {1}.contains($job)"))
    with pytest.raises(TokenBadSignature):
        verify(put_together(hostile, proof=bytes(32)), KEYS, NOW)
    assert biscuit_auth.Biscuit.from_bytes(hostile.raw, verifier(PUBLIC.public))
