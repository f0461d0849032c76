"""The ledger: what a hold takes and from where, what a settlement costs to the last nano-unit, and that nothing is overspent."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core_world import GPU_JOB, HOUR_NS, World, usd

from mintyard.domain import commands as c
from mintyard.domain import errors
from mintyard.domain.events import HoldClosed, HoldPlaced, Line, Refunded
from mintyard.domain.jobs.reports import AttemptEnded, Outcome
from mintyard.domain.jobs.spec import JobSpec, Shape
from mintyard.domain.ledger.book import Hold
from mintyard.domain.ledger.charging import settle
from mintyard.domain.ledger.prices import PriceBook, bill
from mintyard.domain.tokens.authority import Block
from mintyard.domain.units import NS_PER_MS, Unit, format_amount, parse_amount

SHAPES = st.builds(
    Shape,
    cpus_milli=st.integers(1, 256_000),
    memory_mib=st.integers(1, 2**20),
    gpus=st.integers(0, 8),
    members=st.integers(1, 64),
    storage_mb=st.integers(0, 10**6),
)


@given(SHAPES, st.lists(st.integers(0, 10**8), min_size=1, max_size=12))
def test_a_charge_does_not_depend_on_how_the_interval_is_cut(shape: Shape, cuts: list[int]) -> None:
    book = PriceBook(gpu_nano=4_999_999_999, cpu_nano=33_333_333, memory_nano=7, storage_nano=19_999_999)
    total = 0
    at = 0
    for cut in cuts:
        before, after = bill(shape, at, book, book.gpu_nano), bill(shape, at + cut, book, book.gpu_nano)
        total += after.amount(Unit.MONEY, 15) - before.amount(Unit.MONEY, 15)
        at += cut
    assert total == bill(shape, at, book, book.gpu_nano).amount(Unit.MONEY, 15)


@given(SHAPES, st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_shorter_run_never_costs_more(shape: Shape, one: int, other: int) -> None:
    short, long = sorted((one, other))
    book = PriceBook()
    assert bill(shape, short, book, book.gpu_nano).amount(Unit.MONEY, 15) <= bill(
        shape, long, book, book.gpu_nano
    ).amount(Unit.MONEY, 15)


def test_the_default_prices_are_those_of_feature_l5() -> None:
    hour = bill(
        Shape(1_000, 1_024, gpus=1, storage_mb=1_000_000), 3_600_000, PriceBook(), PriceBook().gpu_nano
    )
    assert [format_amount(part, Unit.MONEY) for part in hour.money] == ["5", "0.1", "0.05", "0.02"]


@given(st.sampled_from(list(Unit)), st.integers(0, 2**62))
def test_amounts_survive_the_wire(unit: Unit, amount: int) -> None:
    assert parse_amount(format_amount(amount, unit), unit) == amount


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "NaN", "Infinity", "1e9", "1_000", "0x10", "1,5", "9" * 65, "0.0000000001"]
)
def test_an_amount_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidAmount):
        parse_amount(text, Unit.MONEY)


def test_too_large_an_amount_is_refused() -> None:
    with pytest.raises(errors.InvalidAmount, match="too large"):
        parse_amount(str(2**63), Unit.MONEY)


def test_a_hold_is_taken_at_every_level_and_the_settlement_is_exact() -> None:
    world = World()
    (job,) = world.submit(GPU_JOB)
    held = next(event for event in world.events if isinstance(event, HoldPlaced))
    assert [line.amount for line in held.lines] == [usd("5.3")] * 3
    world.round()
    world.start(job)
    world.end(job, run_ms=1)
    # 1 ms of one GPU at 5, two cores at 0.10 and 2 GB at 0.05 an hour, each rounded down to the nano-unit.
    cost = 5_000_000_000 // 3_600_000 + 200_000_000 // 3_600_000 + 100_000_000 // 3_600_000
    for account in ("acme", "acme/vision", "acme/vision/ann"):
        grant = world.grant(account)
        assert (grant.spent, grant.held, grant.left) == (cost, 0, usd("20") - cost)
    assert world.grant("zeta").spent == 0


def test_the_level_that_is_short_refuses_and_says_by_how_much() -> None:
    world = World()
    world.do(c.AdjustGrant(None, world.grant("acme").id, -usd("15")))
    error = world.refused(c.Submit(world.ann, (c.JobRequest(GPU_JOB),)))
    assert isinstance(error, errors.QuotaExhausted)
    assert error.params == {
        "account": "acme",
        "unit": "money",
        "short": "0.3",
        "needed": "5.3",
        "left": "5",
        "later": "",
    }


def test_exactly_as_many_jobs_are_admitted_as_the_balance_holds() -> None:
    world = World()
    reply = world.do(c.Submit(world.ann, tuple(c.JobRequest(GPU_JOB) for _ in range(8)), atomic=False))
    assert [type(part).__name__ for part in reply.parts] == ["Ticket"] * 3 + ["Problem"] * 5


def test_an_atomic_request_is_admitted_whole_or_not_at_all() -> None:
    world = World()
    assert isinstance(
        world.refused(c.Submit(world.ann, tuple(c.JobRequest(GPU_JOB) for _ in range(4)))),
        errors.QuotaExhausted,
    )
    assert not world.state.jobs
    assert len(world.submit(GPU_JOB, GPU_JOB, GPU_JOB)) == 3


def test_grants_are_drawn_by_priority_then_expiry_then_number() -> None:
    world = World(grants=False)
    for priority, hours in ((100, 0), (100, 5), (50, 0), (100, 2)):
        end = world.now + hours * HOUR_NS if hours else 0
        world.do(c.CreateGrant(None, "acme", Unit.MONEY, usd("1"), priority, expires_at=end))
    world.do(c.PlaceHold(None, "acme/vision", {Unit.MONEY: usd("3.5")}, world.now + HOUR_NS))
    (held,) = world.events
    assert isinstance(held, HoldPlaced)
    assert held.lines[0].legs[::2] == (3, 4, 2, 1)


def test_a_grant_that_expires_takes_what_is_left_but_not_what_is_held() -> None:
    world = World(grants=False)
    world.do(c.CreateGrant(None, "acme", Unit.MONEY, usd("20"), expires_at=world.now + HOUR_NS))
    (job,) = world.submit(GPU_JOB)
    world.round()
    world.now += HOUR_NS
    world.round()
    grant = world.grant("acme")
    assert (grant.state, grant.left, grant.held, grant.expired) == ("expired", 0, usd("5.3"), usd("14.7"))
    world.end(job, run_ms=3_600_000)
    assert (grant.spent, grant.held, grant.expired) == (usd("5.3"), 0, usd("14.7"))
    assert isinstance(world.refused(c.Submit(world.ann, (c.JobRequest(GPU_JOB),))), errors.QuotaExhausted)


def test_a_resource_with_its_own_grant_is_paid_in_it_and_the_rest_in_money() -> None:
    world = World()
    world.do(c.CreateGrant(None, "acme/vision", Unit.GPU, parse_amount("2", Unit.GPU)))
    world.submit(GPU_JOB)
    held = next(event for event in world.events if isinstance(event, HoldPlaced))
    at_vision = [(line.unit, line.amount) for line in held.lines[1:3]]
    assert at_vision == [(Unit.GPU, parse_amount("1", Unit.GPU)), (Unit.MONEY, usd("0.3"))]


def test_a_resource_that_nothing_pays_for_is_refused() -> None:
    world = World(grants=False)
    world.do(c.CreateGrant(None, "acme", Unit.GPU, parse_amount("10", Unit.GPU)))
    error = world.refused(c.Submit(world.ann, (c.JobRequest(GPU_JOB),)))
    assert isinstance(error, errors.WrongResourceType)
    assert error.params["unit"] == "cpu_core_hours"


def test_a_ceiling_binds_over_all_tokens_that_carry_its_block() -> None:
    world = World()
    root = world.token("acme/vision/ann", ceilings={Unit.GPU: parse_amount("2", Unit.GPU)})
    narrow = [
        msgspec.structs.replace(root, blocks=(*root.blocks, Block(name * 32, root.expires_at)))
        for name in "ab"
    ]
    world.submit(GPU_JOB, authority=narrow[0])
    world.submit(GPU_JOB, authority=narrow[1])
    error = world.refused(
        c.Submit(narrow[0], (c.JobRequest(JobSpec("x", Shape(gpus=1), time_limit_ms=60_000)),))
    )
    assert isinstance(error, errors.CeilingReached)
    assert (error.params["limit"], error.params["used"]) == ("2", "2")


def test_a_dry_run_leaves_nothing_at_the_ceilings_of_the_next() -> None:
    """The next new spec takes the number that the one asked about was to have."""
    world = World()
    token = world.token("acme/vision/ann", ceilings={Unit.GPU: parse_amount("10", Unit.GPU)})
    world.submit(GPU_JOB, authority=token)  # from here on mandate and ceiling are known
    world.do(c.Submit(token, (c.JobRequest(JobSpec("dry", Shape(gpus=2))),), dry_run=True))
    world.submit(JobSpec("one", Shape(gpus=1), time_limit_ms=3_600_000), authority=token)
    counter = world.state.ledger.counters[token.blocks[0].block, Unit.GPU]
    assert counter.held == parse_amount("2", Unit.GPU)


def test_what_a_narrowed_block_adds_binds_that_branch_only() -> None:
    world = World()
    ceiling = {Unit.MONEY: usd("6")}
    branch = msgspec.structs.replace(
        world.ann, blocks=(*world.ann.blocks, Block("c" * 32, world.ann.expires_at, ceiling))
    )
    world.submit(GPU_JOB, authority=branch)
    assert isinstance(world.refused(c.Submit(branch, (c.JobRequest(GPU_JOB),))), errors.CeilingReached)
    world.submit(GPU_JOB)


def test_settling_gives_the_ceiling_back_what_was_not_used() -> None:
    world = World()
    token = world.token("acme/vision/ann", ceilings={Unit.MONEY: usd("6")})
    (job,) = world.submit(GPU_JOB, authority=token)
    world.round()
    world.end(job, run_ms=1_000)
    world.submit(GPU_JOB, authority=token)


def test_an_attempt_lost_with_its_node_is_charged_and_refunded() -> None:
    world = World()
    (job,) = world.submit(GPU_JOB)
    world.round()
    world.start(job)
    world.end(job, run_ms=60_000, outcome=Outcome.NODE_LOST)
    kinds = [type(event) for event in world.events]
    assert HoldClosed in kinds
    assert Refunded in kinds
    grant = world.grant("acme")
    assert grant.refunded == grant.spent > 0
    assert world.state.jobs[job].state == "pending"
    assert grant.held == usd("5.3")


def test_the_time_charged_is_at_most_what_the_hub_saw_and_the_limit() -> None:
    world = World()
    (job,) = world.submit(GPU_JOB)
    world.round()
    world.now += 10_000 * NS_PER_MS
    world.end(job, run_ms=0)
    assert world.grant("acme").spent == 0
    (job,) = world.submit(GPU_JOB)
    world.round()
    world.now += 1_000 * NS_PER_MS
    world.do(c.TakeReports("local", (AttemptEnded(job, 1, "b", Outcome.EXITED, run_ms=10**9),)))
    assert world.grant("acme").spent == sum(
        rate * 1_000 // 3_600_000 for rate in (5 * 10**9, 2 * 10**8, 10**8)
    )


def test_an_escrow_is_drawn_in_totals_and_expires_with_the_rest_released() -> None:
    world = World()
    reply = world.do(
        c.PlaceHold(None, "acme/vision/ann", {Unit.MONEY: usd("4")}, world.now + HOUR_NS, holder="gateway-1")
    )
    for total in ("1", "2.5", "2.5", "1.5"):
        world.do(c.DrawHold(None, reply.ref, {Unit.MONEY: usd(total)}))
    grant = world.grant("acme")
    assert (grant.spent, grant.held) == (usd("2.5"), usd("1.5"))
    refused = world.refused(c.DrawHold(None, reply.ref, {Unit.MONEY: usd("4.1")}))
    assert isinstance(refused, errors.InvalidAmount)
    assert str(refused) == "'4.1' is no amount of money: more than the 4 held.", "as people write amounts"
    world.now += HOUR_NS
    assert isinstance(world.refused(c.DrawHold(None, reply.ref, {Unit.MONEY: usd("3")})), errors.WrongState)
    world.round()
    assert (grant.spent, grant.held, grant.left) == (usd("2.5"), 0, usd("17.5"))


def test_a_hold_is_extended_settled_once_and_then_gone() -> None:
    world = World()
    hold = world.do(c.PlaceHold(None, "acme", {Unit.MONEY: usd("4")}, world.now + HOUR_NS)).ref
    world.do(c.ExtendHold(None, hold, {Unit.MONEY: usd("6")}))
    assert isinstance(world.refused(c.ExtendHold(None, hold, {Unit.MONEY: usd("11")})), errors.QuotaExhausted)
    world.do(c.SettleHold(None, hold, {Unit.MONEY: usd("7")}))
    assert world.grant("acme").spent == usd("7")
    assert isinstance(world.refused(c.SettleHold(None, hold, {Unit.MONEY: usd("7")})), errors.NotFound)
    assert isinstance(world.refused(c.VoidHold(None, hold)), errors.NotFound)


def test_a_job_s_hold_can_t_be_touched_by_hand() -> None:
    world = World()
    world.submit(GPU_JOB)
    assert isinstance(world.refused(c.VoidHold(None, 1)), errors.Forbidden)


@pytest.mark.parametrize(
    ("amount", "error"),
    [(0, errors.InvalidAmount), (-1, errors.InvalidAmount), (2**63, errors.InvalidAmount)],
)
def test_bad_amounts_of_a_grant_are_refused(amount: int, error: type[errors.MintyardError]) -> None:
    assert isinstance(World().refused(c.CreateGrant(None, "acme", Unit.MONEY, amount)), error)


def test_a_price_change_does_not_touch_what_was_admitted_before() -> None:
    world = World()
    (job,) = world.submit(GPU_JOB)
    world.do(c.SetPrices(None, PriceBook(world.now, gpu_nano=50_000_000_000)))
    assert isinstance(world.refused(c.Submit(world.ann, (c.JobRequest(GPU_JOB),))), errors.QuotaExhausted)
    world.round()
    world.end(job, run_ms=3_600_000)
    assert world.grant("acme").spent == usd("5.3")


def test_a_model_with_a_price_of_its_own_is_charged_at_it_where_it_ran() -> None:
    world = World()
    world.do(
        c.SetPrices(None, PriceBook(world.now, gpu_nano=5_000_000_000, gpu_models={"a100": 2_000_000_000}))
    )
    (job,) = world.submit(GPU_JOB)
    assert world.grant("acme").held == usd("5.3")
    world.round()
    world.end(job, run_ms=3_600_000)
    assert world.grant("acme").spent == usd("2.3")


def test_what_the_ledger_could_not_count_is_refused() -> None:
    world = World()
    world.do(c.SetPrices(None, PriceBook(world.now, gpu_nano=10**15)))
    huge = JobSpec("x", Shape(gpus=4), time_limit_ms=300 * 86_400_000)
    assert isinstance(world.refused(c.Submit(world.ann, (c.JobRequest(huge),))), errors.InvalidSpec)


# --- the arithmetic of legs, draws and bounds, one case each --------------------------------------------------------


def two_grants(world: World, *, first_ends: int = 0) -> None:
    world.do(c.CreateGrant(None, "acme", Unit.MONEY, usd("3"), 10, expires_at=first_ends))
    world.do(c.CreateGrant(None, "acme", Unit.MONEY, usd("5"), 20))


def test_a_hold_over_two_grants_spends_the_first_before_the_second_and_no_more_than_was_used() -> None:
    world = World(grants=False)
    two_grants(world)
    (job,) = world.submit(GPU_JOB)
    world.round()
    world.end(job, run_ms=1_800_000)
    first, second = world.state.account("acme").grants[Unit.MONEY]
    assert (first.spent, first.held, first.left) == (usd("2.65"), 0, usd("0.35"))
    assert (second.spent, second.held, second.left) == (0, 0, usd("5"))


def test_a_grant_past_its_end_is_not_drawn_on_even_before_a_tick_has_closed_it() -> None:
    world = World(grants=False)
    two_grants(world, first_ends=world.now + HOUR_NS)
    world.now += HOUR_NS
    assert isinstance(
        world.refused(c.PlaceHold(None, "acme", {Unit.MONEY: usd("6")}, world.now + HOUR_NS)),
        errors.QuotaExhausted,
    )
    world.do(c.PlaceHold(None, "acme", {Unit.MONEY: usd("4")}, world.now + HOUR_NS))
    first, second = world.state.account("acme").grants[Unit.MONEY]
    assert (first.held, second.held) == (0, usd("4"))


def test_a_hold_and_its_grant_that_end_together_leave_nothing() -> None:
    world = World(grants=False)
    end = world.now + HOUR_NS
    world.do(c.CreateGrant(None, "acme", Unit.MONEY, usd("3"), expires_at=end + 1))
    world.do(c.PlaceHold(None, "acme", {Unit.MONEY: usd("2")}, end))
    world.now = end + 1
    world.round()
    grant = world.grant("acme")
    assert (grant.state, grant.left, grant.held, grant.expired) == ("expired", 0, 0, usd("3"))


def test_no_more_is_taken_back_or_refunded_than_there_is() -> None:
    world = World()
    grant = world.grant("acme")
    assert isinstance(world.refused(c.AdjustGrant(None, grant.id, -grant.left - 1)), errors.InvalidAmount)
    hold = world.do(c.PlaceHold(None, "acme", {Unit.MONEY: usd("2")}, world.now + HOUR_NS)).ref
    assert isinstance(world.refused(c.AdjustGrant(None, grant.id, -grant.left - 1)), errors.InvalidAmount)
    world.do(c.SettleHold(None, hold, {Unit.MONEY: usd("2")}))
    world.do(c.Refund(None, grant.id, usd("1.5")))
    refused = world.refused(c.Refund(None, grant.id, usd("0.6")))
    assert isinstance(refused, errors.InvalidAmount)
    assert refused.params["text"] == "0.6"
    world.do(c.Refund(None, grant.id, usd("0.5")))
    assert (grant.spent, grant.refunded, grant.left) == (usd("2"), usd("2"), usd("20"))


def test_a_settlement_below_what_was_drawn_keeps_the_draw() -> None:
    world = World()
    hold = world.do(
        c.PlaceHold(None, "acme", {Unit.MONEY: usd("4")}, world.now + HOUR_NS, holder="gateway")
    ).ref
    world.do(c.DrawHold(None, hold, {Unit.MONEY: usd("3")}))
    world.do(c.SettleHold(None, hold, {Unit.MONEY: usd("1")}))
    settled = next(event for event in world.events if isinstance(event, HoldClosed))
    assert dict(zip(settled.used[::2], settled.used[1::2], strict=True)) == {"money": usd("3")}
    assert (world.grant("acme").spent, world.grant("acme").left) == (usd("3"), usd("17"))


def test_a_gang_costs_what_all_its_members_use() -> None:
    one = bill(Shape(gpus=1), 3_600_000, PriceBook(), PriceBook().gpu_nano)
    four = bill(Shape(gpus=1, members=4), 3_600_000, PriceBook(), PriceBook().gpu_nano)
    assert four.money == tuple(4 * part for part in one.money)
    assert four.stock == tuple(4 * part for part in one.stock)


def test_a_hold_covers_the_dearest_model_that_may_be_given() -> None:
    world = World()
    world.do(c.SetPrices(None, PriceBook(world.now, gpu_models={"h100": usd("9")})))
    world.submit(GPU_JOB)
    assert world.grant("acme").held == usd("9.3")


def test_a_settlement_never_exceeds_what_is_held() -> None:
    hold = Hold(1, "acme", (Line(Unit.MONEY, 0, 10, (1, 10)),), (), 0, 0, 0, 0, "", "")
    share = settle(hold, {Unit.MONEY: 12})
    assert (share.spent, share.released) == ((1, 10), ())


@pytest.mark.parametrize("drawn", ["0", "3", "4"])
def test_a_hold_drawn_whole_outlives_the_ceilings_of_its_token(drawn: str) -> None:
    """The ceiling is forgotten with its block once nothing of it is held, before the hold itself is closed (seeds 2509, 3298)."""
    world = World()
    hours = 2
    token = world.token("acme/vision/ann", "owner", {Unit.MONEY: usd("9")}, hours=hours)
    end = world.now + hours * HOUR_NS
    hold = world.do(c.PlaceHold(token, "acme/vision/ann", {Unit.MONEY: usd("4")}, end)).ref
    world.do(c.DrawHold(None, hold, {Unit.MONEY: usd(drawn)}))
    world.now = end
    world.do(c.OpenAccount(None, "later"))
    world.round()
    assert not world.state.ledger.holds
    assert world.grant("acme").spent == usd(drawn)
    world.now += HOUR_NS
    world.do(c.OpenAccount(None, "much"))
    assert not world.state.ledger.counters
