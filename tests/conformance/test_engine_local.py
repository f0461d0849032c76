"""The local engine's own promises: kills, leftovers, secrets, files that may not escape, full disks."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.conformance.engines.backends import NODES, PATIENCE_S, LocalBench, Program

from mintyard.adapters.engines.local import LocalEngine
from mintyard.agent import kernel, records
from mintyard.domain.errors import EngineUnavailable
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, Outcome
from mintyard.ports.engine import AttemptKey, MemberPlacement, StopOrder
from mintyard.wire.launch import Launch, encode_launch

SECRET = "mt_very_secret_token"


@pytest.fixture
def bench() -> Iterator[LocalBench]:
    bench = LocalBench()
    yield bench
    bench.close()


def shell(text: str, **fields: object) -> Launch:
    return Launch(argv=("/bin/sh", "-c", text), **fields)


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def printed_pids(bench: LocalBench, job: int, count: int) -> list[int]:
    bench.until(lambda: bench.log(job).count("\n") >= count)
    return [int(word) for word in bench.log(job).split()]


def supervisor_of(bench: LocalBench, job: int) -> int:
    return int(records.read_attempt(bench.state, f"{job}.1").claim["pid"])


TREE = "echo $$; sleep 300 & echo $!; setsid sh -c 'echo $$; exec sleep 300' & env -i setsid sleep 300 & echo $!; wait"
"""A shell with a child, one in a session of its own, and one that also dropped its environment."""


# --- kills --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cgroup", ["off", "auto"])
def test_a_killed_supervisor_takes_its_whole_tree_along_and_the_job_pays(cgroup: str) -> None:
    bench = LocalBench(cgroup=cgroup)
    try:
        bench.engine.start([bench.launch(1, shell(TREE))])
        bench.started(1)
        pids = printed_pids(bench, 1, 4)
        bench.until(lambda: os.path.exists(records.file_path(bench.state, "1.1", "usage")))
        os.kill(supervisor_of(bench, 1), signal.SIGKILL)
        ended = bench.ended(1)
        assert (ended.outcome, ended.signal) == (Outcome.EXITED, signal.SIGKILL), "the node is there"
        assert ended.run_ms >= 1_000, "the last usage written survives the supervisor"
        assert [pid for pid in pids if kernel.start_time(pid)] == []
    finally:
        bench.close()


@pytest.mark.slow
def test_fork_server_and_supervisor_killed_together_leave_nothing_behind(bench: LocalBench) -> None:
    bench.engine.start([bench.launch(1, shell("echo $$; setsid sleep 300 & echo $!; wait"))])
    bench.started(1)
    pids = printed_pids(bench, 1, 2)
    for pid in bench.servers():
        os.kill(pid, signal.SIGKILL)
    ended = bench.ended(1)
    assert (ended.outcome, ended.signal) == (Outcome.EXITED, signal.SIGKILL)
    assert [pid for pid in pids if kernel.start_time(pid)] == []
    bench.engine.start([bench.launch(2, shell("exit 4"))])
    assert bench.ended(2).exit_code == 4, "the next order starts another fork server"


@pytest.mark.slow
def test_a_killed_fork_server_harms_no_job(bench: LocalBench) -> None:
    bench.engine.start([bench.launch(1, shell("sleep 1.2; exit 6"))])
    bench.started(1)
    server = next(pid for pid in bench.servers() if pid != supervisor_of(bench, 1))
    os.kill(server, signal.SIGKILL)
    bench.engine.start([bench.launch(2, shell("exit 4"))])
    assert bench.ended(2).exit_code == 4
    assert bench.ended(1).exit_code == 6
    bench.engine.start([bench.launch(3, shell("sleep 300"))])
    bench.started(3)
    bench.engine.stop([StopOrder(3, 1, 1_000)])
    assert bench.ended(3).outcome is Outcome.STOPPED


@pytest.mark.slow
def test_a_killed_hub_is_followed_by_one_that_adopts(bench: LocalBench) -> None:
    payload = encode_launch(shell("echo begun; sleep 1.5; echo done; exit 9")).hex()
    command = [sys.executable, "-m", "tests.conformance.engines.hub", bench.state, payload]
    env = os.environ | {"PYTHONPATH": "src:."}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True) as hub:
        assert hub.stdout.readline() == "started\n"
        os.killpg(hub.pid, signal.SIGKILL)
    assert bench.engine.attempts() == [AttemptKey(1, 1)]
    bench.started(1)
    assert bench.of(1, AttemptEnded) == []
    ended = bench.ended(1)
    assert (ended.outcome, ended.exit_code) == (Outcome.EXITED, 9)
    assert bench.log(1) == "begun\ndone\n"


@pytest.mark.slow
def test_a_claim_whose_maker_died_at_once_gets_its_end(bench: LocalBench) -> None:
    handle = records.claim(
        bench.state, "5.1", {"boot": "b", "machine": kernel.boot_id(), "pid": 1, "started": 1}
    )
    os.unlink(os.path.join(bench.state, "attempts", "5.1"))
    os.close(handle)
    assert bench.engine.attempts() == [AttemptKey(5, 1)]
    ended = bench.ended(5)
    assert (ended.outcome, ended.message) == (
        Outcome.NEVER_STARTED,
        "its supervisor died before user code ran",
    )


@pytest.mark.slow
def test_after_a_restart_of_the_machine_nothing_runs_and_torn_files_are_read(bench: LocalBench) -> None:
    claim = {
        "boot": "b",
        "machine": "another boot",
        "pid": os.getpid(),
        "started": kernel.start_time(os.getpid()),
    }
    handle = records.claim(bench.state, "5.1", claim)
    records.write_started(handle, {"boot": "b", "stdout": [""], "stderr": [""], "cores": []})
    os.write(handle, b'\n{"kind": "end", "outco')
    os.close(handle)
    os.close(os.open(records.claim_path(bench.state, "6.1"), os.O_CREAT | os.O_WRONLY))
    Path(records.file_path(bench.state, "5.1", "usage")).write_text('{"boot": "b", "run')
    for job in (5, 6):
        ended = bench.ended(job)
        assert (ended.outcome, ended.message) == (Outcome.NODE_LOST, "the machine was restarted")
    assert os.path.exists("/proc/self"), "the process that has the claim's pid today was not touched"


def test_background_children_end_with_their_job(bench: LocalBench) -> None:
    text = "(trap '' TERM; sleep 300) & echo $!; setsid sleep 300 & echo $!; exit 3"
    bench.engine.start([bench.launch(1, shell(text), grace_ms=100)])
    ended = bench.ended(1)
    assert (ended.outcome, ended.exit_code) == (Outcome.EXITED, 3)
    assert [pid for pid in printed_pids(bench, 1, 2) if kernel.start_time(pid)] == []


def test_a_stopped_job_is_continued_to_be_terminated(bench: LocalBench) -> None:
    bench.engine.start([bench.launch(1, shell("echo $$; trap 'exit 5' TERM; kill -STOP $$; sleep 300"))])
    [pid] = printed_pids(bench, 1, 1)
    wait_until(lambda: kernel._stat(pid)[0] == b"T")
    bench.engine.stop([StopOrder(1, 1, 20_000)])
    ended = bench.ended(1)
    assert (ended.outcome, ended.exit_code) == (Outcome.STOPPED, 5)


def test_terminating_the_supervisor_is_a_node_shutting_down(bench: LocalBench) -> None:
    bench.engine.start([bench.launch(1, shell("sleep 300"))])
    bench.started(1)
    os.kill(supervisor_of(bench, 1), signal.SIGTERM)
    assert bench.ended(1).outcome is Outcome.NODE_LOST


@pytest.mark.parametrize(
    "text", ["kill $PPID; sleep 300", "env kill $PPID; sleep 300", "kill -9 $PPID; sleep 300"]
)
def test_a_job_that_ends_its_own_supervisor_is_not_a_lost_node(bench: LocalBench, text: str) -> None:
    """A lost node is refunded and started again: such a job would run free of charge, over and over."""
    bench.engine.start([bench.launch(1, shell(text))])
    ended = bench.ended(1)
    assert (ended.outcome, ended.exit_code) == (Outcome.EXITED, 0)
    assert ended.signal
    assert "its supervisor was" in ended.message


@pytest.mark.slow
def test_whatever_is_killed_each_attempt_runs_at_most_once_and_ends_once(
    bench: LocalBench, tmp_path: Path
) -> None:
    """Supervisors and fork servers killed at random moments while two engines keep ordering the same attempts."""
    chance, ran = random.Random(11), tmp_path / "ran"
    other = bench.open()
    text = f"echo $MINTYARD_JOB >> {ran}; sleep 0.2"
    orders = [bench.launch(job, shell(text)) for job in range(1, 61)]
    ends: dict[int, AttemptEnded] = {}
    deadline = time.monotonic() + 90
    while len(ends) < len(orders):
        assert time.monotonic() < deadline, f"no end of {[o.job for o in orders if o.job not in ends]}"
        for engine in (bench.engine, other):
            engine.start(chance.sample(orders, 8))
        for pid in bench.servers():
            if time.monotonic() < deadline - 80 and chance.random() < 0.15:
                kernel.signal_all([pid], signal.SIGKILL)
        if chance.random() < 0.1:
            bench.reopen()
        bench.heard.clear()
        bench.listen()
        for one in bench.heard:
            if isinstance(one, AttemptEnded):
                assert ends.setdefault(one.job, one) == one, "an end never changes"
    other.close()
    lines = ran.read_text().split()
    assert len(lines) == len(set(lines))
    # Signal 9: the kill hit a member before it was user code.
    finished = {str(job) for job, end in ends.items() if end.outcome is Outcome.EXITED and not end.signal}
    assert finished <= set(lines)
    assert not {str(job) for job, end in ends.items() if end.outcome is Outcome.NEVER_STARTED} & set(lines)
    assert {end.outcome for end in ends.values()} >= {Outcome.EXITED}
    assert {"its supervisor was killed", ""} <= {end.message for end in ends.values()}


# --- environment --------------------------------------------------------------------------------------------------------


def environment_of(bench: LocalBench, launch_fields: dict[str, object], **fields: object) -> dict[str, str]:
    bench.engine.start([bench.launch(1, Launch(argv=("env", "-0"), **launch_fields), **fields)])
    bench.ended(1)
    return dict(pair.split("=", 1) for pair in bench.log(1).split("\0") if pair)


def test_the_hubs_environment_is_not_inherited(monkeypatch: pytest.MonkeyPatch, bench: LocalBench) -> None:
    monkeypatch.setenv("HUB_SECRET", "x")
    monkeypatch.setenv("LANG", "C.UTF-8")
    env = environment_of(
        bench, {"env": {"MY": "ä=1", "MINTYARD_JOB": "999"}}, token=SECRET, array_job=7, array_index=3
    )
    assert "HUB_SECRET" not in env
    assert (env["MY"], env["MINTYARD_JOB"], env["MINTYARD_ATTEMPT"]) == ("ä=1", "1", "1")
    assert (env["MINTYARD_ARRAY_JOB"], env["MINTYARD_ARRAY_INDEX"], env["MINTYARD_TOKEN"]) == (
        "7",
        "3",
        SECRET,
    )
    assert (env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"]) == ("0", "0")
    known = {"PATH", "HOME", "LANG", "TZ", "USER", "SHELL", "TMPDIR", "MY"}
    ours = ("MINTYARD_", "CUDA_", "HIP_", "NVIDIA_", "ASCEND_")
    assert {name for name in env if not name.startswith(ours)} <= known


def test_a_gang_gets_torchruns_names_and_a_port_that_is_free(bench: LocalBench) -> None:
    program = "import os, socket; s = socket.socket(); e = os.environ\n"
    program += "if e['RANK'] == '0': s.bind((e['MASTER_ADDR'], int(e['MASTER_PORT'])))\n"
    program += "names = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MINTYARD_NODE MASTER_PORT'\n"
    program += "print(' '.join(e[n] for n in names.split()), flush=True)"
    launch = Launch(argv=(sys.executable, "-ISc", program))
    members = tuple(MemberPlacement(node, (gpu,)) for node in ("node2", "node0") for gpu in (0, 1))
    bench.engine.start([msgspec.structs.replace(bench.launch(1, launch), members=members)])
    assert bench.ended(1).exit_code == 0
    lines = sorted(line.split() for line in bench.log(1).splitlines())
    assert [line[:7] for line in lines] == [
        ["0", "4", "0", "2", "0", "0", "node2"],
        ["1", "4", "1", "2", "0", "0", "node2"],
        ["2", "4", "0", "2", "1", "1", "node0"],
        ["3", "4", "1", "2", "1", "1", "node0"],
    ]
    assert len({line[7] for line in lines}) == 1


def test_cores_are_bound(bench: LocalBench) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    bench.engine.start(
        [bench.launch(job, shell("grep Cpus_allowed_list /proc/self/status; sleep 0.3")) for job in (1, 2)]
    )
    bench.ended(1), bench.ended(2)
    seen = {bench.log(job).split()[1] for job in (1, 2)}
    assert len(seen) == 2
    assert all(one.isdigit() for one in seen)


def test_the_token_is_in_no_argument_and_no_file(bench: LocalBench) -> None:
    bench.engine.start([bench.launch(1, shell('echo "${#MINTYARD_TOKEN}"; sleep 300'), token=SECRET)])
    bench.started(1)
    bench.until(lambda: bench.log(1) == f"{len(SECRET)}\n")
    for pid in kernel.all_pids():
        try:
            assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    for path in Path(bench.state).rglob("*"):
        mode = path.lstat().st_mode
        assert not mode & 0o077, f"{path} is open to others"
        if stat.S_ISREG(mode):
            assert SECRET.encode() not in path.read_bytes(), path


# --- programs, folders, logs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launch", "code", "text"),
    [
        (Launch(argv=("no-such-program-here", "x")), 127, "no-such-program-here: command not found"),
        (Launch(argv=("/etc/passwd",)), 126, "/etc/passwd: Permission denied"),
        (Launch(script="#!/no/such/interpreter\nexit 0\n"), 127, "/no/such/interpreter: command not found"),
        (Launch(argv=("true", "x" * 200_000)), 126, "Argument list too long"),
        (Launch(argv=("x" * 200_000,)), 126, "xxx…: File name too long"),
    ],
)
def test_a_program_that_cannot_be_executed_says_so(
    bench: LocalBench, launch: Launch, code: int, text: str
) -> None:
    bench.engine.start([bench.launch(1, launch)])
    ended = bench.ended(1)
    assert (ended.outcome, ended.exit_code) == (Outcome.EXITED, code)
    assert text in ended.message
    assert text in bench.log(1, "stderr")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo plain $0 $1 | sed 's/ .*script/ script/'", "plain script one two\n"),
        (f"#!{sys.executable} -IS\nimport sys; print(sys.argv[1:])", "['one two', '*']\n"),
        ("#!/bin/sh\r\necho crlf\n", "crlf\n"),
    ],
)
def test_scripts_run_by_their_first_line_with_arguments(
    bench: LocalBench, script: str, expected: str
) -> None:
    bench.engine.start([bench.launch(1, Launch(script=script, arguments=("one two", "*")))])
    assert bench.ended(1).exit_code == 0
    assert bench.log(1) == expected


@pytest.mark.parametrize(
    ("launch", "text"),
    [
        (Launch(argv=("true",), workdir="/no/such/folder"), "'/no/such/folder' does not exist"),
        (Launch(argv=("true",), workdir="relative"), "'relative' is not an absolute path"),
        (Launch(argv=("true",), script="true"), "exactly one of argv and script"),
        (Launch(), "exactly one of argv and script"),
        (Launch(argv=("true", "a\0b")), "NUL"),
        (Launch(argv=("true",), env={"A=B": "c"}), "variable's name"),
        (Launch(argv=("true",), stdout="../out"), "does not name a file within"),
        (Launch(argv=("true",), stderr="/tmp/out"), "does not name a file within"),
        (Launch(argv=("true",), stdout="."), "does not name a file within"),
    ],
)
def test_a_launch_that_makes_no_sense_never_starts(bench: LocalBench, launch: Launch, text: str) -> None:
    bench.engine.start([bench.launch(1, launch)])
    ended = bench.ended(1)
    assert ended.outcome is Outcome.NEVER_STARTED
    assert text in ended.message
    assert bench.of(1, AttemptStarted) == []
    assert bench.engine.read_log(AttemptKey(1, 1), "stdout", 0, 10).ended


def test_a_job_without_a_folder_gets_one_that_its_attempts_share(bench: LocalBench) -> None:
    bench.engine.start([bench.launch(1, shell("pwd; echo x > checkpoint"))])
    bench.ended(1)
    assert bench.log(1).strip() == os.path.join(bench.state, "work", "1")
    bench.engine.start([bench.launch(1, shell("cat checkpoint"), attempt=2)])
    assert bench.ended(1, 2).exit_code == 0


def test_log_files_follow_sbatchs_patterns(bench: LocalBench, tmp_path: Path) -> None:
    launch = shell(
        "echo out; echo err >&2", workdir=str(tmp_path), stdout="logs/%A_%a-%x-%4j-%N-%%.out", stderr="%j.err"
    )
    bench.engine.start([bench.launch(1, launch, name="../a/b", array_job=90, array_index=2)])
    bench.ended(1)
    assert (tmp_path / "logs" / "90_2-.._a_b-0001-node0-%.out").read_text() == "out\n"
    assert (tmp_path / "1.err").read_text() == "err\n"
    assert (bench.log(1), bench.log(1, "stderr")) == ("out\n", "err\n")
    bench.engine.acknowledge([AttemptKey(1, 1)])
    assert bench.log(1) == "out\n"


def test_log_files_do_not_follow_links_out_of_the_folder(bench: LocalBench, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "victim").write_text("precious")
    (inside / "folder").symlink_to(outside)
    (inside / "file").symlink_to(outside / "victim")
    os.mkfifo(inside / "pipe")
    for job, name in enumerate(("folder/victim", "folder/new", "file", "pipe"), start=1):
        bench.engine.start([bench.launch(job, shell("echo hacked", workdir=str(inside), stdout=name))])
        ended = bench.ended(job)
        assert ended.outcome is Outcome.NEVER_STARTED
        assert "can't be opened" in ended.message
    assert (outside / "victim").read_text() == "precious"
    assert not (outside / "new").exists()
    # Swapped for a link afterwards, so that the hub would read another's file for its owner.
    launch = shell(f"echo mine; rm log; ln -s {outside}/victim log", workdir=str(inside), stdout="log")
    bench.engine.start([bench.launch(9, launch)])
    bench.ended(9)
    assert bench.log(9) == ""


def test_logs_are_followed_by_offset(bench: LocalBench) -> None:
    bench.engine.start([bench.launch(1, shell("printf 0123; sleep 0.4; printf 456789"))])
    data, ended = b"", False
    while not ended:
        chunk = bench.engine.read_log(AttemptKey(1, 1), "stdout", len(data), 3)
        assert chunk.offset == len(data)
        assert len(chunk.data) <= 3
        data, ended = data + chunk.data, chunk.ended
        if not chunk.data:
            bench.listen()
    assert data == b"0123456789"
    assert bench.engine.read_log(AttemptKey(1, 1), "stdout", 1_000, 3).data == b""


@pytest.mark.slow
def test_huge_logs_are_read_in_pieces(bench: LocalBench) -> None:
    bench.engine.start([bench.launch(1, shell("head -c 200000000 /dev/zero; printf end"))])
    assert bench.ended(1).exit_code == 0
    chunk = bench.engine.read_log(AttemptKey(1, 1), "stdout", 199_999_990, 1 << 20)
    assert (chunk.data, chunk.ended) == (b"\0" * 10 + b"end", True)
    assert not bench.engine.read_log(AttemptKey(1, 1), "stdout", 0, 1 << 20).ended


@pytest.mark.slow
def test_a_full_disk_loses_no_end(tmp_path: Path) -> None:
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("may not mount a small file system here")
    try:
        engine = LocalEngine(str(tmp_path / "state"), nodes=NODES, idle_s=0.1)
        bench = LocalBench.__new__(LocalBench)
        order = LocalBench.launch(bench, 1, shell("head -c 9000000 /dev/zero; echo $? >&2; exit 8"))
        engine.start([order])
        reports = []
        deadline = time.monotonic() + PATIENCE_S
        while not any(isinstance(report, AttemptEnded) for report in reports) and time.monotonic() < deadline:
            reports += engine.poll(0.5)
        ended = reports[-1]
        assert (ended.outcome, ended.exit_code) == (Outcome.EXITED, 8)
        assert os.statvfs(tmp_path).f_bfree == 0, "the disk was full"
        # With no room for a claim nothing starts, and it starts once there is room.
        engine.start([LocalBench.launch(bench, 2, shell("exit 3"))])
        assert engine.poll(0.5) == []
        os.truncate(records.file_path(str(tmp_path / "state"), "1.1", "stdout"), 0)
        reports.clear()
        while not any(isinstance(report, AttemptEnded) for report in reports) and time.monotonic() < deadline:
            reports += engine.poll(0.5)
        assert (reports[-1].outcome, reports[-1].exit_code) == (Outcome.EXITED, 3)
        engine.close()
    finally:
        wait_until(
            lambda: subprocess.run(["umount", tmp_path], capture_output=True, check=False).returncode == 0
        )


# --- the engine itself --------------------------------------------------------------------------------------------------


def test_polling_and_ordering_threads_do_not_wait_for_each_other(bench: LocalBench) -> None:
    began = time.monotonic()
    bench.engine.start([bench.launch(1, shell("true"))])
    while not any(isinstance(report, AttemptEnded) for report in bench.engine.poll(20.0)):
        pass
    bench.engine.stop([StopOrder(2, 1, 0)])
    assert any(isinstance(report, AttemptEnded) for report in bench.engine.poll(20.0))
    assert time.monotonic() - began < 15


def test_kept_logs_are_bounded(bench: LocalBench) -> None:
    bench.reopen_with(keep_attempts=2, keep_log_mib=1)
    for job in range(1, 6):
        bench.engine.start(
            [bench.launch(job, shell(f"head -c {900_000 if job == 5 else 300_000} /dev/zero"))]
        )
        bench.ended(job)
        bench.engine.acknowledge([AttemptKey(job, 1)])
        os.utime(os.path.join(bench.state, "kept", f"{job}.1"), (job, job))
    bench.engine.prune()
    assert sorted(os.listdir(os.path.join(bench.state, "kept"))) == ["5.1"]
    bench.engine.start([bench.launch(1, shell("echo again"))])
    bench.listen()
    assert bench.engine.attempts() == [], "an attempt whose logs are gone still can't start again"


def test_an_unusable_state_folder_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineUnavailable, match="state folder"):
        LocalEngine(str(tmp_path / "file"))


def test_a_very_long_state_folder_works(tmp_path: Path) -> None:
    bench = LocalBench(state=str(tmp_path / ("x" * 120)))
    try:
        bench.engine.start([bench.launch(1, shell("exit 2"))])
        assert bench.ended(1).exit_code == 2
    finally:
        bench.close()


def test_outcomes_are_the_domains_words() -> None:
    from mintyard.agent import supervisor

    names = [outcome.name for outcome in Outcome]
    assert [getattr(supervisor, name) for name in names] == [outcome.value for outcome in Outcome]


def test_the_agent_needs_the_standard_library_only() -> None:
    program = "import sys; sys.path.insert(0, 'src'); import mintyard.agent.forkserver; print('\\n'.join(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    loaded = {name.split(".")[0] for name in out.split()}
    assert loaded - sys.stdlib_module_names - {"mintyard", "__main__"} == set()
    assert [name for name in out.split() if name.startswith("mintyard.")] == sorted(
        (name for name in out.split() if name.startswith("mintyard.agent")), key=out.split().index
    )


def test_records_are_json_lines_a_person_can_read(bench: LocalBench) -> None:
    bench.engine.start([bench.order(1, Program(exit_code=3))])
    bench.ended(1)
    lines = [
        json.loads(line)
        for line in Path(records.claim_path(bench.state, "1.1")).read_text().splitlines()
        if line
    ]
    assert [line["kind"] for line in lines] == ["claim", "started", "end"]
