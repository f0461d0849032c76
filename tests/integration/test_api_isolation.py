"""Tenant isolation, over the table of all routes: what is another's is answered as what doesn't exist, word for word.

A route that is not in `CASES` fails here, so a new one can't be forgotten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from tests.integration.api_hub import ApiHub, started

from mintyard.api.routes import PREFIX, Route
from mintyard.api.table import ROUTES
from mintyard.domain import commands as c
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import SCALE, Unit
from mintyard.ports.engine import AttemptKey

pytestmark = pytest.mark.slow
JOB: dict[str, Any] = {"launch": {"argv": ["true"]}, "held": True}


class Case(msgspec.Struct, frozen=True):
    """How a route is tried. `foreign` and `unknown` fill its path with a thing of the rival and one that nobody has; `body` may
    name both as `@` (the thing), `hides` says that a list must not show what is the rival's, `open` why there is nothing to
    hide."""

    foreign: str = ""
    unknown: str = ""
    body: Any = None
    hides: bool = False
    open: str = ""


THING = Case("rival%2Flab", "nobody")
GRANT, HOLD, JOBS, TOKEN = (
    Case("{grant}", "99999"),
    Case("{hold}", "99999"),
    Case("{job}", "99999"),
    Case("{token}", "f" * 32),
)
OWN = "acts on the caller's own account"
SHARED = "shared by all tenants, or open to the hub's operators only"


def of(case: Case, body: Any) -> Case:
    return msgspec.structs.replace(case, body=body)


CASES: dict[str, Case] = {
    "open_account": Case("rival/x", "nobody/x", {"account": "@"}),
    "list_accounts": Case(hides=True),
    "show_account": THING,
    "suspend_account": THING,
    "resume_account": THING,
    "close_account": THING,
    "create_grant": Case("rival/lab", "nobody", {"account": "@", "unit": "money", "amount": "1"}),
    "list_grants": Case(hides=True),
    "show_grant": GRANT,
    "adjust_grant": of(GRANT, {"add": "1"}),
    "end_grant": GRANT,
    "refund_grant": of(GRANT, {"amount": "1"}),
    "mint_token": Case("rival/lab", "nobody", {"account": "@", "role": "job"}),
    "list_tokens": Case(hides=True),
    "show_token": TOKEN,
    "suspend_token": TOKEN,
    "resume_token": TOKEN,
    "revoke_token": TOKEN,
    "revoke_block": of(TOKEN, {"block": "e" * 32}),
    "revoke_all": Case("rival/lab", "nobody", {"account": "@"}),
    "show_keys": Case(open="public keys"),
    "whoami": Case(open=OWN),
    "submit_job": Case("{job}", "99999", {**JOB, "dependencies": [{"job": "@"}]}),
    "submit_batch": Case("{job}", "99999", {"jobs": [{**JOB, "dependencies": [{"job": "@"}]}]}),
    "list_jobs": Case(hides=True),
    "show_job": JOBS,
    "cancel_job": JOBS,
    "hold_job": JOBS,
    "release_job": JOBS,
    "requeue_job": JOBS,
    "control_jobs": Case("{job}", "99999", {"verb": "cancel", "jobs": ["@"]}),
    "update_job": of(JOBS, {"priority": 1}),
    "read_logs": JOBS,
    "follow_logs": JOBS,
    "quote_jobs": Case("{job}", "99999", {"jobs": [{**JOB, "dependencies": [{"job": "@"}]}]}),
    "explain_job": JOBS,
    "show_receipt": JOBS,
    "show_statement": THING,
    "place_hold": Case("rival/lab", "nobody", {"account": "@", "amounts": {"money": "1"}}),
    "list_holds": Case(hides=True),
    "show_hold": HOLD,
    "extend_hold": of(HOLD, {"amounts": {"money": "1"}}),
    "draw_hold": of(HOLD, {"spent": {"money": "1"}}),
    "settle_hold": of(HOLD, {"used": {"money": "1"}}),
    "void_hold": HOLD,
    "list_nodes": Case(open=SHARED),
    "show_node": Case(open=SHARED),
    "cordon_node": Case("n1", "n999", {}),
    "uncordon_node": Case("n1", "n999", {}),
    "drain_node": Case("n1", "n999", {}),
    "remove_node": Case("n1", "n999", {}),
    "list_prices": Case(open=SHARED),
    "set_prices": Case(open=SHARED),
    "list_queues": Case(hides=True),
    "show_queue": Case(open=SHARED),
    "set_queue": Case(open=SHARED),
    "remove_queue": Case(open=SHARED),
    "list_limits": Case(hides=True),
    "limit_account": of(THING, {"jobs": 1}),
    "watch": Case(open="tested with the streams"),
    "show_journal": Case(open=SHARED),
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiHub]:
    for hub in started(tmp_path_factory.mktemp("hub")):
        hub.onboard("acme")
        hub.onboard("rival")
        hub.add_node()
        yield hub


@pytest.fixture(scope="module")
def owner(hub: ApiHub) -> Iterator[httpx.Client]:
    """Everything that a token can allow, for an account that is not the rival's."""
    with hub.client(hub.mint("acme", "admin")) as client:
        yield client


