"""Queues, their quotas and limits on accounts on the wire (S10)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from mintyard.domain.limits import MAX_ACCOUNTS_PER_QUEUE, MAX_QUOTA
from mintyard.wire.bounds import AccountId, Name

Most = Annotated[int, Meta(ge=0, le=MAX_QUOTA)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """At most so much at once: thousandths of GPUs and of cores, MiB of memory, jobs. What is left out is not limited."""

    gpus_milli: Most | None = None
    cpus_milli: Most | None = None
    memory_mib: Most | None = None
    jobs: Most | None = None


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """So much at once."""

    gpus_milli: int = 0
    cpus_milli: int = 0
    memory_mib: int = 0
    jobs: int = 0


class SetQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue as it shall be. Queues below one parent form a cohort: each has its `nominal` quota, and may use what others leave
    of theirs, up to `borrowing` more; of its own at most `lending` is lent. A parent takes no jobs itself.

    `accounts` may submit, with all below them; without any, everybody may. With `accepts` false new jobs are refused, with
    `starts` false jobs wait."""

    queue: Name
    parent: Name = ""
    nominal: Limits = Limits()
    borrowing: Limits = Limits()
    lending: Limits = Limits()
    accounts: Annotated[tuple[AccountId, ...], Meta(max_length=MAX_ACCOUNTS_PER_QUEUE)] = ()
    accepts: bool = True
    starts: bool = True


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and how it stands: what runs in it and below it, what of that is borrowed, what it could start more (left out where
    nothing limits it), and how many jobs wait. Of `accounts` only those show that the caller reaches. `starting` tells whether it
    and all above it start jobs."""

    queue: str
    parent: str
    nominal: Limits
    borrowing: Limits
    lending: Limits
    accounts: tuple[str, ...]
    accepts: bool
    starts: bool
    starting: bool
    used: InUse
    borrowed: InUse
    available: Limits
    waiting: int


class AccountLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What an account and all below it may have running at once, in all queues, and what runs now."""

    account: str
    limits: Limits
    used: InUse
