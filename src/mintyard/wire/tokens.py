"""Compute tokens on the wire (T1-T4): asked for, shown, and who the bearer is. The token's text crosses once,
when made."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mintyard.domain.limits import MAX_AMOUNT, MAX_TOKEN_LIFE_DAYS
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit
from mintyard.wire.bounds import AccountId, Amount, AmountOut, BlockId, Instant, Name, Number

Cap = Annotated[int, Meta(ge=0, le=MAX_AMOUNT)]
Role = Literal["admin", "operator", "owner", "member", "auditor", "service", "job"]
AllowList = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(max_length=64)]


class Caps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that one job may ask for at one time, over all its members; None is no cap."""

    gpus_milli: Cap | None = None
    cpus_milli: Cap | None = None
    memory_mib: Cap | None = None


class MintToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for a new token. Exactly one of `scopes` and `role`; `account` empty is the caller's own.
    `ceilings` are cumulative over all uses of the token and everything narrowed from it; None in a list
    allows any. Without `life_s` it lives 24 hours, or as long as the caller's token where that is shorter."""

    account: AccountId | None = None
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=len(Scope))] | None = None
    role: Role | None = None
    name: Name = ""
    life_s: Annotated[int, Meta(ge=1, le=MAX_TOKEN_LIFE_DAYS * 86_400)] | None = None
    not_before: Instant | None = None
    caps: Caps = Caps()
    ceilings: dict[Unit, Amount] = {}
    clusters: AllowList | None = None
    models: AllowList | None = None
    jobs: Annotated[tuple[Number, ...], Meta(max_length=64)] | None = None


class MintedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new token. `token` is the secret and is never shown again; `id` names it from here on."""

    token: str
    id: BlockId
    account: str
    expires_at: str
    seq: int

    def __repr__(self) -> str:
        return f"MintedToken(id={self.id!r}, account={self.account!r})"


class RevokeBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Revoke what was narrowed from a token: a block of its chain and everything narrowed from there on."""

    block: BlockId


class RevokeAll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Revoke every token issued so far for an account and those below."""

    account: AccountId


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A registered token: what is kept of it, which is not enough to use it. `blocks_revoked` were narrowed
    from it and ended alone."""

    id: str
    account: str
    name: str
    state: Literal["active", "suspended", "revoked", "expired"]
    expires_at: str
    registered_at: str | None = None
    parents: tuple[str, ...] = ()
    blocks_revoked: tuple[str, ...] = ()


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """One block of the caller's chain with the cumulative ceilings it adds."""

    block: str
    expires_at: str
    ceilings: dict[Unit, AmountOut] = {}


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    """The effective rights of the token that was sent: the intersection of all its blocks."""

    account: str
    scopes: tuple[str, ...]
    expires_at: str
    issued_at: str | None
    key: str
    blocks: tuple[Ceilings, ...]
    caps: Caps = Caps()
    not_before: str | None = None
    clusters: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    jobs: tuple[int, ...] | None = None
    parents: tuple[str, ...] = ()


class VerifyingKey(msgspec.Struct, frozen=True):
    """A public key of the hub: 32 bytes in hex."""

    key: str
    public: str
    state: Literal["next", "active", "retiring", "dead"]


class KeySet(msgspec.Struct, frozen=True):
    """Everything that is needed to verify and to narrow a token offline."""

    version: int
    keys: tuple[VerifyingKey, ...]
