"""Quotas for people: what a job is short of, and how each queue and limit stands. By the round's own tables and kernels."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling import quota_kernel
from mintyard.domain.scheduling.quota import (
    NO_LIMIT,
    RESOURCES,
    Limits,
    LimitStanding,
    QueueStanding,
    need_of,
)
from mintyard.domain.scheduling.quota_state import Quotas


class Shortage(msgspec.Struct, frozen=True):
    """A job asks for more of a resource (`quota.RESOURCES`) than a queue or an account's limit has left now."""

    queue: str
    account: str
    resource: str
    asked: int
    left: int


def shown_amount(resource: str, amount: int) -> str:
    """An amount of a resource (`quota.RESOURCES`) in words."""
    if resource == "gpus_milli":
        return f"{_plain(amount)} GPUs"
    if resource == "cpus_milli":
        return f"{_plain(amount)} cores"
    return f"{amount} MiB of memory" if resource == "memory_mib" else f"{amount} jobs"


def _plain(milli: int) -> str:
    whole, rest = divmod(milli, 1_000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def shortages(quotas: Quotas, queue: str, account: str, shape: Shape) -> list[Shortage]:
    """What a job of an account in a queue is short of now; empty when quota lets it start."""
    if not quotas:
        return []
    lane = quotas.lane(queue, account)
    tables = quotas.tables()
    row = int(tables.queue_of[lane])
    caps: list[int] = tables.caps[tables.first_cap[lane] : tables.first_cap[lane + 1]].tolist()
    names = sorted(quotas.accounts)
    found: list[Shortage] = []
    for index, asked in enumerate(need_of(shape)):
        if not asked:
            continue
        resource = RESOURCES[index]
        if row >= 0:
            left = max(0, int(quota_kernel.available(tables, row, index)))
            if left < asked:
                found.append(Shortage(queue, "", resource, asked, left))
        for cap in caps:
            left = max(0, int(tables.cap_left[cap, index]))
            if left < asked:
                found.append(Shortage("", names[cap], resource, asked, left))
    return found


def is_stopped(quotas: Quotas, queue: str) -> bool:
    """Whether a queue or one above it starts nothing."""
    return not all(level.starts for level in quotas.path(queue))


def queue_standings(quotas: Quotas, waiting: Mapping[str, int]) -> list[QueueStanding]:
    """All queues by name; `waiting` jobs by queue."""
    tables, rows = quotas.tables(), quotas.rows
    used = {name: [0] * len(RESOURCES) for name in quotas.queues}
    for lane, row in zip(quotas.lanes, quotas.used.tolist(), strict=True):
        for level in quotas.path(lane.queue):
            used[level.name] = [one + more for one, more in zip(used[level.name], row, strict=True)]
    found: list[QueueStanding] = []
    for name in sorted(quotas.queues):
        row = rows[name]
        total: list[int] = tables.total[row].tolist()
        available = [
            -1 if limit >= NO_LIMIT else max(0, int(quota_kernel.available(tables, row, index)))
            for index, limit in enumerate(total)
        ]
        borrowed: list[int] = np.maximum(0, tables.usage[row] - tables.total[row]).tolist()
        found.append(
            QueueStanding(
                quotas.queues[name],
                tuple(used[name]),
                tuple(borrowed),
                tuple(available),
                not is_stopped(quotas, name),
                waiting.get(name, 0),
            )
        )
    return found


def limit_standings(quotas: Quotas) -> list[LimitStanding]:
    """All limits on accounts, by account."""
    left = quotas.tables().cap_left
    found: list[LimitStanding] = []
    accounts: list[tuple[str, Limits]] = sorted(quotas.accounts.items())
    for row, (account, limits) in enumerate(accounts):
        used = (limit - int(left[row, index]) for index, limit in enumerate(limits.row(NO_LIMIT)))
        found.append(LimitStanding(account, limits, tuple(used)))
    return found