@pytest.fixture(scope="module")
def things(hub: ApiHub) -> dict[str, str]:
    """One of each of the rival's."""
    hub.send(c.OpenAccount(None, "rival/lab"))
    hub.send(c.SetQueue(None, QueueSpec("default")))
    hub.send(c.SetQueue(None, QueueSpec("open", accounts=("rival/lab", "acme"))))
    hub.send(c.LimitAccount(None, "rival/lab", Limits(jobs=1_000)))
    grant = hub.send(c.CreateGrant(None, "rival/lab", Unit.MONEY, 100 * SCALE[Unit.MONEY]))
    with hub.client(hub.mint("rival/lab", "owner")) as rival:
        job = rival.post("/api/v1/jobs", json={**JOB, "name": "secret"})
        hold = rival.post("/api/v1/holds", json={"amounts": {"money": "1"}, "note": "secret"})
        token = rival.post("/api/v1/tokens", json={"role": "member", "name": "secret"})
        found = {
            "job": job.json()["job"],
            "hold": hold.json()["ref"],
            "token": token.json()["id"],
            "grant": grant.reply.ref,
        }  # pyright: ignore[reportAttributeAccessIssue]
        hub.logs.kept[AttemptKey(found["job"], 1), "stdout"] = b"secret"
        rival.get("/api/v1/accounts", params={"min_seq": hub.seq})
    return {name: str(value) for name, value in found.items()}


def test_every_route_has_a_case() -> None:
    assert set(CASES) == {route.operation for route in ROUTES}


def send(client: httpx.Client, route: Route, name: str, body: Any) -> httpx.Response:
    path = PREFIX + route.path
    for parameter in route.names:
        path = path.replace(f"{{{parameter}}}", name)
    if body is None:
        return client.request(route.method, path)
    text = json.dumps(body)
    text = text.replace('"@"', name if name.isdigit() else json.dumps(name))
    return client.request(route.method, path, content=text, headers={"content-type": "application/json"})


def without_name(answer: httpx.Response, name: str) -> tuple[int, str]:
    """The answer with the thing's name and what differs by nature taken out."""
    plain = name.replace("%2F", "/")
    found = answer.json()
    for row in (found, *(line["problem"] for line in found.get("lines", ()) if "problem" in line)):
        row.pop("instance", None)
        row.pop("seq", None)
    if isinstance(found.get("refusal"), dict):
        found["refusal"].pop("instance")
    text = json.dumps(found, sort_keys=True)
    for known in (plain, plain.split("/")[0]):
        text = re.sub(rf"(?<![0-9.]){re.escape(known)}(?!\.?[0-9])", "@", text)
    return answer.status_code, text


@pytest.mark.parametrize(
    "route", [r for r in ROUTES if CASES.get(r.operation, Case()).foreign], ids=lambda route: route.operation
)
def test_what_is_anothers_does_not_exist(
    hub: ApiHub, owner: httpx.Client, things: dict[str, str], route: Route
) -> None:
    case = CASES[route.operation]
    foreign = case.foreign.format_map(things)
    before = hub.seq
    theirs = send(owner, route, foreign, case.body)
    nobodys = send(owner, route, case.unknown, case.body)
    assert without_name(theirs, foreign) == without_name(nobodys, case.unknown)
    assert theirs.status_code in (404, 422) or route.operation in ("control_jobs", "quote_jobs"), theirs.text
    assert "secret" not in theirs.text
    assert hub.seq == before


@pytest.mark.parametrize(
    "route", [r for r in ROUTES if CASES.get(r.operation, Case()).hides], ids=lambda route: route.operation
)
def test_lists_hide_what_is_anothers(
    hub: ApiHub, owner: httpx.Client, things: dict[str, str], route: Route
) -> None:
    names = {parameter.name for parameter in route.query}
    query = {"min_seq": hub.seq} | ({"limit": 1_000} if "limit" in names else {})
    if route.operation == "list_holds":
        query |= {"state": "any"}  # pyright: ignore[reportOperatorIssue]
    answer = owner.get(PREFIX + route.path, params=query)
    assert answer.status_code == 200
    assert "rival" not in answer.text
    assert "secret" not in answer.text
    if "account" in names or "below" in names:
        name = "account" if "account" in names else "below"
        answers = [
            without_name(owner.get(PREFIX + route.path, params={name: account}), account)
            for account in ("rival/lab", "nobody")
        ]
        assert answers[0] == answers[1]
        assert answers[0][0] == 404


@pytest.mark.parametrize("route", [r for r in ROUTES if r.secured], ids=lambda route: route.operation)
def test_no_route_works_without_a_token(hub: ApiHub, route: Route) -> None:
    with hub.client() as anyone:
        answer = send(anyone, route, "1", CASES[route.operation].body)
    assert (answer.status_code, answer.json()["code"]) == (401, "token_missing")


@pytest.mark.parametrize(
    "route", [r for r in ROUTES if r.scope is not None], ids=lambda route: route.operation
)
def test_no_route_works_without_its_scope(hub: ApiHub, things: dict[str, str], route: Route) -> None:
    others = tuple(scope for scope in Scope if scope is not route.scope)
    token = hub.mint("rival/lab", scopes=others)
    case = CASES[route.operation]
    before = hub.seq
    with hub.client(token) as bearer:
        answer = send(bearer, route, (case.foreign or "n1").format_map(things), case.body or {})
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing"), answer.text
    assert hub.seq == before


def test_a_jobs_own_token_sees_its_job_only(hub: ApiHub) -> None:
    with hub.client(hub.mint("acme")) as owner:
        mine, other = (owner.post("/api/v1/jobs", json=JOB).json()["job"] for _ in range(2))
    with hub.client(hub.mint("acme", "job", jobs=(mine,))) as job:
        listed = job.get("/api/v1/jobs", params={"min_seq": hub.seq}).json()["items"]
        assert [row["job"] for row in listed] == [mine]
        for path in ("", "/logs", "/receipt", "/explain", "/logs/follow"):
            assert job.get(f"/api/v1/jobs/{other}{path}").status_code == 404
        assert job.get(f"/api/v1/jobs/{mine}/explain").status_code == 200
        assert job.get("/api/v1/accounts").json()["code"] == "scope_missing"
