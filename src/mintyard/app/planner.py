"""The planner: answers explain, quote, count and how queues stand on a state of its own, kept by tailing the journal.

It runs the production code - admission, quota, the scheduling round, feasibility - so what it says can't disagree with what
the writer will decide on the same record. It only reads: nothing but folding may change its state.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from mintyard.app.config import Config
from mintyard.app.explaining import DEFAULT_ROUND, explain_number
from mintyard.app.questions import Counts, CountState, ExplainJob, Finding, ListQueues, Question, QuoteJobs
from mintyard.app.queue_listing import list_queues
from mintyard.app.quoting import quote_jobs
from mintyard.app.replica import Replica
from mintyard.app.tailer import Tailer
from mintyard.domain.commands import Tick
from mintyard.domain.errors import InvalidRequest, InvariantBroken, NotCaughtUp, Unavailable
from mintyard.domain.ledger.book import LEDGER_ACCOUNTS
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.state import State
from mintyard.ports.store import Store

_log = structlog.get_logger(__name__)
DEFAULT_WAIT_MS: Final = 2_000
_RESTART_PAUSE_S: Final = 1.0


class Planner:
    """`run` tails in one thread, `ask` may be called from any other: one question at a time sees one record's state.

    In the writer's process, `notify` saves the wait for the next look at the journal."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], int] = time.time_ns,
        wait_ms: int = DEFAULT_WAIT_MS,
        round_: Tick = DEFAULT_ROUND,
    ) -> None:
        self._store = store
        self._clock = clock
        self._wait_ms = wait_ms
        self._round = round_
        self._moved = threading.Condition()
        self._replica = Replica()
        self._tailer = Tailer(store, self._replica)
        self._started = False

    @property
    def seq(self) -> int:
        """The last record folded."""
        return self._replica.checkpoint.seq

    def notify(self) -> None:
        self._tailer.notify()

    def run(self, stop: threading.Event) -> None:
        """Keep the state up to date until `stop` is set. It starts from the newest usable snapshot.

        Raises `VerificationFailed` when the journal doesn't verify; an outage of the store is waited out."""
        while not stop.is_set():
            try:
                self.start()
                break
            except Unavailable as error:
                _log.warning("planner waits for the store", why=str(error))
                stop.wait(_RESTART_PAUSE_S)
        self._tailer.run(stop, self._tell)

    def start(self) -> None:
        """Load the newest snapshot, once; `run` does it by itself."""
        if not self._started:
            self._replica = Replica.start(self._store)
            self._tailer = Tailer(self._store, self._replica)
            self._started = True

    def catch_up(self) -> int:
        """Fold everything durable by now, in this thread (tests, one-shot commands); the last record."""
        self.start()
        self._tailer.catch_up()
        self._tell()
        return self.seq

    def _tell(self) -> None:
        with self._moved:
            self._moved.notify_all()

    def ask(self, question: Question) -> Finding:
        """The finding, true at its `seq`. Errors: refusals such as `NotFound` or `ScopeMissing`; `NotCaughtUp` when the
        record `min_seq` doesn't come in time."""
        min_seq = 0 if isinstance(question, CountState) else question.min_seq
        if not 0 <= min_seq < 2**63:
            raise InvalidRequest(why=f"min_seq {min_seq} is out of range")
        self._wait_for(min_seq)
        replica = self._replica
        if replica.broken:
            raise InvariantBroken(why="the planner could not follow the journal; restart it")
        with replica.lock:
            state = replica.state
            now = max(self._clock(), state.now)
            match question:
                case ExplainJob():
                    return explain_number(state, question.job, question.within, now, self._round)
                case QuoteJobs():
                    return quote_jobs(state, question.authority, question.jobs, now)
                case CountState():
                    return count_state(state)
                case ListQueues():
                    return list_queues(state, question.within)

    def _wait_for(self, min_seq: int) -> None:
        with self._moved:
            if not self._moved.wait_for(lambda: self.seq >= min_seq, self._wait_ms / 1_000):
                raise NotCaughtUp(seq=self.seq, min_seq=min_seq, retry_after_s=1)


def open_planner(
    store: Store,
    *,
    clock: Callable[[], int] = time.time_ns,
    wait_ms: int = DEFAULT_WAIT_MS,
    round_: Tick = DEFAULT_ROUND,
) -> Planner:
    """A planner with the newest snapshot loaded; `run` or `catch_up` brings it up to date. `round_` is how the writer plans."""
    planner = Planner(store, clock=clock, wait_ms=wait_ms, round_=round_)
    planner.start()
    return planner


def round_of(config: Config) -> Tick:
    """How a writer with this configuration plans."""
    return Tick(config.round_limit, backfill=Backfill(config.backfill), order=Order(config.order))


def count_state(state: State) -> Counts:
    """Live objects by state and amounts by unit and ledger account, for the metrics endpoint."""
    cluster = state.cluster
    total, used = cluster.total(), [0, 0, 0]
    for account in state.ledger.accounts.values():
        for at, amount in enumerate(account.in_use):
            used[at] += amount
    names = ("gpus_milli", "cpus_milli", "memory_mib")
    return Counts(
        state.seq,
        state.now,
        dict(sorted(Counter(job.state for job in state.jobs.values()).items())),
        dict(sorted(Counter(node.state for node in state.nodes.values()).items())),
        dict(sorted(Counter(token.state for token in state.tokens.values()).items())),
        {
            unit.value: dict(zip(LEDGER_ACCOUNTS, map(str, sums), strict=True))
            for unit, sums in state.ledger.totals.items()
            if any(sums)
        },
        dict(zip(names, used, strict=True)),
        {name: getattr(total, name) for name in names},
    )
