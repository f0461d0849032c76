"""The planner: what it says is what the core then does, it shows nothing of others, and asking changes nothing."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.read_model_run import Run

from mintyard.app.planner import Planner, open_planner
from mintyard.app.questions import Counts, CountState, ExplainJob, Explanation, Quote, QuoteJobs
from mintyard.app.snapshots import Snapshotter
from mintyard.domain import commands as c
from mintyard.domain import snapshot
from mintyard.domain.errors import (
    InvariantBroken,
    MintyardError,
    NotCaughtUp,
    NotFound,
    Refused,
    ScopeMissing,
    TokenUnregistered,
)
from mintyard.domain.jobs.reports import AttemptStarted
from mintyard.domain.jobs.spec import Array, Dependency, JobRequest, JobSpec, Shape, When
from mintyard.domain.ledger.book import LEDGER_ACCOUNTS
from mintyard.domain.replies import Batch, Refusal, Ticket
from mintyard.domain.scheduling.choices import Backfill
from mintyard.domain.tokens.authority import Authority, Block, Scope
from mintyard.domain.units import NS_PER_MS, SCALE, Unit

HOUR_MS = 3_600_000


def spec(**changes: object) -> JobSpec:
    shape = Shape(**{"cpus_milli": 1_000, "memory_mib": 512, **changes})
    return JobSpec("train", shape, time_limit_ms=HOUR_MS)


def started() -> tuple[Run, Planner]:
    run = Run()
    run.found()
    planner = open_planner(run.store, clock=lambda: run.now)
    planner.catch_up()
    return run, planner


def of(run: Run, account: str) -> Authority:
    return next(token for token in run.tokens if token.account == account)


def submit(run: Run, account: str, *jobs: JobRequest) -> list[Ticket]:
    (reply,) = run.tick(c.Submit(of(run, account), jobs))
    assert isinstance(reply, Batch), reply
    return [part for part in reply.parts if isinstance(part, Ticket)]


def explained(planner: Planner, job: int, within: str = "/") -> Explanation:
    planner.catch_up()
    found = planner.ask(ExplainJob(job, within))
    assert isinstance(found, Explanation)
    assert found.seq == planner.seq
    return found


def quoted(planner: Planner, authority: Authority | None, *jobs: JobRequest) -> Quote:
    planner.catch_up()
    found = planner.ask(QuoteJobs(authority, jobs))
    assert isinstance(found, Quote)
    return found


# --- explain --------------------------------------------------------------------------------------------------------


def test_a_job_waits_for_gpus_until_the_running_ones_end() -> None:
    run, planner = started()
    wide = JobRequest(spec(gpus=4), array=Array(tuple(range(4))))
    submit(run, "acme/text", wide)
    run.tick(c.Tick())
    placed_at = run.now
    (ticket,) = submit(run, "acme/text", JobRequest(spec(gpus=2)))
    found = explained(planner, ticket.job, "acme")
    assert (found.state, found.reason, found.ahead) == ("pending", "waiting_for_resources", 0)
    assert found.starts_at == placed_at + HOUR_MS * NS_PER_MS
    assert "4 of 4 nodes have the GPUs, but not free." in found.details
    assert found.changes == ("Ask for 0 GPUs a member instead of 2.",)
    running = explained(planner, 2)
    assert (running.state, running.starts_at) == ("starting", placed_at)
    assert "on n0." in running.details[0]


def test_a_reserved_start_and_who_stands_behind_it_are_explained() -> None:
    run = Run()
    run.found()
    easy = c.Tick(backfill=Backfill.EASY)
    planner = open_planner(run.store, clock=lambda: run.now, round_=easy)
    submit(run, "acme/text", JobRequest(spec(gpus=2), array=Array(tuple(range(4)))))
    run.tick(easy)
    placed_at = run.now
    (wide,) = submit(run, "acme/text", JobRequest(spec(gpus=4, members=4)))
    (long,) = submit(
        run, "acme/text", JobRequest(JobSpec("long", spec(gpus=2).shape, time_limit_ms=2 * HOUR_MS))
    )
    run.tick(easy)
    first = explained(planner, wide.job, "acme")
    assert first.starts_at == placed_at + HOUR_MS * NS_PER_MS
    assert any("It has a start reserved at" in line and "n0, n1, n2, n3" in line for line in first.details)
    behind = explained(planner, long.job, "acme")
    assert (behind.state, behind.reason) == ("pending", "reserved_for_higher_priority")


def test_held_blocked_and_later_jobs_say_why() -> None:
    run, planner = started()
    later = JobRequest(JobSpec("late", begin_at=run.now + 10**15))
    first, held, after, late = submit(
        run,
        "acme/text",
        JobRequest(spec(), "a"),
        JobRequest(spec(), "b", held=True),
        JobRequest(spec(), "c", dependencies=(Dependency(When.OK, "a"),)),
        later,
    )
    assert explained(planner, held.job).reason == "held"
    waits = explained(planner, after.job)
    assert waits.reason == "dependency"
    assert f"Job {first.job} (pending): afterok." in waits.details
    found = explained(planner, late.job)
    assert (found.reason, found.starts_at) == ("begin_time", run.now - 1 * NS_PER_MS + 10**15)
    assert explained(planner, first.job).details[0] == "The next round starts it."


def test_an_array_is_explained_by_the_task_that_waits() -> None:
    run, planner = started()
    (ticket,) = submit(run, "acme/text", JobRequest(spec(), array=Array((0, 1, 2), throttle=1)))
    run.tick(c.Tick())
    run.tick(c.TakeReports("local", (AttemptStarted(ticket.job + 1, 1, "b"),)))
    found = explained(planner, ticket.job)
    assert (found.job, found.reason) == (ticket.job, "array_throttle")
    assert found.details[0] == "3 of 3 tasks are live, 1 of them have started."
    assert "1 tasks of its array run, the array allows 1." in found.details


def test_the_explanation_agrees_with_the_next_round() -> None:
    """A job said to start in the next round does; one said to wait doesn't."""
    run, planner = started()
    for gpus in (4, 4, 3, 3, 2, 1, 1):
        submit(run, "acme/text", JobRequest(spec(gpus=gpus)))
    said = {job: explained(planner, job).details[0] == "The next round starts it." for job in run.state.jobs}
    run.tick(c.Tick(), step_ms=0)
    assert said == {job.id: job.state == "starting" for job in run.state.jobs.values()}
    assert set(said.values()) == {True, False}


