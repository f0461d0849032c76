"""Quantities as people write them in job files and flags: `30m`, `16G`, `a100:2`, `0-9%2`, `afterok:12`.

Each reader takes the text and the name of its field and returns integers in the core's units, exactly, or raises
`InvalidSpec` with the field, the value and what is allowed. Bounds come from `domain.limits`; nothing is expanded before
it was bounded. Grammar: sbatch(1) where it has one, else Kubernetes' habits. No clock and no I/O may enter.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final, NoReturn

import msgspec

from mintyard.domain import limits
from mintyard.domain.errors import InvalidAmount, InvalidSpec
from mintyard.domain.ids import check_name
from mintyard.domain.jobs.spec import When
from mintyard.domain.units import Unit, parse_amount
from mintyard.wire.jobs import MAX_ARRAY_INDEX, MAX_JOB_ID, Array, Dependency

MS_PER_MINUTE: Final = 60_000
MAX_TEXT_CHARS: Final = 65_536
_PLAIN: Final = re.compile(r"[0-9]{1,18}")
_DECIMAL: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?")
_PARTS: Final = re.compile(r"(?:[0-9]{1,18}(?:\.[0-9]{1,9})?(?:ms|[dhms]))+", re.IGNORECASE)
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[dhms])", re.IGNORECASE)
_CLOCK: Final = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")
_BYTES: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kmgtp]?)(i?b?)", re.IGNORECASE)
_RANGE: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")
_PART_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_POWER: Final = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


class GpuRequest(msgspec.Struct, frozen=True):
    """Devices, the share of each in milli, and the models that will do (none: any)."""

    gpus: int
    gpu_milli: int = 1_000
    models: tuple[str, ...] = ()


def refuse(field: str, text: str, allowed: str) -> NoReturn:
    """Raise `InvalidSpec` for `text`, shortened to what a terminal line holds."""
    shown = text if len(text) <= 40 else text[:37] + "..."
    raise InvalidSpec(field=field, why=f"{shown!r} is not allowed; {allowed}")


def parse_count(text: str, field: str, lowest: int, highest: int) -> int:
    """A whole number within bounds."""
    if not _PLAIN.fullmatch(text) or not lowest <= int(text) <= highest:
        refuse(field, text, f"write a whole number from {lowest} to {highest}")
    return int(text)


def parse_duration(
    text: str,
    field: str = "time",
    lowest_ms: int = 1,
    highest_ms: int = limits.MAX_TIME_LIMIT_MS,
    bare_ms: int = MS_PER_MINUTE,
) -> int:
    """Milliseconds for `1h30m`, `1.5h`, `90` (`bare_ms` each: minutes, as in sbatch), `M:S`, `H:M:S`, `D-H[:M[:S]]`."""
    clock = _CLOCK.fullmatch(text)
    if _PARTS.fullmatch(text):
        total = sum(Decimal(number) * _PART_MS[unit.lower()] for number, unit in _PART.findall(text))
    elif clock:
        days, first, second, third = (int(group) if group else 0 for group in clock.groups())
        if clock[1] is not None:
            total = Decimal(days * 86_400_000 + first * 3_600_000 + second * 60_000 + third * 1_000)
        elif clock[4] is not None:
            total = Decimal(first * 3_600_000 + second * 60_000 + third * 1_000)
        elif clock[3] is not None:
            total = Decimal(first * 60_000 + second * 1_000)
        else:
            total = Decimal(first * bare_ms)
    else:
        refuse(
            field,
            text,
            "write 30m, 1h30m, 90 (minutes), 00:30:00 or 2-12:00:00"
            if bare_ms == MS_PER_MINUTE
            else "write 30s, 5m or 00:00:30",
        )
    if total != int(total) or not lowest_ms <= total <= highest_ms:
        refuse(
            field,
            text,
            f"whole milliseconds from {format_duration(lowest_ms)} to {format_duration(highest_ms)}",
        )
    return int(total)


def format_duration(duration_ms: int) -> str:
    """The shortest form that `parse_duration` reads back: `1d2h`, `90s` is `1m30s`, 0 is `0s`."""
    if duration_ms == 0:
        return "0s"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, duration_ms = divmod(duration_ms, _PART_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_memory(
    text: str, field: str = "memory", lowest: int = 1, highest: int = limits.MAX_MEMORY_MIB
) -> int:
    """MiB, rounded up, for `16G`, `512M`, `1.5Ti`, `4000` (MiB). All units are powers of 1,024, as in sbatch."""
    size = _BYTES.fullmatch(text)
    if not size:
        refuse(field, text, "write 16G, 512M, 1.5T or 4000 (MiB)")
    number, unit, suffix = size.groups()
    if suffix and not unit:
        refuse(field, text, "write 16G, 512M, 1.5T or 4000 (MiB)")
    power = _POWER[unit.lower()] if unit else 2
    memory_mib = math.ceil(Decimal(number) * 1_024**power / 1_024**2)
    if not lowest <= memory_mib <= highest:
        refuse(field, text, f"from {lowest}M to {highest // 1_024}G")
    return memory_mib


def parse_storage(text: str, field: str = "storage") -> int:
    """MB (10^6 bytes), rounded up, for `500G`, `1.5T`, `2Ti`, `4000` (MB). `Gi` and its kind are powers of 1,024."""
    size = _BYTES.fullmatch(text)
    if not size or (size[3] and not size[2]):
        refuse(field, text, "write 500G, 1.5T, 2Ti or 4000 (MB)")
    number, unit, suffix = size.groups()
    power = _POWER[unit.lower()] if unit else 2
    base = 1_024 if suffix.lower().startswith("i") else 1_000
    storage_mb = math.ceil(Decimal(number) * base**power / 1_000_000)
    if not 0 <= storage_mb <= limits.MAX_STORAGE_MB:
        refuse(field, text, f"at most {limits.MAX_STORAGE_MB // 1_000_000}T")
    return storage_mb


def parse_cpus(text: str, field: str = "cpus", lowest: int = 1, highest: int = limits.MAX_CPUS_MILLI) -> int:
    """milli-cores for `2`, `0.5` or `500m`."""
    number = Decimal(text[:-1]) if text.endswith("m") and _PLAIN.fullmatch(text[:-1]) else None
    if number is None and _DECIMAL.fullmatch(text):
        number = Decimal(text) * 1_000
    if number is None or number != int(number) or not lowest <= number <= highest:
        refuse(field, text, f"write cores such as 2, 0.5 or 500m, from {lowest}m to {highest // 1_000}")
    return int(number)


def parse_gpus(text: str, field: str = "gpus", highest: int = limits.MAX_GPUS_PER_MEMBER) -> GpuRequest:
    """Devices for `2`, `0.5` (half of one), `a100`, `a100:2`, `a100|h100:2` (either model)."""
    allowed = f"write a count from 0 to {highest}, a fraction of one such as 0.5, or MODEL:COUNT"
    models, colon, count = text.rpartition(":")
    if not colon and not text[:1].isdigit():
        models, count = text, "1"
    names = tuple(dict.fromkeys(models.split("|"))) if models else ()
    well_formed = (
        bool(text) and (models or not colon) and all(name[:1].isalnum() and ":" not in name for name in names)
    )
    if not well_formed or not _DECIMAL.fullmatch(count) or len(names) > limits.MAX_GPU_MODELS_PER_JOB:
        refuse(field, text, allowed)
    for name in names:
        check_name("GPU model", name)
    milli = Decimal(count) * 1_000
    if milli != int(milli) or not 0 <= milli <= highest * 1_000 or (milli > 1_000 and milli % 1_000):
        refuse(field, text, allowed)
    if 0 < milli < 1_000:
        return GpuRequest(1, int(milli), names)
    return GpuRequest(int(milli) // 1_000, 1_000, names if milli else ())


def parse_gres(text: str, field: str = "gres") -> tuple[GpuRequest, tuple[str, ...]]:
    """The GPUs of sbatch's `--gres=gpu:a100:2,...` and the other resources in it, which are not supported."""
    gpus, others = GpuRequest(0), []
    for item in text.removeprefix("gres:").split(","):
        kind, _, rest = item.removeprefix("gres/").partition(":")
        if kind.lower() != "gpu":
            others.append(item)
        elif gpus.gpus:
            refuse(field, text, "name gpu once; several models that will do are written a100|h100")
        else:
            gpus = parse_gpus(rest or "1", field)
    return gpus, tuple(others)


