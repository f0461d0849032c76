"""A replica: a state kept by folding the journal, for those who read it beside the writer (planner, snapshots).

It changes by records only, never by a decision.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from mintyard.app.journal import Checkpoint
from mintyard.app.recovery import from_snapshot
from mintyard.app.tailer import START, Entry
from mintyard.domain import hub, snapshot
from mintyard.domain.errors import MintyardError, VerificationFailed
from mintyard.domain.state import State
from mintyard.ports.store import Store


class Replica:
    """A state kept by folding. It changes only in `take`; whoever reads it meanwhile holds `lock`."""

    def __init__(self, state: State | None = None, checkpoint: Checkpoint = START) -> None:
        self.state = state or State()
        self.checkpoint = checkpoint
        self.lock = threading.RLock()
        self.broken = False
        """A record was folded in part: this state is of no use any more."""

    @classmethod
    def start(cls, store: Store) -> Replica:
        """From the newest usable snapshot, or empty: tailing does the rest. The journal may grow meanwhile."""
        kept = store.load_snapshot(snapshot.SCHEMA)
        if kept is None:
            return cls()
        state, checkpoint = from_snapshot(store, kept)
        return cls(state, checkpoint or START)

    def take(self, entries: Sequence[Entry]) -> None:
        """Fold; records taken before are skipped. `VerificationFailed` when one doesn't fit; then the replica is `broken`."""
        for entry in entries:
            with self.lock:
                if entry.seq <= self.checkpoint.seq:
                    continue
                if entry.seq != self.checkpoint.seq + 1:
                    raise VerificationFailed(
                        seq=self.checkpoint.seq + 1, why=f"record {entry.seq} came instead"
                    )
                self._fold(entry)
                self.checkpoint = Checkpoint(entry.seq, entry.record.chain)

    def _fold(self, entry: Entry) -> None:
        try:
            hub.begin(self.state, entry.seq, entry.now)
            for event in entry.events:
                hub.apply(self.state, event)
        except (MintyardError, LookupError, ValueError, TypeError, AttributeError) as error:
            self.broken = True
            why = f"its events don't fit the state before it ({type(error).__name__}: {error})"
            raise VerificationFailed(seq=entry.seq, why=why) from error
