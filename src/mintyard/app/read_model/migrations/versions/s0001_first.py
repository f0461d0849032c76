"""The first schema: accounts, grants, tokens, nodes, jobs, attempts, holds, postings and prices.

There is no way back but to rebuild: drop the read model and project the journal again.
"""

import sqlalchemy as sa
from alembic import op

from mintyard.app.read_model.columns import Amount, flag, number, text

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", text(), primary_key=True, nullable=False),
        sa.Column("parent", text(), nullable=False),
        sa.Column("state", text(), nullable=False),
        sa.Column("opened_at", number(), nullable=False),
        sa.Column("moved_at", number(), nullable=False),
    )
    op.create_index("accounts_parent", "accounts", ["parent", "id"])
    op.create_table(
        "arrays",
        sa.Column("id", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("account", text(), nullable=False),
        sa.Column("name", text(), nullable=False),
        sa.Column("spec", number(), nullable=False),
        sa.Column("size", number(), nullable=False),
        sa.Column("throttle", number(), nullable=False),
        sa.Column("submitted_at", number(), nullable=False),
    )
    op.create_table(
        "attempts",
        sa.Column("job", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("attempt", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("account", text(), nullable=False),
        sa.Column("state", text(), nullable=False),
        sa.Column("placement", text(), nullable=False),
        sa.Column("boots", text(), nullable=False),
        sa.Column("placed_at", number(), nullable=False),
        sa.Column("began_at", number(), nullable=False),
        sa.Column("ended_at", number(), nullable=False),
        sa.Column("exit_code", number(), nullable=False),
        sa.Column("signal", number(), nullable=False),
        sa.Column("run_ms", number(), nullable=False),
        sa.Column("cpu_ms", number(), nullable=False),
        sa.Column("peak_memory_mib", number(), nullable=False),
        sa.Column("cost", Amount(), nullable=False),
        sa.Column("message", text(), nullable=False),
        sa.Column("receipt", text(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cursor",
        sa.Column("id", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("seq", number(), nullable=False),
        sa.Column("chain", sa.LargeBinary(), nullable=False),
        sa.Column("term", number(), nullable=False),
        sa.Column("at", number(), nullable=False),
        sa.Column("hub", text(), nullable=False),
        sa.Column("currency", text(), nullable=False),
        sa.Column("format", number(), nullable=False),
    )
    op.create_table(
        "grants",
        sa.Column("id", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("account", text(), nullable=False),
        sa.Column("unit", text(), nullable=False),
        sa.Column("state", text(), nullable=False),
        sa.Column("priority", number(), nullable=False),
        sa.Column("starts_at", number(), nullable=False),
        sa.Column("expires_at", number(), nullable=False),
        sa.Column("note", text(), nullable=False),
        sa.Column("created_at", number(), nullable=False),
        sa.Column("closed_at", number(), nullable=False),
        sa.Column("granted", Amount(), nullable=False),
        sa.Column("refunded", Amount(), nullable=False),
        sa.Column("left", Amount(), nullable=False),
        sa.Column("held", Amount(), nullable=False),
        sa.Column("spent", Amount(), nullable=False),
        sa.Column("expired", Amount(), nullable=False),
    )
    op.create_index("grants_account", "grants", ["account", "unit", "id"])
    op.create_table(
        "holds",
        sa.Column("id", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("account", text(), nullable=False),
        sa.Column("job", number(), nullable=False),
        sa.Column("attempt", number(), nullable=False),
        sa.Column("state", text(), nullable=False),
        sa.Column("lines", text(), nullable=False),
        sa.Column("ceilings", text(), nullable=False),
        sa.Column("drawn", text(), nullable=False),
        sa.Column("used", text(), nullable=False),
        sa.Column("book", number(), nullable=False),
        sa.Column("holder", text(), nullable=False),
        sa.Column("note", text(), nullable=False),
        sa.Column("placed_at", number(), nullable=False),
        sa.Column("expires_at", number(), nullable=False),
        sa.Column("closed_at", number(), nullable=False),
    )
    held = sa.text("state = 'held'")
    op.create_index("holds_open", "holds", ["account", "id"], sqlite_where=held, postgresql_where=held)
    op.create_index("holds_account", "holds", ["account", "id"])
    op.create_index("holds_job", "holds", ["job", "attempt"])
    op.create_table(
        "jobs",
        sa.Column("id", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("account", text(), nullable=False),
        sa.Column("token", text(), nullable=False),
        sa.Column("name", text(), nullable=False),
        sa.Column("state", text(), nullable=False),
        sa.Column("spec", number(), nullable=False),
        sa.Column("array_job", number(), nullable=False),
        sa.Column("array_index", number(), nullable=False),
        sa.Column("waits_for", text(), nullable=False),
        sa.Column("submitted_at", number(), nullable=False),
        sa.Column("queued_at", number(), nullable=False),
        sa.Column("placed_at", number(), nullable=False),
        sa.Column("began_at", number(), nullable=False),
        sa.Column("ended_at", number(), nullable=False),
        sa.Column("attempt", number(), nullable=False),
        sa.Column("exit_code", number(), nullable=False),
        sa.Column("signal", number(), nullable=False),
        sa.Column("run_ms", number(), nullable=False),
        sa.Column("cpu_ms", number(), nullable=False),
        sa.Column("peak_memory_mib", number(), nullable=False),
        sa.Column("cost", Amount(), nullable=False),
        sa.Column("reason", text(), nullable=False),
    )
    op.create_index("jobs_account", "jobs", ["account", "id"])
    op.create_index("jobs_array", "jobs", ["array_job", "array_index"])
    op.create_index("jobs_name", "jobs", ["name", "id"])
    unfinished = sa.text("state <> 'succeeded'")
    op.create_index(
        "jobs_state", "jobs", ["state", "id"], sqlite_where=unfinished, postgresql_where=unfinished
    )
    op.create_table(
        "mandates",
        sa.Column("id", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("account", text(), nullable=False),
        sa.Column("token", text(), nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("name", text(), primary_key=True, nullable=False),
        sa.Column("index", number(), nullable=False),
        sa.Column("engine", text(), nullable=False),
        sa.Column("state", text(), nullable=False),
        sa.Column("cpus_milli", number(), nullable=False),
        sa.Column("memory_mib", number(), nullable=False),
        sa.Column("gpus", number(), nullable=False),
        sa.Column("gpu_model", text(), nullable=False),
        sa.Column("labels", text(), nullable=False),
        sa.Column("virtual", flag(), nullable=False),
        sa.Column("reason", text(), nullable=False),
        sa.Column("joined_at", number(), nullable=False),
        sa.Column("moved_at", number(), nullable=False),
        sa.Column("running", number(), nullable=False),
        sa.Column("used_cpus_milli", number(), nullable=False),
        sa.Column("used_memory_mib", number(), nullable=False),
        sa.Column("used_gpus_milli", number(), nullable=False),
    )
    op.create_table(
        "postings",
        sa.Column("seq", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("ordinal", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("at", number(), nullable=False),
        sa.Column("account", text(), nullable=False),
        sa.Column("grant", number(), nullable=False),
        sa.Column("unit", text(), nullable=False),
        sa.Column("debit", text(), nullable=False),
        sa.Column("credit", text(), nullable=False),
        sa.Column("amount", number(), nullable=False),
        sa.Column("cause", text(), nullable=False),
        sa.Column("hold", number(), nullable=False),
        sa.Column("job", number(), nullable=False),
        sa.Column("attempt", number(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("postings_account", "postings", ["account", "unit", "seq", "ordinal"])
    op.create_table(
        "prices",
        sa.Column("number", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("effective_from", number(), nullable=False),
        sa.Column("set_at", number(), nullable=False),
        sa.Column("gpu_nano", number(), nullable=False),
        sa.Column("cpu_nano", number(), nullable=False),
        sa.Column("memory_nano", number(), nullable=False),
        sa.Column("storage_nano", number(), nullable=False),
        sa.Column("gpu_models", text(), nullable=False),
    )
    op.create_table(
        "revocations",
        sa.Column("block", text(), primary_key=True, nullable=False),
        sa.Column("token", text(), nullable=False),
        sa.Column("revoked_at", number(), nullable=False),
        sa.Column("keep_until", number(), nullable=False),
    )
    op.create_index("revocations_token", "revocations", ["token"])
    op.create_table(
        "specs",
        sa.Column("id", number(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("content", text(), nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", text(), primary_key=True, nullable=False),
        sa.Column("account", text(), nullable=False),
        sa.Column("name", text(), nullable=False),
        sa.Column("state", text(), nullable=False),
        sa.Column("expires_at", number(), nullable=False),
        sa.Column("parents", text(), nullable=False),
        sa.Column("registered_at", number(), nullable=False),
        sa.Column("moved_at", number(), nullable=False),
    )
    op.create_index("tokens_account", "tokens", ["account", "id"])
    op.create_index("tokens_age", "tokens", ["registered_at", "id"])
