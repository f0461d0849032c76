"""The agent's files: claims are won once, records are read whole or not at all, log files stay in their folder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.adapters.engines.retention import prune_claims
from mintyard.agent import kernel, logs, member, records
from mintyard.agent.cgroup import Group, open_base
from mintyard.agent.supervisor import PORTS, free_port


@pytest.fixture
def state(tmp_path: Path) -> str:
    records.prepare(str(tmp_path / "state"))
    return str(tmp_path / "state")


def test_one_of_many_wins_the_claim(state: str) -> None:
    won: list[int] = []
    gate = threading.Barrier(16)

    def race(number: int) -> None:
        gate.wait()
        if (handle := records.claim(state, "1.1", {"boot": str(number)})) is not None:
            won.append(number)
            os.close(handle)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert records.read_attempt(state, "1.1").claim["boot"] == str(won[0])
    assert os.listdir(os.path.join(state, "claims")) == ["1.1"], "no draft is left"


def test_the_claim_is_held_until_its_holder_dies(state: str) -> None:
    program = (
        "import sys; sys.path.insert(0, 'src')\n"
        "from mintyard.agent import records\n"
        f"h = records.claim({state!r}, '1.1', {{}}); print('won', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-ISc", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "won\n"
        assert records.is_held(state, "1.1")
        assert not records.write_end_of_dead(state, "1.1", {"outcome": "node_lost"})
        holder.kill()
        holder.wait()
    assert not records.is_held(state, "1.1")
    assert records.write_end_of_dead(state, "1.1", {"outcome": "node_lost"})
    assert not records.write_end_of_dead(state, "1.1", {"outcome": "exited"}), "the first end counts"
    assert records.read_attempt(state, "1.1").end["outcome"] == "node_lost"


def test_an_unclaimed_attempt_is_nothing(state: str) -> None:
    assert records.read_attempt(state, "1.1") is None
    assert not records.is_held(state, "1.1")


@given(st.binary(max_size=300))
def test_torn_claims_are_read_without_an_error(data: bytes) -> None:
    found = records.Attempt(data)
    assert isinstance(found.claim, dict)


@given(st.integers(0, 200))
def test_a_claim_cut_anywhere_never_shows_half_a_fact(length: int) -> None:
    whole = (
        records._line("claim", {"boot": "b"})
        + records._line("started", {"boot": "b"})
        + records._line("end", {"x": 1})
    )
    found = records.Attempt(whole[:length] + b"\n" + records._line("end", {"outcome": "node_lost"}))
    assert found.claim in ({}, {"kind": "claim", "boot": "b"})
    assert found.started in (None, {"kind": "started", "boot": "b"})
    assert found.end in ({"kind": "end", "x": 1}, {"kind": "end", "outcome": "node_lost"})


@pytest.mark.parametrize(
    "name", ["1", "1.", ".1.1", "1.1.stdout", "a.b", "1.-1", "١.١", "1" * 30 + ".1", "1.1\n"]
)
def test_foreign_files_are_no_attempts(name: str) -> None:
    assert records.parse_key(name) is None


def test_only_forgotten_and_old_claims_are_removed(state: str) -> None:
    for key in ("1.1", "2.1", "3.1"):
        os.close(records.claim(state, key, {}))
    for key in ("1.1", "2.1"):
        os.truncate(records.claim_path(state, key), records.FORGOTTEN_BYTES)
    os.utime(records.claim_path(state, "1.1"), (1, 1))
    os.utime(records.claim_path(state, "3.1"), (1, 1))
    assert prune_claims(state, 7) == 1
    assert sorted(os.listdir(os.path.join(state, "claims"))) == ["2.1", "3.1"]
    assert records.read_attempt(state, "2.1").forgotten


def test_a_record_that_cannot_be_written_leaves_the_old_one(state: str) -> None:
    path = records.file_path(state, "1.1", "usage")
    records.write_record(path, {"run_ms": 1})
    with pytest.raises(TypeError):
        records.write_record(path, {"run_ms": object()})
    assert records.read_record(path) == {"run_ms": 1}


@pytest.mark.parametrize("name", ["", "/etc/x", "a/../b", "..", ".", "a/", "./", "a\0b"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="within the working folder"):
        logs.open_within(str(tmp_path), name, os.O_WRONLY | os.O_CREAT)
    assert os.listdir(tmp_path) == []


def test_folders_on_the_way_are_made_for_writing_only(tmp_path: Path) -> None:
    os.close(logs.open_within(str(tmp_path), "a/./b//c.log", os.O_WRONLY | os.O_CREAT))
    assert (tmp_path / "a" / "b" / "c.log").read_bytes() == b""
    with pytest.raises(FileNotFoundError):
        logs.open_within(str(tmp_path), "x/y.log", os.O_RDONLY)
    assert not (tmp_path / "x").exists()
    with pytest.raises(OSError, match=r"plain file|Is a directory"):
        logs.open_within(str(tmp_path), "a/b", os.O_RDONLY)


def test_scripts_name_their_interpreter() -> None:
    def command(script: str) -> list[str]:
        return member.command_of({"script": script, "arguments": ["x"], "argv": []}, "/f")

    assert command("echo") == ["/bin/sh", "/f", "x"]
    assert command("#!/usr/bin/env -S python3 -u\n") == ["/usr/bin/env", "-S python3 -u", "/f", "x"]
    assert command("#! /bin/bash\r\n") == ["/bin/bash", "/f", "x"]
    assert command("#!\n") == ["/bin/sh", "/f", "x"]


def test_two_supervisors_get_two_ports() -> None:
    (first, first_lock), (second, second_lock) = free_port(1), free_port(1)
    try:
        assert first != second
        assert {first, second} <= set(PORTS)
    finally:
        first_lock.close()
        second_lock.close()


def test_a_signal_never_hits_a_process_that_reuses_the_id() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        started = kernel.start_time(sleeper.pid)
        assert not kernel.signal_exactly(sleeper.pid, started + 1, 9)
        assert sleeper.poll() is None
        assert kernel.descendants(os.getpid()).count(sleeper.pid) == 1
        assert kernel.resident_mib([sleeper.pid]) <= 64
        assert kernel.signal_exactly(sleeper.pid, started, 9)
        assert sleeper.wait() == -9
    assert not kernel.signal_exactly(sleeper.pid, started, 9)
    assert kernel.start_time(sleeper.pid) == 0


def test_descendants_are_found_without_the_kernels_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "CHILDREN_LISTED", False)
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    ) as shell:
        below = int(shell.stdout.readline())
        assert set(kernel.descendants(shell.pid)) == {below}
        assert {shell.pid, below} <= set(kernel.descendants(os.getpid()))
        kernel.signal_all([below, shell.pid], 9)


def test_a_group_that_cannot_be_made_is_no_group(tmp_path: Path) -> None:
    assert open_base("off", "x") == ""
    (tmp_path / "file").write_text("")
    assert open_base(str(tmp_path / "file"), "x") == ""
    assert open_base(str(tmp_path), "x") == "", "a plain folder is no cgroup"
    group = Group("", "1.1", 64)
    group.add(os.getpid())
    assert (group.kill(), group.members(), group.peak_mib(), group.kernel_killed()) == (False, [], 0, False)


def test_a_group_kills_all_of_its_processes_and_only_them() -> None:
    base = open_base("auto", f"mintyard-test-{os.getpid()}")
    if not base:
        pytest.skip("no cgroup v2 may be made here")
    group = Group(base, "1.1", 64)
    try:
        with subprocess.Popen(["sleep", "60"]) as inside, subprocess.Popen(["sleep", "60"]) as outside:
            group.add(inside.pid)
            assert group.members() == [inside.pid]
            assert group.kill()
            assert inside.wait() == -9
            assert outside.poll() is None
            outside.kill()
    finally:
        group.remove()
        os.rmdir(base)
