"""The hub of a replay: the production core on a virtual clock, with accounts, grants and tokens, and its journal if wanted.

Records are made as the writer makes them: one a tick, inputs that changed something and the events that came of them.
Nothing of traces or statistics may enter.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from mintyard.app.journal import make_record
from mintyard.app.record import encode_body
from mintyard.domain import hub
from mintyard.domain.commands import Command, CreateGrant, Found, OpenAccount, RegisterToken, TakeReports
from mintyard.domain.errors import AlreadyExists, InvariantBroken, StoreUnavailable, from_problem
from mintyard.domain.events import AnyEvent
from mintyard.domain.ids import parent_of
from mintyard.domain.jobs.reports import NodeSeen
from mintyard.domain.limits import MAX_AMOUNT, MAX_GRANTS_PER_ACCOUNT_UNIT
from mintyard.domain.replies import Refusal, Reply
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import Authority, Block, Scope
from mintyard.domain.units import NS_PER_S, Unit, format_amount
from mintyard.ports.store import Lease, Record, Store
from mintyard.ports.traces import TraceNode

ENGINE: Final = "replay"
HOLDER: Final = "replay"
LEASE_MS: Final = 60_000
APPEND_RECORDS: Final = 512
APPEND_BYTES: Final = 8 * 1_024 * 1_024
SETUP_COMMANDS: Final = 1_000
TOKEN_LIFE_NS: Final = 360 * 86_400 * NS_PER_S


class Journal:
    """Where the records go: appended in batches under a lease of its own. Use as a context; the rest is written at its end."""

    def __init__(self, store: Store) -> None:
        """Errors: `AlreadyExists` when the journal has records already, `StoreUnavailable` when another holds its lease."""
        self.store = store
        if store.head() is not None:
            raise AlreadyExists(what="A journal", name="at that place")
        lease = store.acquire(HOLDER, LEASE_MS)
        if lease is None:
            raise StoreUnavailable(why="another process holds the lease on this journal")
        self.lease: Lease = lease
        self._renewed_s = time.monotonic()
        self._waiting: list[Record] = []
        self._bytes = 0
        self.head: Record | None = None

    def add(self, now: int, format: int, inputs: Sequence[Command], events: Sequence[AnyEvent]) -> None:
        self.head = make_record(self.head, self.lease.term, now, format, encode_body(inputs, events))
        self._waiting.append(self.head)
        self._bytes += len(self.head.body)
        if len(self._waiting) >= APPEND_RECORDS or self._bytes >= APPEND_BYTES:
            self.flush()

    def flush(self) -> None:
        """Make durable what waits."""
        if time.monotonic() - self._renewed_s > LEASE_MS / 3_000:
            self.lease = self.store.renew(self.lease, LEASE_MS)
            self._renewed_s = time.monotonic()
        if self._waiting:
            self.store.append(self.lease.term, self._waiting)
        self._waiting, self._bytes = [], 0

    def release(self) -> None:
        self.store.release(self.lease)


class ReplayHub:
    """State and clock of one replay. `core_ns` is the CPU time spent in the core so far."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.state = State()
        self.journal = journal
        self.seq = 0
        self.core_ns = 0
        self._tokens: dict[str, Authority] = {}
        self._tokens_made = 0

    def take(self, commands: Sequence[Command], now: int) -> tuple[list[AnyEvent], list[Reply]]:
        """Decide one tick at `now` (ns): what happened, and a reply for each command. A tick without events leaves no record."""
        begun = time.thread_time_ns()
        state = self.state
        hub.begin(state, self.seq + 1, now)
        inputs: list[Command] = []
        events: list[AnyEvent] = []
        replies: list[Reply] = []
        for command, (made, reply) in zip(commands, hub.execute_all(state, commands, now), strict=True):
            replies.append(reply)
            if made:
                inputs.append(command)
                events += made
        self.core_ns += time.thread_time_ns() - begun
        if events:
            self.seq += 1
            if self.journal is not None:
                self.journal.add(now, state.format, inputs, events)
        return events, replies

    def order(self, commands: Iterable[Command], now: int) -> None:
        """Take commands none of which may be refused, in records of bounded size. A refusal is raised as its error."""
        waiting = list(commands)
        for start in range(0, len(waiting), SETUP_COMMANDS):
            for reply in self.take(waiting[start : start + SETUP_COMMANDS], now)[1]:
                if isinstance(reply, Refusal):
                    raise from_problem(reply.problem)

    def found(self, name: str, accounts: Iterable[str], now: int) -> None:
        """A new hub with these accounts and all those above them."""
        opened = dict.fromkeys(level for account in accounts for level in _path(account))
        self.order([Found(name), *(OpenAccount(None, account) for account in opened)], now)

    def grant(self, account: str, amount: int, note: str, now: int) -> None:
        """Money (nano-units) for an account, in several grants where one can't hold it. Errors: `InvalidRequest` family."""
        grants: list[Command] = []
        while amount > 0 and len(grants) < MAX_GRANTS_PER_ACCOUNT_UNIT:
            part = min(amount, MAX_AMOUNT)
            grants.append(CreateGrant(None, account, Unit.MONEY, part, note=note))
            amount -= part
        self.order(grants, now)

    def join(self, nodes: Sequence[TraceNode], now: int) -> None:
        """Let the nodes join. `InvariantBroken` when the core drops one: `check_nodes` lets none of those through."""
        seen = [
            NodeSeen(node.name, node.cpus_milli, node.memory_mib, node.gpus, node.gpu_model) for node in nodes
        ]
        for start in range(0, len(seen), SETUP_COMMANDS):
            self.take([TakeReports(ENGINE, tuple(seen[start : start + SETUP_COMMANDS]))], now)
        if len(self.state.nodes) != len(nodes):
            raise InvariantBroken(why=f"{len(nodes)} nodes were reported, {len(self.state.nodes)} joined")

    def token(self, account: str, now: int) -> Authority:
        """The account's token; a new one is registered when there is none or the last one's life is over."""
        known = self._tokens.get(account)
        if known is None or known.expires_at <= now:
            self._tokens_made += 1
            block = blake2b(f"{self._tokens_made} {account}".encode(), digest_size=16).hexdigest()
            end = now + TOKEN_LIFE_NS
            known = Authority(
                account, (Block(block, end),), frozenset({Scope.JOB_SUBMIT}), end, issued_at=now
            )
            self.order([RegisterToken(None, known)], now)
            self._tokens[account] = known
        return known


