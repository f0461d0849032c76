"""Replays: waits, cuts, refusals and money by hand, the journal verified and decided again, and the files as people give them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mintyard.app import trace_replay
from mintyard.app.journal import stream, verify_store
from mintyard.app.journal_store import open_store
from mintyard.app.record import decode_body
from mintyard.app.recovery import recover
from mintyard.app.replay_journal import replay as decide_again
from mintyard.app.trace_replay import ReplayOptions, main, replay
from mintyard.app.trace_replay_report import TraceReport, duration, money, spread, tables
from mintyard.app.trace_replay_workload import Rules
from mintyard.domain.commands import Tick
from mintyard.domain.errors import (
    AlreadyExists,
    Exit,
    Infeasible,
    InvalidAmount,
    InvalidRequest,
    MintyardError,
    NotFound,
    TraceMalformed,
)
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.snapshot import state_hash

DATA = os.environ.get("MINTYARD_DATA", "")
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time,scheduled_time\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,16384,2,a100\n"
# One GPU-hour costs 5 USD, a core-hour 0.1, a GB-hour 0.05: p0 and p1 cost 10.25 USD an hour each.
TRACE = (
    "p0,2000,1024,2,1000,,LS,0,3600,0\n"
    "p1,2000,1024,2,1000,,BE,600,4200,600\n"
    "p2,1000,1024,0,0,,BE,600,700,600\n"
    "p3,1000,1024,4,1000,,LS,700,800,700\n"
)
SWF = "; MaxNodes: 4\n; MaxProcs: 4\n; UnixStartTime: 843480031\n"
SWF_JOB = "{n} {submit} 0 {run} {procs} -1 -1 {procs} {limit} -1 1 {user} 3 1 2 -1 -1 -1\n"


@pytest.fixture
def trace(tmp_path: Path) -> ReplayOptions:
    (tmp_path / "pods.csv").write_text(PODS + TRACE)
    (tmp_path / "nodes.csv").write_text(NODES)
    return ReplayOptions(file=str(tmp_path / "pods.csv"), nodes=str(tmp_path / "nodes.csv"))


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def swf(folder: Path, *jobs: tuple[int, int, int, int, int]) -> str:
    """(submit, run, procs, limit, user) a job, on four nodes of one processor."""
    rows = (
        SWF_JOB.format(n=n, submit=submit, run=run, procs=procs, limit=limit, user=user)
        for n, (submit, run, procs, limit, user) in enumerate(jobs, 1)
    )
    return written(folder, "trace.swf", SWF + "".join(rows))


def timeless(report: TraceReport) -> dict[str, object]:
    """The report without what depends on this machine."""
    found = json.loads(trace_replay.msgspec.json.encode(report))
    for name in ("wall_s", "cpu_s", "jobs_per_s", "core_share"):
        assert found.pop(name) >= 0
    return found


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_waits_costs_and_utilisation(trace: ReplayOptions) -> None:
    report = replay(trace)
    assert (report.jobs, report.done, report.timed_out, report.pending, report.running) == (4, 3, 0, 0, 0)
    assert report.refused == {"infeasible": 1}
    # p1 waits for both GPUs from 600 s to 3,600 s; p2 starts at once beside p0.
    assert (report.wait_ms.count, report.wait_ms.max, report.wait_ms.p50) == (3, 3_000_000, 0)
    assert report.wait_ms.mean == 1_000_000
    assert report.bounded_slowdown.max == pytest.approx(6_600 / 3_600)
    assert report.makespan_ms == 7_200_000
    gpu, cpu, memory = report.utilisation
    assert (gpu.average, gpu.average_arriving, gpu.peak, gpu.peak_at_ms) == (100.0, 100.0, 100.0, 0)
    assert cpu.average == pytest.approx(100 * (2 * 7_200 + 100) / (8 * 7_200), abs=1e-3)
    assert (cpu.peak, cpu.peak_at_ms) == (37.5, 600_000)
    assert memory.peak == pytest.approx(100 * 2_048 / 16_384)
    # 2 x (2 GPUs x 5 + 2 cores x 0.1 + 1 GB x 0.05) for an hour, and 100 s of a core and a GB, each floored to nano-units.
    assert report.cost == "20.504166665"
    assert [(line.account, line.jobs, line.done, line.refused) for line in report.top_tenants] == [
        ("openb/be", 2, 2, 0),
        ("openb/ls", 2, 1, 1),
    ]
    assert [line.gpu_hours for line in report.top_tenants] == ["2", "2"]


def test_ledger_adds_up(trace: ReplayOptions) -> None:
    report = replay(trace)
    organisation, tenants, everything = report.ledger
    assert report.exact
    assert organisation.spent == tenants.spent == report.cost
    assert everything.spent == "41.00833333"
    assert (everything.held, everything.expired, everything.refunded) == ("0", "0", "0")


def test_balance_refuses(trace: ReplayOptions) -> None:
    """Half as long again is held at submit: 15.375 USD for p0 and p1, 0.025 USD for p2's three minutes are 0.0075."""
    report = replay(ReplayOptions(file=trace.file, nodes=trace.nodes, balance="15.376"))
    assert report.refused == {"infeasible": 1, "quota_exhausted": 1}
    assert report.done == 2
    assert report.cost == "20.5"
    report = replay(ReplayOptions(file=trace.file, nodes=trace.nodes, balance="15.374"))
    assert report.refused == {"infeasible": 1, "quota_exhausted": 2}
    assert (report.done, report.exact) == (1, True)


