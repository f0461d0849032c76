"""Snapshots: the state as canonical bytes and back, and its hash. Equal states give equal bytes on every machine.

A snapshot carries a schema number; `UPCASTS` lifts older ones step by step. Derived indexes are not written but rebuilt.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from mintyard.domain.errors import InvariantBroken
from mintyard.domain.jobs.spec import JobSpec
from mintyard.domain.ledger import book
from mintyard.domain.ledger.book import Grant
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.scheduling.cluster import Cluster
from mintyard.domain.scheduling.prediction import History
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.scheduling.shapes import ShapeTable
from mintyard.domain.snapshot_columns import (
    PackedHolds,
    PackedJobs,
    numbers_of,
    pack_holds,
    pack_jobs,
    unpack_holds,
    unpack_jobs,
)
from mintyard.domain.state import ArrayJob, Mandate, Node, Remembered, State, Token
from mintyard.domain.tokens.authority import Block
from mintyard.domain.units import Unit

SCHEMA: Final = 1
UPCASTS: Final[dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {}
"""From schema n to n + 1, over the decoded but untyped content."""


class Content(msgspec.Struct):
    """Everything that is part of the state, in the order in which it is written."""

    name: str
    currency: str
    format: int
    now: int
    seq: int
    numbers: tuple[int, int, int, int, int]
    accounts: list[tuple[str, str]]
    grants: list[Grant]
    holds: PackedHolds
    counters: list[tuple[str, Unit, book.Counter]]
    totals: list[tuple[Unit, list[int]]]
    tokens: list[Token]
    revoked: list[tuple[str, int]]
    prices: list[PriceBook]
    shapes: bytes
    specs: list[tuple[int, JobSpec]]
    mandates: list[tuple[int, str, tuple[Block, ...], str]]
    idle: tuple[list[int], list[int]]
    """Specs and mandates that no live job has, the longest idle first."""
    jobs: PackedJobs
    dependents: list[tuple[int, list[tuple[int, str]]]]
    arrays: list[ArrayJob]
    ended: list[tuple[int, str, str]]
    nodes: list[Node]
    cluster: bytes
    keys: list[tuple[str, str, Remembered]]
    history: bytes = b""
    """Run times seen (`History`)."""
    queues: list[QueueSpec] = []
    account_limits: list[tuple[str, Limits]] = []


_encoder = msgspec.msgpack.Encoder(order="deterministic")


def encode(state: State) -> bytes:
    """The whole state in canonical form (schema `SCHEMA`)."""
    ledger = state.ledger
    content = Content(
        name=state.name,
        currency=state.currency,
        format=state.format,
        now=state.now,
        seq=state.seq,
        numbers=(state.next_job, state.next_spec, state.next_mandate, ledger.next_grant, ledger.next_hold),
        accounts=[(name, ledger.accounts[name].state) for name in sorted(ledger.accounts)],
        grants=[ledger.grants[number] for number in sorted(ledger.grants)],
        holds=pack_holds([ledger.holds[number] for number in sorted(ledger.holds)]),
        counters=[(block, unit, ledger.counters[block, unit]) for block, unit in sorted(ledger.counters)],
        totals=list(ledger.totals.items()),
        tokens=[state.tokens[name] for name in sorted(state.tokens)],
        revoked=sorted(state.revoked.items()),
        prices=state.prices,
        shapes=state.shapes.encode(),
        specs=[(number, state.specs[number].content) for number in sorted(state.specs)],
        mandates=[(m.id, m.account.id, m.blocks, m.digest) for _, m in sorted(state.mandates.items())],
        idle=(list(state.idle_specs), list(state.idle_mandates)),
        jobs=pack_jobs([state.jobs[number] for number in sorted(state.jobs)]),
        dependents=sorted(state.dependents.items()),
        arrays=[state.arrays[number] for number in sorted(state.arrays)],
        ended=[(number, final, account) for number, (final, account) in state.ended.items()],
        nodes=[state.nodes[name] for name in sorted(state.nodes)],
        cluster=state.cluster.encode(),
        keys=[(account, key, state.keys[account, key]) for account, key in sorted(state.keys)],
        history=state.history.encode(),
        queues=[state.quotas.queues[name] for name in sorted(state.quotas.queues)],
        account_limits=sorted(state.quotas.accounts.items()),
    )
    return _encoder.encode(content)


def state_hash(state: State) -> bytes:
    """BLAKE2b-256 over the canonical form: equal journals give equal hashes."""
    return blake2b(encode(state), digest_size=32).digest()


def decode(body: bytes, schema: int = SCHEMA) -> State:
    """The state that `encode` wrote under `schema`, lifted to the present one; `InvariantBroken` for a schema from the future."""
    if schema > SCHEMA:
        raise InvariantBroken(why=f"snapshot schema {schema} is newer than {SCHEMA}")
    if schema == SCHEMA:
        return restore(msgspec.msgpack.decode(body, type=Content))
    raw: dict[str, Any] = msgspec.msgpack.decode(body)
    for step in range(schema, SCHEMA):
        raw = UPCASTS[step](raw)
    return restore(msgspec.convert(raw, Content))


def restore(content: Content) -> State:
    state = State()
    state.name, state.currency, state.format = content.name, content.currency, content.format
    state.now, state.seq = content.now, content.seq
    job_ids = numbers_of(content.jobs)
    _restore_ledger(state, content, job_ids)
    state.prices = content.prices
    for token in content.tokens:
        state.add_token(token)
    for block, keep_until in content.revoked:
        state.revoked[block] = keep_until
        state.revoked_order.append((keep_until, block))
    state.revoked_order.sort()
    for account, key, remembered in content.keys:
        state.keys[account, key] = remembered
        state.key_order.append((remembered.keep_until, account, key))
    state.key_order.sort()
    for node in content.nodes:
        state.nodes[node.name] = node
        state.nodes_by_index[node.index] = node
    state.cluster = Cluster.decode(content.cluster)
    state.history = History.decode(content.history)
    state.ended = OrderedDict((number, (final, account)) for number, final, account in content.ended)
    state.dependents = {source: list(waiting) for source, waiting in content.dependents}
    for queue in content.queues:
        state.quotas.set_queue(queue)
    for account, limits in content.account_limits:
        state.quotas.limit_account(account, limits)
    _restore_jobs(state, content, job_ids)
    state.next_job, state.next_spec, state.next_mandate, state.ledger.next_grant, state.ledger.next_hold = (
        content.numbers
    )
    return state


def _restore_ledger(state: State, content: Content, job_ids: list[int]) -> None:
    ledger = state.ledger
    ledger.now = content.now
    for name, status in content.accounts:
        ledger.open_account(name)
        ledger.accounts[name].state = status
    for grant in content.grants:
        ledger.grants[grant.id] = grant
        ledger.accounts[grant.account].grants.setdefault(grant.unit, []).append(grant)
        if grant.state == "active":
            state.due.set("grant", grant.id, grant.expires_at)
    for account in ledger.accounts.values():
        for grants in account.grants.values():
            grants.sort(key=Grant.order)
    hold_ids = numbers_of(content.holds)
    holds = unpack_holds(content.holds, hold_ids, job_ids)
    ledger.holds = dict(zip(hold_ids, holds, strict=True))
    for hold in holds:
        if hold.expires_at:
            state.due.set("hold", hold.id, hold.expires_at)
    for block, unit, counter in content.counters:
        ledger.restore_counter(block, unit, counter)
    if ledger.totals != dict(content.totals):
        raise InvariantBroken(why="the totals of a snapshot are not those of its grants")


def _restore_jobs(state: State, content: Content, job_ids: list[int]) -> None:
    state.shapes = ShapeTable.decode(content.shapes)
    for number, spec in content.specs:
        state.add_spec(number, spec)
    for number, account, blocks, digest in content.mandates:
        state.mandates[number] = Mandate(number, state.ledger.accounts[account], blocks, digest)
        state.mandate_ids[digest] = number
    state.idle_specs, state.idle_mandates = (OrderedDict.fromkeys(numbers) for numbers in content.idle)
    for array in content.arrays:
        array.active = 0
        state.add_array(array)
    for node in state.nodes.values():
        node.running = 0
    jobs = unpack_jobs(content.jobs, job_ids, list(state.ledger.holds), state.specs, state.mandates)
    state.jobs = dict(zip(job_ids, jobs, strict=True))
    for spec, count in Counter([job.spec for job in jobs]).items():
        spec.count = count
    for mandate, count in Counter([job.mandate for job in jobs]).items():
        mandate.count = count
        mandate.account.live_jobs += count
    for job in jobs:
        if job.state in LIVE_JOB_STATES:
            state.bind(job, 1)
    state.enqueue_all([job for job in jobs if job.state == "pending"])
