"""Ledger commands: accounts, grants, prices, holds and escrows by hand, refunds. Each decides events and changes nothing."""

from __future__ import annotations

import msgspec

from mintyard.domain.commands import (
    AdjustGrant,
    CreateGrant,
    DrawHold,
    EndGrant,
    ExtendHold,
    OpenAccount,
    PlaceHold,
    Refund,
    SetAccountState,
    SetPrices,
    SettleHold,
    VoidHold,
)
from mintyard.domain.errors import (
    AlreadyExists,
    Forbidden,
    InvalidAmount,
    InvalidName,
    InvalidSpec,
    LimitReached,
    NotAcceptableTime,
    NotFound,
    WrongResourceType,
    WrongState,
)
from mintyard.domain.events import (
    AccountMoved,
    AccountOpened,
    AnyEvent,
    GrantAdjusted,
    GrantClosed,
    GrantCreated,
    HoldClosed,
    HoldDrawn,
    HoldExtended,
    HoldPlaced,
    Line,
    PricesSet,
    Refunded,
)
from mintyard.domain.ids import ROOT, check_account_id, is_within, parent_of
from mintyard.domain.ledger.book import Account, Grant, Hold, PlanEntry, rows
from mintyard.domain.ledger.charging import (
    Draft,
    Settlement,
    draw,
    iso_time,
    settle,
    take_ceilings,
    take_line,
    take_lines,
)
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.lifecycle import ACCOUNT, GRANT
from mintyard.domain.limits import (
    MAX_ACCOUNTS,
    MAX_AMOUNT,
    MAX_ESCROW_LIFE_MS,
    MAX_GRANTS_PER_ACCOUNT_UNIT,
    MAX_NAME_CHARS,
    MAX_PRICE_BOOKS,
    MAX_RATE_NANO,
)
from mintyard.domain.replies import Done
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.tokens.registry import reach, require
from mintyard.domain.units import NS_PER_MS, Unit, format_amount


def check_amount(amount: int, unit: Unit, least: int = 0) -> None:
    if not least <= amount <= MAX_AMOUNT:
        raise InvalidAmount(
            text=format_amount(amount, unit),
            unit=unit.value,
            why="too large" if amount > 0 else "must be positive",
        )


def check_note(note: str) -> None:
    if len(note) > MAX_NAME_CHARS or not note.isprintable():
        raise InvalidName(
            what="note", name=note[:MAX_NAME_CHARS], why=f"at most {MAX_NAME_CHARS} printable characters"
        )


# --- accounts -------------------------------------------------------------------------------------------------------


def open_account(state: State, command: OpenAccount, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.ACCOUNT_WRITE, now)
    account = check_account_id(command.account)
    above = parent_of(account)
    if above is None or account == within:
        raise AlreadyExists(what="Account", name=account)
    reach(state, within, above)
    if state.account(account) is not None:
        raise AlreadyExists(what="Account", name=account)
    if len(state.ledger.accounts) >= MAX_ACCOUNTS:
        raise LimitReached(what="accounts", limit=MAX_ACCOUNTS)
    out.append(AccountOpened(account))
    return Done(account, ACCOUNT.initial)


def set_account_state(state: State, command: SetAccountState, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.ACCOUNT_WRITE, now)
    account = reach(state, within, command.account, active=False)
    if account.id == ROOT or (command.authority is not None and account.id == within):
        raise Forbidden(what=f"The state of {account.id}")
    if not ACCOUNT.allows(account.state, command.trigger):
        raise WrongState(
            what="Account",
            name=account.id,
            state=account.state,
            action=command.trigger,
            allowed=", ".join(ACCOUNT.sources(command.trigger)) or "no state",
        )
    out.append(AccountMoved(account.id, command.trigger))
    return Done(account.id, ACCOUNT.step(account.state, command.trigger))


# --- grants ---------------------------------------------------------------------------------------------------------


