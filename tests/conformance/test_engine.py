"""What every engine must do, run over the local one (real processes), the simulated one, and both behind faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.conformance.engines.backends import EVERY, Bench, Program, bench_of

from mintyard.domain.errors import EngineUnavailable, InvalidRequest, NotFound
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, AttemptUsage, Outcome
from mintyard.ports.engine import AttemptKey, MemberPlacement, StopOrder

EXACT = ["local", "simulated"]
"""Kinds that report each fact once a session and in order."""
LONG = Program(run_ms=20_000)


@pytest.fixture(params=EVERY)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench_of(request.param) as bench:
        yield bench


def test_inventory_lists_the_declared_nodes(bench: Bench) -> None:
    nodes = bench.engine.nodes()
    assert [node.node for node in nodes] == ["node0", "node1", "node2", "node3"]
    assert all(
        (node.cpus_milli, node.memory_mib, node.gpus, node.virtual) == (8_000, 32_000, 8, True)
        for node in nodes
    )


def test_a_job_starts_and_ends_with_its_exit_code(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(exit_code=0)), bench.order(2, Program(exit_code=3))])
    first, second = bench.ended(1), bench.ended(2)
    assert (first.outcome, first.exit_code, first.signal) == (Outcome.EXITED, 0, 0)
    assert (second.outcome, second.exit_code, second.signal) == (Outcome.EXITED, 3, 0)
    assert bench.started(1).boot == first.boot != second.boot
    assert 20 <= first.run_ms < 10_000


def test_a_job_that_dies_of_a_signal_reports_it(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(signal=11))])
    ended = bench.ended(1)
    assert (ended.outcome, ended.exit_code, ended.signal) == (Outcome.EXITED, 0, 11)


def test_stop_terminates(bench: Bench) -> None:
    bench.engine.start([bench.order(1, LONG)])
    bench.started(1)
    bench.engine.stop([StopOrder(1, 1, 10_000)])
    bench.engine.stop([StopOrder(1, 1, 10_000)])
    ended = bench.ended(1)
    assert (ended.outcome, ended.signal) == (Outcome.STOPPED, 15)
    assert ended.run_ms < 10_000


@pytest.mark.slow
def test_a_program_that_ignores_term_is_killed_after_the_grace_period(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(run_ms=20_000, ignores_term=True, stdout="ready"))])
    bench.until(lambda: bench.engine.read_log(AttemptKey(1, 1), "stdout", 0, 64).data == b"ready")
    bench.started(1)
    bench.engine.stop([StopOrder(1, 1, 400)])
    ended = bench.ended(1)
    assert (ended.outcome, ended.signal) == (Outcome.STOPPED, 9)
    assert 400 <= ended.run_ms < 15_000


def test_the_time_limit_is_kept(bench: Bench) -> None:
    bench.engine.start([bench.order(1, LONG, time_limit_ms=300)])
    ended = bench.ended(1)
    assert ended.outcome is Outcome.TIMED_OUT
    assert ended.message == "reached its time limit"
    assert 300 <= ended.run_ms < 5_000


def test_the_memory_limit_is_kept(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(memory_mib=300), memory_mib=128)])
    ended = bench.ended(1)
    assert ended.outcome is Outcome.OUT_OF_MEMORY
    assert ended.peak_memory_mib > 128
    assert "memory" in ended.message


@pytest.mark.slow
def test_memory_within_the_limit_is_let_be(bench: Bench) -> None:
    bench.engine.start(
        [bench.order(1, Program(memory_mib=64, run_ms=100), memory_mib=256, time_limit_ms=1_500)]
    )
    ended = bench.ended(1)
    assert ended.outcome in (Outcome.TIMED_OUT, Outcome.EXITED)
    assert 64 <= ended.peak_memory_mib <= 256


def test_the_same_attempt_started_again_runs_once(bench: Bench) -> None:
    order = bench.order(1, Program(run_ms=200, stdout="once"))
    bench.engine.start([order, order])
    bench.engine.start([order])
    bench.started(1)
    bench.engine.start([order])
    boot = bench.ended(1).boot
    bench.engine.start([order])
    bench.engine.acknowledge([AttemptKey(1, 1)])
    bench.engine.start([order])
    for _ in range(5):
        bench.listen()
    assert {report.boot for report in bench.of(1, AttemptStarted)} == {boot}
    assert {report.boot for report in bench.of(1, AttemptEnded)} == {boot}
    assert bench.engine.attempts() == []


def test_attempts_of_one_job_are_different(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(exit_code=1))])
    bench.ended(1)
    bench.engine.start([bench.order(1, Program(exit_code=0), attempt=2)])
    assert bench.ended(1, 2).exit_code == 0
    assert bench.engine.attempts() == [AttemptKey(1, 1), AttemptKey(1, 2)]


def test_two_engines_racing_run_an_attempt_once(bench: Bench) -> None:
    other = bench.open()
    orders = [bench.order(job, Program(run_ms=10, stdout="ran")) for job in range(1, 13)]
    threads = [threading.Thread(target=engine.start, args=(orders,)) for engine in (bench.engine, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    boots: dict[int, set[str]] = {}
    waiting = {order.job for order in orders}
    deadline = time.monotonic() + 30
    while waiting and time.monotonic() < deadline:
        bench.listen()
        for report in [*bench.heard, *bench.pass_time(other)]:
            if isinstance(report, AttemptEnded):
                assert report.outcome is Outcome.EXITED
                boots.setdefault(report.job, set()).add(report.boot)
                waiting.discard(report.job)
    other.close()
    assert {job: len(found) for job, found in boots.items()} == {order.job: 1 for order in orders}
    if bench.kind == "local":
        assert [bench.engine.read_log(AttemptKey(job, 1), "stdout", 0, 99).data for job in boots] == [
            b"ran"
        ] * 12


def test_stop_before_start_prevents_the_start(bench: Bench) -> None:
    bench.engine.stop([StopOrder(9, 1, 0)])
    assert AttemptKey(9, 1) in bench.engine.attempts()
    ended = bench.ended(9)
    assert ended.outcome is Outcome.NEVER_STARTED
    assert ended.message == "stopped before it started"
    bench.engine.start([bench.order(9)])
    for _ in range(5):
        bench.listen()
    assert bench.of(9, AttemptStarted) == []


def test_stop_right_after_start_ends_it_one_way_or_the_other(bench: Bench) -> None:
    orders = [bench.order(job, LONG) for job in range(1, 11)]
    bench.engine.start(orders)
    bench.engine.stop([StopOrder(order.job, 1, 5_000) for order in orders])
    for order in orders:
        ended = bench.ended(order.job)
        assert ended.outcome in (Outcome.NEVER_STARTED, Outcome.STOPPED)
        assert (
            bool(bench.of(order.job, AttemptStarted)) == (ended.outcome is Outcome.STOPPED)
            or bench.kind not in EXACT
        )


def test_stop_after_the_end_changes_nothing(bench: Bench) -> None:
    bench.engine.start([bench.order(1)])
    ended = bench.ended(1)
    bench.engine.stop([StopOrder(1, 1, 0)])
    bench.reopen()
    bench.heard.clear()
    assert bench.ended(1) == ended


def test_an_order_that_cannot_start_says_why(bench: Bench) -> None:
    bench.engine.start(
        [
            bench.order(1, payload=b"\xc1 no launch"),
            bench.order(2),
            bench.order(3, members=0),
            msgspec.structs.replace(bench.order(4), members=(MemberPlacement("atlantis"),)),
        ]
    )
    assert bench.ended(1).outcome is Outcome.NEVER_STARTED
    assert "payload" in bench.ended(1).message
    assert bench.ended(4).outcome is Outcome.NEVER_STARTED
    assert "node" in bench.ended(4).message
    assert bench.ended(3).outcome is Outcome.NEVER_STARTED
    assert bench.ended(2).outcome is Outcome.EXITED


def test_bad_requests_are_refused(bench: Bench) -> None:
    with pytest.raises(InvalidRequest):
        bench.engine.start([bench.order(-1)])
    with pytest.raises(NotFound):
        bench.engine.read_log(AttemptKey(404, 1), "stdout", 0, 10)
    bench.engine.start([bench.order(1)])
    bench.ended(1)
    for stream, offset, limit in (("stdin", 0, 1), ("stdout", -1, 1), ("stdout", 0, 0)):
        with pytest.raises(InvalidRequest):
            bench.engine.read_log(AttemptKey(1, 1), stream, offset, limit)


def test_a_closed_engine_is_unavailable(bench: Bench) -> None:
    bench.engine.close()
    bench.engine.close()
    for act in (
        bench.engine.nodes,
        bench.engine.attempts,
        lambda: bench.engine.poll(0),
        lambda: bench.engine.start([]),
    ):
        if bench.kind.endswith("local") and act == bench.engine.nodes:
            continue
        with pytest.raises(EngineUnavailable):
            act()


@pytest.mark.slow
def test_running_jobs_are_adopted_by_the_next_engine(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(run_ms=1_000))])
    boot = bench.started(1).boot
    bench.reopen()
    bench.heard.clear()
    assert bench.engine.attempts() == [AttemptKey(1, 1)]
    assert bench.started(1).boot == boot
    ended = bench.ended(1)
    assert (ended.boot, ended.outcome, ended.exit_code) == (boot, Outcome.EXITED, 0)


def test_an_end_while_the_engine_is_away_is_told_later(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(run_ms=300, exit_code=5))])
    bench.started(1)
    bench.engine.close()
    if bench.kind.endswith("simulated"):
        bench.now_ms += 5_000
    else:
        time.sleep(0.5)
    bench.engine = bench.open()
    bench.heard.clear()
    ended = bench.ended(1)
    assert (ended.outcome, ended.exit_code) == (Outcome.EXITED, 5)
    assert ended.run_ms < 3_000
    assert len({report.boot for report in [bench.started(1), ended]}) == 1


@pytest.mark.slow
def test_ends_come_again_until_acknowledged(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(stdout="kept")), bench.order(2, LONG)])
    first = bench.ended(1)
    bench.started(2)
    for _ in range(2):
        bench.reopen()
        bench.heard.clear()
        assert bench.ended(1) == first
    bench.engine.acknowledge([AttemptKey(1, 1), AttemptKey(2, 1), AttemptKey(77, 1)])
    bench.engine.acknowledge([AttemptKey(1, 1)])
    bench.reopen()
    bench.heard.clear()
    bench.started(2)
    for _ in range(5):
        bench.listen()
    assert bench.of(1, AttemptEnded) == bench.of(1, AttemptStarted) == []
    assert bench.engine.attempts() == [AttemptKey(2, 1)], "a running attempt can't be acknowledged"
    if bench.kind.endswith("local"):
        chunk = bench.engine.read_log(AttemptKey(1, 1), "stdout", 0, 64)
        assert (chunk.data, chunk.ended) == (b"kept", True)


@pytest.mark.slow
def test_usage_grows_and_the_end_has_the_last_word(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(run_ms=3_400))])
    ended = bench.ended(1)
    usage = [one for one in bench.of(1, AttemptUsage) if isinstance(one, AttemptUsage)]
    assert len({one.run_ms for one in usage}) >= 2
    assert {one.boot for one in usage} == {ended.boot}
    if bench.kind in EXACT:
        for earlier, later in zip(usage, [*usage[1:], ended], strict=True):
            assert earlier.run_ms <= later.run_ms
            assert earlier.cpu_ms <= later.cpu_ms
            assert earlier.peak_memory_mib <= later.peak_memory_mib
    assert ended.run_ms >= max(one.run_ms for one in usage)
    assert ended.run_ms >= 3_400


def test_a_gang_starts_together_and_ends_once(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(run_ms=100), members=6)])
    ended = bench.ended(1)
    assert (ended.outcome, ended.exit_code, ended.message) == (Outcome.EXITED, 0, "")
    if bench.kind in EXACT:
        assert len(bench.of(1, AttemptStarted)) == len(bench.of(1, AttemptEnded)) == 1


def test_a_failing_member_ends_its_gang(bench: Bench) -> None:
    bench.engine.start([bench.order(1, Program(run_ms=100, exit_code=7, failing=2), members=4)])
    ended = bench.ended(1)
    assert (ended.outcome, ended.exit_code, ended.signal) == (Outcome.EXITED, 7, 0)
    assert "member 2" in ended.message
    assert ended.run_ms < 10_000


@pytest.mark.slow
def test_a_hundred_jobs_at_once(bench: Bench) -> None:
    jobs = range(1, 101)
    bench.engine.start([bench.order(job, Program(run_ms=10, exit_code=job % 5)) for job in jobs])
    for job in jobs:
        ended = bench.ended(job)
        assert (ended.outcome, ended.exit_code) == (Outcome.EXITED, job % 5)
    bench.engine.acknowledge([AttemptKey(job, 1) for job in jobs])
    assert bench.engine.attempts() == []
