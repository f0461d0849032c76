"""Compute tokens over REST (T1-T4): mint, list, suspend, resume, revoke, and the keys to verify them by."""

from __future__ import annotations

from typing import Any

import msgspec

from mintyard.api.answers import Answer
from mintyard.api.call import Call
from mintyard.api.pages import paged
from mintyard.api.parameters import MIN_SEQ, PAGED, choice, text
from mintyard.api.resources.accounts import change
from mintyard.api.routes import Table, changed, shown
from mintyard.app.minting import TokenWish
from mintyard.app.read_model import queries, views
from mintyard.domain import commands
from mintyard.domain.errors import (
    AccountClosed,
    AlreadyExists,
    InvalidAmount,
    InvalidName,
    InvalidSpec,
    LimitReached,
    NotAcceptableTime,
    NotFound,
    TooLarge,
    Widening,
    WrongState,
)
from mintyard.domain.ids import is_within
from mintyard.domain.lifecycle import TOKEN
from mintyard.domain.limits import DEFAULT_TOKEN_LIFE_HOURS
from mintyard.domain.tokens.authority import ROLES, Caps, Scope
from mintyard.domain.units import NS_PER_S
from mintyard.wire import tokens as wire
from mintyard.wire.bounds import format_amounts, format_instant, instant_or_none, parse_amounts, parse_instant
from mintyard.wire.pages import Change, Page

TOKENS = Table("tokens")
_MOVES: dict[str, Any] = {"answer": Change, "scope": Scope.TOKEN_REVOKE, "refusals": (NotFound, WrongState)}


def token_of(view: views.TokenView) -> wire.Token:
    return wire.Token(
        id=view.token,
        account=view.account,
        name=view.name,
        state=view.state,  # pyright: ignore[reportArgumentType] (a state of the life cycle)
        expires_at=format_instant(view.expires_at),
        registered_at=instant_or_none(view.registered_at),
        parents=view.parents,
        blocks_revoked=view.blocks_revoked,
    )


def _scopes(body: wire.MintToken) -> tuple[Scope, ...]:
    if (body.scopes is None) == (body.role is None):
        raise InvalidSpec(field="scopes", why="give exactly one of scopes and role")
    return body.scopes if body.scopes is not None else ROLES[body.role or ""]


def _end(body: wire.MintToken, most: int, now: int) -> int:
    """When the new token ends; one that asks for no life of its own doesn't outlive its maker's."""
    if body.life_s is None:
        return min(now + DEFAULT_TOKEN_LIFE_HOURS * 3_600 * NS_PER_S, most)
    return now + body.life_s * NS_PER_S


@TOKENS.add(
    "POST",
    "/tokens",
    "Mint a token",
    body=wire.MintToken,
    answer=wire.MintedToken,
    status=201,
    scope=Scope.TOKEN_MINT,
    refusals=(
        NotFound, AccountClosed, AlreadyExists, InvalidAmount, InvalidName, InvalidSpec, LimitReached,
        NotAcceptableTime, TooLarge, Widening,
    ),
)  # fmt: skip
async def mint_token(call: Call, body: wire.MintToken) -> Answer:
    """The answer holds the token's text, which is shown this once. It may allow at most what the caller's own
    token does. A repeat with the same Idempotency-Key gets the same token from the process that made it, within
    ten minutes."""
    services, bearer = call.services, call.bearer
    account = body.account or bearer.account
    if not is_within(account, bearer.account):
        raise NotFound(what="account", name=account)
    now = services.now()
    wish = TokenWish(
        account=account,
        scopes=frozenset(_scopes(body)),
        name=body.name,
        expires_at=_end(body, bearer.expires_at, now),
        not_before=parse_instant(body.not_before, "not_before") if body.not_before else 0,
        caps=Caps(body.caps.gpus_milli, body.caps.cpus_milli, body.caps.memory_mib),
        ceilings=parse_amounts(body.ceilings),
        clusters=body.clusters,
        models=body.models,
        jobs=body.jobs,
    )
    request = msgspec.json.encode(body, order="deterministic")
    minted = await call.run(services.minter.sign, bearer, wish, call.key, request)
    answer = await call.send(commands.RegisterToken(bearer, minted.authority, body.name, call.key))
    made = wire.MintedToken(
        token=minted.token,
        id=minted.block,
        account=account,
        expires_at=format_instant(minted.authority.expires_at),
        seq=answer.seq,
    )
    reply = changed(call, answer, made, 201)
    reply.headers.append((b"cache-control", b"no-store"))
    return reply


