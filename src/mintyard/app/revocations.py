"""Revocations: the orders that every validator must hear, folded from durable events only, and the notices made of them.

Nothing that is not durable may enter. The core forgets what no live token can contain any more; so does this.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mintyard.app.link import Notice
from mintyard.domain.events import AccountTokensRevoked, AnyEvent, BlockRevoked, TokenMoved
from mintyard.domain.state import State

KINDS = frozenset({AccountTokensRevoked, BlockRevoked, TokenMoved})


class Revocations:
    """What is revoked and suspended as of the last durable record. `key_version` is the key set's, told from outside."""

    def __init__(self) -> None:
        self.key_version = 0
        self._durable_seq = 0
        self._revoked: dict[str, None] = {}
        self._suspended: dict[str, None] = {}

    def reset(self, state: State) -> Notice:
        """Start from a recovered state, all of which is durable; the notice for those who heard the feed before."""
        before = self._suspended
        self._durable_seq = state.seq
        self._revoked = dict.fromkeys(state.revoked)
        self._revoked.update((token.id, None) for token in state.tokens.values() if token.state == "revoked")
        self._suspended = {token.id: None for token in state.tokens.values() if token.state == "suspended"}
        return msgspec.structs.replace(
            self.everything(), resumed=tuple(block for block in before if block not in self._suspended)
        )

    def apply(self, seq: int, events: Iterable[AnyEvent]) -> Notice:
        """Fold the `KINDS` events of durable records up to `seq`; the notice that tells of them."""
        revoked: list[str] = []
        suspended: list[str] = []
        resumed: list[str] = []
        accounts: list[tuple[str, int]] = []
        for event in events:
            match event:
                case BlockRevoked():
                    revoked.append(event.block)
                case AccountTokensRevoked():
                    accounts.append((event.account, event.before))
                case TokenMoved(trigger="revoke"):
                    revoked.append(event.token)
                case TokenMoved(trigger="suspend"):
                    suspended.append(event.token)
                    self._suspended[event.token] = None
                case TokenMoved(trigger="resume"):
                    resumed.append(event.token)
                    self._suspended.pop(event.token, None)
                case _:
                    pass
        self._revoked.update(dict.fromkeys(revoked))
        self._durable_seq = seq
        return Notice(
            seq, tuple(revoked), tuple(suspended), tuple(resumed), tuple(accounts), self.key_version
        )

    def everything(self) -> Notice:
        """The first notice of a feed."""
        return Notice(
            self._durable_seq, tuple(self._revoked), tuple(self._suspended), key_version=self.key_version
        )

    def forget(self, state: State) -> None:
        """Drop what the core forgot: its tokens have expired."""
        for block in [b for b in self._revoked if b not in state.revoked and b not in state.tokens]:
            del self._revoked[block]
        for block in [b for b in self._suspended if b not in state.tokens]:
            del self._suspended[block]
