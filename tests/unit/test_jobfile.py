"""Job files: one job or many, every field, and what is refused with which words."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.domain import limits
from mintyard.domain.errors import InvalidRequest, InvalidSpec, Refused, TooLarge
from mintyard.domain.jobs.dag import resolve
from mintyard.domain.jobs.spec import When
from mintyard.wire.jobfile import FIELDS, parse_jobfile
from mintyard.wire.jobs import Array, Dependency, Job, to_requests
from mintyard.wire.launch import Launch
from mintyard.wire.yaml_tree import MAX_DEPTH

EVERYTHING = """
name: fit
ref: one
script: |
  #!/bin/bash
  echo "$1"
args: [a, 010]
env: {A: on, B: 010, C: 2030-01-01, D: }
workdir: /data/run
gpus: a100:0.5
gpu_models: [h100]
cpus: 500m
memory: 16G
storage: 2T
members: 2
time: 1:30:00
grace: 30
priority: 7
queue: night
retries: 3
budget: 12.50
begin: now+1hour
array: 0-8:2%2
needs: [12, afterany:13:14]
inputs: data.csv
outputs: [out/%a.json]
stdout: "%x-%j.log"
stderr: err.log
labels: [zone=a, fast]
hold: yes
slurm_environment: true
"""


def test_every_field() -> None:
    assert parse_jobfile(EVERYTHING, now_ns=0) == [
        Job(
            launch=Launch(
                script='#!/bin/bash\necho "$1"\n',
                arguments=("a", "010"),
                env={"A": "on", "B": "010", "C": "2030-01-01", "D": ""},
                workdir="/data/run",
                stdout="%x-%j.log",
                stderr="err.log",
                slurm_environment=True,
            ),
            name="fit",
            ref="one",
            gpus=1,
            gpu_milli=500,
            gpu_models=("a100", "h100"),
            cpus_milli=500,
            memory_mib=16_384,
            storage_mb=2_000_000,
            members=2,
            time_limit_ms=5_400_000,
            grace_ms=30_000,
            priority=7,
            queue="night",
            retries=3,
            budget="12.50",
            begin_at="1970-01-01T01:00:00Z",
            array=Array((0, 2, 4, 6, 8), 2),
            dependencies=(Dependency(job=12), Dependency(When.ANY, 13), Dependency(When.ANY, 14)),
            inputs=("data.csv",),
            outputs=("out/%a.json",),
            labels=("zone=a", "fast"),
            held=True,
        )
    ]


def test_every_field_is_in_the_example() -> None:
    named = {line.partition(":")[0] for line in EVERYTHING.splitlines()}
    assert set(FIELDS) - named == {"run", "nodes", "after"}


def test_run_is_a_shell_line_or_words() -> None:
    assert parse_jobfile("run: python train.py > log")[0].launch == Launch(script="python train.py > log")
    assert parse_jobfile("run: [python, train.py, 3]")[0].launch == Launch(argv=("python", "train.py", "3"))


DAG = """
defaults:
  time: 10m
  run: exit 9
  env: {SEED: 1, LEVEL: info}
  labels: [cpu]
jobs:
  prepare:
    run: python prepare.py
    outputs: [data.npz]
  fit:
    script: |
      #!/bin/sh
      python fit.py
    array: 0-9
    inputs: [data.npz]
    outputs: ["fit-%a.json"]
    env: {SEED: 2}
    labels: [big]
    time: 1h
  best: {run: python best.py, inputs: ["fit-%a.json"]}
  report: {after: "afterany:best", time: ~}
