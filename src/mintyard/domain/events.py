"""Events: what happened, as outcomes. Folding them gives the state; nothing is scored or predicted again.

A tag number is never used twice, fields are only added at the end and with a default. Amounts are in smallest units.
`legs` is a flat tuple (grant, amount, grant, amount, ...): from which grants an amount is taken.
"""

from __future__ import annotations

import msgspec

from mintyard.domain.jobs.spec import JobSpec
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.tokens.authority import Block
from mintyard.domain.units import Unit


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all events."""


class HubFounded(Event, frozen=True, tag=1):
    name: str
    currency: str


class FormatRaised(Event, frozen=True, tag=2):
    format: int


class AccountOpened(Event, frozen=True, tag=3):
    account: str


class AccountMoved(Event, frozen=True, tag=4):
    """The account took a step of its life cycle."""

    account: str
    trigger: str


class GrantCreated(Event, frozen=True, tag=5):
    grant: int
    account: str
    unit: Unit
    amount: int
    priority: int
    starts_at: int
    expires_at: int
    note: str


class GrantAdjusted(Event, frozen=True, tag=6):
    grant: int
    delta: int
    priority: int
    expires_at: int


class GrantClosed(Event, frozen=True, tag=7):
    """Expired or ended: what was left (`amount`) is gone, what is held may still be settled."""

    grant: int
    trigger: str
    amount: int


class TokenRegistered(Event, frozen=True, tag=8):
    token: str
    account: str
    name: str
    expires_at: int
    parents: tuple[str, ...]


class TokenMoved(Event, frozen=True, tag=9):
    token: str
    trigger: str


class BlockRevoked(Event, frozen=True, tag=10):
    """The revocation is kept until `keep_until`, after which no token with the block can be valid."""

    block: str
    token: str
    keep_until: int


class AccountTokensRevoked(Event, frozen=True, tag=11):
    account: str
    before: int


class PricesSet(Event, frozen=True, tag=12):
    book: PriceBook


class SpecInterned(Event, frozen=True, tag=13):
    spec: int
    content: JobSpec


class MandateInterned(Event, frozen=True, tag=14):
    """Who pays and within which ceilings: what is kept of the authority under which a job was submitted."""

    mandate: int
    account: str
    blocks: tuple[Block, ...]
    digest: str


class JobAdmitted(Event, frozen=True, tag=15):
    """`waits_for` are live jobs, each with how it satisfies: (job, when, job, when, ...)."""

    job: int
    spec: int
    mandate: int
    state: str
    array_job: int = 0
    array_index: int = -1
    array_throttle: int = 0
    array_size: int = 0
    waits_for: tuple[int | str, ...] = ()


class Line(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One amount within a hold: `unit` at one account, paid by `legs`. `mask` says which of a job's resources it covers
    (bits of `ledger.prices.RESOURCES`), 0 when it isn't a job's."""

    unit: Unit
    mask: int
    amount: int
    legs: tuple[int, ...]


class HoldPlaced(Event, frozen=True, tag=16):
    """`ceilings` is flat: (block, unit, amount, ...). `book` is the price book pinned for the settlement."""

    hold: int
    account: str
    lines: tuple[Line, ...]
    ceilings: tuple[str | int, ...]
    job: int = 0
    attempt: int = 0
    book: int = 0
    expires_at: int = 0
    holder: str = ""
    note: str = ""
    limits: tuple[str | int, ...] = ()
    """(block, unit, limit, expires_at, ...) of the ceilings that are charged for the first time."""


class HoldExtended(Event, frozen=True, tag=17):
    """`lines` and `ceilings` are added."""

    hold: int
    lines: tuple[Line, ...]
    ceilings: tuple[str | int, ...]
    expires_at: int
    limits: tuple[str | int, ...] = ()


class HoldDrawn(Event, frozen=True, tag=18):
    """`spent` amounts move from held to spent: flat (grant, amount, ...); `ceilings` as in `HoldPlaced`; `units` is what
    the holder has spent in total since it was opened: flat (unit, amount, ...)."""

    hold: int
    spent: tuple[int, ...]
    ceilings: tuple[str | int, ...]
    units: tuple[str | int, ...]


