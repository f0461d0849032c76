"""Minting: new root tokens for people and services (T1, T4). Sign, register, and only then hand out the text.

The core decides whether the maker may give what is asked; a token whose registration is refused, or not known to be
durable, is dropped unread. The text goes to whoever asked and nowhere else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from mintyard.app.link import Link
from mintyard.app.signing import SigningKeys
from mintyard.credentials import Minted, mint
from mintyard.credentials.tokens import SERIAL_BYTES
from mintyard.domain.commands import RegisterToken
from mintyard.domain.errors import from_problem
from mintyard.domain.limits import DEFAULT_TOKEN_LIFE_HOURS
from mintyard.domain.replies import Refusal
from mintyard.domain.tokens.authority import Authority, Caps, Scope
from mintyard.domain.units import MS_PER_HOUR, NS_PER_MS, Unit


class TokenWish(msgspec.Struct, frozen=True, kw_only=True):
    """What the new token shall allow; instants in ns, `expires_at` 0 is `DEFAULT_TOKEN_LIFE_HOURS` from now."""

    account: str
    scopes: frozenset[Scope]
    name: str = ""
    expires_at: int = 0
    not_before: int = 0
    caps: Caps = Caps()
    ceilings: Mapping[Unit, int] = {}
    clusters: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    jobs: tuple[int, ...] | None = None


class MintedToken(msgspec.Struct, frozen=True):
    """A registered token with its text (the secret) and the record that made it known. The text form hides the secret."""

    token: str
    block: str
    authority: Authority
    seq: int

    def __repr__(self) -> str:
        return f"MintedToken(block={self.block!r}, seq={self.seq})"


class MintingService:
    """Mints with the hub's active key over a link to the leader."""

    def __init__(self, keys: SigningKeys, link: Link, clock: Callable[[], int] = time.time_ns) -> None:
        self._keys = keys
        self._link = link
        self._clock = clock

    async def mint(
        self, maker: Authority | None, wish: TokenWish, parents: Iterable[str] = (), key: str = ""
    ) -> MintedToken:
        """A new token for `wish`, made with the right of `maker` (None: the hub itself). `parents` are added to the maker's
        blocks; `key` is an idempotency key: a repeated request is refused (`IdempotencyKeyReused`), since the text is
        handed out once.

        Raises what `credentials.mint` raises for bad values, what the core refuses with (`Widening`, `ScopeMissing`,
        `NotFound`, ...), and the link's errors: then no usable token exists."""
        minted = self.sign(maker, wish, parents)
        answer = await self._link.send(RegisterToken(maker, minted.authority, wish.name, key))
        if isinstance(answer.reply, Refusal):
            raise from_problem(answer.reply.problem)
        return MintedToken(minted.token, minted.block, minted.authority, answer.seq)

    def sign(self, maker: Authority | None, wish: TokenWish, parents: Iterable[str] = ()) -> Minted:
        """The signed token, not registered yet."""
        now = self._clock()
        own = tuple(block.block for block in maker.blocks) + maker.parents if maker is not None else ()
        return mint(
            self._keys.signing_key,
            account=wish.account,
            serial=os.urandom(SERIAL_BYTES),
            scopes=wish.scopes,
            issued_at=now,
            expires_at=wish.expires_at or now + DEFAULT_TOKEN_LIFE_HOURS * MS_PER_HOUR * NS_PER_MS,
            not_before=wish.not_before,
            caps=wish.caps,
            ceilings=wish.ceilings,
            clusters=wish.clusters,
            models=wish.models,
            jobs=wish.jobs,
            parents=dict.fromkeys((*own, *parents)),
        )