def test_longer_than_asked_is_cut(tmp_path: Path) -> None:
    report = replay(ReplayOptions(file=swf(tmp_path, (0, 500, 4, 60, 1), (10, 30, 1, 60, 2))))
    assert (report.done, report.timed_out) == (1, 1)
    assert (report.wait_ms.max, report.makespan_ms) == (50_000, 90_000)
    assert [line.timed_out for line in report.top_tenants] == [1]


def test_gang_waits_for_all_processors(tmp_path: Path) -> None:
    report = replay(ReplayOptions(file=swf(tmp_path, (0, 100, 1, 200, 1), (1, 10, 4, 20, 1))))
    assert (report.wait_ms.max, report.makespan_ms) == (99_000, 110_000)
    assert report.utilisation[0].resource == "CPU"


def test_same_instant(tmp_path: Path) -> None:
    """More jobs at one instant than a record or a round takes, and some that end where they start."""
    rows = "".join(f"p{n},1,1,0,0,,LS,5,{5 + n % 2},5\n" for n in range(2_500))
    file = written(tmp_path, "pods.csv", PODS + rows)
    report = replay(ReplayOptions(file=file, nodes="synthetic:0x3"))
    assert (report.done, report.wait_ms.max, report.makespan_ms) == (2_500, 0, 6_000)


def test_unknown_run_times(tmp_path: Path) -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1000,1,1,500\np1,1000,1,1,500\np2,1000,1,1,500\n"
    file = written(tmp_path, "pods.csv", text)
    options = ReplayOptions(file=file, nodes="synthetic:1x1", rules=Rules(unknown_run_ms=1_000))
    report = replay(options)
    assert report.done == 3
    assert report.assumed["run time unknown, drawn at random"] == 3
    assert 0 < report.makespan_ms < 60_000
    other = replay(ReplayOptions(file=file, nodes="synthetic:1x1", rules=Rules(unknown_run_ms=1_000, seed=1)))
    assert other.makespan_ms != report.makespan_ms


def test_philly_on_synthetic_nodes(tmp_path: Path) -> None:
    text = (
        "timestamp,duration,num_gpus,cluster\n"
        "2017-10-03 10:00:00,100,8,vc1\n2017-10-03 10:00:10,100,16,vc2\n2017-10-03 10:00:20,5,64,vc2\n"
    )
    report = replay(
        ReplayOptions(file=written(tmp_path, "philly.csv", text), nodes="synthetic:8x2", policy=Policy.FGD)
    )
    assert (report.done, report.refused) == (2, {"infeasible": 1})
    assert report.wait_ms.max == 90_000
    assert report.cluster.gpus == 16
    assert {line.account for line in report.top_tenants} == {"philly/vc1", "philly/vc2"}


def test_fill_turns_away_what_finds_no_place(tmp_path: Path) -> None:
    rows = "".join(f"p{n},1000,1024,1,{milli},,LS,0,9,0\n" for n, milli in enumerate((1000, 500, 250)))
    file = written(tmp_path, "pods.csv", PODS + rows)
    options = ReplayOptions(file=file, nodes="synthetic:8x4", rules=Rules(fill=True))
    report = replay(options)
    gpu = report.utilisation[0]
    assert gpu.peak > 90
    assert report.running + report.refused["no_place"] == report.jobs
    assert (report.done, report.pending, report.exact) == (0, 0, True)
    held = report.ledger[0]
    assert held.spent == "0"
    assert float(held.held) > 0


