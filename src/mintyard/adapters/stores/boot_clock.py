"""The clock of one machine for leases that several of its processes share.

Instants count from the machine's start (CLOCK_BOOTTIME: the same for all processes, never stepped, runs on while
suspended) and carry the boot's id: a lease of another boot belongs to a process that no longer exists. Where the
system offers neither, the wall clock serves; then only a rival's own observation (see `SqliteStore.acquire`) and the
term protect against clock steps.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Instant(msgspec.Struct, frozen=True):
    """Milliseconds within `boot`, the empty string for the wall clock."""

    boot: str
    ms: int


class BootClock:
    """Callable; `observe_ms` is this process's own monotonic clock."""

    def __init__(self) -> None:
        try:
            self._boot = (
                _BOOT_ID.read_text(encoding="ascii").strip() if hasattr(time, "CLOCK_BOOTTIME") else ""
            )
        except OSError:
            self._boot = ""

    def now(self) -> Instant:
        if self._boot:
            return Instant(self._boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)
        return Instant("", time.time_ns() // 1_000_000)

    def observe_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
