"""Jobs on the wire: what REST, SDK and CLI send, and the one path from there to the core's `JobRequest`.

Quantities are integers here; the strings people write (`30m`, `16G`) are read by `quantities` before a `Job` is made.
The bounds stand in the field types, so that OpenAPI, the decoder and `to_request` say the same. No I/O may enter, and
nothing that loads numpy: the client imports this module.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from mintyard.domain import limits
from mintyard.domain.errors import InvalidName, InvalidRequest, InvalidSpec, TooLarge
from mintyard.domain.ids import check_name
from mintyard.domain.jobs import spec as core
from mintyard.domain.jobs.spec import When
from mintyard.domain.units import Unit, parse_amount
from mintyard.wire.launch import Launch, encode_launch

MAX_INSTANT_NS: Final = 2**63 - 1
MAX_JOB_ID: Final = 2**63 - 1
MAX_ARRAY_INDEX: Final = 2**31 - 1
MAX_PATH_CHARS: Final = 4_096
MAX_ARGUMENTS: Final = 10_000
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+=-]*")
_LOG_FIELD: Final = re.compile(r"%(.?)")
_INSTANT_NS: Final = re.compile(r"[0-9]{1,19}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Name = Annotated[str, Meta(max_length=limits.MAX_NAME_CHARS)]
Path = Annotated[str, Meta(max_length=MAX_PATH_CHARS)]


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One task per index, at most `throttle` at once (0: no limit)."""

    indices: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=MAX_ARRAY_INDEX)], ...],
        Meta(min_length=1, max_length=limits.MAX_ARRAY_TASKS),
    ]
    throttle: Annotated[int, Meta(ge=0, le=limits.MAX_ARRAY_TASKS)] = 0


class Dependency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Waits for `job` (a number given out before) or for the job of the same request whose `ref` it names; one of both."""

    when: When = When.OK
    job: Annotated[int, Meta(ge=0, le=MAX_JOB_ID)] = 0
    ref: Name = ""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job, task array or gang as it is submitted; resources are those of one member.

    `budget` is a decimal string in the organisation's currency. `begin_at` is an RFC 3339 instant with its zone or a
    string of ns since the epoch; empty is at once. `ref` names the job to the others of one request. `inputs` and
    `outputs` are file names: whoever reads what another of the same request writes waits for it.
    """

    launch: Launch
    name: Name = ""
    ref: Name = ""
    queue: Name = "default"
    time_limit_ms: Annotated[int, Meta(ge=1, le=limits.MAX_TIME_LIMIT_MS)] = limits.DEFAULT_TIME_LIMIT_MS
    grace_ms: Annotated[int, Meta(ge=0, le=limits.MAX_GRACE_MS)] = limits.DEFAULT_GRACE_MS
    cpus_milli: Annotated[int, Meta(ge=1, le=limits.MAX_CPUS_MILLI)] = 1_000
    memory_mib: Annotated[int, Meta(ge=1, le=limits.MAX_MEMORY_MIB)] = 512
    gpus: Annotated[int, Meta(ge=0, le=limits.MAX_GPUS_PER_MEMBER)] = 0
    gpu_milli: Annotated[int, Meta(ge=1, le=1_000)] = 1_000
    gpu_models: Annotated[tuple[Name, ...], Meta(max_length=limits.MAX_GPU_MODELS_PER_JOB)] = ()
    labels: Annotated[tuple[Name, ...], Meta(max_length=limits.MAX_LABELS_PER_JOB)] = ()
    members: Annotated[int, Meta(ge=1, le=limits.MAX_GANG_MEMBERS)] = 1
    storage_mb: Annotated[int, Meta(ge=0, le=limits.MAX_STORAGE_MB)] = 0
    priority: Annotated[int, Meta(ge=0, le=limits.MAX_PRIORITY)] = limits.DEFAULT_PRIORITY
    retries: Annotated[int, Meta(ge=0, le=limits.MAX_RETRIES)] = 0
    budget: Annotated[str, Meta(max_length=64)] | None = None
    begin_at: Annotated[str, Meta(max_length=64)] = ""
    array: Array | None = None
    dependencies: Annotated[tuple[Dependency, ...], Meta(max_length=limits.MAX_DEPENDENCIES_PER_JOB)] = ()
    inputs: Annotated[tuple[Path, ...], Meta(max_length=limits.MAX_FILES_PER_JOB)] = ()
    outputs: Annotated[tuple[Path, ...], Meta(max_length=limits.MAX_FILES_PER_JOB)] = ()
    held: bool = False