@pytest.mark.parametrize("policy", list(Policy))
def test_every_policy(trace: ReplayOptions, policy: Policy) -> None:
    report = replay(ReplayOptions(file=trace.file, nodes=trace.nodes, policy=policy))
    assert (report.policy, report.done, report.cost) == (policy.value, 3, "20.504166665")


# --- journal ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backfill", list(Backfill))
@pytest.mark.parametrize("order", list(Order))
def test_every_rule_of_time(trace: ReplayOptions, backfill: Backfill, order: Order) -> None:
    report = replay(ReplayOptions(file=trace.file, nodes=trace.nodes, backfill=backfill, order=order))
    assert (report.done, report.cost) == (3, "20.504166665")


@pytest.mark.parametrize("policy", [Policy.STRANDED, Policy.LEAST_LOADED])
def test_journal_verifies_and_replays(trace: ReplayOptions, tmp_path: Path, policy: Policy) -> None:
    folder = tmp_path / "hub"
    options = ReplayOptions(file=trace.file, nodes=trace.nodes, policy=policy, journal=str(folder))
    report = replay(options)
    store = open_store(f"sqlite:///{folder / 'journal' / 'journal.db'}")
    try:
        verified = verify_store(store)
        assert report.journal is not None
        assert (verified.records, verified.chain.hex()) == (report.journal.records, report.journal.chain)
        again = decide_again(stream(store))
        assert again.difference is None
        assert again.state_hash is not None
        assert again.state_hash.hex() == report.state_hash
        assert state_hash(recover(store).state).hex() == report.state_hash
        ticks = [c for record in stream(store) for c in decode_body(record).inputs if isinstance(c, Tick)]
        assert ticks
        assert {tick.policy for tick in ticks} == {policy}
        assert store.acquire("another", 1_000) is not None, "the lease was given back"
    finally:
        store.close()
    with pytest.raises(AlreadyExists):
        replay(options)


def test_journal_changes_nothing(trace: ReplayOptions) -> None:
    plain = timeless(replay(trace))
    kept = timeless(
        replay(ReplayOptions(file=trace.file, nodes=trace.nodes, journal="memory://trace-replay"))
    )
    assert plain.pop("journal") is None
    assert kept.pop("journal")["records"] == plain["records"]
    assert kept == plain


def test_journal_in_no_folder(trace: ReplayOptions, tmp_path: Path) -> None:
    taken = written(tmp_path, "file", "")
    for place, error in ((taken, InvalidRequest), ("nosuch://x", InvalidRequest)):
        with pytest.raises(error):
            replay(ReplayOptions(file=trace.file, nodes=trace.nodes, journal=place))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nodes", "error", "status"),
    [
        (PODS, "synthetic:8x1", TraceMalformed, Exit.USAGE),
        ("", "synthetic:8x1", TraceMalformed, Exit.USAGE),
        ("hello\n", "synthetic:8x1", TraceMalformed, Exit.USAGE),
        (PODS + "p0,1000,1024,1,1000,,LS,-5,9,0\n", "synthetic:8x1", TraceMalformed, Exit.USAGE),
        (PODS + "p0,1000,1024,1,1000,,LS,nan,9,0\n", "synthetic:8x1", TraceMalformed, Exit.USAGE),
        (PODS + "p0,1000,1024,1,1000,,LS,9,5,9\n", "synthetic:8x1", TraceMalformed, Exit.USAGE),
        (PODS + TRACE, "", InvalidRequest, Exit.USAGE),
        (PODS + TRACE, "synthetic:8", InvalidRequest, Exit.USAGE),
        (PODS + TRACE, "synthetic:0x4", Infeasible, Exit.INFEASIBLE),
        (PODS + TRACE, "nowhere.csv", NotFound, Exit.NOT_FOUND),
    ],
    ids=["no rows", "empty", "unknown", "negative", "nan", "backwards", "no nodes", "bad nodes", "no GPUs", "no file"],
)  # fmt: skip
def test_bad_input(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    nodes: str,
    error: type[MintyardError],
    status: Exit,
) -> None:
    file, journal = written(tmp_path, "x.csv", text), tmp_path / "hub"
    with pytest.raises(error):
        replay(ReplayOptions(file=file, nodes=nodes, journal=str(journal)))
    assert not journal.exists(), "nothing is left behind"
    assert main([file, "--nodes", nodes]) == status
    answer = capsys.readouterr()
    assert not answer.out
    assert len(answer.err.splitlines()) == 2


