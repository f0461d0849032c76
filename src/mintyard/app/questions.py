"""Questions to the planner and what it finds: explanations and quotes by the production planner on the tailed state."""

from __future__ import annotations

import msgspec

from mintyard.domain.errors import Problem
from mintyard.domain.jobs.spec import JobRequest
from mintyard.domain.scheduling.quota import LimitStanding, QueueStanding
from mintyard.domain.tokens.authority import Authority
from mintyard.domain.units import Unit


class ExplainJob(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Why does this job not run, what does it wait for, when may it start? `within`: the asker's account."""

    job: int
    within: str
    min_seq: int = 0


class QuoteJobs(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What may these jobs cost at most, would they be admitted now, and when would they start?"""

    authority: Authority | None
    jobs: tuple[JobRequest, ...]
    min_seq: int = 0


class CountState(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Counts for the metrics endpoint."""


class ListQueues(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """How do the queues stand, and the limits on accounts within the asker's?"""

    within: str
    min_seq: int = 0


Question = ExplainJob | QuoteJobs | CountState | ListQueues


class Explanation(msgspec.Struct, frozen=True, tag="explanation"):
    """`reason` is a code of `scheduling.reasons` or `running`; `details` are sentences with numbers, `changes` say what would
    let it start; `starts_at` is an estimate in ns, None when nothing can be said."""

    job: int
    state: str
    reason: str
    details: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    ahead: int | None = None
    starts_at: int | None = None
    seq: int = 0


class QuoteLine(msgspec.Struct, frozen=True):
    """One charge that the request would hold."""

    account: str
    unit: Unit
    amount: int
    left: int


class Quote(msgspec.Struct, frozen=True, tag="quote"):
    """`cost` in nano-units is the most that all jobs may cost at list price; `refusal` is what submitting now would answer."""

    cost: int
    currency: str
    per_job: tuple[int, ...]
    lines: tuple[QuoteLine, ...] = ()
    refusal: Problem | None = None
    starts_at: int | None = None
    reason: str = ""
    seq: int = 0


class Counts(msgspec.Struct, frozen=True, tag="counts"):
    """Live objects by state; amounts per unit over the whole hub by ledger account, as decimal
    strings of smallest units since sums have no bound."""

    seq: int
    now: int
    jobs: dict[str, int]
    nodes: dict[str, int]
    tokens: dict[str, int]
    ledger: dict[str, dict[str, str]]
    used: dict[str, int]
    total: dict[str, int]


class Queues(msgspec.Struct, frozen=True, tag="queues"):
    """By name and by account."""

    queues: tuple[QueueStanding, ...]
    limits: tuple[LimitStanding, ...]
    seq: int


Finding = Explanation | Quote | Counts | Queues
