"""Accounts and grants over REST (L1, L2)."""

from __future__ import annotations

from typing import Any

from mintyard.api.answers import Answer
from mintyard.api.call import Call
from mintyard.api.pages import paged
from mintyard.api.parameters import MIN_SEQ, PAGED, choice, text
from mintyard.api.routes import Table, changed, shown
from mintyard.app.read_model import queries, views
from mintyard.domain import commands
from mintyard.domain.errors import (
    AccountClosed,
    AlreadyExists,
    Forbidden,
    InvalidAmount,
    InvalidName,
    InvalidSpec,
    LimitReached,
    NotAcceptableTime,
    NotFound,
    WrongState,
)
from mintyard.domain.lifecycle import ACCOUNT, GRANT
from mintyard.domain.replies import Done
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit, format_amount, parse_amount
from mintyard.wire import accounts as wire
from mintyard.wire.bounds import instant_or_none, parse_instant
from mintyard.wire.pages import Change, Page

ACCOUNTS = Table("accounts")
GRANTS = Table("grants")
_ACCOUNT_STATES = tuple(ACCOUNT.states)
_GRANT_STATES = tuple(GRANT.states)
_MOVES: dict[str, Any] = {
    "answer": Change,
    "scope": Scope.ACCOUNT_WRITE,
    "refusals": (NotFound, Forbidden, WrongState),
}


def change(answer: Any) -> Change:
    """What a simple command did, on the wire."""
    reply = answer.reply
    assert isinstance(reply, Done)
    return Change(ref=reply.ref, state=reply.state, seq=answer.seq)


def balance_of(balance: views.Balance) -> wire.Balance:
    unit = balance.unit
    return wire.Balance(
        unit=unit,
        granted=format_amount(balance.granted, unit),
        refunded=format_amount(balance.refunded, unit),
        left=format_amount(balance.left, unit),
        held=format_amount(balance.held, unit),
        spent=format_amount(balance.spent, unit),
        expired=format_amount(balance.expired, unit),
    )


def account_of(view: views.AccountView) -> wire.Account:
    return wire.Account(
        account=view.account,
        parent=view.parent or None,
        state=view.state,  # pyright: ignore[reportArgumentType] (a state of the life cycle)
        balances=tuple(balance_of(balance) for balance in view.balances),
        opened_at=instant_or_none(view.opened_at),
    )


@ACCOUNTS.add(
    "POST",
    "/accounts",
    "Open an account",
    body=wire.OpenAccount,
    answer=Change,
    status=201,
    scope=Scope.ACCOUNT_WRITE,
    refusals=(AlreadyExists, InvalidName, NotFound, AccountClosed, LimitReached),
)
async def open_account(call: Call, body: wire.OpenAccount) -> Answer:
    answer = await call.send(commands.OpenAccount(call.bearer, body.account, call.key))
    return changed(call, answer, change(answer), 201)


@ACCOUNTS.add(
    "GET",
    "/accounts",
    "List accounts",
    answer=Page[wire.Account],
    query=(
        text("below", "Only this account and those below it."),
        choice("state", "Only accounts in this state.", _ACCOUNT_STATES),
        *PAGED,
    ),
    scope=Scope.ACCOUNT_READ,
    refusals=(NotFound,),
)
async def list_accounts(call: Call) -> Answer:
    """The caller's account and those below it, each before those below it."""
    query = call.query
    found = await call.look(
        queries.list_accounts,
        call.within,
        below=query["below"],
        state=query["state"],
        after=query["cursor"],
        rows=query["limit"],
    )
    return paged(call, "/accounts", found, account_of)


@ACCOUNTS.add(
    "GET",
    "/accounts/{account}",
    "Show an account with its balances",
    answer=wire.Account,
    query=(MIN_SEQ,),
    scope=Scope.ACCOUNT_READ,
    refusals=(NotFound,),
)
async def show_account(call: Call) -> Answer:
    return shown(account_of(await call.look(queries.show_account, call.within, call.path["account"])))


async def _move(call: Call, trigger: str) -> Answer:
    command = commands.SetAccountState(call.bearer, call.path["account"], trigger, call.key)
    answer = await call.send(command)
    return changed(call, answer, change(answer))


@ACCOUNTS.add("POST", "/accounts/{account}/suspend", "Suspend an account and those below it", **_MOVES)
async def suspend_account(call: Call) -> Answer:
    return await _move(call, "suspend")


@ACCOUNTS.add("POST", "/accounts/{account}/resume", "Resume a suspended account", **_MOVES)
async def resume_account(call: Call) -> Answer:
    return await _move(call, "resume")


@ACCOUNTS.add("POST", "/accounts/{account}/close", "Close an account for good", **_MOVES)
async def close_account(call: Call) -> Answer:
    return await _move(call, "close")


# --- grants ---------------------------------------------------------------------------------------------------------


