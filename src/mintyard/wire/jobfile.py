"""Job files: one job, or several under `jobs:` (a list, or a map from ref to job), with `defaults:` for all of them.

A field's reader turns the text that was typed into the wire's integers, and names field and line when it can't. No file
is opened here; what the job runs is in the file itself.
"""

from __future__ import annotations

import math
import time
from collections import Counter, abc
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from mintyard.domain import limits
from mintyard.domain.errors import InvalidAmount, InvalidName, InvalidRequest, InvalidSpec, TooLarge
from mintyard.domain.jobs.spec import When
from mintyard.wire import quantities as read
from mintyard.wire.instants import parse_begin
from mintyard.wire.jobs import Dependency, Job, check_refs, closest, to_request
from mintyard.wire.launch import Launch
from mintyard.wire.yaml_tree import Mapping, Node, Scalar, Sequence, parse_yaml

_TRUE: Final = frozenset({"true", "yes", "on"})
_MAX_DEPTH: Final = 4
_FALSE: Final = frozenset({"false", "no", "off"})
_ALIASES: Final = {"nodes": "members", "after": "needs"}
"""Two names of one field: only one of them may be given."""


class Place(msgspec.Struct, frozen=True):
    """Where a value stands in the file, as messages name it, and the reader's clock."""

    field: str
    line: int
    now_ns: int

    def __str__(self) -> str:
        return f"{self.field} (line {self.line})" if self.line else self.field

    def refuse(self, why: str) -> InvalidSpec:
        return InvalidSpec(field=str(self), why=why)


def parse_jobfile(text: str | bytes, now_ns: int | None = None) -> list[Job]:
    """The jobs in a YAML job file, checked as the hub will check them; `now_ns` (default: this machine's clock) is
    what `begin: now+1hour` counts from.

    Errors: `InvalidRequest` (not such a file), `InvalidSpec` (field, line, value, what is allowed), `TooLarge`.
    """
    root = parse_yaml(text)
    now = time.time_ns() if now_ns is None else now_ns
    if not isinstance(root, Mapping):
        raise InvalidRequest(why="the file must hold `field: value` lines, at least `run: COMMAND`")
    if "jobs" not in root.items:
        return [_job(root, Mapping(root.line, {}, {}), "", now)]
    jobs = _named(_jobs(root, now))
    check_refs(jobs)
    return jobs


def read_fields(fields: dict[str, Any], now_ns: int | None = None) -> Job:
    """One job from the fields of a job file given as Python values (`gpus=2`, `needs=["prepare"]`); numbers are read as they
    would be typed. Errors: as `parse_jobfile`, without lines."""
    root = _tree(fields, 0)
    assert isinstance(root, Mapping)
    return _job(root, Mapping(0, {}, {}), "", time.time_ns() if now_ns is None else now_ns)


def _tree(value: Any, depth: int) -> Node:
    if isinstance(value, bool):
        return Scalar(0, str(value).lower())
    if isinstance(value, float | Decimal) and not -math.inf < value < math.inf:
        raise InvalidSpec(field="job", why=f"can't hold {value}; write a finite number")
    if value is None or isinstance(value, str | int | float | Decimal):
        return Scalar(0, "" if value is None else str(value), is_null=value is None)
    if depth < _MAX_DEPTH and isinstance(value, abc.Mapping):
        items = {str(key): _tree(item, depth + 1) for key, item in value.items()}
        return Mapping(0, items, dict.fromkeys(items, 0))
    if (
        depth < _MAX_DEPTH
        and isinstance(value, abc.Sequence | abc.Set)
        and not isinstance(value, bytes | bytearray)
    ):
        return Sequence(0, [_tree(item, depth + 1) for item in value])
    raise InvalidSpec(
        field="job", why=f"can't hold a {type(value).__name__}; write text, numbers, lists and maps"
    )


