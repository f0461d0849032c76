"""The crash test's own checks find what they are there to find."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.crash.books import ExpectedBooks, balance_faults, receipt_faults, smallest
from tests.crash.checks import outcome_faults, run_faults
from tests.crash.evidence import Evidence, script

JOBS: dict[int, dict[str, Any]] = {7: {"attempt": 2, "state": "succeeded"}}


def evidence(folder: Path, *lines: str) -> Evidence:
    file = folder / "evidence"
    file.write_text("".join(line + "\n" for line in lines))
    return Evidence(file)


def test_a_clean_run_has_no_fault(tmp_path: Path) -> None:
    found = evidence(tmp_path, "S 7 1 50 100", "T 7 1 50 200", "S 7 2 51 300", "E 7 2 51 400")
    assert run_faults(JOBS, found) == []
    assert [run.natural for _, run in found.by_job()[7]] == [False, True]
    assert found.running() == {}


@pytest.mark.parametrize(
    ("requeued", "lines", "sound"),
    [
        (set(), ("S 7 1 50 100", "T 7 1 50 200", "S 7 2 51 300", "E 7 2 51 400"), True),
        (set(), ("S 7 1 50 100", "E 7 1 50 200", "S 7 2 51 300", "E 7 2 51 400"), False),
        # Told to start again, it came to its end before it heard of it.
        ({7}, ("S 7 1 50 100", "E 7 1 50 200", "S 7 2 51 300", "E 7 2 51 400"), True),
        ({7}, ("S 7 1 50 100", "E 7 1 50 200", "S 7 2 51 300", "T 7 2 51 400"), False),
        ({7}, ("S 7 1 50 100", "T 7 1 50 200"), False),
    ],
)
def test_a_success_leaves_the_evidence_of_its_attempt(
    tmp_path: Path, requeued: set[int], lines: tuple[str, ...], sound: bool
) -> None:
    run: Any = SimpleNamespace(memory=SimpleNamespace(jobs=[], cancelled=set(), requeued=requeued))
    assert (outcome_faults(JOBS, evidence(tmp_path, *lines), run) == []) is sound


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (("S 7 1 50 100", "S 7 1 51 150"), "ran 2 times"),
        (("S 7 1 50 100", "S 7 2 51 150", "E 7 1 50 200", "E 7 2 51 300"), "overlap"),
        (("S 8 1 50 100", "E 8 1 50 200"), "does not exist"),
        (("S 7 3 50 100", "E 7 3 50 200"), "the hub knows 2"),
        (("E 7 1 50 200",), "E before S"),
        (("S 7 1 50",), "torn line"),
        (("S 7 1 50 100", "M 7 1 50 110"), "read a file too early"),
    ],
)
def test_what_must_not_be_is_found(tmp_path: Path, lines: tuple[str, ...], fault: str) -> None:
    faults = run_faults(JOBS, evidence(tmp_path, *lines))
    assert any(fault in one for one in faults), faults


def test_a_job_that_was_told_to_end_before_it_began_is_no_fault(tmp_path: Path) -> None:
    assert run_faults(JOBS, evidence(tmp_path, "T 7 1 50 100")) == []


def test_the_script_leaves_evidence(tmp_path: Path) -> None:
    file, made = tmp_path / "evidence", tmp_path / "it's made"
    command = tmp_path / "command"
    command.write_text(script(file, 0.0, writes=(made,)))
    env = {"MINTYARD_JOB": "7", "MINTYARD_ATTEMPT": "2", "PATH": "/usr/bin:/bin"}
    assert subprocess.run(["/bin/sh", command], env=env, check=False).returncode == 0
    ((run,),) = Evidence(file).runs.values()
    assert run.natural
    assert run.pid == run.ended_pid
    assert made.exists()
    command.write_text(script(file, 0.0, reads=(tmp_path / "nowhere",)))
    assert subprocess.run(["/bin/sh", command], env=env | {"MINTYARD_JOB": "8"}, check=False).returncode == 3
    assert Evidence(file).missing_inputs == [(8, 2)]


# --- books ----------------------------------------------------------------------------------------------------------

JOB: dict[str, Any] = {
    "job": 7,
    "resources": {
        "cpus_milli": 1_000, "memory_mib": 0, "gpus": 0, "gpu_milli": 1_000, "members": 2, "storage_mb": 0,
    },
}  # fmt: skip


def receipt(**changes: Any) -> dict[str, Any]:
    """Two cores for half an hour: one core-hour, 0.1."""
    money = {"account": "a/b", "unit": "money", "listed": "0.1", "amount": "0.1", "refunded": "0"} | changes
    line = {"unit": "cpu_core_hours", "stock": "1", "cost": "0.1"}
    attempt = {"attempt": 1, "run_ms": 1_800_000, "cost": "0.1", "resources": [line], "charges": [money]}
    return {"job": 7, "cost": "0.1", "receipts": [attempt]}


def test_a_right_receipt_and_a_wrong_one() -> None:
    assert receipt_faults(JOB, receipt()) == []
    assert receipt_faults(JOB, receipt(amount="0.099999999"))
    assert receipt_faults(JOB, receipt() | {"cost": "0.100000001"})
    longer = receipt()
    longer["receipts"][0]["run_ms"] += 1
    assert receipt_faults(JOB, longer)


def test_books_add_up_or_say_where_they_do_not() -> None:
    books = ExpectedBooks({"a": {"money"}, "a/b": {"money"}})
    books.add_receipt(receipt())
    books.add_hold("a/b", "money", 5)
    balance = {"unit": "money", "spent": "0.100000005", "refunded": "0"}
    assert books.faults([{"account": "a/b", "balances": [balance]}]) == []
    assert books.faults([{"account": "a", "balances": [balance]}])  # the receipt has no line for it


def test_a_balance_that_leaks_is_found() -> None:
    balance = {
        "unit": "money", "granted": "1", "refunded": "0", "left": "0.4", "held": "0.1", "spent": "0.5", "expired": "0",
    }  # fmt: skip
    assert balance_faults({"account": "a", "balances": [balance]}) == []
    assert balance_faults({"account": "a", "balances": [balance | {"spent": "0.499999999"}]})
    assert balance_faults({"account": "a", "balances": [balance | {"left": "-0.4", "spent": "1.3"}]})


def test_a_cut_amount_is_read_exactly() -> None:
    assert smallest("0.000000000277777777", "cpu_core_hours") == 1
    assert smallest("0.999999999722222222", "cpu_core_hours") == 3_599_999_999


@pytest.mark.slow
def test_a_command_told_to_end_leaves_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "evidence"
    environment = {**os.environ, "MINTYARD_ATTEMPT": "1"}
    for job in range(60):
        started = subprocess.Popen(
            ["sh", "-c", script(file, 0.0)],
            env={**environment, "MINTYARD_JOB": str(job)},
            start_new_session=True,
        )
        time.sleep(job % 20 * 0.000_7)
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGTERM)
        started.wait(10)
    found = Evidence(file)
    assert found.faults == []
    assert found.runs
