"""What a replay makes of a trace: accounts, limits, run times, machines; and what it refuses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.app.trace_replay_workload import (
    FILL_PERCENT,
    NEVER,
    START_NS,
    Rules,
    Workload,
    check_nodes,
    make_workload,
    synthetic_nodes,
)
from mintyard.domain.errors import Infeasible, InvalidName, InvalidRequest, TraceMalformed
from mintyard.domain.ids import check_account_id
from mintyard.domain.limits import MAX_TIME_LIMIT_MS
from mintyard.ports.traces import UNKNOWN, Trace, TraceJob, TraceNode

NODES = [TraceNode("a", 8_000, 16_384, 4, "a100"), TraceNode("b", 16_000, 32_768)]


def made(*jobs: TraceJob, nodes: list[TraceNode] = NODES, **rules: object) -> Workload:
    return make_workload(Trace("test", list(jobs)), nodes, Rules(**rules), "file")


# --- machines ---------------------------------------------------------------------------------------------------------


def test_synthetic_nodes() -> None:
    nodes = synthetic_nodes("synthetic:8x11")
    assert (len(nodes), nodes[0].name, nodes[10].name) == (11, "node-00", "node-10")
    assert (nodes[0].gpus, nodes[0].cpus_milli, nodes[0].memory_mib) == (8, 96_000, 96 * 8 * 1_024)
    assert synthetic_nodes("synthetic:0x1,100,7") == [TraceNode("node-0", 100_000, 7 * 1_024)]


@pytest.mark.parametrize(
    "text",
    ["synthetic:", "synthetic:8", "synthetic:x8", "synthetic:-1x3", "synthetic:8x4,", "synthetic:8x4,1,2,3",
     "synthetic:17x4", "synthetic:8x0", "synthetic:8x100001", "synthetic:1x1,0", "synthetic:1.5x2", "synthetic:1x1,5000"],
)  # fmt: skip
def test_synthetic_nodes_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        synthetic_nodes(text)


def test_nodes_that_no_hub_can_have() -> None:
    with pytest.raises(InvalidRequest, match="--nodes"):
        check_nodes([])
    with pytest.raises(InvalidRequest, match="32 GPUs"):
        check_nodes([TraceNode("a", 1_000, 1, 32)])
    with pytest.raises(InvalidName):
        check_nodes([TraceNode("a b", 1_000, 1)])
    with pytest.raises(InvalidName):
        check_nodes([TraceNode("a", 1_000, 1, 1, "no|such\nmodel")])


def test_gpu_jobs_need_gpus() -> None:
    with pytest.raises(Infeasible, match="none of the nodes has any"):
        made(TraceJob("j", 0, 1, gpus=1), nodes=[NODES[1]])
    assert made(TraceJob("j", 0, 1), nodes=[NODES[1]]).arrivals


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_time_limits() -> None:
    asked, guessed, long, instant = made(
        TraceJob("asked", 0, 90_000, requested_ms=60_000),
        TraceJob("guessed", 0, 90_000),
        TraceJob("long", 0, MAX_TIME_LIMIT_MS),
        TraceJob("instant", 0, 0),
        margin=2.0,
    ).arrivals
    assert (asked.spec.time_limit_ms, asked.run_ms) == (60_000, 90_000)
    assert guessed.spec.time_limit_ms == 180_000
    assert long.spec.time_limit_ms == MAX_TIME_LIMIT_MS
    assert (instant.spec.time_limit_ms, instant.run_ms) == (60_000, 0)


def test_unknown_run_times_are_drawn_with_the_seed() -> None:
    jobs = [TraceJob(f"j{n}", 0, UNKNOWN) for n in range(400)]
    workload = made(*jobs, seed=1)
    runs = [arrival.run_ms for arrival in workload.arrivals]
    assert runs == [arrival.run_ms for arrival in made(*jobs, seed=1).arrivals]
    assert runs != [arrival.run_ms for arrival in made(*jobs, seed=2).arrivals]
    assert min(runs) >= 1
    assert sum(runs) / 400 == pytest.approx(3_600_000, rel=0.2)
    assert workload.assumed["run time unknown, drawn at random"] == 400
    assert all(arrival.spec.time_limit_ms >= arrival.run_ms for arrival in workload.arrivals)


def test_load_moves_arrivals_together() -> None:
    jobs = [TraceJob("a", 0, 1), TraceJob("b", 1_000, 1), TraceJob("c", 5_000, 1)]
    assert [arrival.at_ms for arrival in made(*jobs, load=2.0).arrivals] == [0, 500, 2_500]
    assert [arrival.at_ms for arrival in made(*jobs, load=0.5).arrivals] == [0, 2_000, 10_000]


def test_accounts_below_the_organisation() -> None:
    workload = made(
        TraceJob("a", 0, 1, tenant="VC 1", user="Ann"),
        TraceJob("b", 0, 1, tenant="vc-1", user="Ann"),
        TraceJob("c", 0, 1, user="7"),
        TraceJob("d", 0, 1, queue="BE"),
        TraceJob("e", 0, 1, queue="BE"),
        TraceJob("f", 0, 1),
        TraceJob("g", 0, 1, tenant="???"),
    )
    assert [arrival.account for arrival in workload.arrivals] == [
        "test/vc-1/ann",
        "test/vc-1-2/ann",
        "test/7",
        "test/be",
        "test/be",
        "test/all",
        "test/x",
    ]
    assert workload.tenants == ["test/vc-1", "test/vc-1-2", "test/7", "test/be", "test/all", "test/x"]


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), min_size=1, max_size=12))
def test_accounts_are_well_formed_and_apart(names: list[tuple[str, str]]) -> None:
    jobs = [TraceJob(f"j{n}", 0, 1, tenant=tenant, user=user) for n, (tenant, user) in enumerate(names)]
    workload = made(*jobs)
    payers: dict[str, tuple[str, ...]] = {}
    for (tenant, user), arrival in zip(names, workload.arrivals, strict=True):
        check_account_id(arrival.account)
        owner = tuple(name for name in (tenant, user) if name)
        assert payers.setdefault(arrival.account, owner) == owner
    assert len(set(payers.values())) == len(payers)


def test_names_that_no_job_can_have() -> None:
    arrivals = made(TraceJob("fine", 0, 1, queue="gpu"), TraceJob("not\nfine", 0, 1, queue="a b")).arrivals
    assert [(arrival.spec.name, arrival.spec.queue) for arrival in arrivals] == [
        ("fine", "gpu"),
        ("job-1", "default"),
    ]


def test_what_can_be_no_gang_is_left_out() -> None:
    workload = made(TraceJob("a", 0, 1, procs=8_191 * 3), TraceJob("b", 0, 1))
    assert [arrival.spec.name for arrival in workload.arrivals] == ["b"]
    assert workload.skipped == {"more members than a gang may have": 1}


def test_start() -> None:
    assert made(TraceJob("a", 0, 1)).start_ns == START_NS
    trace = Trace("test", [TraceJob("a", 0, 1)], start_ns=5)
    assert make_workload(trace, NODES, Rules(), "file").start_ns == 5


def test_limit_takes_the_first() -> None:
    jobs = [TraceJob(f"j{n}", n, 1) for n in range(5)]
    assert [arrival.spec.name for arrival in made(*jobs, limit=2).arrivals] == ["j0", "j1"]
    assert len(made(*jobs, limit=9).arrivals) == 5


# --- fill -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 400], ids=["drawn further", "cut"])
def test_fill_brings_130_percent(count: int) -> None:
    jobs = [TraceJob(f"j{n}", n, 1, gpus=1, gpu_milli=500 + n % 7) for n in range(count)]
    nodes = [TraceNode(f"n{n}", 96_000, 1_000, 8, "a") for n in range(10)]
    workload = made(*jobs, nodes=nodes, fill=True, seed=3)
    milli = sum(arrival.spec.shape.gpus_milli for arrival in workload.arrivals)
    target = 80_000 * FILL_PERCENT // 100
    assert target - 507 < milli <= target
    assert {arrival.run_ms for arrival in workload.arrivals} == {NEVER}
    assert [arrival.at_ms for arrival in workload.arrivals[:3]] == [0, 1_000, 2_000]
    assert sorted(workload.nodes, key=lambda node: node.name) == sorted(nodes, key=lambda node: node.name)
    other = made(*jobs, nodes=nodes, fill=True, seed=4)
    assert [a.spec.name for a in other.arrivals] != [a.spec.name for a in workload.arrivals]


def test_fill_needs_gpus() -> None:
    with pytest.raises(InvalidRequest, match="GPU"):
        made(TraceJob("a", 0, 1), fill=True)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_empty_trace() -> None:
    with pytest.raises(TraceMalformed, match=r"no job in it \(3 no run time\)"):
        make_workload(Trace("test", [], NODES, {"no run time": 3}), NODES, Rules(), "file")


@pytest.mark.parametrize(
    "rules",
    [
        Rules(load=0.0),
        Rules(load=-1.0),
        Rules(load=math.nan),
        Rules(load=math.inf),
        Rules(margin=0.5),
        Rules(margin=math.nan),
        Rules(limit=-1),
        Rules(unknown_run_ms=0),
        Rules(unknown_run_ms=2**63),
    ],
)
def test_rules_out_of_range(rules: Rules) -> None:
    with pytest.raises(InvalidRequest):
        make_workload(Trace("test", [TraceJob("a", 0, 1)]), NODES, rules, "file")


def test_end_of_time() -> None:
    with pytest.raises(InvalidRequest, match="2100"):
        made(TraceJob("a", 0, 1), TraceJob("b", 10**10, 1), load=0.001)
