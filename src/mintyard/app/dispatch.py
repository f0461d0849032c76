"""Dispatch: carries effects of durable records to the engines and brings their reports back as commands.

Each engine has two threads: one sends orders, one polls. Orders are idempotent, so whenever something may have been lost -
this process started to lead, the engine came back, a call failed - what the engine knows is compared with the state and
mended. Reports are given to the writer until it has them durable; only then is an attempt's end acknowledged. While this
process does not lead, nothing is sent and nothing is asked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import structlog

from mintyard.app.decisions import Look
from mintyard.app.effects import NOWHERE, Effect, EffectPlanner, Start, Stop, live_attempts
from mintyard.app.job_tokens import JobTokens
from mintyard.app.local_link import call
from mintyard.app.reconciliation import compare, explain_end
from mintyard.app.writer import Writer
from mintyard.domain.commands import TakeReports
from mintyard.domain.errors import Broken, EngineUnavailable, MintyardError, NotLeader, Refused
from mintyard.domain.jobs.reports import AttemptEnded, NodeGone, NodeSeen, Outcome, Report
from mintyard.domain.replies import Refusal
from mintyard.domain.state import State
from mintyard.ports.engine import AttemptKey, Engine, StartOrder

_log = structlog.get_logger(__name__)
MAX_ORDERS_PER_CALL: Final = 256
MAX_REPORTS_PER_COMMAND: Final = 1_024
DEFAULT_INVENTORY_S: Final = 10.0
DEFAULT_POLL_S: Final = 1.0
LOST_AFTER_S: Final = 30.0
"""An engine that is away for this long gets no new work: its nodes count as lost until it is back."""
_LEAST_POLL_S: Final = 0.01
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 10.0

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Report])
Counter = Callable[[str, str], None]
"""Counts (engine, what failed)."""


class EngineDispatch:
    """One engine. `start` and `close` are called once; `resume`, `take` and `pause` by the writer's loop."""

    def __init__(
        self,
        engine: Engine,
        writer: Writer,
        tokens: JobTokens,
        *,
        poll_s: float = DEFAULT_POLL_S,
        inventory_s: float = DEFAULT_INVENTORY_S,
        failed: Counter = lambda engine, what: None,
    ) -> None:
        self.engine = engine
        self.name = engine.name
        self._writer = writer
        self._tokens = tokens
        self._poll_s, self._inventory_s = poll_s, inventory_s
        self._failed = failed
        self._changed = threading.Condition()
        self._term = 0
        self._closed = False
        self._mend = False
        self._effects: deque[Effect] = deque()
        self._ended: dict[AttemptKey, None] = {}
        self._lost: set[AttemptKey] = set()
        self._nodes: dict[str, NodeSeen | None] = {}
        self._nodes_term = 0
        self._nodes_due = 0.0
        self._away_since = 0.0
        self._threads = [
            threading.Thread(target=self._send_orders, name=f"mintyard-orders-{self.name}", daemon=True),
            threading.Thread(target=self._bring_reports, name=f"mintyard-reports-{self.name}", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let go of the engine; jobs go on. Nothing is sent any more when it returns."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.engine.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def resume(self, term: int) -> None:
        with self._changed:
            self._term, self._mend = term, True
            self._changed.notify_all()

    def pause(self) -> None:
        with self._changed:
            self._term = 0
            self._effects.clear()

    def take(self, effects: Sequence[Effect]) -> None:
        with self._changed:
            self._effects.extend(effects)
            self._changed.notify_all()

    @property
    def queued(self) -> int:
        """Orders that have not left yet."""
        return len(self._effects)

    @property
    def away(self) -> bool:
        """Whether the engine can't be reached."""
        return self._away_since > 0

    # --- orders -----------------------------------------------------------------------------------------------------

    def _send_orders(self) -> None:
        pause_s = 0.0
        while self._wait_for_orders(pause_s):
            try:
                self._mend_if_asked()
                self._carry()
                self._acknowledge()
                pause_s = 0.0
            except NotLeader:
                continue  # paused: what is left will be found by the next reconciliation
            except MintyardError as error:
                pause_s = self._trouble("orders", error, pause_s)
            except Exception as error:  # noqa: BLE001 (an adapter's fault must not end the thread)
                _log.exception("orders could not be sent", engine=self.name)
                pause_s = self._trouble("orders", error, pause_s)

    def _wait_for_orders(self, pause_s: float) -> bool:
        """Wait until there is something to send, after a pause; False to end."""
        with self._changed:
            if pause_s:
                self._changed.wait_for(lambda: self._closed, pause_s)
            self._changed.wait_for(
                lambda: self._closed or (self._term and (self._mend or self._effects or self._ended))
            )
            return not self._closed

    def _trouble(self, what: str, error: Exception, pause_s: float) -> float:
        """Note that the engine may have missed something, and how long to wait before the next try."""
        with self._changed:
            if self._closed:
                return 0.0
            self._mend = True
            self._away_since = self._away_since or time.monotonic()
        self._failed(self.name, what)
        if pause_s < _FIRST_PAUSE_S:
            _log.warning("the engine failed; trying again", engine=self.name, what=what, error=str(error))
        return min(max(2 * pause_s, _FIRST_PAUSE_S), _MAX_PAUSE_S)

    def _mend_if_asked(self) -> None:
        with self._changed:
            if not self._mend or not self._term:
                return
            term, self._mend = self._term, False
            # Everything in the queue is durable, so the state that is looked up below has it.
            self._effects.clear()
        try:
            known = set(self.engine.attempts())
            self._tokens.hub_name, live = self._look(
                lambda state: (state.name, live_attempts(state, self.name))
            )
            mending = compare(known, live)
            self._lost = set(mending.lost)
            starts: list[Start] = (
                self._look(lambda state: _starts(state, mending.start)) if mending.start else []
            )
            _log.info(
                "reconciled",
                engine=self.name,
                live=len(live),
                known=len(known),
                started=len(starts),
                stopped=len(mending.stop),
                lost=len(mending.lost),
            )
            self._start(starts, term)
            for at in range(0, len(mending.stop), MAX_ORDERS_PER_CALL):
                self._check_term(term)
                self.engine.stop(mending.stop[at : at + MAX_ORDERS_PER_CALL])
        except BaseException:
            with self._changed:
                self._mend = True
            raise
        if self._away_since:
            self._away_since = 0.0
            self._nodes_due = 0.0

    def _look(self, at: Callable[[State], Any]) -> Any:
        return call(self._writer, Look(at), ours=True).reply

    def _carry(self) -> None:
        """Send what is queued, in order, runs of one kind together."""
        while True:
            with self._changed:
                term, batch = self._term, self._next_batch()
            if not term or not batch:
                return
            if isinstance(batch[0], Start):
                self._start([effect for effect in batch if isinstance(effect, Start)], term)
            else:
                self._check_term(term)
                self.engine.stop([effect.order for effect in batch if isinstance(effect, Stop)])

    def _next_batch(self) -> list[Effect]:
        batch: list[Effect] = []
        while self._effects and len(batch) < MAX_ORDERS_PER_CALL:
            if batch and type(self._effects[0]) is not type(batch[0]):
                break
            batch.append(self._effects.popleft())
        return batch

    def _start(self, starts: Sequence[Start], term: int) -> None:
        for at in range(0, len(starts), MAX_ORDERS_PER_CALL):
            orders: list[StartOrder] = []
            for start in starts[at : at + MAX_ORDERS_PER_CALL]:
                try:
                    orders.append(self._tokens.equip(start))
                except (
                    Refused
                ) as error:  # no token can be made for it: it can't start, and must not block others
                    self._give_up(start, error)
            self._check_term(term)
            self.engine.start(orders)

    def _give_up(self, start: Start, error: MintyardError) -> None:
        _log.error("no token for a job", job=start.order.job, code=error.code)
        report = AttemptEnded(
            start.order.job, start.order.attempt, "hub", Outcome.NEVER_STARTED, message=str(error)
        )
        call(self._writer, TakeReports(self.name, (report,)), ours=True)

    def _check_term(self, term: int) -> None:
        """The last look before something leaves: a deposed leader sends nothing."""
        if self._term != term:
            raise NotLeader()

    def _acknowledge(self) -> None:
        with self._changed:
            ended = list(self._ended)
        for at in range(0, len(ended), MAX_ORDERS_PER_CALL):
            batch = ended[at : at + MAX_ORDERS_PER_CALL]
            self.engine.acknowledge(batch)
            with self._changed:
                for key in batch:
                    self._ended.pop(key, None)
                    self._lost.discard(key)

    # --- reports ----------------------------------------------------------------------------------------------------

    def _bring_reports(self) -> None:
        pause_s = 0.0
        while self._wait_to_lead(pause_s):
            try:
                self._deliver(self._inventory())
                asked_at = time.monotonic()
                reports = self.engine.poll(self._poll_s)
                # An engine may answer at once when it has nothing to say.
                pause_s = 0.0 if reports or time.monotonic() - asked_at > _LEAST_POLL_S else _LEAST_POLL_S
            except EngineUnavailable as error:
                pause_s = self._trouble("poll", error, pause_s)
                self._lose_nodes()
                continue
            except NotLeader:
                continue
            except Exception as error:  # noqa: BLE001 (an adapter's fault must not end the thread)
                _log.exception("reports could not be fetched", engine=self.name)
                pause_s = self._trouble("poll", error, pause_s)
                continue
            self._deliver(reports)

    def _wait_to_lead(self, pause_s: float) -> bool:
        with self._changed:
            if pause_s:
                self._changed.wait_for(lambda: self._closed, pause_s)
            self._changed.wait_for(lambda: self._closed or self._term)
            return not self._closed

    def _inventory(self) -> list[Report]:
        """Nodes that came, changed or went since the last look; all of them when this process begins to lead."""
        term = self._term
        if term and self._nodes_term != term:
            names: list[str] = self._look(
                lambda state: [node.name for node in state.nodes.values() if node.engine == self.name]
            )
            self._nodes = dict.fromkeys(names)
            self._nodes_term, self._nodes_due = term, 0.0
        if time.monotonic() < self._nodes_due:
            return []
        seen = {node.node: node for node in self.engine.nodes()}
        self._nodes_due = time.monotonic() + self._inventory_s
        changed: list[Report] = [node for name, node in seen.items() if self._nodes.get(name) != node]
        gone: list[Report] = [NodeGone(name) for name in self._nodes if name not in seen]
        self._nodes = dict(seen)
        return changed + gone

    def _lose_nodes(self) -> None:
        """No new work for an engine that stays away; what runs there is left alone."""
        if self._nodes and self._away_since and time.monotonic() - self._away_since > LOST_AFTER_S:
            gone: list[Report] = [NodeGone(name) for name in self._nodes]
            self._nodes = {}
            self._deliver(gone)

    def _deliver(self, reports: Sequence[Report]) -> None:
        for at in range(0, len(reports), MAX_REPORTS_PER_COMMAND):
            chunk = tuple(
                explain_end(report, self._lost) if isinstance(report, AttemptEnded) else report
                for report in sound(reports[at : at + MAX_REPORTS_PER_COMMAND])
            )
            if chunk:
                self._give(chunk)

    def _give(self, reports: tuple[Report, ...]) -> None:
        """Have the writer take them, however often it must be tried; then their ends may be acknowledged."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                reply = call(self._writer, TakeReports(self.name, reports), ours=True).reply
                break
            except Broken as error:
                # One of them is more than the core can take: find it, so that it doesn't block the others.
                if len(reports) > 1:
                    for report in reports:
                        self._give((report,))
                else:
                    _log.error("a report broke the core and is dropped", reports=reports, error=str(error))
                return
            except MintyardError:
                with self._changed:
                    if self._changed.wait_for(lambda: self._closed, pause_s):
                        return
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        if isinstance(reply, Refusal):
            _log.error("reports were refused", engine=self.name, code=reply.problem.code)
            return
        ended = [
            AttemptKey(report.job, report.attempt) for report in reports if isinstance(report, AttemptEnded)
        ]
        if ended:
            with self._changed:
                self._ended.update(dict.fromkeys(ended))
                self._changed.notify_all()


def sound(reports: Sequence[Report]) -> list[Report]:
    """The reports whose fields have the types they claim. An adapter's mistake must not get into the journal, where it could
    not be read again; what is unsound is dropped, loudly."""
    try:
        return _decoder.decode(_encoder.encode(reports))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        if len(reports) == 1:
            _log.error("an engine's report is malformed and is dropped", report=reports[0], error=str(error))
            return []
    return [kept for report in reports for kept in sound((report,))]


def _starts(state: State, keys: Sequence[AttemptKey]) -> list[Start]:
    """Orders for those of `keys` that are still to be started."""
    planner = EffectPlanner()
    return [
        planner.start(state, job)
        for key in keys
        if (job := state.jobs.get(key.job)) is not None
        and job.attempt == key.attempt
        and job.state == "starting"
    ]


class Dispatch:
    """The writer's outbox: all engines. Set `engines` before the writer starts."""

    def __init__(self) -> None:
        self.engines: dict[str, EngineDispatch] = {}
        self._writer: Writer | None = None

    def add(self, engine: EngineDispatch) -> None:
        self.engines[engine.name] = engine

    def start(self, writer: Writer) -> None:
        self._writer = writer
        for engine in self.engines.values():
            engine.start()

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()

    def resume(self, term: int) -> None:
        for engine in self.engines.values():
            engine.resume(term)

    def pause(self) -> None:
        for engine in self.engines.values():
            engine.pause()

    def take(self, effects: list[Effect]) -> None:
        by_engine: dict[str, list[Effect]] = {}
        for effect in effects:
            by_engine.setdefault(effect.engine, []).append(effect)
        for name, own in by_engine.items():
            engine = self.engines.get(name)
            if engine is not None:
                engine.take(own)
            elif name == NOWHERE:
                self._refuse_scattered(own)
            else:
                _log.error("orders for an engine that is not configured", engine=name, orders=len(own))

    def _refuse_scattered(self, effects: list[Effect]) -> None:
        """A gang over several engines can't start: end the attempt instead of letting it hang."""
        if self._writer is None:
            return
        for effect in effects:
            report = AttemptEnded(
                effect.order.job,
                effect.order.attempt,
                "hub",
                Outcome.NEVER_STARTED,
                message="its nodes belong to several engines",
            )
            self._writer.offer(((TakeReports(NOWHERE, (report,)), None),), lambda outcomes: None, ours=True)
