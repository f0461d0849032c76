"""Our reading of a token against the library's Datalog on the same token and request (T2, T4)."""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.credentials_material import (
    ACCOUNTS,
    AMOUNTS,
    INSTANTS,
    KEYS,
    NAMES,
    NOW,
    PUBLIC,
    RESTRICTIONS,
    append,
    make,
)
from tests.unit.credentials_oracle import Oracle

from mintyard.credentials import read
from mintyard.credentials.envelope import decode_text
from mintyard.credentials.grammar import write_restrictions
from mintyard.domain.errors import TokenMalformed, TooLarge
from mintyard.domain.ids import is_within, parent_of
from mintyard.domain.tokens.authority import ROLES, Authority, Caps, Scope
from mintyard.domain.units import NS_PER_S, Unit


@dataclass
class Request:
    account: str
    scope: Scope
    now: int
    cluster: str
    model: str
    job: int
    caps: Caps
    use: dict[Unit, int] = field(default_factory=dict)

    def facts(self) -> str:
        """The facts that the grammar's docstring asks a verifier to state."""
        import time

        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now // NS_PER_S))
        lines = [f"time({date});", f'operation("{self.scope.value}");', f'cluster("{self.cluster}");']
        lines += [f'model("{self.model}");', f"job({self.job});"]
        lines += [f"{cap}({getattr(self.caps, cap)});" for cap in Caps.__struct_fields__]
        lines += [f'use("{unit.value}", {self.use.get(unit, 0)});' for unit in Unit]
        account = self.account
        while account is not None:
            lines.append(f'account("{account}");')
            account = parent_of(account)
        return "\n".join(lines)


def permits(authority: Authority, request: Request) -> bool:
    """What the hub decides with all counters at zero, written out plainly."""
    return (
        is_within(request.account, authority.account)
        and request.scope in authority.scopes
        and authority.not_before <= request.now < authority.expires_at
        and (authority.clusters is None or request.cluster in authority.clusters)
        and (authority.models is None or request.model in authority.models)
        and (authority.jobs is None or request.job in authority.jobs)
        and all(
            getattr(authority.caps, cap) is None or getattr(request.caps, cap) <= getattr(authority.caps, cap)
            for cap in Caps.__struct_fields__
        )
        and all(
            request.use.get(unit, 0) <= ceiling
            for block in authority.blocks
            for unit, ceiling in block.ceilings.items()
        )
    )


REQUESTS = st.builds(
    Request,
    ACCOUNTS,
    st.sampled_from([Scope.JOB_SUBMIT, Scope.JOB_READ, Scope.GRANT_WRITE]),
    INSTANTS,
    NAMES,
    NAMES,
    st.integers(1, 5),
    st.builds(Caps, AMOUNTS, AMOUNTS, AMOUNTS),
    st.dictionaries(st.sampled_from(list(Unit)), AMOUNTS, max_size=2),
)


@pytest.fixture(scope="module")
def oracle():
    judge = Oracle()
    yield judge
    judge.close()


def _favour(request: Request, authority: Authority, near: bool) -> Request:
    """Half of the requests are moved close to the token's edges, where disagreements would be."""
    if near:
        request.account = authority.account
        request.scope = min(authority.scopes, default=request.scope)
        request.cluster = (authority.clusters or (request.cluster,))[0]
        request.model = (authority.models or (request.model,))[0]
        request.job = (authority.jobs or (request.job,))[0]
        request.caps = Caps(
            *(
                0 if getattr(authority.caps, cap) is None else getattr(authority.caps, cap)
                for cap in Caps.__struct_fields__
            )
        )
        request.use = {
            unit: min(b.ceilings[unit] for b in authority.blocks if unit in b.ceilings)
            for block in authority.blocks
            for unit in block.ceilings
        }
    return request


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(RESTRICTIONS, max_size=3), REQUESTS, st.booleans(), st.booleans())
def test_our_reading_and_datalog_decide_alike(oracle, blocks, request, near, exceed):
    token = make(account="acme", scopes=ROLES["owner"], expires_at=NOW + 2 * NS_PER_S, issued_at=NOW)
    try:
        for block in blocks:
            source = write_restrictions(block)
            token = append(token, source) if source else token
    except TooLarge:
        return
    try:
        authority = read(token, KEYS)
    except TokenMalformed:  # the account moved sideways: nobody can pay
        assert oracle.ask(decode_text(token), PUBLIC.public, request.facts()) == "deny"
        return
    request = _favour(request, authority, near)
    if near and exceed and request.use:
        request.use[min(request.use)] += 1
    expected = "allow" if permits(authority, request) else "deny"
    assert oracle.ask(decode_text(token), PUBLIC.public, request.facts()) == expected


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({}, "allow"),
        ({"account": "acme"}, "deny"),
        ({"account": "acme/vision/ann"}, "allow"),
        ({"account": "acme/visions"}, "deny"),
        ({"scope": Scope.PRICE_WRITE}, "deny"),
        ({"now": NOW + 10 * NS_PER_S}, "deny"),
        ({"now": NOW + 10 * NS_PER_S - 1}, "allow"),
        ({"now": NOW - 1}, "deny"),
        ({"cluster": "b"}, "deny"),
        ({"model": "n"}, "deny"),
        ({"job": 9}, "deny"),
        ({"caps": Caps(5, 0, 0)}, "deny"),
        ({"use": {Unit.GPU: 7}}, "allow"),
        ({"use": {Unit.GPU: 8}}, "deny"),
    ],
)
def test_each_statement_decides_alike(oracle, change, answer):
    token = make(
        not_before=NOW,
        expires_at=NOW + 10 * NS_PER_S,
        clusters=("a",),
        models=("m",),
        jobs=(3,),
        caps=Caps(4, None, None),
        ceilings={Unit.GPU: 7},
    )
    usual = {
        "account": "acme/vision",
        "scope": Scope.JOB_READ,
        "now": NOW,
        "cluster": "a",
        "model": "m",
        "job": 3,
        "caps": Caps(4, 99, 99),
    }
    request = Request(**{**usual, **change})
    assert oracle.ask(decode_text(token), PUBLIC.public, request.facts()) == answer
    assert permits(read(token, KEYS), request) == (answer == "allow")
