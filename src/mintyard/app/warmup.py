"""Warm-up: compile or load the scheduler's kernels before the first request needs them, on a small state of its own."""

from __future__ import annotations

from mintyard.domain import hub
from mintyard.domain.commands import (
    CreateGrant,
    Found,
    LimitAccount,
    OpenAccount,
    RegisterToken,
    SetQueue,
    Submit,
    TakeReports,
    Tick,
)
from mintyard.domain.jobs.reports import AttemptEnded, NodeSeen, Outcome
from mintyard.domain.jobs.spec import JobRequest, JobSpec, Shape
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import Authority, Block, Scope
from mintyard.domain.units import NS_PER_S, Unit

_SHAPES = (
    Shape(),
    Shape(gpus=1),
    Shape(gpus=1, gpu_milli=250),
    Shape(gpus=2, gpu_models=("warm",), labels=("up",)),
    Shape(members=3),
    Shape(gpus=4, members=8),
)


def warm_up() -> int:
    """One round over a few nodes with every kind of request, and one that finds nothing; how many jobs were placed."""
    state = State()
    now = 1_000_000 * NS_PER_S
    end = 2 * now
    root = Authority("warm", (Block("0" * 32, end),), frozenset(Scope), end)
    nodes = tuple(NodeSeen(f"n{number}", 16_000, 65_536, 4, "warm", ("up",)) for number in range(4))
    placed = 0
    commands = (
        Found("warm"),
        OpenAccount(None, "warm"),
        CreateGrant(None, "warm", Unit.MONEY, 10**15),
        RegisterToken(None, root),
        TakeReports("warm", nodes),
        Submit(root, tuple(JobRequest(JobSpec("warm", shape)) for shape in _SHAPES), False),
        Tick(),
        Tick(),
        Tick(backfill=Backfill.EASY, order=Order.RESPONSE_RATIO),
        TakeReports("warm", (AttemptEnded(1, 1, "warm", Outcome.EXITED, run_ms=1),)),
        Submit(root, tuple(JobRequest(JobSpec("warm", shape)) for shape in _SHAPES), False),
        Tick(backfill=Backfill.EASY, order=Order.RESPONSE_RATIO),
        SetQueue(None, QueueSpec("default", nominal=Limits(jobs=1))),
        LimitAccount(None, "warm", Limits(jobs=2)),
        Tick(),
        Tick(backfill=Backfill.EASY, order=Order.RESPONSE_RATIO),
    )
    for seq, command in enumerate(commands, 1):
        hub.begin(state, seq, now)
        _, reply = hub.execute(state, command, now)
        if isinstance(command, Tick):
            placed += int(getattr(reply, "ref", 0))
    return placed
