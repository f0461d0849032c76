"""A recorded world under its own policy is what was recorded; under another one, everything else stays as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.unit.core_world import usd

from mintyard.app.journal import stream
from mintyard.app.journal_store import open_store
from mintyard.app.replay_comparison import Replayed, compare, plot, tables
from mintyard.app.replay_otherwise import Change, Otherwise
from mintyard.app.replay_world import read_world
from mintyard.app.trace_replay import ReplayOptions, main, replay
from mintyard.app.trace_replay_hub import Journal, ReplayHub
from mintyard.app.trace_replay_workload import Rules
from mintyard.domain import commands as c
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, NodeGone, NodeSeen, Outcome, Report
from mintyard.domain.jobs.spec import Array, Dependency, JobRequest, JobSpec, Shape, When
from mintyard.domain.replies import Batch, Ticket
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.tokens.authority import Authority
from mintyard.domain.units import NS_PER_S, Unit
from mintyard.ports.store import Store
from mintyard.sim.__main__ import open_store as faulty_store
from mintyard.sim.run import Simulation

START = 1_790_000_000 * NS_PER_S
ENGINE = "replay"
ONE_GPU = JobSpec("one", Shape(1_000, 512, gpus=1), 600_000)


class Recorded:
    """A hub with two nodes of two GPUs each, its journal in memory. Seconds since START."""

    def __init__(self, name: str, nodes: Sequence[str] = ("n1", "n2"), money: str = "1000") -> None:
        self.store: Store = open_store(f"memory://{name}")
        self.journal = Journal(self.store)
        self.hub = ReplayHub(self.journal)
        self.hub.found("replay", ["lab"], START)
        self.hub.grant("lab", usd(money), "", START)
        self.hub.take([c.TakeReports(ENGINE, tuple(NodeSeen(n, 8_000, 16_384, 2) for n in nodes))], START)
        self.token: Authority = self.hub.token("lab", START)

    def take(self, at_s: float, *commands: c.Command) -> list[int]:
        """The numbers of jobs that were admitted."""
        _, replies = self.hub.take(commands, START + round(at_s * NS_PER_S))
        return [
            part.job
            for reply in replies
            if isinstance(reply, Batch)
            for part in reply.parts
            if isinstance(part, Ticket)
        ]

    def submit(self, at_s: float, *specs: JobSpec, **options: object) -> list[int]:
        requests = tuple(JobRequest(spec, **options) for spec in specs)
        return self.take(at_s, c.Submit(self.token, requests), c.Tick())

    def report(self, at_s: float, *reports: Report) -> None:
        self.take(at_s, c.TakeReports(ENGINE, reports), c.Tick())

    def started(self, at_s: float, *jobs: int) -> None:
        self.report(at_s, *(AttemptStarted(job, self._attempt(job), "boot") for job in jobs))

    def ended(
        self, at_s: float, job: int, run_s: float, outcome: Outcome = Outcome.EXITED, code: int = 0
    ) -> None:
        run_ms = round(run_s * 1_000)
        self.report(at_s, AttemptEnded(job, self._attempt(job), "boot", outcome, code, run_ms=run_ms))

    def _attempt(self, job: int) -> int:
        return self.hub.state.jobs[job].attempt

    def under(self, policy: Policy) -> Replayed:
        self.journal.flush()
        return compare(stream(self.store), Change(policy))


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    made = Recorded(request.node.name.replace("[", "-").rstrip("]"))
    yield made
    made.store.close()


def times(found: Replayed) -> tuple[dict[int, tuple[int, int, str, int]], ...]:
    return tuple(
        {job.number: (job.started_at, job.ended_at, job.trigger, job.cost) for job in run.jobs.values()}
        for run in (found.recorded, found.otherwise)
    )


def swf(folder: Path, count: int) -> str:
    """Jobs of 1 to 4 processors every 10 s that keep four processors busy."""
    lines = [
        f"{n} {n * 10} -1 {30 + n * 37 % 90} {1 + n % 4} -1 -1 {1 + n % 4} 300 -1 1 {n % 3} 1 1 1 1 -1 -1"
        for n in range(count)
    ]
    file = folder / "trace.swf"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_a_loaded_trace_under_its_own_policy_is_what_was_recorded(tmp_path: Path) -> None:
    options = ReplayOptions(
        file=swf(tmp_path, 120), nodes="synthetic:0x2,2,8", journal=str(tmp_path / "hub"), rules=Rules(load=2)
    )
    report = replay(options)
    assert report.wait_ms.mean > 60_000
    store = open_store(f"sqlite:///{tmp_path}/hub/journal/journal.db")
    found = compare(stream(store), Change())
    before, now = times(found)
    assert before == now
    assert found.comparison.unchanged == 120
    assert found.comparison.recorded == found.comparison.otherwise
    assert found.comparison.recorded.wait_ms == report.wait_ms
    other = compare(
        stream(store), Change(Policy.LEAST_LOADED, Backfill.EASY, Order.RESPONSE_RATIO)
    ).comparison
    assert other.otherwise.succeeded == other.recorded.succeeded == 120
    assert other.otherwise.cost == other.recorded.cost
    store.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_world_of_a_simulation_can_be_run_again(seed: int) -> None:
    """Crashes, cancellations, lost nodes, holds by hand, refusals: all translated, and the books hold."""
    simulation = Simulation(seed, faulty_store)
    simulation.run(400, 2)
    world = read_world(stream(simulation.journal))
    for change in (Change(), Change(Policy.LEAST_LOADED, Backfill.CONSERVATIVE)):
        run = Otherwise(world, change)
        measures = run.go()
        run.state.ledger.check()
        assert len(run.numbers) >= len(world.recorded.jobs) * 9 // 10
        assert set(run.numbers.values()) >= set(measures.jobs) or run.unknown.taken_now
        for job in measures.jobs.values():
            assert job.started_at == -1 or job.started_at >= job.submitted_at
            assert not job.trigger or job.ended_at >= job.submitted_at
        spent = sum(grant.spent - grant.refunded for grant in run.state.ledger.grants.values())
        assert spent > 0


def test_jobs_take_as_long_as_they_took(recorded: Recorded) -> None:
    """Best fit leaves a node free for the pair, which then need not wait."""
    first, second = recorded.submit(0, ONE_GPU, ONE_GPU)
    recorded.started(2, first, second)
    pair = JobSpec("pair", Shape(1_000, 512, gpus=2), 600_000)
    (third,) = recorded.submit(10, pair)
    nodes = {node for job in (first, second) for node, _ in recorded.hub.state.jobs[job].placement}
    assert len(nodes) == 1
    recorded.started(12, third)
    recorded.ended(100, first, 98)
    recorded.ended(112, third, 100)
    recorded.ended(200, second, 198)
    for policy in (Policy.BEST_FIT, Policy.LEAST_LOADED):
        found = recorded.under(policy)
        ran = {
            number: (job.ended_at - job.started_at) / NS_PER_S for number, job in found.otherwise.jobs.items()
        }
        assert ran[first] == 100
        assert ran[second] == 200
        assert ran[third] == 102
        assert found.comparison.otherwise.cost == found.comparison.recorded.cost
    waits = {
        policy: recorded.under(policy).comparison.otherwise.wait_ms.max
        for policy in (Policy.BEST_FIT, Policy.LEAST_LOADED)
    }
    assert waits[Policy.BEST_FIT] == 0
    assert waits[Policy.LEAST_LOADED] == 90_000


def test_requests_about_jobs_find_them_under_their_new_numbers() -> None:
    """Under the other run the first submit is refused, so all later numbers are one lower."""
    made = Recorded("numbers", nodes=("n1",), money="3")
    (first,) = made.submit(0, ONE_GPU)
    (after,) = made.submit(1, ONE_GPU, dependencies=(Dependency(When.ANY, job=first),))
    (array,) = made.submit(2, JobSpec("many", Shape(500, 128), 60_000), array=Array((1, 2, 3)))
    made.take(3, c.ControlJobs(None, "cancel", (after,)))
    made.take(4, c.ControlJobs(None, "cancel", (array,)), c.UpdateJob(None, first, priority=7))
    for task in (array + 1, array + 2, array + 3):
        if task in made.hub.state.jobs:
            made.ended(5, task, 1, Outcome.STOPPED)
    made.ended(60, first, 60)
    made.journal.flush()
    world = read_world(stream(made.store))
    poorer = [
        one
        if not isinstance(one.command, c.CreateGrant)
        else type(one)(
            one.now,
            c.CreateGrant(None, "lab", Unit.MONEY, usd("0.5"))
            if one.command.account == "lab"
            else one.command,
        )
        for one in world.given
    ]
    world.given = poorer
    run = Otherwise(world)
    measures = run.go()
    run.state.ledger.check()
    assert first not in run.numbers
    assert run.unknown.refused_by == {"quota_exhausted": 1}
    assert run.unknown.without_object == 2  # what waited for it, and the change of its priority
    assert after not in run.numbers
    assert run.numbers[array + 1] == array - 1
    assert {job.trigger for job in measures.jobs.values()} == {"cancel"}
    made.store.close()


TWO_GPUS = JobSpec("two", Shape(1_000, 512, gpus=2), 600_000)


def nodes_of(made: Recorded, job: int) -> list[str]:
    return [node.name for node in made.hub.state.running_on(made.hub.state.jobs[job].placement)]


def test_a_lost_node_takes_what_runs_there_now(recorded: Recorded) -> None:
    """As recorded the first job is lost with its node; two nodes with two GPUs each leave no other choice to anyone."""
    first, second = recorded.submit(0, TWO_GPUS, TWO_GPUS)
    recorded.started(1, first, second)
    (node,) = nodes_of(recorded, first)
    assert nodes_of(recorded, second) != [node]
    recorded.report(50, NodeGone(node), AttemptEnded(first, 1, "boot", Outcome.NODE_LOST, run_ms=49_000))
    recorded.report(60, NodeSeen(node, 8_000, 16_384, 2))
    recorded.started(61, first)
    recorded.ended(161, first, 100)
    recorded.ended(201, second, 200)
    for policy in (Policy.STRANDED, Policy.LEAST_LOADED):
        found = recorded.under(policy)
        before, now = times(found)
        assert before == now
        assert [found.otherwise.jobs[job].attempts for job in (first, second)] == [2, 1]
        assert found.comparison.otherwise.succeeded == 2


def test_the_other_node_of_a_lost_gang_is_not_lost(recorded: Recorded) -> None:
    """A small job beside one member of the gang runs on when the other member's node is lost."""
    gang = JobSpec("gang", Shape(5_000, 512, members=2), 600_000)
    (first,) = recorded.submit(0, gang)
    (small,) = recorded.submit(0, JobSpec("small", Shape(3_000, 512), 600_000))
    recorded.started(1, first, small)
    (kept,) = nodes_of(recorded, small)
    (gone,) = set(nodes_of(recorded, first)) - {kept}
    lost = AttemptEnded(first, 1, "boot", Outcome.NODE_LOST, run_ms=49_000)
    recorded.report(50, NodeGone(gone), lost)
    recorded.report(60, NodeSeen(gone, 8_000, 16_384, 2))
    recorded.started(61, first)
    recorded.ended(161, first, 100)
    recorded.ended(201, small, 200)
    found = recorded.under(Policy.STRANDED)
    before, now = times(found)
    assert before == now
    assert [found.otherwise.jobs[job].attempts for job in (first, small)] == [2, 1]
    assert found.comparison.otherwise.succeeded == 2