def test_bad_options(trace: ReplayOptions) -> None:
    with pytest.raises(InvalidAmount):
        replay(ReplayOptions(file=trace.file, nodes=trace.nodes, balance="-1"))
    with pytest.raises(InvalidRequest, match="svg"):
        replay(ReplayOptions(file=trace.file, nodes=trace.nodes, plot="x.png"))
    with pytest.raises(InvalidRequest, match="written"):
        replay(ReplayOptions(file=trace.file, nodes=trace.nodes, plot="/nonexistent/x.svg"))
    for wrong in (["--policy", "luck"], ["--load", "nan"], ["--limit", "x"], ["--seed", "1.5"]):
        with pytest.raises(SystemExit, match="2"):
            main([trace.file, *wrong])


# --- output -----------------------------------------------------------------------------------------------------------


def test_json_table_and_plot(
    trace: ReplayOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    arguments = [trace.file, "--nodes", trace.nodes, "--plot", str(plot)]
    assert main([*arguments, "-o", "json"]) == 0
    answer = capsys.readouterr()
    found = json.loads(answer.out)
    assert found["cost"] == "20.504166665"
    assert not answer.err
    ElementTree.fromstring(plot.read_text())
    assert main(arguments) == 0
    answer = capsys.readouterr()
    assert not answer.err, "no progress bar without a terminal"
    for words in ("3 of 4 jobs", "refused: infeasible", found["state_hash"][:16], "exactly", "20.504166665"):
        assert words in answer.out


def test_progress_ends_complete(trace: ReplayOptions) -> None:
    seen: list[tuple[int, int]] = []
    report = replay(trace, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4, 4)
    assert len(tables(report)) == 4


def test_figures_for_people() -> None:
    assert [duration(ms) for ms in (0, 5_250, 3_723_000, 90_061_000)] == [
        "0.00 s",
        "5.25 s",
        "01:02:03",
        "1d 01:01:01",
    ]
    assert [money(text) for text in ("0", "12.5", "1234567.899")] == ["0.00", "12.50", "1,234,567.89"]
    assert spread([]).count == 0
    known = spread(range(1, 101))
    assert (known.mean, known.p50, known.p95, known.p99, known.max) == (50.5, 50, 95, 99, 100)


# --- the same everywhere, and the real thing ----------------------------------------------------------------------------


@pytest.mark.slow
def test_same_hash_under_every_hash_seed(trace: ReplayOptions) -> None:
    hashes: set[str] = set()
    for seed in ("0", "4242"):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "mintyard.app.trace_replay",
                trace.file,
                "--nodes",
                trace.nodes,
                "-o",
                "json",
            ],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        hashes.add(json.loads(done.stdout)["state_hash"])
    assert len(hashes) == 1


@pytest.mark.slow
def test_sample() -> None:
    """What people get without a file; the cost is the same on every machine and Python."""
    report = replay(ReplayOptions())
    assert (report.jobs, report.done, report.refused, report.skipped) == (8_152, 8_152, {}, {})
    assert (report.cluster.nodes, report.cluster.gpus) == (1_213, 6_212)
    assert report.cost == "413488.91082976"
    assert report.exact


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="MINTYARD_DATA names no folder with traces")
@pytest.mark.parametrize(
    ("path", "nodes"),
    [
        ("swf/KTH-SP2-1996-2.1-cln_unfiltered.swf", ""),
        ("swf/NASA-iPSC-1993-3.1-cln.swf", ""),
        ("swf/KTH-SP2_filtered.swf", "synthetic:0x1,100"),
        ("philly/philly_jobs_part1.csv", "synthetic:8x200"),
    ],
)
def test_real_traces(path: str, nodes: str) -> None:
    file = Path(DATA) / path
    file = file if file.exists() else file.with_name(file.name + ".gz")
    report = replay(ReplayOptions(file=str(file), nodes=nodes, rules=Rules(limit=400)))
    assert report.done + report.timed_out + sum(report.refused.values()) == report.jobs == 400
    assert (report.pending, report.running, report.exact) == (0, 0, True)
    assert 0 < report.utilisation[0].peak <= 100
