"""Errors: one root and four families, each class with its code, HTTP status, exit status, message and remedy.

*Refused* is the caller's (correct the request), *Unavailable* passes (retry), *Conflict* needs a reload, *Broken* is ours.
The same class serves the core, RFC 9457 problem details, CLI exit status and SDK exceptions; the reference page is
made from these classes. Parameters are plain JSON values, named in the message, so that a message can be translated.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar, Final

import msgspec


class Exit(IntEnum):
    """Exit status of the command line."""

    OK = 0
    JOB_FAILED = 1
    USAGE = 2
    CANCELLED = 3
    TOKEN = 4
    QUOTA = 5
    NOT_FOUND = 6
    CONFLICT = 7
    INFEASIBLE = 8
    TIMEOUT = 9
    UNAVAILABLE = 10
    VERIFICATION = 11
    FORBIDDEN = 12
    RATE_LIMITED = 13
    BROKEN = 14


class Problem(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """An error as data: what crosses processes; everything else follows from the code."""

    code: str
    params: dict[str, Any] = {}


class MintyardError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_status: ClassVar[Exit] = Exit.BROKEN
    message: ClassVar[str] = "Something went wrong."
    remedy: ClassVar[str] = "Report this with the request id."

    def __init__(self, **params: Any) -> None:
        super().__init__(params)
        self.params = params

    def __str__(self) -> str:
        return fill(self.message, self.params)

    @property
    def cure(self) -> str:
        """The remedy with its parameters filled in."""
        return fill(self.remedy, self.params)

    def problem(self) -> Problem:
        return Problem(self.code, self.params)


class _Blank(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def fill(template: str, params: dict[str, Any]) -> str:
    """`template` with `{name}` replaced; a missing parameter shows as `?`, never as another error."""
    return template.format_map(_Blank(params))


REGISTRY: Final[dict[str, type[MintyardError]]] = {}


def from_problem(problem: Problem) -> MintyardError:
    """The exception for `problem`; a code this version doesn't know becomes `Unknown` with the code kept."""
    kind = REGISTRY.get(problem.code)
    return (
        kind(**problem.params)
        if kind
        else REGISTRY["unknown"](
            reported=problem.code, **{k: v for k, v in problem.params.items() if k != "reported"}
        )
    )


def _register(cls: type[MintyardError]) -> type[MintyardError]:
    if REGISTRY.setdefault(cls.code, cls) is not cls:
        raise ValueError(f"error code {cls.code} is taken")
    return cls


class Refused(MintyardError):
    """The request can't be granted as it is."""

    def __init_subclass__(cls) -> None:
        _register(cls)


class Unavailable(MintyardError):
    """The service can't answer now; the same request may be sent again."""

    status = 503
    exit_status = Exit.UNAVAILABLE

    def __init_subclass__(cls) -> None:
        _register(cls)


class Conflict(MintyardError):
    """The thing has changed or is in another state; look at it again."""

    status = 409
    exit_status = Exit.CONFLICT

    def __init_subclass__(cls) -> None:
        _register(cls)


class Broken(MintyardError):
    """A fault of ours."""

    def __init_subclass__(cls) -> None:
        _register(cls)
