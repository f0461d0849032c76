"""Replies: what a command answers once its record is durable. Refusals travel as `errors.Problem`."""

from __future__ import annotations

import msgspec

from mintyard.domain.errors import Problem


class Done(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """It took effect; `ref` names what was made or changed."""

    ref: int | str = 0
    state: str = ""


class Ticket(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """One admitted job request. An array's own number is `job`, its tasks are the `tasks` numbers after it.

    `cost` is the most it may cost, in nano-units at list price, over all its tasks."""

    job: int
    tasks: int
    state: str
    cost: int


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """One answer per part of the command, in order."""

    parts: tuple[Done | Ticket | Problem, ...]


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The command changed nothing."""

    problem: Problem


Reply = Done | Ticket | Batch | Refusal