def parse_budget(text: str, field: str = "budget") -> str:
    """The decimal string itself, once it is known to be an amount of money."""
    try:
        parse_amount(text, Unit.MONEY)
    except InvalidAmount as error:
        refuse(field, text, f"{error.params['why']}; write an amount of money such as 12.50")
    return text


def parse_array(text: str, field: str = "array") -> Array:
    """Indices and throttle for `0-9%2` or `1,3,5-9:2`, sorted; `:2` is the step. Duplicates count once, as in sbatch."""
    body, percent, throttle = text.partition("%")
    allowed = f"write 0-9, 1,3,5-9:2 or 0-99%4, at most {limits.MAX_ARRAY_TASKS} tasks with indices up to {MAX_ARRAY_INDEX}"
    if len(text) > MAX_TEXT_CHARS:
        refuse(field, text, allowed)
    indices: set[int] = set()
    for item in body.split(","):
        found = _RANGE.fullmatch(item.strip())
        if not found:
            refuse(field, text, allowed)
        first = int(found[1])
        last, step = int(found[2] or first), int(found[3] or 1)
        if (
            not first <= last <= MAX_ARRAY_INDEX
            or not step
            or (last - first) // step >= limits.MAX_ARRAY_TASKS
        ):
            refuse(field, text, allowed)
        indices.update(range(first, last + 1, step))
        if len(indices) > limits.MAX_ARRAY_TASKS:
            refuse(field, text, allowed)
    most = parse_count(throttle, f"{field} throttle", 1, limits.MAX_ARRAY_TASKS) if percent else 0
    return Array(tuple(sorted(indices)), most)


