"""Writer: the one process that decides. Owns the state and the journal's chain; takes commands, ticks, and has them written.

Apply first, speak after: a tick's events are applied at once, and nothing that depends on a record leaves before that
record is durable - no answer, notice, order to an engine or view. While a commit is in flight the next ticks are decided;
what piled up goes into the next append together. A commit that failed, or whose fate is unknown, ends the state: whoever
waits gets an error, and a new state is recovered from the store on a fresh connection under a new term.

Everything here runs in one event loop; the store has a thread of its own. Only `offer` may be called from other threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

from mintyard.app.clock import HubClock
from mintyard.app.decisions import Decided, Decisions, Item, Look, Outcome, Sink
from mintyard.app.inbox import Inbox
from mintyard.app.leader import Leader
from mintyard.app.link import Answer, Notice
from mintyard.app.record import decode_body
from mintyard.app.recovery import Recovered
from mintyard.app.revocations import Revocations
from mintyard.app.store_thread import StoreThread
from mintyard.app.writer_types import Observer, Outbox, Phase, WriterSettings
from mintyard.domain import snapshot
from mintyard.domain.commands import Command
from mintyard.domain.errors import (
    CommitUnknown,
    Fenced,
    InvariantBroken,
    MintyardError,
    NotLeader,
    Overloaded,
    StoreUnavailable,
)
from mintyard.domain.limits import (
    MAX_APPEND_BYTES,
    MAX_RECORD_BYTES,
)
from mintyard.domain.units import NS_PER_S
from mintyard.ports.store import Record

__all__ = ["Observer", "Outbox", "Phase", "Writer", "WriterSettings"]
_log = structlog.get_logger(__name__)
MAX_UNSENT_RECORDS: Final = 256
"""Ticks decided ahead of a stalled store; then commands wait undecided."""
MAX_UNSENT_BYTES: Final = 2 * MAX_RECORD_BYTES
_MAX_SLEEP_S: Final = 60.0
_MAX_PAUSE_S: Final = 10.0
_DUE_EVERY_S: Final = 0.1
_ROUND_SHARE: Final = 4
"""After a round that took t, at least 4 t pass until the next: rounds take a fifth of the time at most."""


class Writer:
    """`await start()`, then `offer` from any thread; `await stop()` drains, commits and gives the lease back."""

    def __init__(
        self,
        leader: Leader,
        settings: WriterSettings | None = None,
        outbox: Outbox | None = None,
        observer: Observer | None = None,
        make_clock: Callable[[int], Callable[[], int]] = lambda last_now: HubClock(last_now).now,
    ) -> None:
        self.settings = settings or WriterSettings()
        self.phase = Phase.NEW
        self.durable_seq = 0
        self.discards = 0
        """How often a state was discarded since the start."""
        self.mismatches = 0
        """How often `self_check` found a discarded state that was not what the journal says: 0, or the core has a fault."""
        self.revocations = Revocations()
        self._leader = leader
        self._outbox = outbox
        self._observer = observer
        self._make_clock = make_clock
        self._clock = time.time_ns
        self._inbox: Inbox[Item] = Inbox()
        self._lock = threading.Lock()
        self._inflight = 0
        self._woken = False
        self._decisions: Decisions | None = None
        self._kept: tuple[int, int, bytes] | None = None
        self._unsent: deque[Decided] = deque()
        self._sent: deque[Decided] = deque()
        self._epoch = 0
        self._why: MintyardError = NotLeader()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._next_tick = self._next_round = self._tick_at = 0.0
        self._breaks = 0
        self._subscribers: dict[Callable[[Notice], None], None] = {}
        self._drained = asyncio.Event()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Try to lead from now on; returns at once (see `leading`)."""
        self._loop = asyncio.get_running_loop()
        self._store = StoreThread(self._loop)
        self._led = asyncio.Event()
        self._regain()
        self._every("heartbeat", self.settings.heartbeat_ms / 1_000, self._heartbeat)

    async def leading(self) -> None:
        """Wait until this process leads."""
        await self._led.wait()

    async def stop(self, hurry: bool = False) -> None:
        """Take nothing more, decide and commit what was taken (not in a hurry), give the lease back. Jobs go on."""
        if self.phase in (Phase.NEW, Phase.STOPPED):
            return
        if self.phase is Phase.LEADING and not hurry:
            self.phase = Phase.STOPPING
            self._drained.clear()
            self._tick()
            await self._drained.wait()
        self.phase = Phase.STOPPED
        self._forget_state(NotLeader(), CommitUnknown())
        for timer in self._timers.values():
            timer.cancel()
        if self._outbox is not None:
            self._outbox.pause()
        await self._store.call(self._leader.close)
        await self._store.close()

    @property
    def state_seq(self) -> int:
        """The last record decided, durable or not."""
        return self._decisions.seq if self._decisions else self.durable_seq

    # --- taking commands --------------------------------------------------------------------------------------------

    def offer(self, items: Iterable[tuple[Command | Look, Any]], sink: Sink, *, ours: bool = False) -> None:
        """Take commands, each with a tag; their outcomes go to `sink` with these tags, in order. Any thread.

        All are taken or none: `Overloaded` (unless `ours`), `NotLeader`, `StoreUnavailable` while this can't lead."""
        batch: list[Item] = [(command, sink, tag) for command, tag in items]
        with self._lock:
            if self.phase not in (Phase.LEADING, Phase.REGAINING):
                raise self._why if self.phase is Phase.STANDBY else NotLeader()
            if self._inflight + len(batch) > self.settings.max_inflight and not ours:
                raise Overloaded(retry_after_s=1)
            self._inflight += len(batch)
            self._inbox.extend(batch, ours=ours)
            wake, self._woken = not self._woken, True
        if wake:
            self._loop.call_soon_threadsafe(self._on_wake)

    def subscribe(self, sink: Callable[[Notice], None]) -> Notice:
        """Send every notice from now on to `sink` (in the loop, must not block); the notice that carries all so far."""
        self._subscribers[sink] = None
        return self.revocations.everything()

    def unsubscribe(self, sink: Callable[[Notice], None]) -> None:
        self._subscribers.pop(sink, None)

    def tell_key_version(self, version: int) -> None:
        """The key set has changed: validators must fetch it."""
        if version != self.revocations.key_version:
            self.revocations.key_version = version
            self._heartbeat()

    @property
    def queued(self) -> int:
        """Commands taken and not answered."""
        return self._inflight

    def _on_wake(self) -> None:
        self._woken = False
        self._schedule()

    def _schedule(self) -> None:
        """A tick as soon as ticks may follow each other: at once when the last one is long ago."""
        if self._decisions is None:
            return
        when = max(self._next_tick, self._loop.time())
        if "tick" not in self._timers or self._tick_at > when:
            self._tick_at = when
            self._at("tick", when, self._tick)

    # --- ticks ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if (timer := self._timers.pop("tick", None)) is not None:
            timer.cancel()
        decisions = self._decisions
        if decisions is None or self._is_full():
            return
        if not self._leader.valid:
            self._step_down()
            return
        began = self._loop.time()
        budget = began + self.settings.tick_budget_ms / 1_000
        loop_time = self._loop.time
        plan = self._wants_round(decisions, began)
        try:
            decided, replies = decisions.decide(
                self._inbox,
                max(decisions.state.now, self._clock()),
                self._leader.term,
                plan,
                began >= self._next_round,
                lambda: loop_time() > budget,
                self.settings.max_commands_per_tick,
            )
            if decided is not None and self.settings.self_check:
                decode_body(decided.record)
        except Exception as error:  # noqa: BLE001 (any of them means that the state is half changed)
            self._break(decisions, error)
            return
        ended = self._loop.time()
        if decisions.planned:
            self._next_round = ended + _ROUND_SHARE * decisions.round_s
        self._next_tick = began + self.settings.tick_ms / 1_000
        if self._observer is not None:
            self._observer.ticked(ended - began, decisions.planned, decisions.kinds, replies)
        if decided is not None:
            decided.replies = replies
            self._unsent.append(decided)
            self._send()
        elif replies:
            self._attach(replies)
        self._after_tick(decisions)

    def _wants_round(self, decisions: Decisions, now: float) -> bool:
        """Whether this tick plans a round: something changed, fell due, or time alone may have made a job fit."""
        if now < self._next_round:
            return False
        due = decisions.state.due.next()
        if due and due <= self._clock():
            return True
        if not decisions.waiting_jobs:
            return False
        return decisions.stirred or now >= self._next_round + self.settings.round_every_ms / 1_000

    def _attach(self, replies: list[tuple[Sink, Any, Any]]) -> None:
        """Replies of a tick without events: what they saw may not be durable yet, so they wait for the last record."""
        last = self._unsent[-1] if self._unsent else self._sent[-1] if self._sent else None
        if last is not None:
            last.replies += replies
        else:
            self._answer(((self.durable_seq, replies),))

    def _after_tick(self, decisions: Decisions) -> None:
        if self._inbox:
            self._schedule()
        elif self.phase is Phase.STOPPING:
            self._check_drained()
        else:
            self._sleep(decisions)

    def _sleep(self, decisions: Decisions) -> None:
        """Wake for what falls due and for rounds that time alone makes worth while; an idle hub sleeps."""
        now = self._loop.time()
        wake = now + _MAX_SLEEP_S
        if due := decisions.state.due.next():
            wake = min(wake, now + max((due - self._clock()) / NS_PER_S, _DUE_EVERY_S))
        if decisions.waiting_jobs:
            every = 0.0 if decisions.stirred else self.settings.round_every_ms / 1_000
            wake = min(wake, max(self._next_round + every, self._next_tick))
        self._tick_at = wake
        self._at("tick", wake, self._tick)

    def _is_full(self) -> bool:
        return len(self._unsent) >= MAX_UNSENT_RECORDS or (
            len(self._unsent) > 1 and sum(len(d.record.body) for d in self._unsent) > MAX_UNSENT_BYTES
        )

    # --- commits ----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Hand all unsent records to the store as one append, unless one is in flight."""
        if self._sent or not self._unsent:
            return
        size = 0
        while self._unsent and (not size or size + len(self._unsent[0].record.body) <= MAX_APPEND_BYTES // 2):
            decided = self._unsent.popleft()
            size += len(decided.record.body)
            self._sent.append(decided)
        records: list[Record] = [decided.record for decided in self._sent]
        epoch, began = self._epoch, self._loop.time()

        def done(_: Any, error: BaseException | None) -> None:
            if epoch != self._epoch:
                return
            if error is not None:
                self._fail(error)
            else:
                self._committed(began)

        self._store.post(lambda: self._leader.append(records), done)

    def _committed(self, began: float) -> None:
        done, self._sent = self._sent, deque()
        self.durable_seq = done[-1].record.seq
        self._breaks = 0
        if not self._leader.valid:
            self._sent = done
            self._step_down()
            return
        if self._observer is not None:
            self._observer.committed(self._loop.time() - began, len(done), self.durable_seq)
        self._send()
        orders = [event for decided in done for event in decided.orders]
        self._tell(self.revocations.apply(self.durable_seq, orders))
        effects = [effect for decided in done for effect in decided.effects]
        if effects and self._outbox is not None:
            self._outbox.take(effects)
        self._answer((decided.record.seq, decided.replies) for decided in done)
        if self._inbox or self.phase is Phase.STOPPING:
            self._schedule()
            self._check_drained()

    def _answer(self, groups: Iterable[tuple[int, list[tuple[Sink, Any, Any]]]]) -> None:
        """Everything for one sink in one call."""
        by_sink: dict[Sink, list[tuple[Any, Outcome]]] = {}
        for seq, replies in groups:
            for sink, tag, reply in replies:
                outcome = reply if isinstance(reply, MintyardError) else Answer(seq, reply)
                if sink in by_sink:
                    by_sink[sink].append((tag, outcome))
                else:
                    by_sink[sink] = [(tag, outcome)]
        self._deliver(by_sink)

    def _deliver(self, by_sink: dict[Sink, list[tuple[Any, Outcome]]]) -> None:
        count = sum(map(len, by_sink.values()))
        with self._lock:
            self._inflight -= count
        for sink, outcomes in by_sink.items():
            try:
                sink(outcomes)
            except Exception:  # noqa: BLE001 (another's fault must not stop the hub)
                _log.exception("a caller could not take its answers")

    def _tell(self, notice: Notice) -> None:
        for sink in list(self._subscribers):
            try:
                sink(notice)
            except Exception:  # noqa: BLE001 (another's fault must not stop the hub)
                _log.exception("a subscriber could not take a notice")

    def _heartbeat(self) -> None:
        if self._decisions is not None and self._subscribers and self._leader.valid:
            self._tell(self.revocations.apply(self.durable_seq, ()))

    def _check_drained(self) -> None:
        if not (self._inbox or self._unsent or self._sent):
            self._drained.set()

    # --- when it goes wrong -----------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """An append failed: nothing in memory counts any more."""
        if isinstance(error, Fenced):
            self._step_down(NotLeader())
            return
        known = error if isinstance(error, MintyardError) else InvariantBroken(why=f"append: {error!r}")
        _log.warning(
            "a commit failed; the state is discarded and recovered", error=str(known), code=known.code
        )
        later = StoreUnavailable(why="what this request was decided on was not written")
        self._discard(known, known if isinstance(known, StoreUnavailable) else later)

    def _break(self, decisions: Decisions, error: Exception) -> None:
        """A command raised where it must not: a fault of ours. It gets the blame, its state is thrown away."""
        _log.error("a command broke the core; the state is discarded and recovered", exc_info=error)
        undone = decisions.undone()
        self._breaks += 1
        broken = InvariantBroken(why=f"{type(error).__name__} while deciding")
        later = StoreUnavailable(why="an internal error undid what was not written yet")
        by_sink: dict[Sink, list[tuple[Any, Outcome]]] = {}
        blamed = len(undone) if decisions.planned else len(undone) - 1  # a round is nobody's command
        for index, (sink, tag) in enumerate(undone):
            by_sink.setdefault(sink, []).append((tag, broken if index == blamed else later))
        self._deliver(by_sink)
        self._discard(CommitUnknown(), later)

    def _discard(self, sent_error: MintyardError, unsent_error: MintyardError) -> None:
        """Throw the state away and recover another one; commands not decided yet wait for it."""
        self.discards += 1
        if self._observer is not None:
            self._observer.failed(sent_error)
        if self.settings.self_check and self._decisions is not None:
            state = self._decisions.state
            self._kept = (state.seq, state.now, snapshot.state_hash(state))
        stopping = self.phase is Phase.STOPPING
        self._forget_state(unsent_error, sent_error, keep_inbox=not stopping)
        if stopping:
            self._drained.set()
            return
        if self._breaks > 1:
            delay = min(0.05 * 2**self._breaks, _MAX_PAUSE_S)
            self.phase = Phase.REGAINING
            self._at("retry", self._loop.time() + delay, self._regain)
        else:
            self._regain()

    def _step_down(self, sent_error: MintyardError | None = None) -> None:
        """Another process leads, or may lead by now: fall silent at once, then wait for a turn as standby."""
        _log.warning("this process no longer leads", term=self._leader.term)
        if self._observer is not None:
            self._observer.failed(NotLeader())
        stopping = self.phase is Phase.STOPPING
        self._forget_state(NotLeader(), sent_error or CommitUnknown())
        if stopping:
            self._drained.set()
            return
        self._stand_by(NotLeader())

    def _forget_state(
        self, unsent_error: MintyardError, sent_error: MintyardError, *, keep_inbox: bool = False
    ) -> None:
        self._epoch += 1
        self._decisions = None
        self._led.clear()
        for name in ("tick", "renew", "silence"):
            if (timer := self._timers.pop(name, None)) is not None:
                timer.cancel()
        if self._outbox is not None:
            self._outbox.pause()
        waiting: list[tuple[Sink, Any, MintyardError]] = []
        for pile, error in ((self._sent, sent_error), (self._unsent, unsent_error)):
            waiting += [(sink, tag, error) for decided in pile for sink, tag, _ in decided.replies]
            pile.clear()
        self._refuse(waiting)
        if not keep_inbox:
            self._flush_inbox(unsent_error)

    def _flush_inbox(self, error: MintyardError) -> None:
        with self._lock:
            items = self._inbox.drain()
        self._refuse([(sink, tag, error) for _, sink, tag in items])

    def _refuse(self, waiting: list[tuple[Sink, Any, MintyardError]]) -> None:
        by_sink: dict[Sink, list[tuple[Any, Outcome]]] = {}
        for sink, tag, error in waiting:
            by_sink.setdefault(sink, []).append((tag, error))
        self._deliver(by_sink)

    # --- leading ----------------------------------------------------------------------------------------------------

    def _stand_by(self, why: MintyardError) -> None:
        self._why = why
        with self._lock:
            self.phase = Phase.STANDBY
        self._flush_inbox(why)
        self._at("retry", self._loop.time() + self.settings.retry_ms / 1_000, self._regain)

    def _regain(self) -> None:
        if self.phase is not Phase.STANDBY:
            # Commands wait for the outcome; a standby that only tries again refuses them meanwhile.
            self.phase = Phase.REGAINING
        epoch = self._epoch

        def done(recovered: Recovered | None, error: BaseException | None) -> None:
            if epoch != self._epoch or self.phase is Phase.STOPPED:
                return
            if error is not None:
                known = error if isinstance(error, MintyardError) else InvariantBroken(why=repr(error))
                if known.problem() != self._why.problem():
                    _log.error("the hub can't lead", error=str(known), code=known.code)
                self._stand_by(known)
            elif recovered is None:
                self._stand_by(NotLeader())
            else:
                self._lead(recovered)

        self._store.post(self._leader.regain, done)

    def _lead(self, recovered: Recovered) -> None:
        self._check_kept(recovered)
        head = recovered.head
        self._decisions = Decisions(
            recovered.state,
            head,
            self.settings.round_limit,
            time.perf_counter,
            backfill=self.settings.backfill,
            order=self.settings.order,
        )
        self._clock = self._make_clock(recovered.state.now)
        self.durable_seq = head.seq if head else 0
        notice = self.revocations.reset(recovered.state)
        with self._lock:
            self.phase = Phase.LEADING
        self._led.set()
        self._every("renew", self._leader.renew_every_s, self._renew)
        self._watch_lease()
        _log.info("leading", term=self._leader.term, seq=self.durable_seq, folded=recovered.folded)
        self._tell(notice)
        if self._outbox is not None:
            self._outbox.resume(self._leader.term)
        self._next_round = 0.0
        self._schedule()

    def _check_kept(self, recovered: Recovered) -> None:
        """The discarded state and the recovered one must agree when they stand at the same record and time."""
        kept, self._kept = self._kept, None
        state = recovered.state
        if kept is not None and kept[:2] == (state.seq, state.now) and kept[2] != snapshot.state_hash(state):
            self.mismatches += 1
            _log.critical("the state in memory was not what the journal says", seq=state.seq)

    def _renew(self) -> None:
        epoch = self._epoch

        def done(_: Any, error: BaseException | None) -> None:
            if epoch != self._epoch:
                return
            if isinstance(error, Fenced):
                self._step_down()
            elif error is not None:
                _log.warning("the lease could not be renewed", error=str(error))
            else:
                self._watch_lease()

        self._store.post(self._leader.renew, done)

    def _watch_lease(self) -> None:
        """Fall silent when the lease has nearly run out, whether or not the store answers."""

        def check() -> None:
            if self._leader.valid:
                self._watch_lease()
            else:
                self._step_down()

        self._at("silence", self._loop.time() + max(self._leader.silent_in_s, 0.0) + 0.001, check)

    def _at(self, name: str, when: float, act: Callable[[], None]) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        self._timers[name] = self._loop.call_at(when, act)

    def _every(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        def again() -> None:
            self._timers[name] = self._loop.call_later(seconds, again)
            act()

        self._at(name, self._loop.time() + seconds, again)
