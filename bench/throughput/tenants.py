"""The hub that every run begins with: accounts four levels deep with three grants each, narrowed tokens with ceilings, nodes."""

from __future__ import annotations

import time

from mintyard.domain.commands import (
    Command,
    CreateGrant,
    Found,
    OpenAccount,
    RegisterToken,
    Submit,
    TakeReports,
)
from mintyard.domain.ids import ROOT
from mintyard.domain.jobs.reports import NodeSeen
from mintyard.domain.jobs.spec import JobRequest, JobSpec, Shape
from mintyard.domain.tokens.authority import ROLES, Authority, Block
from mintyard.domain.units import NS_PER_S, Unit

ENGINE = "noop"
NODES = 1_213
USERS = 16
GRANTS = 3
SPECS = 32
_DAY_NS = 86_400 * NS_PER_S
_AMPLE = 10**17


def accounts() -> list[str]:
    """Root, one centre, four labs, sixteen users: each user's path has four accounts."""
    labs = [f"centre/lab{lab}" for lab in range(4)]
    return [ROOT, "centre", *labs, *(f"{labs[user % 4]}/user{user}" for user in range(USERS))]


def authorities(now: int) -> list[Authority]:
    """One token a user: a root block with a ceiling of money, narrowed by a block with ceilings of CPU and money."""
    end = now + 30 * _DAY_NS
    users = [account for account in accounts() if account.count("/") == 2]
    return [
        Authority(
            account,
            (
                Block(f"{number:032x}", end, {Unit.MONEY: _AMPLE}),
                Block(f"{number + 1_000:032x}", end, {Unit.MONEY: _AMPLE // 2, Unit.CPU: _AMPLE}),
            ),
            frozenset(ROLES["service"]),
            end,
        )
        for number, account in enumerate(users, 1)
    ]


def opening(tokens: list[Authority], count: int = NODES) -> list[Command]:
    commands: list[Command] = [Found("bench")]
    commands += [OpenAccount(None, account) for account in accounts() if account != ROOT]
    commands += [
        CreateGrant(None, account, Unit.MONEY, _AMPLE, priority)
        for account in accounts()
        for priority in range(100, 100 + GRANTS)
    ]
    commands += [RegisterToken(None, token) for token in tokens]
    inventory = nodes(count)
    commands += [TakeReports(ENGINE, tuple(inventory[at : at + 500])) for at in range(0, len(inventory), 500)]
    return commands


def nodes(count: int = NODES) -> list[NodeSeen]:
    """As many nodes as openb has, of four sizes."""
    sizes = (
        (96_000, 262_144, 8, "v100"),
        (96_000, 393_216, 2, "t4"),
        (128_000, 786_432, 8, "g3"),
        (64_000, 262_144, 0, ""),
    )
    return [NodeSeen(f"node-{number:05}", *sizes[number % 4]) for number in range(count)]


def submits(tokens: list[Authority], distinct: bool = False) -> list[Submit]:
    """Single-task requests in the mix that is repeated: 16 users x 32 specs, CPU and GPU, five priorities."""
    shapes = [
        Shape(
            1_000 * (1 + at % 4),
            512 << at % 3,
            int(at % 8 == 0),
            250 * (1 + at // 8) if at % 8 == 0 else 1_000,
        )
        for at in range(SPECS)
    ]
    specs = [
        JobSpec(f"task-{at}", shape, 60_000, 100 + at % 5, payload=b"noop %d" % at)
        for at, shape in enumerate(shapes)
    ]
    return [Submit(tokens[at % USERS], (JobRequest(specs[at * 7 % SPECS]),)) for at in range(USERS * SPECS)]


def now_ns() -> int:
    return time.time_ns()
