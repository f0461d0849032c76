"""Work: what `job submit` and `quote` are given - a job file, a batch script, a command - becomes jobs of the wire (U9)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from mintyard.domain.errors import FileUnreadable, InvalidSpec, TooLarge
from mintyard.domain.limits import MAX_BODY_BYTES
from mintyard.wire.jobs import Job, to_request
from mintyard.wire.launch import Launch

TAIL: ContextVar[tuple[str, ...] | None] = ContextVar("tail", default=None)
"""The words after `--`; None when there was none."""
_YAML: Final = (".yaml", ".yml", ".json")
_GPUS: Final = ("gpus", "gpu_milli", "gpu_models")
_CHANGES: Final[dict[str, tuple[str, ...]]] = {
    "array": ("array",),
    "begin": ("begin_at",),
    "constraint": ("labels",),
    "cpus-per-gpu": ("cpus_milli",),
    "cpus-per-task": ("cpus_milli",),
    "dependency": ("dependencies",),
    "gpus": _GPUS,
    "gpus-per-node": _GPUS,
    "gpus-per-task": _GPUS,
    "gres": _GPUS,
    "hold": ("held",),
    "job-name": ("name",),
    "mem": ("memory_mib",),
    "mem-per-cpu": ("memory_mib",),
    "mem-per-gpu": ("memory_mib",),
    "nice": ("priority",),
    "nodes": ("members",),
    "ntasks": ("cpus_milli",),
    "ntasks-per-node": ("cpus_milli",),
    "partition": ("queue",),
    "priority": ("priority",),
    "time": ("time_limit_ms",),
}
"""What a flag changes in the jobs of a file."""
_ALONE: Final = ("array", "dependency", "job-name")
"""Flags that can't mean several jobs at once."""
_SBATCH: Final = "Resources and time, as sbatch has them"


