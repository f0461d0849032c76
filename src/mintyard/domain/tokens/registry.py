"""The token registry: which tokens exist, which were suspended or revoked, and whether an authority may do what it asks.

Signatures are checked before the core; here are the checks that need state, in a fixed order, each with its own error (T2).
"""

from __future__ import annotations

from mintyard.domain.commands import RegisterToken, RevokeAccountTokens, RevokeBlock, SetTokenState
from mintyard.domain.errors import (
    AccountClosed,
    AlreadyExists,
    CapExceeded,
    LimitReached,
    NotAcceptableTime,
    NotFound,
    ScopeMissing,
    TokenExpired,
    TokenNotYetValid,
    TokenRevoked,
    TokenSuspended,
    TokenUnregistered,
    TokenWrongAudience,
    Widening,
    WrongState,
)
from mintyard.domain.events import AccountTokensRevoked, AnyEvent, BlockRevoked, TokenMoved, TokenRegistered
from mintyard.domain.ids import ROOT, is_within
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.ledger.book import Account
from mintyard.domain.ledger.charging import iso_time
from mintyard.domain.lifecycle import TOKEN
from mintyard.domain.limits import MAX_TOKEN_LIFE_DAYS, MAX_TOKENS_PER_ACCOUNT
from mintyard.domain.replies import Done
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import Authority, Caps, Scope
from mintyard.domain.units import MS_PER_HOUR, NS_PER_MS

MAX_TOKEN_LIFE_NS = MAX_TOKEN_LIFE_DAYS * 24 * MS_PER_HOUR * NS_PER_MS


def check_authority(state: State, authority: Authority, now: int) -> None:
    """Whether the token may be used at all at `now`: time, revocation, registration, suspension, audience."""
    if authority.expires_at <= now:
        raise TokenExpired(expired_at=iso_time(authority.expires_at))
    if authority.not_before > now:
        raise TokenNotYetValid(valid_from=iso_time(authority.not_before))
    for block in authority.blocks:
        if block.block in state.revoked:
            raise TokenRevoked()
    _check_registered(state, authority.root, authority)
    for parent in authority.parents:
        if parent in state.revoked:
            raise TokenRevoked()
        token = state.tokens.get(parent)
        if token is not None and token.state != "active":
            raise TokenSuspended() if token.state == "suspended" else TokenRevoked()
    if authority.clusters is not None and state.name not in authority.clusters:
        raise TokenWrongAudience(allowed=", ".join(authority.clusters) or "nothing", asked=state.name)


def _check_registered(state: State, root: str, authority: Authority) -> None:
    token = state.tokens.get(root)
    if token is None:
        # A job's own token is made at dispatch and never registered: it lives as long as its job does.
        if authority.jobs is None or not any(job in state.jobs for job in authority.jobs):
            raise TokenUnregistered()
    elif token.state == "revoked":
        raise TokenRevoked()
    elif token.state == "suspended":
        raise TokenSuspended()
    elif token.state == "expired":
        raise TokenExpired(expired_at=iso_time(token.expires_at))


def require(state: State, authority: Authority | None, scope: Scope, now: int) -> str:
    """The account whose subtree the caller may act on, after every check; `/` for the hub itself."""
    if authority is None:
        return ROOT
    check_authority(state, authority, now)
    if scope not in authority.scopes:
        raise ScopeMissing(scope=scope.value)
    return authority.account


def reach(state: State, within: str, account: str, *, active: bool = True) -> Account:
    """The account when it lies in the caller's subtree, else `NotFound`: what belongs to others doesn't show."""
    found = state.account(account) if is_within(account, within) else None
    if found is None:
        raise NotFound(what="account", name=account)
    if active:
        for level in found.path:
            if level.state != "active":
                raise AccountClosed(account=level.id, state=level.state)
    return found


_NO_CAPS = Caps()


def check_caps(caps: Caps, shape: Shape) -> None:
    """`CapExceeded` when all members together ask for more at once than the token allows."""
    if caps == _NO_CAPS:
        return
    n = shape.members
    for what, limit, asked in (
        ("milli-GPUs", caps.gpus_milli, n * shape.gpus_milli),
        ("milli-cores", caps.cpus_milli, n * shape.cpus_milli),
        ("MiB of memory", caps.memory_mib, n * shape.memory_mib),
    ):
        if limit is not None and asked > limit:
            raise CapExceeded(what=what, limit=limit, asked=asked)


