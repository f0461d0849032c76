"""Rows in and out, batch first: one statement a table for any number of rows, in the way that each dialect does fastest.

SQLite takes tuples one prepared statement after the other, PostgreSQL whole columns as arrays. What the rows mean is
decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Connection,
    Select,
    Table,
    Text,
    any_,
    bindparam,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from mintyard.app.read_model.columns import Amount
from mintyard.app.read_model.rows import ROWS

_ARRAY_TYPES: Final = {
    "Amount": "numeric",
    "BigInteger": "bigint",
    "Boolean": "boolean",
    "LargeBinary": "bytea",
    "Text": "text",
}
_ROWS_AT_ONCE: Final = 4_096
"""Of one PostgreSQL statement: its arrays are held in memory twice."""


def write_rows(connection: Connection, table: Table, rows: Sequence[msgspec.Struct]) -> None:
    """Insert the rows, or replace those that have the same key. Keys must differ within the batch."""
    write_tuples(connection, table, [msgspec.structs.astuple(row) for row in rows])


def write_tuples(connection: Connection, table: Table, tuples: Sequence[tuple[Any, ...]]) -> None:
    """`write_rows` for rows that are tuples already, in the order of the table's columns."""
    if not tuples:
        return
    if connection.dialect.name == "postgresql":
        for at in range(0, len(tuples), _ROWS_AT_ONCE):
            _write_columns(connection, table, tuples[at : at + _ROWS_AT_ONCE])
        return
    statement, amounts = _sqlite_upsert(table)
    if amounts:
        tuples = [_with_text(values, amounts) for values in tuples]
    connection.exec_driver_sql(statement, tuples)


def _with_text(values: tuple[Any, ...], amounts: Sequence[int]) -> tuple[Any, ...]:
    changed = list(values)
    for at in amounts:
        changed[at] = str(values[at])
    return tuple(changed)


def _write_columns(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    for at, column in enumerate(table.columns):
        if isinstance(column.type, Amount):
            columns[at] = [str(value) for value in columns[at]]
        elif isinstance(column.type, Text):
            # PostgreSQL has no NUL in text; free text from engines and callers may hold one.
            columns[at] = [
                value.replace("\x00", "\ufffd") if "\x00" in value else value for value in columns[at]
            ]
    connection.exec_driver_sql(_postgres_upsert(table), tuple(columns))


@lru_cache(maxsize=64)
def _sqlite_upsert(table: Table) -> tuple[str, tuple[int, ...]]:
    """The statement, and the positions of amounts, which are text there."""
    quote = sqlite.dialect().identifier_preparer.quote
    names = [quote(column.name) for column in table.columns]
    marks = ", ".join("?" * len(names))
    amounts = tuple(at for at, column in enumerate(table.columns) if isinstance(column.type, Amount))
    into = f"INSERT INTO {quote(table.name)} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608 - our own names
    return f"{into} {_replace(table, quote)}", amounts


@lru_cache(maxsize=64)
def _postgres_upsert(table: Table) -> str:
    quote = postgresql.dialect().identifier_preparer.quote
    names = ", ".join(quote(column.name) for column in table.columns)
    arrays = ", ".join(_array(column) for column in table.columns)
    return (
        f"INSERT INTO {quote(table.name)} ({names}) SELECT * FROM unnest({arrays}) {_replace(table, quote)}"  # noqa: S608
    )


def _array(column: Column[Any]) -> str:
    kind = _ARRAY_TYPES[type(column.type).__name__]
    return "%s::text[]::numeric[]" if kind == "numeric" else f"%s::{kind}[]"


def _replace(table: Table, quote: Any) -> str:
    keys = {column.name for column in table.primary_key}
    key = ", ".join(quote(name) for name in keys)
    others = [quote(column.name) for column in table.columns if column.name not in keys]
    return f"ON CONFLICT ({key}) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in others)


def read_rows(
    connection: Connection, table: Table, column: Column[Any], values: Iterable[Any]
) -> list[msgspec.Struct]:
    """The rows whose `column` is one of `values`, any number of them."""
    wanted = sorted(set(values))
    if not wanted:
        return []
    given: Any = wanted
    if connection.dialect.name != "postgresql":
        given = msgspec.json.encode(wanted).decode()
    kind = ROWS[table]
    query = _lookup(table, column.name, connection.dialect.name)
    return [kind(*row) for row in connection.execute(query, {"given": given})]


@lru_cache(maxsize=64)
def _lookup(table: Table, name: str, dialect: str) -> Select[Any]:
    column = table.c[name]
    if dialect == "postgresql":
        kind = BigInteger() if column.type.python_type is int else Text()
        return select(table).where(column == any_(bindparam("given", type_=ARRAY(kind))))
    listed = func.json_each(bindparam("given", type_=Text())).table_valued("value")
    return select(table).where(column.in_(select(listed.c.value)))