def create_grant(state: State, command: CreateGrant, now: int, out: list[AnyEvent]) -> Done:
    """A grant is given from above: nobody grants to the account that its own token names, save the hub's root."""
    within = require(state, command.authority, Scope.GRANT_WRITE, now)
    account = reach(state, within, command.account)
    if command.authority is not None and account.id == within != ROOT:
        raise Forbidden(what=f"The quota of {account.id}")
    check_amount(command.amount, command.unit, 1)
    check_note(command.note)
    if not 0 <= command.priority <= MAX_AMOUNT:
        raise InvalidSpec(field="priority", why="must not be negative")
    if command.starts_at < 0 or (command.expires_at and command.expires_at <= max(now, command.starts_at)):
        raise NotAcceptableTime(
            field="expiry", given=iso_time(max(command.expires_at, 0)), why="it is not after the start"
        )
    if len(account.grants.get(command.unit, ())) >= MAX_GRANTS_PER_ACCOUNT_UNIT:
        raise LimitReached(
            what=f"grants of {command.unit} to {account.id}", limit=MAX_GRANTS_PER_ACCOUNT_UNIT
        )
    number = state.ledger.next_grant
    out.append(
        GrantCreated(
            number,
            account.id,
            command.unit,
            command.amount,
            command.priority,
            command.starts_at,
            command.expires_at,
            command.note,
        )
    )
    return Done(number, GRANT.initial)


def find_grant(state: State, within: str, number: int, *, own: bool) -> Grant:
    """The grant, when it is in the caller's subtree; changing one at the caller's own account is for those above."""
    grant = state.ledger.grants.get(number)
    if grant is None or not is_within(grant.account, within):
        raise NotFound(what="grant", name=str(number))
    if not own and grant.account == within:
        raise Forbidden(what=f"Grant {number}")
    return grant


def adjust_grant(state: State, command: AdjustGrant, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.GRANT_WRITE, now)
    grant = find_grant(state, within, command.grant, own=within == ROOT)
    _check_open(grant, now, "adjust")
    check_amount(grant.granted + command.delta, grant.unit)
    if grant.left + command.delta < 0:
        raise InvalidAmount(
            text=format_amount(command.delta, grant.unit), unit=grant.unit.value, why="more than is left"
        )
    expires_at = grant.expires_at if command.expires_at is None else command.expires_at
    if expires_at and expires_at <= now:
        raise NotAcceptableTime(
            field="expiry", given=iso_time(max(expires_at, 0)), why="it is past; end the grant instead"
        )
    priority = grant.priority if command.priority is None else command.priority
    if not 0 <= priority <= MAX_AMOUNT:
        raise InvalidSpec(field="priority", why="must not be negative")
    out.append(GrantAdjusted(grant.id, command.delta, priority, expires_at))
    return Done(grant.id, grant.state)


def end_grant(state: State, command: EndGrant, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.GRANT_WRITE, now)
    grant = find_grant(state, within, command.grant, own=within == ROOT)
    _check_open(grant, now, "end")
    out.append(GrantClosed(grant.id, "end", grant.left))
    return Done(grant.id, "ended")


def _check_open(grant: Grant, now: int, action: str) -> None:
    if not GRANT.allows(grant.state, action) or (grant.expires_at and grant.expires_at <= now):
        state = grant.state if grant.state != "active" else "expired"
        raise WrongState(what="Grant", name=str(grant.id), state=state, action=action, allowed="active")


def refund(state: State, command: Refund, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.GRANT_WRITE, now)
    grant = find_grant(state, within, command.grant, own=within == ROOT)
    check_amount(command.amount, grant.unit, 1)
    check_note(command.cause)
    check_amount(grant.refunded + command.amount, grant.unit)
    if command.amount > grant.spent - grant.refunded:
        raise InvalidAmount(
            text=format_amount(command.amount, grant.unit),
            unit=grant.unit.value,
            why="more than was spent and not yet refunded",
        )
    out.append(Refunded((grant.id, command.amount), (), command.cause))
    return Done(grant.id, grant.state)