@Parameter(name="*")
@dataclass(frozen=True)
class Sbatch:
    """sbatch's flags. Given with a job file they override its fields."""

    gpus: Annotated[str | None, Parameter(name=["--gpus", "-G"], group=_SBATCH)] = None
    """GPUs over all nodes: 2, 0.5 (half of one), a100:2."""
    time: Annotated[str | None, Parameter(name=["--time", "-t"], group=_SBATCH)] = None
    """Time limit: 30 (minutes), 00:30:00, 2-12:00:00, 1h30m."""
    cpus_per_task: Annotated[str | None, Parameter(name=["--cpus-per-task", "-c"], group=_SBATCH)] = None
    """Cores of each task."""
    mem: Annotated[str | None, Parameter(name="--mem", group=_SBATCH)] = None
    """Memory of each node: 16G, 4000 (MiB)."""
    nodes: Annotated[str | None, Parameter(name=["--nodes", "-N"], group=_SBATCH)] = None
    """Members of a gang: all start together, or none."""
    ntasks: Annotated[str | None, Parameter(name=["--ntasks", "-n"], group=_SBATCH)] = None
    """Tasks over all nodes."""
    ntasks_per_node: Annotated[str | None, Parameter(name="--ntasks-per-node", group=_SBATCH)] = None
    """Tasks on each node."""
    array: Annotated[str | None, Parameter(name=["--array", "-a"], group=_SBATCH)] = None
    """Indices of an array and how many run at once: 0-9%2, 1,3,5-9:2."""
    dependency: Annotated[str | None, Parameter(name=["--dependency", "-d"], group=_SBATCH)] = None
    """What to wait for: afterok:12:13,afterany:14."""
    job_name: Annotated[str | None, Parameter(name=["--job-name", "-J"], group=_SBATCH)] = None
    """The job's name."""
    partition: Annotated[str | None, Parameter(name=["--partition", "-p"], group=_SBATCH)] = None
    """The queue."""
    chdir: Annotated[str | None, Parameter(name=["--chdir", "-D"], group=_SBATCH)] = None
    """Working folder; on the hub's own machine the present one is the default."""
    output: Annotated[str | None, Parameter(name=["--output", "-o"], group=_SBATCH)] = None
    """File for standard output (%j job, %A array, %a index, %x name); `-o json` writes the answer as JSON."""
    error: Annotated[str | None, Parameter(name=["--error", "-e"], group=_SBATCH)] = None
    """File for standard error."""
    export: Annotated[str | None, Parameter(name="--export", group=_SBATCH)] = None
    """Variables for the job: NAME=value, or NAME from here."""
    begin: Annotated[str | None, Parameter(name=["--begin", "-b"], group=_SBATCH)] = None
    """Not before: now+1hour, 2030-01-31T12:00:00."""
    constraint: Annotated[str | None, Parameter(name=["--constraint", "-C"], group=_SBATCH)] = None
    """Labels that the node must have: a&b."""
    priority: Annotated[str | None, Parameter(name="--priority", group=_SBATCH)] = None
    """0 to 10000, 100 by default."""
    gres: Annotated[str | None, Parameter(name="--gres", group=_SBATCH)] = None
    """gpu:a100:2 on each node."""
    gpus_per_node: Annotated[str | None, Parameter(name="--gpus-per-node", group=_SBATCH)] = None
    """GPUs of each node."""
    gpus_per_task: Annotated[str | None, Parameter(name="--gpus-per-task", group=_SBATCH)] = None
    """GPUs of each task."""
    cpus_per_gpu: Annotated[str | None, Parameter(name="--cpus-per-gpu", group=_SBATCH)] = None
    """Cores for each GPU."""
    mem_per_cpu: Annotated[str | None, Parameter(name="--mem-per-cpu", group=_SBATCH)] = None
    """Memory for each core."""
    mem_per_gpu: Annotated[str | None, Parameter(name="--mem-per-gpu", group=_SBATCH)] = None
    """Memory for each GPU."""
    wrap: Annotated[str | None, Parameter(name="--wrap", group=_SBATCH)] = None
    """A shell command instead of a script."""
    hold: Annotated[bool, Parameter(name=["--hold", "-H"], negative="", group=_SBATCH)] = False
    """Submit it held."""
    requeue: Annotated[bool, Parameter(name="--requeue", negative="", group=_SBATCH)] = False
    """Accepted as sbatch does: a node's loss never counts against the job."""

    @property
    def answer_format(self) -> str:
        """`-o json` and `-o table` speak of the answer, not of a file."""
        return self.output if self.output in ("json", "table") else ""

    def words(self) -> list[str]:
        """The flags as sbatch would be given them."""
        words: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            name = "--" + field.name.replace("_", "-")
            if field.name == "output" and self.answer_format:
                continue
            if value is True:
                words.append(name)
            elif isinstance(value, str):
                words.append(f"{name}={value}")
        return words


@Parameter(name="*")
@dataclass(frozen=True)
class More:
    """What sbatch has no flag for."""

    budget: Annotated[str | None, Parameter(name="--budget", group="Limits")] = None
    """Refuse, rather than let it cost more than this."""
    retries: Annotated[int | None, Parameter(name="--retries", group="Limits")] = None
    """Start again after a failure so often."""
    grace: Annotated[str | None, Parameter(name="--grace", group="Limits")] = None
    """From the polite signal to the kill: 30s."""


class Read(msgspec.Struct, frozen=True):
    """The jobs of one request, and sbatch's flags that were not honoured."""

    jobs: list[Job]
    unsupported: tuple[str, ...] = ()


def read_work(words: Sequence[str], sbatch: Sbatch, more: More, *, local: bool) -> Read:
    """The jobs that the command line names. `local`: the hub is on this machine, so paths here are paths there.

    Errors: `InvalidSpec` (what is wrong, and what is allowed), `FileUnreadable`, `TooLarge`, `InvalidRequest`.
    """
    from mintyard.wire.batch_flags import separate

    unknown, operands = separate(words)
    flags = [*sbatch.words(), *unknown]
    tail = TAIL.get()
    if sbatch.wrap is not None and not sbatch.wrap.strip():
        raise InvalidSpec(field="--wrap", why="is empty; give a command")
    if operands and sbatch.wrap is not None:
        raise InvalidSpec(field="--wrap", why="takes the place of a file; give one of them")
    if not operands and not tail and sbatch.wrap is None:
        raise InvalidSpec(
            field="FILE", why="is missing; give a job file, a script, --wrap COMMAND or -- COMMAND"
        )
    if operands:
        read = _from_file(operands[0], (*operands[1:], *(tail or ())), flags)
    else:
        if tail and sbatch.wrap is not None:
            raise InvalidSpec(field="--wrap", why="and -- both give the command; give one of them")
        read = _from_command(tail or (), flags)
    jobs = [_finished(job, more, local) for job in read.jobs]
    return Read(jobs, read.unsupported)


