"""Pages: opaque cursors with a stable order. A cursor says after which key to go on, and for which query it was made."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.sql.elements import ColumnClause
from sqlalchemy.sql.schema import Column

from mintyard.app.read_model.views import Page
from mintyard.domain.errors import InvalidRequest
from mintyard.domain.limits import DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS

T = TypeVar("T")
_MAX_CURSOR_CHARS: Final = 512
_FOREIGN: Final = "the cursor was not made for this query; begin again without one"
_encoder = msgspec.msgpack.Encoder(order="deterministic")


class _Mark(msgspec.Struct, frozen=True, array_like=True):
    digest: bytes
    key: tuple[int | str, ...]


class Paging:
    """One page of a query: at most `rows`, after the cursor `after` (empty: the first). `query` is everything that decides
    what is listed, so that a cursor of another query or of another caller is refused (`InvalidRequest`)."""

    def __init__(self, query: Sequence[Any], after: str, rows: int | None) -> None:
        self.rows = DEFAULT_PAGE_ROWS if rows is None else rows
        if not 1 <= self.rows <= MAX_PAGE_ROWS:
            raise InvalidRequest(why=f"a page has 1 to {MAX_PAGE_ROWS} rows, not {self.rows}")
        self._digest = blake2b(_encoder.encode(query), digest_size=8).digest()
        self.key: tuple[int | str, ...] = self._read(after) if after else ()

    def _read(self, after: str) -> tuple[int | str, ...]:
        if len(after) > _MAX_CURSOR_CHARS:
            raise InvalidRequest(why=_FOREIGN)
        try:
            raw = urlsafe_b64decode(after.encode("ascii") + b"=" * (-len(after) % 4))
            mark = msgspec.msgpack.decode(raw, type=_Mark)
        except (ValueError, msgspec.DecodeError):
            raise InvalidRequest(why=_FOREIGN) from None
        if mark.digest != self._digest:
            raise InvalidRequest(why=_FOREIGN)
        return mark.key

    def after(
        self, *columns: Column[Any] | ColumnClause[Any], descending: bool = False
    ) -> ColumnElement[bool] | None:
        """The condition that goes on behind the cursor's key in the order of `columns`, None on the first page."""
        if not self.key:
            return None
        self._check(columns)
        options: list[ColumnElement[bool]] = []
        for at, column in enumerate(columns):
            equal = [other == value for other, value in zip(columns[:at], self.key, strict=False)]
            step = column < self.key[at] if descending else column > self.key[at]
            options.append(and_(*equal, step))
        return or_(*options)

    def _check(self, columns: Sequence[Column[Any] | ColumnClause[Any]]) -> None:
        kinds = tuple(type(part) for part in self.key)
        if kinds != tuple(column.type.python_type for column in columns) or not all(
            -(2**63) <= part < 2**63 for part in self.key if isinstance(part, int)
        ):
            raise InvalidRequest(why=_FOREIGN)

    def mark(self, *key: int | str) -> str:
        """The cursor behind `key`."""
        raw = _encoder.encode(_Mark(self._digest, key))
        return urlsafe_b64encode(raw).rstrip(b"=").decode()

    def page(self, found: Sequence[T], key: Callable[[T], tuple[int | str, ...]], seq: int) -> Page[T]:
        """The page of `found`, which was read with one row more than a page has (`rows + 1`)."""
        rows = tuple(found[: self.rows])
        more = len(found) > self.rows
        return Page(rows, self.mark(*key(rows[-1])) if more else "", seq)