def _jobs(root: Mapping, now_ns: int) -> list[Job]:
    for key in root.items:
        if key not in ("jobs", "defaults"):
            hint = "; move it under `defaults:`" if key in FIELDS else closest(key, ("jobs", "defaults"))
            raise InvalidSpec(
                field=f"{key[:40]} (line {root.lines[key]})", why=f"does not belong beside `jobs:`{hint}"
            )
    defaults = root.items.get("defaults", Mapping(root.line, {}, {}))
    if not isinstance(defaults, Mapping):
        raise InvalidSpec(field=f"defaults (line {defaults.line})", why="must hold `field: value` lines")
    listed = root.items["jobs"]
    if isinstance(listed, Scalar) or not listed.items:
        raise InvalidSpec(field=f"jobs (line {listed.line})", why="must list at least one job")
    if len(listed.items) > limits.MAX_JOBS_PER_COMMAND:
        raise TooLarge(what="The number of jobs", size=len(listed.items), limit=limits.MAX_JOBS_PER_COMMAND)
    named = listed.items.items() if isinstance(listed, Mapping) else (("", node) for node in listed.items)
    jobs: list[Job] = []
    for ref, node in named:
        if not isinstance(node, Mapping):
            raise InvalidSpec(
                field=f"jobs{ref and '.' + ref[:40]} (line {node.line})", why="must hold `field: value` lines"
            )
        jobs.append(_job(node, defaults, ref, now_ns))
    return jobs


def _job(node: Mapping, defaults: Mapping, ref: str, now_ns: int) -> Job:
    """One job from its own fields over the shared ones; `env`, `labels` add up, the others replace."""
    values: dict[str, Any] = {}
    launch: dict[str, Any] = {}
    own = {_ALIASES.get(key, key) for key in node.items}
    rivals = {"run", "script"}
    if own & rivals:
        own |= rivals
    for source in (defaults, node):
        seen: set[str] = set()
        for key, value in source.items.items():
            place = Place(f"{ref}.{key}"[:100] if ref else key[:100], source.lines[key], now_ns)
            canonical = _ALIASES.get(key, key)
            if key not in FIELDS:
                raise place.refuse(f"is no field of a job{closest(key, FIELDS)}")
            if canonical in seen:
                raise place.refuse(f"means the same as another field here; give {canonical!r} once")
            seen.add(canonical)
            if source is defaults and canonical in own - {"env", "labels"}:
                continue
            if isinstance(value, Scalar) and value.is_null:
                continue
            _read(FIELDS[key], value, place, values, launch)
    if ref:
        values["ref"] = ref
    _check_command(launch, node.line, ref)
    job = Job(launch=Launch(**launch), **values)
    try:
        to_request(job)
    except (InvalidName, InvalidAmount, InvalidSpec) as error:
        field = error.params.get("field", error.params.get("what", "budget"))
        named = f"{error.params['name']!r}: " if isinstance(error, InvalidName) else ""
        place = Place(f"{ref and ref + '.'}{field}", node.line, now_ns)
        raise InvalidSpec(field=str(place), why=named + error.params["why"]) from None
    return job


def _named(jobs: list[Job]) -> list[Job]:
    """Listed jobs without a ref are known by their name, when it is theirs alone."""
    taken = Counter(name for job in jobs for name in {job.ref, job.name})
    return [
        replace(job, ref=job.name)
        if job.name and not job.ref and taken[job.name] == 1 and not job.name.isdigit()
        else job
        for job in jobs
    ]


def _check_command(launch: dict[str, Any], line: int, ref: str) -> None:
    field = str(Place(f"{ref + '.' if ref else ''}run", line, 0))
    if launch.pop("run", None) and "script_given" in launch:
        raise InvalidSpec(field=field, why="give run or script, not both")
    launch.pop("script_given", None)
    if not launch.get("argv") and not launch.get("script"):
        raise InvalidSpec(field=field, why="is missing; write run: COMMAND")


