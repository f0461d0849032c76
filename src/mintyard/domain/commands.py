"""Commands: everything that may be asked of the core, typed and tagged. A tag number is never used twice.

`authority` is the verified credential of whoever asks; None is the hub itself (start-up, engine reports, time). No bearer
token, secret or personal name may be in a command, since commands are journaled.
"""

from __future__ import annotations

import msgspec

from mintyard.domain.jobs.reports import Report
from mintyard.domain.jobs.spec import JobRequest
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.limits import DEFAULT_PRIORITY
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.tokens.authority import Authority
from mintyard.domain.units import Unit


class Found(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Give a new hub its name (the audience that tokens name as cluster) and its currency. Once."""

    name: str
    currency: str = "USD"


class OpenAccount(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Open an account below one that exists."""

    authority: Authority | None
    account: str
    key: str = ""


class SetAccountState(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """`trigger`: suspend, resume or close (see `lifecycle.ACCOUNT`)."""

    authority: Authority | None
    account: str
    trigger: str
    key: str = ""


class CreateGrant(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Give `amount` of `unit` to an account. `expires_at` 0 is never; a lower `priority` is used up first (L2)."""

    authority: Authority | None
    account: str
    unit: Unit
    amount: int
    priority: int = DEFAULT_PRIORITY
    starts_at: int = 0
    expires_at: int = 0
    note: str = ""
    key: str = ""


class AdjustGrant(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Add `delta` (negative takes back, at most what is left); None leaves priority or expiry as it is."""

    authority: Authority | None
    grant: int
    delta: int = 0
    priority: int | None = None
    expires_at: int | None = None
    key: str = ""


class EndGrant(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """End a grant now: what is left expires, what is held may still be settled."""

    authority: Authority | None
    grant: int
    key: str = ""


class RegisterToken(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Make a newly signed token known. `token` is what it allows; it may not exceed `authority`."""

    authority: Authority | None
    token: Authority
    name: str = ""
    key: str = ""


class SetTokenState(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """`trigger`: suspend, resume or revoke a registered token, and with it all narrowed from it."""

    authority: Authority | None
    token: str
    trigger: str
    key: str = ""


class RevokeBlock(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Revoke a block (32 hex digits) of a token that the bearer narrowed, and all narrowed from it."""

    authority: Authority | None
    token: str
    block: str
    key: str = ""


class RevokeAccountTokens(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Revoke every token issued so far for an account and those below."""

    authority: Authority | None
    account: str
    key: str = ""


class SetPrices(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Add a price book; jobs admitted from its `effective_from` on use it."""

    authority: Authority | None
    book: PriceBook
    key: str = ""


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Submit jobs. `atomic`: all or none (dependencies among them need it); else each is admitted or refused by itself."""

    authority: Authority | None
    jobs: tuple[JobRequest, ...]
    atomic: bool = True
    dry_run: bool = False
    key: str = ""


class ControlJobs(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """`verb`: cancel, hold, release or requeue. `reason` is kept with the job."""

    authority: Authority | None
    verb: str
    jobs: tuple[int, ...]
    reason: str = ""
    key: str = ""


class UpdateJob(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Change a job that has not started; None leaves a field as it is. A longer time limit extends the hold."""

    authority: Authority | None
    job: int
    time_limit_ms: int | None = None
    priority: int | None = None
    begin_at: int | None = None
    key: str = ""


class PlaceHold(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Hold amounts for something that is not a job. With a `holder` it is an escrow: a slice that the holder spends without
    asking and reports in sums (`DrawHold`). It ends at `expires_at`; what was not reported by then is released."""

    authority: Authority | None
    account: str
    amounts: dict[Unit, int]
    expires_at: int
    holder: str = ""
    note: str = ""
    key: str = ""


class ExtendHold(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Add amounts, and move the expiry when `expires_at` is not None."""

    authority: Authority | None
    hold: int
    amounts: dict[Unit, int] = {}
    expires_at: int | None = None
    key: str = ""


class DrawHold(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Report what an escrow's holder has spent so far, in total since it was opened; late or repeated reports are harmless."""

    authority: Authority | None
    hold: int
    spent: dict[Unit, int]
    key: str = ""


class SettleHold(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Replace the hold by what was used in total; the rest is released."""

    authority: Authority | None
    hold: int
    used: dict[Unit, int]
    key: str = ""


class VoidHold(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Release the hold; what an escrow has drawn stays spent."""

    authority: Authority | None
    hold: int
    key: str = ""


class Refund(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Give back to a grant up to what was spent from it."""

    authority: Authority | None
    grant: int
    amount: int
    cause: str = "goodwill"
    key: str = ""


class TakeReports(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """What an engine reported."""

    engine: str
    reports: tuple[Report, ...]


class ControlNode(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """`verb`: cordon, uncordon, drain or remove."""

    authority: Authority | None
    node: str
    verb: str
    reason: str = ""
    key: str = ""


class Tick(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Time passed: expire what is due and plan one scheduling round of at most `limit` starts, nodes chosen by `policy`,
    those who don't fit reserve by `backfill`, jobs age by `order`.

    These are recorded with each tick, so that a journal replays alike when the defaults are others one day."""

    limit: int = 1024
    policy: Policy = Policy.STRANDED
    backfill: Backfill = Backfill.NODES
    order: Order = Order.AGEING


class RaiseFormat(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """From here on records may hold event kinds of `format`."""

    format: int


class SetQueue(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Make a queue, or change all of one."""

    authority: Authority | None
    queue: QueueSpec
    key: str = ""


class RemoveQueue(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Only one without queues below it and without live jobs."""

    authority: Authority | None
    queue: str
    key: str = ""


class LimitAccount(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """What an account and all below it may have running at once; limits that say nothing take it away."""

    authority: Authority | None
    account: str
    limits: Limits
    key: str = ""


Command = (
    Found
    | OpenAccount
    | SetAccountState
    | CreateGrant
    | AdjustGrant
    | EndGrant
    | RegisterToken
    | SetTokenState
    | RevokeBlock
    | RevokeAccountTokens
    | SetPrices
    | Submit
    | ControlJobs
    | UpdateJob
    | PlaceHold
    | ExtendHold
    | DrawHold
    | SettleHold
    | VoidHold
    | Refund
    | TakeReports
    | ControlNode
    | Tick
    | RaiseFormat
    | SetQueue
    | RemoveQueue
    | LimitAccount
)
