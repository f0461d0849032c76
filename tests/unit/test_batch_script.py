"""Batch scripts: what sbatch would read is read, what it would not is not, and nothing unsupported is dropped in silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.domain import limits
from mintyard.domain.errors import InvalidSpec, Refused
from mintyard.domain.jobs.spec import When
from mintyard.wire.batch_flags import (
    OTHER_SWITCHES,
    OTHERS,
    SUPPORTED,
    SUPPORTED_SWITCHES,
    parse_flags,
    read_directives,
)
from mintyard.wire.batch_script import parse_batch_script
from mintyard.wire.jobs import Array, Dependency, Job, to_request
from mintyard.wire.launch import Launch

SCRIPT = """#!/bin/bash
# a comment
#SBATCH --job-name=train -N 2   # two nodes
#SBATCH --ntasks-per-node 4 -c2
#SBATCH --gres=gpu:a100:2,license:x

#SBATCH\t--time=1-00 --mem-per-cpu=2G
##SBATCH --time=5
 #SBATCH --time=6
#SBATCHES --time=7
#SBATCH --mail-type=END --output="out %j.log" --no-requeue --requeue
module load cuda
#SBATCH --time=8
srun python train.py
"""


def wrapped(*flags: str, **options: object) -> Job:
    return parse_batch_script(None, ["--wrap", "python train.py", *flags], now_ns=0, **options).job


def test_script_as_it_is() -> None:
    batch = parse_batch_script(SCRIPT, arguments=["a", "b"], name="jobs/train.sh")
    assert batch.job == Job(
        launch=Launch(
            script=SCRIPT,
            arguments=("a", "b"),
            stdout="out %j.log",
            stderr="out %j.log",
            slurm_environment=True,
        ),
        name="train",
        members=2,
        cpus_milli=8_000,
        gpus=2,
        gpu_models=("a100",),
        memory_mib=16_384,
        time_limit_ms=86_400_000,
    )
    assert batch.unsupported == ("--mail-type", "--no-requeue", "--gres=license:x")


def test_flags_override_the_script() -> None:
    batch = parse_batch_script(SCRIPT, ["-t", "10", "-J", "other", "--gres=gpu:1", "--qos=x"])
    assert (batch.job.time_limit_ms, batch.job.name, batch.job.gpus, batch.job.gpu_models) == (
        600_000,
        "other",
        1,
        (),
    )
    assert batch.job.members == 2
    assert batch.unsupported == ("--mail-type", "--no-requeue", "--qos")


def test_later_lines_override_earlier_ones() -> None:
    assert read_directives("#SBATCH -t 1\n#SBATCH -t 2 -t 3\n").values == {"time": "3"}


def test_name_is_the_files_unless_given() -> None:
    assert parse_batch_script("true\n", name="a/b/fit.sh").job.name == "fit.sh"
    assert parse_batch_script("true\n", name="my job.sh").job.name == "sbatch"
    assert wrapped().name == "wrap"


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (["-a", "0-9%2"], {"array": Array(tuple(range(10)), 2)}),
        (["-a0-1"], {"array": Array((0, 1))}),
        (
            ["-d", "afterok:12:13,afterany:14"],
            {"dependencies": (Dependency(job=12), Dependency(job=13), Dependency(When.ANY, 14))},
        ),
        (["-H"], {"held": True}),
        (["-Ht10"], {"held": True, "time_limit_ms": 600_000}),
        (["-p", "night"], {"queue": "night"}),
        (["--gpus=2"], {"gpus": 2}),
        (["-G", "a100:4", "-N2"], {"gpus": 2, "gpu_models": ("a100",), "members": 2}),
        (["--gpus-per-node=h100:8", "-N", "4"], {"gpus": 8, "gpu_models": ("h100",), "members": 4}),
        (["--gpus-per-task=2", "--ntasks=4", "-N2"], {"gpus": 4, "members": 2, "cpus_milli": 2_000}),
        (["--gpus=0.5"], {"gpus": 1, "gpu_milli": 500}),
        (["-n", "5", "-N", "2", "-c", "3"], {"members": 2, "cpus_milli": 9_000}),
        (["-n", "4"], {"cpus_milli": 4_000}),
        (["--cpus-per-gpu=6", "--gpus=2"], {"cpus_milli": 12_000, "gpus": 2}),
        (["--mem=16G"], {"memory_mib": 16_384}),
        (["--mem=4000"], {"memory_mib": 4_000}),
        (["--mem-per-gpu=4G", "--gpus=2"], {"memory_mib": 8_192, "gpus": 2}),
        (["--begin=now+1hour"], {"begin_at": "1970-01-01T01:00:00Z"}),
        (["--priority=7"], {"priority": 7}),
        (["--nice"], {"priority": 0}),
        (["--nice=30"], {"priority": 70}),
        (["--nice=-50"], {"priority": 150}),
        (["-C", "fast&ib"], {"labels": ("fast", "ib")}),
        (["--requeue"], {}),
    ],
)
def test_flag(flags: list[str], fields: dict) -> None:
    launch = Launch(script="#!/bin/sh\npython train.py\n", slurm_environment=True)
    assert wrapped(*flags) == Job(**({"launch": launch, "name": "wrap"} | fields))


def test_files_and_folder() -> None:
    launch = wrapped("-o", "a.log", "-e", "b.log", "-D", "/x").launch
    assert (launch.stdout, launch.stderr, launch.workdir) == ("a.log", "b.log", "/x")


def test_export_never_copies_everything() -> None:
    environ = {"HOME": "/home/ann", "SECRET": "x"}
    batch = parse_batch_script("true\n", ["--export=ALL,A=1,HOME"], environ=environ)
    assert batch.job.launch.env == {"A": "1", "HOME": "/home/ann"}
    assert "SECRET" not in str(batch.job)
    assert any("--export=ALL" in flag for flag in batch.unsupported)
    with pytest.raises(InvalidSpec, match="not set"):
        parse_batch_script("true\n", ["--export=MISSING"], environ=environ)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--foo"], "--foo"),
        (["--foo", "bar"], "--foo"),
        (["--foo=bar"], "--foo"),
        (["--job-nam", "x"], "--job-nam; did you mean 'job-name'?"),
        (["-y", "3"], "-y"),
        (["-q", "high"], "-q"),
        (["--signal=B:TERM@60"], "--signal"),
        (["--exclusive=user"], "--exclusive"),
        (["-N", "2-4"], "--nodes as a range (2 is used)"),
        (["-p", "a,b"], "--partition as a list (a is used)"),
        (["-C", "a|b"], "--constraint=a|b"),
    ],
)
def test_unsupported_is_named(flags: list[str], named: str) -> None:
    batch = parse_batch_script("true\n", [*flags, "-t", "5"])
    assert batch.unsupported == (named,)
    assert batch.job.time_limit_ms == 300_000


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-G", "3", "-N", "2"], "--gpus"),
        (["-G", "40", "-N", "2"], "from 0 to 32"),
        (["--gpus=2", "--gres=gpu:2"], "same GPUs"),
        (["--mem=1G", "--mem-per-cpu=1G"], "excludes"),
        (["--mem=0"], "whole node"),
        (["--mem=-1"], "--mem"),
        (["--mem-per-cpu=60T", "-c", "9"], "memory_mib"),
        (["-n", "99999999"], "--ntasks"),
        (["-c", "4000", "-n", "2"], "CPUs a node"),
        (["-N", "0"], "--nodes"),
        (["-N", "4-2"], "--nodes"),
        (["-N", "nan"], "--nodes"),
        (["-t", "UNLIMITED"], "--time"),
        (["-t"], "needs a value"),
        (["--hold=1"], "takes no value"),
        (["train.sh"], "is no flag"),
        (["--"], "is no flag"),
        (["-"], "is no flag"),
        (["--nice=x"], "--nice"),
        (["--priority=99999999999999999999"], "--priority"),
        (["-a", "0-99999999999"], "--array"),
        (["-d", "singleton"], "--dependency"),
        (["-b", "16:00"], "--begin"),
        (["-J", "a b"], "a b"),
        (["-o", "%q.log"], "%q"),
    ],
)
def test_flag_refused(flags: list[str], words: str) -> None:
    with pytest.raises(Refused) as refusal:
        wrapped(*flags)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        (None, [], "either a script or --wrap"),
        ("true\n", ["--wrap", "x"], "either a script or --wrap"),
        ("", [], "empty"),
        (" \n", [], "empty"),
        ("#!/bin/sh\r\ntrue\r\n", [], "DOS"),
        ("#SBATCH --output='a\ntrue\n", [], "script line 1: no closing quotation"),
        ("#!/bin/sh\n#SBATCH -t\ntrue\n", [], "script line 2"),
        ("#SBATCH hetjob\ntrue\n", [], "heterogeneous"),
        ("#SBATCH train\ntrue\n", [], "is no flag"),
        ("true\0\n", [], "NUL"),
        ("x" * (limits.MAX_PAYLOAD_BYTES + 1), [], "characters"),
    ],
)
def test_script_refused(text: str | None, flags: list[str], words: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_batch_script(text, flags)
    assert words in str(refusal.value)


def test_each_flag_is_in_one_table_and_each_letter_means_one() -> None:
    tables = [SUPPORTED, SUPPORTED_SWITCHES, OTHERS, OTHER_SWITCHES]
    names = [name for table in tables for name in table]
    letters = [letter for table in tables for letter in table.values() if letter]
    assert len(names) == len(set(names))
    assert len(letters) == len(set(letters))


@given(
    st.dictionaries(
        st.sampled_from(sorted(SUPPORTED)), st.from_regex(r"[A-Za-z0-9:,.%-]{1,12}", fullmatch=True)
    )
)
def test_flags_are_cut_alike_in_every_spelling(values: dict[str, str]) -> None:
    joined = [f"--{name}={value}" for name, value in values.items()]
    apart = [word for name, value in values.items() for word in (f"--{name}", value)]
    short = [
        f"-{SUPPORTED[name]}{value}" if SUPPORTED[name] else f"--{name}={value}"
        for name, value in values.items()
    ]
    in_script = "".join(f"#SBATCH {line}\n" for line in joined)
    assert parse_flags(joined).values == values
    assert parse_flags(apart).values == values
    assert parse_flags(short).values == values
    assert read_directives(in_script).values == values


@given(
    st.lists(st.text(max_size=12) | st.sampled_from(["-N", "--gpus", "--time=", "-t", "#", "'"]), max_size=6)
)
def test_junk_flags(words: list[str]) -> None:
    for text, flags in ((None, ["--wrap", "x", *words]), ("#SBATCH " + " ".join(words) + "\ntrue\n", [])):
        try:
            to_request(parse_batch_script(text, flags, now_ns=0).job)
        except Refused:
            pass


@given(st.text(max_size=200))
def test_junk_scripts(text: str) -> None:
    try:
        assert parse_batch_script(text, now_ns=0).job.launch.script == text
    except Refused:
        pass