class Balance(msgspec.Struct, frozen=True):
    """Grants of one unit at one level of the account tree: granted + refunded = spent + held + expired + left, as decimals.

    `exact` says whether the integers behind it do balance."""

    level: str
    unit: str
    granted: str
    refunded: str
    spent: str
    held: str
    expired: str
    left: str
    exact: bool


def balances(state: State, organisation: str) -> list[Balance]:
    """What every grant adds up to: at the organisation, at the accounts below it, and in all, for each unit granted."""
    sums: dict[tuple[str, Unit], list[int]] = {}
    for grant in state.ledger.grants.values():
        parts = (grant.granted, grant.refunded, grant.spent, grant.held, grant.expired, grant.left)
        for level in ("organisation" if grant.account == organisation else "tenants", "all"):
            total = sums.setdefault((level, grant.unit), [0] * 6)
            for at, part in enumerate(parts):
                total[at] += part
    found: list[Balance] = []
    for (level, unit), parts in sorted(sums.items(), key=lambda item: (item[0][0] == "all", item[0])):
        granted, refunded, spent, held, expired, left = (format_amount(part, unit) for part in parts)
        exact = sum(parts[:2]) == sum(parts[2:])
        found.append(Balance(level, unit.value, granted, refunded, spent, held, expired, left, exact))
    return found


def spent_at(state: State, account: str) -> int:
    """Money (nano-units) spent and not refunded at one account."""
    found = state.account(account)
    return sum(g.spent - g.refunded for g in found.grants.get(Unit.MONEY, ())) if found else 0


def _path(account: str) -> list[str]:
    """The account and those above it, the topmost first, without the platform's own."""
    above = parent_of(account)
    return [*(_path(above) if above and above != "/" else ()), account]
