"""One seeded simulation: tenants, operator, engine and hub, with faults between any two steps, checked after each."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from mintyard.app.record import decode_body
from mintyard.app.recovery import fold
from mintyard.app.replay_journal import replay
from mintyard.domain import commands as c
from mintyard.domain.commands import Command
from mintyard.domain.errors import InvariantBroken, Problem
from mintyard.domain.replies import Batch, Done, Refusal, Reply, Ticket
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.snapshot import decode, encode, state_hash
from mintyard.domain.state import State
from mintyard.domain.units import NS_PER_MS
from mintyard.ports.store import Store
from mintyard.sim.engine_world import EngineWorld
from mintyard.sim.invariants import Shadow, check_charges, check_state
from mintyard.sim.process import Process
from mintyard.sim.tenants import Tenants

OpenStore = Callable[[Random, Callable[[], int]], tuple[Store, Store, Callable[[], None]]]
START_NS = 1_790_000_000 * 1_000_000_000
MAX_QUIET_ROUNDS = 400
_BACKFILLS = tuple(Backfill)
_ORDERS = tuple(Order)


class Tally(msgspec.Struct):
    """What one seed did. `refused` counts refusals by code."""

    seed: int
    commands: int = 0
    crashes: int = 0
    lost_ticks: int = 0
    commit_faults: int = 0
    records: int = 0
    admitted: int = 0
    ended: int = 0
    retried_asks: int = 0
    refused: dict[str, int] = {}
    hash: str = ""


class Ask(msgspec.Struct):
    """A command in flight: asked again, with the same key, until it is answered."""

    command: Command
    tries: int = 0


class Simulation:
    """`open_store(random, clock_ms)` gives the store as the hub sees it, with its faults; the one beneath, which the checks
    read; and what ends the faults for the last part of the run."""

    def __init__(self, seed: int, open_store: OpenStore) -> None:
        self.random = Random(seed)
        self.now = START_NS
        self.store, self.journal, self.quiet = open_store(self.random, lambda: self.now // NS_PER_MS)
        self.world = EngineWorld(Random(seed + 1), self.now)
        self.tenants = Tenants(Random(seed + 2), self.now)
        self.tally = Tally(seed)
        self.asks: dict[int, Ask] = {}
        self.answers: dict[str, Reply] = {}
        self.next_ticket = 1
        self.shadow = Shadow()
        self.seen_seq = 0
        self.process = self._process()

    def _process(self) -> Process:
        return Process(self.store, self.world, self.speak, self._wall, lambda: self.now)

    # --- one run ------------------------------------------------------------------------------------------------------

    def run(self, commands: int = 1_000, crashes: int = 5) -> Tally:
        """At least `commands` commands and `crashes` crashes, then quiet until every job has ended; all checks on the way."""
        while not self.seen_seq:
            self._serve(self.tenants.opening(self._hub_now()))
            self._commit()
            self._check()
        self._poll()
        while self.tally.commands < commands or self.tally.crashes < crashes:
            self._step()
        self._settle_down()
        self._final_checks()
        return self.tally

    def _step(self) -> None:
        random = self.random
        self._pass_time()
        roll = random.random()
        if roll < 0.55:
            self._serve([self.tenants.ask(self._hub_now()) for _ in range(random.choice((1, 1, 2, 6)))])
        elif roll < 0.60:
            self._serve(self.tenants.rush(self._hub_now()))
        elif roll < 0.75:
            self._poll()
        elif roll < 0.80:
            self.world.mishap()
        elif roll < 0.83:
            self.process.reconcile()
        elif roll < 0.85:
            self.process.keep_snapshot()
        elif roll < 0.90:
            self._serve([])
        elif roll < 0.96:
            self._ask_again()
        else:
            self._crash()
        self._check()

    def _pass_time(self) -> None:
        random = self.random
        step_ms = random.choice((0, 1, 20, 1_000, 30_000, random.randint(0, 300_000)))
        if random.random() < 0.01:
            step_ms += random.randint(0, 40) * 3_600_000
        self.now += step_ms * NS_PER_MS
        self.world.advance(self.now)

    def _hub_now(self) -> int:
        """The time as clients read it from the hub; some go by a clock of their own."""
        return self.process.clock.now() if self.random.random() < 0.97 else self.now

    def _wall(self) -> int:
        """The machine's clock, which may have stepped when the hub starts again; the hub's own time must not."""
        step_ms = self.random.choice(
            (0, 0, -self.random.randint(0, 3_600_000), self.random.randint(0, 60_000))
        )
        return self.now + step_ms * NS_PER_MS

    def _serve(self, asked: list[Command]) -> None:
        tickets: list[tuple[int, Command]] = []
        for command in asked:
            self.asks[self.next_ticket] = Ask(command)
            tickets.append((self.next_ticket, command))
            self.next_ticket += 1
        self._tick([*tickets, (0, self._round())])

    def _round(self) -> c.Tick:
        backfill, order = self.random.choice(_BACKFILLS), self.random.choice(_ORDERS)
        return c.Tick(self.random.choice((1, 8, 1_024)), backfill=backfill, order=order)

    def _ask_again(self) -> None:
        """Clients without an answer ask again; those with a key also when they have one already."""
        waiting = [(ticket, ask) for ticket, ask in self.asks.items() if getattr(ask.command, "key", "")]
        for ticket, ask in waiting[-10:]:
            ask.tries += 1
            self.tally.retried_asks += 1
            self._tick([(ticket, ask.command)])

    def _poll(self) -> None:
        reports = self.process.reports()
        if reports is not None:
            self._tick([(0, reports), (0, c.Tick())])
        if self.random.random() < 0.2 and not self.world.down:
            self._tick([(0, c.TakeReports(self.world.name, tuple(self.world.nodes())))])

    def _tick(self, commands: list[tuple[int, Command]]) -> None:
        self.tally.commands += len(commands)
        self.process.tick(commands)
        if self.random.random() < 0.75:
            self._commit()

    def _commit(self) -> None:
        lives = self.process.lives
        self.process.commit()
        if self.process.lives != lives:
            self.tally.commit_faults += 1
            self.process.reconcile()

    def _crash(self) -> None:
        """The process dies with whatever was applied and not committed, or right after a commit before it could act."""
        self.tally.crashes += 1
        self.tally.lost_ticks += len(self.process.unspoken)
        if self.random.random() < 0.4:
            self.process.engine = _Deaf()
            self.process.commit()
        self.process = self._process()
        self.process.reconcile()

    def speak(self, ticket: int, reply: Reply) -> None:
        """A durable answer reaches its client. The same key must always get the same answer."""
        ask = self.asks.get(ticket)
        if ask is None:
            return
        key = getattr(ask.command, "key", "")
        if isinstance(reply, Refusal):
            self.tally.refused[reply.problem.code] = self.tally.refused.get(reply.problem.code, 0) + 1
            if not (ask.tries and key in self.answers):
                del self.asks[ticket]
            return
        if key and not _all_refused(reply):
            before = self.answers.setdefault(key, reply)
            if before != reply:
                raise InvariantBroken(why=f"one key, two answers: {before} and {reply}")
        if ask.tries > 1 or not key:
            del self.asks[ticket]
        self._learn(ask.command, reply)

    def _learn(self, command: Command, reply: Reply) -> None:
        tenants = self.tenants
        if isinstance(command, c.PlaceHold) and isinstance(reply, Done):
            tenants.holds.append(int(reply.ref))
        elif isinstance(command, c.RegisterToken):
            tenants.registered.add(command.token.root)
        elif isinstance(command, c.CreateGrant) and isinstance(reply, Done):
            tenants.grants.append(int(reply.ref))
        elif isinstance(reply, Batch):
            for part in reply.parts:
                if isinstance(part, Ticket):
                    tenants.jobs.append(part.job)

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        check_state(self.process.state)
        for record in self.journal.read(self.seen_seq, 10_000):
            self.shadow.see(decode_body(record).events)
            self.seen_seq = record.seq
        if not self.process.unspoken and self.process.state.seq == self.seen_seq:
            self.shadow.compare(self.process.state)

    def _settle_down(self) -> None:
        """No more faults: everything that was admitted must come to its end, and every hold with it."""
        self.quiet()
        self.world.heal()
        self._commit()
        self._tick([(0, c.ControlNode(None, name, "uncordon")) for name in sorted(self.world.inventory)])
        quotas = self.process.state.quotas
        self._tick([(0, c.SetQueue(None, QueueSpec(one.name, one.parent))) for one in quotas.queues.values()])
        self._tick([(0, c.LimitAccount(None, account, Limits())) for account in quotas.accounts])
        for _ in range(MAX_QUIET_ROUNDS):
            self.now += 7_200_000 * NS_PER_MS
            self.world.advance(self.now)
            self._commit()
            self.process.reconcile()
            self._poll()
            state = self.process.state
            stuck = [job.id for job in state.jobs.values() if job.state in ("held", "blocked")]
            if stuck or len(self.process.state.jobs):
                self._tick([(0, c.ControlJobs(None, "cancel", tuple(stuck))), (0, c.Tick())])
            self._cancel_unplaceable()
            self._check()
            self._commit()
            if not self.process.state.jobs:
                return
        raise InvariantBroken(
            why=f"jobs never end: {[(j.id, j.state, j.reason) for j in self.process.state.jobs.values()]}"
        )

    def _cancel_unplaceable(self) -> None:
        """What no node can take any more (they were removed) is cancelled by an operator, as in life."""
        waiting = tuple(job.id for job in self.process.state.jobs.values() if job.state == "pending")
        if waiting and self.random.random() < 0.1:
            self._tick([(0, c.ControlJobs(None, "cancel", waiting))])

    def _final_checks(self) -> None:
        self._commit()
        self._check()
        state = self.process.state
        records = self.journal.read(0, 1_000_000)
        wanted = state_hash(state)
        folded = State()
        for record in records:
            fold(folded, record)
        if state_hash(folded) != wanted:
            raise InvariantBroken(why="folding the journal gives another state")
        replayed = replay(records)
        if replayed.state_hash != wanted:
            raise InvariantBroken(why=f"replaying the inputs gives another state: {replayed.difference}")
        if state_hash(decode(encode(state))) != wanted:
            raise InvariantBroken(why="a snapshot leads to another state")
        check_charges(
            ((record.now, event) for record in records for event in decode_body(record).events),
            self.world.ends,
        )
        if any(hold.job for hold in state.ledger.holds.values()):
            raise InvariantBroken(why="a hold of a job is left over")
        self.tally.records, self.tally.hash = len(records), wanted.hex()
        self.tally.admitted, self.tally.ended = len(self.shadow.admitted), len(self.shadow.ended)


def _all_refused(reply: Reply) -> bool:
    return isinstance(reply, Batch) and all(isinstance(part, Problem) for part in reply.parts)


class _Deaf(EngineWorld):
    """An engine that hears nothing: the process died before it could act on what it had committed."""

    def __init__(self) -> None:
        self.down = True
