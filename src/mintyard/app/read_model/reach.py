"""Reach: what a caller may see, as conditions of a query. An account sees itself and what lies below it."""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, or_
from sqlalchemy.sql.schema import Column

from mintyard.domain.errors import InvalidRequest, NotFound
from mintyard.domain.ids import ROOT, is_within

_MAX_TEXT_CHARS: Final = 256


def subtree(column: Column[str], account: str) -> ColumnElement[bool] | None:
    """Rows of `account` and all below it as one range of the index (`0` follows `/`); None for all accounts."""
    if account == ROOT:
        return None
    return or_(column == account, (column > account + "/") & (column < account + "0"))


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
