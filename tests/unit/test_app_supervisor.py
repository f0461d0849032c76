"""The supervisor's pauses; what it does with real processes is in `tests/integration/test_up.py`."""

from __future__ import annotations

from pathlib import Path

from mintyard.app.config import Config
from mintyard.app.supervisor import Child


def test_the_pause_of_what_keeps_dying_doubles_up_to_the_limit(tmp_path: Path) -> None:
    child = Child("writer", ["false"], Config(folder=str(tmp_path), restart_pause_s=1.0))
    child._started_at = float("inf")  # it has not lived for long, whatever the clock says
    assert [child.pause_s() for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_what_lived_long_is_started_again_at_once(tmp_path: Path) -> None:
    child = Child("writer", ["false"], Config(folder=str(tmp_path)))
    child._started_at, child.tries = float("-inf"), 7
    assert child.pause_s() == 0.1