def test_what_was_cut_off_runs_until_it_is_cancelled(recorded: Recorded) -> None:
    (job,) = recorded.submit(0, ONE_GPU)
    recorded.started(1, job)
    recorded.take(30, c.ControlJobs(None, "cancel", (job,)))
    recorded.ended(31, job, 30, Outcome.STOPPED)
    found = recorded.under(Policy.BEST_FIT)
    assert found.comparison.unknown.no_own_end == 1
    ended = found.otherwise.jobs[job]
    assert (ended.trigger, (ended.ended_at - START) // NS_PER_S) == ("cancel", 30)


def test_what_was_cut_off_runs_to_its_limit_at_most(recorded: Recorded) -> None:
    """Cancelled at 700 s after a late start; where it starts at once it would be at its limit of 600 s before that."""
    blocker, job = recorded.submit(0, *(JobSpec(f"full{n}", Shape(8_000, 512), 600_000) for n in (1, 2)))
    recorded.started(1, blocker, job)
    recorded.take(700, c.ControlJobs(None, "cancel", (job,)))
    recorded.ended(701, job, 599, Outcome.STOPPED)
    recorded.ended(702, blocker, 500)
    ended = recorded.under(Policy.BEST_FIT).otherwise.jobs[job]
    assert (ended.trigger, (ended.ended_at - START) // NS_PER_S) == ("time_out", 601)


def test_retries_end_as_they_ended(recorded: Recorded) -> None:
    (job,) = recorded.submit(0, JobSpec("tries", Shape(1_000, 512), 600_000, retries=2))
    for at, code in ((10, 1), (20, 1), (30, 0)):
        recorded.started(at - 9, job)
        recorded.ended(at, job, 9, code=code)
    found = recorded.under(Policy.GPU_PACKING)
    assert found.otherwise.jobs[job].attempts == 3
    assert times(found)[0] == times(found)[1]


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, hub = swf(tmp_path, 30), tmp_path / "hub"
    assert main([file, "--nodes", "synthetic:0x2,2,8", "--write-journal", str(hub), "-o", "json"]) == 0
    capsys.readouterr()
    assert main(["--journal", str(hub), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 30
    assert main(["--journal", str(hub)]) == 0
    assert "every event decided alike" in capsys.readouterr().out
    drawn = tmp_path / "both.svg"
    assert main(["--journal", str(hub), "--policy", "fgd", "-o", "json", "--plot", str(drawn)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rules"] == "fgd / easy / ageing"
    assert told["otherwise"]["jobs"] == 30
    assert drawn.read_text().startswith("<svg")
    assert main(["--journal", str(hub), "--policy", "fgd"]) == 0
    assert "start as before" in capsys.readouterr().out
    assert main(["--journal", str(tmp_path / "nothing")]) == 6
    assert main([file, "--journal", str(hub)]) == 2
    assert "FILE can't be given" in capsys.readouterr().err
    assert main(["--journal", str(hub), "--plot", str(drawn)]) == 2
    assert main(["--journal", str(hub), "--policy", "fgd", "--plot", "x.png"]) == 2


def test_tables_and_plot_of_nothing() -> None:
    made = Recorded("nothing")
    found = made.under(Policy.FGD)
    assert len(tables(found.comparison)) == 2
    assert plot(found).startswith("<svg")
    made.store.close()
