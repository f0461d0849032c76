"""The wire's job: strict decoding, and one checked way to the core's request."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.domain import limits
from mintyard.domain.errors import InvalidAmount, InvalidName, InvalidRequest, InvalidSpec, Refused, TooLarge
from mintyard.domain.jobs import spec as core
from mintyard.wire import jobs as wire
from mintyard.wire.jobs import (
    Array,
    Dependency,
    Job,
    decode_job,
    encode_job,
    job_from,
    to_request,
    to_requests,
)
from mintyard.wire.launch import Launch, decode_launch

LAUNCH = Launch(argv=("true",))


def test_everything_arrives() -> None:
    job = Job(
        launch=Launch(
            script="#!/bin/sh\necho $1\n", arguments=("a",), env={"A": "1"}, workdir="/x", stdout="%j.log"
        ),
        name="fit",
        ref="fit",
        queue="night",
        time_limit_ms=60_000,
        grace_ms=0,
        cpus_milli=2_500,
        memory_mib=4_096,
        gpus=1,
        gpu_milli=250,
        gpu_models=("a100", "h100"),
        labels=("zone=a",),
        members=3,
        storage_mb=7,
        priority=5,
        retries=2,
        budget="12.5",
        begin_at="2030-01-01T00:00:00Z",
        array=Array((3, 1), 1),
        dependencies=(Dependency(job=12), Dependency(core.When.ANY, ref="prepare")),
        inputs=("./in//a.csv",),
        outputs=("out/%a.json",),
        held=True,
    )
    request = to_request(job)
    assert request == core.JobRequest(
        spec=core.JobSpec(
            name="fit",
            shape=core.Shape(2_500, 4_096, 1, 250, ("a100", "h100"), ("zone=a",), 3, 7),
            time_limit_ms=60_000,
            priority=5,
            queue="night",
            retries=2,
            grace_ms=0,
            budget=12_500_000_000,
            begin_at=1_893_456_000 * 10**9,
            inputs=("in/a.csv",),
            outputs=("out/%a.json",),
            payload=request.spec.payload,
        ),
        ref="fit",
        array=core.Array((1, 3), 1),
        dependencies=(core.Dependency(job=12), core.Dependency(core.When.ANY, ref="prepare")),
        held=True,
    )
    assert decode_launch(request.spec.payload) == job.launch
    assert decode_job(encode_job(job)) == job
    assert job_from(json.loads(encode_job(job))) == job


def test_defaults_are_the_cores() -> None:
    request = to_request(Job(launch=LAUNCH))
    assert request.spec == core.JobSpec(name="job", payload=request.spec.payload)
    assert to_request(Job(launch=LAUNCH, ref="prepare")).spec.name == "prepare"


@pytest.mark.parametrize("field", sorted(wire.BOUNDS))
def test_integer_bounds(field: str) -> None:
    lowest, highest = wire.BOUNDS[field]
    with_gpu = {"gpus": 1} if field == "gpu_milli" else {}
    for value in (lowest, highest):
        to_request(Job(launch=LAUNCH, **(with_gpu | {field: value})))
    for value in (lowest - 1, highest + 1, 2**63, -(2**63), 1.0, float("nan"), "1", True, None):
        with pytest.raises(InvalidSpec) as refusal:
            to_request(Job(launch=LAUNCH, **(with_gpu | {field: value})))
        assert refusal.value.params["field"] == field
        if value is not True and not isinstance(value, float | str | None):
            with pytest.raises(InvalidRequest):
                job_from({"launch": {"argv": ["true"]}, field: value})


def test_bounds_cover_every_integer() -> None:
    integers = {name for name, kind in Job.__annotations__.items() if "int" in str(kind).split("Meta")[0]}
    assert set(wire.BOUNDS) == integers - {"held"}


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b'{"launch": {"argv": ["x"]}, "gpu": 1}', "did you mean 'gpus'"),
        (b'{"launch": {"argv": ["x"], "shell": true}}', "shell"),
        (b'{"launch": {"argv": ["x"]}, "gpus": NaN}', ""),
        (b'{"launch": {"argv": ["x"]}, "gpus": 1.5}', "gpus"),
        (b'{"launch": {"argv": ["x"]}, "gpus": true}', "gpus"),
        (b'{"launch": {"argv": ["x"]}, "gpus": "2"}', "gpus"),
        (b'{"launch": {"argv": ["x"]}, "budget": 12.5}', "budget"),
        (b'{"launch": {"argv": ["x"]}, "memory_mib": 9223372036854775808}', "memory_mib"),
        (b'{"launch": {"argv": ["x"]}, "array": {"indices": []}}', "array"),
        (b'{"launch": {"argv": ["x"]}, "dependencies": [{"when": "singleton", "job": 1}]}', "singleton"),
        (b"{}", "launch"),
        (b"[]", ""),
        (b"", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_decoding_refuses(body: bytes, hint: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode_job(body)
    assert hint in str(refusal.value)


def test_large_body_is_refused_unread() -> None:
    with pytest.raises(TooLarge):
        decode_job(b" " * (limits.MAX_BODY_BYTES + 1))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"gpu_milli": 500}, InvalidSpec),
        ({"gpus": 2, "gpu_milli": 500}, InvalidSpec),
        ({"gpu_models": ("a100",)}, InvalidSpec),
        ({"gpus": 1, "gpu_models": ("a b",)}, InvalidName),
        ({"gpus": 1, "gpu_models": "a100"}, InvalidSpec),
        ({"gpus": 1, "gpu_models": tuple(f"m{n}" for n in range(33))}, TooLarge),
        ({"labels": ("a b",)}, InvalidName),
        ({"labels": (1,)}, InvalidSpec),
        ({"name": "a b"}, InvalidName),
        ({"name": "x" * 129}, InvalidName),
        ({"name": "../x"}, InvalidName),
        ({"queue": ""}, InvalidName),
        ({"ref": "12"}, InvalidName),
        ({"budget": "-1"}, InvalidAmount),
        ({"budget": "NaN"}, InvalidAmount),
        ({"begin_at": "2030-01-01T00:00:00"}, InvalidSpec),
        ({"begin_at": "9999-01-01T00:00:00Z"}, InvalidSpec),
        ({"begin_at": "9223372036854775808"}, InvalidSpec),
        ({"begin_at": "-1"}, InvalidSpec),
        ({"array": Array(())}, TooLarge),
        ({"array": Array((1, 1))}, InvalidSpec),
        ({"array": Array((-1,))}, InvalidSpec),
        ({"array": Array((2**31,))}, InvalidSpec),
        ({"array": Array((1,), -1)}, InvalidSpec),
        ({"array": Array(tuple(range(limits.MAX_ARRAY_TASKS + 1)))}, TooLarge),
        ({"dependencies": (Dependency(),)}, InvalidSpec),
        ({"dependencies": (Dependency(job=1, ref="a"),)}, InvalidSpec),
        ({"dependencies": (Dependency(job=-1),)}, InvalidSpec),
        ({"dependencies": (Dependency(job=2**63),)}, InvalidSpec),
        ({"dependencies": (Dependency(job=1),) * 1_001}, TooLarge),
        ({"inputs": ("",)}, InvalidSpec),
        ({"inputs": ("a\0b",)}, InvalidSpec),
        ({"outputs": ("folder/",)}, InvalidSpec),
        ({"outputs": tuple(f"f{n}" for n in range(1_001))}, TooLarge),
    ],
)
def test_refused(changes: dict, error: type[Refused]) -> None:
    with pytest.raises(error):
        to_request(Job(launch=LAUNCH, **changes))


@pytest.mark.parametrize(
    ("launch", "error"),
    [
        (Launch(), InvalidSpec),
        (Launch(script=" \n"), InvalidSpec),
        (Launch(argv=("a",), script="b"), InvalidSpec),
        (Launch(argv=("a",), arguments=("b",)), InvalidSpec),
        (Launch(argv=("",)), InvalidSpec),
        (Launch(argv=("a\0",)), InvalidSpec),
        (Launch(argv=("\ud800",)), InvalidSpec),
        (Launch(argv=("a",) * 10_001), TooLarge),
        (Launch(argv=("a",), env={"1A": "x"}), InvalidName),
        (Launch(argv=("a",), env={"A=B": "x"}), InvalidName),
        (Launch(argv=("a",), env={"A": "\0"}), InvalidSpec),
        (Launch(argv=("a",), stdout="%q"), InvalidSpec),
        (Launch(argv=("a",), stderr="x%"), InvalidSpec),
        (Launch(argv=("a",), workdir="x" * 4_097), InvalidSpec),
        (Launch(script="x" * limits.MAX_PAYLOAD_BYTES), TooLarge),
    ],
)
def test_launch_refused(launch: Launch, error: type[Refused]) -> None:
    with pytest.raises(error):
        to_request(Job(launch=launch))


def test_requests_know_each_other() -> None:
    prepare, fit = (
        Job(launch=LAUNCH, ref="prepare"),
        Job(launch=LAUNCH, dependencies=(Dependency(ref="prepare"),)),
    )
    assert [request.ref for request in to_requests([prepare, fit])] == ["prepare", ""]
    with pytest.raises(InvalidSpec, match="two jobs"):
        to_requests([prepare, prepare])
    with pytest.raises(InvalidSpec, match="did you mean 'prepare'"):
        to_requests([prepare, Job(launch=LAUNCH, dependencies=(Dependency(ref="prepar"),))])
    with pytest.raises(InvalidSpec):
        to_requests([])
    with pytest.raises(TooLarge):
        to_requests([Job(launch=LAUNCH)] * (limits.MAX_JOBS_PER_COMMAND + 1))


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Any job that is well formed."""
    fields = {name: draw(st.integers(*bounds)) for name, bounds in wire.BOUNDS.items()}
    if fields["gpus"] != 1:
        fields["gpu_milli"] = 1_000
    launch = (
        Launch(argv=("x", *draw(st.lists(TEXTS, max_size=3))), env=draw(st.dictionaries(st.just("A"), TEXTS)))
        if draw(st.booleans())
        else Launch(script="#" + draw(TEXTS), arguments=tuple(draw(st.lists(TEXTS, max_size=3))))
    )
    indices = draw(st.none() | st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=5))
    return Job(
        launch=launch,
        name=draw(st.just("") | NAMES),
        array=None if indices is None else Array(tuple(sorted(indices))),
        gpu_models=tuple(draw(st.lists(NAMES, max_size=2))) if fields["gpus"] else (),
        budget=draw(st.none() | st.decimals(0, 10**6, places=9).map("{:f}".format)),
        begin_at=draw(st.just("") | st.integers(0, 2**63 - 1).map(str)),
        **fields,
    )


@given(jobs())
def test_wire_round_trip(job: Job) -> None:
    assert decode_job(encode_job(job)) == job
    request = to_request(job)
    assert decode_launch(request.spec.payload) == job.launch
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=core.JobRequest)
    assert again == request


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(wire.FIELDS), inner, max_size=4)
        ),
        max_leaves=8,
    )
)
def test_junk_is_refused(value: object) -> None:
    try:
        to_request(job_from(value))
    except Refused:
        pass
