"""Shelves: rows that a batch touches, loaded by key, changed in memory and written back together.

What is on a shelf stays for later batches until it grows too large; it is only good while nobody else writes, which the
projector's cursor tells. What the rows mean is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from sqlalchemy import Column, Connection, Table, select

from mintyard.app.read_model import schema
from mintyard.app.read_model.batches import read_rows, write_rows, write_tuples
from mintyard.app.read_model.rows import (
    ROWS,
    AccountRow,
    ArrayRow,
    AttemptRow,
    GrantRow,
    HoldRow,
    JobRow,
    MandateRow,
    NodeRow,
    PriceRow,
    RevocationRow,
    SpecRow,
    TokenRow,
)
from mintyard.domain.errors import InvariantBroken

Row = TypeVar("Row", bound=msgspec.Struct)
KEPT_ROWS: Final = 50_000
"""A shelf with more is emptied after a batch."""


class Shelf(Generic[Row]):
    """The rows of one table that are at hand, by key; a key of several columns is a tuple."""

    def __init__(self, table: Table, kept: int = KEPT_ROWS) -> None:
        self.table = table
        self.kept = kept
        self.rows: dict[Any, Row] = {}
        self.changed: dict[Any, None] = {}
        self.connection: Connection | None = None
        names = [column.name for column in table.primary_key]
        self.key: Callable[[Row], Any] = (
            (lambda row: getattr(row, names[0]))
            if len(names) == 1
            else (lambda row: tuple(getattr(row, name) for name in names))
        )
        self.lead: Column[Any] = table.c[names[0]]

    def load(self, keys: Iterable[Hashable]) -> None:
        """Have the rows of `keys` at hand, as far as they exist. They are asked for by the first column of the key."""
        missing = [key[0] if isinstance(key, tuple) else key for key in keys if key not in self.rows]
        if missing:
            self._add(read_rows(self._connected(), self.table, self.lead, missing))

    def load_all(self) -> None:
        kind = ROWS[self.table]
        self._add([kind(*row) for row in self._connected().execute(select(self.table))])

    def _add(self, rows: Iterable[msgspec.Struct]) -> None:
        for row in cast("Iterable[Row]", rows):
            self.rows.setdefault(self.key(row), row)

    def _connected(self) -> Connection:
        if self.connection is None:
            raise InvariantBroken(why="a shelf is used outside of a transaction")
        return self.connection

    def find(self, key: Any) -> Row | None:
        """The row, loaded if need be; None when there is none."""
        self.load((key,))
        return self.rows.get(key)

    def get(self, key: Any) -> Row:
        """The row for reading; `InvariantBroken` when there is none."""
        row = self.rows.get(key) or self.find(key)
        if row is None:
            raise InvariantBroken(why=f"the read model has no row {key} in {self.table.name}")
        return row

    def change(self, key: Any) -> Row:
        """The row for changing."""
        row = self.get(key)
        self.changed[key] = None
        return row

    def put(self, row: Row) -> None:
        """A new row, or another one under its key."""
        key = self.key(row)
        self.rows[key] = row
        self.changed[key] = None

    def write(self) -> int:
        """Write back what has changed; how many rows."""
        rows = [self.rows[key] for key in self.changed]
        write_rows(self._connected(), self.table, rows)
        self.changed.clear()
        return len(rows)

    def tidy(self) -> None:
        if len(self.rows) > self.kept:
            self.rows.clear()


class Shelves:
    """A shelf for each table, and the postings of the batch, which are only written."""

    def __init__(self) -> None:
        self.accounts: Shelf[AccountRow] = Shelf(schema.accounts)
        self.grants: Shelf[GrantRow] = Shelf(schema.grants)
        self.tokens: Shelf[TokenRow] = Shelf(schema.tokens)
        self.revocations: Shelf[RevocationRow] = Shelf(schema.revocations)
        self.nodes: Shelf[NodeRow] = Shelf(schema.nodes, kept=2**62)
        self.specs: Shelf[SpecRow] = Shelf(schema.specs)
        self.mandates: Shelf[MandateRow] = Shelf(schema.mandates)
        self.arrays: Shelf[ArrayRow] = Shelf(schema.arrays)
        self.jobs: Shelf[JobRow] = Shelf(schema.jobs)
        self.attempts: Shelf[AttemptRow] = Shelf(schema.attempts)
        self.holds: Shelf[HoldRow] = Shelf(schema.holds)
        self.prices: Shelf[PriceRow] = Shelf(schema.prices, kept=2**62)
        self.postings: list[tuple[Any, ...]] = []
        """Rows of `PostingRow`'s columns: most of all that is written, so they are tuples from the start."""

    @property
    def all(self) -> list[Shelf[Any]]:
        return [shelf for shelf in vars(self).values() if isinstance(shelf, Shelf)]

    def open(self, connection: Connection, *, fresh: bool) -> None:
        """Use them within a transaction; `fresh` when nothing is at hand yet: nodes and prices are kept whole."""
        for shelf in self.all:
            shelf.connection = connection
        if fresh:
            self.nodes.load_all()
            self.prices.load_all()

    def write(self, connection: Connection) -> int:
        """Write everything that has changed; how many rows."""
        written = sum(shelf.write() for shelf in self.all) + len(self.postings)
        write_tuples(connection, schema.postings, self.postings)
        self.postings.clear()
        return written

    def tidy(self) -> None:
        for shelf in self.all:
            shelf.connection = None
            shelf.tidy()