@TOKENS.add(
    "GET",
    "/tokens",
    "List registered tokens",
    answer=Page[wire.Token],
    query=(
        text("account", "Only tokens for this account and those below it."),
        choice("state", "Only tokens in this state.", tuple(TOKEN.states)),
        *PAGED,
    ),
    scope=Scope.ACCOUNT_READ,
    refusals=(NotFound,),
)
async def list_tokens(call: Call) -> Answer:
    query = call.query
    found = await call.look(
        queries.list_tokens,
        call.within,
        account=query["account"],
        state=query["state"],
        after=query["cursor"],
        rows=query["limit"],
    )
    return paged(call, "/tokens", found, token_of)


@TOKENS.add(
    "GET",
    "/tokens/{token}",
    "Show a registered token",
    answer=wire.Token,
    query=(MIN_SEQ,),
    scope=Scope.ACCOUNT_READ,
    refusals=(NotFound,),
)
async def show_token(call: Call) -> Answer:
    return shown(token_of(await call.look(queries.show_token, call.within, call.path["token"])))


async def _bind(call: Call, command: commands.Command) -> Answer:
    """Send an order about tokens, and answer only when it binds in this process."""
    answer = await call.send(command)
    await call.services.feed.reached(answer.seq)
    return changed(call, answer, change(answer))


async def _move(call: Call, trigger: str) -> Answer:
    return await _bind(call, commands.SetTokenState(call.bearer, call.path["token"], trigger, call.key))


@TOKENS.add("POST", "/tokens/{token}/suspend", "Suspend a token and all narrowed from it", **_MOVES)
async def suspend_token(call: Call) -> Answer:
    return await _move(call, "suspend")


@TOKENS.add("POST", "/tokens/{token}/resume", "Resume a suspended token", **_MOVES)
async def resume_token(call: Call) -> Answer:
    return await _move(call, "resume")


@TOKENS.add("POST", "/tokens/{token}/revoke", "Revoke a token and all narrowed from it", **_MOVES)
async def revoke_token(call: Call) -> Answer:
    return await _move(call, "revoke")


@TOKENS.add(
    "POST",
    "/tokens/{token}/revoke-block",
    "Revoke what was narrowed from a token",
    body=wire.RevokeBlock,
    answer=Change,
    refusals=(NotFound,),
)
async def revoke_block(call: Call, body: wire.RevokeBlock) -> Answer:
    """Allowed with `token:revoke`, and to whoever presents a chain that holds the block."""
    return await _bind(call, commands.RevokeBlock(call.bearer, call.path["token"], body.block, call.key))


@TOKENS.add(
    "POST",
    "/tokens/revoke-all",
    "Revoke every token of an account and of those below it",
    body=wire.RevokeAll,
    answer=Change,
    scope=Scope.TOKEN_REVOKE,
    refusals=(NotFound,),
)
async def revoke_all(call: Call, body: wire.RevokeAll) -> Answer:
    return await _bind(call, commands.RevokeAccountTokens(call.bearer, body.account, call.key))


@TOKENS.add("GET", "/keys", "The hub's public keys", answer=wire.KeySet, secured=False)
async def show_keys(call: Call) -> Answer:
    """What is needed to verify and to narrow tokens offline. Public."""
    keys = call.services.gate.validator.keys
    shape = wire.KeySet(
        version=keys.version,
        keys=tuple(
            wire.VerifyingKey(key=key.key, public=key.public, state=key.state.value) for key in keys.keys
        ),
    )
    return Answer(shape, 200, [(b"cache-control", b"max-age=60")])


@TOKENS.add("GET", "/whoami", "The effective rights of the token that was sent", answer=wire.WhoAmI)
async def whoami(call: Call) -> Answer:
    mine = call.bearer
    caps = wire.Caps(
        gpus_milli=mine.caps.gpus_milli, cpus_milli=mine.caps.cpus_milli, memory_mib=mine.caps.memory_mib
    )
    blocks = tuple(
        wire.Ceilings(
            block=block.block,
            expires_at=format_instant(block.expires_at),
            ceilings=format_amounts(block.ceilings),
        )
        for block in mine.blocks
    )
    return shown(
        wire.WhoAmI(
            account=mine.account,
            scopes=tuple(sorted(mine.scopes)),
            expires_at=format_instant(mine.expires_at),
            issued_at=instant_or_none(mine.issued_at),
            not_before=instant_or_none(mine.not_before),
            key=mine.key,
            blocks=blocks,
            caps=caps,
            clusters=mine.clusters,
            models=mine.models,
            jobs=mine.jobs,
            parents=mine.parents,
        )
    )