def _read(reader: Reader, node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
    try:
        reader(node, place, values, launch)
    except (InvalidName, InvalidAmount) as error:
        raise place.refuse(str(error).rstrip(".")) from None
    except InvalidSpec as error:
        if error.params["field"] == str(place):
            raise
        raise place.refuse(error.params["why"]) from None


# --- readers: each takes a node and writes what it means into the job's or the launch's fields -----------------------

Reader = Callable[[Node, Place, dict[str, Any], dict[str, Any]], None]


def _text(node: Node, place: Place) -> str:
    if not isinstance(node, Scalar):
        raise place.refuse("must be one value, not a list or map")
    return node.text


def _words(node: Node, place: Place) -> tuple[str, ...]:
    """A list of words, or one word alone."""
    if isinstance(node, Mapping):
        raise place.refuse("must be a list")
    return tuple(_text(item, place) for item in node.items) if isinstance(node, Sequence) else (node.text,)


def _scalar(target: str, parse: Callable[[str, Place], Any]) -> Reader:
    def reader(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
        values[target] = parse(_text(node, place).strip(), place)

    return reader


def _listed(target: str) -> Reader:
    def reader(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
        values[target] = tuple(dict.fromkeys((*values.get(target, ()), *_words(node, place))))

    return reader


def _launch_text(target: str) -> Reader:
    def reader(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
        launch[target] = _text(node, place)

    return reader


def _run(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
    if isinstance(node, Scalar):
        launch["script"] = node.text
    else:
        launch["argv"] = _words(node, place)
    launch["run"] = True


def _script(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
    text = _text(node, place)
    if "\n" not in text.strip() and not text.startswith("#!"):
        raise place.refuse("is the text of a script; to run a file or a command write run: ./FILE")
    launch["script"] = text
    launch["script_given"] = True


def _args(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
    launch["arguments"] = _words(node, place)


def _env(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
    if not isinstance(node, Mapping):
        raise place.refuse("must hold NAME: value lines")
    env = {name: _text(value, place) for name, value in node.items.items()}
    launch["env"] = launch.get("env", {}) | env


def _flag(text: str, place: Place) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise place.refuse(f"{text[:40]!r} is not allowed; write true or false")
    return text.lower() in _TRUE


def _slurm(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
    launch["slurm_environment"] = _flag(_text(node, place), place)


def _gpus(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
    wanted = read.parse_gpus(_text(node, place).strip(), str(place))
    values["gpus"], values["gpu_milli"] = wanted.gpus, wanted.gpu_milli
    if wanted.models:
        values["gpu_models"] = tuple(dict.fromkeys((*values.get("gpu_models", ()), *wanted.models)))


def _needs(node: Node, place: Place, values: dict[str, Any], launch: dict[str, Any]) -> None:
    """`prepare`, `[prepare, 12]` (afterok each), or sbatch's `afterany:12:13,afterok:prepare`."""
    edges: list[Dependency] = []
    for word in _words(node, place):
        if word.partition(":")[0] in {when.value for when in When} and ":" in word:
            edges += read.parse_dependencies(word, str(place))
        else:
            edges.append(read.parse_target(word.strip(), field=str(place)))
    values["dependencies"] = tuple(dict.fromkeys(edges))


def _count(target: str, lowest: int, highest: int) -> Reader:
    return _scalar(target, lambda text, place: read.parse_count(text, str(place), lowest, highest))


FIELDS: Final[dict[str, Reader]] = {
    "name": _scalar("name", lambda text, _: text),
    "ref": _scalar("ref", lambda text, _: text),
    "run": _run,
    "script": _script,
    "args": _args,
    "env": _env,
    "workdir": _launch_text("workdir"),
    "stdout": _launch_text("stdout"),
    "stderr": _launch_text("stderr"),
    "slurm_environment": _slurm,
    "gpus": _gpus,
    "gpu_models": _listed("gpu_models"),
    "labels": _listed("labels"),
    "cpus": _scalar("cpus_milli", lambda text, place: read.parse_cpus(text, str(place))),
    "memory": _scalar("memory_mib", lambda text, place: read.parse_memory(text, str(place))),
    "storage": _scalar("storage_mb", lambda text, place: read.parse_storage(text, str(place))),
    "members": _count("members", 1, limits.MAX_GANG_MEMBERS),
    "nodes": _count("members", 1, limits.MAX_GANG_MEMBERS),
    "time": _scalar("time_limit_ms", lambda text, place: read.parse_duration(text, str(place))),
    "grace": _scalar(
        "grace_ms", lambda text, place: read.parse_duration(text, str(place), 0, limits.MAX_GRACE_MS, 1_000)
    ),
    "priority": _count("priority", 0, limits.MAX_PRIORITY),
    "queue": _scalar("queue", lambda text, _: text),
    "retries": _count("retries", 0, limits.MAX_RETRIES),
    "budget": _scalar("budget", lambda text, place: read.parse_budget(text, str(place))),
    "begin": _scalar("begin_at", lambda text, place: parse_begin(text, place.now_ns, str(place))),
    "array": _scalar("array", lambda text, place: read.parse_array(text, str(place))),
    "needs": _needs,
    "after": _needs,
    "inputs": _listed("inputs"),
    "outputs": _listed("outputs"),
    "hold": _scalar("held", _flag),
}
"""The fields of a job in a file and their readers; the reference page is made from this table."""
