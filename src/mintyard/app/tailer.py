"""Tailers: follow the journal from a cursor on, in the writer's process or another, and hand over verified, decoded records.

A tailer reads by a store of its own and sees durable records only. It keeps no place of its own: its consumer's cursor moves
when the consumer has taken a batch, so a batch that failed is handed over again. Nothing may be decided
here, and the core's kernels may not be loaded: a projector needs none of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from mintyard.app.journal import GENESIS, Checkpoint, verify
from mintyard.app.record import decode_body
from mintyard.domain.commands import Command
from mintyard.domain.errors import Unavailable
from mintyard.domain.events import AnyEvent
from mintyard.ports.store import Record, Store

_log = structlog.get_logger(__name__)
DEFAULT_BATCH_RECORDS: Final = 512
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.02
_LONGEST_OUTAGE_PAUSE_S: Final = 1.0
START: Final = Checkpoint(0, GENESIS)
"""Before the first record."""


class Entry(msgspec.Struct, frozen=True):
    """One verified record, decoded."""

    record: Record
    inputs: list[Command]
    events: list[AnyEvent]

    @property
    def seq(self) -> int:
        return self.record.seq

    @property
    def now(self) -> int:
        return self.record.now


class Consumer(Protocol):
    """Takes batches in order. `checkpoint` is the last record that it has taken for good."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    def take(self, entries: Sequence[Entry]) -> None:
        """Take all of them or none: an exception leaves `checkpoint` where it was."""
        ...


class Tailer:
    """Follows `store` for one consumer. `run` blocks, so it has a thread or process of its own."""

    def __init__(self, store: Store, consumer: Consumer, batch_records: int = DEFAULT_BATCH_RECORDS) -> None:
        self._store = store
        self._consumer = consumer
        self._batch_records = batch_records
        self._news = threading.Event()

    def notify(self) -> None:
        """There may be new records: a writer in the same process says so, so that none waits for the next look."""
        self._news.set()

    def step(self) -> int:
        """Hand over the next batch, if there is one; how many records it had.

        Errors: `VerificationFailed` when a record does not follow the consumer's cursor, and what the store or the
        consumer raises."""
        at = self._consumer.checkpoint
        records = self._store.read(at.seq, self._batch_records)
        if not records:
            return 0
        self._consumer.take(entries_after(at, records))
        return len(records)

    def catch_up(self) -> int:
        """Hand over everything durable by now; how many records."""
        total = 0
        while taken := self.step():
            total += taken
        return total

    def run(self, stop: threading.Event, tended: Callable[[], None] = lambda: None) -> None:
        """Follow until `stop` is set. An outage of store or consumer (`Unavailable`) is waited out; other errors end it.

        `tended` is called after each look, whether or not there was anything."""
        pause_s = _FIRST_PAUSE_S
        outage_s = 0.0
        while not stop.is_set():
            self._news.clear()
            try:
                taken = self.step()
                tended()
            except Unavailable as error:
                outage_s = min(max(outage_s * 2, 0.05), _LONGEST_OUTAGE_PAUSE_S)
                _log.warning("tailer waits", why=str(error), pause_s=outage_s)
                stop.wait(outage_s)
                continue
            outage_s = 0.0
            if taken:
                pause_s = _FIRST_PAUSE_S
            elif not self._news.wait(pause_s):
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def entries_after(at: Checkpoint, records: Sequence[Record]) -> list[Entry]:
    """The records decoded, when their numbers and chain follow `at`, else `VerificationFailed`."""
    verify(records, start=at)
    entries: list[Entry] = []
    for record in records:
        body = decode_body(record)
        entries.append(Entry(record, body.inputs, body.events))
    return entries
