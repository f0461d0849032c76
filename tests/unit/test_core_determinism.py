"""The same journal gives the same state: across processes, hash seeds and kept journals; life cycles are closed tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mintyard.app.recovery import fold
from mintyard.app.replay_journal import replay
from mintyard.domain import lifecycle
from mintyard.domain.errors import IllegalTransition
from mintyard.domain.snapshot import decode, encode, state_hash
from mintyard.domain.state import State
from mintyard.sim.__main__ import open_store, simulate
from mintyard.sim.run import Simulation, Tally

ROOT = Path(__file__).parents[2]
ONE_SEED = "from mintyard.sim.__main__ import simulate; print(getattr(simulate(5, 250, 3), 'hash', 'broken'))"


@pytest.mark.slow
def test_hash_seeds_of_the_interpreter_change_nothing() -> None:
    hashes = set()
    for seed in ("0", "1", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [sys.executable, "-c", ONE_SEED],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        hashes.add(done.stdout.strip())
    assert len(hashes) == 1
    assert len(hashes.pop()) == 64


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 106))
def test_a_few_seeds_of_the_simulation_hold(seed: int) -> None:
    result = simulate(seed, 400, 5)
    assert isinstance(result, Tally), result
    assert result.commands >= 400
    assert result.crashes >= 5
    assert result.admitted > 20


def test_a_snapshot_at_any_record_leads_to_the_same_state() -> None:
    simulation = Simulation(7, open_store)
    simulation.run(120, 1)
    records = simulation.journal.read(0, 10_000)
    live = State()
    copies: list[State] = []
    for number, record in enumerate(records):
        fold(live, record)
        for copy in copies:
            fold(copy, record)
        if number % 40 == 0:
            body = encode(live)
            copy = decode(body)
            assert encode(copy) == body
            copies.append(copy)
    assert len(copies) > 1
    wanted = state_hash(live)
    assert {state_hash(copy) for copy in copies} == {wanted}
    assert replay(records).state_hash == wanted


@pytest.mark.parametrize("cycle", lifecycle.ALL, ids=lambda cycle: cycle.what)
def test_life_cycles_are_closed(cycle: lifecycle.LifeCycle) -> None:
    reached = {cycle.initial}
    while True:
        more = {target for (source, _), target in cycle.moves.items() if source in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(cycle.states)
    assert cycle.terminal
    for state in cycle.terminal:
        with pytest.raises(IllegalTransition):
            cycle.step(state, "anything")
