"""The read model in PostgreSQL: the same rows and answers as in SQLite, in a schema of its own."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from tests.unit.read_model_run import Run

from mintyard.app.projector import Projector, dump, open_projector, rebuild
from mintyard.app.read_model import ReadModel, open_read_model, queries, schema
from mintyard.app.tailer import Tailer
from mintyard.domain import commands as c
from mintyard.domain.errors import InvalidRequest, NotCaughtUp, StoreUnavailable
from mintyard.domain.units import Unit

URL = os.environ.get("MINTYARD_TEST_POSTGRES", "")
pytestmark = [pytest.mark.postgres, pytest.mark.skipif(not URL, reason="MINTYARD_TEST_POSTGRES is not set")]


@pytest.fixture
def name() -> str:
    return f"read_{secrets.token_hex(6)}"


@pytest.fixture
def model(name: str) -> Iterator[ReadModel]:
    opened = open_read_model(URL, migrate=True, schema_name=name, wait_ms=30)
    yield opened
    with opened.engine.begin() as connection:
        connection.exec_driver_sql(f'DROP SCHEMA "{name}" CASCADE')
    opened.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[ReadModel]:
    opened = open_read_model(f"sqlite:///{tmp_path}/read.db", migrate=True)
    yield opened
    opened.close()


def comparable(rows: Any) -> Any:
    """NUL is no character there, and the replacement is told by the store's docs; JSON escapes it in both."""
    return {
        table: [tuple(v.replace("\x00", "\ufffd") if isinstance(v, str) else v for v in row) for row in found]
        for table, found in rows.items()
    }


def test_the_same_rows_as_in_sqlite(model: ReadModel, sqlite: ReadModel) -> None:
    for seed in (1, 2):
        run = Run(seed)
        run.found()
        run.play(120)
        rebuild(run.store, model)
        rebuild(run.store, sqlite)
        assert dump(model) == comparable(dump(sqlite))
        assert queries.totals(model).even
        for within in ("/", "acme", "acme/vision", "zeta"):
            for ask in (queries.list_jobs, queries.list_accounts, queries.list_grants, queries.list_tokens):
                after, other = "", ""
                while True:
                    mine, theirs = (
                        ask(model, within, after=after, rows=5),
                        ask(sqlite, within, after=other, rows=5),
                    )
                    assert [comparable_row(row) for row in mine.rows] == [
                        comparable_row(r) for r in theirs.rows
                    ]
                    after, other = mine.next, theirs.next
                    if not after:
                        break
        mine = queries.statement(model, "/", "acme", Unit.MONEY, rows=50)
        assert mine == queries.statement(sqlite, "/", "acme", Unit.MONEY, rows=50)
        assert queries.list_jobs(model, "/", queries.JobFilter(name="train-*"), rows=1_000).rows


def comparable_row(row: Any) -> str:
    return repr(row).replace("\\x00", "\ufffd")


def test_batches_crashes_and_two_projectors(model: ReadModel, sqlite: ReadModel) -> None:
    run = Run(5)
    run.found()
    run.play(150)
    threads = [
        threading.Thread(target=Tailer(run.store, Projector(model), size).catch_up) for size in (3, 5, 11)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Tailer(run.store, open_projector(run.store, model)).catch_up()
    rebuild(run.store, sqlite)
    assert dump(model) == comparable(dump(sqlite))


def test_amounts_beyond_64_bits(model: ReadModel) -> None:
    run, most = Run(), 2**62
    run.tick(c.Found("centre"), c.OpenAccount(None, "acme"))
    run.tick(c.CreateGrant(None, "acme", Unit.OUTPUT_TOKENS, most))
    for number in (1, 2):
        run.tick(c.PlaceHold(None, "acme", {Unit.OUTPUT_TOKENS: most}, run.now + 10**12))
        run.tick(c.SettleHold(None, number, {Unit.OUTPUT_TOKENS: most}))
        run.tick(c.Refund(None, 1, most))
    rebuild(run.store, model)
    assert queries.show_grant(model, "/", 1).balance.spent == 2 * most
    assert queries.statement(model, "/", "acme", Unit.OUTPUT_TOKENS).closing.spent == 2 * most
    assert queries.totals(model).even


def test_the_declared_schema_in_a_schema_of_its_own(model: ReadModel, name: str) -> None:
    with model.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    open_read_model(URL, migrate=True, schema_name=name).close()
    open_read_model(URL, schema_name=name).close()
    with pytest.raises(StoreUnavailable, match="tables"):
        open_read_model(URL, schema_name=name + "x")
    with pytest.raises(InvalidRequest):
        open_read_model(URL, schema_name='x"; DROP SCHEMA public')
    with pytest.raises(NotCaughtUp):
        queries.list_accounts(model, "/", min_seq=7)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StoreUnavailable) as refusal:
        open_read_model("postgresql://hub:sesame@127.0.0.1:1/hub", migrate=True)
    assert "sesame" not in str(refusal.value)
