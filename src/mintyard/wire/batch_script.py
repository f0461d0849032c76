"""Batch scripts as they are: `#SBATCH` lines and sbatch's flags become a `Job`, the script itself stays untouched.

What a flag means follows sbatch(1), with one member of a gang for one node. The script runs once, in the first member's
working folder, with the SLURM_* names set. Flags without a counterpart are returned by name, never dropped in silence.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mintyard.domain import limits
from mintyard.domain.errors import InvalidName, InvalidSpec
from mintyard.wire import quantities as read
from mintyard.wire.batch_flags import Flags, parse_flags, read_directives
from mintyard.wire.instants import parse_begin
from mintyard.wire.jobs import Job, to_request
from mintyard.wire.launch import Launch

MAX_TASKS: Final = limits.MAX_GANG_MEMBERS * (limits.MAX_CPUS_MILLI // 1_000)
_NICE_DEFAULT: Final = 100
_MAX_NICE: Final = 2_147_483_645


class BatchScript(msgspec.Struct, frozen=True):
    """The job, and the flags that were not honoured, as they were written."""

    job: Job
    unsupported: tuple[str, ...] = ()


def parse_batch_script(
    text: str | None,
    flags: Sequence[str] = (),
    arguments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    now_ns: int | None = None,
    name: str = "",
) -> BatchScript:
    """The job that `sbatch FLAGS SCRIPT ARGUMENTS` would submit; `flags` override the script's lines.

    `text` is None when `--wrap` gives the command. `environ` is where `--export=NAME` takes values from, `now_ns` (default:
    this machine's clock) what `--begin=now+1hour` counts from, `name` the script's file name, the job's if none is given.

    Errors: `InvalidSpec` with the flag, its value and what is allowed; those of `to_request`.
    """
    outer = parse_flags(flags)
    script = _script(text, outer)
    given = outer.over(read_directives(script)) if text is not None else outer
    reader = _Reader(given, environ or {}, time.time_ns() if now_ns is None else now_ns)
    job = reader.job(script, tuple(arguments), name)
    to_request(job)
    return BatchScript(job, (*given.unsupported, *reader.unsupported))


def _script(text: str | None, flags: Flags) -> str:
    command = flags.values.get("wrap")
    if (text is None) == (command is None):
        raise InvalidSpec(field="script", why="give either a script or --wrap COMMAND")
    if text is None:
        return f"#!/bin/sh\n{command}\n"
    if not text.strip():
        raise InvalidSpec(field="script", why="is empty")
    if "\r\n" in text:
        raise InvalidSpec(field="script", why="has DOS line ends (\\r\\n); convert them with dos2unix")
    return text


class _Reader:
    """Reads one set of flags; keeps what it could not honour."""

    def __init__(self, flags: Flags, environ: Mapping[str, str], now_ns: int) -> None:
        self.values = flags.values
        self.environ = environ
        self.now_ns = now_ns
        self.unsupported: list[str] = []

    def job(self, script: str, arguments: tuple[str, ...], name: str) -> Job:
        values = self.values
        members = self._members()
        cpus = self._cpus(members)
        gpus = self._gpus(members)
        if "cpus-per-gpu" in values:
            cpus = self._count("cpus-per-gpu", 1, MAX_TASKS) * max(gpus.gpus, 1)
        fields: dict[str, Any] = {
            "name": values.get("job-name") or _job_name(name) or ("wrap" if "wrap" in values else "sbatch"),
            "members": members,
            "cpus_milli": cpus * 1_000,
            "gpus": gpus.gpus,
            "gpu_milli": gpus.gpu_milli,
            "gpu_models": gpus.models,
            "labels": self._labels(),
            "held": "hold" in values,
        }
        memory_mib = self._memory(cpus, gpus.gpus)
        if memory_mib is not None:
            fields["memory_mib"] = memory_mib
        if "time" in values:
            fields["time_limit_ms"] = read.parse_duration(values["time"], "--time")
        if "partition" in values:
            fields["queue"] = self._partition()
        if "array" in values:
            fields["array"] = read.parse_array(values["array"], "--array")
        if "dependency" in values:
            fields["dependencies"] = read.parse_dependencies(values["dependency"], "--dependency")
        if "begin" in values:
            fields["begin_at"] = parse_begin(values["begin"], self.now_ns, "--begin")
        if "priority" in values:
            fields["priority"] = self._count("priority", 0, limits.MAX_PRIORITY)
        elif "nice" in values:
            fields["priority"] = self._nice()
        output = values.get("output", "")
        launch = Launch(
            script=script,
            arguments=arguments,
            env=self._export(),
            workdir=values.get("chdir", ""),
            stdout=output,
            stderr=values.get("error", output),
            slurm_environment=True,
        )
        return Job(launch=launch, **fields)

    def _count(self, flag: str, lowest: int, highest: int) -> int:
        return read.parse_count(self.values[flag], f"--{flag}", lowest, highest)

    def _members(self) -> int:
        """Nodes; of a range the lower end, which sbatch would accept as well."""
        if "nodes" not in self.values:
            return 1
        lowest, dash, highest = self.values["nodes"].partition("-")
        nodes = read.parse_count(lowest, "--nodes", 1, limits.MAX_GANG_MEMBERS)
        if dash:
            read.parse_count(highest, "--nodes", nodes, limits.MAX_GANG_MEMBERS)
            self.unsupported.append(f"--nodes as a range ({nodes} is used)")
        return nodes

    def _tasks_per_member(self, members: int) -> int:
        if "ntasks-per-node" in self.values:
            return self._count("ntasks-per-node", 1, MAX_TASKS)
        if "ntasks" in self.values:
            return -(-self._count("ntasks", 1, MAX_TASKS) // members)
        return 1

    def _cpus(self, members: int) -> int:
        per_task = (
            self._count("cpus-per-task", 1, limits.MAX_CPUS_MILLI // 1_000)
            if "cpus-per-task" in self.values
            else 1
        )
        cpus = per_task * self._tasks_per_member(members)
        if cpus * 1_000 > limits.MAX_CPUS_MILLI:
            read.refuse("--cpus-per-task", str(cpus), f"at most {limits.MAX_CPUS_MILLI // 1_000} CPUs a node")
        return cpus

    def _gpus(self, members: int) -> read.GpuRequest:
        """GPUs of one member, from the one flag that speaks of them."""
        flags = [flag for flag in ("gpus", "gpus-per-node", "gpus-per-task", "gres") if flag in self.values]
        if not flags:
            return read.GpuRequest(0)
        if len(flags) > 1:
            raise InvalidSpec(
                field=f"--{flags[1]}", why=f"counts the same GPUs as --{flags[0]}; give one of them"
            )
        flag = flags[0]
        if flag == "gres":
            gpus, others = read.parse_gres(self.values["gres"], "--gres")
            self.unsupported += [f"--gres={other}" for other in others]
            return gpus
        highest = limits.MAX_GPUS_PER_MEMBER * (members if flag == "gpus" else 1)
        wanted = read.parse_gpus(self.values[flag], f"--{flag}", highest)
        each, rest = wanted.gpus, 0
        if flag == "gpus":
            each, rest = divmod(wanted.gpus, members)
        elif flag == "gpus-per-task":
            each = wanted.gpus * self._tasks_per_member(members)
        if rest or each > limits.MAX_GPUS_PER_MEMBER or (wanted.gpu_milli < 1_000 and wanted.gpus != each):
            why = f"divide evenly over {members} nodes, at most {limits.MAX_GPUS_PER_MEMBER} on each"
            read.refuse(f"--{flag}", self.values[flag], why)
        return read.GpuRequest(each, wanted.gpu_milli, wanted.models)

    def _memory(self, cpus: int, gpus: int) -> int | None:
        flags = [flag for flag in ("mem", "mem-per-cpu", "mem-per-gpu") if flag in self.values]
        if not flags:
            return None
        if len(flags) > 1:
            raise InvalidSpec(field=f"--{flags[1]}", why=f"excludes --{flags[0]}; give one of them")
        flag = flags[0]
        if flag == "mem" and self.values["mem"] == "0":
            read.refuse("--mem", "0", "a whole node's memory can't be asked for; write how much, such as 16G")
        each = read.parse_memory(self.values[flag], f"--{flag}")
        return each * {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": max(gpus, 1)}[flag]

    def _labels(self) -> tuple[str, ...]:
        """`--constraint=a&b` as labels; alternatives and counts have no counterpart."""
        text = self.values.get("constraint", "")
        if any(letter in "|[]*()," for letter in text):
            self.unsupported.append(f"--constraint={text[:40]}")
            return ()
        return tuple(label for label in text.split("&") if label)

    def _partition(self) -> str:
        first, *others = self.values["partition"].split(",")
        if others:
            self.unsupported.append(f"--partition as a list ({first} is used)")
        return first

    def _nice(self) -> int:
        text = self.values["nice"] or str(_NICE_DEFAULT)
        nice = read.parse_count(text.removeprefix("-"), "--nice", 0, _MAX_NICE) * (
            -1 if text.startswith("-") else 1
        )
        return min(max(limits.DEFAULT_PRIORITY - nice, 0), limits.MAX_PRIORITY)

    def _export(self) -> dict[str, str]:
        """`NAME=value` as it is, `NAME` from `environ`. The whole environment is never copied: it may hold secrets."""
        env: dict[str, str] = {}
        for item in filter(None, self.values.get("export", "NONE").split(",")):
            name, equals, value = item.partition("=")
            if equals:
                env[name] = value
            elif name == "ALL":
                self.unsupported.append("--export=ALL (name the variables the job needs)")
            elif name not in ("NONE", "NIL"):
                if name not in self.environ:
                    raise InvalidSpec(field="--export", why=f"{name[:40]!r} is not set here")
                env[name] = self.environ[name]
        return env


def _job_name(file_name: str) -> str:
    """The script's file name as job name, or nothing when it can't be one."""
    base = file_name.rsplit("/", 1)[-1]
    try:
        to_request(Job(launch=Launch(argv=("true",)), name=base))
    except InvalidName:
        return ""
    return base
