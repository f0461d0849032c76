"""The benchmarks' own parts: the load hears of every task, the disciplines place what fits and keep their order. No timing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bench.report import table
from bench.throughput import tenants
from bench.throughput.capacity import POLICIES, simulate
from bench.throughput.disciplines import DISCIPLINES, PriorityQueue, RoundRobin, installed
from bench.throughput.run import Settings, run
from bench.throughput.split import measure

from mintyard.domain import hub
from mintyard.domain.commands import Submit, TakeReports, Tick
from mintyard.domain.events import AnyEvent, JobPlaced
from mintyard.domain.jobs.reports import NodeSeen
from mintyard.domain.jobs.spec import JobRequest, JobSpec, Shape
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.state import State

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,8000,16384,2,T4\nb,8000,16384,0,\n"
TASKS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nx,4000,1024,1,500\ny,4000,1024,0,0\n"


def small_hub() -> tuple[State, int]:
    state, now = State(), tenants.now_ns()
    tokens = tenants.authorities(now)
    commands = [command for command in tenants.opening(tokens, 0) if not isinstance(command, TakeReports)]
    commands.append(TakeReports(tenants.ENGINE, (NodeSeen("a", 4_000, 8_192), NodeSeen("b", 4_000, 8_192))))
    for command in commands:
        hub.begin(state, state.seq + 1, now)
        hub.execute(state, command, now)
    for number, (cpus, priority) in enumerate(((4_000, 100), (3_000, 200), (1_000, 50), (2_000, 100))):
        spec = JobSpec(f"job-{number}", Shape(cpus, 512), 60_000, priority)
        hub.begin(state, state.seq + 1, now)
        hub.execute(state, Submit(tokens[0], (JobRequest(spec),)), now)
    return state, now


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "discipline"), [(0, ""), (300, ""), *((rate, name) for rate in (0, 300) for name in DISCIPLINES)]
)
async def test_every_task_of_a_run_ends_or_is_refused(tmp_path: Path, rate: int, discipline: str) -> None:
    """Alone or many at once, under ours and under the disciplines that ours is compared with."""
    settings = Settings(
        rate=rate, seconds=0.3, warm_s=0.1, window=64, projector=False, discipline=discipline, drain_s=60
    )
    with installed(discipline):
        result = await asyncio.wait_for(run(settings, tmp_path), 120)
    assert result["refused"] == result["unfinished"] == 0
    assert result["bytes_per_task"] > 0


@pytest.mark.slow
def test_the_split_leaves_no_job_behind() -> None:
    costs = measure(16, 3)
    assert all(len(times) == 3 for times in costs.values())


def test_the_priority_queue_stops_at_the_first_that_does_not_fit() -> None:
    state, now = small_hub()
    discipline = PriorityQueue()
    for job in state.jobs.values():
        discipline.add(state, job)
    out: list[AnyEvent] = []
    placed = discipline.place_pending(state, now, 10, Policy.STRANDED, out)
    jobs = [(event.job, event.placement) for event in out if isinstance(event, JobPlaced)]
    # 3,000 first (priority 200), then 4,000; 2,000 fits nowhere and stops the 1,000 that would fit.
    assert placed == 2
    assert jobs == [(2, ((0, 0),)), (1, ((1, 0),))]


def test_round_robin_waits_at_its_node() -> None:
    state, now = small_hub()
    discipline = RoundRobin()
    for job in state.jobs.values():
        discipline.add(state, job)
    out: list[AnyEvent] = []
    discipline.place_pending(state, now, 10, Policy.STRANDED, out)
    jobs = [(event.job, event.placement) for event in out if isinstance(event, JobPlaced)]
    # 4,000 fills node a, so 1,000 waits there although b has room; b takes 3,000 and has none for 2,000.
    assert jobs == [(1, ((0, 0),)), (2, ((1, 0),))]
    for event in out:
        hub.apply(state, event)  # the core takes what a discipline decided
    hub.begin(state, state.seq + 1, now)
    hub.execute(state, Tick(), now)


@pytest.mark.slow
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_capacity_is_used_and_never_exceeded(policy: str, tmp_path: Path) -> None:
    folder = tmp_path / "openb"
    folder.mkdir()
    (folder / "openb_node_list_gpu_node.csv").write_text(NODES)
    (folder / "openb_pod_list_default.csv").write_text(TASKS)
    result = simulate(policy, tmp_path, 10, 1, 8.0)
    assert 0 < result["utilisation"] <= 100
    assert result["done_per_s"] > 0
    assert result == simulate(policy, tmp_path, 10, 1, 8.0)


def test_a_table_lines_up() -> None:
    lines = table(["a", "long name"], [[1_234, 0.5], ["x", 123.4]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "1,234" in lines[2]
