"""Every command of the CLI against a real API: core, journal, read model, planner and uvicorn, all in this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.api_hub import HUB, ApiHub, started

from mintyard.cli import main
from mintyard.credentials import encode_key_set
from mintyard.domain import commands as c
from mintyard.domain.errors import REGISTRY, Exit
from mintyard.domain.ids import ROOT
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, Outcome
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import NS_PER_S
from mintyard.ports.engine import AttemptKey


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiHub]:
    for running in started(tmp_path_factory.mktemp("hub")):
        running.onboard("acme")
        running.add_node("n1", cpus=64_000, gpus=4)
        yield running


class Cli:
    """Runs commands in this process as one token; `ok` expects success."""

    def __init__(self, hub: ApiHub, patch: pytest.MonkeyPatch, capture: Any, folder: Path) -> None:
        self.hub, self.patch, self.capture = hub, patch, capture
        patch.setenv("MINTYARD_HOME", str(folder / "home"))
        patch.setenv("MINTYARD_HUB", hub.url)
        patch.setenv("MINTYARD_KEYS", encode_key_set(hub.keys.key_set))
        patch.delenv("MINTYARD_CONTEXT", raising=False)
        patch.chdir(folder)
        self.become(hub.mint("acme", "owner", expires_at=hub.now() + 86_400 * NS_PER_S))

    def become(self, token: str) -> None:
        self.patch.setenv("MINTYARD_TOKEN", token)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self.capture.readouterr()
        status = main(list(words))
        out, err = self.capture.readouterr()
        return status, out, err

    def ok(self, *words: str) -> str:
        status, out, err = self(*words)
        assert status == 0, (words, out, err)
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "--json"))

    def refused(self, *words: str) -> tuple[int, str]:
        """Exit status and code of a refusal; its problem object on stderr is well formed."""
        status, _, err = self(*words, "--json")
        problem = json.loads(err)
        assert problem["detail"]
        assert problem["remedy"] is not None
        assert REGISTRY[problem["code"]].exit_status == status
        return status, problem["code"]


@pytest.fixture
def cli(
    hub: ApiHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return Cli(hub, monkeypatch, capsys, tmp_path)


@pytest.fixture
def admin(cli: Cli) -> Cli:
    cli.become(cli.hub.admin())
    return cli


def submit(cli: Cli, *words: str) -> int:
    return int(cli.ok("job", "submit", "-q", *(words or ("--wrap", "echo hello", "-t", "5"))))


def finish(hub: ApiHub, job: int, outcome: Outcome = Outcome.EXITED, code: int = 0, signal: int = 0) -> None:
    """Let the engine report the whole life of a job that was placed."""
    for _ in range(200):
        with hub.client(hub.admin()) as client:
            shown = client.get(f"/api/v1/jobs/{job}").json()
        if shown["state"] in ("starting", "running", "stopping"):
            break
        hub.send(c.Tick())
        time.sleep(0.02)
    attempt = shown["attempt"]
    if shown["state"] == "starting":
        hub.send(c.TakeReports("sim", (AttemptStarted(job, attempt, "b"),)))
    hub.send(
        c.TakeReports("sim", (AttemptEnded(job, attempt, "b", outcome, code, signal, 60_000, 1_000, 64),))
    )


# --- jobs -----------------------------------------------------------------------------------------------------------


def test_submit_says_the_number_and_shows_the_job(cli: Cli) -> None:
    out = cli.ok(
        "job",
        "submit",
        "--gpus",
        "1",
        "--time",
        "00:30:00",
        "-J",
        "train",
        "--",
        "python",
        "train.py",
        "--epochs",
        "3",
    )
    assert out.startswith("Submitted job ")
    number = out.split()[-1]
    view = cli.json("job", "show", number)
    assert (view["name"], view["time_limit_ms"], view["resources"]["gpus"]) == ("train", 1_800_000, 1)
    assert view["command"] == "python train.py --epochs 3"
    shown = cli.ok("job", "show", number)
    assert "train.py" in shown
    assert "0:30:00" in shown


def test_workdir_is_here_for_a_hub_on_this_machine(cli: Cli, tmp_path: Path) -> None:
    number = submit(cli)
    assert cli.json("job", "show", str(number))["workdir"] == str(tmp_path)
    (tmp_path / "job.yaml").write_text("run: ./run.sh\nworkdir: sub\n")
    number = submit(cli, "job.yaml")
    assert cli.json("job", "show", str(number))["workdir"] == str(tmp_path / "sub")


def test_a_dag_from_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "dag.yaml").write_text(
        "jobs:\n  prepare: {run: make data, outputs: [data.bin]}\n  fit: {run: fit, inputs: [data.bin], array: 0-2}\n"
    )
    out = cli.ok("job", "submit", "dag.yaml")
    assert "(prepare)" in out
    assert "(fit) with 3 tasks" in out
    first = int(out.split()[2])
    view = cli.json("job", "show", str(first + 1))
    assert view["size"] == 3
    assert view["state"] == "pending"
    task = cli.json("job", "show", f"{first + 1}_2")
    assert task["array_index"] == 2
    assert task["waits_for"] == [{"job": first, "when": "afterok"}]
    assert cli.refused("job", "show", f"{first + 1}_7") == (Exit.NOT_FOUND, "not_found")


def test_flags_of_scripts_without_a_counterpart_are_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "#!/bin/sh\n#SBATCH --qos=high\n#SBATCH -t 10\n#SBATCH --mail-type=END\necho $1\n"
    )
    status, out, err = cli("job", "submit", "run.sh", "-J", "over", "--exclusive", "first", "--", "-v")
    assert status == 0
    assert "--qos" in err
    assert "--mail-type" in err
    assert "--exclusive" in err
    view = cli.json("job", "show", out.split()[-1])
    assert (view["name"], view["time_limit_ms"]) == ("over", 600_000)


def test_script_from_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Piped:
        buffer = io.BytesIO(b"#!/bin/sh\n#SBATCH -J piped\ntrue\n")

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Piped())
    number = submit(cli, "-")
    assert cli.json("job", "show", str(number))["name"] == "piped"


def test_dry_run_shows_quote_and_request_and_sends_nothing(cli: Cli) -> None:
    before = cli.json("job", "ls", "--all")["items"]
    told = json.loads(
        cli.ok("job", "submit", "--dry-run", "--gpus", "2", "--wrap", "true", "-t", "60", "-o", "json")
    )
    assert told["jobs"][0]["gpus"] == 2
    assert float(told["quote"]["cost"]) == pytest.approx(10.125, abs=0.01)
    assert "Nothing was submitted" in cli.ok("job", "submit", "--dry-run", "--wrap", "true")
    assert cli.json("job", "ls", "--all")["items"] == before
    assert cli.json("quote", "--gpus", "2", "--wrap", "true", "-t", "60")["cost"] == told["quote"]["cost"]
    assert cli.refused("quote", "--gpus", "4", "--wrap", "true", "-t", "60-0") == (
        Exit.QUOTA,
        "quota_exhausted",
    )


def test_list_pages_filters_and_quiet(cli: Cli) -> None:
    numbers = {submit(cli, "--wrap", "true", "-J", "listed", "-t", "1", "--hold") for _ in range(3)}
    listed = cli.ok("job", "ls", "--name", "listed", "-q").split()
    assert numbers <= {int(number) for number in listed}
    status, out, err = cli("job", "ls", "--name", "listed", "--limit", "2")
    assert status == 0
    assert len(out.splitlines()) == 3
    assert "there are more" in err
    assert len(cli.ok("job", "ls", "--name", "listed", "--limit", "2", "--no-headers").splitlines()) == 2
    page = cli.json("job", "ls", "--state", "held", "--name", "listed")
    assert {item["state"] for item in page["items"]} == {"held"}
    assert set(page) == {"items", "next", "seq"}
    status, out, err = cli("job", "ls", "--name", "nobody")
    assert (status, out, err.strip()) == (0, "", "none found")


def test_watch_shows_changes_until_interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    number = submit(cli, "--wrap", "true", "-J", "watched", "--hold", "-t", "1")
    looks = 0

    def look(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            with cli.hub.client(cli.hub.admin()) as client:
                assert client.post(f"/api/v1/jobs/{number}/cancel", json={}).status_code == 200
                time_out = time.monotonic() + 10
                while client.get(f"/api/v1/jobs/{number}").json()["state"] != "cancelled":
                    assert time.monotonic() < time_out
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr("mintyard.cli.watching.time.sleep", look)
    status, out, _ = cli("job", "ls", "-w", "--name", "watched", "--json")
    assert status == 130
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["held", "cancelled"]


def test_control_and_exit_statuses(cli: Cli) -> None:
    number = str(submit(cli, "--wrap", "true", "-t", "1", "--begin", "now+1hour"))
    assert "held" in cli.ok("job", "hold", number, "--reason", "later")
    assert cli.json("job", "release", number)["ref"] == int(number)
    assert f"job {number} cancelled" in cli.ok("job", "cancel", number)
    assert cli.refused("job", "cancel", number)[0] in (Exit.CONFLICT, Exit.NOT_FOUND)
    assert cli.refused("job", "cancel", "999999") == (Exit.NOT_FOUND, "not_found")
    other = str(submit(cli))
    status, out, err = cli("job", "cancel", "999998", other)
    assert status == Exit.NOT_FOUND
    assert f"job {other}" in out
    assert "999998" in err


def test_update_and_requeue(cli: Cli) -> None:
    number = str(submit(cli, "--wrap", "true", "-t", "1", "--hold"))
    cli.ok("job", "update", number, "--time", "2h", "--priority", "7")
    view = cli.json("job", "show", number)
    assert (view["time_limit_ms"], view["priority"]) == (7_200_000, 7)
    cli.ok("job", "update", number, "--begin", "now+1hour")
    assert cli.json("job", "show", number)["begin_at"]
    assert cli.refused("job", "requeue", number)[0] == Exit.CONFLICT
    assert cli.refused("job", "update", number)[0] == Exit.USAGE
    assert cli.refused("job", "update", number, "--time", "never")[0] == Exit.USAGE


def test_explain_and_receipt(cli: Cli) -> None:
    number = submit(cli, "--wrap", "true", "-t", "1", "--hold")
    found = cli.json("job", "explain", str(number))
    assert found["state"] == "held"
    assert found["reason"] in cli.ok("job", "explain", str(number))
    done = submit(cli, "--wrap", "true", "-t", "30", "--gpus", "1")
    finish(cli.hub, done)
    assert cli.ok("job", "wait", str(done)).strip() == f"Job {done} succeeded"
    receipt = cli.json("job", "receipt", str(done))
    assert receipt["final"] is True
    assert float(receipt["cost"]) > 0
    assert receipt["cost"] in cli.ok("job", "receipt", str(done))


@pytest.mark.parametrize(
    ("outcome", "code", "signal", "status"),
    [
        (Outcome.EXITED, 0, 0, Exit.OK),
        (Outcome.EXITED, 7, 0, Exit.JOB_FAILED),
        (Outcome.EXITED, 0, 9, Exit.JOB_FAILED),
        (Outcome.TIMED_OUT, 0, 15, Exit.TIMEOUT),
    ],
)
def test_wait_exits_as_the_job_did(cli: Cli, outcome: Outcome, code: int, signal: int, status: Exit) -> None:
    number = submit(cli)
    finish(cli.hub, number, outcome, code, signal)
    assert cli("job", "wait", str(number))[0] == status
    assert cli("job", "wait", str(number), "--passthrough")[0] == (code or status)


def test_wait_for_cancelled_and_for_too_long(cli: Cli) -> None:
    number = str(submit(cli, "--wrap", "true", "--hold"))
    assert cli.refused("job", "wait", number, "--timeout", "100ms") == (Exit.TIMEOUT, "wait_timeout")
    cli.ok("job", "cancel", number)
    assert cli("job", "wait", number, "-q")[0] == Exit.CANCELLED
    assert cli("job", "wait", number, number, "999997")[0] == Exit.NOT_FOUND


def test_submit_and_wait_in_one(cli: Cli) -> None:
    def life() -> None:
        with cli.hub.client(cli.hub.admin()) as client:
            found: list[Any] = []
            while not found:
                found = client.get("/api/v1/jobs", params={"name": "waited"}).json()["items"]
                time.sleep(0.05)
        finish(cli.hub, found[0]["job"], code=3)

    engine = threading.Thread(target=life)
    engine.start()
    told = cli("job", "submit", "--wait", "--wrap", "false", "-J", "waited", "-t", "1")
    engine.join()
    assert told[0] == Exit.JOB_FAILED
    assert told[1].startswith("Submitted job ")


def test_interrupted_wait_leaves_the_job(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    number = submit(cli, "--wrap", "true", "--hold")

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mintyard.cli.waiting.time.sleep", interrupt)
    status, _, err = cli("job", "wait", str(number))
    assert status == 130
    assert f"mintyard job cancel {number}" in err
    assert cli.json("job", "show", str(number))["state"] == "held"


def test_logs(
    hub: ApiHub, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    Cli(hub, monkeypatch, None, tmp_path)
    assert main(["job", "submit", "-q", "--wrap", "true"]) == 0
    number = int(capfdbinary.readouterr().out)
    finish(hub, number)
    key = AttemptKey(number, 1)
    hub.logs.kept[key, "stdout"] = "höllo\n".encode() + b"\xff\x00"
    hub.logs.kept[key, "stderr"] = b"oh\n"
    hub.logs.ended.add(key)
    for words, expected in (
        ((), "höllo\n".encode() + b"\xff\x00"),
        (("-f",), "höllo\n".encode() + b"\xff\x00"),
        (("--stderr",), b"oh\n"),
        (("--offset", "7"), b"\xff\x00"),
    ):
        assert main(["job", "logs", str(number), *words]) == 0
        assert capfdbinary.readouterr().out == expected
    assert main(["job", "logs", "999996"]) == Exit.NOT_FOUND


def test_account_option_narrows_the_token_here(admin: Cli) -> None:
    cli = admin
    cli.ok("account", "open", "acme/vision/ann", "--parents")
    cli.become(cli.hub.mint("acme", "owner"))
    number = submit(cli, "--wrap", "true", "-t", "1", "-A", "acme/vision/ann")
    assert cli.json("job", "show", str(number))["account"] == "acme/vision/ann"
    assert {item["account"] for item in cli.json("job", "ls", "-A", "acme/vision")["items"]} == {
        "acme/vision/ann"
    }
    assert cli.refused("job", "submit", "--wrap", "true", "-A", "other")[0] == Exit.FORBIDDEN


def test_refusals_by_family(cli: Cli) -> None:
    assert cli.refused("job", "submit", "--wrap", "true", "--gpus", "16", "-t", "5") == (
        Exit.INFEASIBLE,
        "infeasible",
    )
    assert cli.refused("job", "submit", "--wrap", "true", "--gpus", "4", "-t", "100-0") == (
        Exit.QUOTA,
        "quota_exhausted",
    )
    assert cli.refused("job", "submit", "--wrap", "true", "--gpus", "1", "--budget", "0.01") == (
        Exit.QUOTA,
        "budget_too_small",
    )
    assert cli.refused("job", "submit", "nowhere.yaml") == (Exit.USAGE, "file_unreadable")
    assert cli.refused("job", "submit", "--wrap", "true", "-d", "afterok:999999")[0] == Exit.NOT_FOUND
    cli.become(cli.hub.mint("acme", scopes=(Scope.JOB_READ,)))
    assert cli.refused("job", "submit", "--wrap", "true") == (Exit.FORBIDDEN, "scope_missing")
    cli.become(cli.hub.mint("acme", "owner", clusters=("elsewhere",)))
    assert cli.refused("whoami") == (Exit.TOKEN, "token_wrong_audience")
    cli.become("")
    assert cli.refused("job", "ls") == (Exit.TOKEN, "token_missing")
    cli.become("nonsense")
    assert cli.refused("job", "ls") == (Exit.TOKEN, "token_malformed")


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
    cli.hub.send(c.OpenAccount(None, "poor"), c.CreateGrant(None, "poor", "money", 1_000_000_000))  # type: ignore[arg-type]
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
