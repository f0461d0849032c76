"""Queries about accounts, grants, holds, statements and prices, each bounded to the caller's subtree in the query itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, func, literal_column, select

from mintyard.app.read_model import schema
from mintyard.app.read_model.database import ReadModel
from mintyard.app.read_model.paging import Paging
from mintyard.app.read_model.reach import check_text, newest_first, reachable, subtree
from mintyard.app.read_model.rows import AccountRow, GrantRow, HoldRow, PostingRow, PriceRow
from mintyard.app.read_model.views import (
    AccountView,
    Balance,
    GrantView,
    HoldLine,
    HoldView,
    Page,
    PriceView,
    Statement,
    StatementLine,
    Totals,
    TotalsLine,
)
from mintyard.domain.errors import InvalidRequest, NotFound
from mintyard.domain.ids import ROOT, is_within
from mintyard.domain.ledger.book import LEDGER_ACCOUNTS
from mintyard.domain.lifecycle import ACCOUNT, GRANT, HOLD
from mintyard.domain.units import Unit

_HALF: Final = 2**31
_SOURCES: Final = ("issued", "refunds")
"""Ledger accounts that feed a grant: what left them is what was granted or refunded."""
_END: Final = 2**63 - 1
_lines_decoder = msgspec.json.Decoder(tuple[HoldLine, ...])
_amounts_decoder = msgspec.json.Decoder(dict[Unit, int])
_models_decoder = msgspec.json.Decoder(dict[str, int])
Sums = dict[tuple[str, str], int]
"""What moved in sum, by (debit, credit)."""


# --- accounts and grants --------------------------------------------------------------------------------------------


def list_accounts(
    model: ReadModel,
    within: str,
    *,
    below: str = "",
    state: str = "",
    after: str = "",
    rows: int | None = None,
    min_seq: int = 0,
) -> Page[AccountView]:
    """Accounts by id, each before those below it; `below` narrows to a subtree."""
    root = reachable(below, within)
    accounts = schema.accounts.c
    paging = Paging(("accounts", within, below, state), after, rows)
    conditions = [subtree(accounts.id, root), paging.after(accounts.id)]
    if state:
        conditions.append(accounts.state == _known(state, ACCOUNT.states, "an account"))
    query = _where(select(schema.accounts), conditions).order_by(accounts.id).limit(paging.rows + 1)
    with model.read(min_seq) as (connection, cursor):
        found = [AccountRow(*row) for row in connection.execute(query)]
        balances = _balances(connection, [row.id for row in found[: paging.rows]])
        page = paging.page(found, lambda row: (row.id,), cursor.seq)
        return Page(tuple(_account_view(row, balances[row.id]) for row in page.rows), page.next, page.seq)


def show_account(model: ReadModel, within: str, account: str, *, min_seq: int = 0) -> AccountView:
    """One account with its balances."""
    with model.read(min_seq) as (connection, _):
        row = _account(connection, within, account)
        return _account_view(row, _balances(connection, [row.id])[row.id])


def _account(connection: Connection, within: str, account: str) -> AccountRow:
    wanted = reachable(account, within)
    row = connection.execute(select(schema.accounts).where(schema.accounts.c.id == wanted)).one_or_none()
    if row is None:
        raise NotFound(what="account", name=wanted)
    return AccountRow(*row)


def _account_view(row: AccountRow, balances: dict[Unit, Balance]) -> AccountView:
    return AccountView(
        row.id, row.parent, row.state, row.opened_at, tuple(balances[u] for u in Unit if u in balances)
    )


def _balances(connection: Connection, accounts: Sequence[str]) -> defaultdict[str, dict[Unit, Balance]]:
    """By account and unit, the sums over grants; added here since they may pass 64 bits."""
    found: defaultdict[str, dict[Unit, Balance]] = defaultdict(dict)
    if accounts:
        query = select(schema.grants).where(schema.grants.c.account.in_(accounts))
        for row in connection.execute(query):
            grant = GrantRow(*row)
            add_to(found[grant.account], balance_of(grant))
    return found


def balance_of(grant: GrantRow) -> Balance:
    return Balance(
        Unit(grant.unit), grant.granted, grant.refunded, grant.left, grant.held, grant.spent, grant.expired
    )


def add_to(sums: dict[Unit, Balance], more: Balance) -> None:
    known = sums.get(more.unit)
    if known is None:
        sums[more.unit] = more
        return
    sums[more.unit] = Balance(
        more.unit,
        known.granted + more.granted,
        known.refunded + more.refunded,
        known.left + more.left,
        known.held + more.held,
        known.spent + more.spent,
        known.expired + more.expired,
    )


def list_grants(
    model: ReadModel,
    within: str,
    *,
    account: str = "",
    unit: Unit | None = None,
    state: str = "",
    after: str = "",
    rows: int | None = None,
    min_seq: int = 0,
) -> Page[GrantView]:
    """Grants to an account and those below it, by number."""
    root = reachable(account, within)
    grants = schema.grants.c
    paging = Paging(("grants", within, account, unit, state), after, rows)
    conditions = [subtree(grants.account, root), paging.after(grants.id)]
    if unit is not None:
        conditions.append(grants.unit == unit.value)
    if state:
        conditions.append(grants.state == _known(state, GRANT.states, "a grant"))
    query = _where(select(schema.grants), conditions).order_by(grants.id).limit(paging.rows + 1)
    with model.read(min_seq) as (connection, cursor):
        found = [_grant_view(GrantRow(*row)) for row in connection.execute(query)]
        return paging.page(found, lambda grant: (grant.grant,), cursor.seq)


def show_grant(model: ReadModel, within: str, grant: int, *, min_seq: int = 0) -> GrantView:
    """One grant of the caller's subtree."""
    query = select(schema.grants).where(schema.grants.c.id == _number(grant))
    with model.read(min_seq) as (connection, _):
        row = connection.execute(query).one_or_none()
        if row is None or not is_within(row.account, within):
            raise NotFound(what="grant", name=str(grant))
        return _grant_view(GrantRow(*row))