def _from_file(name: str, arguments: tuple[str, ...], flags: list[str]) -> Read:
    from mintyard.wire.batch_script import parse_batch_script

    text = read_text(name)
    if _is_script(name, text):
        script = parse_batch_script(text, flags, arguments, os.environ, name="" if name == "-" else name)
        return Read([script.job], script.unsupported)
    if arguments:
        raise InvalidSpec(field=arguments[0][:40], why="is no flag; a job file takes no arguments")
    from mintyard.wire.jobfile import parse_jobfile

    return _override(parse_jobfile(text), flags)


def _from_command(tail: tuple[str, ...], flags: list[str]) -> Read:
    from mintyard.wire.batch_script import parse_batch_script

    if not tail:
        script = parse_batch_script(None, flags, environ=os.environ)
        return Read([script.job], script.unsupported)
    script = parse_batch_script(None, [*flags, "--wrap=true"], environ=os.environ, name=tail[0])
    launch = replace(script.job.launch, script="", argv=tail)
    job = replace(script.job, launch=launch, name="job" if script.job.name == "wrap" else script.job.name)
    return Read([job], script.unsupported)


def _is_script(name: str, text: str) -> bool:
    if name.lower().endswith(_YAML):
        return False
    return name != "-" or text.startswith("#!")


def read_text(name: str) -> str:
    """The text of a file, `-` for standard input. Errors: `FileUnreadable`, `TooLarge`."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
        else:
            with Path(name).open("rb") as opened:
                data = opened.read(MAX_BODY_BYTES + 1)
        if len(data) > MAX_BODY_BYTES:
            raise TooLarge(what=f"{name} in bytes", size=f"over {MAX_BODY_BYTES}", limit=MAX_BODY_BYTES)
        return data.decode()
    except UnicodeDecodeError:
        raise FileUnreadable(path=name, why="it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileUnreadable(path=name, why=why.lower()) from None


def _override(jobs: list[Job], flags: list[str]) -> Read:
    """The jobs of a file with what the flags say instead."""
    if not flags:
        return Read(jobs)
    from mintyard.wire.batch_flags import parse_flags
    from mintyard.wire.batch_script import parse_batch_script

    given = parse_flags(flags).values
    alone = [flag for flag in _ALONE if flag in given]
    if alone and len(jobs) > 1:
        raise InvalidSpec(field=f"--{alone[0]}", why=f"can't be meant for all {len(jobs)} jobs of the file")
    script = parse_batch_script(None, [*flags, "--wrap=true"], environ=os.environ)
    changed = {field: getattr(script.job, field) for flag in given for field in _CHANGES.get(flag, ())}
    said = script.job.launch
    return Read(
        [replace(job, launch=_launch(job.launch, said, given), **changed) for job in jobs], script.unsupported
    )


def _launch(launch: Launch, said: Launch, given: dict[str, str]) -> Launch:
    changed: dict[str, Any] = {"env": launch.env | said.env} if said.env else {}
    for flag, field in (("chdir", "workdir"), ("output", "stdout"), ("error", "stderr")):
        if flag in given:
            changed[field] = getattr(said, field)
    return replace(launch, **changed)


def _finished(job: Job, more: More, local: bool) -> Job:
    """The job with limits and working folder, checked as the hub will check it."""
    changed: dict[str, Any] = {}
    if more.budget is not None:
        from mintyard.wire.quantities import parse_budget

        changed["budget"] = parse_budget(more.budget, "--budget")
    if more.retries is not None:
        changed["retries"] = more.retries
    if more.grace is not None:
        from mintyard.domain.limits import MAX_GRACE_MS
        from mintyard.wire.quantities import parse_duration

        changed["grace_ms"] = parse_duration(more.grace, "--grace", 0, MAX_GRACE_MS, 1_000)
    if local:
        workdir = os.path.abspath(os.path.expanduser(job.launch.workdir or "."))
        changed["launch"] = replace(job.launch, workdir=workdir)
    job = replace(job, **changed)
    to_request(job)
    return job
