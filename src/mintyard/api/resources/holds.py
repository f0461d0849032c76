"""Holds and escrows over REST (L3)."""

from __future__ import annotations

from typing import Any

from mintyard.api.answers import Answer
from mintyard.api.call import Call
from mintyard.api.pages import paged
from mintyard.api.parameters import MIN_SEQ, PAGED, choice, integer, text
from mintyard.api.resources.accounts import change
from mintyard.api.routes import Table, changed, shown
from mintyard.app.read_model import queries, views
from mintyard.domain import commands
from mintyard.domain.errors import (
    AccountClosed,
    CeilingReached,
    Forbidden,
    InvalidAmount,
    InvalidName,
    NotAcceptableTime,
    NotFound,
    QuotaExhausted,
    WrongResourceType,
    WrongState,
)
from mintyard.domain.lifecycle import HOLD
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import NS_PER_MS, Unit, format_amount
from mintyard.wire import holds as wire
from mintyard.wire.bounds import format_amounts, instant_or_none, parse_amounts
from mintyard.wire.pages import Change, Page

HOLDS = Table("holds")
_RESOURCES = (Unit.GPU, Unit.CPU, Unit.MEMORY, Unit.STORAGE)
"""The order of the bits in a line's mask (`ledger.prices.RESOURCES`)."""
_QUOTA = (QuotaExhausted, CeilingReached, WrongResourceType)
_OPEN: dict[str, Any] = {"answer": Change, "scope": Scope.HOLD_WRITE}


def units_of(mask: int) -> tuple[Unit, ...]:
    return tuple(unit for bit, unit in enumerate(_RESOURCES) if mask >> bit & 1)


def hold_of(view: views.HoldView) -> wire.Hold:
    return wire.Hold(
        hold=view.hold,
        account=view.account,
        state=view.state,  # pyright: ignore[reportArgumentType] (a state of the life cycle)
        lines=tuple(
            wire.HoldLine(
                account=line.account,
                unit=line.unit,
                amount=format_amount(line.amount, line.unit),
                resources=units_of(line.resources),
            )
            for line in view.lines
        ),
        drawn=format_amounts(view.drawn),
        used=format_amounts(view.used),
        holder=view.holder,
        note=view.note,
        job=view.job or None,
        attempt=view.attempt or None,
        placed_at=instant_or_none(view.placed_at),
        expires_at=instant_or_none(view.expires_at),
        closed_at=instant_or_none(view.closed_at),
    )


@HOLDS.add(
    "POST",
    "/holds",
    "Place a hold or an escrow",
    body=wire.PlaceHold,
    status=201,
    refusals=(NotFound, AccountClosed, InvalidAmount, InvalidName, NotAcceptableTime, *_QUOTA),
    **_OPEN,
)
async def place_hold(call: Call, body: wire.PlaceHold) -> Answer:
    """Its life counts from the instant in the Idempotency-Key when there is one, so that a repeat asks for
    the same."""
    command = commands.PlaceHold(
        call.bearer,
        body.account or call.within,
        parse_amounts(body.amounts),
        call.base + body.life_ms * NS_PER_MS,
        body.holder,
        body.note,
        call.key,
    )
    answer = await call.send(command)
    return changed(call, answer, change(answer), 201)


@HOLDS.add(
    "GET",
    "/holds",
    "List holds",
    answer=Page[wire.Hold],
    query=(
        text("account", "Only holds of this account and those below it."),
        choice(
            "state",
            "Only holds in this state; `any` lists closed ones as well.",
            (*HOLD.states, "any"),
            "held",
        ),
        integer("job", "Only the holds of this job; 0 lists those that are not a job's."),
        *PAGED,
    ),
    scope=Scope.ACCOUNT_READ,
    refusals=(NotFound,),
)
async def list_holds(call: Call) -> Answer:
    query = call.query
    found = await call.look(
        queries.list_holds,
        call.within,
        account=query["account"],
        state="" if query["state"] == "any" else query["state"],
        job=query["job"],
        after=query["cursor"],
        rows=query["limit"],
    )
    return paged(call, "/holds", found, hold_of)


@HOLDS.add(
    "GET",
    "/holds/{hold}",
    "Show a hold",
    answer=wire.Hold,
    query=(MIN_SEQ,),
    scope=Scope.ACCOUNT_READ,
    refusals=(NotFound,),
)
async def show_hold(call: Call) -> Answer:
    return shown(hold_of(await call.look(queries.show_hold, call.within, call.path["hold"])))


@HOLDS.add(
    "POST",
    "/holds/{hold}/extend",
    "Add to a hold, or let it live longer",
    body=wire.ExtendHold,
    refusals=(NotFound, Forbidden, WrongState, AccountClosed, InvalidAmount, NotAcceptableTime, *_QUOTA),
    **_OPEN,
)
async def extend_hold(call: Call, body: wire.ExtendHold) -> Answer:
    ends_at = None if body.life_ms is None else call.base + body.life_ms * NS_PER_MS
    amounts = parse_amounts(body.amounts)
    answer = await call.send(
        commands.ExtendHold(call.bearer, call.path["hold"], amounts, expires_at=ends_at, key=call.key)
    )
    return changed(call, answer, change(answer))


@HOLDS.add(
    "POST",
    "/holds/{hold}/draw",
    "Report what an escrow's holder has spent so far",
    body=wire.DrawHold,
    refusals=(NotFound, Forbidden, WrongState, InvalidAmount),
    **_OPEN,
)
async def draw_hold(call: Call, body: wire.DrawHold) -> Answer:
    """In total since it was placed: late and repeated reports do no harm."""
    spent = parse_amounts(body.spent)
    answer = await call.send(commands.DrawHold(call.bearer, call.path["hold"], spent, call.key))
    return changed(call, answer, change(answer))


@HOLDS.add(
    "POST",
    "/holds/{hold}/settle",
    "Replace a hold by what was used",
    body=wire.SettleHold,
    refusals=(NotFound, Forbidden, WrongState, InvalidAmount),
    **_OPEN,
)
async def settle_hold(call: Call, body: wire.SettleHold) -> Answer:
    used = parse_amounts(body.used)
    answer = await call.send(commands.SettleHold(call.bearer, call.path["hold"], used, call.key))
    return changed(call, answer, change(answer))


@HOLDS.add(
    "POST",
    "/holds/{hold}/void",
    "Release a hold",
    refusals=(NotFound, Forbidden, WrongState),
    **_OPEN,
)
async def void_hold(call: Call) -> Answer:
    """What an escrow has drawn stays spent."""
    answer = await call.send(commands.VoidHold(call.bearer, call.path["hold"], call.key))
    return changed(call, answer, change(answer))
