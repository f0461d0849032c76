"""What the shell's tests share: a founded hub over a store in memory, an authority, and submits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mintyard.adapters.stores.memory import MemoryDisk, MemoryStore
from mintyard.app.leader import Leader
from mintyard.app.local_link import LocalLink
from mintyard.app.writer import Writer, WriterSettings
from mintyard.domain.commands import (
    Command,
    CreateGrant,
    Found,
    OpenAccount,
    RegisterToken,
    Submit,
    TakeReports,
)
from mintyard.domain.jobs.reports import NodeSeen
from mintyard.domain.jobs.spec import JobRequest, JobSpec, Shape
from mintyard.domain.replies import Batch, Done, Refusal, Ticket
from mintyard.domain.tokens.authority import Authority, Block, Scope
from mintyard.domain.units import Unit
from mintyard.ports.store import Store

HOUR_NS = 3_600_000_000_000
NOW = time.time_ns()
AUTHORITY = Authority("lab", (Block("ab" * 16, NOW + 100 * HOUR_NS),), frozenset(Scope), NOW + 100 * HOUR_NS)
SHAPE = Shape(cpus_milli=1_000, memory_mib=1_024)
SETTINGS = WriterSettings(retry_ms=20, self_check=True)


def submit(name: str = "job", authority: Authority | None = AUTHORITY, key: str = "", **spec: Any) -> Submit:
    return Submit(authority, (JobRequest(JobSpec(name, SHAPE, **spec)),), key=key)


def setup(money: int = 10**15) -> list[Command]:
    """Commands that found a hub with one account and its token."""
    return [
        Found("test"),
        OpenAccount(None, "lab"),
        CreateGrant(None, "lab", Unit.MONEY, money),
        CreateGrant(None, "/", Unit.MONEY, 10**17),
        RegisterToken(None, AUTHORITY),
    ]


def nodes(count: int = 2, engine: str = "local") -> TakeReports:
    return TakeReports(engine, tuple(NodeSeen(f"n{number}", 8_000, 32_768) for number in range(count)))


def opener(disk: MemoryDisk, clock_ms: Callable[[], int] | None = None) -> Callable[[], Store]:
    return lambda: MemoryStore(disk, clock_ms) if clock_ms else MemoryStore(disk)


async def lead(
    store: Callable[[], Store], settings: WriterSettings = SETTINGS, life_ms: int = 60_000, **more: Any
) -> Writer:
    writer = Writer(Leader(store, life_ms=life_ms), settings, **more)
    await writer.start()
    await writer.leading()
    return writer


async def founded(link: LocalLink, *commands: Command, money: int = 10**15) -> None:
    for command in (*setup(money), *commands):
        answer = await link.send(command)
        assert not isinstance(answer.reply, Refusal), answer


def ticket(reply: Any) -> Ticket:
    """The ticket of a submit of one job; fails when it was refused."""
    if isinstance(reply, Batch):
        (reply,) = reply.parts
    assert isinstance(reply, Ticket), reply
    return reply


__all__ = ["AUTHORITY", "Done", "founded", "lead", "nodes", "opener", "setup", "submit", "ticket"]
