"""Queues and limits on what runs at once: setting them, and whether a job may enter. What they mean: `scheduling.quota`."""

from __future__ import annotations

from typing import Final

import msgspec

from mintyard.domain.commands import LimitAccount, RemoveQueue, SetQueue
from mintyard.domain.errors import (
    Forbidden,
    InvalidSpec,
    LimitReached,
    NeverWithinQuota,
    NotFound,
    QueueBusy,
    QueueRefuses,
)
from mintyard.domain.events import AccountLimited, AnyEvent, QueueRemoved, QueueSet
from mintyard.domain.ids import ROOT, check_name
from mintyard.domain.jobs.spec import JobSpec
from mintyard.domain.limits import MAX_ACCOUNTS_PER_QUEUE, MAX_QUEUES, MAX_QUOTA
from mintyard.domain.replies import Done
from mintyard.domain.scheduling.quota import (
    MAX_QUEUE_DEPTH,
    NOTHING_SAID,
    RESOURCES,
    Limits,
    QueueSpec,
    need_of,
)
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.tokens.registry import reach, require

UNITS: Final = ("milli-GPUs", "milli-cores", "MiB of memory", "jobs")
"""For people, in the order of `RESOURCES`."""


def set_queue(state: State, command: SetQueue, now: int, out: list[AnyEvent]) -> Done:
    """Errors: `Forbidden`, `InvalidName`, `InvalidSpec`, `NotFound` (parent, account), `QueueBusy`, `LimitReached`."""
    _as_operator(state, command, now)
    spec, quotas = command.queue, state.quotas
    check_name("queue", spec.name)
    for field in ("nominal", "borrowing", "lending"):
        limits: Limits = getattr(spec, field)
        _check_limits(field, limits)
        if field != "nominal" and limits != NOTHING_SAID and not spec.parent:
            raise InvalidSpec(field=field, why="only a queue below a parent borrows and lends")
    if len(spec.accounts) > MAX_ACCOUNTS_PER_QUEUE:
        raise InvalidSpec(field="accounts", why=f"names at most {MAX_ACCOUNTS_PER_QUEUE}")
    for account in spec.accounts:
        reach(state, ROOT, account, active=False)
    _check_place(state, spec)
    if spec.name not in quotas.queues and len(quotas.queues) >= MAX_QUEUES:
        raise LimitReached(limit=MAX_QUEUES, what="queues")
    if quotas.queues.get(spec.name) != spec:
        out.append(QueueSet(spec))
    return Done(spec.name, "set")


def remove_queue(state: State, command: RemoveQueue, now: int, out: list[AnyEvent]) -> Done:
    """Errors: `Forbidden`, `NotFound`, `QueueBusy`."""
    _as_operator(state, command, now)
    if command.queue not in state.quotas.queues:
        raise NotFound(what="queue", name=command.queue[:128])
    if below := state.quotas.children(command.queue):
        raise QueueBusy(queue=command.queue, why=f"{', '.join(below[:3])} lies below it")
    if jobs := live_jobs(state, command.queue):
        raise QueueBusy(queue=command.queue, why=f"{jobs} jobs are in it")
    out.append(QueueRemoved(command.queue))
    return Done(command.queue, "removed")


def limit_account(state: State, command: LimitAccount, now: int, out: list[AnyEvent]) -> Done:
    """Whoever runs an account limits those below it, the platform any. Errors: `Forbidden`, `InvalidSpec`, `NotFound`."""
    within = require(state, command.authority, Scope.ACCOUNT_WRITE, now)
    account = reach(state, within, command.account, active=False)
    if account.id == within and within != ROOT:
        raise Forbidden(what="A limit on one's own account")
    _check_limits("limits", command.limits)
    known = state.quotas.accounts
    if command.limits != known.get(account.id, NOTHING_SAID):
        if account.id not in known and len(known) >= MAX_QUEUES:
            raise LimitReached(limit=MAX_QUEUES, what="limits on accounts")
        out.append(AccountLimited(account.id, command.limits))
    return Done(account.id, "limited")


def live_jobs(state: State, queue: str) -> int:
    return sum(entry.count for entry in state.specs.values() if entry.content.queue == queue)


def check_entry(state: State, content: JobSpec, account: str) -> None:
    """Whether a job of an account may be submitted to its queue. With no queue set, any name will do.

    Errors: `NotFound`, `QueueRefuses`; `NeverWithinQuota` when it could not start even if nothing else ran."""
    quotas = state.quotas
    if not quotas:
        return
    if quotas.queues:
        spec = quotas.queues.get(content.queue)
        if spec is None:
            raise NotFound(what="queue", name=content.queue)
        if quotas.is_parent(spec.name):
            raise QueueRefuses(queue=spec.name, why="it is the parent of others, which take the jobs")
        for level in quotas.path(spec.name):
            if not level.accepts:
                raise QueueRefuses(queue=spec.name, why="no new jobs are accepted")
            if not level.admits(account):
                raise QueueRefuses(queue=spec.name, why=f"it is not open to {account}")
    most, limits = quotas.most(content.queue, account)
    for index, asked in enumerate(need_of(content.shape)):
        if asked > most[index]:
            raise NeverWithinQuota(limit=limits[index], most=most[index], unit=UNITS[index], asked=asked)


def _as_operator(state: State, command: SetQueue | RemoveQueue, now: int) -> None:
    if require(state, command.authority, Scope.QUEUE_WRITE, now) != ROOT:
        raise Forbidden(what="A queue")


def _check_limits(field: str, limits: Limits) -> None:
    for name, value in zip(RESOURCES, msgspec.structs.astuple(limits), strict=True):
        if value is not None and not 0 <= value <= MAX_QUOTA:
            raise InvalidSpec(field=f"{field}.{name}", why=f"{value} is not within 0 and {MAX_QUOTA}")


def _check_place(state: State, spec: QueueSpec) -> None:
    """The parent is there, is not below the queue itself, takes no jobs of its own, and no path gets too long."""
    quotas = state.quotas
    if not spec.parent:
        above: list[str] = []
    else:
        if spec.parent not in quotas.queues:
            raise NotFound(what="queue", name=spec.parent[:128])
        above = [level.name for level in quotas.path(spec.parent)]
        if spec.name in above:
            raise InvalidSpec(field="parent", why=f"{spec.parent} lies below {spec.name}")
        if jobs := live_jobs(state, spec.parent):
            raise QueueBusy(queue=spec.parent, why=f"{jobs} jobs are in it, so it can't become a parent")
    if len(above) + 1 + quotas.height(spec.name) > MAX_QUEUE_DEPTH:
        raise InvalidSpec(field="parent", why=f"queues lie at most {MAX_QUEUE_DEPTH} deep")