def set_prices(state: State, command: SetPrices, now: int, out: list[AnyEvent]) -> Done:
    if require(state, command.authority, Scope.PRICE_WRITE, now) != ROOT:
        raise Forbidden(what="The price book of the whole hub")
    book: PriceBook = command.book
    if book.effective_from == 0:
        book = msgspec.structs.replace(book, effective_from=now)
    rates = (book.gpu_nano, book.cpu_nano, book.memory_nano, book.storage_nano, *book.gpu_models.values())
    if not all(0 <= rate <= MAX_RATE_NANO for rate in rates):
        raise InvalidSpec(field="rate", why=f"must be within 0 and {MAX_RATE_NANO} nano-units an hour")
    if book.effective_from < now and len(state.prices) > 1:
        raise NotAcceptableTime(
            field="effective_from", given=iso_time(max(book.effective_from, 0)), why="it is past"
        )
    if len(state.prices) >= MAX_PRICE_BOOKS:
        raise LimitReached(what="price books", limit=MAX_PRICE_BOOKS)
    out.append(PricesSet(book))
    return Done(len(state.prices), "set")


# --- holds and escrows ----------------------------------------------------------------------------------------------


def _unit_entries(state: State, account: Account, amounts: dict[Unit, int]) -> list[tuple[PlanEntry, int]]:
    entries: list[tuple[PlanEntry, int]] = []
    for unit in Unit:
        amount = amounts.get(unit, 0)
        check_amount(amount, unit)
        if amount:
            plan = state.ledger.unit_plan(account, unit)
            if not plan:
                raise WrongResourceType(account=account.id, unit=unit.value)
            entries += [(entry, amount) for entry in plan]
    if not entries:
        raise InvalidAmount(text="0", unit="any unit", why="nothing is asked for")
    return entries


def _check_hold_expiry(expires_at: int, now: int) -> None:
    if not now < expires_at <= now + MAX_ESCROW_LIFE_MS * NS_PER_MS:
        raise NotAcceptableTime(
            field="expires_at",
            given=iso_time(max(expires_at, 0)),
            why=f"it must lie within {MAX_ESCROW_LIFE_MS} ms from now",
        )


def place_hold(state: State, command: PlaceHold, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.HOLD_WRITE, now)
    account = reach(state, within, command.account)
    _check_hold_expiry(command.expires_at, now)
    check_note(command.note)
    check_note(command.holder)
    draft = Draft()
    lines = take_lines(_unit_entries(state, account, command.amounts), now, draft)
    blocks = command.authority.blocks if command.authority else ()
    ceilings, limits = take_ceilings(state.ledger, blocks, command.amounts, draft, now)
    number = state.ledger.next_hold
    out.append(
        HoldPlaced(
            number,
            account.id,
            lines,
            ceilings,
            expires_at=command.expires_at,
            holder=command.holder,
            note=command.note,
            limits=limits,
        )
    )
    return Done(number, "held")


def find_hold(state: State, within: str, number: int, now: int, action: str) -> Hold:
    """An open hold by hand in the caller's subtree. A job's hold is the hub's own and can't be touched."""
    hold = state.ledger.holds.get(number)
    if hold is None or not is_within(hold.account, within):
        raise NotFound(what="open hold", name=str(number))
    if hold.job:
        raise Forbidden(what=f"The hold of job {hold.job}")
    if hold.expires_at <= now:
        raise WrongState(what="Hold", name=str(number), state="expired", action=action, allowed="held")
    return hold