def _grant_view(row: GrantRow) -> GrantView:
    return GrantView(
        row.id,
        row.account,
        row.state,
        row.priority,
        row.starts_at,
        row.expires_at,
        row.note,
        row.created_at,
        row.closed_at,
        balance_of(row),
    )


# --- holds ----------------------------------------------------------------------------------------------------------


def list_holds(
    model: ReadModel,
    within: str,
    *,
    account: str = "",
    state: str = "held",
    job: int | None = None,
    after: str = "",
    rows: int | None = None,
    min_seq: int = 0,
) -> Page[HoldView]:
    """Holds placed for an account and those below it, the newest first; `state` empty lists closed ones as well. `job` 0
    lists those that are not a job's (escrows and holds by hand)."""
    root = reachable(account, within)
    holds = schema.holds.c
    paging = Paging(("holds", within, account, state, job), after, rows)
    conditions: list[ColumnElement[bool]] = []
    if (behind := paging.after(holds.id, descending=True)) is not None:
        conditions.append(behind)
    if state == HOLD.initial:
        conditions.append(holds.state == literal_column(f"'{HOLD.initial}'"))  # as the partial index has it
    elif state:
        conditions.append(holds.state == _known(state, HOLD.states, "a hold"))
    if job is not None:
        conditions.append(holds.job == _number(job))
    with model.read(min_seq) as (connection, cursor):
        page = newest_first(connection, schema.holds, root, paging.rows + 1, conditions)
        query = select(schema.holds).where(page).order_by(holds.id.desc())
        found = [_hold_view(HoldRow(*row), within) for row in connection.execute(query)]
        return paging.page(found, lambda hold: (hold.hold,), cursor.seq)


def show_hold(model: ReadModel, within: str, hold: int, *, min_seq: int = 0) -> HoldView:
    """One hold of the caller's subtree; its lines at accounts above the caller's are left out."""
    query = select(schema.holds).where(schema.holds.c.id == _number(hold))
    with model.read(min_seq) as (connection, _):
        row = connection.execute(query).one_or_none()
        if row is None or not is_within(row.account, within):
            raise NotFound(what="hold", name=str(hold))
        return _hold_view(HoldRow(*row), within)


def _hold_view(row: HoldRow, within: str) -> HoldView:
    return HoldView(
        row.id,
        row.account,
        row.state,
        tuple(line for line in _lines_decoder.decode(row.lines) if is_within(line.account, within)),
        _amounts_decoder.decode(row.drawn),
        _amounts_decoder.decode(row.used),
        row.job,
        row.attempt,
        row.book,
        row.holder,
        row.note,
        row.placed_at,
        row.expires_at,
        row.closed_at,
    )


# --- statements and totals ------------------------------------------------------------------------------------------


def statement(
    model: ReadModel,
    within: str,
    account: str,
    unit: Unit,
    *,
    since: int = 0,
    until: int = _END,
    after: str = "",
    rows: int | None = None,
    min_seq: int = 0,
) -> Statement:
    """What moved at one account in one unit in [`since`, `until`) ns, with the running balance."""
    if not 0 <= since <= until <= _END:
        raise InvalidRequest(why="a statement's times are ns with since <= until")
    postings = schema.postings.c
    paging = Paging(("statement", within, account, unit, since, until), after, rows)
    behind = paging.after(postings.seq, postings.ordinal)
    with model.read(min_seq) as (connection, cursor):
        owner = _account(connection, within, account).id
        here = (postings.account == owner) & (postings.unit == unit.value)
        shown = _where(
            select(schema.postings).where(here, postings.at >= since, postings.at < until), [behind]
        )
        shown = shown.order_by(postings.seq, postings.ordinal).limit(paging.rows + 1)
        found = [PostingRow(*row) for row in connection.execute(shown)]
        before: ColumnElement[bool] = postings.at < since
        if behind is not None:
            seq, ordinal = paging.key
            before = (postings.seq < seq) | ((postings.seq == seq) & (postings.ordinal <= ordinal))
        first = behind is None and since == 0
        opening = Balance(unit) if first else balance_from(unit, _sums(connection, here & before))
        page = paging.page(found, lambda row: (row.seq, row.ordinal), cursor.seq)
    lines, closing = running(opening, page.rows)
    return Statement(owner, unit, since, until, opening, lines, closing, page.next, page.seq)


