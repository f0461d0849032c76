"""Tables of the read model: what the API lists and shows, folded from the journal and rebuildable at any time.

One row for each thing, few rows for each job: its own, one for each attempt (with the receipt in it), one for each hold,
and the postings. Instants are ns, 0 is "not yet" or "never"; amounts are in smallest units; columns named in `JSON_COLUMNS`
hold JSON text. No bearer token, environment or script of a job may enter.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Index, LargeBinary, MetaData, Table

from mintyard.app.read_model.columns import Amount, flag, number, text

SCHEMA_NAME: Final = "mintyard_read"
"""Schema in PostgreSQL; SQLite has a file of its own."""
metadata = MetaData()


def _number(name: str, *, key: bool = False) -> Column[int]:
    return Column(name, number(), primary_key=key, nullable=False, autoincrement=False)


def _text(name: str, *, key: bool = False) -> Column[str]:
    return Column(name, text(), primary_key=key, nullable=False)


def _amount(name: str) -> Column[int]:
    return Column(name, Amount(), nullable=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, flag(), nullable=False)


cursor = Table(
    "cursor",
    metadata,
    _number("id", key=True),
    _number("seq"),
    Column("chain", LargeBinary, nullable=False),
    _number("term"),
    _number("at"),
    _text("hub"),
    _text("currency"),
    _number("format"),
)
"""One row: the last record that was projected, and what the hub is called."""

accounts = Table(
    "accounts",
    metadata,
    _text("id", key=True),
    _text("parent"),
    _text("state"),
    _number("opened_at"),
    _number("moved_at"),
    Index("accounts_parent", "parent", "id"),
)

grants = Table(
    "grants",
    metadata,
    _number("id", key=True),
    _text("account"),
    _text("unit"),
    _text("state"),
    _number("priority"),
    _number("starts_at"),
    _number("expires_at"),
    _text("note"),
    _number("created_at"),
    _number("closed_at"),
    _amount("granted"),
    _amount("refunded"),
    _amount("left"),
    _amount("held"),
    _amount("spent"),
    _amount("expired"),
    Index("grants_account", "account", "unit", "id"),
)

tokens = Table(
    "tokens",
    metadata,
    _text("id", key=True),
    _text("account"),
    _text("name"),
    _text("state"),
    _number("expires_at"),
    _text("parents"),
    _number("registered_at"),
    _number("moved_at"),
    Index("tokens_account", "account", "id"),
    Index("tokens_age", "registered_at", "id"),
)

revocations = Table(
    "revocations",
    metadata,
    _text("block", key=True),
    _text("token"),
    _number("revoked_at"),
    _number("keep_until"),
    Index("revocations_token", "token"),
)

nodes = Table(
    "nodes",
    metadata,
    _text("name", key=True),
    _number("index"),
    _text("engine"),
    _text("state"),
    _number("cpus_milli"),
    _number("memory_mib"),
    _number("gpus"),
    _text("gpu_model"),
    _text("labels"),
    _flag("virtual"),
    _text("reason"),
    _number("joined_at"),
    _number("moved_at"),
    _number("running"),
    _number("used_cpus_milli"),
    _number("used_memory_mib"),
    _number("used_gpus_milli"),
)
"""`index` is the node's place in the cluster, -1 once it was removed."""

specs = Table("specs", metadata, _number("id", key=True), _text("content"))
mandates = Table("mandates", metadata, _number("id", key=True), _text("account"), _text("token"))

arrays = Table(
    "arrays",
    metadata,
    _number("id", key=True),
    _text("account"),
    _text("name"),
    _number("spec"),
    _number("size"),
    _number("throttle"),
    _number("submitted_at"),
)

jobs = Table(
    "jobs",
    metadata,
    _number("id", key=True),
    _text("account"),
    _text("token"),
    _text("name"),
    _text("state"),
    _number("spec"),
    _number("array_job"),
    _number("array_index"),
    _text("waits_for"),
    _number("submitted_at"),
    _number("queued_at"),
    _number("placed_at"),
    _number("began_at"),
    _number("ended_at"),
    _number("attempt"),
    _number("exit_code"),
    _number("signal"),
    _number("run_ms"),
    _number("cpu_ms"),
    _number("peak_memory_mib"),
    _amount("cost"),
    _text("reason"),
    Index("jobs_account", "account", "id"),
    Index("jobs_name", "name", "id"),
    Index("jobs_array", "array_job", "array_index"),
)
"""`cost` is what was charged so far over all attempts, at list price, refunds deducted. Numbers rise with time."""
_unfinished = jobs.c.state != "succeeded"
Index("jobs_state", jobs.c.state, jobs.c.id, sqlite_where=_unfinished, postgresql_where=_unfinished)

attempts = Table(
    "attempts",
    metadata,
    _number("job", key=True),
    _number("attempt", key=True),
    _text("account"),
    _text("state"),
    _text("placement"),
    _text("boots"),
    _number("placed_at"),
    _number("began_at"),
    _number("ended_at"),
    _number("exit_code"),
    _number("signal"),
    _number("run_ms"),
    _number("cpu_ms"),
    _number("peak_memory_mib"),
    _amount("cost"),
    _text("message"),
    _text("receipt"),
    sqlite_with_rowid=False,
)
"""`state` is starting, running, the job's final state or the cause of its requeue; `receipt` is empty until settled."""

holds = Table(
    "holds",
    metadata,
    _number("id", key=True),
    _text("account"),
    _number("job"),
    _number("attempt"),
    _text("state"),
    _text("lines"),
    _text("ceilings"),
    _text("drawn"),
    _text("used"),
    _number("book"),
    _text("holder"),
    _text("note"),
    _number("placed_at"),
    _number("expires_at"),
    _number("closed_at"),
    Index("holds_account", "account", "id"),
    Index("holds_job", "job", "attempt"),
)

_open = holds.c.state == "held"
Index("holds_open", holds.c.account, holds.c.id, sqlite_where=_open, postgresql_where=_open)

postings = Table(
    "postings",
    metadata,
    _number("seq", key=True),
    _number("ordinal", key=True),
    _number("at"),
    _text("account"),
    _number("grant"),
    _text("unit"),
    _text("debit"),
    _text("credit"),
    _number("amount"),
    _text("cause"),
    _number("hold"),
    _number("job"),
    _number("attempt"),
    Index("postings_account", "account", "unit", "seq", "ordinal"),
    sqlite_with_rowid=False,
)
"""`amount` moves from the ledger account `debit` to `credit` of one grant; `ordinal` counts within the record."""

prices = Table(
    "prices",
    metadata,
    _number("number", key=True),
    _number("effective_from"),
    _number("set_at"),
    _number("gpu_nano"),
    _number("cpu_nano"),
    _number("memory_nano"),
    _number("storage_nano"),
    _text("gpu_models"),
)

JSON_COLUMNS: Final = frozenset(
    {
        "attempts.boots",
        "attempts.placement",
        "attempts.receipt",
        "holds.ceilings",
        "holds.drawn",
        "holds.lines",
        "holds.used",
        "jobs.waits_for",
        "nodes.labels",
        "prices.gpu_models",
        "specs.content",
        "tokens.parents",
    }
)