def format_array(array: Array) -> str:
    """The form that `parse_array` reads back, with neighbours joined."""
    runs: list[list[int]] = []
    for index in array.indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    body = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return body + (f"%{array.throttle}" if array.throttle else "")


def parse_dependencies(text: str, field: str = "dependency") -> tuple[Dependency, ...]:
    """Edges for `afterok:12:13,afterany:prepare`: digits are a job's number, anything else a job of the same request."""
    allowed = f"write {', '.join(when.value for when in When)} as in afterok:12:13,afterany:14"
    edges: dict[Dependency, None] = {}
    if len(text) > MAX_TEXT_CHARS:
        refuse(field, text, allowed)
    for item in text.split(","):
        kind, *targets = item.strip().split(":")
        if kind not in {when.value for when in When} or not targets:
            refuse(field, item.strip(), allowed)
        for target in targets:
            edges[parse_target(target, When(kind), field)] = None
    if len(edges) > limits.MAX_DEPENDENCIES_PER_JOB:
        refuse(field, text, f"at most {limits.MAX_DEPENDENCIES_PER_JOB} jobs")
    return tuple(edges)


def parse_target(target: str, when: When = When.OK, field: str = "needs") -> Dependency:
    """One edge to a job's number or to the `ref` of a job of the same request."""
    if _PLAIN.fullmatch(target):
        return Dependency(when=when, job=parse_count(target, field, 1, MAX_JOB_ID))
    if "?" in target or not target:
        refuse(field, target, "name jobs by number or ref; alternatives (?) and delays are not supported")
    return Dependency(when=when, ref=check_name("ref", target))
