"""Queues, their quotas and limits on accounts over REST (S10)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mintyard.api.answers import Answer
from mintyard.api.call import Call
from mintyard.api.parameters import MIN_SEQ
from mintyard.api.resources.accounts import change
from mintyard.api.routes import Table, changed, shown
from mintyard.app import questions
from mintyard.domain import commands
from mintyard.domain.errors import Forbidden, InvalidName, InvalidSpec, LimitReached, NotFound, QueueBusy
from mintyard.domain.ids import is_within
from mintyard.domain.scheduling.quota import RESOURCES, QueueSpec, QueueStanding
from mintyard.domain.scheduling.quota import Limits as Amounts
from mintyard.domain.tokens.authority import Scope
from mintyard.wire import queues as wire
from mintyard.wire.pages import Change, Page

QUEUES = Table("queues")


def amounts_of(limits: wire.Limits) -> Amounts:
    return Amounts(*msgspec.structs.astuple(limits))


def limits_of(amounts: Amounts) -> wire.Limits:
    return wire.Limits(**msgspec.structs.asdict(amounts))


def _in_use(amounts: Sequence[int]) -> wire.InUse:
    return wire.InUse(**dict(zip(RESOURCES, amounts, strict=True)))


def queue_of(found: QueueStanding, within: str) -> wire.Queue:
    """As a caller who reaches `within` may see it: accounts of others don't show."""
    spec = found.spec
    available = {name: amount for name, amount in zip(RESOURCES, found.available, strict=True) if amount >= 0}
    return wire.Queue(
        queue=spec.name,
        parent=spec.parent,
        nominal=limits_of(spec.nominal),
        borrowing=limits_of(spec.borrowing),
        lending=limits_of(spec.lending),
        accounts=tuple(one for one in spec.accounts if is_within(one, within) or is_within(within, one)),
        accepts=spec.accepts,
        starts=spec.starts,
        starting=found.starts,
        used=_in_use(found.used),
        borrowed=_in_use(found.borrowed),
        available=wire.Limits(**available),
        waiting=found.waiting,
    )


async def _standing(call: Call) -> questions.Queues:
    latest = max(call.min_seq, call.services.feed.durable_seq)
    found = await call.services.link.ask(questions.ListQueues(call.within, latest))
    assert isinstance(found, questions.Queues)
    return found


@QUEUES.add("GET", "/queues", "List queues", answer=Page[wire.Queue], query=(MIN_SEQ,), scope=Scope.NODE_READ)
async def list_queues(call: Call) -> Answer:
    """All queues by name, at most a thousand. Whoever may read nodes sees how much is in use, not by whom."""
    found = await _standing(call)
    return shown(Page[wire.Queue](items=tuple(queue_of(one, call.within) for one in found.queues)), found.seq)


@QUEUES.add(
    "GET",
    "/queues/{queue}",
    "Show a queue",
    answer=wire.Queue,
    query=(MIN_SEQ,),
    scope=Scope.NODE_READ,
    refusals=(NotFound,),
)
async def show_queue(call: Call) -> Answer:
    found = await _standing(call)
    for one in found.queues:
        if one.spec.name == call.path["queue"]:
            return shown(queue_of(one, call.within), found.seq)
    raise NotFound(what="queue", name=call.path["queue"])


@QUEUES.add(
    "POST",
    "/queues",
    "Make a queue, or change all of one",
    body=wire.SetQueue,
    answer=Change,
    scope=Scope.QUEUE_WRITE,
    refusals=(Forbidden, InvalidName, InvalidSpec, LimitReached, NotFound, QueueBusy),
)
async def set_queue(call: Call, body: wire.SetQueue) -> Answer:
    """From the first queue on, jobs must name one that is there; before, any name will do."""
    spec = QueueSpec(
        body.queue,
        body.parent,
        amounts_of(body.nominal),
        amounts_of(body.borrowing),
        amounts_of(body.lending),
        body.accounts,
        body.accepts,
        body.starts,
    )
    answer = await call.send(commands.SetQueue(call.bearer, spec, call.key))
    return changed(call, answer, change(answer))


@QUEUES.add(
    "POST",
    "/queues/{queue}/remove",
    "Remove a queue without jobs",
    answer=Change,
    scope=Scope.QUEUE_WRITE,
    refusals=(Forbidden, NotFound, QueueBusy),
)
async def remove_queue(call: Call) -> Answer:
    answer = await call.send(commands.RemoveQueue(call.bearer, call.path["queue"], call.key))
    return changed(call, answer, change(answer))


@QUEUES.add(
    "GET",
    "/limits",
    "List limits on accounts",
    answer=Page[wire.AccountLimit],
    query=(MIN_SEQ,),
    scope=Scope.ACCOUNT_READ,
)
async def list_limits(call: Call) -> Answer:
    """Of the caller's account and those below it."""
    found = await _standing(call)
    items = tuple(
        wire.AccountLimit(account=one.account, limits=limits_of(one.limits), used=_in_use(one.used))
        for one in found.limits
    )
    return shown(Page[wire.AccountLimit](items=items), found.seq)


@QUEUES.add(
    "POST",
    "/accounts/{account}/limits",
    "Limit what an account may have running at once",
    body=wire.Limits,
    answer=Change,
    scope=Scope.ACCOUNT_WRITE,
    refusals=(Forbidden, InvalidSpec, LimitReached, NotFound),
)
async def limit_account(call: Call, body: wire.Limits) -> Answer:
    """It binds all below the account, in every queue, and replaces an earlier one; an empty one takes it away."""
    command = commands.LimitAccount(call.bearer, call.path["account"], amounts_of(body), call.key)
    answer = await call.send(command)
    return changed(call, answer, change(answer))
