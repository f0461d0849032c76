"""Usage: what is wrong with a command line, exit statuses, JSON problems, help, completion, and what needs no hub."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from tests.unit.credentials_material import KEYS, make

from mintyard.app.config import load_config
from mintyard.app.journal import make_record
from mintyard.app.journal_store import open_store
from mintyard.app.read_model import queries
from mintyard.app.read_model.database import open_read_model
from mintyard.app.record import encode_body
from mintyard.cli import main
from mintyard.cli.application import NOUNS, application
from mintyard.cli.options import ScopeName, UnitName
from mintyard.cli.problems import asks_json
from mintyard.credentials import Context, CredentialStore, encode_key_set, verify
from mintyard.domain import hub
from mintyard.domain.commands import Found, OpenAccount
from mintyard.domain.errors import REGISTRY, Exit
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import NS_PER_S, Unit

ROOT = Path(__file__).parents[2]
DAY = 86_400 * NS_PER_S


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No login, and a hub that isn't there."""
    for name in list(os.environ):
        if name.startswith("MINTYARD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MINTYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINTYARD_HUB", "http://127.0.0.1:1")
    monkeypatch.setattr("mintyard.cli.options.RETRY_S", 0.0)
    monkeypatch.chdir(tmp_path)


def problem(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main([*words, "--json"])
    out, err = capsys.readouterr()
    assert out == ""
    told = json.loads(err)
    assert set(told) == {"type", "title", "status", "detail", "code", "params", "remedy", "instance"}
    return status, told


# --- usage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",), ("job", "nonsense"), ("job", "ls", "--nonsense"), ("job", "show"), ("job", "show", "x"),
        ("job", "show", "0"), ("job", "show", "1_"), ("job", "show", "-1"), ("job", "show", "1" * 30), ("job", "show", "1", "2"),
        ("job", "ls", "--limit", "many"), ("job", "ls", "--limit", "-1"), ("job", "ls", "-o", "yaml"), ("job", "cancel"),
        ("job", "wait"), ("job", "wait", "1", "--timeout", "x"), ("job", "update", "1"), ("job", "submit"),
        ("job", "submit", "--gpus"), ("grant", "create", "a"), ("grant", "show", "x"), ("account", "ls", "--state", "odd"),
        ("token", "mint", "--role", "king"), ("token", "mint", "--ceiling", "money"), ("token", "mint", "--ceiling", "=1"),
        ("hold", "place"), ("hold", "place", "money=1", "1"), ("node", "show"), ("price", "set", "--gpu-model", "x"),
        ("completion", "cmd"), ("journal", "show", "0"), ("journal", "show", "3", "2"), ("journal", "verify", "--expect", "1:zz"),
        ("login",), ("config", "nonsense"), ("statement", "--unit", "apples"), ("watch", "--count", "x"),
        ("job", "ls", "--", "x"),
    ],
)  # fmt: skip
def test_wrong_usage_exits_2_and_names_itself(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(list(words))
    out, err = capsys.readouterr()
    assert status == Exit.USAGE, err
    assert out == ""
    assert err.startswith("error: ")
    assert re.search(r"\[(usage_invalid|invalid_\w+)\]\n", err)
    assert "\ntry: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["jobs", "ls"],
            'error: Unknown command "jobs"; the nearest is job. [usage_invalid]\ntry: See `mintyard --help`.',
        ),
        (
            ["token", "mit"],
            'Unknown command "mit"; the nearest is mint. [usage_invalid]\ntry: See `mintyard token --help`.',
        ),
        (["hold", "zzz"], "there are place, ls, show, extend, draw, settle, void. [usage_invalid]"),
        (["zzz"], "journal, replay, completion. [usage_invalid]"),
    ],
)
def test_an_unknown_command_is_answered_by_those_that_there_are(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_wrong_usage_as_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = problem(capsys, "job", "ls", "--nonsense")
    assert (status, told["code"], told["status"]) == (2, "usage_invalid", 400)
    assert "--nonsense" in told["detail"]
    assert told["remedy"] == "See `mintyard job ls --help`."


def test_json_is_noticed_before_the_words_are_parsed() -> None:
    yes = (["x", "--json"], ["-o", "json"], ["--output", "json"], ["--output=json"], ["-ojson"], ["-o=json"])
    no = ([], ["-o", "table"], ["json"], ["--", "--json"], ["-o"], ["--no-json"])
    assert [asks_json(words) for words in yes] == [True] * len(yes)
    assert [asks_json(words) for words in no] == [False] * len(no)


@pytest.mark.parametrize(
    "words",
    [(), ("--help",), ("job",), ("job", "-h"), ("job", "submit", "--help"), ("up", "--help"), ("--version",)],
)
def test_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(words)) == 0
    assert capsys.readouterr().out