def grant_of(view: views.GrantView) -> wire.Grant:
    unit, balance = view.balance.unit, balance_of(view.balance)
    return wire.Grant(
        grant=view.grant,
        account=view.account,
        unit=unit,
        state=view.state,  # pyright: ignore[reportArgumentType] (a state of the life cycle)
        priority=view.priority,
        granted=balance.granted,
        refunded=balance.refunded,
        left=balance.left,
        held=balance.held,
        spent=balance.spent,
        expired=balance.expired,
        starts_at=instant_or_none(view.starts_at),
        expires_at=instant_or_none(view.expires_at),
        created_at=instant_or_none(view.created_at),
        closed_at=instant_or_none(view.closed_at),
        note=view.note,
    )


@GRANTS.add(
    "POST",
    "/grants",
    "Grant an amount to an account",
    body=wire.CreateGrant,
    answer=Change,
    status=201,
    scope=Scope.GRANT_WRITE,
    refusals=(
        NotFound, Forbidden, AccountClosed, InvalidAmount, InvalidName, InvalidSpec, NotAcceptableTime, LimitReached,
    ),
)  # fmt: skip
async def create_grant(call: Call, body: wire.CreateGrant) -> Answer:
    """A grant is given from above: nobody grants to the account that its own token names, save the hub's."""
    command = commands.CreateGrant(
        call.bearer,
        body.account,
        body.unit,
        parse_amount(body.amount, body.unit),
        body.priority,
        parse_instant(body.starts_at, "starts_at") if body.starts_at else 0,
        parse_instant(body.expires_at, "expires_at") if body.expires_at else 0,
        body.note,
        call.key,
    )
    answer = await call.send(command)
    return changed(call, answer, change(answer), 201)


@GRANTS.add(
    "GET",
    "/grants",
    "List grants",
    answer=Page[wire.Grant],
    query=(
        text("account", "Only grants to this account and those below it."),
        choice("unit", "Only grants of this unit.", tuple(Unit)),
        choice("state", "Only grants in this state.", _GRANT_STATES),
        *PAGED,
    ),
    scope=Scope.ACCOUNT_READ,
    refusals=(NotFound,),
)
async def list_grants(call: Call) -> Answer:
    query = call.query
    found = await call.look(
        queries.list_grants,
        call.within,
        account=query["account"],
        unit=Unit(query["unit"]) if query["unit"] else None,
        state=query["state"],
        after=query["cursor"],
        rows=query["limit"],
    )
    return paged(call, "/grants", found, grant_of)


@GRANTS.add(
    "GET",
    "/grants/{grant}",
    "Show a grant",
    answer=wire.Grant,
    query=(MIN_SEQ,),
    scope=Scope.ACCOUNT_READ,
    refusals=(NotFound,),
)
async def show_grant(call: Call) -> Answer:
    return shown(grant_of(await call.look(queries.show_grant, call.within, call.path["grant"])))


@GRANTS.add(
    "POST",
    "/grants/{grant}/adjust",
    "Add to a grant, take back of what is left, or change its priority or end",
    body=wire.AdjustGrant,
    answer=Change,
    scope=Scope.GRANT_WRITE,
    refusals=(NotFound, Forbidden, WrongState, InvalidAmount, InvalidSpec, NotAcceptableTime),
)
async def adjust_grant(call: Call, body: wire.AdjustGrant) -> Answer:
    if body.add is not None and body.take_back is not None:
        raise InvalidSpec(field="take_back", why="give add or take_back, not both")
    if body == wire.AdjustGrant():
        raise InvalidSpec(field="add", why="nothing is changed; give at least one field")
    delta = 0
    if body.add is not None or body.take_back is not None:
        # The unit of an amount is the grant's; the grant must be the caller's to see.
        grant = await call.look_now(queries.show_grant, call.within, call.path["grant"])
        unit = grant.balance.unit
        delta = (
            parse_amount(body.add, unit)
            if body.add is not None
            else -parse_amount(body.take_back or "", unit)
        )
    command = commands.AdjustGrant(
        call.bearer,
        call.path["grant"],
        delta,
        body.priority,
        parse_instant(body.expires_at, "expires_at") if body.expires_at else None,
        call.key,
    )
    answer = await call.send(command)
    return changed(call, answer, change(answer))


@GRANTS.add(
    "POST",
    "/grants/{grant}/end",
    "End a grant now",
    answer=Change,
    scope=Scope.GRANT_WRITE,
    refusals=(NotFound, Forbidden, WrongState),
)
async def end_grant(call: Call) -> Answer:
    """What is left expires, what is held may still be settled."""
    answer = await call.send(commands.EndGrant(call.bearer, call.path["grant"], call.key))
    return changed(call, answer, change(answer))


@GRANTS.add(
    "POST",
    "/grants/{grant}/refund",
    "Give back to a grant what was spent from it",
    body=wire.RefundGrant,
    answer=Change,
    scope=Scope.GRANT_WRITE,
    refusals=(NotFound, Forbidden, InvalidAmount, InvalidName),
)
async def refund_grant(call: Call, body: wire.RefundGrant) -> Answer:
    grant = await call.look_now(queries.show_grant, call.within, call.path["grant"])
    amount = parse_amount(body.amount, grant.balance.unit)
    answer = await call.send(commands.Refund(call.bearer, call.path["grant"], amount, body.cause, call.key))
    return changed(call, answer, change(answer))
