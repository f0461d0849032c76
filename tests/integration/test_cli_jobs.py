"""Job commands against a real API: what they say, and exit statuses."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.api_hub import ApiHub
from tests.integration.cli_hub import Cli, admin, cli, finish, hub, submit  # noqa: F401 (fixtures)

from mintyard.cli import main
from mintyard.domain.errors import Exit
from mintyard.domain.jobs.reports import Outcome
from mintyard.domain.tokens.authority import Scope
from mintyard.ports.engine import AttemptKey

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
