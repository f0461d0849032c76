"""Every command that a caller may send carries an idempotency key, and a repeat has one effect and the same answer."""

from __future__ import annotations

import typing

import pytest

from mintyard.domain import commands as c
from mintyard.domain import hub
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.replies import Done, Refusal
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import Authority, Block, Scope
from mintyard.domain.units import NS_PER_MS, Unit

NOW = 1_800_000_000_000 * NS_PER_MS


def key(number: int) -> str:
    digits = f"{NOW // NS_PER_MS:012x}7{0:03x}8{0:03x}{number:012x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


@pytest.fixture
def state() -> State:
    state = State()
    hub.begin(state, 1, NOW)
    for command in (
        c.Found("centre"),
        c.OpenAccount(None, "acme"),
        c.CreateGrant(None, "acme", Unit.MONEY, 1_000),
    ):
        assert isinstance(hub.execute(state, command, NOW)[1], Done)
    return state


def test_every_command_of_a_caller_has_a_key() -> None:
    for kind in typing.get_args(c.Command):
        fields = kind.__struct_fields__
        assert ("key" in fields) == ("authority" in fields), kind
        if "key" in fields:
            assert fields[-1] == "key"


def test_a_hold_is_extended_once(state: State) -> None:
    _, placed = hub.execute(
        state, c.PlaceHold(None, "acme", {Unit.MONEY: 100}, NOW + 60_000 * NS_PER_MS), NOW
    )
    assert isinstance(placed, Done)
    extend = c.ExtendHold(None, int(placed.ref), {Unit.MONEY: 50}, key=key(1))
    first = hub.execute(state, extend, NOW)
    again = hub.execute(state, extend, NOW)
    assert first[1] == again[1] == Done(placed.ref, "held")
    assert again[0] == []
    assert state.ledger.grants[1].held == 150


def test_a_settlement_is_answered_again(state: State) -> None:
    hub.execute(state, c.PlaceHold(None, "acme", {Unit.MONEY: 100}, NOW + 60_000 * NS_PER_MS), NOW)
    settle = c.SettleHold(None, 1, {Unit.MONEY: 30}, key=key(2))
    assert hub.execute(state, settle, NOW)[1] == hub.execute(state, settle, NOW)[1] == Done(1, "settled")
    assert state.ledger.grants[1].spent == 30
    refused = hub.execute(state, c.SettleHold(None, 1, {Unit.MONEY: 31}, key=key(2)), NOW)[1]
    assert isinstance(refused, Refusal)
    assert refused.problem.code == "idempotency_key_reused"


def test_prices_without_a_time_hold_from_now(state: State) -> None:
    for rate in (7, 8):
        assert isinstance(hub.execute(state, c.SetPrices(None, PriceBook(gpu_nano=rate)), NOW)[1], Done)
    assert state.price_book(NOW)[1] == PriceBook(effective_from=NOW, gpu_nano=8)


def test_prices_are_the_whole_hubs(state: State) -> None:
    end = NOW + 3_600_000 * NS_PER_MS
    tenant = Authority("acme", (Block("1" * 32, end),), frozenset({Scope.PRICE_WRITE}), end)
    assert isinstance(hub.execute(state, c.RegisterToken(None, tenant), NOW)[1], Done)
    refused = hub.execute(state, c.SetPrices(tenant, PriceBook(gpu_nano=0)), NOW)[1]
    assert isinstance(refused, Refusal)
    assert refused.problem.code == "forbidden"
