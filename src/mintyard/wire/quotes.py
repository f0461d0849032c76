"""Quotes and explanations on the wire (L8, S15): cost and start before submitting, and why a job waits."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from mintyard.domain.limits import MAX_JOBS_PER_COMMAND
from mintyard.domain.units import Unit
from mintyard.wire.bounds import AmountOut
from mintyard.wire.jobs import Job
from mintyard.wire.problems import ProblemDetails


class AskQuote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What would these jobs cost at most, would they be admitted, and when would they start?"""

    jobs: Annotated[tuple[Job, ...], Meta(min_length=1, max_length=MAX_JOBS_PER_COMMAND)]


class QuoteLine(msgspec.Struct, frozen=True, kw_only=True):
    """One charge that the request would hold, and what is left at that account before it."""

    account: str
    unit: Unit
    amount: AmountOut
    left: AmountOut


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """`cost` in money at list price over all jobs, `per_job` in the request's order; `refusal` is what submitting now would
    answer; `starts_at` is an estimate, None when nothing can be said, and `reason` then says why it would wait."""

    cost: AmountOut
    currency: str
    per_job: tuple[AmountOut, ...]
    lines: tuple[QuoteLine, ...] = ()
    refusal: ProblemDetails | None = None
    starts_at: str | None = None
    reason: str = ""
    seq: int = 0


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job does not run. `details` are sentences with numbers, `changes` say what would let it start, `ahead` is how
    many come before it."""

    job: int
    state: str
    reason: str
    details: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    ahead: int | None = None
    starts_at: str | None = None
    seq: int = 0