def extend_hold(state: State, command: ExtendHold, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.HOLD_WRITE, now)
    hold = find_hold(state, within, command.hold, now, "extend")
    account = reach(state, within, hold.account)
    expires_at = hold.expires_at if command.expires_at is None else command.expires_at
    _check_hold_expiry(expires_at, now)
    for unit, amount in command.amounts.items():
        check_amount(amount, unit)
        if amount and all(line.unit is not unit for line in hold.lines):
            raise WrongResourceType(account=hold.account, unit=unit.value)
    plan = {
        (entry.account, unit): entry
        for unit in command.amounts
        for entry in state.ledger.unit_plan(account, unit)
    }
    draft = Draft()
    added: list[Line] = []
    for line in hold.lines:
        amount = command.amounts.get(line.unit, 0)
        at = state.ledger.grants[line.legs[0]].account
        added.append(
            take_line(plan[at, line.unit], amount, now, draft)
            if amount
            else Line(line.unit, line.mask, 0, ())
        )
    blocks = command.authority.blocks if command.authority else ()
    ceilings, limits = take_ceilings(state.ledger, blocks, command.amounts, draft, now)
    known = {(block, unit) for block, unit, _ in rows(hold.ceilings, 3)}
    if any((block, unit) not in known for block, unit, _ in rows(ceilings, 3)):
        raise Forbidden(what=f"Hold {hold.id}, placed with a wider token,")
    out.append(HoldExtended(hold.id, tuple(added), ceilings, expires_at, limits))
    return Done(hold.id, "held")


def _totals(hold: Hold, amounts: dict[Unit, int]) -> dict[Unit, int]:
    """`amounts` checked against the hold: known units, not more than held, not less than drawn already."""
    for unit, amount in amounts.items():
        check_amount(amount, unit)
        limit = max((line.amount for line in hold.lines if line.unit is unit), default=0)
        if amount > limit:
            why = f"more than the {format_amount(limit, unit)} held"
            raise InvalidAmount(text=format_amount(amount, unit), unit=unit.value, why=why)
    drawn = hold.drawn or {}
    return {unit: max(amounts.get(unit, 0), drawn.get(unit.value, 0)) for unit in Unit}


def draw_hold(state: State, command: DrawHold, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.HOLD_WRITE, now)
    hold = find_hold(state, within, command.hold, now, "draw")
    totals = _totals(hold, command.spent)
    spent, ceilings = draw(hold, totals)
    if spent:
        units = tuple(part for unit, amount in totals.items() if amount for part in (unit.value, amount))
        out.append(HoldDrawn(hold.id, spent, ceilings, units))
    return Done(hold.id, "held")


def closed(hold: Hold, trigger: str, share: Settlement, used: dict[Unit, int]) -> HoldClosed:
    return HoldClosed(
        hold.id,
        trigger,
        share.spent,
        share.released,
        share.ceilings,
        tuple(part for unit, amount in used.items() if amount for part in (unit.value, amount)),
        hold.account,
        hold.job,
        hold.attempt,
    )


def settle_hold(state: State, command: SettleHold, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.HOLD_WRITE, now)
    hold = find_hold(state, within, command.hold, now, "settle")
    totals = _totals(hold, command.used)
    out.append(closed(hold, "settle", settle(hold, totals), totals))
    return Done(hold.id, "settled")


def void_hold(state: State, command: VoidHold, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.HOLD_WRITE, now)
    hold = find_hold(state, within, command.hold, now, "void")
    totals = _totals(hold, {})
    out.append(closed(hold, "void", settle(hold, totals), totals))
    return Done(hold.id, "voided")


def expire_due(state: State, now: int, out: list[AnyEvent], limit: int = 10_000) -> None:
    """Close grants and holds whose time has come, at most `limit` a tick; what a hold releases into a grant that closes
    in the same tick expires with it."""
    draft = Draft()
    for kind, number in state.due_before(now, limit):
        if kind == "grant":
            grant = state.ledger.grants.get(number)
            if grant is not None and grant.state == "active" and 0 < grant.expires_at <= now:
                out.append(GrantClosed(number, "expire", grant.left - draft.grants.get(number, 0)))
        else:
            hold = state.ledger.holds.get(number)
            if hold is not None and 0 < hold.expires_at <= now:
                totals = _totals(hold, {})
                share = settle(hold, totals)
                draft.give(share.released)
                out.append(closed(hold, "expire", share, totals))