def register_token(state: State, command: RegisterToken, now: int, out: list[AnyEvent]) -> Done:
    token = command.token
    authority = command.authority
    within = require(state, authority, Scope.TOKEN_MINT, now)
    account = reach(state, within, token.account)
    if authority is not None:
        _check_narrower(authority, token)
    if not now < token.expires_at <= now + MAX_TOKEN_LIFE_NS:
        raise NotAcceptableTime(
            field="expiry",
            given=iso_time(token.expires_at),
            why=f"it must lie within {MAX_TOKEN_LIFE_DAYS} days from now",
        )
    if token.root in state.tokens:
        raise AlreadyExists(what="Token", name=token.root)
    if state.token_counts.get(account.id, 0) >= MAX_TOKENS_PER_ACCOUNT:
        raise LimitReached(what=f"tokens of {account.id}", limit=MAX_TOKENS_PER_ACCOUNT)
    out.append(TokenRegistered(token.root, account.id, command.name, token.expires_at, token.parents))
    return Done(token.root, TOKEN.initial)


def _check_narrower(maker: Authority, token: Authority) -> None:
    """A new token may not exceed its maker's (T4). Ceilings are counters of the maker's own blocks, which a new root would
    escape, so a token with ceilings can only be narrowed, not used to mint."""
    if any(block.ceilings for block in maker.blocks):
        raise Widening(what="this token has cumulative ceilings and can only be narrowed")
    if not token.scopes <= maker.scopes:
        raise Widening(what="scopes " + ", ".join(sorted(token.scopes - maker.scopes)))
    if token.expires_at > maker.expires_at:
        raise Widening(what=f"expiry after {iso_time(maker.expires_at)}")
    for name in ("gpus_milli", "cpus_milli", "memory_mib"):
        most, asked = getattr(maker.caps, name), getattr(token.caps, name)
        if most is not None and (asked is None or asked > most):
            raise Widening(what=f"cap {name} above {most}")
    for name in ("clusters", "models", "jobs"):
        allowed, asked = getattr(maker, name), getattr(token, name)
        if allowed is not None and (asked is None or not set(asked) <= set(allowed)):
            raise Widening(what=f"{name} beyond {', '.join(map(str, allowed))}")
    if not {block.block for block in maker.blocks} <= set(token.parents):
        raise Widening(what="a token must name the blocks that it was minted with as parents")


def set_token_state(state: State, command: SetTokenState, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.TOKEN_REVOKE, now)
    token = state.tokens.get(command.token)
    if token is None or not is_within(token.account, within):
        raise NotFound(what="token", name=command.token)
    if command.trigger not in ("suspend", "resume", "revoke") or not TOKEN.allows(
        token.state, command.trigger
    ):
        raise WrongState(
            what="Token",
            name=command.token,
            state=token.state,
            action=command.trigger,
            allowed=", ".join(TOKEN.sources(command.trigger)) or "no state",
        )
    out.append(TokenMoved(token.id, command.trigger))
    return Done(token.id, TOKEN.step(token.state, command.trigger))


def revoke_block(state: State, command: RevokeBlock, now: int, out: list[AnyEvent]) -> Done:
    """Revoke a narrowed token by the id of its last block. Allowed with `token:revoke` over the root token's account, and
    for whoever presents a chain that holds the block: a bearer may end what it narrowed itself."""
    authority = command.authority
    within = require(state, authority, _scope_for_block(authority, command.block), now)
    token = state.tokens.get(command.token)
    if token is None or not is_within(token.account, within):
        raise NotFound(what="token", name=command.token)
    if len(command.block) != 32 or any(c not in "0123456789abcdef" for c in command.block):
        raise NotFound(what="block", name=command.block[:32])
    if command.block not in state.revoked:
        out.append(BlockRevoked(command.block, token.id, token.expires_at))
    return Done(command.block, "revoked")


def _scope_for_block(authority: Authority | None, block: str) -> Scope:
    if authority is not None and authority.scopes and any(own.block == block for own in authority.blocks):
        return min(authority.scopes)
    return Scope.TOKEN_REVOKE


def revoke_account_tokens(state: State, command: RevokeAccountTokens, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.TOKEN_REVOKE, now)
    account = reach(state, within, command.account, active=False)
    out.append(AccountTokensRevoked(account.id, now))
    out += [
        TokenMoved(token.id, "revoke")
        for token in state.tokens.values()
        if is_within(token.account, account.id) and TOKEN.allows(token.state, "revoke")
    ]
    return Done(account.id, "revoked")