def _sums(connection: Connection, condition: ColumnElement[bool]) -> Sums:
    """Exact sums by (debit, credit): high and low parts apart, since a sum of few postings may pass 64 bits."""
    postings = schema.postings.c
    high = func.sum(postings.amount // _HALF)
    low = func.sum(postings.amount % _HALF)
    query = select(postings.debit, postings.credit, high, low).where(condition)
    return {
        (debit, credit): int(top) * _HALF + int(rest)
        for debit, credit, top, rest in connection.execute(query.group_by(postings.debit, postings.credit))
    }


def balance_from(unit: Unit, sums: Sums) -> Balance:
    """The balance that movements add up to, from zero."""
    net: dict[str, int] = dict.fromkeys(LEDGER_ACCOUNTS, 0)
    for (debit, credit), amount in sums.items():
        net[debit] -= amount
        net[credit] += amount
    return Balance(
        unit, -net["issued"], -net["refunds"], net["left"], net["held"], net["spent"], net["expired"]
    )


def running(opening: Balance, rows: Iterable[PostingRow]) -> tuple[tuple[StatementLine, ...], Balance]:
    """The lines with the account's balance after each, and the balance at the end."""
    now: dict[str, int] = {name: getattr(opening, name) for name in LEDGER_ACCOUNTS[len(_SOURCES) :]}
    now |= {"issued": -opening.granted, "refunds": -opening.refunded}
    lines: list[StatementLine] = []
    for row in rows:
        now[row.debit] -= row.amount
        now[row.credit] += row.amount
        lines.append(
            StatementLine(
                row.seq,
                row.ordinal,
                row.at,
                row.cause,
                row.debit,
                row.credit,
                row.amount,
                row.grant,
                row.hold,
                row.job,
                row.attempt,
                now["left"],
                now["held"],
                now["spent"],
            )
        )
    closing = Balance(
        opening.unit,
        -now["issued"],
        -now["refunds"],
        now["left"],
        now["held"],
        now["spent"],
        now["expired"],
    )
    return tuple(lines), closing


def totals(model: ReadModel, within: str = ROOT, *, min_seq: int = 0) -> Totals:
    """Whether granted + refunded = spent + held + expired + left over a subtree in every unit, by two countings: the grants'
    balances and all postings. Reads everything: for `doctor`, the demo and tests."""
    grants, postings = schema.grants.c, schema.postings.c
    with model.read(min_seq) as (connection, cursor):
        told: dict[Unit, Balance] = {}
        for row in connection.execute(_where(select(schema.grants), [subtree(grants.account, within)])):
            add_to(told, balance_of(GrantRow(*row)))
        reach = subtree(postings.account, within)
        lines: list[TotalsLine] = []
        for unit in Unit:
            here = postings.unit == unit.value
            posted = balance_from(unit, _sums(connection, here if reach is None else here & reach))
            if unit in told or posted != Balance(unit):
                lines.append(TotalsLine(told.get(unit, Balance(unit)), posted))
        return Totals(within, tuple(lines), cursor.seq)


# --- prices ---------------------------------------------------------------------------------------------------------


def list_prices(model: ReadModel, *, min_seq: int = 0) -> tuple[PriceView, ...]:
    """All price books by number; the one in force now is marked."""
    with model.read(min_seq) as (connection, _):
        found = [
            PriceRow(*row)
            for row in connection.execute(select(schema.prices).order_by(schema.prices.c.number))
        ]
    now = model.clock()
    force = max((row.number for row in found if row.effective_from <= now), default=0)
    return tuple(
        PriceView(
            row.number,
            row.effective_from,
            row.set_at,
            row.gpu_nano,
            row.cpu_nano,
            row.memory_nano,
            row.storage_nano,
            _models_decoder.decode(row.gpu_models),
            row.number == force,
        )
        for row in found
    )


# --- inside ---------------------------------------------------------------------------------------------------------


def _where(query: Select[Any], conditions: Sequence[ColumnElement[bool] | None]) -> Select[Any]:
    return query.where(*(condition for condition in conditions if condition is not None))


def _known(state: str, states: Sequence[str], what: str) -> str:
    if state not in states:
        raise InvalidRequest(why=f"{check_text(state)!r} is no state of {what}")
    return state


def _number(value: int) -> int:
    if not 0 <= value < 2**63:
        raise InvalidRequest(why=f"{value} is out of range")
    return value
