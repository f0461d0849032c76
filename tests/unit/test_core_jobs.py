"""Jobs in the core: dependencies, arrays, gangs, attempts and what reports of every kind do to them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core_world import GPU_JOB, HOUR_NS, World, usd

from mintyard.domain import commands as c
from mintyard.domain import errors, snapshot
from mintyard.domain import state as state_room
from mintyard.domain.events import JobEnded, JobMoved, JobPlaced, JobRequeued
from mintyard.domain.jobs.dag import find_cycle, resolve
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, NodeGone, NodeSeen, Outcome
from mintyard.domain.jobs.spec import Array, Dependency, JobRequest, JobSpec, Shape, When

SMALL = JobSpec("small", Shape(500, 256), time_limit_ms=60_000)


def named(
    name: str, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = (), **more: object
) -> JobRequest:
    spec = JobSpec(name, Shape(500, 256), time_limit_ms=60_000, inputs=inputs, outputs=outputs)
    return JobRequest(spec, ref=name, **more)


def states(world: World) -> dict[int, str]:
    return {number: job.state for number, job in world.state.jobs.items()}


def graph(world: World, *jobs: JobRequest) -> list[int]:
    return [ticket.job for ticket in world.do(c.Submit(world.ann, jobs)).parts]


def test_files_make_the_edges_and_an_end_releases_the_next() -> None:
    world = World()
    a, b, d = graph(world, named("a", outputs=("x",)), named("b", ("x",), ("y",)), named("d", ("x", "y")))
    assert states(world) == {a: "pending", b: "blocked", d: "blocked"}
    assert world.round() == [a]
    world.end(a)
    assert states(world) == {b: "pending", d: "blocked"}
    world.round()
    world.end(b)
    assert states(world) == {d: "pending"}


def test_a_cycle_is_refused_and_shown() -> None:
    world = World()
    error = world.refused(
        c.Submit(
            world.ann, (named("a", ("z",), ("x",)), named("b", ("x",), ("y",)), named("d", ("y",), ("z",)))
        )
    )
    assert isinstance(error, errors.DependencyCycle)
    names = error.params["cycle"].split(" -> ")
    assert names[0] == names[-1]
    assert sorted(names[1:]) == ["a", "b", "d"]


@pytest.mark.parametrize("array", [None, Array((0, 1))])
def test_a_job_alone_that_waits_for_itself_or_for_nobody_is_refused(array: Array | None) -> None:
    """A wrong `needs` in a file of one job must not let it start at once."""
    world = World()
    for ref, kind in (("a", errors.DependencyCycle), ("typo", errors.InvalidSpec)):
        job = named("a", array=array, dependencies=(Dependency(When.OK, ref=ref),))
        assert isinstance(world.refused(c.Submit(world.ann, (job,))), kind)
    assert states(world) == {}


def test_a_job_may_read_what_it_writes_itself_but_no_task_waits_for_its_own_array() -> None:
    world = World()
    kept = named("kept", ("state",), ("state",))
    assert len(graph(world, kept)) == 1
    assert len(graph(world, kept, named("other", ("state",)))) == 2
    each = named("each", ("part-%a",), ("part-%a",), array=Array((0, 1)))
    assert len(graph(world, each)) == 1
    waits = named("waits", ("part-0",), ("part-%a",), array=Array((0, 1)))
    assert isinstance(world.refused(c.Submit(world.ann, (waits,))), errors.DependencyCycle)


@given(st.integers(2, 30), st.data())
def test_a_found_cycle_is_one_and_a_graph_without_is_passed(size: int, data: st.DataObject) -> None:
    edges = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=60))
    before = [[source for source, target in edges if target == vertex] for vertex in range(size)]
    cycle = find_cycle(before)
    if cycle:
        assert cycle[0] == cycle[-1]
        for source, target in pairwise(cycle):
            assert source in before[target]
    else:
        done: set[int] = set()
        while len(done) < size:
            ready = [v for v in range(size) if v not in done and set(before[v]) <= done]
            assert ready
            done.update(ready)


def test_arrays_feed_arrays_task_by_task_and_a_glob_waits_for_all() -> None:
    jobs = (
        named("prepare", outputs=("data",)),
        named("fit", ("data",), ("model-%a",), array=Array((1, 2, 3))),
        named("score", ("model-%a",), ("score-%a",), array=Array((1, 2, 3))),
        named("best", ("score-*",)),
        named("second", ("model-2",)),
    )
    edges = [[(edge.source, edge.task) for edge in of] for of in resolve(jobs)]
    assert edges == [[], [(0, -1)], [(1, -2)], [(2, -1)], [(1, 1)]]
    world = World()
    prepare, fit, score, best, second = graph(world, *jobs)
    world.round()
    world.end(prepare)
    world.round()
    world.end(fit + 2)
    assert world.state.jobs[score + 2].state == "pending"
    assert world.state.jobs[score + 1].state == "blocked"
    assert world.state.jobs[second].state == "pending"
    for task in (fit + 1, fit + 3):
        world.end(task)
    world.round()
    for task in (score + 1, score + 2):
        world.end(task)
    assert world.state.jobs[best].state == "blocked"
    world.end(score + 3)
    assert world.state.jobs[best].state == "pending"


def test_two_writers_of_one_file_are_refused() -> None:
    world = World()
    request = c.Submit(world.ann, (named("a", (), ("x",)), named("b", (), ("x",))))
    assert isinstance(world.refused(request), errors.InvalidSpec)


@pytest.mark.parametrize(
    ("when", "exit_code", "expected"),
    [
        (When.OK, 0, "pending"),
        (When.OK, 1, None),
        (When.NOT_OK, 1, "pending"),
        (When.NOT_OK, 0, None),
        (When.ANY, 1, "pending"),
    ],
)
def test_each_kind_of_dependency(when: When, exit_code: int, expected: str | None) -> None:
    world = World()
    first, then, last = graph(
        world,
        named("a"),
        named("b", dependencies=(Dependency(when, ref="a"),)),
        named("d", dependencies=(Dependency(When.ANY, ref="b"),)),
    )
    world.round()
    world.end(first, exit_code=exit_code)
    assert states(world).get(then) == expected
    if expected is None:
        ended = [(event.job, event.trigger) for event in world.events if isinstance(event, JobEnded)]
        assert (then, "skip") in ended
        assert states(world)[last] == "pending"
    assert all(hold.job in world.state.jobs for hold in world.state.ledger.holds.values())


def test_one_who_is_skipped_hears_no_more_of_the_same_cascade() -> None:
    """`last` is skipped with `then`; the end of `then` would have satisfied its other edge."""
    world = World()
    first, then, last = graph(
        world,
        named("a"),
        named("b", dependencies=(Dependency(When.OK, ref="a"),)),
        named("d", dependencies=(Dependency(When.OK, ref="a"), Dependency(When.ANY, ref="b"))),
    )
    world.round()
    world.end(first, exit_code=1)
    ended = [(event.job, event.trigger) for event in world.events if isinstance(event, JobEnded)]
    assert ended == [(first, "fail"), (then, "skip"), (last, "skip")]
    assert not world.state.jobs
    assert not world.state.ledger.holds
    assert not world.state.dependents


def test_after_waits_for_the_start_only() -> None:
    world = World()
    first, then = graph(world, named("a"), named("b", dependencies=(Dependency(When.STARTED, ref="a"),)))
    world.round()
    assert states(world)[then] == "blocked"
    world.start(first)
    assert states(world)[then] == "pending"
    world.end(first)
    assert states(world) == {then: "pending"}


def test_dependencies_on_earlier_jobs_and_on_those_of_others() -> None:
    world = World()
    (first,) = world.submit(SMALL)
    world.round()
    world.end(first)
    (second,) = world.submit(SMALL, dependencies=(Dependency(When.OK, job=first),))
    assert states(world)[second] == "pending"
    eve = world.token("zeta/eve")
    request = c.Submit(eve, (JobRequest(SMALL, dependencies=(Dependency(When.OK, job=second),)),))
    assert isinstance(world.refused(request), errors.DependencyUnknown)
    request = c.Submit(world.ann, (JobRequest(SMALL, dependencies=(Dependency(When.NOT_OK, job=first),)),))
    assert isinstance(world.refused(request), errors.InvalidSpec)
    request = c.Submit(world.ann, (JobRequest(SMALL, dependencies=(Dependency(When.OK, job=999),)),))
    assert isinstance(world.refused(request), errors.DependencyUnknown)


def test_an_array_starts_at_most_its_throttle() -> None:
    world = World()
    (array,) = world.submit(SMALL, array=Array(tuple(range(5)), 2))
    assert world.round() == [array + 1, array + 2]
    assert world.round() == []
    world.end(array + 1)
    assert world.round() == [array + 3]


def test_a_gang_starts_whole_or_not_at_all() -> None:
    world = World()
    world.do(c.TakeReports("local", (NodeSeen("n2", 4_000, 16_384, 2, "a100"),)))
    (gang,) = world.submit(JobSpec("gang", Shape(1_000, 512, gpus=1, members=6), time_limit_ms=60_000))
    world.round()
    (placed,) = [event for event in world.events if isinstance(event, JobPlaced)]
    assert len(placed.placement) == 6
    assert sum(mask.bit_count() for _, mask in placed.placement) == 6
    (blocked,) = world.submit(JobSpec("two", Shape(500, 256, gpus=1, members=2), time_limit_ms=60_000))
    assert world.round() == []
    world.end(gang)
    assert world.round() == [blocked]


def test_what_no_node_can_ever_run_is_refused_with_what_would_do() -> None:
    world = World()
    error = world.refused(c.Submit(world.ann, (JobRequest(JobSpec("big", Shape(64_000, 512))),)))
    assert isinstance(error, errors.Infeasible)
    assert "8000" in error.cure


def test_with_no_node_known_jobs_wait() -> None:
    world = World(nodes=False)
    assert states(world) == {}
    (job,) = world.submit(SMALL)
    assert world.round() == []
    world.do(c.TakeReports("local", (NodeSeen("n1", 8_000, 16_384),)))
    assert world.round() == [job]


def test_reports_that_are_late_doubled_or_of_another_attempt_change_nothing() -> None:
    world = World()
    (job,) = world.submit(JobSpec("flaky", Shape(500, 256), time_limit_ms=60_000, retries=1))
    world.round()
    world.start(job)
    world.end(job, exit_code=1)
    assert any(isinstance(event, JobRequeued) and event.retry for event in world.events)
    for report in (
        AttemptStarted(job, 1, "boot"),
        AttemptEnded(job, 1, "boot", Outcome.EXITED, run_ms=9),
        AttemptEnded(job, 2, "boot", Outcome.EXITED),
        AttemptEnded(job, 3, "boot", Outcome.EXITED),
        AttemptEnded(999, 1, "boot", Outcome.EXITED),
    ):
        world.do(c.TakeReports("local", (report,)))
        assert not world.events
    world.round()
    assert world.state.jobs[job].attempt == 2
    world.end(job, exit_code=1)
    assert [event.trigger for event in world.events if isinstance(event, JobEnded)] == ["fail"]


def test_an_end_may_come_before_its_start() -> None:
    world = World()
    (job,) = world.submit(SMALL)
    world.round()
    world.end(job)
    world.do(c.TakeReports("local", (AttemptStarted(job, 1, "boot"),)))
    assert not world.events
    assert states(world) == {}


@pytest.mark.parametrize(
    ("outcome", "exit_code", "final"),
    [
        (Outcome.EXITED, 0, "succeed"),
        (Outcome.EXITED, 3, "fail"),
        (Outcome.TIMED_OUT, 0, "time_out"),
        (Outcome.OUT_OF_MEMORY, 0, "fail"),
        (Outcome.NEVER_STARTED, 0, "fail"),
        (Outcome.STOPPED, 0, "cancel"),
    ],
)
def test_how_an_attempt_ends_decides_how_the_job_does(outcome: Outcome, exit_code: int, final: str) -> None:
    world = World()
    (job,) = world.submit(SMALL)
    world.round()
    world.start(job)
    world.end(job, outcome=outcome, exit_code=exit_code)
    assert [event.trigger for event in world.events if isinstance(event, JobEnded)] == [final]


def test_cancelling_what_waits_ends_it_and_what_runs_is_stopped_first() -> None:
    world = World()
    waiting, running = world.submit(SMALL, SMALL)
    world.do(c.ControlJobs(None, "hold", (waiting,)))
    world.round()
    world.do(c.ControlJobs(world.ann, "cancel", (waiting, running)))
    assert states(world) == {running: "stopping"}
    world.end(running, outcome=Outcome.STOPPED)
    assert states(world) == {}
    assert world.grant("acme").held == 0


def test_a_tenant_can_t_release_what_an_operator_holds() -> None:
    world = World()
    (job,) = world.submit(SMALL)
    world.do(c.ControlJobs(None, "hold", (job,)))
    error = world.refused(c.ControlJobs(world.ann, "release", (job,)))
    assert isinstance(error, errors.Forbidden)
    world.do(c.ControlJobs(None, "release", (job,)))
    assert world.round() == [job]


def test_requeue_charges_a_user_and_refunds_when_an_operator_asked() -> None:
    for authority, refunded in ((None, True), ("ann", False)):
        world = World()
        (job,) = world.submit(SMALL)
        world.round()
        world.start(job)
        world.do(c.ControlJobs(authority and world.ann, "requeue", (job,)))
        world.end(job, run_ms=30_000, outcome=Outcome.STOPPED)
        assert states(world)[job] == "pending"
        assert (world.grant("acme").refunded > 0) is refunded


def test_an_attempt_that_can_t_be_paid_is_held_not_lost() -> None:
    world = World()
    (job,) = world.submit(JobSpec("r", GPU_JOB.shape, retries=3))
    world.round()
    world.do(c.AdjustGrant(None, world.grant("acme").id, -world.grant("acme").left))
    world.end(job, run_ms=600_000, exit_code=1)
    held = world.state.jobs[job]
    assert (held.state, held.hold) == ("held", 0)
    assert held.reason.startswith("quota_exhausted: acme is short")
    assert isinstance(world.refused(c.ControlJobs(None, "release", (job,))), errors.QuotaExhausted)
    world.do(c.AdjustGrant(None, world.grant("acme").id, usd("5")))
    world.do(c.ControlJobs(None, "release", (job,)))
    assert world.round() == [job]


def test_a_longer_time_limit_extends_the_hold_or_is_refused() -> None:
    world = World()
    (job,) = world.submit(GPU_JOB)
    world.do(c.UpdateJob(world.ann, job, time_limit_ms=7_200_000))
    assert world.grant("acme").held == usd("10.6")
    error = world.refused(c.UpdateJob(world.ann, job, time_limit_ms=36_000_000))
    assert isinstance(error, errors.QuotaExhausted)
    assert isinstance(world.refused(c.UpdateJob(world.ann, job, priority=9_000)), errors.Forbidden)
    world.do(c.UpdateJob(None, job, priority=9_000))
    world.round()
    assert isinstance(world.refused(c.UpdateJob(world.ann, job, time_limit_ms=1)), errors.WrongState)


def test_a_job_with_a_begin_time_waits_for_it() -> None:
    world = World()
    (job,) = world.submit(JobSpec("later", SMALL.shape, time_limit_ms=60_000, begin_at=world.now + HOUR_NS))
    assert world.round() == []
    world.now += HOUR_NS
    assert world.round() == [job]


def test_a_budget_below_the_ceiling_is_refused() -> None:
    world = World()
    error = world.refused(
        c.Submit(
            world.ann,
            (
                JobRequest(
                    JobSpec("x", GPU_JOB.shape, budget=usd("5")),
                ),
            ),
        )
    )
    assert isinstance(error, errors.BudgetTooSmall)


def test_a_lost_node_gets_nothing_new_and_what_ran_there_is_not_started_again() -> None:
    world = World()
    (job,) = world.submit(SMALL)
    world.round()
    world.start(job)
    world.do(c.TakeReports("local", (NodeGone("n1"),)))
    (waiting,) = world.submit(SMALL)
    assert world.round() == []
    assert states(world) == {job: "running", waiting: "pending"}
    world.do(c.TakeReports("local", (NodeSeen("n1", 8_000, 16_384, 4, "a100"),)))
    assert world.round() == [waiting]


def test_nodes_are_cordoned_drained_and_removed_only_when_empty() -> None:
    world = World()
    (job,) = world.submit(SMALL)
    world.round()
    world.do(c.ControlNode(None, "n1", "drain"))
    (waiting,) = world.submit(SMALL)
    assert world.round() == []
    assert isinstance(world.refused(c.ControlNode(None, "n1", "remove")), errors.WrongState)
    world.end(job)
    world.do(c.ControlNode(None, "n1", "remove"))
    assert not world.state.nodes
    assert states(world) == {waiting: "pending"}


@pytest.mark.parametrize(
    "report",
    [
        NodeSeen("", 1, 1),
        NodeSeen("a b", 1, 1),
        NodeSeen("n", -1, 1),
        NodeSeen("n", 1, 0),
        NodeSeen("n", 2**40, 1),
        NodeSeen("n", 1, 1, 99),
        NodeSeen("n", 1, 1, 1, "bad model"),
    ],
)
def test_a_node_that_can_t_be_is_not_believed(report: NodeSeen) -> None:
    world = World(nodes=False)
    world.do(c.TakeReports("local", (report,)))
    assert not world.state.nodes


def test_another_engine_can_t_speak_for_a_node() -> None:
    world = World()
    world.do(c.TakeReports("other", (NodeGone("n1"), NodeSeen("n1", 1, 1))))
    assert not world.events


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(""),
        JobSpec("a b"),
        JobSpec("x" * 129),
        JobSpec("x", Shape(0, 1)),
        JobSpec("x", Shape(1, 0)),
        JobSpec("x", Shape(-1, 1)),
        JobSpec("x", Shape(2**63, 1)),
        JobSpec("x", Shape(gpus=2, gpu_milli=500)),
        JobSpec("x", Shape(gpus=17)),
        JobSpec("x", Shape(members=0)),
        JobSpec("x", time_limit_ms=0),
        JobSpec("x", time_limit_ms=2**60),
        JobSpec("x", priority=-1),
        JobSpec("x", retries=-1),
        JobSpec("x", budget=-1),
        JobSpec("x", begin_at=-1),
        JobSpec("x", payload=b"x" * 300_000),
    ],
)
def test_a_bad_spec_is_refused_by_the_core_itself(spec: JobSpec) -> None:
    world = World()
    assert isinstance(
        world.refused(c.Submit(world.ann, (JobRequest(spec),))), errors.InvalidSpec | errors.InvalidName
    )


def test_control_of_many_answers_for_each() -> None:
    world = World()
    (array,) = world.submit(SMALL, array=Array((0, 1)))
    reply = world.do(c.ControlJobs(world.ann, "cancel", (array, 77)))
    assert [type(part).__name__ for part in reply.parts] == ["Done", "Done", "Problem"]
    assert not [event for event in world.events if isinstance(event, JobMoved)]
    assert states(world) == {}


def test_a_foreign_job_is_not_there() -> None:
    world = World()
    (job,) = world.submit(SMALL)
    eve = world.token("zeta/eve")
    for command in (c.ControlJobs(eve, "cancel", (job,)), c.UpdateJob(eve, job, 1)):
        assert isinstance(world.refused(command), errors.NotFound)


def test_a_dry_run_answers_the_same_and_leaves_nothing() -> None:
    world = World()
    dry = world.run(c.Submit(world.ann, (JobRequest(GPU_JOB),), dry_run=True))
    assert not world.events
    assert not world.state.jobs
    assert world.do(c.Submit(world.ann, (JobRequest(GPU_JOB),))) == dry


def test_a_job_s_cost_is_that_of_all_its_attempts() -> None:
    world = World()
    (job,) = world.submit(JobSpec("twice", GPU_JOB.shape, retries=1))
    for exit_code in (1, 0):
        world.round()
        world.end(job, run_ms=60_000, exit_code=exit_code)
    (ended,) = [event for event in world.events if isinstance(event, JobEnded)]
    assert ended.cost == world.grant("acme").spent > 0
    assert ended.run_ms == 60_000


def test_the_next_attempt_may_use_what_the_last_one_gives_back() -> None:
    world = World()
    world.do(c.AdjustGrant(None, world.grant("acme").id, usd("5.4") - world.grant("acme").left))
    (job,) = world.submit(JobSpec("again", GPU_JOB.shape, retries=1))
    world.round()
    world.end(job, run_ms=1_000, exit_code=1)
    assert states(world) == {job: "pending"}
    assert world.state.jobs[job].hold in world.state.ledger.holds


def test_idle_specs_and_mandates_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_room, "MAX_IDLE_SPECS", 2)
    world = World()
    specs = [JobSpec(f"s{number}", Shape(500, 256), 60_000) for number in range(4)]
    tokens = [world.token("acme/vision/ann") for _ in range(4)]
    for spec, token in zip(specs, tokens, strict=True):
        (job,) = world.submit(spec, authority=token)
        world.do(c.ControlJobs(None, "cancel", (job,)))
    kept = [entry.content for entry in world.state.specs.values()]
    assert kept == specs[2:]
    assert [mandate.blocks for mandate in world.state.mandates.values()] == [
        token.blocks for token in tokens[2:]
    ]
    assert set(world.state.spec_ids) == set(kept)
    assert len(world.state.mandate_ids) == 2
    # One in use again is not the next to go.
    (job,) = world.submit(specs[2], authority=tokens[2])
    for spec, token in zip(specs[:2], tokens[:2], strict=True):
        (other,) = world.submit(spec, authority=token)
        world.do(c.ControlJobs(None, "cancel", (other,)))
    assert specs[2] in world.state.spec_ids
    assert world.state.jobs[job].mandate.id in world.state.mandates
    assert snapshot.encode(snapshot.decode(snapshot.encode(world.state))) == snapshot.encode(world.state)


def test_a_large_payload_is_not_kept_beyond_its_jobs() -> None:
    world = World()
    (job,) = world.submit(JobSpec("big", Shape(500, 256), 60_000, payload=b"x" * 5_000))
    world.do(c.ControlJobs(None, "cancel", (job,)))
    assert not world.state.specs
    assert not world.state.idle_specs


@pytest.mark.parametrize(
    ("ends", "final"),
    [
        (("succeeded", "succeeded"), "succeeded"),
        (("cancelled", "cancelled"), "cancelled"),
        (("succeeded", "cancelled"), "cancelled"),
        (("failed", "cancelled"), "failed"),
        (("timed_out", "timed_out"), "timed_out"),
        (("failed", "succeeded"), "failed"),
    ],
)
def test_an_array_ends_as_its_tasks_did(ends: tuple[str, ...], final: str) -> None:
    world = World()
    (array,) = world.submit(JobSpec("pair", Shape(500, 128)), array=Array((1, 2)))
    (after,) = world.submit(JobSpec("after"), dependencies=(Dependency(When.NOT_OK, job=array),))
    assert world.round() == [array + 1, array + 2]
    for task, end in zip((array + 1, array + 2), ends, strict=True):
        world.start(task)
        if end == "cancelled":
            world.do(c.ControlJobs(None, "cancel", (task,)))
            world.end(task, outcome=Outcome.STOPPED)
        else:
            outcome = Outcome.TIMED_OUT if end == "timed_out" else Outcome.EXITED
            world.end(task, outcome=outcome, exit_code=int(end == "failed"))
    assert world.state.ended[array][0] == final
    assert (after in world.state.jobs) == (final != "succeeded")


def test_an_array_of_which_nothing_ran_is_skipped() -> None:
    world = World()
    (first,) = world.submit(JobSpec("first"))
    (array,) = world.submit(
        JobSpec("pair", Shape(500, 128)), array=Array((1, 2)), dependencies=(Dependency(When.OK, job=first),)
    )
    (never,) = world.submit(JobSpec("never"), dependencies=(Dependency(When.NOT_OK, job=array),))
    (ever,) = world.submit(JobSpec("ever"), dependencies=(Dependency(When.ANY, job=array),))
    assert world.round() == [first]
    world.start(first)
    world.end(first, exit_code=1)
    assert [world.state.ended[number][0] for number in (array, never)] == ["skipped", "skipped"]
    assert world.state.jobs[ever].state == "pending"
