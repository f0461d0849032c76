"""What `job submit` makes of files, scripts, commands and flags (U9)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mintyard.cli.work import TAIL, More, Read, Sbatch, read_work
from mintyard.domain.errors import FileUnreadable, InvalidRequest, InvalidSpec, MintyardError, TooLarge
from mintyard.domain.limits import MAX_BODY_BYTES
from mintyard.wire.batch_flags import SUPPORTED, SUPPORTED_SWITCHES, separate

NONE, NO_MORE = Sbatch(), More()


@contextmanager
def tail(*words: str) -> Iterator[None]:
    token = TAIL.set(words)
    try:
        yield
    finally:
        TAIL.reset(token)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*words: str, sbatch: Sbatch = NONE, more: More = NO_MORE, local: bool = False) -> Read:
    return read_work(words, sbatch, more, local=local)


def test_every_flag_of_sbatch_that_is_understood_is_one_of_ours() -> None:
    ours = {name.replace("_", "-") for name in Sbatch.__dataclass_fields__}
    # `--nice` may stand without its value, which a declared option can't; it is read among the other words.
    assert ours == (SUPPORTED.keys() | SUPPORTED_SWITCHES.keys()) - {"nice"}


def test_flags_override_the_fields_of_a_file(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "run: train\ngpus: 1\ntime: 1h\nmemory: 4G\nenv: {A: 1}\nname: old\nlabels: [ssd]\n"
    )
    flags = Sbatch(
        gpus="a100:2", time="10", export="B=2", job_name="new", output="out.%j", hold=True, chdir="/data"
    )
    (job,) = read("job.yaml", sbatch=flags).jobs
    assert (job.gpus, job.gpu_models, job.time_limit_ms, job.memory_mib) == (2, ("a100",), 600_000, 4_096)
    assert job.launch.env == {"A": "1", "B": "2"}
    assert (job.name, job.launch.stdout, job.launch.stderr, job.held) == ("new", "out.%j", "", True)
    assert (job.launch.script, job.launch.workdir, job.labels) == ("train", "/data", ("ssd",))


def test_flags_for_several_jobs(folder: Path) -> None:
    (folder / "dag.yml").write_text("jobs: {a: {run: x}, b: {run: y, needs: a}}\n")
    assert [job.priority for job in read("dag.yml", sbatch=Sbatch(priority="7")).jobs] == [7, 7]
    for flags in (Sbatch(array="0-3"), Sbatch(dependency="afterok:1"), Sbatch(job_name="x")):
        with pytest.raises(InvalidSpec, match="all 2 jobs"):
            read("dag.yml", sbatch=flags)


def test_a_script_its_arguments_and_foreign_flags(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:2,license:1\n#SBATCH --qos high\necho\n")
    with tail("--verbose", "x"):
        found = read("--exclusive", "--mail-user", "me@x", "run.sh", "arg", sbatch=Sbatch(mem="2G"))
    (job,) = found.jobs
    assert job.launch.arguments == ("arg", "--verbose", "x")
    assert (job.gpus, job.memory_mib, job.name) == (2, 2_048, "run.sh")
    named = " ".join(found.unsupported)
    for flag in ("--exclusive", "--mail-user", "--qos", "license"):
        assert flag in named


def test_nice_with_and_without_a_value(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\ntrue\n")
    assert read("run.sh", "--nice=50").jobs[0].priority == 50
    assert read("--nice", "run.sh").jobs[0].priority == 0


def test_a_command(folder: Path) -> None:
    with tail("python", "train.py", "--gpus", "9"):
        (job,) = read(sbatch=Sbatch(gpus="1", export="A=1")).jobs
    assert job.launch.argv == ("python", "train.py", "--gpus", "9")
    assert (job.gpus, job.launch.script, job.launch.env, job.name) == (1, "", {"A": "1"}, "python")
    assert job.launch.slurm_environment
    (wrapped,) = read(sbatch=Sbatch(wrap="echo a | wc")).jobs
    assert "echo a | wc" in wrapped.launch.script
    with tail("*odd name*"):
        assert read().jobs[0].name == "job"


def test_limits(folder: Path) -> None:
    (job,) = read(sbatch=Sbatch(wrap="x"), more=More(budget="2.50", retries=3, grace="1m")).jobs
    assert (job.budget, job.retries, job.grace_ms) == ("2.50", 3, 60_000)


def test_paths_are_absolute_on_the_same_machine_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    flags = Sbatch(wrap="x")
    assert read(sbatch=flags, local=True).jobs[0].launch.workdir == str(folder)
    assert read(sbatch=flags).jobs[0].launch.workdir == ""
    for given, meant in (("../x", os.path.abspath("../x")), ("~/x", "/home/ann/x"), ("/x", "/x")):
        assert read(sbatch=Sbatch(wrap="x", chdir=given), local=True).jobs[0].launch.workdir == meant
    assert read(sbatch=Sbatch(wrap="x", chdir="rel")).jobs[0].launch.workdir == "rel"


def test_what_can_not_be_read(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "binary.sh").write_bytes(b"#!/bin/sh\n\xff\xfe")
    (folder / "big.yaml").write_bytes(b" " * (MAX_BODY_BYTES + 1))
    (folder / "empty.sh").write_text("")
    (folder / "empty.yaml").write_text("")
    (folder / "dos.sh").write_bytes(b"#!/bin/sh\r\ntrue\r\n")
    (folder / "job.yaml").write_text("run: x\n")
    for words, kind in (
        ((), InvalidSpec),
        (("none.sh",), FileUnreadable),
        (("folder",), FileUnreadable),
        (("nul\0.sh",), FileUnreadable),
        (("binary.sh",), FileUnreadable),
        (("big.yaml",), TooLarge),
        (("empty.sh",), InvalidSpec),
        (("empty.yaml",), InvalidRequest),
        (("dos.sh",), InvalidSpec),
        (("job.yaml", "argument"), InvalidSpec),
        (("job.yaml", "--qos"), InvalidSpec),
    ):
        with pytest.raises(kind):
            read(*words)


@pytest.mark.parametrize(
    "flags",
    [
        Sbatch(wrap="x", gpus="-1"), Sbatch(wrap="x", time="0"), Sbatch(wrap="x", array="9-0"), Sbatch(wrap="x", mem="0"),
        Sbatch(wrap="x", dependency="afterok"), Sbatch(wrap="x", nodes="999999999"), Sbatch(wrap="x", begin="soon"),
        Sbatch(wrap="x", export="NOT_SET_HERE"), Sbatch(wrap="x", priority="1e9"), Sbatch(wrap="x", output="%q"),
        Sbatch(wrap="x", gpus="1", gres="gpu:1"), Sbatch(wrap="\0"), Sbatch(wrap=""),
    ],
)  # fmt: skip
def test_bad_flags_name_themselves(flags: Sbatch) -> None:
    with pytest.raises(MintyardError) as caught:
        read(sbatch=flags)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "more", [More(budget="-1"), More(budget="x"), More(retries=-1), More(retries=10**9), More(grace="x")]
)
def test_bad_limits(more: More) -> None:
    with pytest.raises(MintyardError) as caught:
        read(sbatch=Sbatch(wrap="x"), more=more)
    assert caught.value.exit_status == 2


def test_two_commands_at_once(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\ntrue\n")
    with pytest.raises(InvalidSpec, match="--wrap"):
        read("run.sh", sbatch=Sbatch(wrap="x"))
    with tail("x"), pytest.raises(InvalidSpec, match="--wrap"):
        read(sbatch=Sbatch(wrap="x"))


def test_answers_and_files_share_a_flag() -> None:
    assert Sbatch(output="json").answer_format == "json"
    assert Sbatch(output="json", gpus="1").words() == ["--gpus=1"]
    assert Sbatch(output="log.txt").words() == ["--output=log.txt"]


def test_words_are_told_from_flags() -> None:
    assert separate(["--qos", "high", "a.sh", "-", "--exclusive", "b"]) == (
        ["--qos", "high", "--exclusive"],
        ["a.sh", "-", "b"],
    )
    assert separate(["--qos=high", "x"]) == (["--qos=high"], ["x"])
    assert separate([]) == ([], [])
    with pytest.raises(InvalidSpec):
        separate(["--qos"])
