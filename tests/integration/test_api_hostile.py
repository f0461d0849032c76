"""What nobody should send: each malformed request and each bad token gets its own right answer and leaves no trace."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import biscuit_auth
import httpx
import pytest
from tests.integration.api_hub import HUB, ApiHub, started

from mintyard.app.record import decode_body
from mintyard.credentials import KeyRing, Restrictions, mint, narrow
from mintyard.credentials.envelope import decode_text, encode_text, join, split
from mintyard.domain import commands as c
from mintyard.domain.tokens.authority import ROLES, Scope
from mintyard.domain.units import NS_PER_S, Unit
from mintyard.ports.store import Record

pytestmark = pytest.mark.slow
JOB: dict[str, Any] = {"launch": {"argv": ["true"]}}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiHub]:
    for hub in started(tmp_path_factory.mktemp("hub")):
        hub.onboard("acme")
        hub.onboard("rival")
        yield hub


@pytest.fixture(scope="module")
def owner(hub: ApiHub) -> Iterator[httpx.Client]:
    with hub.client(hub.mint("acme")) as client:
        yield client


@pytest.fixture(autouse=True)
def no_trace(hub: ApiHub, owner: httpx.Client, request: pytest.FixtureRequest) -> Iterator[None]:
    """What is refused is not journaled: after each test there is nothing but the tokens that it made itself."""
    before = hub.seq
    yield
    kinds = {type(command) for record in hub.journal.read(before, 100) for command in inputs_of(record)}
    assert kinds <= MADE_BY_TESTS.get(request.function.__name__, {c.RegisterToken}), kinds


MADE_BY_TESTS = {
    "test_a_revoked_token_and_what_was_narrowed_from_it": {c.RegisterToken, c.RevokeBlock, c.SetTokenState},
}


def inputs_of(record: Record) -> list[c.Command]:
    return [command for command in decode_body(record).inputs if not isinstance(command, c.Tick)]


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document, complete as RFC 9457 and we want it."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    found = answer.json()
    assert (answer.status_code, found["code"]) == (status, code), found
    assert found["status"] == status
    assert found["type"] == f"urn:mintyard:error:{code}"
    assert found["instance"] == answer.headers["x-request-id"]
    assert found["title"]
    assert found["detail"]
    assert found["remedy"]
    assert not re.search(r"(^|[\s(])\?", found["detail"]), (
        found
    )  # every parameter of the message is filled in
    return found


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        ({**JOB, "gpuss": 1}, 400, "invalid_request", "gpus"),
        ({**JOB, "launch": {"argv": ["true"], "shell": "x"}}, 400, "invalid_request", "shell"),
        ({**JOB, "gpus": -1}, 400, "invalid_request", ">= 0"),
        ({**JOB, "time_limit_ms": 2**63}, 400, "invalid_request", "time_limit_ms"),
        ({**JOB, "time_limit_ms": 2**64}, 400, "invalid_request", "time_limit_ms"),
        ({**JOB, "time_limit_ms": 1.5}, 400, "invalid_request", "time_limit_ms"),
        ({**JOB, "time_limit_ms": True}, 400, "invalid_request", "time_limit_ms"),
        ({**JOB, "time_limit_ms": "60"}, 400, "invalid_request", "time_limit_ms"),
        ({**JOB, "budget": "-1"}, 422, "invalid_amount", "negative"),
        ({**JOB, "budget": "NaN"}, 422, "invalid_amount", "finite"),
        ({**JOB, "budget": "Infinity"}, 422, "invalid_amount", "finite"),
        ({**JOB, "budget": "1e9"}, 422, "invalid_amount", "plain decimal"),
        ({**JOB, "budget": "0.0000000001"}, 422, "invalid_amount", "finer"),
        ({**JOB, "budget": "9223372036854775808"}, 422, "invalid_amount", "too large"),
        ({**JOB, "budget": 5}, 400, "invalid_request", "budget"),
        ({**JOB, "begin_at": "2030-01-01"}, 422, "invalid_spec", "time zone"),
        ({**JOB, "name": "a b"}, 422, "invalid_name", "letters"),
        ({**JOB, "gpus": 2, "gpu_milli": 500}, 422, "invalid_spec", "gpu_milli"),
        ({}, 400, "invalid_request", "launch"),
        ([], 400, "invalid_request", "object"),
        (None, 400, "invalid_request", "object"),
        ({**JOB, "array": {"indices": [1, 1]}}, 422, "invalid_spec", "twice"),
        ({**JOB, "dependencies": [{"job": 99}]}, 422, "dependency_unknown", "99"),
    ],
)
def test_job_bodies(owner: httpx.Client, body: Any, status: int, code: str, says: str) -> None:
    answer = owner.post("/api/v1/jobs", content=json.dumps(body), headers=JSON)
    assert says in problem(answer, status, code)["detail"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "json body"),
        (b"{", "truncated"),
        (b"{'launch': 1}", "malformed"),
        (b'{"launch": {"argv": ["\xff\xfe"]}}', "utf-8"),
        (b'{"launch": {"argv": ["\\ud800"]}}', ""),
        (b'{"launch": {"argv": ["a"]}, "budget": NaN}', "malformed"),
        (b'{"launch": {"argv": ["a"]}} trailing', "trailing"),
        (b"[" * 200_000, "object"),
        (b'{"launch":' * 100_000, ""),
        (b'{"launch": {"argv": ["a"]}, "time_limit_ms": 1' + b"0" * 100_000 + b"}", "time_limit_ms"),
        (b'\xef\xbb\xbf{"launch": {"argv": ["a"]}}', "malformed"),
    ],
    ids=[
        "empty",
        "cut",
        "quotes",
        "utf8",
        "surrogate",
        "nan",
        "trailing",
        "nested",
        "nested objects",
        "digits",
        "bom",
    ],
)
def test_raw_bodies(owner: httpx.Client, raw: bytes, says: str) -> None:
    answer = owner.post("/api/v1/jobs", content=raw, headers=JSON)
    assert says in problem(answer, 400, "invalid_request")["detail"].lower()


@pytest.mark.parametrize("amount", ["-1", "NaN", "1e5", "0x1", "", " 1", "1,5", "9" * 41, str(2**63), "٣"])
def test_amounts(hub: ApiHub, amount: str) -> None:
    with hub.client(hub.admin()) as admin:
        answer = admin.post("/api/v1/grants", json={"account": "acme", "unit": "money", "amount": amount})
    assert answer.status_code in (400, 422)
    assert answer.json()["code"] in ("invalid_amount", "invalid_request")


def test_a_body_of_10_mb_is_refused_before_it_is_read(owner: httpx.Client) -> None:
    answer = owner.post("/api/v1/jobs", content=b" " * 10_000_000, headers=JSON)
    problem(answer, 413, "too_large")


def test_a_body_of_unknown_length_is_cut_while_it_is_read(owner: httpx.Client) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(160):
            yield b" " * 65_536

    problem(owner.post("/api/v1/jobs", content=parts(), headers=JSON), 413, "too_large")


def test_a_length_that_lies_is_no_way_around(hub: ApiHub, owner: httpx.Client) -> None:
    token = owner.headers["authorization"]
    with socket.create_connection(("127.0.0.1", hub.port), 10) as raw:
        raw.sendall(
            f"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: {token}\r\ncontent-type: application/json\r\n"
            "content-length: 99999999999999\r\n\r\n".encode()
        )
        assert raw.recv(64).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-type": "text/plain"}, 415, "media_type_unsupported"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "media_type_unsupported"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415, "media_type_unsupported"),
        (
            {"content-type": "application/json; charset=utf-8", "idempotency-key": "x"},
            422,
            "idempotency_key_invalid",
        ),
        ({**JSON, "idempotency-key": ""}, 422, "idempotency_key_invalid"),
        ({**JSON, "idempotency-key": "0" * 36}, 422, "idempotency_key_invalid"),
        ({**JSON, "idempotency-key": "9" * 5_000}, 422, "idempotency_key_invalid"),
        ({**JSON, "idempotency-key": "01000000-0000-7000-8000-000000000000"}, 422, "idempotency_key_invalid"),
        ({**JSON, "idempotency-key": "ffffffff-ffff-7000-8000-000000000000"}, 422, "idempotency_key_invalid"),
        ({**JSON, "x-mintyard-min-seq": "-1"}, 0, ""),
    ],
)
def test_headers(owner: httpx.Client, headers: dict[str, str], status: int, code: str) -> None:
    if not status:
        problem(owner.get("/api/v1/accounts", headers=headers), 400, "invalid_request")
        return
    problem(owner.post("/api/v1/jobs", content=json.dumps(JOB), headers=headers), status, code)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/api/v1/nothing", 404, "not_found"),
        ("GET", "/api/v1/jobs/0", 404, "not_found"),
        ("GET", "/api/v1/jobs/-1", 404, "not_found"),
        ("GET", "/api/v1/jobs/abc", 404, "not_found"),
        ("GET", "/api/v1/jobs/9223372036854775808", 404, "not_found"),
        ("GET", "/api/v1/jobs/%00", 404, "not_found"),
        ("GET", "/api/v1/jobs/%FF%FE", 404, "not_found"),
        ("GET", "/api/v1/grants/9223372036854775808", 404, "not_found"),
        ("GET", "/api/v1/accounts/..%2F..%2Frival", 404, "not_found"),
        ("GET", "/api/v1/accounts/acme%2F%2Fx", 404, "not_found"),
        ("GET", "/api/v1/tokens/" + "z" * 5_000, 404, "not_found"),
        ("GET", "/api/v1/jobs?limit=0", 400, "invalid_request"),
        ("GET", "/api/v1/jobs?limit=1001", 400, "invalid_request"),
        ("GET", "/api/v1/jobs?limit=1&limit=2", 400, "invalid_request"),
        ("GET", "/api/v1/jobs?limt=1", 400, "invalid_request"),
        ("GET", "/api/v1/jobs?since=yesterday", 422, "invalid_spec"),
        ("GET", "/api/v1/jobs?min_seq=9223372036854775808", 400, "invalid_request"),
        ("GET", "/api/v1/jobs?min_seq=9223372036854775807", 422, "invalid_spec"),
        ("GET", "/api/v1/jobs?name=%00", 400, "invalid_request"),
        ("GET", "/api/v1/jobs?name=%ff", 400, "invalid_request"),
        ("GET", "/api/v1/jobs?" + "a" * 5_000, 400, "invalid_request"),
        ("PUT", "/api/v1/jobs", 405, "method_not_allowed"),
        ("DELETE", "/api/v1/accounts/acme", 405, "method_not_allowed"),
        ("TRACE", "/api/v1/jobs", 405, "method_not_allowed"),
    ],
)  # fmt: skip
def test_paths(owner: httpx.Client, method: str, path: str, status: int, code: str) -> None:
    answer = owner.request(method, path)
    problem(answer, status, code)
    if status == 405:
        assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/jobs", "GET, OPTIONS, POST"), ("/jobs/1", "GET, OPTIONS, PATCH"), ("/keys", "GET, OPTIONS")],
)
def test_options_names_every_method(owner: httpx.Client, path: str, allowed: str) -> None:
    answer = owner.request("OPTIONS", f"/api/v1{path}")
    assert (answer.status_code, answer.headers["allow"]) == (204, allowed)


def test_a_whole_number_may_be_written_with_a_point(owner: httpx.Client) -> None:
    body = '{"launch": {"argv": ["true"]}, "gpus": 0.0, "time_limit_ms": 6e4}'
    answer = owner.post("/api/v1/jobs?dry_run=true", content=body, headers=JSON)
    assert answer.status_code == 201, answer.text


def test_a_verb_takes_no_body(owner: httpx.Client) -> None:
    problem(owner.post("/api/v1/holds/1/void", json={"force": True}), 400, "invalid_request")


# --- tokens ---------------------------------------------------------------------------------------------------------


def with_token(hub: ApiHub, token: str, status: int, code: str) -> httpx.Response:
    """A read and a write with `token` get the same answer."""
    headers = {"authorization": f"Bearer {token}"}
    with hub.client() as client:
        read = client.get("/api/v1/jobs", headers=headers)
        problem(read, status, code)
        write = client.post("/api/v1/jobs", json=JOB, headers=headers)
        problem(write, status, code)
    if status == 401:
        assert read.headers["www-authenticate"].startswith('Bearer realm="mintyard"')
    assert token[8:40] not in read.text + write.text
    return write


def test_no_token(hub: ApiHub) -> None:
    with hub.client() as client:
        for headers in (
            {},
            {"authorization": "Basic abc"},
            {"authorization": "Bearer"},
            {"authorization": ""},
        ):
            answer = client.get("/api/v1/whoami", headers=headers)
            problem(answer, 401, "token_missing")
            assert answer.headers["www-authenticate"] == 'Bearer realm="mintyard"'


@pytest.mark.parametrize(
    "text", ["x", "mint_", "mint_" + "A" * 5_000, "mint_\xff", "eyJhbGciOiJub25lIn0.e30."]
)
def test_a_malformed_token(hub: ApiHub, text: str) -> None:
    with hub.client() as client:
        answer = client.get("/api/v1/whoami", headers={"authorization": f"Bearer {text}".encode("latin-1")})
        problem(answer, 401, "token_malformed")


def test_an_expired_token(hub: ApiHub) -> None:
    ended = hub.now() + 2 * NS_PER_S
    token = hub.mint("acme", expires_at=ended)
    while hub.now() < ended:
        time.sleep(0.05)
    with_token(hub, token, 401, "token_expired")


def test_a_token_that_is_not_valid_yet(hub: ApiHub) -> None:
    later = hub.now() + 3_600 * NS_PER_S
    with_token(
        hub, hub.mint("acme", not_before=later, expires_at=later * 2 - hub.now()), 401, "token_not_yet_valid"
    )


def test_a_revoked_token_and_what_was_narrowed_from_it(hub: ApiHub) -> None:
    token = hub.mint("acme")
    child = narrow(
        token, hub.keys.key_set, Restrictions(scopes=frozenset({Scope.JOB_SUBMIT, Scope.JOB_READ}))
    )
    with hub.client(hub.admin()) as admin, hub.client(child) as bearer:
        blocks = [block["block"] for block in bearer.get("/api/v1/whoami").json()["blocks"]]
        ended = admin.post(f"/api/v1/tokens/{blocks[0]}/revoke-block", json={"block": blocks[1]})
        assert ended.status_code == 200
        with_token(hub, child, 401, "token_revoked")
        with hub.client(token) as parent:
            assert parent.get("/api/v1/whoami").status_code == 200
        admin.post(f"/api/v1/tokens/{blocks[0]}/revoke")
        with_token(hub, token, 401, "token_revoked")


def test_a_narrowed_token_does_less(hub: ApiHub) -> None:
    token = hub.mint("acme")
    keys = hub.keys.key_set
    reader = narrow(token, keys, Restrictions(scopes=frozenset({Scope.JOB_READ})))
    with hub.client(reader) as bearer:
        answer = bearer.post("/api/v1/jobs", json=JOB)
        problem(answer, 403, "scope_missing")
        assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
        assert bearer.get("/api/v1/jobs").status_code == 200
    elsewhere = narrow(token, keys, Restrictions(clusters=("other",)))
    with_token(hub, elsewhere, 403, "token_wrong_audience")
    small = narrow(token, keys, Restrictions(ceilings={Unit.MONEY: 1}))
    with hub.client(small) as bearer:
        problem(bearer.post("/api/v1/jobs", json=JOB), 402, "ceiling_reached")


def test_a_forged_token(hub: ApiHub, tmp_path: Any) -> None:
    foreign = KeyRing.open(tmp_path, 0).signing_key
    now = hub.now()
    forged = mint(
        foreign,
        account="acme",
        serial=b"x" * 16,
        scopes=ROLES["admin"],
        issued_at=now,
        expires_at=now + NS_PER_S * 60,
    )
    with_token(hub, forged.token, 401, "token_unknown_key")
    ours = hub.keys.signing_key
    claimed = split(decode_text(forged.token))
    renamed = encode_text(join(int(ours.key, 16), claimed.blocks, claimed.proof, sealed=False))
    with_token(hub, renamed, 401, "token_bad_signature")


def test_a_token_that_was_signed_and_never_registered(hub: ApiHub) -> None:
    now = hub.now()
    made = mint(
        hub.keys.signing_key,
        account="acme",
        serial=b"y" * 16,
        scopes=ROLES["owner"],
        issued_at=now,
        expires_at=now + 60 * NS_PER_S,
    )
    with hub.client(made.token) as bearer:
        problem(bearer.post("/api/v1/jobs", json=JOB), 401, "token_unregistered")


def test_a_token_with_swapped_or_missing_blocks(hub: ApiHub) -> None:
    keys = hub.keys.key_set
    wide, other = hub.mint("acme"), hub.mint("rival")
    child = split(decode_text(narrow(wide, keys, Restrictions(scopes=frozenset({Scope.JOB_READ})))))
    foreign = split(decode_text(other))
    swapped = encode_text(join(child.key_id, (foreign.blocks[0], child.blocks[1]), child.proof, sealed=False))
    with_token(hub, swapped, 401, "token_bad_signature")
    cut = encode_text(join(child.key_id, child.blocks[:1], child.proof, sealed=False))
    with_token(hub, cut, 401, "token_bad_signature")


@pytest.mark.parametrize(
    "datalog",
    [
        "right($x) <- account($x);",
        'scope("admin");',
        'reject if account("acme");',
        "check if " + ", ".join(f"n($v{i})" for i in range(60)) + ";",
        'check if account($a) trusting ed25519/acdd6d5b53bfee478bf689f8e012fe7988bf755e3d7c5152947abc149bc20189;',
    ],
)  # fmt: skip
def test_a_datalog_laden_token_is_refused_fast(hub: ApiHub, datalog: str) -> None:
    held = split(decode_text(hub.mint("acme")))
    key = next(key for key in hub.keys.key_set.keys if key.key == f"{held.key_id:08x}")
    public = biscuit_auth.PublicKey.from_bytes(bytes.fromhex(key.public), biscuit_auth.Algorithm.Ed25519)
    biscuit = biscuit_auth.Biscuit.from_bytes(held.raw, public)
    laden = encode_text(bytes(biscuit.append(biscuit_auth.BlockBuilder(datalog)).to_bytes()))
    begun = time.monotonic()
    with_token(hub, laden, 401, "token_malformed")
    assert time.monotonic() - begun < 2


def test_nothing_secret_is_in_metrics(hub: ApiHub, owner: httpx.Client) -> None:
    token = owner.headers["authorization"].split()[1]
    with hub.client() as client:
        client.get(f"/api/v1/{token}", params={"t": token})
        text = client.get("/metrics").text
    assert token[:24] not in text
    assert "acme" not in text
    assert HUB not in text
