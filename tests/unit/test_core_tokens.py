"""Tokens in the core: each way in which a token fails has its own code, and nobody gives more than they have (T2, T3, T4)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.core_world import GPU_JOB, HOUR_NS, World, usd

from mintyard.domain import commands as c
from mintyard.domain import errors
from mintyard.domain.ids import ROOT
from mintyard.domain.jobs.spec import JobRequest, Shape
from mintyard.domain.tokens.authority import ROLES, Authority, Block, Caps, Scope
from mintyard.domain.units import Unit


def submit(token: Authority) -> c.Submit:
    return c.Submit(token, (JobRequest(GPU_JOB),))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda t, now: msgspec.structs.replace(t, expires_at=now), errors.TokenExpired),
        (lambda t, now: msgspec.structs.replace(t, not_before=now + 1), errors.TokenNotYetValid),
        (
            lambda t, now: msgspec.structs.replace(t, blocks=(Block("f" * 32, t.expires_at),)),
            errors.TokenUnregistered,
        ),
        (lambda t, now: msgspec.structs.replace(t, clusters=("elsewhere",)), errors.TokenWrongAudience),
        (lambda t, now: msgspec.structs.replace(t, clusters=()), errors.TokenWrongAudience),
        (lambda t, now: msgspec.structs.replace(t, scopes=frozenset()), errors.ScopeMissing),
        (lambda t, now: msgspec.structs.replace(t, caps=Caps(gpus_milli=999)), errors.CapExceeded),
        (lambda t, now: msgspec.structs.replace(t, caps=Caps(cpus_milli=1_999)), errors.CapExceeded),
        (lambda t, now: msgspec.structs.replace(t, caps=Caps(memory_mib=2_047)), errors.CapExceeded),
    ],
)
def test_each_failure_has_its_own_code(
    change: Callable[[Authority, int], Authority], error: type[errors.MintyardError]
) -> None:
    world = World()
    assert isinstance(world.refused(submit(change(world.ann, world.now))), error)
    world.do(submit(world.ann))


def test_a_token_for_this_cluster_is_good_here() -> None:
    world = World()
    world.do(submit(msgspec.structs.replace(world.ann, clusters=("main", "edge"))))


def test_caps_count_all_members_of_a_gang() -> None:
    world = World()
    token = msgspec.structs.replace(world.ann, caps=Caps(gpus_milli=3_000))
    gang = msgspec.structs.replace(GPU_JOB, shape=Shape(gpus=2, members=2), time_limit_ms=60_000)
    assert isinstance(world.refused(c.Submit(token, (JobRequest(gang),))), errors.CapExceeded)


def test_suspend_resume_revoke_and_what_each_says() -> None:
    world = World()
    world.do(c.SetTokenState(None, world.ann.root, "suspend"))
    assert isinstance(world.refused(submit(world.ann)), errors.TokenSuspended)
    world.do(c.SetTokenState(None, world.ann.root, "resume"))
    world.do(submit(world.ann))
    world.do(c.SetTokenState(None, world.ann.root, "revoke"))
    assert isinstance(world.refused(submit(world.ann)), errors.TokenRevoked)
    for trigger in ("resume", "suspend", "revoke", "explode"):
        assert isinstance(world.refused(c.SetTokenState(None, world.ann.root, trigger)), errors.WrongState)


def test_revoking_a_block_ends_what_was_narrowed_from_it_and_nothing_else() -> None:
    world = World()
    narrow = msgspec.structs.replace(
        world.ann, blocks=(*world.ann.blocks, Block("b" * 32, world.ann.expires_at))
    )
    deeper = msgspec.structs.replace(narrow, blocks=(*narrow.blocks, Block("c" * 32, world.ann.expires_at)))
    world.do(c.RevokeBlock(narrow, world.ann.root, "b" * 32))
    for token in (narrow, deeper):
        assert isinstance(world.refused(submit(token)), errors.TokenRevoked)
    world.do(submit(world.ann))


def test_a_member_can_t_revoke_another_s_token() -> None:
    world = World()
    eve = world.token("zeta/eve", "owner")
    assert isinstance(world.refused(c.SetTokenState(eve, world.ann.root, "revoke")), errors.NotFound)
    assert isinstance(world.refused(c.RevokeBlock(eve, world.ann.root, "b" * 32)), errors.NotFound)
    bob = world.token("acme/vision/ann")
    assert isinstance(world.refused(c.SetTokenState(bob, world.ann.root, "revoke")), errors.ScopeMissing)


def test_revoking_an_account_s_tokens_ends_those_below_and_spares_later_ones() -> None:
    world = World()
    world.do(c.RevokeAccountTokens(None, "acme"))
    assert isinstance(world.refused(submit(world.ann)), errors.TokenRevoked)
    world.do(submit(world.token("acme/vision/ann")))


def test_a_suspended_account_stops_all_below() -> None:
    world = World()
    world.do(c.SetAccountState(None, "acme", "suspend"))
    error = world.refused(submit(world.ann))
    assert isinstance(error, errors.AccountClosed)
    assert error.params == {"account": "acme", "state": "suspended"}
    world.do(c.SetAccountState(None, "acme", "resume"))
    world.do(submit(world.ann))


def test_a_token_is_forgotten_after_its_end() -> None:
    world = World()
    token = world.token("acme/vision/ann", hours=1)
    world.now += HOUR_NS
    world.round()
    assert isinstance(world.refused(submit(token)), errors.TokenExpired)
    assert token.root not in world.state.tokens


def child(maker: Authority, **changes: object) -> Authority:
    """What a maker may mint: a root token of its own that names the maker's blocks as parents."""
    blank = Authority(
        maker.account,
        (Block("d" * 32, maker.expires_at),),
        maker.scopes,
        maker.expires_at,
        caps=maker.caps,
        clusters=maker.clusters,
        models=maker.models,
        jobs=maker.jobs,
        parents=tuple(block.block for block in maker.blocks),
    )
    return msgspec.structs.replace(blank, **changes)


