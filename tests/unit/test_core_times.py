"""What the core knows of time: ends of what runs, run times seen, rounds that reserve; the same after a snapshot and a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.unit.core_world import World

from mintyard.domain import hub, snapshot
from mintyard.domain.commands import Command, ControlJobs, TakeReports, Tick, UpdateJob
from mintyard.domain.events import JobPlaced
from mintyard.domain.jobs.reports import AttemptEnded, NodeSeen, Outcome
from mintyard.domain.jobs.spec import JobSpec, Shape
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.profile import run_rows
from mintyard.domain.scheduling_round import times
from mintyard.domain.state import described, run_of
from mintyard.domain.units import NS_PER_MS

if TYPE_CHECKING:
    from mintyard.domain.state import State

EASY = Tick(backfill=Backfill.EASY)
RATIO = Tick(backfill=Backfill.EASY, order=Order.RESPONSE_RATIO)


def job(cpus: int, minutes: int, name: str = "job") -> JobSpec:
    return JobSpec(name, Shape(cpus_milli=cpus, memory_mib=1_024), time_limit_ms=60_000 * minutes)


def one_node() -> World:
    world = World(nodes=False)
    world.do(TakeReports("local", (NodeSeen("a", 10_000, 65_536),)))
    return world


def placed(world: World, tick: Tick) -> list[int]:
    world.do(tick)
    return [event.job for event in world.events if isinstance(event, JobPlaced)]


def expected_rows(state: State) -> list[list[int]]:
    live = [one for one in state.jobs.values() if one.placement]
    return run_rows((one.id, run_of(one)) for one in live).tolist()


def test_a_tick_reserves_by_time_limits() -> None:
    world = one_node()
    (first,) = world.submit(job(7_000, 60))
    assert placed(world, EASY) == [first]
    world.now += 1_000 * NS_PER_MS
    wide, long, short = world.submit(job(8_000, 10), job(3_000, 90), job(3_000, 50))
    assert placed(world, EASY) == [short]
    assert placed(world, EASY) == []
    assert placed(world, Tick()) == []
    world.start(first)
    world.end(first, run_ms=60_000)
    world.start(short)
    world.end(short, run_ms=60_000)
    assert placed(world, EASY) == [wide]
    assert long in world.state.queue


def test_rows_follow_starts_ends_requeues_and_restores() -> None:
    world = one_node()
    jobs = world.submit(*[job(1_000, minutes) for minutes in range(1, 6)])
    assert sorted(placed(world, Tick())) == jobs
    assert world.state.running.rows().tolist() == expected_rows(world.state)
    world.start(jobs[0])
    world.end(jobs[0])
    world.do(ControlJobs(None, "requeue", (jobs[1],)))
    report = AttemptEnded(jobs[1], 1, "boot", Outcome.STOPPED)
    world.do(TakeReports("local", (report,)))
    assert placed(world, Tick()) == [jobs[1]]
    assert world.state.running.rows().tolist() == expected_rows(world.state)
    restored = snapshot.decode(snapshot.encode(world.state))
    assert restored.running.rows().tolist() == world.state.running.rows().tolist()


@pytest.mark.parametrize(
    ("outcome", "exit_code", "learns"),
    [(Outcome.EXITED, 0, 1), (Outcome.EXITED, 1, 1), (Outcome.TIMED_OUT, 0, 1), (Outcome.STOPPED, 0, 0)],
)
def test_history_learns_from_ends_that_say_how_long(outcome: Outcome, exit_code: int, learns: int) -> None:
    world = one_node()
    (number,) = world.submit(job(1_000, 60))
    placed(world, Tick())
    world.start(number)
    kind = described(world.state.jobs[number])
    world.end(number, run_ms=5_000, outcome=outcome, exit_code=exit_code)
    assert world.state.history.errors.runs == learns
    assert (world.state.history.predict(kind) < 1_800_000) == bool(learns)


def test_response_ratio_lets_short_jobs_of_known_kinds_go_first() -> None:
    world = one_node()
    for _ in range(3):
        (one,) = world.submit(job(10_000, 60, "quick"))
        placed(world, Tick())
        world.start(one)
        world.end(one, run_ms=10_000)
    slow, quick = world.submit(job(10_000, 60, "slow"), job(10_000, 60, "quick"))
    world.now += 60_000 * NS_PER_MS
    assert placed(world, RATIO) == [quick]
    restored = snapshot.decode(snapshot.encode(world.state))
    assert snapshot.state_hash(restored) == snapshot.state_hash(world.state)
    assert restored.history.encode() == world.state.history.encode()
    assert slow in restored.queue


def test_a_restored_hub_plans_as_the_one_that_ran_on() -> None:
    world = one_node()
    for minutes in (5, 7, 11):
        (one,) = world.submit(job(4_000, minutes, f"job-{minutes % 2}"))
        placed(world, RATIO)
        world.start(one)
        world.end(one, run_ms=1_000 * minutes)
    world.submit(*[job(1_000 * (1 + at % 7), 1 + at, f"job-{at % 3}") for at in range(20)])
    world.do(UpdateJob(None, next(iter(world.state.jobs)), time_limit_ms=30_000))
    restored = snapshot.decode(snapshot.encode(world.state))
    for tick in (RATIO, EASY, Tick(backfill=Backfill.CONSERVATIVE, order=Order.RESPONSE_RATIO)):
        seq, now = world.state.seq + 1, world.now + 60_000 * NS_PER_MS
        for state in (world.state, restored):
            hub.begin(state, seq, now)
        assert hub.execute(world.state, tick, now) == hub.execute(restored, tick, now)
        world.now = now
    assert snapshot.state_hash(world.state) == snapshot.state_hash(restored)


def test_kinds_are_forgotten_once_nobody_waits() -> None:
    world = one_node()
    world.state.kinds.sweep_from = 2
    numbers = world.submit(*[job(9_000, 1 + at) for at in range(9)])
    for number in numbers[:-1]:
        if number != numbers[7]:
            world.do(ControlJobs(None, "cancel", (number,)))
    (late,) = world.submit(job(9_000, 50))
    known = times(world.state).kinds
    queue = world.state.queue
    assert len(known) == 4  # of ten, and the unknown one
    assert [
        int(known.limits_ms[queue.get(one).kind]) // 60_000 for one in (numbers[7], numbers[8], late)
    ] == [8, 9, 50]


def test_the_rules_are_recorded_and_old_ticks_still_decode() -> None:
    decoder = msgspec.msgpack.Decoder(Command)
    tick = Tick(7, backfill=Backfill.CONSERVATIVE, order=Order.RESPONSE_RATIO)
    assert decoder.decode(msgspec.msgpack.encode(tick)) == tick
    assert decoder.decode(msgspec.msgpack.encode([23, 7, "fgd"])).backfill is Backfill.NODES
    assert decoder.decode(msgspec.msgpack.encode([23, 7, "fgd"])).order is Order.AGEING
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.msgpack.encode([23, 7, "fgd", "luck"]))
