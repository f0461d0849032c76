"""Link: how API workers, gateways and tests reach the leader and the planner, in one process or over a socket.

Whatever arrives here was verified and decoded; no bearer token may cross a link.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from mintyard.app.questions import Finding, Question
from mintyard.domain.commands import Command
from mintyard.domain.replies import Reply


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a command, given only once record `seq` is durable; a reader that passes it as `min_seq` sees its write."""

    seq: int
    reply: Reply


class Notice(msgspec.Struct, frozen=True, array_like=True):
    """What every validator must hear at once: blocks revoked, suspended or resumed, accounts whose older tokens ended, the
    key set's version, and how far the journal is durable. A notice for a command comes before that command's answer."""

    durable_seq: int
    revoked: tuple[str, ...] = ()
    suspended: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    accounts: tuple[tuple[str, int], ...] = ()
    key_version: int = 0


class Link(Protocol):
    """Errors: `Overloaded`, `NotLeader`, `StoreUnavailable`, `CommitUnknown`; refusals are replies, not errors."""

    async def send(self, command: Command) -> Answer:
        """Execute one command; many at a time travel in one frame and share a tick."""
        ...

    async def ask(self, question: Question) -> Finding:
        """Put a question to the planner; raises the refusal as `errors.Refused`."""
        ...

    def notices(self) -> AsyncIterator[Notice]:
        """The feed, from now on; the first notice carries everything revoked and not yet forgotten."""
        ...

    async def close(self) -> None: ...