def test_jobs_of_others_are_not_found() -> None:
    run, planner = started()
    (ticket,) = submit(run, "acme/text", JobRequest(spec(), array=Array((1,))))
    for number in (ticket.job, ticket.job + 1, 77, -1, 2**70):
        with pytest.raises(NotFound):
            explained(planner, number, "zeta")
    run.tick(c.ControlJobs(None, "cancel", (ticket.job,)))
    assert explained(planner, ticket.job + 1, "acme").state == "cancelled"
    with pytest.raises(NotFound):
        explained(planner, ticket.job + 1, "acme/vision")
    with pytest.raises(NotFound):
        explained(planner, ticket.job, "acme/tex")


# --- quote ----------------------------------------------------------------------------------------------------------


def test_a_quote_tells_what_submitting_holds() -> None:
    run, planner = started()
    jobs = (JobRequest(spec(gpus=1)), JobRequest(spec(gpus=1, gpu_milli=250), array=Array((0, 1, 2))))
    quote = quoted(planner, of(run, "acme/vision/ann"), *jobs)
    assert quote.refusal is None
    assert (quote.starts_at, quote.reason) == (run.now, "")
    before = {g.id: g.held for g in run.state.ledger.grants.values()}
    tickets = submit(run, "acme/vision/ann", *jobs)
    assert quote.per_job == tuple(ticket.cost for ticket in tickets)
    assert quote.cost == sum(quote.per_job)
    held: dict[tuple[str, Unit], int] = {}
    for grant in run.state.ledger.grants.values():
        if grant.held > before[grant.id]:
            key = (grant.account, grant.unit)
            held[key] = held.get(key, 0) + grant.held - before[grant.id]
    own = {key: amount for key, amount in held.items() if key[0] == "acme/vision/ann"}
    assert {(line.account, line.unit): line.amount for line in quote.lines} == own
    assert own == {("acme/vision/ann", Unit.GPU): (1_000 + 3 * 250) * HOUR_MS}
    assert quote.lines[0].left == 300 * SCALE[Unit.GPU]
    whole = quoted(planner, None, *jobs)
    assert whole.refusal is None or whole.refusal.code == "wrong_resource_type"


def test_a_quote_carries_the_refusal_that_submitting_gives() -> None:
    run, planner = started()
    cases = [
        (
            JobRequest(JobSpec("long", Shape(gpus=4, members=4), time_limit_ms=366 * 24 * HOUR_MS)),
            "quota_exhausted",
        ),
        (JobRequest(JobSpec("cheap", Shape(gpus=1), budget=1)), "budget_too_small"),
        (JobRequest(spec(gpus=9)), "infeasible"),
        (JobRequest(JobSpec("bad name!")), "invalid_name"),
        (JobRequest(spec(cpus_milli=-1)), "invalid_spec"),
        (JobRequest(spec(), array=Array(())), "invalid_spec"),
    ]
    for job, code in cases:
        quote = quoted(planner, of(run, "acme/text"), job)
        assert quote.refusal is not None
        assert quote.refusal.code == code
        (reply,) = run.tick(c.Submit(of(run, "acme/text"), (job,)))
        assert isinstance(reply, Refusal)
        assert reply.problem == quote.refusal
        assert quote.starts_at is None
    assert quoted(planner, of(run, "acme/text"), cases[0][0]).cost > 0