def test_every_noun_and_verb_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    app = application()
    seen = 0
    for name, _, about in NOUNS:
        noun = app[name]
        assert about
        assert noun.help, name
        for verb in noun:
            if not verb.startswith("-"):
                assert noun[verb].help, (name, verb)
                seen += 1
    assert seen > 40


def test_a_hub_that_is_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status, told = problem(capsys, "job", "ls", "--hub", "http://127.0.0.1:1")
    assert (status, told["code"]) == (Exit.UNAVAILABLE, "hub_unreachable")
    assert "refused" in told["detail"]
    for url, code in (("ftp://x", "invalid_spec"), ("http://u:p@h", "invalid_spec")):
        assert problem(capsys, "job", "ls", "--hub", url)[1]["code"] == code
    assert problem(capsys, "job", "ls", "--context", "none")[0] == Exit.NOT_FOUND


def test_the_server_half_may_be_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("mintyard.app.supervisor")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "structlog", None)
    assert main(["up", "--no-login"]) == Exit.USAGE
    err = capsys.readouterr().err
    assert "extra_missing" in err
    assert "mintyard[hub]" in err


def test_bad_settings_of_up(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("--port", "99999"),
        ("--port", "x"),
        ("--engine-options", "{"),
        ("--workers", "0"),
        ("--config", "none.toml"),
    ):
        assert main(["up", *words]) == Exit.USAGE
        assert "[config_invalid]" in capsys.readouterr().err


def test_units_and_scopes_are_those_of_the_domain() -> None:
    assert set(get_args(UnitName)) == set(Unit)
    assert set(get_args(ScopeName)) == set(Scope)


