"""The projection: what the read model tells is what the state says, however the records were cut into batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.read_model_run import SECRET, Run

from mintyard.app import projection
from mintyard.app.projector import HANDLERS, Projector, dump, open_projector, rebuild
from mintyard.app.read_model import ReadModel, open_read_model, queries, schema
from mintyard.app.read_model.views import JobView
from mintyard.app.tailer import START, Entry, Tailer, entries_after
from mintyard.domain import commands as c
from mintyard.domain.errors import InvariantBroken, VerificationFailed
from mintyard.domain.events import AnyEvent
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.units import Unit


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadModel]:
    opened = open_read_model(f"sqlite:///{tmp_path_factory.mktemp('read')}/read.db", migrate=True)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadModel]:
    opened = open_read_model(f"sqlite:///{tmp_path_factory.mktemp('read')}/read.db", migrate=True)
    yield opened
    opened.close()


def played(seed: int, ticks: int = 60) -> Run:
    run = Run(seed)
    run.found()
    run.play(ticks)
    return run


def entries_of(run: Run) -> list[Entry]:
    return entries_after(START, run.store.read(0, 10_000))


def test_every_event_is_projected_or_named_as_silent() -> None:
    assert set(HANDLERS) | projection.SILENT == set(get_args(AnyEvent))
    assert not set(HANDLERS) & projection.SILENT


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_batches_of_any_size_give_the_same_rows(model: ReadModel, other: ReadModel, seed: int) -> None:
    run = played(seed)
    rebuild(run.store, model)
    empty(other)
    random = Random(seed)
    entries = entries_of(run)
    projector = Projector(other)
    at = 0
    while at < len(entries):
        size = random.randint(1, 9)
        projector.take(entries[at : at + size])
        if random.random() < 0.3:
            projector.take(entries[max(0, at - 3) : at + size])  # once more, and what was before it
        if random.random() < 0.3:
            projector = Projector(other)  # a new process
        at += size
    assert dump(model) == dump(other)
    check_against_state(model, run)
    check_money(model, run)


def empty(model: ReadModel) -> None:
    with model.write() as connection:
        for table in schema.metadata.sorted_tables:
            connection.execute(table.delete())


def check_against_state(model: ReadModel, run: Run) -> None:
    state = run.state
    rows = dump(model)
    accounts = {row[0]: row[2] for row in rows["accounts"]}
    assert accounts == {name: account.state for name, account in state.ledger.accounts.items()}
    assert [row[:8] + row[10:] for row in rows["grants"]] == [
        (
            g.id,
            g.account,
            g.unit.value,
            g.state,
            g.priority,
            g.starts_at,
            g.expires_at,
            g.note,
            g.granted,
            g.refunded,
            g.left,
            g.held,
            g.spent,
            g.expired,
        )
        for _, g in sorted(state.ledger.grants.items())
    ]
    tokens = {row[0]: row[1:5] for row in rows["tokens"]}
    assert tokens == {t.id: (t.account, t.name, t.state, t.expires_at) for t in state.tokens.values()}
    jobs = {row[0]: row for row in rows["jobs"]}
    live = {n: row for n, row in jobs.items() if not row[13]}
    assert set(live) == set(state.jobs)
    for number, job in state.jobs.items():
        row = live[number]
        assert row[1:6] == (
            job.mandate.account.id,
            job.mandate.blocks[0].block if job.mandate.blocks else "",
            job.spec.content.name,
            job.state,
            job.spec.id,
        )
        assert (row[6], row[7], row[9], row[12], row[14]) == (
            job.array_job,
            job.array_index,
            job.submitted_at,
            job.began_at,
            job.attempt,
        )
        assert (row[20], row[21]) == (job.spent, job.reason)
        if job.state == "pending":
            assert row[10] == job.queued_at
    for number, (final, _) in state.ended.items():
        if number in jobs:
            assert jobs[number][4] == final
    check_nodes(rows["nodes"], run)
    check_holds(rows["holds"], run)
    assert SECRET not in repr(rows)


def check_nodes(rows: list[tuple], run: Run) -> None:
    state = run.state
    present = {row[0]: row for row in rows if row[3] != "removed"}
    assert set(present) == set(state.nodes)
    used: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for job in state.jobs.values():
        shape = job.spec.content.shape
        for place, _ in job.placement if job.state in LIVE_JOB_STATES else ():
            sums = used[state.nodes_by_index[place].name]
            sums[0] += shape.cpus_milli
            sums[1] += shape.memory_mib
            sums[2] += shape.gpus_milli
    for name, node in state.nodes.items():
        row = present[name]
        assert row[1:8] == (
            node.index,
            node.engine,
            node.state,
            node.cpus_milli,
            node.memory_mib,
            node.gpus,
            node.gpu_model,
        )
        assert row[10] == node.reason
        assert row[13] == node.running
        assert list(row[14:]) == used[name]


def check_holds(rows: list[tuple], run: Run) -> None:
    held = {row[0]: row for row in rows if row[4] == "held"}
    assert set(held) == set(run.state.ledger.holds)
    for number, hold in run.state.ledger.holds.items():
        row = held[number]
        assert row[1:4] == (hold.account, hold.job, hold.attempt)
        lines = msgspec.json.decode(row[5])
        assert [(line[1], line[2], line[3], tuple(line[4])) for line in lines] == [
            (line.unit.value, line.mask, line.amount, line.legs) for line in hold.lines
        ]
        for line in lines:
            assert {run.state.ledger.grants[grant].account for grant in line[4][::2]} == {line[0]}
        assert msgspec.json.decode(row[7]) == (hold.drawn or {})
        assert row[13] == hold.expires_at


def check_money(model: ReadModel, run: Run) -> None:
    """Totals by two countings, statements against the state, and receipts against the postings."""
    totals = queries.totals(model)
    assert totals.even
    by_unit = {line.balance.unit: line.balance for line in totals.lines}
    for unit, sums in run.state.ledger.totals.items():
        told = by_unit.get(unit)
        amounts = (
            (0,) * 6
            if told is None
            else (-told.granted, -told.refunded, told.left, told.held, told.spent, told.expired)
        )
        assert list(amounts) == sums
    for account in run.state.ledger.accounts.values():
        for unit, grants in account.grants.items():
            told = queries.statement(model, "/", account.id, unit, rows=1_000)
            if not told.next:
                assert told.closing.left == sum(grant.left for grant in grants)
                assert told.closing.held == sum(grant.held for grant in grants)
                assert told.closing.spent == sum(grant.spent for grant in grants)
                assert told.closing.even
    check_receipts(model)


def check_receipts(model: ReadModel) -> None:
    posted: defaultdict[tuple[int, int, str, str], int] = defaultdict(int)
    given: defaultdict[tuple[int, int, str, str], int] = defaultdict(int)
    for row in dump(model)["postings"]:
        account, unit, debit, credit, amount, job, attempt = row[3], row[5], row[6], row[7], row[8], *row[11:]
        if job and credit == "spent":
            posted[job, attempt, account, unit] += amount
        if job and debit == "refunds":
            given[job, attempt, account, unit] += amount
    after = ""
    seen = 0
    while True:
        page = queries.list_jobs(model, "/", after=after, rows=50)
        for job in page.rows:
            cost = 0
            for receipt in queries.receipt(model, "/", job.name).receipts:
                seen += 1
                assert sum(line.money for line in receipt.resources) == receipt.money
                cost += receipt.money if not receipt.refund_cause else 0
                for line in receipt.charges:
                    key = (job.job, receipt.attempt, line.account, line.unit.value)
                    assert line.amount == posted.pop(key, 0)
                    assert line.refunded == given.pop(key, 0)
                    if line.unit is Unit.MONEY:
                        money = {resource.unit: resource.money for resource in receipt.resources}
                        assert line.listed == sum(money.get(unit, 0) for unit in line.resources)
                    assert line.amount <= line.listed
            assert cost == job.cost
        after = page.next
        if not after:
            break
    assert not any(posted.values())
    assert not any(given.values())


@pytest.mark.slow
def test_the_random_runs_reach_what_matters() -> None:
    """Else the comparisons above compare nothing: over a few seeds every kind of event was projected."""
    kinds = set()
    for seed in range(12):
        for entry in entries_of(played(seed, 120)):
            kinds.update(type(event) for event in entry.events)
    assert set(get_args(AnyEvent)) - kinds <= {projection.e.FormatRaised, projection.e.AccountTokensRevoked}


def test_a_crash_in_the_middle_of_a_batch_leaves_nothing_of_it(
    model: ReadModel, other: ReadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(3)
    entries = entries_of(run)
    rebuild(run.store, model)
    empty(other)
    projector = Projector(other)
    projector.take(entries[:30])
    before = dump(other)
    fold = projection.Projection.fold
    for broken_at in (31, 40, 45):

        def failing(self: projection.Projection, entry: Entry, at: int = broken_at) -> None:
            if entry.seq == at:
                raise KeyError("power cut")
            fold(self, entry)

        monkeypatch.setattr(projection.Projection, "fold", failing)
        with pytest.raises(InvariantBroken, match=f"record {broken_at}"):
            projector.take(entries[30:50])
        assert dump(other) == before
    monkeypatch.undo()
    projector.take(entries[30:])
    assert dump(other) == dump(model)


def test_gaps_and_foreign_records_are_refused(other: ReadModel) -> None:
    run, foreign = played(1), played(2, 150)
    rebuild(run.store, other)
    before = dump(other)
    projector = Projector(other)
    last = projector.checkpoint.seq
    run.play(5)
    fresh = entries_of(run)
    with pytest.raises(VerificationFailed):
        projector.take(fresh[last + 1 :])
    with pytest.raises(VerificationFailed, match="rebuild"):
        projector.take(entries_of(foreign)[last - 1 :])
    with pytest.raises(VerificationFailed):
        projector.take([fresh[last + 1], fresh[last]])
    assert dump(other) == before
    projector.take(fresh)
    assert projector.checkpoint.seq == len(fresh)
    assert projector.lag(run.store).records == 0


def test_another_journal_is_noticed_and_projected_anew(other: ReadModel) -> None:
    run, foreign = played(1), played(2)
    rebuild(foreign.store, other)
    projector = open_projector(run.store, other)
    Tailer(run.store, projector).catch_up()
    check_against_state(other, run)


def test_a_projector_goes_on_when_another_rebuilds(model: ReadModel, other: ReadModel) -> None:
    run = played(4)
    rebuild(run.store, model)
    projector = open_projector(run.store, other)
    Tailer(run.store, projector).catch_up()
    rebuild(run.store, other)
    run.play(4)
    empty(other)  # someone has begun to rebuild it, and got nowhere yet
    tailer = Tailer(run.store, projector, batch_records=16)
    while projector.checkpoint.seq < (run.head.seq if run.head else 0):
        tailer.step()
    rebuild(run.store, model)
    assert dump(other) == dump(model)


def test_amounts_beyond_64_bits_are_kept(other: ReadModel) -> None:
    """A grant may be spent again after a refund: its sums pass 2^63 though no posting does."""
    run = Run()
    run.tick(c.Found("centre"), c.OpenAccount(None, "acme"))
    most = 2**62
    run.tick(c.CreateGrant(None, "acme", Unit.OUTPUT_TOKENS, most))
    for number in (1, 2):
        end = run.now + 10**12
        run.tick(c.PlaceHold(None, "acme", {Unit.OUTPUT_TOKENS: most}, end))
        run.tick(c.SettleHold(None, number, {Unit.OUTPUT_TOKENS: most}))
        run.tick(c.Refund(None, 1, most))
    rebuild(run.store, other)
    balance = queries.show_grant(other, "/", 1).balance
    assert (balance.spent, balance.refunded, balance.left) == (2 * most, most, 0)
    assert queries.totals(other).even
    told = queries.statement(other, "acme", "acme", Unit.OUTPUT_TOKENS, rows=2)
    while told.next:
        told = queries.statement(other, "acme", "acme", Unit.OUTPUT_TOKENS, rows=2, after=told.next)
    assert told.closing == balance


def test_a_view_names_what_runs_but_not_its_environment(model: ReadModel) -> None:
    run = played(5)
    rebuild(run.store, model)
    job = queries.list_jobs(model, "/", rows=1).rows[0]
    assert isinstance(job, JobView)
    assert job.spec.command == "python train.py"
    assert job.spec.workdir == "/data"


def test_the_database_is_a_file_of_its_own(tmp_path: Path) -> None:
    opened = open_read_model(f"sqlite:///{tmp_path}/read.db", migrate=True)
    with opened.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    opened.close()
    assert (tmp_path / "read.db").exists()
