"""Column types of the read model that differ between dialects. No table may enter.

SQLite and PostgreSQL integers end at 2^63 - 1. Ids, instants and single postings fit; balances and costs add up beyond
that (each posting may be 2^62), so they are NUMERIC in PostgreSQL and decimal text in SQLite, and are never summed in SQL.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Dialect, Integer, Numeric, Text, TypeDecorator
from sqlalchemy.types import TypeEngine


class Amount(TypeDecorator[int]):
    """An integer of up to 38 digits."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Numeric(38, 0) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        return None if value is None else str(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        return None if value is None else int(value)


def number() -> TypeEngine[int]:
    """64 bits; as a primary key in SQLite it is the rowid itself."""
    return BigInteger().with_variant(Integer, "sqlite")


def text() -> TypeEngine[str]:
    """Compared byte by byte in both dialects, so that a subtree of accounts is one range of the index."""
    return Text().with_variant(Text(collation="C"), "postgresql")


def flag() -> TypeEngine[bool]:
    return Boolean(create_constraint=False)