def test_interrupt_and_broken_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("mintyard.cli.running._call", interrupted)
    assert main(["job", "ls"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_fault() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m mintyard.cli completion bash | head -c 1 >/dev/null"],
        capture_output=True, text=True, check=False, env=env,
    )  # fmt: skip
    assert done.returncode in (0, 141)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_every_error_has_a_stable_exit_status() -> None:
    assert {kind.exit_status for kind in REGISTRY.values()} <= set(Exit)
    families = {kind.exit_status for kind in REGISTRY.values()}
    assert {
        Exit.USAGE,
        Exit.TOKEN,
        Exit.QUOTA,
        Exit.NOT_FOUND,
        Exit.CONFLICT,
        Exit.INFEASIBLE,
        Exit.TIMEOUT,
    } <= families
    assert {
        Exit.UNAVAILABLE,
        Exit.VERIFICATION,
        Exit.FORBIDDEN,
        Exit.RATE_LIMITED,
        Exit.BROKEN,
        Exit.JOB_FAILED,
    } <= families


# --- completion -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_completion_loads_in_bash_and_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "mintyard.bash"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "mintyard").write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m mintyard.cli "$@"\n'
    )
    (tmp_path / "mintyard").chmod(0o755)
    ask = (
        f'export PATH="{tmp_path}:$PATH"; source {script} || exit 9; spec=$(complete -p mintyard) || exit 8; '
        'function=$(sed "s/.*-F \\([^ ]*\\).*/\\1/" <<<"$spec"); '
        'COMP_WORDS=(mintyard job su); COMP_CWORD=2; COMP_LINE="mintyard job su"; COMP_POINT=${#COMP_LINE}; '
        '"$function" mintyard su job; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any(line.strip().startswith("submit") for line in done.stdout.splitlines()), (
        done.stdout,
        done.stderr,
    )


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_of_other_shells(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "mintyard" in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        assert (
            subprocess.run(
                [shell, "-n", str(tmp_path / "script")], capture_output=True, check=False
            ).returncode
            == 0
        )


# --- tokens without a hub -------------------------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path: Path) -> str:
    """A stored login whose token is good for a day."""
    token = make(
        issued_at=time.time_ns() - DAY, expires_at=time.time_ns() + DAY, ceilings={Unit.MONEY: 5 * 10**9}
    )
    CredentialStore(tmp_path / "home").save("own", Context("http://127.0.0.1:1", token, KEYS))
    return token


def test_narrow_offline(held: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--life",
        "1h",
        "--ceiling",
        "money=1.5",
        "--gpus",
        "0.5",
        "--cluster",
        "one",
        "--scope",
        "job:read",
        "--job",
        "7",
    )
    assert main(["token", "narrow", *words]) == 0
    made = capsys.readouterr().out.strip()
    authority = verify(made, KEYS, time.time_ns())
    assert authority.scopes == {"job:read"}
    assert authority.caps.gpus_milli == 500
    assert authority.clusters == ("one",)
    assert authority.jobs == (7,)
    assert authority.blocks[1].ceilings == {Unit.MONEY: 1_500_000_000}
    assert authority.expires_at <= time.time_ns() + 3_600 * NS_PER_S


def test_what_narrowing_refuses(held: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words, status, code in (
        ((), Exit.USAGE, "invalid_spec"),
        (("--account", "other"), Exit.FORBIDDEN, "token_widening"),
        (("--life", "3d"), Exit.FORBIDDEN, "token_widening"),
        (("--gpus", "-1"), Exit.USAGE, "invalid_spec"),
        (("--ceiling", "money=nan"), Exit.USAGE, "invalid_amount"),
        (("--cluster", "a b"), Exit.USAGE, "invalid_name"),
        (("--life", "1h", "--expires", "30m"), Exit.USAGE, "invalid_spec"),
        (("none.token", "--life", "1h"), Exit.USAGE, "file_unreadable"),
        (("--keys", "none.keys", "--life", "1h"), Exit.USAGE, "file_unreadable"),
        ((held, "--life", "1h"), Exit.USAGE, "invalid_spec"),
    ):
        got, told = problem(capsys, "token", "narrow", *words)
        assert (got, told["code"]) == (status, code), words
        assert held not in json.dumps(told)


def test_sealed_tokens_stay_as_they_are(
    held: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["token", "narrow", "--life", "1h", "--seal"]) == 0
    (tmp_path / "sealed").write_text(capsys.readouterr().out)
    assert main(["token", "verify", "sealed", "-q"]) == 0
    assert problem(capsys, "token", "narrow", "sealed", "--life", "1m")[1]["code"] == "token_sealed"


def test_inspect_and_verify_offline(held: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["token", "inspect", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["authority"]["account"] == "acme/vision"
    assert told["expired"] is False
    assert told["authority"]["ceilings"][0]["amount"] == "5"
    assert main(["token", "inspect", "--raw"]) == 0
    assert "check if account" in capsys.readouterr().out
    assert main(["token", "verify"]) == 0
    assert "acme/vision" in capsys.readouterr().out
    old = make(issued_at=time.time_ns() - 2 * DAY, expires_at=time.time_ns() - DAY)
    (tmp_path / "old").write_text(old)
    (tmp_path / "keys").write_text(encode_key_set(KEYS))
    assert problem(capsys, "token", "verify", "old", "--keys", "keys") == (
        Exit.TOKEN,
        problem(capsys, "token", "verify", "old")[1],
    )
    assert main(["token", "inspect", "old", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["expired"] is True


def test_tokens_that_do_not_hold(held: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for text, code in (
        (held[:-3] + "AAA", "token_malformed"),
        ("x", "token_malformed"),
        ("mint" * 5_000, "file_unreadable"),
        ("", "file_unreadable"),
    ):
        (tmp_path / "bad").write_text(text)
        assert problem(capsys, "token", "verify", "bad")[1]["code"] == code
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    assert problem(capsys, "token", "verify", "bad")[1]["code"] == "file_unreadable"
    (tmp_path / "keys").write_text("{}")
    assert problem(capsys, "token", "verify", "--keys", "keys")[1]["code"] == "key_set_invalid"


def test_without_a_login(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem(capsys, "token", "verify")[1]["code"] == "token_missing"
    monkeypatch.setenv("MINTYARD_TOKEN", make())
    assert problem(capsys, "token", "verify")[1]["code"] == "key_set_missing"
    assert main(["config", "use", "none"]) == Exit.NOT_FOUND
    assert main(["logout"]) == Exit.TOKEN


def test_a_damaged_login(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "credentials.json").write_text("{")
    assert problem(capsys, "job", "ls")[1]["code"] == "credentials_damaged"
    assert main(["doctor", "--json", "--folder", str(tmp_path / "none")]) != 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found[0]["code"] == "credentials_damaged"
    assert found[0]["cure"]


def test_config_show_hides_tokens(
    held: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINTYARD_TOKEN", "secret-in-the-environment")
    for words in ((), ("--json",)):
        assert main(["config", "show", *words]) == 0
        out = capsys.readouterr().out
        assert held not in out
        assert "secret-in" not in out
        assert "acme/vision" in out


# --- the journal without a hub --------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> tuple[str, Path]:
    """A journal of three records, none of whose hub runs."""
    path = tmp_path / "journal.db"
    url = f"sqlite:///{path}"
    store = open_store(url)
    lease = store.acquire("test", 60_000)
    assert lease is not None
    previous = None
    for number in range(3):
        inputs = [Found(f"hub{number}")]
        body = msgspec.msgpack.Encoder(order="deterministic").encode((inputs, []))
        previous = make_record(previous, lease.term, number + 1, 1, body)
        store.append(lease.term, [previous])
    store.close()
    return url, path


def test_verify_offline_and_after_tampering(
    journal: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    url, path = journal
    assert main(["journal", "verify", "--store", url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["records"], told["last_seq"]) == (3, 3)
    assert main(["journal", "verify", "--store", url]) == 0
    assert f"3:{told['chain']}" in capsys.readouterr().out
    assert (
        problem(capsys, "journal", "verify", "--store", url, "--expect", f"4:{'00' * 32}")[0]
        == Exit.VERIFICATION
    )
    assert main(["journal", "show", "1", "3", "--store", url]) == 0
    assert "hub2" in capsys.readouterr().out
    replayed, difference = problem(capsys, "journal", "replay", "--store", url)
    assert (replayed, difference["params"]["seq"]) == (Exit.VERIFICATION, 1)
    assert difference["code"] == "decided_otherwise"
    assert "backup" not in difference["remedy"], "a journal that verifies is not one to replace"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE record SET body = x'90' WHERE seq = 2")
    connection.close()
    status, told = problem(capsys, "journal", "verify", "--store", url)
    assert (status, told["code"]) == (Exit.VERIFICATION, "verification_failed")
    assert told["params"]["seq"] == 2


def test_the_read_model_is_made_anew_from_the_journal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "hub"
    assert problem(capsys, "journal", "rebuild", "--folder", str(folder))[0] == Exit.NOT_FOUND
    journal = folder / "journal"
    journal.mkdir(parents=True)
    store = open_store(f"sqlite:///{journal / 'journal.db'}")
    lease = store.acquire("test", 60_000)
    assert lease is not None
    state = State()
    previous = None
    for number, command in enumerate((Found("centre"), OpenAccount(None, "acme")), 1):
        hub.begin(state, number, number)
        events, _ = hub.execute(state, command, number)
        previous = make_record(previous, lease.term, number, 1, encode_body([command], events))
        store.append(lease.term, [previous])
    store.close()
    for _ in range(2):
        assert main(["journal", "rebuild", "--folder", str(folder), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["seq"] == 2
        assert told["rows"] > 0
    model = open_read_model(load_config({"folder": str(folder)}).read_model_url)
    accounts = queries.list_accounts(model, "/")
    model.close()
    assert {account.account for account in accounts.rows} == {"/", "acme"}


def test_a_journal_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text(
        "not a database, but long enough to be looked at as if it were one" * 50
    )
    status, _ = problem(capsys, "journal", "verify", "--store", f"sqlite:///{tmp_path / 'text.db'}")
    assert status == Exit.BROKEN
    assert problem(capsys, "journal", "verify", "--folder", str(tmp_path))[0] == Exit.NOT_FOUND
    assert not (tmp_path / "journal").exists()


def test_doctor_without_anything(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--json", "--folder", str(tmp_path / "none")]) == Exit.TOKEN
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    assert {one["check"] for one in told["findings"]} >= {"login", "hub", "folder"}
    assert all(
        one["cause"] and one["cure"]
        for one in told["findings"]
        if one["state"] == "fault" and one["check"] != "folder"
    )
    assert main(["doctor"]) == Exit.TOKEN
    assert "FAIL  hub" in capsys.readouterr().out


# --- start-up -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_listing_jobs_loads_little() -> None:
    code = (
        "import sys; from mintyard.cli import main; main(['job', 'ls', '--hub', 'http://127.0.0.1:1']);"
        "print(*sorted(n for n in sys.modules if n in "
        "{'numpy','numba','litestar','sqlalchemy','structlog','yaml','rich.table','click','pygments','mintyard.app'}))"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "MINTYARD_TOKEN": "x"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.stdout.split() == [], done.stderr
