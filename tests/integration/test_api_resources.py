"""REST as people use it: every resource made, listed, shown and changed on a real hub over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
from tests.integration.api_hub import ApiHub, new_key, started

from mintyard.domain import commands as c
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, Outcome
from mintyard.domain.tokens.authority import Scope
from mintyard.ports.engine import AttemptKey

pytestmark = pytest.mark.slow
JOB: dict[str, Any] = {"launch": {"argv": ["true"]}, "time_limit_ms": 3_600_000}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiHub]:
    for hub in started(tmp_path_factory.mktemp("hub")):
        hub.onboard("acme")
        hub.add_node(cpus=4_000_000)
        yield hub


@pytest.fixture(scope="module")
def admin(hub: ApiHub) -> Iterator[httpx.Client]:
    with hub.client(hub.admin()) as client:
        yield client


@pytest.fixture(scope="module")
def owner(hub: ApiHub) -> Iterator[httpx.Client]:
    with hub.client(hub.mint("acme")) as client:
        yield client


def got(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def reading(answer: httpx.Response) -> dict[str, str]:
    """The header with which a read sees this write."""
    return {"x-mintyard-min-seq": answer.headers["x-mintyard-seq"]}


def test_accounts(admin: httpx.Client, owner: httpx.Client) -> None:
    opened = admin.post("/api/v1/accounts", json={"account": "acme/vision"})
    assert got(opened, 201) == {
        "ref": "acme/vision",
        "state": "active",
        "seq": int(opened.headers["x-mintyard-seq"]),
    }
    listed = got(owner.get("/api/v1/accounts", headers=reading(opened)))
    assert [row["account"] for row in listed["items"]] == ["acme", "acme/vision"]
    assert listed["items"][0]["balances"][0]["granted"] == "1000"
    shown = got(owner.get("/api/v1/accounts/acme%2Fvision"))
    assert (shown["parent"], shown["state"], shown["balances"]) == ("acme", "active", [])
    assert got(admin.get("/api/v1/accounts/%2F"))["parent"] is None
    for verb, state in (("suspend", "suspended"), ("resume", "active"), ("close", "closed")):
        moved = owner.post(f"/api/v1/accounts/acme%2Fvision/{verb}")
        assert got(moved)["state"] == state
    closed = got(owner.post("/api/v1/accounts/acme%2Fvision/resume"), 409)
    assert closed["code"] == "wrong_state"
    assert got(admin.post("/api/v1/accounts", json={"account": "acme"}), 409)["code"] == "already_exists"


def test_grants(admin: httpx.Client) -> None:
    made = admin.post(
        "/api/v1/grants",
        json={"account": "acme", "unit": "gpu_hours", "amount": "12.5", "expires_at": "2200-01-01T00:00:00Z"},
    )
    number = got(made, 201)["ref"]
    changed = admin.post(f"/api/v1/grants/{number}/adjust", json={"add": "0.5", "priority": 7})
    assert got(changed)["ref"] == number
    changed = admin.post(f"/api/v1/grants/{number}/adjust", json={"take_back": "3"})
    shown = got(admin.get(f"/api/v1/grants/{number}", headers=reading(changed)))
    assert (shown["granted"], shown["left"], shown["priority"]) == ("10", "10", 7)
    assert shown["expires_at"] == "2200-01-01T00:00:00Z"
    refused = got(admin.post(f"/api/v1/grants/{number}/refund", json={"amount": "1"}), 422)
    assert refused["code"] == "invalid_amount"
    ended = admin.post(f"/api/v1/grants/{number}/end")
    assert got(ended)["state"] == "ended"
    listed = got(
        admin.get("/api/v1/grants", params={"unit": "gpu_hours", "state": "ended"}, headers=reading(ended))
    )
    assert [row["grant"] for row in listed["items"]] == [number]


@pytest.mark.parametrize("body", [{"add": "1", "take_back": "1"}, {}, {"add": "-1"}, {"add": "1e3"}])
def test_adjustments_that_make_no_sense(admin: httpx.Client, body: dict[str, str]) -> None:
    assert admin.post("/api/v1/grants/1/adjust", json=body).status_code in (400, 422)


def test_tokens(hub: ApiHub, owner: httpx.Client) -> None:
    minted = owner.post(
        "/api/v1/tokens", json={"role": "member", "life_s": 3600, "name": "ci", "ceilings": {"money": "5"}}
    )
    made = got(minted, 201)
    assert minted.headers["cache-control"] == "no-store"
    with hub.client(made["token"]) as member:
        mine = got(member.get("/api/v1/whoami"))
        assert (mine["account"], mine["blocks"][0]["ceilings"]) == ("acme", {"money": "5"})
        assert "account:write" not in mine["scopes"]
        shown = got(owner.get(f"/api/v1/tokens/{made['id']}", headers=reading(minted)))
        assert (shown["name"], shown["state"]) == ("ci", "active")
        assert made["token"] not in owner.get("/api/v1/tokens").text
        for verb, status, code in (
            ("suspend", 401, "token_suspended"),
            ("resume", 200, ""),
            ("revoke", 401, "token_revoked"),
        ):
            got(owner.post(f"/api/v1/tokens/{made['id']}/{verb}"))
            seen = member.get("/api/v1/whoami")  # at once, not some time later
            assert (seen.status_code, seen.json().get("code", "")) == (status, code)


def test_a_token_gives_no_more_than_its_maker_has(hub: ApiHub) -> None:
    with hub.client(hub.mint("acme", scopes=(Scope.TOKEN_MINT, Scope.JOB_READ))) as narrow:
        wide = got(narrow.post("/api/v1/tokens", json={"role": "admin"}), 422)
        assert wide["code"] == "token_widening"
        assert got(narrow.post("/api/v1/tokens", json={"scopes": ["job:read"], "account": "other"}), 404)
        both = got(narrow.post("/api/v1/tokens", json={"scopes": ["job:read"], "role": "job"}), 422)
        assert both["code"] == "invalid_spec"


def test_every_token_of_an_account_ends_at_once(hub: ApiHub, admin: httpx.Client) -> None:
    hub.onboard("gone")
    with hub.client(hub.mint("gone")) as first, hub.client(hub.mint("gone")) as second:
        assert first.get("/api/v1/whoami").status_code == 200
        got(admin.post("/api/v1/tokens/revoke-all", json={"account": "gone"}))
        for client in (first, second):
            assert client.get("/api/v1/whoami").json()["code"] == "token_revoked"


def test_keys_verify_a_token(hub: ApiHub) -> None:
    from mintyard.credentials import decode_key_set, verify

    with hub.client() as anyone:
        keys = decode_key_set(anyone.get("/api/v1/keys").content)
    assert verify(hub.mint("acme"), keys, hub.now()).account == "acme"


def test_a_job_from_submit_to_receipt(hub: ApiHub, owner: httpx.Client) -> None:
    sent = owner.post("/api/v1/jobs", json={**JOB, "name": "train", "cpus_milli": 2_000})
    ticket = got(sent, 201)
    number = ticket["job"]
    assert sent.headers["location"] == f"/api/v1/jobs/{number}"
    assert (ticket["state"], ticket["tasks"], ticket["cost"]) == ("pending", 0, "0.225")
    shown = wait_for(owner, number, "starting")
    assert shown["resources"]["cpus_milli"] == 2_000
    assert shown["attempts"][0]["members"] == [{"node": "n1", "gpus": []}]
    hub.send(c.TakeReports("sim", (AttemptStarted(number, 1, "b"),)))
    time.sleep(0.02)  # it runs
    ended = AttemptEnded(number, 1, "b", Outcome.EXITED, 0, 0, 1_800_000, 1_000, 64)
    answer = hub.send(c.TakeReports("sim", (ended,)))
    bill = got(owner.get(f"/api/v1/jobs/{number}/receipt", params={"min_seq": answer.seq}))
    assert (bill["final"], bill["state"]) == (True, "succeeded")
    run_ms = bill["receipts"][0]["run_ms"]  # bounded by the time that has really passed
    assert 0 < run_ms <= 1_800_000
    nano = {line["unit"]: Decimal(line["cost"]) * 10**9 for line in bill["receipts"][0]["resources"]}
    assert nano["cpu_core_hours"] == 2 * 10**8 * run_ms // 3_600_000
    assert nano["memory_gb_hours"] == 5 * 10**7 * 512 * run_ms // (1_024 * 3_600_000)
    assert Decimal(bill["cost"]) * 10**9 == sum(nano.values())
    final = got(owner.get(f"/api/v1/jobs/{number}"))
    assert (final["exit_code"], final["run_ms"], final["state"]) == (0, run_ms, "succeeded")
    lines = got(owner.get("/api/v1/accounts/acme/statement", params={"limit": 1_000}))["lines"]
    assert [line["amount"] for line in lines if line["job"] == number and line["credit"] == "spent"] == [
        bill["cost"]
    ]


def wait_for(client: httpx.Client, job: int, state: str) -> Any:
    deadline = time.monotonic() + 10
    while True:
        shown = client.get(f"/api/v1/jobs/{job}").json()
        if shown.get("state") == state:
            return shown
        assert time.monotonic() < deadline, shown
        time.sleep(0.01)


def test_a_job_beyond_the_balance_is_refused_with_what_is_short(owner: httpx.Client) -> None:
    refused = got(
        owner.post("/api/v1/jobs", json={**JOB, "time_limit_ms": 366 * 86_400_000, "cpus_milli": 8_000}), 402
    )
    assert refused["code"] == "quota_exhausted"
    assert refused["params"]["account"] == "acme"
    assert "short of" in refused["detail"]


def test_batches(owner: httpx.Client) -> None:
    sent = got(owner.post("/api/v1/jobs/batch", json={"jobs": [JOB] * 1_500, "atomic": False}))
    assert (sent["admitted"], sent["refused"], len(sent["lines"])) == (1_500, 0, 1_500)
    assert len({line["ticket"]["job"] for line in sent["lines"]}) == 1_500
    dag = [{**JOB, "ref": "a"}, {**JOB, "ref": "b", "dependencies": [{"ref": "a"}]}]
    lines = got(owner.post("/api/v1/jobs/batch", json={"jobs": dag}))["lines"]
    assert [line["ticket"]["state"] for line in lines] == ["pending", "blocked"]
    mixed = [JOB, {**JOB, "gpus": 2}, {**JOB, "gpus": 1, "gpu_milli": 0}]
    assert owner.post("/api/v1/jobs/batch", json={"jobs": mixed, "atomic": False}).status_code == 400
    mixed = [JOB, {**JOB, "gpus": 2}, {**JOB, "labels": ["a b"]}]
    part = got(owner.post("/api/v1/jobs/batch", json={"jobs": mixed, "atomic": False}))
    codes = [line.get("problem", {}).get("code", "") for line in part["lines"]]
    assert (codes, part["admitted"]) == (["", "infeasible", "invalid_name"], 1)
    whole = got(owner.post("/api/v1/jobs/batch", json={"jobs": mixed[:2]}), 422)
    assert whole["code"] == "infeasible"
    cycle = [
        {**JOB, "ref": "a", "dependencies": [{"ref": "b"}]},
        {**JOB, "ref": "b", "dependencies": [{"ref": "a"}]},
    ]
    assert got(owner.post("/api/v1/jobs/batch", json={"jobs": cycle}), 422)["code"] == "dependency_cycle"
    got(
        owner.post(
            "/api/v1/jobs/control",
            json={"verb": "cancel", "jobs": [line["ticket"]["job"] for line in sent["lines"]]},
        )
    )


def test_a_dry_run_changes_nothing(hub: ApiHub, owner: httpx.Client) -> None:
    before = [row["job"] for row in got(owner.get("/api/v1/jobs", params={"min_seq": hub.seq}))["items"]]
    ticket = got(owner.post("/api/v1/jobs", params={"dry_run": "true"}, json={**JOB, "held": True}), 201)
    assert ticket["state"] == "held"
    after = got(owner.get("/api/v1/jobs", params={"min_seq": hub.seq}))["items"]
    assert [row["job"] for row in after] == before


def test_arrays_and_control(owner: httpx.Client) -> None:
    body = {**JOB, "name": "sweep", "array": {"indices": [3, 5, 9], "throttle": 1}, "held": True}
    sent = owner.post("/api/v1/jobs", json=body)
    array = got(sent, 201)["job"]
    shown = got(owner.get(f"/api/v1/jobs/{array}", headers=reading(sent)))
    assert (shown["tasks"], shown["size"], shown["throttle"]) == ({"held": 3}, 3, 1)
    task = got(owner.get(f"/api/v1/jobs/{array}_5"))
    assert (task["job"], task["label"], task["array_index"]) == (array + 2, f"{array}_5", 5)
    tasks = got(owner.get("/api/v1/jobs", params={"array_job": array}))["items"]
    assert [row["array_index"] for row in tasks] == [9, 5, 3]
    assert (
        got(owner.post(f"/api/v1/jobs/{array}_9/cancel", json={"reason": "not needed"}))["state"]
        == "cancelled"
    )
    updated = owner.patch(f"/api/v1/jobs/{array}_5", json={"time_limit_ms": 7_200_000})
    assert got(owner.get(f"/api/v1/jobs/{array}_5", headers=reading(updated)))["time_limit_ms"] == 7_200_000
    assert got(owner.patch(f"/api/v1/jobs/{array}_5", json={"priority": 9_999}), 403)["code"] == "forbidden"
    assert got(owner.post(f"/api/v1/jobs/{array}_5/requeue"), 409)["code"] == "wrong_state"
    assert got(owner.post(f"/api/v1/jobs/{array}/release"))["state"] == "pending"
    many = got(owner.post("/api/v1/jobs/control", json={"verb": "cancel", "jobs": [array, 999_999]}))
    assert [("change" in line, line.get("problem", {}).get("code")) for line in many["lines"]] == [
        (True, None),
        (True, None),
        (False, "not_found"),
    ]


def test_pages_are_whole_and_linked(owner: httpx.Client) -> None:
    sent = got(owner.post("/api/v1/jobs/batch", json={"jobs": [{**JOB, "held": True, "name": "paged"}] * 25}))
    url: str | None = f"/api/v1/jobs?name=paged&limit=10&state=held&min_seq={sent['seq']}"
    seen: list[int] = []
    sizes: list[int] = []
    while url:
        page = owner.get(url)
        rows = got(page)["items"]
        sizes.append(len(rows))
        seen += [row["job"] for row in rows]
        url = page.links["next"]["url"] if "next" in page.links else None
    assert sizes == [10, 10, 5]
    assert seen == sorted(set(seen), reverse=True)
    assert got(owner.get("/api/v1/jobs?cursor=abc"), 422)["code"] == "invalid_spec"


def test_quotes_and_explanations(owner: httpx.Client) -> None:
    quote = got(owner.post("/api/v1/quotes", json={"jobs": [JOB, JOB]}))
    assert (quote["cost"], quote["per_job"], quote["refusal"]) == ("0.25", ["0.125", "0.125"], None)
    short = got(owner.post("/api/v1/quotes", json={"jobs": [{**JOB, "time_limit_ms": 366 * 86_400_000}]}))
    assert short["refusal"]["code"] == "quota_exhausted"
    sent = owner.post("/api/v1/jobs", json={**JOB, "held": True})
    number = got(sent, 201)["job"]
    why = got(owner.get(f"/api/v1/jobs/{number}/explain"))
    assert (why["state"], why["reason"]) == ("held", "held")


def test_holds_and_escrows(owner: httpx.Client) -> None:
    placed = owner.post(
        "/api/v1/holds", json={"amounts": {"money": "2"}, "holder": "gateway-1", "life_ms": 60_000}
    )
    number = got(placed, 201)["ref"]
    got(owner.post(f"/api/v1/holds/{number}/extend", json={"amounts": {"money": "1"}}))
    got(owner.post(f"/api/v1/holds/{number}/draw", json={"spent": {"money": "0.5"}}))
    drawn = owner.post(f"/api/v1/holds/{number}/draw", json={"spent": {"money": "0.25"}})  # late: harmless
    shown = got(owner.get(f"/api/v1/holds/{number}", headers=reading(drawn)))
    assert (shown["lines"][0]["amount"], shown["drawn"], shown["holder"]) == (
        "3",
        {"money": "0.5"},
        "gateway-1",
    )
    too_much = got(owner.post(f"/api/v1/holds/{number}/settle", json={"used": {"money": "3.1"}}), 422)
    assert too_much["code"] == "invalid_amount"
    settled = owner.post(f"/api/v1/holds/{number}/settle", json={"used": {"money": "0.75"}})
    shown = got(owner.get(f"/api/v1/holds/{number}", headers=reading(settled)))
    assert (shown["state"], shown["used"]) == ("settled", {"money": "0.75"})
    other = got(owner.post("/api/v1/holds", json={"amounts": {"money": "2"}}), 201)["ref"]
    voided = owner.post(f"/api/v1/holds/{other}/void")
    assert got(voided)["state"] == "voided"
    listed = got(owner.get("/api/v1/holds", params={"job": 0, "state": "any"}, headers=reading(voided)))[
        "items"
    ]
    assert [row["hold"] for row in listed] == [other, number]
    unpaid = got(owner.post("/api/v1/holds", json={"amounts": {"gpu_hours": "1"}}), 402)
    assert unpaid["code"] in ("wrong_resource_type", "quota_exhausted")


def test_nodes(hub: ApiHub, admin: httpx.Client, owner: httpx.Client) -> None:
    hub.add_node("rack/n2", cpus=4_000)
    cordoned = admin.post("/api/v1/nodes/rack%2Fn2/cordon", json={"reason": "fan"})
    assert got(cordoned)["state"] == "cordoned"
    shown = got(owner.get("/api/v1/nodes/rack%2Fn2", headers=reading(cordoned)))
    assert (shown["state"], shown["reason"], shown["cpus_milli"]) == ("cordoned", "fan", 4_000)
    assert got(admin.post("/api/v1/nodes/rack%2Fn2/uncordon"))["state"] == "ready"
    assert got(admin.post("/api/v1/nodes/rack%2Fn2/remove"), 409)["code"] == "wrong_state"
    got(admin.post("/api/v1/nodes/rack%2Fn2/drain"))
    removed = admin.post("/api/v1/nodes/rack%2Fn2/remove")
    names = [row["node"] for row in got(owner.get("/api/v1/nodes", headers=reading(removed)))["items"]]
    assert names == ["n1"]
    assert got(owner.post("/api/v1/nodes/n1/cordon"), 403)["code"] == "scope_missing"


def test_queues(hub: ApiHub, admin: httpx.Client, owner: httpx.Client) -> None:
    hub.onboard("other")
    nominal = {"gpus_milli": 0, "jobs": 1}
    for body in (
        {"queue": "all"},
        {
            "queue": "lab",
            "parent": "all",
            "nominal": nominal,
            "borrowing": {"jobs": 0},
            "accounts": ["acme", "other"],
        },
        {"queue": "open/1", "parent": "all", "nominal": {"jobs": 3}, "lending": {"jobs": 2}},
    ):
        set_ = admin.post("/api/v1/queues", json=body)
        assert got(set_)["state"] == "set"
    queues = {one["queue"]: one for one in got(owner.get("/api/v1/queues", headers=reading(set_)))["items"]}
    assert list(queues) == ["all", "lab", "open/1"]
    assert queues["lab"]["accounts"] == ["acme"]
    assert queues["lab"]["nominal"] == nominal
    assert got(owner.post("/api/v1/jobs", json=JOB), 404)["code"] == "not_found"
    assert got(owner.post("/api/v1/jobs", json={**JOB, "queue": "all"}), 403)["code"] == "queue_refuses"
    refused = got(owner.post("/api/v1/jobs", json={**JOB, "queue": "lab", "gpus": 1}), 422)
    assert refused["code"] == "never_within_quota"
    jobs = [
        got(owner.post("/api/v1/jobs", json={**JOB, "queue": "lab", "name": f"j{n}"}), 201)["job"]
        for n in (1, 2)
    ]
    hub.send(c.Tick())
    why = got(owner.get(f"/api/v1/jobs/{jobs[1]}/explain"))
    assert why["reason"] == "queue_quota"
    shown = got(owner.get("/api/v1/queues/lab"))
    assert (shown["used"]["jobs"], shown["waiting"], shown["available"]["jobs"]) == (1, 1, 0)
    assert got(owner.get("/api/v1/queues/none"), 404)["code"] == "not_found"
    assert got(owner.post("/api/v1/queues", json={"queue": "mine"}), 403)["code"] == "scope_missing"
    assert got(admin.post("/api/v1/queues/lab/remove"), 409)["code"] == "queue_busy"
    for body in (
        {"queue": "x", "nominal": {"gpus": 1}},
        {"queue": "x", "nominal": {"jobs": -1}},
        {"queue": "a b"},
    ):
        assert admin.post("/api/v1/queues", json=body).status_code in (400, 422)
    for job in jobs:
        got(owner.post(f"/api/v1/jobs/{job}/cancel"))
    hub.send(c.TakeReports("local", (AttemptEnded(jobs[0], 1, "boot", Outcome.STOPPED),)))
    for name in ("open%2F1", "lab", "all"):
        assert got(admin.post(f"/api/v1/queues/{name}/remove"))["state"] == "removed"


def test_limits_on_accounts(admin: httpx.Client, owner: httpx.Client) -> None:
    limited = admin.post("/api/v1/accounts/acme/limits", json={"jobs": 7})
    assert got(limited)["state"] == "limited"
    (found,) = got(owner.get("/api/v1/limits", headers=reading(limited)))["items"]
    assert (found["account"], found["limits"]) == ("acme", {"jobs": 7})
    assert got(owner.post("/api/v1/accounts/acme/limits", json={}), 403)["code"] == "forbidden"
    lifted = admin.post("/api/v1/accounts/acme/limits", json={})
    assert got(owner.get("/api/v1/limits", headers=reading(lifted)))["items"] == []


def test_prices(admin: httpx.Client, owner: httpx.Client) -> None:
    set_ = admin.post("/api/v1/prices", json={"gpu": "7.5", "gpu_models": {"A100": "9"}})
    got(set_, 201)
    books = got(owner.get("/api/v1/prices", headers=reading(set_)))["items"]
    assert [book["in_force"] for book in books] == [False, True]
    assert (books[1]["gpu"], books[1]["gpu_models"], books[1]["cpu"]) == ("7.5", {"A100": "9"}, "0.1")
    past = got(admin.post("/api/v1/prices", json={"effective_from": "2001-01-01T00:00:00Z"}), 422)
    assert past["code"] == "bad_time"


def test_prices_are_the_hubs(hub: ApiHub) -> None:
    with hub.client(hub.mint("acme", scopes=(Scope.PRICE_WRITE,))) as tenant:
        assert got(tenant.post("/api/v1/prices", json={"gpu": "0"}), 403)["code"] == "forbidden"


def test_the_journals_head_is_for_auditors_of_the_hub(hub: ApiHub, admin: httpx.Client) -> None:
    head = got(admin.get("/api/v1/journal", params={"min_seq": hub.seq}))
    assert head["seq"] >= hub.seq
    assert len(head["chain"]) == 64
    with hub.client(hub.mint("acme", "auditor")) as tenant:
        assert got(tenant.get("/api/v1/journal"), 403)["code"] == "forbidden"


def test_logs_by_offset(hub: ApiHub, owner: httpx.Client) -> None:
    number = got(owner.post("/api/v1/jobs", json=JOB), 201)["job"]
    wait_for(owner, number, "starting")
    empty = got(owner.get(f"/api/v1/jobs/{number}/logs"))
    assert (empty["data"], empty["ended"], empty["next_offset"]) == ("", False, 0)
    key = AttemptKey(number, 1)
    hub.logs.kept[key, "stdout"] = b"hello\nworld\n"
    part = got(owner.get(f"/api/v1/jobs/{number}/logs", params={"offset": 6, "limit": 3}))
    assert (part["data"], part["next_offset"], part["attempt"]) == ("d29y", 9, 1)
    assert got(owner.get(f"/api/v1/jobs/{number}/logs", params={"attempt": 2}), 404)["code"] == "not_found"
    assert got(owner.get(f"/api/v1/jobs/{number}/logs", params={"stream": "other"}), 400)


def test_a_read_waits_for_the_record_it_asks_for(hub: ApiHub, owner: httpx.Client) -> None:
    late = owner.get("/api/v1/accounts", params={"min_seq": hub.seq + 1_000})
    assert got(late, 503)["code"] == "not_caught_up"
    assert int(late.headers["retry-after"]) >= 1


def test_a_key_makes_a_hold_the_same(owner: httpx.Client) -> None:
    headers = {"idempotency-key": new_key()}
    body = {"amounts": {"money": "1"}, "life_ms": 60_000}
    first, again = (owner.post("/api/v1/holds", json=body, headers=headers) for _ in range(2))
    assert got(first, 201)["ref"] == got(again, 201)["ref"]
