"""Whatever a holder appends, the rights only shrink; what is written is what is read (T4)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.credentials_material import KEYS, NOW, RESTRICTIONS, append, make

from mintyard.credentials import Origin, Restrictions, narrow, read
from mintyard.credentials.grammar import intersect, read_block, widening, write_origin, write_restrictions
from mintyard.domain.errors import TokenMalformed, TooLarge, Widening
from mintyard.domain.ids import is_within
from mintyard.domain.tokens.authority import ROLES, Authority, Caps, Scope
from mintyard.domain.units import NS_PER_S

ROOTS = RESTRICTIONS.map(
    lambda r: msgspec.structs.replace(
        r,
        account=r.account or "acme",
        scopes=r.scopes or frozenset(ROLES["member"]),
        expires_at=(r.expires_at or NOW) // NS_PER_S * NS_PER_S,
    )
)
ORIGIN = Origin("00" * 16, NOW)


def _at_most(mine, theirs) -> bool:
    """Whether the allow-list or cap `mine` is within `theirs`; None allows any."""
    if theirs is None:
        return True
    if mine is None:
        return False
    return mine <= theirs if isinstance(mine, int) else set(mine) <= set(theirs)


def assert_within(child: Authority, parent: Authority) -> None:
    assert is_within(child.account, parent.account)
    assert child.scopes <= parent.scopes
    assert child.expires_at <= parent.expires_at
    assert child.not_before >= parent.not_before
    for cap in Caps.__struct_fields__:
        assert _at_most(getattr(child.caps, cap), getattr(parent.caps, cap))
    for name in ("clusters", "models", "jobs"):
        assert _at_most(getattr(child, name), getattr(parent, name))
    assert child.blocks[: len(parent.blocks)] == parent.blocks, "no counter of the parent is lost or renamed"
    assert (child.issued_at, child.parents, child.key) == (parent.issued_at, parent.parents, parent.key)


def assert_apart(one: str | None, other: str) -> None:
    assert one is not None
    assert not is_within(one, other)
    assert not is_within(other, one)


def test_naming_an_account_above_changes_nothing():
    token = append(make(account="acme/vision"), 'check if account("acme")')
    assert read(token, KEYS).account == "acme/vision"


@pytest.mark.slow
@given(ROOTS, st.lists(RESTRICTIONS, max_size=7))
def test_each_block_can_only_take_away(root, appended):
    ids = [f"{i:032x}" for i in range(8)]
    chain = [root]
    before = intersect(ORIGIN, chain, ids, "k")
    for block in appended:
        chain.append(block)
        try:
            after = intersect(ORIGIN, chain, ids, "k")
        except TokenMalformed:
            assert_apart(block.account, before.account)
            return
        assert_within(after, before)
        before = after


@pytest.mark.slow
@given(RESTRICTIONS)
def test_whatever_is_appended_by_hand_the_signed_token_only_shrinks(block):
    parent = make(caps=Caps(5, 5), clusters=("alpha", "beta"), jobs=(1, 2, 3))
    source = write_restrictions(block)
    if not source:
        return
    before = read(parent, KEYS)
    try:
        after = read(append(parent, source), KEYS)
    except TokenMalformed:
        assert_apart(block.account, before.account)
    except TooLarge:
        pass
    else:
        assert_within(after, before)


@pytest.mark.slow
@given(RESTRICTIONS)
def test_narrow_agrees_with_widening_and_shrinks(block):
    parent = make(caps=Caps(5, 5), clusters=("alpha", "beta"), jobs=(1, 2, 3))
    before = read(parent, KEYS)
    if not write_restrictions(block):
        return
    rounded = msgspec.structs.replace(
        block, expires_at=block.expires_at and block.expires_at // NS_PER_S * NS_PER_S
    )
    if widening(before, rounded):
        with pytest.raises(Widening):
            narrow(parent, KEYS, block)
    else:
        assert_within(read(narrow(parent, KEYS, block), KEYS), before)


@given(RESTRICTIONS)
def test_what_is_written_is_what_is_read(block):
    # The library prints a block as it was written, one statement a line.
    end, start = block.expires_at, block.not_before
    expected = msgspec.structs.replace(
        block,
        expires_at=None if end is None else end // NS_PER_S * NS_PER_S,
        not_before=None if start is None else -(-start // NS_PER_S) * NS_PER_S,
        clusters=block.clusters and tuple(sorted(block.clusters)),
        models=block.models and tuple(sorted(block.models)),
        jobs=block.jobs and tuple(sorted(block.jobs)),
    )
    source = write_restrictions(block)
    assert read_block(source, first=False) == (expected, None)
    # Its statements are those of a first block as well, which has facts besides.
    if None not in (block.account, block.scopes, end):
        origin = Origin("ab" * 16, NOW + 123, ("cd" * 16, "ef" * 16))
        assert read_block(f"{write_origin(origin)}\n{source}", first=True) == (expected, origin)


@given(st.text(max_size=200))
def test_any_other_text_is_refused(text):
    if text.splitlines():
        with pytest.raises(TokenMalformed):
            read_block(text, first=False)


@given(RESTRICTIONS, st.data())
def test_no_altered_statement_means_the_same(block, data):
    source = write_restrictions(block)
    if not source:
        return
    at = data.draw(st.integers(0, len(source) - 1))
    altered = source[:at] + data.draw(st.sampled_from(list(' "$(){}<>=,;.\n0aé-!|'))) + source[at + 1 :]
    try:
        restrictions, _ = read_block(altered, first=False)
    except TokenMalformed:
        return
    assert (restrictions == read_block(source, first=False)[0]) == (altered == source)


def test_every_scope_and_cap_has_a_statement():
    scopes = frozenset(Scope)
    block = Restrictions(scopes=scopes, caps=Caps(1, 2, 3))
    assert read_block(write_restrictions(block), first=False)[0] == block
