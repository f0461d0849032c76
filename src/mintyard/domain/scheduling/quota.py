"""Queue quotas: how much may run at once, by queue with borrowing in cohorts, and by account.

A queue has a *nominal* quota of each resource. Queues below one parent form a cohort: what one leaves unused another may borrow,
as far as its *borrowing* limit goes and the other's *lending* limit lets it; cohorts nest. Definitions and formulas are those of
Kueue's hierarchical cohorts (kubernetes-sigs/kueue, KEP-79). A limit on an account binds everything below it, whatever the queue.

Quotas are of what runs now; what may be used up over time are grants (see `ledger`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from mintyard.domain.ids import is_within
from mintyard.domain.jobs.spec import Shape

RESOURCES: Final = ("gpus_milli", "cpus_milli", "memory_mib", "jobs")
NO_LIMIT: Final = 1 << 50
"""More than all nodes have, and so little that a thousand of it don't leave 63 bits."""
MAX_QUEUE_DEPTH: Final = 5


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """Of each resource: milli-GPU, milli-cores, MiB, and how many jobs. None says nothing of it."""

    gpus_milli: int | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    jobs: int | None = None

    def row(self, otherwise: int) -> list[int]:
        """In the order of `RESOURCES`, `otherwise` where it says nothing."""
        return [otherwise if one is None else one for one in msgspec.structs.astuple(self)]


NOTHING_SAID: Final = Limits()


class QueueSpec(msgspec.Struct, frozen=True, array_like=True):
    """One queue. A resource of which no queue of a tree has a nominal quota is not limited there; where some have, a queue that
    says nothing has none of its own. `borrowing` and `lending` None: as much as there is.

    `accounts`: who may submit (each with all below it), empty for everybody. Not `accepts`: new jobs are refused; not `starts`:
    jobs wait."""

    name: str
    parent: str = ""
    nominal: Limits = NOTHING_SAID
    borrowing: Limits = NOTHING_SAID
    lending: Limits = NOTHING_SAID
    accounts: tuple[str, ...] = ()
    accepts: bool = True
    starts: bool = True

    def admits(self, account: str) -> bool:
        return not self.accounts or any(is_within(account, above) for above in self.accounts)


class QueueStanding(msgspec.Struct, frozen=True):
    """A queue now, amounts in the order of `quota.RESOURCES`: what runs in it and below it, what of that is borrowed, and what it
    could start more, -1 where nothing limits it."""

    spec: QueueSpec
    used: tuple[int, ...]
    borrowed: tuple[int, ...]
    available: tuple[int, ...]
    starts: bool
    """Whether it and all above it do."""
    waiting: int = 0


class LimitStanding(msgspec.Struct, frozen=True):
    """A limit on an account now."""

    account: str
    limits: Limits
    used: tuple[int, ...]


def need_of(shape: Shape) -> tuple[int, int, int, int]:
    """What one job counts at its queue, all members together."""
    members = shape.members
    return (shape.gpus_milli * members, shape.cpus_milli * members, shape.memory_mib * members, 1)
