"""Submission: what people hand to `submit` becomes `Job`s of the wire, by the readers of job files.

A field means what it means in a YAML job file: `run="python train.py"`, `gpus=2`, `time="30m"`, `memory="16G"`,
`env={"SEED": 7}`, `needs=["prepare"]`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from mintyard.domain.errors import InvalidSpec
from mintyard.domain.limits import MAX_TIME_LIMIT_MS
from mintyard.wire.jobs import Job

Work = Job | Mapping[str, Any] | Sequence[Job | Mapping[str, Any]]
"""A job of the wire, a map of job-file fields, or a list of these for one request."""
_SECOND_MS: Final = 1_000


def jobs_of(work: Work | None, fields: Mapping[str, Any]) -> list[Job]:
    """The jobs of one request. `InvalidSpec` names the field, its value and what is allowed."""
    if work is None or fields:
        if work is not None:
            raise InvalidSpec(field=next(iter(fields)), why="can't be given beside a whole job")
        if not fields:
            raise InvalidSpec(field="job", why="is missing; give run= and what it needs")
        return _read([fields])
    if isinstance(work, Job | Mapping):
        work = [work]
    if isinstance(work, str | bytes) or not isinstance(work, Sequence):
        raise InvalidSpec(
            field="job", why=f"is a {type(work).__name__}; give fields, a Job, or a list of them"
        )
    if all(isinstance(one, Job) for one in work):
        return list(work)  # pyright: ignore[reportReturnType]
    return _read(work)


def _read(work: Sequence[Job | Mapping[str, Any]]) -> list[Job]:
    # Loads the YAML reader, which a client that only looks needs not.
    from mintyard.wire.jobfile import read_fields

    now_ns = time.time_ns()
    made: list[Job] = []
    for one in work:
        if not isinstance(one, Job | Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidSpec(field="jobs", why=f"holds a {type(one).__name__}; give fields or a Job")
        made.append(one if isinstance(one, Job) else read_fields(dict(one), now_ns))
    return made


def milliseconds(value: str | float | timedelta, field: str) -> int:
    """A time limit in ms from text (`"2h"`, `"00:30:00"`), seconds or a `timedelta`."""
    if isinstance(value, str):
        from mintyard.wire.quantities import parse_duration

        return parse_duration(value, field)
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(value, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds <= MAX_TIME_LIMIT_MS / _SECOND_MS
    ):
        raise InvalidSpec(field=field, why=f"is {value}; write such as '2h', or seconds above 0")
    return max(1, round(seconds * _SECOND_MS))
