"""The simulated engine's clock and courses, the faulty engine's seeds, and how engines are found by name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.adapters.engines import engine_kinds, open_engine
from mintyard.adapters.engines.faulty import Faults, FaultyEngine
from mintyard.adapters.engines.simulated import Course, SimulatedCluster, SimulatedEngine, scripted_course
from mintyard.domain.errors import EngineUnavailable, InvalidRequest, NotFound
from mintyard.domain.jobs.reports import (
    AttemptEnded,
    AttemptStarted,
    AttemptUsage,
    NodeGone,
    NodeSeen,
    Outcome,
    Report,
)
from mintyard.ports.engine import AttemptKey, MemberPlacement, StartOrder, StopOrder
from mintyard.wire.launch import Launch, encode_launch

NODES = [NodeSeen(f"n{index}", 4_000, 8_192) for index in range(3)]


class Yard:
    """A simulated cluster with a clock to push."""

    def __init__(self, course: object = scripted_course, usage_every_ms: int = 60_000) -> None:
        self.now_ms = 0
        self.cluster = SimulatedCluster(lambda: self.now_ms * 1_000_000, NODES, course, usage_every_ms)
        self.engine = SimulatedEngine(self.cluster)

    def at(self, now_ms: int) -> list[Report]:
        self.now_ms = now_ms
        return self.engine.poll(0.0)


def order_of(job: int, sim: str = "", attempt: int = 1, **fields: object) -> StartOrder:
    members = (MemberPlacement(f"n{job % 3}"),)
    payload = encode_launch(Launch(script=f"sim: {sim}" if sim else "true"))
    order = StartOrder(job, attempt, "j", "a", members, 2_000, 100, 0, 60_000, 500, payload)
    return msgspec.structs.replace(order, **fields)


def test_reports_come_at_their_instants_and_not_before() -> None:
    yard = Yard()
    yard.engine.start([order_of(1, "run_ms=500, exit=3, start_delay_ms=40")])
    assert yard.at(39) == []
    assert yard.cluster.next_event_ms() == 40
    assert yard.at(40) == [AttemptStarted(1, 1, "sim-1")]
    assert yard.cluster.next_event_ms() == 540
    assert yard.at(539) == []
    assert yard.at(540) == [AttemptEnded(1, 1, "sim-1", Outcome.EXITED, 3, 0, 500, 1_000)]
    assert yard.cluster.next_event_ms() is None
    assert yard.at(10_000) == []


def test_a_course_may_come_from_a_function() -> None:
    yard = Yard(lambda order: Course(run_ms=order.job * 100, exit_code=order.attempt))
    yard.engine.start([order_of(3), order_of(2, attempt=2)])
    yard.at(0)
    assert [(one.job, one.exit_code) for one in yard.at(200)] == [(2, 2)]
    assert [(one.job, one.exit_code) for one in yard.at(300)] == [(3, 1)]


def test_time_limit_grace_and_memory() -> None:
    yard = Yard()
    yard.engine.start(
        [
            order_of(1, "run_ms=9000", time_limit_ms=1_000),
            order_of(2, "run_ms=9000, ignores_term=1", time_limit_ms=1_000),
            order_of(3, "run_ms=700, memory_mib=101"),
        ]
    )
    yard.at(0)
    [memory] = yard.at(700)
    assert (memory.outcome, memory.signal, memory.peak_memory_mib) == (Outcome.OUT_OF_MEMORY, 9, 101)
    [timed] = yard.at(1_000)
    assert (timed.job, timed.outcome, timed.signal, timed.run_ms) == (1, Outcome.TIMED_OUT, 15, 1_000)
    [killed] = yard.at(1_500)
    assert (killed.job, killed.outcome, killed.signal, killed.run_ms) == (2, Outcome.TIMED_OUT, 9, 1_500)


def test_a_stop_during_the_grace_of_a_time_limit_stays_a_time_limit() -> None:
    yard = Yard()
    yard.engine.start([order_of(1, "run_ms=9000, ignores_term=1", time_limit_ms=1_000)])
    yard.at(1_200)
    yard.engine.stop([StopOrder(1, 1, 100)])
    [ended] = yard.at(1_300)
    assert (ended.outcome, ended.run_ms) == (Outcome.TIMED_OUT, 1_300)


def test_stop_before_it_runs_means_never_started() -> None:
    yard = Yard()
    yard.engine.start([order_of(1, "start_delay_ms=100")])
    yard.now_ms = 50
    yard.engine.stop([StopOrder(1, 1, 0)])
    assert [type(one) for one in yard.at(5_000)] == [AttemptEnded]
    assert yard.engine.attempts() == [AttemptKey(1, 1)]


def test_usage_is_cumulative_and_rare() -> None:
    yard = Yard(usage_every_ms=1_000)
    yard.engine.start([order_of(1, "run_ms=3500")])
    seen = [one for now in range(0, 4_000, 100) for one in yard.at(now) if isinstance(one, AttemptUsage)]
    assert [(one.run_ms, one.cpu_ms) for one in seen] == [(1_000, 2_000), (2_000, 4_000), (3_000, 6_000)]


def test_a_lost_node_ends_its_attempts_when_that_is_sure() -> None:
    yard = Yard()
    yard.engine.start([order_of(1, "run_ms=1000"), order_of(2, "run_ms=1000")])
    yard.at(0)
    yard.now_ms = 300
    yard.cluster.lose_node("n1")
    reports = yard.at(400)
    assert reports[0] == NodeGone("n1")
    assert [(one.job, one.outcome, one.run_ms) for one in reports[1:]] == [(1, Outcome.NODE_LOST, 300)]
    assert [node.node for node in yard.engine.nodes()] == ["n0", "n2"]
    yard.engine.start([order_of(4)])
    [refused] = yard.at(500)
    assert refused.outcome is Outcome.NEVER_STARTED


def test_an_unreachable_node_hides_its_attempts_until_it_is_back() -> None:
    yard = Yard()
    yard.engine.start([order_of(1, "run_ms=1000")])
    yard.at(0)
    yard.cluster.lose_node("n1", confirmed=False)
    assert yard.at(100) == [NodeGone("n1")]
    assert yard.at(2_000) == []
    yard.cluster.return_node("n1")
    back, ended = yard.at(3_000)
    assert back == NODES[1]
    assert (ended.outcome, ended.run_ms) == (Outcome.EXITED, 1_000)


def test_an_engine_that_is_down_says_so_and_its_jobs_go_on() -> None:
    yard = Yard()
    yard.engine.start([order_of(1, "run_ms=1000")])
    yard.cluster.down = "maintenance"
    for act in (yard.engine.nodes, yard.engine.attempts, lambda: yard.at(500), lambda: yard.engine.start([])):
        with pytest.raises(EngineUnavailable, match="maintenance"):
            act()
    yard.cluster.down = ""
    assert [type(one) for one in yard.at(1_000)] == [AttemptStarted, AttemptEnded]


@given(st.text(max_size=60))
def test_any_script_has_a_course(text: str) -> None:
    course = scripted_course(order_of(1, payload=encode_launch(Launch(script=f"sim:{text}"))))
    assert isinstance(course, Course)


@given(st.binary(max_size=60))
def test_any_payload_has_a_course(payload: bytes) -> None:
    assert isinstance(scripted_course(order_of(1, payload=payload)), Course)


# --- faults -------------------------------------------------------------------------------------------------------------


def history(seed: int, faults: Faults) -> tuple[list[Report], FaultyEngine, Yard]:
    yard = Yard()
    engine = FaultyEngine(yard.engine, seed, faults, lambda: SimulatedEngine(yard.cluster))
    for job in range(40):
        try:
            engine.start([order_of(job, f"run_ms={job * 37 % 400}, exit={job % 3}")])
        except EngineUnavailable:
            continue
    reports: list[Report] = []
    for now in range(0, 1_000, 10):
        yard.now_ms = now
        try:
            reports += engine.poll(0.0)
        except EngineUnavailable:
            continue
    return reports, engine, yard


STORM = Faults(delayed=400, duplicated=300, reordered=500, order_lost=100, order_unknown=100, unavailable=50)


def test_the_same_seed_gives_the_same_faults() -> None:
    assert history(5, STORM)[0] == history(5, STORM)[0]
    assert history(5, STORM)[0] != history(6, STORM)[0]


@given(st.integers(0, 2**32))
def test_faults_delay_and_repeat_but_neither_invent_nor_lose(seed: int) -> None:
    reports, engine, yard = history(seed, STORM)
    engine.faults = Faults()
    for _ in range(10):
        reports += engine.poll(0.0)
    ends = {(one.job, one.attempt): one for one in reports if isinstance(one, AttemptEnded)}
    assert set(ends) == set(yard.cluster.attempts)
    for one in reports:
        if isinstance(one, AttemptEnded):
            assert one == ends[one.job, one.attempt]
            assert one.exit_code == one.job % 3


def test_every_kind_of_fault_happens() -> None:
    reports, _, yard = history(5, STORM)
    kinds = [(type(one), one.job) for one in reports]
    assert len(kinds) > len(set(kinds)), "duplicated"
    assert [job for kind, job in kinds if kind is AttemptEnded] != sorted(
        [job for kind, job in kinds if kind is AttemptEnded], key=lambda job: (job * 37 % 400, job)
    ), "reordered or late"
    assert len(yard.cluster.attempts) < 40, "orders lost"


def test_dropped_reports_come_back_by_a_restart() -> None:
    reports, engine, _ = history(1, Faults(dropped=1_000))
    assert reports == []
    engine.faults = Faults()
    assert engine.poll(0.0) == []
    engine.restart()
    again = engine.poll(0.0)
    assert len([one for one in again if isinstance(one, AttemptEnded)]) == 40


def test_a_faulty_engine_may_be_down_and_lose_nodes() -> None:
    _, engine, _ = history(1, Faults())
    engine.lose_node("n2")
    assert engine.poll(0.0) == [NodeGone("n2")]
    assert [node.node for node in engine.nodes()] == ["n0", "n1"]
    engine.return_node("n2")
    assert engine.poll(0.0) == [NODES[2]]
    engine.down = "cable"
    with pytest.raises(EngineUnavailable, match="cable"):
        engine.attempts()
    with pytest.raises(ValueError, match="reopen"):
        FaultyEngine(engine.inner, 1).restart()


# --- found by name ------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's entry points as its installation writes them, from pyproject."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    folder = tmp_path / "mintyard-0.0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mintyard\nVersion: 0.0.1\n")
    lines = [f"{name} = {target}" for name, target in project["entry-points"]["mintyard.engines"].items()]
    (folder / "entry_points.txt").write_text("\n".join(["[mintyard.engines]", *lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_engines_are_opened_by_kind(tmp_path: Path) -> None:
    assert {"local", "simulated"} <= set(engine_kinds())
    local = open_engine("local", {"state": str(tmp_path / "state"), "nodes": [{"name": "a"}]})
    assert [node.node for node in local.nodes()] == ["a"]
    local.close()
    simulated = open_engine("simulated", {"nodes": NODES, "clock_ns": lambda: 0})
    assert simulated.nodes() == NODES
    with pytest.raises(NotFound, match="abacus"):
        open_engine("abacus", {})
    with pytest.raises(InvalidRequest, match="colour"):
        open_engine("local", {"state": str(tmp_path / "state"), "colour": "red"})
