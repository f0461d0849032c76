"""The validator: fast, and never a revoked, suspended, expired or dead-key token, whatever it remembers (T2, T3, T6)."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.credentials_material import (
    DAY,
    KEYS,
    NOW,
    PUBLIC,
    append,
    make,
    make_key,
    make_minted,
    put_together,
    take_apart,
)

from mintyard.credentials import KeySet, KeyState, Restrictions, Validator, narrow, read
from mintyard.credentials import cache as room
from mintyard.domain.errors import (
    KeySetInvalid,
    KeySetOutdated,
    MintyardError,
    TokenBadSignature,
    TokenExpired,
    TokenKeyDead,
    TokenMalformed,
    TokenNotYetValid,
    TokenRevoked,
    TokenSuspended,
    TokenUnknownKey,
)
from mintyard.domain.ids import is_within
from mintyard.domain.units import NS_PER_S

PARENT = make_minted()
CHILD = narrow(PARENT.token, KEYS, Restrictions(account="acme/vision/ann", jobs=(1,)))


def in_state(state: KeyState, version: int) -> KeySet:
    return KeySet(version, (msgspec.structs.replace(PUBLIC, state=state),))


@pytest.fixture
def count(monkeypatch):
    """How often a token was read from scratch."""
    calls = []

    def counted(token, keys):
        calls.append(token)
        return read(token, keys)

    monkeypatch.setattr(room, "read", counted)
    return calls


def test_the_second_time_is_from_memory_until_its_life_is_over(count):
    validator = Validator(KEYS)
    first = validator.validate(CHILD, NOW)
    assert validator.validate(CHILD, NOW + 300 * NS_PER_S - 1) is first
    assert len(count) == 1
    assert validator.validate(CHILD, NOW + 300 * NS_PER_S) == first
    assert len(count) == 2
    assert validator.misses == 2


def test_a_life_of_zero_remembers_nothing(count):
    validator = Validator(KEYS, life_s=0)
    for _ in range(3):
        validator.validate(CHILD, NOW)
    assert len(count) == 3
    for life in (-1, 301):
        with pytest.raises(ValueError, match="life_s"):
            Validator(KEYS, life_s=life)


def test_the_memory_holds_no_token():
    validator = Validator(KEYS)
    token = make()
    validator.validate(token, NOW)
    with pytest.raises(TokenMalformed):
        validator.validate(token[:-1], NOW)
    held = [bytes(key) for key in (*validator._entries, *validator._refusals)]
    assert {len(key) for key in held} == {32}
    seen, todo = set(), [validator.__dict__]
    while todo:
        thing = todo.pop()
        if id(thing) not in seen and not isinstance(thing, type):
            seen.add(id(thing))
            assert not (isinstance(thing, str | bytes) and len(thing) > 200)
            if type(thing).__module__.startswith(("mintyard", "builtins", "collections")):
                todo += gc.get_referents(thing)
                todo += [getattr(thing, name) for name in getattr(type(thing), "__slots__", ()) or ()]


def test_an_expired_token_is_refused_from_memory_and_costs_nothing(count):
    validator = Validator(KEYS)
    token = make(expires_at=NOW + 10 * NS_PER_S, not_before=NOW)
    validator.validate(token, NOW + 10 * NS_PER_S - 1)
    for _ in range(3):
        with pytest.raises(TokenExpired):
            validator.validate(token, NOW + 10 * NS_PER_S)
    assert len(count) == 1
    with pytest.raises(TokenNotYetValid):
        validator.validate(token, NOW - 1)
    assert validator.validate(token, NOW), "the clock went back"


@pytest.mark.parametrize("known", [True, False])
def test_a_revocation_beats_the_memory_at_once(known):
    validator = Validator(KEYS)
    if known:
        validator.validate(CHILD, NOW)
    validator.revoke([PARENT.block])
    for token in (CHILD, PARENT.token, narrow(CHILD, KEYS, Restrictions(clusters=("x",)))):
        with pytest.raises(TokenRevoked):
            validator.validate(token, NOW)
    assert validator.validate(make(), NOW)


def test_revoking_a_child_spares_its_parent():
    validator = Validator(KEYS)
    validator.validate(CHILD, NOW)
    validator.revoke([read(CHILD, KEYS).blocks[1].block])
    with pytest.raises(TokenRevoked):
        validator.validate(CHILD, NOW)
    assert validator.validate(PARENT.token, NOW)


def test_revoking_a_parent_outside_the_chain_ends_a_job_s_token():
    validator = Validator(KEYS)
    job = make(parents=(PARENT.block,))
    validator.validate(job, NOW)
    validator.suspend(PARENT.block)
    with pytest.raises(TokenSuspended):
        validator.validate(job, NOW)
    validator.revoke([PARENT.block])
    with pytest.raises(TokenRevoked):
        validator.validate(job, NOW)


def test_suspending_and_resuming():
    validator = Validator(KEYS)
    validator.validate(CHILD, NOW)
    validator.suspend(PARENT.block)
    for token in (CHILD, PARENT.token):
        with pytest.raises(TokenSuspended):
            validator.validate(token, NOW)
    validator.resume(PARENT.block)
    validator.resume("no such block")
    assert validator.validate(CHILD, NOW)


def test_an_account_s_epoch_ends_what_was_issued_to_it_and_below_before():
    validator = Validator(KEYS)
    for account, ends in (
        ("acme", True),
        ("acme/vision", True),
        ("/", True),
        ("acme/vision/ann", False),
        ("acme/vis", False),
        ("other", False),
    ):
        validator = Validator(KEYS)
        validator.validate(PARENT.token, NOW)
        validator.revoke_account(account, NOW - 1)
        assert validator.validate(PARENT.token, NOW), "issued later"
        validator.revoke_account(account, NOW)
        validator.revoke_account(account, NOW - 5)  # an older order, late, takes nothing back
        if ends:
            with pytest.raises(TokenRevoked):
                validator.validate(PARENT.token, NOW)
        else:
            assert validator.validate(PARENT.token, NOW)
    validator.revoke_account("acme/vision/ann", NOW)
    with pytest.raises(TokenRevoked):  # ann's narrowed token is ann's
        validator.validate(CHILD, NOW)
    assert validator.validate(make(issued_at=NOW + 1), NOW)


def test_a_dead_key_beats_the_memory_at_once():
    validator = Validator(KEYS)
    validator.validate(CHILD, NOW)
    validator.replace_keys(in_state(KeyState.RETIRING, 2))
    assert validator.validate(CHILD, NOW)
    validator.replace_keys(in_state(KeyState.DEAD, 3))
    with pytest.raises(TokenKeyDead):
        validator.validate(CHILD, NOW)
    validator.replace_keys(KeySet(4, ()))
    with pytest.raises(TokenUnknownKey):
        validator.validate(CHILD, NOW)


def test_an_old_key_set_brings_no_key_back():
    validator = Validator(in_state(KeyState.DEAD, 5))
    for keys in (in_state(KeyState.ACTIVE, 4), in_state(KeyState.ACTIVE, 5)):
        with pytest.raises(KeySetOutdated):
            validator.replace_keys(keys)
    with pytest.raises(KeySetInvalid):
        validator.replace_keys(KeySet(6, (PUBLIC, PUBLIC)))
    validator.replace_keys(in_state(KeyState.DEAD, 5))
    with pytest.raises(TokenKeyDead):
        validator.validate(CHILD, NOW)


def test_refusals_are_remembered_until_the_keys_change(count):
    key, public = make_key()
    validator = Validator(KEYS, cached_refusals=3)
    foreign = make(key=key)
    forged = put_together(take_apart(CHILD), proof=bytes(32))
    hostile = append(CHILD, "check if true")
    for token, error in ((foreign, TokenUnknownKey), (forged, TokenBadSignature), (hostile, TokenMalformed)):
        for _ in range(3):
            with pytest.raises(error):
                validator.validate(token, NOW)
    assert len(count) == 3
    validator.replace_keys(KeySet(2, (PUBLIC, public)))
    assert validator.validate(foreign, NOW)


def test_memory_is_bounded_and_keeps_what_is_used(count):
    validator = Validator(KEYS, cached_tokens=4, cached_refusals=5)
    validator.validate(CHILD, NOW)
    for _ in range(12):
        validator.validate(make(), NOW)
        validator.validate(CHILD, NOW)
        with pytest.raises(TokenMalformed):
            validator.validate(make()[:-1], NOW)
    assert validator.size == (4, 5)
    assert count.count(CHILD) == 1, "what is used often is never dropped"
    none = Validator(KEYS, cached_tokens=0, cached_refusals=0)
    assert none.validate(CHILD, NOW)
    assert none.size == (0, 0)


@pytest.mark.parametrize("text", ["", "x" * 5_000, "mint_\ud800", None, b"mint_", 3, "mint_" + "é" * 50])
def test_what_is_no_token_is_malformed(text):
    validator = Validator(KEYS)
    for _ in range(2):
        with pytest.raises(TokenMalformed):
            validator.validate(text, NOW)


def test_a_snapshot_replaces_all_orders_and_the_feed_never_goes_back():
    validator = Validator(KEYS)
    assert (validator.applied_seq, validator.last_heard_ns) == (0, 0)
    validator.revoke([PARENT.block])
    validator.load(revoked=[], suspended=["x"], epochs={"other": NOW}, seq=7, now=NOW)
    assert validator.validate(CHILD, NOW)
    validator.hear(9, NOW + 5)
    validator.hear(8, NOW + 3)
    assert (validator.applied_seq, validator.last_heard_ns) == (9, NOW + 5)
    assert validator.staleness_ns(NOW + 12) == 7
    assert validator.staleness_ns(NOW) == 0
    validator.load(revoked=[PARENT.block], suspended=[], epochs={}, seq=10, now=NOW + 6)
    with pytest.raises(TokenRevoked):
        validator.validate(CHILD, NOW)
    validator.forget([PARENT.block])
    assert validator.validate(CHILD, NOW)


def test_an_order_that_arrives_during_a_first_reading_binds(monkeypatch):
    validator = Validator(KEYS)

    def slow(token, keys):
        authority = read(token, keys)
        validator.revoke([PARENT.block])
        return authority

    monkeypatch.setattr(room, "read", slow)
    with pytest.raises(TokenRevoked):
        validator.validate(CHILD, NOW)
    assert validator.size == (0, 0)


def test_keys_that_change_during_a_first_reading_bind(monkeypatch):
    validator = Validator(KEYS)

    def slow(token, keys):
        authority = read(token, keys)
        validator.replace_keys(in_state(KeyState.DEAD, 2))
        return authority

    monkeypatch.setattr(room, "read", slow)
    with pytest.raises(TokenKeyDead):
        validator.validate(CHILD, NOW)


def test_many_threads_share_one_validator_and_no_order_is_late():
    validator = Validator(KEYS, cached_tokens=8)
    minted = [make_minted() for _ in range(16)]
    ended: dict[str, bool] = {}
    start = threading.Barrier(9)

    def use(worker: int) -> int:
        start.wait(10)
        refused = 0
        for turn in range(300):
            one = minted[(worker + turn) % len(minted)]
            must_fail = ended.get(one.block, False)
            try:
                authority = validator.validate(one.token, NOW)
            except TokenRevoked:
                refused += 1
            else:
                assert not must_fail, "a token passed after its revocation had returned"
                assert authority.root == one.block
        return refused

    def end() -> None:
        start.wait(10)
        for one in minted[:8]:
            validator.revoke([one.block])
            ended[one.block] = True

    with ThreadPoolExecutor(9) as pool:
        users = [pool.submit(use, worker) for worker in range(8)]
        pool.submit(end).result(60)
        assert sum(user.result(60) for user in users) > 0
    for index, one in enumerate(minted):
        if index < 8:
            with pytest.raises(TokenRevoked):
                validator.validate(one.token, NOW)
        else:
            assert validator.validate(one.token, NOW)


POOL = [
    make_minted(account=account, issued_at=NOW + at) for account in ("acme", "acme/vision") for at in (0, 2)
]
TOKENS = [
    *(one.token for one in POOL),
    narrow(POOL[0].token, KEYS, Restrictions(account="acme/vision", expires_at=NOW + 3 * NS_PER_S)),
    make(parents=(POOL[3].block,), not_before=NOW + NS_PER_S),
]
AUTHORITIES = [read(token, KEYS) for token in TOKENS]
BLOCKS = sorted({block.block for authority in AUTHORITIES for block in authority.blocks})


class AgainstAPlainModel(RuleBasedStateMachine):
    """Any sequence of orders and uses: the caching validator answers as one that looks everything up each time."""

    @initialize()
    def begin(self):
        self.validator = Validator(KEYS, cached_tokens=3)
        self.revoked, self.suspended, self.epochs = set(), set(), {}
        self.state, self.version = KeyState.ACTIVE, 1

    @rule(which=st.sampled_from(range(len(TOKENS))), at=st.integers(0, 310))
    def use(self, which, at):
        now = NOW + at * NS_PER_S
        assert self._outcome(which, now) == self._expected(AUTHORITIES[which], now)

    def _outcome(self, which, now):
        try:
            assert self.validator.validate(TOKENS[which], now) == AUTHORITIES[which]
        except MintyardError as error:
            return type(error)
        return None

    def _expected(self, authority, now):
        """The set of right answers has one member but for expired ones, which may hide other reasons."""
        if self.state is KeyState.DEAD and now < authority.expires_at and now >= authority.not_before:
            return TokenKeyDead
        if now >= authority.expires_at:
            return (
                TokenExpired if self.state is not KeyState.DEAD else self._either(TokenExpired, TokenKeyDead)
            )
        if now < authority.not_before:
            return (
                TokenNotYetValid
                if self.state is not KeyState.DEAD
                else self._either(TokenNotYetValid, TokenKeyDead)
            )
        ids = {block.block for block in authority.blocks} | set(authority.parents)
        if ids & self.revoked or any(
            is_within(authority.account, account) and authority.issued_at <= at
            for account, at in self.epochs.items()
        ):
            return TokenRevoked
        return TokenSuspended if ids & self.suspended else None

    @staticmethod
    def _either(*errors):
        class Either:
            def __eq__(self, other):
                return other in errors

            __hash__ = None

        return Either()

    @rule(block=st.sampled_from(BLOCKS))
    def revoke(self, block):
        self.validator.revoke([block])
        self.revoked.add(block)

    @rule(block=st.sampled_from(BLOCKS))
    def suspend(self, block):
        self.validator.suspend(block)
        self.suspended.add(block)

    @rule(block=st.sampled_from(BLOCKS))
    def resume(self, block):
        self.validator.resume(block)
        self.suspended.discard(block)

    @rule(block=st.sampled_from(BLOCKS))
    def forget(self, block):
        self.validator.forget([block])
        self.revoked.discard(block)
        self.suspended.discard(block)

    @rule(account=st.sampled_from(["acme", "acme/vision", "other", "/"]), at=st.integers(-1, 3))
    def end_account(self, account, at):
        self.validator.revoke_account(account, NOW + at)
        self.epochs[account] = max(self.epochs.get(account, 0), NOW + at)

    @precondition(lambda self: self.version < 6)
    @rule(state=st.sampled_from([KeyState.ACTIVE, KeyState.RETIRING, KeyState.DEAD]))
    def rekey(self, state):
        self.version += 1
        self.state = state
        self.validator.replace_keys(in_state(state, self.version))


TestAgainstAPlainModel = AgainstAPlainModel.TestCase
TestAgainstAPlainModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_material_covers_a_day():
    assert all(authority.expires_at > NOW for authority in AUTHORITIES)
    assert AUTHORITIES[0].expires_at == NOW + DAY
