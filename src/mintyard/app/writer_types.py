"""What the writer is made with and shows: its settings and phases, and the two that it tells - outbox and observer.

Types only. The writer itself is in `writer`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

import msgspec

from mintyard.app.decisions import DEFAULT_ROUND_LIMIT, Sink
from mintyard.domain.errors import MintyardError
from mintyard.domain.limits import MAX_COMMANDS_PER_TICK, MAX_INFLIGHT_COMMANDS
from mintyard.domain.scheduling.choices import DEFAULT_BACKFILL, DEFAULT_ORDER, Backfill, Order


class Phase(StrEnum):
    """`standby`: another process leads, or the store can't be reached. `regaining`: the state is being recovered."""

    NEW = "new"
    STANDBY = "standby"
    REGAINING = "regaining"
    LEADING = "leading"
    STOPPING = "stopping"
    STOPPED = "stopped"


class WriterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`tick_ms`: ticks under load are at least this far apart. `tick_budget_ms`: a tick takes no further command then.
    `self_check` (tests): read each record back, compare kept and recovered state where both stand at the same record."""

    tick_ms: float = 2.0
    tick_budget_ms: float = 20.0
    round_every_ms: float = 1_000.0
    round_limit: int = DEFAULT_ROUND_LIMIT
    backfill: Backfill = DEFAULT_BACKFILL
    order: Order = DEFAULT_ORDER
    retry_ms: float = 500.0
    heartbeat_ms: float = 1_000.0
    max_inflight: int = MAX_INFLIGHT_COMMANDS
    max_commands_per_tick: int = MAX_COMMANDS_PER_TICK
    self_check: bool = False


class Outbox(Protocol):
    """What carries effects to the engines. Called in the writer's loop; must not block."""

    def resume(self, term: int) -> None:
        """This process leads now: reconcile, then carry what comes."""
        ...

    def take(self, effects: list[Any]) -> None:
        """Effects of durable records, in order."""
        ...

    def pause(self) -> None:
        """This process does not lead: drop what has not left yet."""
        ...


class Observer(Protocol):
    """What measures the writer. Called in the writer's loop, once a tick or commit."""

    def ticked(
        self, seconds: float, planned: bool, kinds: list[type], replies: list[tuple[Sink, Any, Any]]
    ) -> None: ...

    def committed(self, seconds: float, records: int, durable_seq: int) -> None: ...

    def failed(self, error: MintyardError) -> None: ...
