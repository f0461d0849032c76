"""Jobs after they were sent: tickets, the job as it is now, what people do to it, its log and its receipt (S1,
L8, U1, U12).

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
    """Many jobs in one request. `atomic`: all or none, and only then they may depend on each other; else each
    is admitted or refused by itself. `dry_run` answers the same and changes nothing."""

    jobs: Annotated[tuple[Job, ...], Meta(min_length=1, max_length=limits.MAX_JOBS_PER_COMMAND)]
    atomic: bool = True
    dry_run: bool = False


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted job. An array's own number is `job`, its `tasks` have the numbers after it. `cost` is the
    most that it may cost in money at list price."""

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
    """Change a job that has not started; None leaves a field as it is. A longer time limit extends the hold
    first."""

    time_limit_ms: Annotated[int, Meta(ge=1, le=limits.MAX_TIME_LIMIT_MS)] | None = None
    priority: Annotated[int, Meta(ge=0, le=limits.MAX_PRIORITY)] | None = None
    begin_at: Instant | None = None


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What one member of a job asks for, and how many members start together."""

    cpus_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    members: int
    storage_mb: int
    gpu_models: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Where one member of a job ran: the node and the indices of its GPUs there."""

    node: str
    gpus: tuple[int, ...] = ()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. `state` is starting, running, the job's final state, or the cause of its requeue; what has
    not happened is None."""

    attempt: int
    state: str
    members: tuple[Member, ...]
    run_ms: int
    cpu_ms: int
    peak_memory_mib: int
    cost: AmountOut
    placed_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """A job that this one waits for, and how it satisfies."""

    job: int
    when: str


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job, a task of an array, or an array (then `tasks` counts its tasks by state). `label` is its number as
    people write it (`12`, or `10_3` for a task). `cost` in money at list price so far; what has not happened is
    None. `attempts` are given where one job is shown."""

    job: int
    label: str
    name: str
    account: str
    state: JobState
    resources: Resources
    queue: str
    priority: int
    time_limit_ms: int
    grace_ms: int
    retries: int
    cost: AmountOut
    attempt: int = 0
    run_ms: int = 0
    cpu_ms: int = 0
    peak_memory_mib: int = 0
    reason: str = ""
    command: str = ""
    workdir: str = ""
    budget: AmountOut | None = None
    array_job: int | None = None
    array_index: int | None = None
    size: int | None = None
    throttle: int | None = None
    tasks: dict[str, int] | None = None
    waits_for: tuple[Edge, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    begin_at: str | None = None
    submitted_at: str | None = None
    queued_at: str | None = None
    placed_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    token: str = ""
    attempts: tuple[Attempt, ...] = ()
    seq: int = 0


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one stream from `offset` on; ask again from `next_offset`. `ended`: nothing more will come."""

    job: int
    attempt: int
    stream: Stream
    offset: int
    next_offset: int
    ended: bool
    data: Annotated[bytes, Meta(description="Base64.", extra_json_schema={"contentEncoding": "base64"})]


class ResourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one resource amounted to: `stock` of `unit` at `rate` an hour is `cost` in money, at list price."""

    unit: Unit
    stock: AmountOut
    rate: AmountOut
    cost: AmountOut


class ChargeLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one account paid in `unit` for `resources`. `amount` is less than `listed` only where the hold was
    less; `refunded` was given back later."""

    account: str
    unit: Unit
    resources: tuple[Unit, ...]
    listed: AmountOut
    amount: AmountOut
    refunded: AmountOut


class AttemptReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """One settled attempt: `run_ms` at the prices of book `book`, which was pinned when it was admitted."""

    attempt: int
    hold: int
    settled_at: str
    run_ms: int
    book: int
    resources: tuple[ResourceLine, ...]
    cost: AmountOut
    charges: tuple[ChargeLine, ...]
    refund_cause: str = ""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The exact bill of a job: a receipt for each settled attempt. `cost` in money at list price, refunds
    deducted; `final` when the job has ended. Charges at accounts above the caller's are left out."""

    job: int
    account: str
    state: JobState
    final: bool
    cost: AmountOut
    receipts: tuple[AttemptReceipt, ...]
    seq: int
