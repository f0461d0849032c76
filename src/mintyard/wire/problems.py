"""Problems: errors over HTTP (RFC 9457), made from the error classes and turned back into them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from mintyard.domain.errors import MintyardError, Problem, from_problem

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:mintyard:error:"
MAX_PROBLEM_BYTES: Final = 1_048_576


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True):
    """An error. `code` and `params` are stable and can be translated, `detail` and `remedy` are for people, `instance` is
    the id of the request."""

    type: Annotated[str, Meta(examples=["urn:mintyard:error:quota_exhausted"])]
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    code: Annotated[str, Meta(examples=["quota_exhausted"])]
    params: dict[str, Any] = {}
    remedy: str = ""
    instance: str = ""


def details_of(error: MintyardError, instance: str = "") -> ProblemDetails:
    """The problem document of `error`."""
    return ProblemDetails(
        type=TYPE_PREFIX + error.code,
        title=error.code.replace("_", " ").capitalize(),
        status=error.status,
        detail=str(error),
        code=error.code,
        params=error.params,
        remedy=error.cure,
        instance=instance,
    )


def details_of_problem(problem: Problem, instance: str = "") -> ProblemDetails:
    return details_of(from_problem(problem), instance)


def error_of(details: ProblemDetails) -> MintyardError:
    """The exception that the hub raised; a code this version doesn't know becomes `Unknown`."""
    return from_problem(Problem(details.code, details.params))