@pytest.mark.parametrize(
    "change",
    [
        {"scopes": frozenset(ROLES["admin"])},
        {"scopes": frozenset({Scope.TOKEN_REVOKE})},
        {"expires_at": 2**62},
        {"caps": Caps()},
        {"caps": Caps(gpus_milli=4_001)},
        {"clusters": None},
        {"clusters": ("main", "other")},
        {"models": None},
        {"jobs": None},
        {"parents": ()},
    ],
)
def test_nobody_mints_more_than_they_have(change: dict[str, object]) -> None:
    world = World()
    world.do(
        c.RegisterToken(
            None,
            maker := msgspec.structs.replace(
                child(world.ann),
                blocks=(Block("e" * 32, world.ann.expires_at),),
                caps=Caps(gpus_milli=4_000),
                clusters=("main",),
                models=("m",),
                jobs=(1,),
            ),
        )
    )
    assert isinstance(world.refused(c.RegisterToken(maker, child(maker, **change))), errors.Widening)
    world.do(c.RegisterToken(maker, child(maker)))


def test_a_child_ends_with_its_maker() -> None:
    world = World()
    token = child(world.ann)
    world.do(c.RegisterToken(world.ann, token))
    world.do(submit(token))
    world.do(c.SetTokenState(None, world.ann.root, "revoke"))
    assert isinstance(world.refused(submit(token)), errors.TokenRevoked)


def test_a_token_with_a_ceiling_can_only_be_narrowed() -> None:
    world = World()
    capped = world.token("acme/vision/ann", ceilings={Unit.MONEY: usd("1")})
    assert isinstance(world.refused(c.RegisterToken(capped, child(capped))), errors.Widening)


def test_a_token_can_t_be_minted_for_an_account_elsewhere() -> None:
    world = World()
    assert isinstance(
        world.refused(c.RegisterToken(world.ann, child(world.ann, account="zeta"))), errors.NotFound
    )
    assert isinstance(
        world.refused(c.RegisterToken(world.ann, child(world.ann, account="acme"))), errors.NotFound
    )


@pytest.mark.parametrize("life", [-1, 0, 2**62])
def test_a_token_s_end_lies_within_bounds(life: int) -> None:
    world = World()
    token = child(world.ann, expires_at=world.now + life)
    assert isinstance(world.refused(c.RegisterToken(None, token)), errors.NotAcceptableTime)


def test_a_job_s_own_token_lives_with_its_job_and_reads_only_it() -> None:
    world = World()
    (job, other) = world.submit(GPU_JOB, GPU_JOB)
    token = Authority(
        "acme/vision/ann",
        (Block("9" * 32, world.now + HOUR_NS),),
        frozenset({Scope.JOB_READ, Scope.JOB_CONTROL}),
        world.now + HOUR_NS,
        jobs=(job,),
        parents=(world.ann.root,),
    )
    assert isinstance(world.refused(c.ControlJobs(token, "cancel", (other,))), errors.NotFound)
    world.round()
    world.end(job)
    assert isinstance(world.refused(c.ControlJobs(token, "cancel", (job,))), errors.TokenUnregistered)


def test_quota_is_given_from_above_only() -> None:
    world = World()
    owner = world.token("acme", "owner")
    world.do(c.CreateGrant(owner, "acme/vision", Unit.MONEY, usd("1")))
    for command in (
        c.CreateGrant(owner, "acme", Unit.MONEY, usd("1")),
        c.AdjustGrant(owner, world.grant("acme").id, usd("1")),
        c.Refund(owner, world.grant("acme").id, 1),
        c.SetAccountState(owner, "acme", "suspend"),
    ):
        assert isinstance(world.refused(command), errors.Forbidden)
    assert isinstance(world.refused(c.CreateGrant(owner, "zeta", Unit.MONEY, 1)), errors.NotFound)
    assert isinstance(world.refused(c.SetPrices(owner, world.state.prices[0])), errors.ScopeMissing)
    admin = world.token(ROOT, "admin")
    world.do(c.CreateGrant(admin, "acme", Unit.MONEY, usd("1")))


@pytest.mark.parametrize(
    "account",
    [
        "",
        "/",
        "//",
        "a/",
        "/a",
        "A",
        "a b",
        "a//b",
        "../a",
        "a/../b",
        "ä",
        "a" * 64,
        "/".join("abcdefghi"),
        "x" * 129,
    ],
)
def test_a_bad_account_name_is_refused(account: str) -> None:
    error = World().refused(c.OpenAccount(None, account))
    assert isinstance(error, errors.InvalidName | errors.AlreadyExists)


def test_an_account_needs_its_parent_and_is_opened_once() -> None:
    world = World()
    assert isinstance(world.refused(c.OpenAccount(None, "new/project")), errors.NotFound)
    assert isinstance(world.refused(c.OpenAccount(None, "acme")), errors.AlreadyExists)
