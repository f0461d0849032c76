"""Reach: what a caller may see, as conditions of a query. An account sees itself and what lies below it."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table, or_, select, union_all
from sqlalchemy.sql.schema import Column

from mintyard.app.read_model import schema
from mintyard.domain.errors import InvalidRequest, NotFound
from mintyard.domain.ids import ROOT, is_within

_MAX_TEXT_CHARS: Final = 256
_MERGED_ACCOUNTS: Final = 64


def subtree(column: Column[str], account: str) -> ColumnElement[bool] | None:
    """Rows of `account` and all below it as one range of the index (`0` follows `/`); None for all accounts."""
    if account == ROOT:
        return None
    return or_(column == account, (column > account + "/") & (column < account + "0"))


def newest_first(
    connection: Connection, table: Table, account: str, rows: int, conditions: list[ColumnElement[bool]]
) -> ColumnElement[bool]:
    """That a row of `table` is among the `rows` newest (by id) of a subtree that meet `conditions`.

    Few accounts are merged, each read from its own end of the index (account, id); of many, as of the whole platform, the
    newest rows are found by walking back from the newest of all."""
    accounts, ids = schema.accounts.c.id, table.c.id
    reach = subtree(accounts, account)
    names: list[str] = []
    if reach is not None:
        names = list(connection.execute(select(accounts).where(reach).limit(_MERGED_ACCOUNTS + 1)).scalars())
    if reach is None or len(names) > _MERGED_ACCOUNTS:
        within = subtree(table.c.account, account)
        walk = select(ids).where(*conditions) if within is None else select(ids).where(within, *conditions)
        return ids.in_(walk.order_by(ids.desc()).limit(rows))
    parts: list[Any] = [
        select(
            select(ids)
            .where(table.c.account == name, *conditions)
            .order_by(ids.desc())
            .limit(rows)
            .subquery()
            .c.id
        )
        for name in names
    ]
    if not parts:
        return ids.in_(())
    merged = union_all(*parts).subquery()
    return ids.in_(select(merged.c.id).order_by(merged.c.id.desc()).limit(rows))


def reachable(account: str, within: str) -> str:
    """`account`, which is `within` when empty; `NotFound` when it isn't the caller's to see."""
    wanted = check_text(account) if account else within
    if not is_within(wanted, within):
        raise NotFound(what="account", name=wanted)
    return wanted


def check_text(text: str) -> str:
    """`text` when a database can take it: printable and short."""
    if len(text) > _MAX_TEXT_CHARS or not text.isprintable():
        raise InvalidRequest(why=f"names have at most {_MAX_TEXT_CHARS} printable characters")
    return text
