"""What a verified credential lets its bearer do: a typed, integer form that the core can check (T1, T2, T4).

Nothing of the bearer token itself may enter: blocks are known by a hash of their signature, which can't be turned
back into a token. `credentials/` makes an `Authority` from a Biscuit; the core only ever sees this form.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from mintyard.domain.units import Unit


class Scope(StrEnum):
    """One permission. A role is a named set of them (`ROLES`)."""

    JOB_SUBMIT = "job:submit"
    JOB_READ = "job:read"
    JOB_CONTROL = "job:control"
    """Cancel, hold, release, requeue, update."""
    JOB_OPERATE = "job:operate"
    """The operator's verbs: priority override, jobs held by operators."""
    TOKEN_MINT = "token:mint"  # noqa: S105
    TOKEN_REVOKE = "token:revoke"  # noqa: S105
    ACCOUNT_READ = "account:read"
    ACCOUNT_WRITE = "account:write"
    GRANT_WRITE = "grant:write"
    HOLD_WRITE = "hold:write"
    """Place, extend, settle and void holds and escrows by hand (gateways, edge sites)."""
    QUEUE_WRITE = "queue:write"
    NODE_READ = "node:read"
    NODE_WRITE = "node:write"
    PRICE_WRITE = "price:write"
    AUDIT_READ = "audit:read"


_TENANT = (
    Scope.JOB_SUBMIT,
    Scope.JOB_READ,
    Scope.JOB_CONTROL,
    Scope.TOKEN_MINT,
    Scope.ACCOUNT_READ,
    Scope.HOLD_WRITE,
    Scope.NODE_READ,
)
ROLES: dict[str, tuple[Scope, ...]] = {
    "admin": tuple(Scope),
    "operator": (
        Scope.JOB_READ,
        Scope.JOB_CONTROL,
        Scope.JOB_OPERATE,
        Scope.NODE_READ,
        Scope.NODE_WRITE,
        Scope.QUEUE_WRITE,
        Scope.ACCOUNT_READ,
    ),
    "owner": (*_TENANT, Scope.TOKEN_REVOKE, Scope.ACCOUNT_WRITE, Scope.GRANT_WRITE),
    "member": _TENANT,
    "auditor": (Scope.JOB_READ, Scope.ACCOUNT_READ, Scope.NODE_READ, Scope.AUDIT_READ),
    "service": (Scope.JOB_SUBMIT, Scope.JOB_READ, Scope.JOB_CONTROL, Scope.HOLD_WRITE),
    "job": (Scope.JOB_READ,),
}
"""Named sets of scopes; where a role holds, follows from the token's account: it and all below."""


class Caps(msgspec.Struct, frozen=True, array_like=True):
    """Caps on what a job may ask for at one time, summed over a gang's members; None is no cap."""

    gpus_milli: int | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None


class Block(msgspec.Struct, frozen=True, array_like=True):
    """One block of the chain: its id, its end and the cumulative ceilings it adds.

    `block` is the first 16 bytes of BLAKE2b over the block's revocation id, as 32 hex digits. A ceiling binds over all
    uses of every token that contains the block, together.
    """

    block: str
    expires_at: int
    ceilings: dict[Unit, int] = {}


class Authority(msgspec.Struct, frozen=True, array_like=True):
    """The effective rights of a verified token: the intersection of all its blocks.

    `account` is the account that pays. `blocks` runs from the root block to the last. `expires_at` and `not_before` are
    instants in ns. `clusters`, `models` and `jobs` are allow-lists, None allows any. `parents` are block ids outside the
    chain whose revocation ends this token as well (a job's token names the tokens it stems from). `key` is the id of the
    root key, `issued_at` the instant of issue in ns: revoking an account ends what was issued to it before.
    """

    account: str
    blocks: tuple[Block, ...]
    scopes: frozenset[Scope]
    expires_at: int
    not_before: int = 0
    caps: Caps = Caps()
    clusters: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    jobs: tuple[int, ...] | None = None
    parents: tuple[str, ...] = ()
    key: str = ""
    issued_at: int = 0

    @property
    def root(self) -> str:
        """The id under which the token is registered."""
        return self.blocks[0].block
