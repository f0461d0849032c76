"""Queries: what a caller may see, pages that neither lose nor repeat, running balances, waiting, and bad input."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from tests.unit.read_model_run import START, Run

from mintyard.app.projector import Projector, open_projector, rebuild
from mintyard.app.read_model import ReadModel, migration, open_read_model, queries, schema
from mintyard.app.read_model.queries import JobFilter
from mintyard.app.read_model.rows import ROWS
from mintyard.app.read_model.views import ArrayView, JobView
from mintyard.app.tailer import Tailer
from mintyard.domain import commands as c
from mintyard.domain.errors import (
    InvalidRequest,
    MintyardError,
    NotCaughtUp,
    NotFound,
    StoreTooNew,
    StoreUnavailable,
)
from mintyard.domain.ids import is_within
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, Outcome
from mintyard.domain.jobs.spec import JobRequest, JobSpec, Shape
from mintyard.domain.units import NS_PER_MS, SCALE, Unit

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def run() -> Run:
    made = Run(11)
    made.found()
    made.play(250)
    return made


@pytest.fixture(scope="module")
def model(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadModel]:
    opened = open_read_model(
        f"sqlite:///{tmp_path_factory.mktemp('read')}/read.db",
        migrate=True,
        clock=lambda: run.now,
        wait_ms=50,
    )
    rebuild(run.store, opened)
    yield opened
    opened.close()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[ReadModel]:
    opened = open_read_model(f"sqlite:///{tmp_path}/read.db", migrate=True, wait_ms=30)
    yield opened
    opened.close()


def pages(ask: Callable[..., Any], rows: int) -> list[Any]:
    """All rows, page by page."""
    found: list[Any] = []
    after = ""
    while True:
        page = ask(after=after, rows=rows)
        assert len(page.rows) <= rows
        found += page.rows
        after = page.next
        if not after:
            return found


LISTS: dict[str, Callable[..., Any]] = {
    "accounts": lambda model, within, **page: queries.list_accounts(model, within, **page),
    "grants": lambda model, within, **page: queries.list_grants(model, within, **page),
    "holds": lambda model, within, **page: queries.list_holds(model, within, state="", **page),
    "jobs": lambda model, within, **page: queries.list_jobs(model, within, **page),
    "tokens": lambda model, within, **page: queries.list_tokens(model, within, **page),
}


@pytest.mark.parametrize("kind", LISTS)
def test_pages_of_any_size_are_the_whole_and_keep_to_the_subtree(model: ReadModel, kind: str) -> None:
    ask = LISTS[kind]
    whole = pages(lambda **page: ask(model, "/", **page), 1_000)
    assert len(whole) > 5
    for within in ("acme", "acme/vision", "zeta/lab", "acme/vis", "acme/vision/ann/deeper"):
        mine = [row for row in whole if is_within(row.account, within)]
        for size in (3, 1_000):
            shown = pages(lambda size=size, within=within, **page: ask(model, within, **page), size)
            if kind == "holds":
                assert [row.hold for row in shown] == [row.hold for row in mine]
                assert all(is_within(line.account, within) for row in shown for line in row.lines)
            else:
                assert shown == mine
    assert {row.account for row in whole} - {"acme", "acme/vision"}, "others have rows too"


def test_single_things_of_others_are_not_found(model: ReadModel, run: Run) -> None:
    job = next(j for j in queries.list_jobs(model, "zeta", rows=1_000).rows)
    task = next(j for j in queries.list_jobs(model, "/", rows=1_000).rows if j.array_job)
    hold = queries.list_holds(model, "zeta", state="").rows[0]
    token = queries.list_tokens(model, "zeta").rows[0]
    asks: list[Callable[[str], Any]] = [
        lambda within: queries.show_job(model, within, str(job.job)),
        lambda within: queries.receipt(model, within, str(job.job)),
        lambda within: queries.show_account(model, within, "zeta"),
        lambda within: queries.show_grant(model, within, 6),
        lambda within: queries.show_hold(model, within, hold.hold),
        lambda within: queries.show_token(model, within, token.token),
        lambda within: queries.statement(model, within, "zeta", Unit.MONEY),
        lambda within: queries.list_jobs(model, within, JobFilter(account="zeta")),
        lambda within: queries.list_grants(model, within, account="zeta/lab"),
    ]
    for ask in asks:
        ask("zeta")
        ask("/")
        for within in ("acme", "zet", "zeta/la", "zeta/lab/eve"):
            with pytest.raises(NotFound):
                ask(within)
    outside = "zeta" if is_within(task.account, "acme") else "acme"
    for name in (task.name, str(task.array_job)):
        assert queries.show_job(model, "/", name)
        with pytest.raises(NotFound):
            queries.show_job(model, outside, name)
    with pytest.raises(NotFound):
        queries.show_job(model, "/", str(job.job), only=(job.job + 1,))
    assert queries.show_job(model, "/", str(job.job), only=(job.job,)).job == job
    assert [j.job for j in queries.list_jobs(model, "/", only=(job.job, 10**9)).rows] == [job.job]
    assert queries.list_jobs(model, "/", only=()).rows == ()


def test_filters_of_jobs(model: ReadModel) -> None:
    whole = queries.list_jobs(model, "/", rows=1_000).rows

    def listed(**wanted: Any) -> list[JobView]:
        return list(queries.list_jobs(model, "/", JobFilter(**wanted), rows=1_000).rows)

    assert listed(states=("failed", "pending")) == [j for j in whole if j.state in ("failed", "pending")]
    assert listed(name="train-1") == [j for j in whole if j.spec.name == "train-1"]
    assert listed(name="train*") == list(whole)
    assert listed(name="*") == list(whole)
    assert listed(name="tr_in*") == []
    assert listed(account="acme/vision") == [j for j in whole if is_within(j.account, "acme/vision")]
    array = next(j.array_job for j in whole if j.array_job)
    assert listed(array_job=array) == [j for j in whole if j.array_job == array]
    assert listed(token=whole[0].token) == [j for j in whole if j.token == whole[0].token]
    middle = whole[len(whole) // 2].submitted_at
    assert listed(since=middle) == [j for j in whole if j.submitted_at >= middle]
    assert listed(until=middle) == [j for j in whole if j.submitted_at < middle]
    for wanted in ({"states": ("asleep",)}, {"since": -1}, {"name": "a\x00b"}, {"array_job": 2**63}):
        with pytest.raises(InvalidRequest):
            listed(**wanted)


def test_an_array_is_shown_by_its_number_and_its_tasks_by_index(model: ReadModel, run: Run) -> None:
    tasks = [j for j in queries.list_jobs(model, "/", rows=1_000).rows if j.array_job]
    for number in {j.array_job for j in tasks}:
        detail = queries.show_job(model, "/", str(number))
        assert isinstance(detail.job, ArrayView)
        mine = [j for j in tasks if j.array_job == number]
        assert sum(detail.job.tasks.values()) == len(mine) == detail.job.size
        assert detail.job.cost == sum(j.cost for j in mine)
        assert (detail.job.ended_at > 0) == all(j.ended_at > 0 for j in mine)
        ended = run.state.ended.get(number)
        if ended is not None:
            assert detail.job.state == ended[0]
        with pytest.raises(InvalidRequest, match="is an array"):
            queries.receipt(model, "/", str(number))
    task = tasks[0]
    assert queries.show_job(model, "/", f"{task.array_job}_{task.array_index}").job == task
    assert queries.show_job(model, "/", str(task.job)).job == task


def test_a_receipt_shows_stock_where_stock_pays_and_money_where_money_does(empty: ReadModel) -> None:
    """Half an hour of one GPU, 2 cores, 1 GB: the account pays GPU-hours, those above pay money."""
    run = Run()
    run.found()
    token = next(t for t in run.tokens if t.account == "acme/vision/ann")
    run.tick(c.CreateGrant(None, "acme/vision/ann", Unit.MONEY, 50 * SCALE[Unit.MONEY]))
    shape = Shape(2_000, 1_024, gpus=1, gpu_models=("h100",))
    run.tick(c.Submit(token, (JobRequest(JobSpec("fit", shape, time_limit_ms=HOUR_MS)),)))
    run.tick(c.Tick())
    run.tick(c.TakeReports("local", (AttemptStarted(1, 1, "b"),)))
    run.now += HOUR_MS * NS_PER_MS // 2
    end = AttemptEnded(1, 1, "b", Outcome.EXITED, 0, 0, HOUR_MS // 2, 9, 77)
    run.tick(c.TakeReports("local", (end,)))
    Tailer(run.store, open_projector(run.store, empty)).catch_up()
    told = queries.receipt(empty, "acme/vision/ann", "1")
    (receipt,) = told.receipts
    assert (receipt.run_ms, receipt.book, told.state) == (HOUR_MS // 2, 0, "succeeded")
    assert [(line.unit, line.stock, line.rate_nano, line.money) for line in receipt.resources] == [
        (Unit.GPU, SCALE[Unit.GPU] // 2, 5_000_000_000, 2_500_000_000),
        (Unit.CPU, SCALE[Unit.CPU], 100_000_000, 100_000_000),
        (Unit.MEMORY, SCALE[Unit.MEMORY] // 2, 50_000_000, 25_000_000),
    ]
    assert receipt.money == told.money == 2_625_000_000
    assert [(line.account, line.unit, line.amount) for line in receipt.charges] == [
        ("acme/vision/ann", Unit.GPU, SCALE[Unit.GPU] // 2),
        ("acme/vision/ann", Unit.MONEY, 125_000_000),
    ]
    whole = queries.receipt(empty, "/", "1").receipts[0]
    assert [(line.account, line.unit, line.amount) for line in whole.charges][2:] == [
        ("acme/vision", Unit.MONEY, 2_625_000_000),
        ("acme", Unit.MONEY, 2_625_000_000),
    ]
    detail = queries.show_job(empty, "acme", "1")
    assert isinstance(detail.job, JobView)
    assert (detail.job.exit_code, detail.job.cost, detail.job.cpu_ms) == (0, 2_625_000_000, 9)
    (attempt,) = detail.attempts
    assert (attempt.state, attempt.placement[0].node, attempt.placement[0].gpus) == ("succeeded", "n1", (0,))


def test_a_statement_runs_from_page_to_page_and_from_time_to_time(model: ReadModel, run: Run) -> None:
    whole = queries.statement(model, "/", "acme/vision", Unit.MONEY, rows=1_000)
    assert len(whole.lines) > 20
    assert not whole.next
    assert whole.opening.left == 0
    grants = run.state.ledger.accounts["acme/vision"].grants[Unit.MONEY]
    assert whole.closing.left == sum(grant.left for grant in grants)
    after, balance, lines = "", whole.opening, []
    while True:
        page = queries.statement(model, "/", "acme/vision", Unit.MONEY, after=after, rows=7)
        assert page.opening == balance
        balance, after = page.closing, page.next
        lines += page.lines
        if not after:
            break
    assert tuple(lines) == whole.lines
    assert balance == whole.closing
    middle = whole.lines[len(whole.lines) // 2].at
    before = queries.statement(model, "/", "acme/vision", Unit.MONEY, until=middle, rows=1_000)
    since = queries.statement(model, "/", "acme/vision", Unit.MONEY, since=middle, rows=1_000)
    assert before.lines + since.lines == whole.lines
    assert since.opening == before.closing
    nothing = queries.statement(model, "/", "acme/text", Unit.STORAGE, until=START)
    assert (nothing.lines, nothing.closing) == ((), nothing.opening)
    for bad in ({"since": 5, "until": 4}, {"since": -1}, {"until": 2**63}):
        with pytest.raises(InvalidRequest):
            queries.statement(model, "/", "acme", Unit.MONEY, **bad)
    with pytest.raises(NotFound):
        queries.statement(model, "/", "nobody", Unit.MONEY)


def test_totals_of_a_subtree_are_even_and_notice_a_lost_posting(run: Run, empty: ReadModel) -> None:
    rebuild(run.store, empty)
    for within in ("/", "acme", "acme/vision", "zeta"):
        assert queries.totals(empty, within).even
        assert queries.totals(empty, within).lines
    with empty.write() as connection:
        connection.exec_driver_sql("DELETE FROM postings WHERE seq = (SELECT max(seq) FROM postings)")
    assert not queries.totals(empty).even


def test_cursors_of_other_queries_are_refused(model: ReadModel) -> None:
    first = queries.list_jobs(model, "acme", rows=2)
    assert first.next
    asks: list[Callable[[], Any]] = [
        lambda: queries.list_jobs(model, "/", after=first.next),
        lambda: queries.list_jobs(model, "acme", JobFilter(name="x"), after=first.next),
        lambda: queries.list_grants(model, "acme", after=first.next),
        lambda: queries.list_jobs(model, "acme", after=first.next[:-2]),
        lambda: queries.list_jobs(model, "acme", after="*" * 40),
        lambda: queries.list_jobs(model, "acme", after="\u00fc"),
        lambda: queries.list_jobs(model, "acme", after="A" * 10_000),
        lambda: queries.list_jobs(model, "acme", rows=0),
        lambda: queries.list_jobs(model, "acme", rows=1_001),
        lambda: queries.list_jobs(model, "acme", min_seq=-1),
        lambda: queries.list_jobs(model, "acme", min_seq=2**63),
    ]
    for ask in asks:
        with pytest.raises(InvalidRequest):
            ask()


@pytest.mark.parametrize(
    "name",
    ["", "0x1", "1_", "_1", "1_2_3", "-1", "1.0", "\u0663", "9" * 30, "1; DROP TABLE jobs", "01", "1 "],
)
def test_names_that_no_job_can_have(model: ReadModel, name: str) -> None:
    with pytest.raises(InvalidRequest):
        queries.show_job(model, "/", name)


def test_other_bad_input(model: ReadModel) -> None:
    for ask in (
        lambda: queries.list_accounts(model, "/", below="a\x00b"),
        lambda: queries.list_accounts(model, "/", state="odd"),
        lambda: queries.list_tokens(model, "/", state="odd"),
        lambda: queries.list_nodes(model, state="odd"),
        lambda: queries.show_grant(model, "/", -1),
        lambda: queries.show_hold(model, "/", 2**64),
        lambda: queries.show_token(model, "/", "x" * 1_000),
    ):
        with pytest.raises(InvalidRequest):
            ask()


def test_nodes_tokens_and_prices(model: ReadModel, run: Run) -> None:
    shown = pages(lambda **page: queries.list_nodes(model, **page), 2)
    assert [node.node for node in shown] == sorted(run.state.nodes)
    assert queries.show_node(model, shown[0].node) == shown[0]
    with pytest.raises(NotFound):
        queries.show_node(model, "nowhere")
    books = queries.list_prices(model)
    number, book = run.state.price_book(run.now)
    assert [entry.number for entry in books if entry.in_force] == [number]
    assert books[number].gpu_nano == book.gpu_nano
    assert len(books) == len(run.state.prices)
    token = next(iter(run.state.tokens.values()))
    run.now, now = token.expires_at + 1, run.now
    try:
        assert queries.show_token(model, "/", token.id).state in ("expired", "revoked")
        assert token.id not in [t.token for t in queries.list_tokens(model, "/", state="active").rows]
    finally:
        run.now = now
    assert queries.position(model).hub == "centre"


def test_a_reader_waits_for_its_write_and_no_longer_than_asked(empty: ReadModel) -> None:
    run = Run()
    run.found()
    assert run.head is not None
    with pytest.raises(NotCaughtUp) as refusal:
        queries.list_accounts(empty, "/", min_seq=run.head.seq)
    assert refusal.value.params["seq"] == 0
    empty.wait_ms = 20_000
    projector = Projector(empty)
    thread = threading.Thread(target=Tailer(run.store, projector, 3).catch_up)
    thread.start()
    page = queries.list_accounts(empty, "acme", min_seq=run.head.seq)
    thread.join()
    assert page.seq >= run.head.seq
    assert [row.account for row in page.rows] == ["acme", "acme/text", "acme/vision", "acme/vision/ann"]


def test_many_readers_while_it_is_written(run: Run, empty: ReadModel) -> None:
    """Each read sees one whole record: the sums are even at every moment."""
    failures: list[BaseException] = []
    done = threading.Event()

    def reading() -> None:
        try:
            while not done.is_set():
                assert queries.totals(empty).even
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=reading) for _ in range(3)]
    for thread in threads:
        thread.start()
    Tailer(run.store, Projector(empty), 7).catch_up()
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


# --- schema ---------------------------------------------------------------------------------------------------------


def test_rows_are_the_tables_columns() -> None:
    assert set(ROWS) == set(schema.metadata.sorted_tables)
    for table, row in ROWS.items():
        assert [column.name for column in table.columns] == list(row.__struct_fields__), table.name
    columns = {f"{t.name}.{c.name}" for t in schema.metadata.sorted_tables for c in t.columns}
    assert columns >= schema.JSON_COLUMNS


def test_migrations_give_the_declared_schema(empty: ReadModel) -> None:
    with empty.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


def test_readers_need_tables_and_the_right_version(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/read.db"
    with pytest.raises(StoreUnavailable, match="tables"):
        open_read_model(url)
    open_read_model(url, migrate=True).close()
    open_read_model(url).close()
    with sqlite3.connect(tmp_path / "read.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for migrate in (True, False):
        with pytest.raises(StoreTooNew, match="9999"):
            open_read_model(url, migrate=migrate)
    assert migration.head() in migration.known()


@pytest.mark.parametrize("url", ["", "mysql://x", "sqlite://", "sqlite:///:memory:", "read.db", "postgres:x"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidRequest):
        open_read_model(url)


def test_databases_that_can_not_be_used(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        open_read_model(f"sqlite:///{tmp_path}/missing/read.db", migrate=True)
    (tmp_path / "read.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(MintyardError):
        open_read_model(f"sqlite:///{tmp_path}/read.db", migrate=True)