def test_who_may_not_submit_gets_no_quote() -> None:
    run, planner = started()
    end = run.now + 10**15
    stranger = Authority("acme", (Block("0" * 32, end),), frozenset({Scope.JOB_SUBMIT}), end)
    with pytest.raises(TokenUnregistered):
        quoted(planner, stranger, JobRequest(spec()))
    known = of(run, "acme")
    reader = Authority("acme", known.blocks, frozenset({Scope.JOB_READ}), known.expires_at)
    with pytest.raises(ScopeMissing):
        quoted(planner, reader, JobRequest(spec()))


# --- count, wait, follow --------------------------------------------------------------------------------------------


def test_counts_are_the_state() -> None:
    run, planner = started()
    run.play(80)
    planner.catch_up()
    counts = planner.ask(CountState())
    assert isinstance(counts, Counts)
    assert sum(counts.jobs.values()) == len(run.state.jobs)
    assert sum(counts.nodes.values()) == len(run.state.nodes)
    for unit, sums in run.state.ledger.totals.items():
        assert counts.ledger.get(unit.value, dict.fromkeys(LEDGER_ACCOUNTS, "0")) == dict(
            zip(LEDGER_ACCOUNTS, map(str, sums), strict=True)
        )
    total = run.state.cluster.total()
    assert counts.total == {
        "gpus_milli": total.gpus_milli,
        "cpus_milli": total.cpus_milli,
        "memory_mib": total.memory_mib,
    }


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_asking_changes_nothing(seed: int) -> None:
    """The tailed state stays, byte for byte, what the writer's is, whatever is asked in between."""
    run = Run(seed)
    run.found()
    planner = open_planner(run.store, clock=lambda: run.now)
    for _ in range(12):
        run.play(4)
        planner.catch_up()
        for job in [*run.state.jobs, *run.state.arrays, 10**9]:
            try:
                planner.ask(ExplainJob(job, run.random.choice(("/", "acme", "zeta"))))
            except NotFound:
                pass
        for token in run.random.sample(run.tokens, 3):
            try:
                planner.ask(QuoteJobs(token, (run._request(0), run._request(1))))
            except Refused:
                pass
        planner.ask(CountState())
    assert snapshot.state_hash(planner._replica.state) == snapshot.state_hash(run.state)


def test_a_question_waits_for_its_record_and_gives_up() -> None:
    run, _ = started()
    planner = Planner(run.store, clock=lambda: run.now, wait_ms=20)
    with pytest.raises(NotCaughtUp):
        planner.ask(ExplainJob(1, "/", min_seq=5))
    with pytest.raises(MintyardError):
        planner.ask(ExplainJob(1, "/", min_seq=-1))
    planner = Planner(run.store, clock=lambda: run.now, wait_ms=20_000)
    stop = threading.Event()
    thread = threading.Thread(target=planner.run, args=(stop,))
    thread.start()
    try:
        for _ in range(5):
            (ticket,) = submit(run, "acme/text", JobRequest(spec()))
            planner.notify()
            assert run.head is not None
            found = planner.ask(ExplainJob(ticket.job, "acme", min_seq=run.head.seq))
            assert isinstance(found, Explanation)
            assert found.seq >= run.head.seq
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()


def test_it_starts_from_a_snapshot() -> None:
    run, _ = started()
    run.play(30)
    snapshotter = Snapshotter(run.store)
    snapshotter.tailer.catch_up()
    saved = snapshotter.save()
    run.play(10)
    planner = open_planner(run.store)
    assert planner.seq == saved
    planner.catch_up()
    assert snapshot.state_hash(planner._replica.state) == snapshot.state_hash(run.state)


def test_a_planner_that_can_not_follow_answers_no_more() -> None:
    run, planner = started()
    run.state.jobs.clear()
    del planner._replica.state.ledger.accounts["acme/text"]
    run.tick(self_grant(run))
    with pytest.raises(MintyardError):
        planner.catch_up()
    with pytest.raises(InvariantBroken):
        planner.ask(CountState())


def self_grant(run: Run) -> c.CreateGrant:
    return c.CreateGrant(None, "acme/text", Unit.CPU, 5)