"""


def test_jobs_by_name_with_defaults() -> None:
    prepare, fit, best, report = parse_jobfile(DAG)
    assert [job.ref for job in (prepare, fit, best, report)] == ["prepare", "fit", "best", "report"]
    assert (prepare.time_limit_ms, fit.time_limit_ms) == (600_000, 3_600_000)
    assert report.time_limit_ms == limits.DEFAULT_TIME_LIMIT_MS
    assert fit.launch.env == {"SEED": "2", "LEVEL": "info"}
    assert fit.labels == ("cpu", "big")
    assert fit.launch.script.startswith("#!")
    assert report.launch.script == "exit 9"
    assert report.dependencies == (Dependency(When.ANY, ref="best"),)


def test_the_core_finds_the_edges() -> None:
    edges = resolve(to_requests(parse_jobfile(DAG)))
    assert [[edge.source for edge in of] for of in edges] == [[], [0], [1], [2]]


def test_listed_jobs_are_known_by_their_names() -> None:
    jobs = parse_jobfile(
        "jobs:\n- {name: a, run: x}\n- {name: b, run: y, needs: a}\n- {name: c, run: z}\n- {name: c, run: z}"
    )
    assert [job.ref for job in jobs] == ["a", "b", "", ""]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: x\ngpu: 2", ["gpu (line 2)", "did you mean 'gpus'"]),
        ("run: x\ngpus: -1", ["gpus (line 2)", "'-1'"]),
        ("run: x\n\ntime: .nan", ["time (line 3)", "'.nan'", "write 30m"]),
        ("run: x\npriority: 9223372036854775808", ["priority (line 2)", "from 0 to 10000"]),
        ("run: x\nmemory: 1e400", ["memory (line 2)"]),
        ("run: x\nbudget: -3", ["budget (line 2)", "negative"]),
        ("run: x\nbudget: .inf", ["budget (line 2)"]),
        ("run: x\nhold: maybe", ["hold (line 2)", "true or false"]),
        ("run: x\nname: 'a b'", ["'a b'"]),
        ("run: x\nnodes: 2\nmembers: 2", ["members (line 3)", "once"]),
        ("run: x\nneeds: a\nafter: afterok:b", ["after (line 3)", "once"]),
        ("run: x\nenv: [A]", ["env (line 2)"]),
        ("run: x\nenv: {1A: 2}", ["'1A'"]),
        ("run: x\ninputs: {a: b}", ["inputs (line 2)", "list"]),
        ("run: x\ntime: [1, 2]", ["time (line 2)", "one value"]),
        ("run: [a, [b]]", ["run (line 1)"]),
        ("run: x\nscript: |\n  a\n  b", ["run or script"]),
        ("script: train.sh", ["write run: ./FILE"]),
        ("gpus: 1", ["run (line 1)", "missing"]),
        ("run: ''", ["missing"]),
        ("run: []", ["missing"]),
        ("run: x\ngpus: 2\ngpu_models: [a b]", ["'a b'"]),
        ("run: x\ngpu_models: [a100]", ["gpu_models", "gpus 0"]),
        ("jobs: []", ["at least one job"]),
        ("jobs: x", ["at least one job"]),
        ("jobs: [x]", ["jobs (line 1)"]),
        ("jobs: {a: [x]}", ["jobs.a"]),
        ("jobs: [{run: x}]\ntime: 3", ["time (line 2)", "defaults"]),
        ("jobs: [{run: x}]\ndefault: {}", ["did you mean 'defaults'"]),
        ("jobs: [{run: x}]\ndefaults: 3", ["defaults (line 2)"]),
        ("jobs:\n  fit:\n    run: x\n    tiem: 3", ["fit.tiem (line 4)", "did you mean 'time'"]),
        ("jobs: {prepare: {run: x}, fit: {run: y, needs: prepar}}", ["did you mean 'prepare'"]),
        ("jobs: {1: {run: x}}", ["'1'", "number"]),
    ],
)
def test_refused_with_field_and_line(text: str, words: list[str]) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        parse_jobfile(text, now_ns=0)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least `run"),
        ("- a", "at least `run"),
        ("just text", "at least `run"),
        ("run: x\nrun: y", "line 2: 'run' is given twice"),
        ("jobs: {a: {run: x}, a: {run: y}}", "given twice"),
        ("run: x\n---\nrun: y", "second document"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "anchors and aliases"),
        ("a: &a [*a]", "anchors and aliases"),
        ("<<: {run: x}\nrun: *y", "anchors and aliases"),
        ("run: !!python/object/apply:os.system [ls]", "tag"),
        ("run: !!int 3", "tag"),
        ("? [a]\n: b", "a key must be a word"),
        ("{a: [}", "not YAML"),
        ('run: "\\ud800"', "not YAML"),
        ("run: x\x01", "not YAML"),
        ("\trun: x", "not YAML"),
        ("a: " + "[" * (MAX_DEPTH + 1), "nested deeper"),
        ("[" * 100_000, "nest"),
        ("{a: " * 100_000, "nest"),
        (b"\xff\xfe\x00", "UTF-8"),
        ("run: \ud800", "UTF-8"),
    ],
)
def test_not_a_job_file(text: str | bytes, words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_jobfile(text)
    assert words in str(refusal.value)


def test_too_large() -> None:
    with pytest.raises(TooLarge):
        parse_jobfile("#" * (limits.MAX_BODY_BYTES + 1))
    many = "jobs:\n" + "- {run: x}\n" * (limits.MAX_JOBS_PER_COMMAND + 1)
    with pytest.raises(TooLarge):
        parse_jobfile(many)
    with pytest.raises(TooLarge):
        parse_jobfile("run: " + "x" * limits.MAX_PAYLOAD_BYTES)


@pytest.mark.slow
def test_the_largest_file_is_read_in_good_time() -> None:
    text = "defaults: {time: 1h}\njobs:\n" + "".join(
        f"  j{n}: {{run: echo {n}}}\n" for n in range(limits.MAX_JOBS_PER_COMMAND)
    )
    began = time.process_time()
    assert len(parse_jobfile(text)) == limits.MAX_JOBS_PER_COMMAND
    assert time.process_time() - began < 30


def test_null_leaves_the_default() -> None:
    assert parse_jobfile("run: x\ntime: ~\ngpus:\nname: null") == parse_jobfile("run: x")


PLAIN = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@given(
    st.dictionaries(
        st.sampled_from([*FIELDS, "gpu", "jobs", "defaults"]),
        st.recursive(
            PLAIN | st.integers() | st.floats() | st.none() | st.booleans(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
            max_leaves=6,
        ),
        max_size=6,
    )
)
def test_junk_fields(document: dict) -> None:
    """JSON is YAML: whatever stands in the fields, the answer is jobs or a refusal."""
    try:
        jobs = parse_jobfile(json.dumps(document), now_ns=0)
    except Refused:
        return
    assert to_requests(jobs)


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_junk_text(text: str | bytes) -> None:
    try:
        parse_jobfile(text, now_ns=0)
    except Refused:
        pass


@given(
    st.lists(
        st.text(
            st.characters(exclude_characters="\ufeff", exclude_categories=("C",)), min_size=1, max_size=20
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 16),
    st.integers(1, limits.MAX_TIME_LIMIT_MS),
)
def test_what_is_written_is_read(words: list[str], gpus: int, time_ms: int) -> None:
    document = {"run": words, "gpus": gpus, "time": f"{time_ms}ms", "env": {"A": words[0]}}
    (job,) = parse_jobfile(json.dumps(document, ensure_ascii=False), now_ns=0)
    assert job == Job(launch=Launch(argv=tuple(words), env={"A": words[0]}), gpus=gpus, time_limit_ms=time_ms)