def _integer_bounds() -> dict[str, tuple[int, int]]:
    """Lowest and highest value of each integer field, read from the field types."""
    info = msgspec.inspect.type_info(Job)
    assert isinstance(info, msgspec.inspect.StructType)
    return {
        field.name: (field.type.ge or 0, field.type.le or 0)
        for field in info.fields
        if isinstance(field.type, msgspec.inspect.IntType)
    }


BOUNDS: Final[dict[str, tuple[int, int]]] = _integer_bounds()
FIELDS: Final[tuple[str, ...]] = Job.__struct_fields__


def closest(name: str, known: Iterable[str]) -> str:
    """`; did you mean "gpus"?` for the known name nearest to `name`, else nothing."""
    near = difflib.get_close_matches(name[:64], list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def job_from(value: Any) -> Job:
    """A `Job` from plain JSON values; `InvalidRequest` names the field that doesn't fit."""
    try:
        return msgspec.convert(value, Job)
    except msgspec.ValidationError as error:
        raise InvalidRequest(why=explain(error)) from None


def decode_job(body: bytes) -> Job:
    """A `Job` from JSON. Errors: `TooLarge`, `InvalidRequest`."""
    if len(body) > limits.MAX_BODY_BYTES:
        raise TooLarge(what="The body in bytes", size=len(body), limit=limits.MAX_BODY_BYTES)
    try:
        return msgspec.json.decode(body, type=Job)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(why=explain(error)) from None


def encode_job(job: Job) -> bytes:
    return msgspec.json.encode(job)


def explain(error: Exception) -> str:
    """The decoder's message as it goes into `InvalidRequest.why`, with the closest field for an unknown one."""
    text = str(error).rstrip(".")
    unknown = re.search(r"unknown field `([^`]*)`", text)
    return text + (closest(unknown.group(1), FIELDS) if unknown else "")


def to_requests(jobs: Sequence[Job]) -> list[core.JobRequest]:
    """The core's form of the jobs of one request, with unique `ref`s and no edge to an unknown one.

    Errors: as `to_request`, and `TooLarge` for more than `MAX_JOBS_PER_COMMAND` jobs. Cycles are the core's to refuse.
    """
    if not jobs:
        raise InvalidSpec(field="jobs", why="is empty; give at least one job")
    if len(jobs) > limits.MAX_JOBS_PER_COMMAND:
        raise TooLarge(what="The number of jobs", size=len(jobs), limit=limits.MAX_JOBS_PER_COMMAND)
    check_refs(jobs)
    return [to_request(job) for job in jobs]


def check_refs(jobs: Sequence[Job]) -> None:
    """Each `ref` names one job, each edge an existing one; else `InvalidSpec` with the closest name."""
    refs: set[str] = set()
    for job in jobs:
        if job.ref in refs:
            raise InvalidSpec(field="ref", why=f"{job.ref!r} names two jobs; each needs its own")
        if job.ref:
            refs.add(job.ref)
    for job in jobs:
        for edge in job.dependencies:
            if edge.ref and edge.ref not in refs:
                why = f"no job of this request is called {edge.ref!r}{closest(edge.ref, refs)}"
                raise InvalidSpec(field="dependencies", why=why)


def to_request(job: Job) -> core.JobRequest:
    """The core's form of `job`, all of it checked against the limits.

    Errors: `InvalidSpec`, `InvalidName`, `InvalidAmount`, `TooLarge`; each says which field and what is allowed.
    """
    for field, (lowest, highest) in BOUNDS.items():
        value = getattr(job, field)
        if type(value) is not int or not lowest <= value <= highest:
            raise InvalidSpec(
                field=field, why=f"is {str(value)[:40]}, allowed are whole numbers from {lowest} to {highest}"
            )
    _check_gpus(job)
    if job.ref:
        check_name("ref", job.ref)
        if job.ref.isdigit():
            raise InvalidName(what="ref", name=job.ref, why="digits alone mean a job's number")
    shape = core.Shape(
        cpus_milli=job.cpus_milli,
        memory_mib=job.memory_mib,
        gpus=job.gpus,
        gpu_milli=job.gpu_milli,
        gpu_models=tuple(
            check_name("GPU model", model)
            for model in _strings("gpu_models", job.gpu_models, limits.MAX_GPU_MODELS_PER_JOB)
        ),
        labels=_labels(job.labels),
        members=job.members,
        storage_mb=job.storage_mb,
    )
    spec = core.JobSpec(
        name=check_name("job", job.name or job.ref or "job"),
        shape=shape,
        time_limit_ms=job.time_limit_ms,
        priority=job.priority,
        queue=check_name("queue", job.queue),
        retries=job.retries,
        grace_ms=job.grace_ms,
        budget=None if job.budget is None else parse_amount(job.budget, Unit.MONEY),
        begin_at=parse_instant(job.begin_at, "begin_at") if job.begin_at else 0,
        inputs=_files("inputs", job.inputs),
        outputs=_files("outputs", job.outputs),
        payload=_payload(job.launch),
    )
    return core.JobRequest(
        spec=spec,
        ref=job.ref,
        array=_array(job.array) if job.array is not None else None,
        dependencies=_dependencies(job.dependencies),
        held=job.held is True,
    )


def parse_instant(text: str, field: str) -> int:
    """ns since the epoch for an RFC 3339 instant with its zone or a string of ns; `InvalidSpec` for anything else."""
    if _INSTANT_NS.fullmatch(text):
        instant = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidSpec(
                field=field, why=f"{text[:64]!r} is no RFC 3339 instant such as 2030-01-31T12:00:00Z"
            ) from None
        if moment.tzinfo is None:
            raise InvalidSpec(field=field, why=f"{text[:64]!r} has no time zone; end it with Z or +01:00")
        instant = (moment - _EPOCH) // timedelta(microseconds=1) * 1_000
    if not 0 <= instant <= MAX_INSTANT_NS:
        raise InvalidSpec(field=field, why=f"{text[:64]!r} is outside 1970-01-01 to 2262-04-11")
    return instant


def _check_gpus(job: Job) -> None:
    if job.gpu_milli != 1_000 and job.gpus != 1:
        why = f"is {job.gpu_milli} with gpus {job.gpus}; a fraction of a GPU needs gpus 1, otherwise gpu_milli is 1000"
        raise InvalidSpec(field="gpu_milli", why=why)
    if job.gpu_models and not job.gpus:
        raise InvalidSpec(field="gpu_models", why="is given with gpus 0; ask for a GPU or leave it out")


def _strings(field: str, values: Sequence[str], most: int) -> tuple[str, ...]:
    if values == ():
        return ()
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise InvalidSpec(field=field, why="must be a list of strings")
    if len(values) > most:
        raise TooLarge(what=f"The number of {field}", size=len(values), limit=most)
    return tuple(values)


def _labels(labels: Sequence[str]) -> tuple[str, ...]:
    for label in _strings("labels", labels, limits.MAX_LABELS_PER_JOB):
        if len(label) > limits.MAX_NAME_CHARS or not _LABEL.fullmatch(label):
            raise InvalidName(
                what="label",
                name=label[: limits.MAX_NAME_CHARS],
                why="use letters, digits and . _ : / @ + = -",
            )
    return tuple(labels)


def _files(field: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names in the form in which they are compared: `./a//b` is `a/b`."""
    if names == ():
        return ()
    files: dict[str, None] = {}
    for name in _strings(field, names, limits.MAX_FILES_PER_JOB):
        if not _is_path(name) or name.endswith("/"):
            raise InvalidSpec(
                field=field, why=f"{name[:64]!r} is no file name of 1 to {MAX_PATH_CHARS} characters"
            )
        files[posixpath.normpath(name)] = None
    return tuple(files)


def _array(array: Array) -> core.Array:
    indices = sorted(set(array.indices))
    if len(indices) != len(array.indices):
        raise InvalidSpec(field="array.indices", why="names an index twice")
    if not 1 <= len(indices) <= limits.MAX_ARRAY_TASKS:
        raise TooLarge(what="The number of array tasks", size=len(indices), limit=limits.MAX_ARRAY_TASKS)
    if any(type(index) is not int or not 0 <= index <= MAX_ARRAY_INDEX for index in indices):
        raise InvalidSpec(field="array.indices", why=f"allowed are whole numbers from 0 to {MAX_ARRAY_INDEX}")
    if type(array.throttle) is not int or not 0 <= array.throttle <= limits.MAX_ARRAY_TASKS:
        raise InvalidSpec(
            field="array.throttle", why=f"is {array.throttle}, allowed are 0 to {limits.MAX_ARRAY_TASKS}"
        )
    return core.Array(tuple(indices), array.throttle)


def _dependencies(edges: Sequence[Dependency]) -> tuple[core.Dependency, ...]:
    if len(edges) > limits.MAX_DEPENDENCIES_PER_JOB:
        raise TooLarge(
            what="The number of dependencies", size=len(edges), limit=limits.MAX_DEPENDENCIES_PER_JOB
        )
    for edge in edges:
        if bool(edge.ref) == bool(edge.job):
            raise InvalidSpec(field="dependencies", why="each needs exactly one of job and ref")
        if type(edge.job) is not int or not 0 <= edge.job <= MAX_JOB_ID:
            raise InvalidSpec(field="dependencies", why=f"{edge.job} is no job number")
    return tuple(core.Dependency(when=edge.when, ref=edge.ref, job=edge.job) for edge in edges)


def _payload(launch: Launch) -> bytes:
    """The launch as the engine will read it, checked: exactly one of argv and script, names and sizes as POSIX allows."""
    if bool(launch.argv) == bool(launch.script.strip()):
        raise InvalidSpec(field="launch", why="give exactly one of argv and script")
    if launch.argv and launch.arguments:
        raise InvalidSpec(field="launch.arguments", why="belong to a script; with argv put them there")
    if launch.argv and not launch.argv[0]:
        raise InvalidSpec(field="launch.argv", why="starts with an empty word; name the program first")
    for field, words in (("argv", launch.argv), ("arguments", launch.arguments)):
        if len(words) > MAX_ARGUMENTS:
            raise TooLarge(
                what=f"The number of words in launch.{field}", size=len(words), limit=MAX_ARGUMENTS
            )
        for word in words:
            _check_text(f"launch.{field}", word)
    _check_text("launch.script", launch.script)
    for name, value in launch.env.items():
        if len(name) > limits.MAX_NAME_CHARS or not _VARIABLE.fullmatch(name):
            raise InvalidName(
                what="variable",
                name=name[: limits.MAX_NAME_CHARS],
                why="use letters, digits and _, no digit first",
            )
        _check_text(f"launch.env.{name}", value)
    if launch.workdir or launch.stdout or launch.stderr:
        _check_paths(launch)
    payload = encode_launch(launch)
    if len(payload) > limits.MAX_PAYLOAD_BYTES:
        raise TooLarge(what="The launch in bytes", size=len(payload), limit=limits.MAX_PAYLOAD_BYTES)
    return payload


def _check_paths(launch: Launch) -> None:
    for field, path in (("workdir", launch.workdir), ("stdout", launch.stdout), ("stderr", launch.stderr)):
        if path and not _is_path(path):
            why = f"{path[:64]!r} is no path of 1 to {MAX_PATH_CHARS} characters"
            raise InvalidSpec(field=f"launch.{field}", why=why)
        for letter in _LOG_FIELD.findall(path) if field != "workdir" else ():
            if letter not in set("jAaxN%"):
                why = f"%{letter} is unknown; allowed are %j %A %a %x %N %%"
                raise InvalidSpec(field=f"launch.{field}", why=why)


def _check_text(field: str, text: str) -> None:
    if not isinstance(text, str) or not _is_encodable(text):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpec(field=field, why="must be text without NUL characters")


def _is_path(path: str) -> bool:
    return 0 < len(path) <= MAX_PATH_CHARS and _is_encodable(path)


def _is_encodable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
