"""The hub's clock: instants that never go back, stall or jump while it runs, whatever happens to the machine's wall clock.

It is anchored once, at start, to the later of wall time and the last journaled instant, and advances by the kernel's
boot-time clock, which also counts suspended time. A step of the wall clock shows only at the next start, and one backwards
not even then: time goes on from the last record. So a step can't shorten the interval for which a job is charged.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def boottime_ns() -> int:
    """ns since boot, suspended time included (CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class HubClock:
    """`now()` in ns since the Unix epoch. `wall` and `elapsed` are given in tests."""

    __slots__ = ("_anchor", "_elapsed", "_since", "_wall")

    def __init__(
        self,
        last_now: int = 0,
        wall: Callable[[], int] = time.time_ns,
        elapsed: Callable[[], int] = boottime_ns,
    ) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._anchor = max(wall(), last_now)
        self._since = elapsed()

    def now(self) -> int:
        return self._anchor + self._elapsed() - self._since

    def drift_ns(self) -> int:
        """How far the wall clock is ahead of this one: a large value after a step, for `doctor` and the metrics."""
        return self._wall() - self.now()
