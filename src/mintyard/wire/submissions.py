"""Jobs after they were sent: tickets, the job as it is now, what people do to it, its log and its receipt (S1, L8, U1, U12).

`jobs` has the request itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mintyard.domain import limits
from mintyard.domain.units import Unit
from mintyard.wire.bounds import MAX_NUMBER, AmountOut, Instant, Note, Number
from mintyard.wire.jobs import Job
from mintyard.wire.pages import Change
from mintyard.wire.problems import ProblemDetails

JobState = Literal[
    "submitted",
    "blocked",
    "held",
    "pending",
    "starting",
    "running",
    "stopping",
    "succeeded",
    "failed",
    "timed_out",
    "cancelled",
    "skipped",
]
ENDED: tuple[str, ...] = ("succeeded", "failed", "timed_out", "cancelled", "skipped")
"""States that a job never leaves."""
Verb = Literal["cancel", "hold", "release", "requeue"]
Stream = Literal["stdout", "stderr"]


class SubmitBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Many jobs in one request. `atomic`: all or none, and only then they may depend on each other; else each is admitted or
    refused by itself. `dry_run` answers the same and changes nothing."""

    jobs: Annotated[tuple[Job, ...], Meta(min_length=1, max_length=limits.MAX_JOBS_PER_COMMAND)]
    atomic: bool = True
    dry_run: bool = False


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted job. An array's own number is `job`, its `tasks` have the numbers after it. `cost` is the most that it may
    cost in money at list price."""

    job: Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
    state: JobState
    tasks: int
    cost: AmountOut
    seq: int


class BatchLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one job of a batch: its ticket, or why it was refused."""

    ticket: Ticket | None = None
    problem: ProblemDetails | None = None


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One line per job of the request, in its order."""

    lines: tuple[BatchLine, ...]
    admitted: int
    refused: int
    seq: int


class ControlJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`reason` is kept with the job."""

    reason: Note = ""


class ControlJobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Do the same to many jobs; an array's number stands for its live tasks."""

    verb: Verb
    jobs: Annotated[tuple[Number, ...], Meta(min_length=1, max_length=limits.MAX_JOBS_PER_COMMAND)]
    reason: Note = ""


class ControlLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one job of a `ControlJobs`."""

    change: Change | None = None
    problem: ProblemDetails | None = None


class ControlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One line per job, arrays taken apart into their live tasks."""

    lines: tuple[ControlLine, ...]
    seq: int


class UpdateJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change a job that has not started; None leaves a field as it is. A longer time limit extends the hold first."""

    time_limit_ms: Annotated[int, Meta(ge=1, le=limits.MAX_TIME_LIMIT_MS)] | None = None
    priority: Annotated[int, Meta(ge=0, le=limits.MAX_PRIORITY)] | None = None
    begin_at: Instant | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is at `seq`. Resources are those of one member. `cost` in money so far; what has not happened is None."""

    job: int
    name: str
    account: str
    state: JobState
    reason: str = ""
    message: str = ""
    queue: str = "default"
    priority: int = limits.DEFAULT_PRIORITY
    array_job: int | None = None
    array_index: int | None = None
    attempt: int = 0
    nodes: tuple[str, ...] = ()
    cpus_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_milli: int = 1_000
    gpu_models: tuple[str, ...] = ()
    members: int = 1
    storage_mb: int = 0
    time_limit_ms: int = 0
    begin_at: str | None = None
    submitted_at: str | None = None
    placed_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    run_ms: int | None = None
    cpu_ms: int | None = None
    peak_memory_mib: int | None = None
    cost: AmountOut | None = None


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one stream from `offset` on; ask again from `next_offset`. `ended`: nothing more will come."""

    job: int
    attempt: int
    stream: Stream
    offset: int
    next_offset: int
    ended: bool
    data: Annotated[bytes, Meta(description="Base64.", extra_json_schema={"contentEncoding": "base64"})]


class ReceiptLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one account paid for one attempt, in one unit: held at first, spent in the end, the rest released."""

    account: str
    unit: Unit
    held: AmountOut
    spent: AmountOut
    released: AmountOut
    refunded: AmountOut
    attempt: int = 0


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The exact bill of a job or of a hold placed by hand. `cost` in money at list price, refunds deducted; `final` says
    that nothing will be added; `used` is what was counted, in the unit of each stock."""

    account: str
    final: bool
    cost: AmountOut
    currency: str
    lines: tuple[ReceiptLine, ...]
    used: dict[Unit, AmountOut] = {}
    job: int | None = None
    hold: int | None = None
    run_ms: int | None = None
    closed_at: str | None = None
    seq: int = 0