class HoldClosed(Event, frozen=True, tag=19):
    """Settled, voided or expired. `spent` is drawn now in addition, `released` returns: both flat (grant, amount, ...).

    `ceilings` is flat (block, unit, spent now, released, ...). `used` is for the receipt: flat (unit, amount, ...)."""

    hold: int
    trigger: str
    spent: tuple[int, ...]
    released: tuple[int, ...]
    ceilings: tuple[str | int, ...]
    used: tuple[str | int, ...] = ()
    account: str = ""
    job: int = 0
    attempt: int = 0


class Refunded(Event, frozen=True, tag=20):
    """Given back: flat (grant, amount, ...); `ceilings` flat (block, unit, amount, ...)."""

    legs: tuple[int, ...]
    ceilings: tuple[str | int, ...]
    cause: str
    job: int = 0
    attempt: int = 0


class JobMoved(Event, frozen=True, tag=21):
    """A step of the life cycle that needs no more than its trigger (hold, release, ready, block, stop)."""

    job: int
    trigger: str
    reason: str = ""


class JobPlaced(Event, frozen=True, tag=22):
    """`placement` has (node index, bit mask of its GPUs) for each member."""

    job: int
    attempt: int
    placement: tuple[tuple[int, int], ...]


class AttemptBegan(Event, frozen=True, tag=23):
    job: int
    attempt: int
    boot: str


class UsageCounted(Event, frozen=True, tag=24):
    """Cumulative run time of one boot of the agent."""

    job: int
    attempt: int
    boot: str
    run_ms: int


class JobRequeued(Event, frozen=True, tag=25):
    """The attempt is over, the job waits for another one under a hold of its own (or held, when there is none).
    `cost` in nano-units is what it amounted to, 0 when it was refunded."""

    job: int
    attempt: int
    cause: str
    trigger: str
    retry: bool
    run_ms: int
    message: str = ""
    cost: int = 0


class JobEnded(Event, frozen=True, tag=26):
    """The job leaves the state. `run_ms` is of the last attempt; `cost` in nano-units over all attempts, refunds deducted."""

    job: int
    trigger: str
    attempt: int = 0
    exit_code: int = 0
    signal: int = 0
    run_ms: int = 0
    cpu_ms: int = 0
    peak_memory_mib: int = 0
    cost: int = 0
    message: str = ""


class JobUpdated(Event, frozen=True, tag=27):
    job: int
    spec: int


class NodeJoined(Event, frozen=True, tag=28):
    """The node takes the lowest free index of the cluster."""

    node: str
    engine: str
    cpus_milli: int
    memory_mib: int
    gpus: int
    gpu_model: str
    labels: tuple[str, ...]
    virtual: bool


class NodeChanged(Event, frozen=True, tag=29):
    node: str
    cpus_milli: int
    memory_mib: int
    gpus: int
    gpu_model: str
    labels: tuple[str, ...]
    virtual: bool


class NodeMoved(Event, frozen=True, tag=30):
    node: str
    trigger: str
    reason: str = ""


class KeyRemembered(Event, frozen=True, tag=31):
    """The reply to a request with an idempotency key; kept until `keep_until`."""

    account: str
    key: str
    digest: bytes
    reply: bytes
    keep_until: int


class DependencyMet(Event, frozen=True, tag=32):
    """One edge fewer to wait for."""

    job: int


class QueueSet(Event, frozen=True, tag=33):
    """A queue as it is from here on, new or changed."""

    queue: QueueSpec


class QueueRemoved(Event, frozen=True, tag=34):
    queue: str


class AccountLimited(Event, frozen=True, tag=35):
    """What an account and all below it may have running at once; limits that say nothing take it away."""

    account: str
    limits: Limits


AnyEvent = (
    DependencyMet
    | HubFounded
    | FormatRaised
    | AccountOpened
    | AccountMoved
    | GrantCreated
    | GrantAdjusted
    | GrantClosed
    | TokenRegistered
    | TokenMoved
    | BlockRevoked
    | AccountTokensRevoked
    | PricesSet
    | SpecInterned
    | MandateInterned
    | JobAdmitted
    | HoldPlaced
    | HoldExtended
    | HoldDrawn
    | HoldClosed
    | Refunded
    | JobMoved
    | JobPlaced
    | AttemptBegan
    | UsageCounted
    | JobRequeued
    | JobEnded
    | JobUpdated
    | NodeJoined
    | NodeChanged
    | NodeMoved
    | KeyRemembered
    | QueueSet
    | QueueRemoved
    | AccountLimited
)
