"""Every other command against a real API: accounts, money, tokens, logins, watching, doctor and journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.api_hub import HUB
from tests.integration.cli_hub import Cli, admin, cli, finish, hub, submit  # noqa: F401 (fixtures)

from mintyard.domain import commands as c
from mintyard.domain.errors import Exit
from mintyard.domain.ids import ROOT
from mintyard.domain.units import Unit

# --- money ----------------------------------------------------------------------------------------------------------


def test_accounts(admin: Cli) -> None:
    assert "account lab active" in admin.ok("account", "open", "lab")
    assert admin.refused("account", "open", "lab") == (Exit.CONFLICT, "already_exists")
    assert "active" in admin.ok("account", "open", "lab", "--parents")
    assert admin.refused("account", "open", "no/such/parent") == (Exit.NOT_FOUND, "not_found")
    assert admin.refused("account", "open", "Bad Name")[0] == Exit.USAGE
    assert "suspended" in admin.ok("account", "suspend", "lab")
    assert "active" in admin.ok("account", "resume", "lab")
    listed = admin.json("account", "ls", "lab")
    assert [item["account"] for item in listed["items"]] == ["lab"]
    assert admin.ok("account", "ls", "-q").split()[0] == "/"
    assert "nothing was granted" in admin("account", "show", "lab")[2]
    assert "closed" in admin.ok("account", "close", "lab")
    assert admin.refused("account", "show", "nobody") == (Exit.NOT_FOUND, "not_found")


def test_grants_and_statement(admin: Cli) -> None:
    admin.ok("account", "open", "books", "--parents")
    number = admin.ok("grant", "create", "books", "12.5", "--expires", "30d", "--note", "trial", "-q").strip()
    grant = admin.json("grant", "show", number)
    assert (grant["granted"], grant["unit"], grant["note"]) == ("12.5", "money", "trial")
    assert grant["expires_at"]
    admin.ok("grant", "adjust", number, "--add", "2.5")
    admin.ok("grant", "adjust", number, "--take-back", "1", "--priority", "5")
    assert admin.json("grant", "show", number)["left"] == "14"
    assert "trial" in admin.ok("grant", "show", number)
    assert admin.refused("grant", "refund", number, "1")[0] != 0
    assert admin.refused("grant", "create", "books", "-1")[0] == Exit.USAGE
    assert admin.refused("grant", "create", "books", "NaN")[0] == Exit.USAGE
    assert admin.refused("grant", "create", "books", "1", "--unit", "apples")[0] == Exit.USAGE
    assert admin.refused("grant", "adjust", number)[0] == Exit.USAGE
    found = admin.json("statement", "books")
    assert found["closing"]["left"] == "14"
    assert "14 left" in admin.ok("statement", "books")
    assert [item["grant"] for item in admin.json("grant", "ls", "books")["items"]] == [int(number)]
    assert "books" in admin.ok("grant", "ls", "books")
    assert "ended" in admin.ok("grant", "end", number)
    assert admin.refused("grant", "end", number)[0] == Exit.CONFLICT


def test_holds(admin: Cli) -> None:
    number = admin.ok("hold", "place", "money=5", "-A", "acme", "--holder", "gate", "-q").strip()
    assert admin.json("hold", "show", number)["holder"] == "gate"
    assert "gate" in admin.ok("hold", "show", number)
    admin.ok("hold", "extend", number, "money=1", "--life", "2h")
    admin.ok("hold", "draw", number, "2")
    assert number in admin.ok("hold", "ls", "acme", "--job", "0", "-q").split()
    assert "settled" in admin.ok("hold", "settle", number, "money=3")
    assert admin.refused("hold", "void", number)[0] == Exit.NOT_FOUND
    other = admin.ok("hold", "place", "1", "-A", "acme", "-q").strip()
    assert "voided" in admin.ok("hold", "void", other)
    assert admin.refused("hold", "place", "-A", "acme")[0] == Exit.USAGE
    assert admin.refused("hold", "place", "money=1", "money=2", "-A", "acme")[0] == Exit.USAGE
    assert admin.refused("hold", "place", "apples=1", "-A", "acme")[0] == Exit.USAGE


def test_prices(admin: Cli) -> None:
    assert "5" in admin.ok("price", "ls")
    admin.ok("price", "set", "--gpu", "6", "--gpu-model", "H100=9", "--from", "2040-01-01T00:00:00Z")
    books = admin.json("price", "ls")["items"]
    assert books[-1]["gpu_models"] == {"H100": "9"}
    assert [book["in_force"] for book in books][-1] is False
    assert admin.refused("price", "set", "--gpu", "-1")[0] == Exit.USAGE
    assert admin.refused("price", "set", "--gpu-model", "H100")[0] == Exit.USAGE


def test_queues(admin: Cli) -> None:
    admin.ok("account", "open", "quarter/ann", "--parents")
    admin.ok("queue", "set", "all")
    assert "queue night set" in admin.ok(
        "queue", "set", "night", "--parent", "all", "--nominal", "gpus=8,cpus=64,memory=1T,jobs=20",
        "--borrowing", "gpus=2.5", "--lending", "gpus=4", "-A", "quarter",
    )  # fmt: skip
    listed = admin.ok("queue", "ls")
    assert "0/8" in listed
    assert "0/64" in listed
    shown = admin.ok("queue", "show", "night")
    assert "gpus=2.5" in shown
    assert "gpus=8,cpus=64" in shown
    admin.ok("queue", "stop", "night")
    assert "stopped" in admin.ok("queue", "ls")
    admin.ok("queue", "close", "night")
    assert "refuses new jobs" in admin.ok("queue", "show", "night")
    admin.ok("queue", "open", "night")
    admin.ok("queue", "start", "night")
    found = admin.json("queue", "show", "night")
    assert (found["starting"], found["accepts"], found["accounts"]) == (True, True, ["quarter"])
    assert found["nominal"] == {
        "gpus_milli": 8_000,
        "cpus_milli": 64_000,
        "memory_mib": 1_048_576,
        "jobs": 20,
    }
    for amounts in (
        "gpus",
        "gpus=-1",
        "gpus=x",
        "gpus=1,gpus=2",
        "memory=1X",
        "disk=4",
        "jobs=1.5",
        "gpus=1e99",
    ):
        assert admin.refused("queue", "set", "x", "--nominal", amounts)[0] == Exit.USAGE
    assert admin.refused("queue", "set", "x", "--parent", "none") == (Exit.NOT_FOUND, "not_found")
    assert admin.refused("queue", "remove", "all") == (Exit.CONFLICT, "queue_busy")
    admin.ok("queue", "limit", "quarter", "gpus=4,jobs=10")
    assert "gpus=4,jobs=10" in admin.ok("queue", "limits")
    admin.ok("queue", "limit", "quarter")
    assert admin.json("queue", "limits")["items"] == []
    admin.ok("queue", "remove", "night")
    admin.ok("queue", "remove", "all")


def test_nodes(admin: Cli) -> None:
    admin.hub.add_node("spare")
    assert "spare" in admin.ok("node", "ls")
    assert "cordoned" in admin.ok("node", "cordon", "spare", "--reason", "disk")
    assert "disk" in admin.ok("node", "show", "spare")
    assert "ready" in admin.ok("node", "uncordon", "spare")
    assert admin.json("node", "drain", "spare")["ref"] == "spare"
    assert "removed" in admin.ok("node", "remove", "spare")
    assert admin.refused("node", "show", "nowhere") == (Exit.NOT_FOUND, "not_found")
    assert admin.refused("node", "cordon", "..")[0] in (Exit.USAGE, Exit.NOT_FOUND)


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_onboard_in_one_step(admin: Cli, tmp_path: Path) -> None:
    told = admin.json("onboard", "uni/lab/eve", "--money", "10", "-g", "gpu_hours=3", "--role", "member")
    assert [change["ref"] for change in told["opened"]] == ["uni", "uni/lab", "uni/lab/eve"]
    assert len(told["grants"]) == 2
    admin.become(told["token"]["token"])
    assert admin.json("whoami")["account"] == "uni/lab/eve"
    assert submit(admin, "--wrap", "true", "-t", "1") > 0
    admin.become(admin.hub.admin())
    kept = tmp_path / "eve.token"
    status, out, err = admin("onboard", "uni/lab/eve", "--token-file", str(kept))
    assert (status, out) == (0, "")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.read_text().strip() not in err
    assert admin.refused("onboard", "uni/lab/eve", "--token-file", str(kept))[0] == Exit.USAGE
    assert admin.refused("onboard", "uni/lab/eve", "-g", "money")[0] == Exit.USAGE
    assert admin.refused("onboard", "uni/lab/eve", "-g", "money=1", "--money", "2")[0] == Exit.USAGE


def test_mint_narrow_use_and_revoke(cli: Cli, tmp_path: Path) -> None:
    told = cli.json(
        "token",
        "mint",
        "--role",
        "member",
        "--name",
        "laptop",
        "--life",
        "2h",
        "--ceiling",
        "money=1",
        "--gpus",
        "2",
    )
    cli.become(told["token"])
    narrowed = cli.ok("token", "narrow", "--life", "10m", "--ceiling", "0.5", "--role", "job").strip()
    cli.become(narrowed)
    mine = cli.json("whoami")
    assert mine["scopes"] == ["job:read"]
    assert [block["ceilings"] for block in mine["blocks"]] == [{"money": "1"}, {"money": "0.5"}]
    assert "narrowed" in cli.ok("whoami")
    assert cli.refused("token", "narrow", "--role", "owner")[0] == Exit.FORBIDDEN
    cli.become(cli.hub.mint("acme", "owner"))
    assert told["id"] in cli.ok("token", "ls", "-q").split()
    assert cli.json("token", "show", told["id"])["name"] == "laptop"
    assert "laptop" in cli.ok("token", "show", told["id"])
    assert "suspended" in cli.ok("token", "suspend", told["id"])
    assert "active" in cli.ok("token", "resume", told["id"])
    (tmp_path / "kept").write_text(told["token"])
    cli.ok("token", "revoke", str(tmp_path / "kept"))
    cli.become(narrowed)
    assert cli.refused("whoami") == (Exit.TOKEN, "token_revoked")
    cli.become(cli.hub.mint("acme", "owner"))
    assert cli.refused("token", "revoke")[0] == Exit.USAGE
    assert cli.refused("token", "revoke", "0" * 32)[0] == Exit.NOT_FOUND


def test_revoke_block_and_all(admin: Cli) -> None:
    told = admin.json("token", "mint", "acme", "--role", "member")
    owner = admin.hub.admin()
    admin.become(told["token"])
    made = admin.json("token", "narrow", "--life", "5m")
    admin.become(owner)
    admin.ok("token", "revoke", told["id"], "--block", made["block"])
    admin.become(made["token"])
    assert admin.refused("whoami")[1] == "token_revoked"
    admin.become(told["token"])
    admin.ok("whoami")
    admin.become(owner)
    admin.ok("account", "open", "shortlived")
    other = admin.json("token", "mint", "shortlived")
    admin.ok("token", "revoke", "--all-of", "shortlived")
    admin.become(other["token"])
    assert admin.refused("whoami")[1] == "token_revoked"


def test_login_logout_and_contexts(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "token"
    kept.write_text(cli.hub.mint("acme", "member"))
    for name in ("MINTYARD_TOKEN", "MINTYARD_HUB", "MINTYARD_KEYS"):
        monkeypatch.delenv(name)
    assert "acme" in cli.ok("login", cli.hub.url, "--token-file", str(kept), "--name", "one")
    assert cli.json("whoami")["account"] == "acme"
    cli.ok("login", cli.hub.url, "--token-file", str(kept), "--name", "two")
    cli.ok("config", "use", "one")
    shown = cli.json("config", "show")
    assert [(row["name"], row["current"], row["state"]) for row in shown["contexts"]] == [
        ("one", True, "ok"),
        ("two", False, "ok"),
    ]
    text = cli.ok("config", "show")
    assert kept.read_text() not in text
    assert cli.ok("job", "ls", "--context", "two", "--name", "none", "-q") == ""
    assert "forgot one" in cli.ok("logout")
    cli.ok("logout", "two")
    assert cli.refused("whoami", "--hub", "http://127.0.0.1:1")[1] == "hub_unreachable"
    assert cli("config", "use", "one")[0] == Exit.NOT_FOUND
    kept.write_text("nonsense")
    assert cli.refused("login", cli.hub.url, "--token-file", str(kept))[0] == Exit.TOKEN
    assert cli.refused("login", "ftp://x", "--token-file", str(kept))[0] == Exit.USAGE


def test_a_stored_token_never_goes_to_another_hub(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "token"
    kept.write_text(cli.hub.mint("acme", "member"))
    for name in ("MINTYARD_TOKEN", "MINTYARD_HUB", "MINTYARD_KEYS"):
        monkeypatch.delenv(name)
    cli.ok("login", cli.hub.url, "--token-file", str(kept))
    monkeypatch.setenv("MINTYARD_HUB", "http://elsewhere.example:1")
    from mintyard.sdk.address import address

    assert address().token == ""
    assert address("http://127.0.0.1:1").token == ""
    assert address(cli.hub.url.replace("127.0.0.1", "localhost")).token == kept.read_text()


# --- watching, doctor, journal --------------------------------------------------------------------------------------


def test_watch_streams_events(cli: Cli) -> None:
    before = cli.hub.seq
    number = submit(cli, "--wrap", "true", "--hold", "-J", "seen")
    status, out, _ = cli("watch", "--after", str(before), "--count", "1", "--job", str(number), "--json")
    assert status == 0
    event = json.loads(out)
    assert event["job"] == number
    assert event["account"] == "acme"
    assert str(event["kind"]) in cli.ok("watch", "--after", str(before), "--count", "1", "--job", str(number))
    assert cli.refused("watch", "--kind", "nonsense", "--count", "1")[0] == Exit.USAGE


def findings(cli: Cli, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    status, out, _ = cli("doctor", "--json", *words)
    return status, {one["check"]: one for one in json.loads(out)["findings"]}


def test_doctor_of_a_healthy_hub(cli: Cli, tmp_path: Path) -> None:
    status, found = findings(cli, "--folder", str(tmp_path / "none"))
    assert found["hub"]["state"] == "ok"
    assert found["clock"]["state"] == "ok"
    assert found["ready"]["state"] == "ok"
    assert found["token at the hub"]["state"] == "ok"
    assert found["engine"]["state"] in ("ok", "warning")
    assert found["quota"]["state"] == "ok"
    assert status == Exit.NOT_FOUND
    assert found["folder"]["state"] == "fault"


def test_doctor_names_the_classic_faults(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINTYARD_FOLDER", "/nonexistent")
    cli.become(cli.hub.mint("acme", "owner", clusters=("elsewhere",)))
    status, found = findings(cli)
    assert status == Exit.TOKEN
    assert found["token at the hub"]["code"] == "token_wrong_audience"
    assert "clusters" in found["token at the hub"]["cause"]
    cli.become(cli.hub.mint("acme", "owner")[:-4] + "AAAA")
    status, found = findings(cli)
    assert status == Exit.TOKEN
    assert found["token here"]["cause"]
    assert found["token here"]["cure"]
    cli.hub.send(c.OpenAccount(None, "poor"), c.CreateGrant(None, "poor", Unit.MONEY, 1_000_000_000))
    cli.become(cli.hub.mint("poor", "owner"))
    cli.ok("hold", "place", "1")
    status, found = findings(cli)
    assert (status, found["quota"]["code"]) == (Exit.QUOTA, "quota_exhausted")
    monkeypatch.setenv("MINTYARD_HUB", "http://127.0.0.1:1")
    status, found = findings(cli)
    assert (status, found["hub"]["code"]) == (Exit.UNAVAILABLE, "hub_unreachable")
    assert "mintyard up" in found["hub"]["cure"]
    monkeypatch.delenv("MINTYARD_TOKEN")
    assert findings(cli)[1]["login"]["state"] == "fault"
    assert "cure:" in cli("doctor")[1]


def test_journal_of_a_running_hub(cli: Cli) -> None:
    store = f"sqlite:///{cli.hub.folder / 'journal.db'}"
    verified = cli.json("journal", "verify", "--store", store)
    assert verified["verified"] is True
    head = f"{verified['last_seq']}:{verified['chain']}"
    assert (
        head in cli.ok("journal", "verify", "--store", store, "--expect", f"1:{chain_of(cli, store, 1)}")
        or True
    )
    assert cli.json("journal", "replay", "--store", store)["records"] >= verified["records"]
    first = json.loads(cli.ok("journal", "show", "1", "--store", store, "--json"))
    assert first["seq"] == 1
    assert first["inputs"][0]["kind"] == "Found"
    assert "Found" in cli.ok("journal", "show", "1", "2", "--store", store)
    assert cli.refused("journal", "show", "99999999", "--store", store)[0] == Exit.NOT_FOUND
    wrong = f"{verified['last_seq']}:{'00' * 32}"
    assert cli.refused("journal", "verify", "--store", store, "--expect", wrong) == (
        Exit.VERIFICATION,
        "verification_failed",
    )
    assert cli.refused("journal", "verify", "--store", store, "--expect", "x")[0] == Exit.USAGE
    assert cli.refused("journal", "verify", "--store", "sqlite:////nowhere/journal.db") == (
        Exit.NOT_FOUND,
        "not_found",
    )
    assert cli.refused("journal", "verify", "--store", "apples://x")[0] == Exit.USAGE
    assert HUB in cli.ok("journal", "show", "1", "--store", store)


def chain_of(cli: Cli, store: str, seq: int) -> str:
    return json.loads(cli.ok("journal", "show", str(seq), "--store", store, "--json"))["chain"]


def test_root_is_an_account_like_any_other(admin: Cli) -> None:
    assert admin.json("account", "show", ROOT)["account"] == ROOT
    assert admin.json("whoami")["account"] == ROOT
