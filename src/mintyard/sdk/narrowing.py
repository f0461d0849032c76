"""Narrowing: restrictions as people write them, in the integers of `credentials`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from mintyard.credentials import Restrictions
from mintyard.domain.errors import InvalidSpec
from mintyard.domain.limits import MAX_TOKEN_LIFE_DAYS
from mintyard.domain.tokens.authority import ROLES, Caps, Scope
from mintyard.domain.units import NS_PER_S
from mintyard.sdk.request import amounts, instant
from mintyard.wire.bounds import parse_amounts, parse_instant


def milli(value: str | int | float | Decimal | None, field: str) -> int | None:
    """Thousandths of a count such as 2, 0.5 or "0.5"; exact."""
    if value is None:
        return None
    try:
        number = Decimal(str(value)) * 1_000
        exact = not isinstance(value, bool) and number.is_finite() and number >= 0 and number == int(number)
    except (InvalidOperation, ValueError, OverflowError):
        exact, number = False, Decimal(0)
    if not exact or number > 2**53:
        raise InvalidSpec(field=field, why=f"{str(value)[:40]!r} is no count such as 2 or 0.5")
    return int(number)


def life_seconds(life: str | float | timedelta) -> int:
    """Whole seconds of a life written as `"12h"`, in seconds, or as a `timedelta`."""
    from mintyard.wire.quantities import parse_duration

    if isinstance(life, str):
        return max(1, parse_duration(life, "life", 1_000, MAX_TOKEN_LIFE_DAYS * 86_400_000) // 1_000)
    seconds = life.total_seconds() if isinstance(life, timedelta) else life
    if (
        isinstance(life, bool)
        or not isinstance(seconds, int | float)
        or not 1 <= seconds <= MAX_TOKEN_LIFE_DAYS * 86_400
    ):
        raise InvalidSpec(
            field="life", why=f"is {life}; at least a second, at most {MAX_TOKEN_LIFE_DAYS} days"
        )
    return int(seconds)


def restrictions(
    *,
    account: str | None = None,
    role: str | None = None,
    scopes: Iterable[Scope | str] | None = None,
    life: str | float | timedelta | None = None,
    expires_at: str | datetime | None = None,
    not_before: str | datetime | None = None,
    ceilings: Mapping[Any, Any] | None = None,
    gpus: Any = None,
    cpus: Any = None,
    memory: str | None = None,
    clusters: Iterable[str] | None = None,
    models: Iterable[str] | None = None,
    jobs: Iterable[int] | None = None,
    now_ns: int | None = None,
) -> Restrictions:
    """What a narrowed token is to be limited to. Errors: `InvalidSpec`, `InvalidAmount` name the field."""
    from mintyard.wire.quantities import parse_memory

    if life is not None and expires_at is not None:
        raise InvalidSpec(field="life", why="and expires_at both say when it ends; give one")
    ends_at = None
    if life is not None:
        ends_at = (time.time_ns() if now_ns is None else now_ns) + life_seconds(life) * NS_PER_S
    elif (text := instant(expires_at, "expires_at")) is not None:
        ends_at = parse_instant(text, "expires_at")
    starts = instant(not_before, "not_before")
    return Restrictions(
        account=account,
        scopes=_scopes(role, scopes),
        expires_at=ends_at,
        not_before=parse_instant(starts, "not_before") if starts else None,
        caps=Caps(
            milli(gpus, "gpus"),
            milli(cpus, "cpus"),
            None if memory is None else parse_memory(memory, "memory"),
        ),
        ceilings=parse_amounts(amounts(ceilings or {})),
        clusters=None if clusters is None else tuple(clusters),
        models=None if models is None else tuple(models),
        jobs=None if jobs is None else tuple(jobs),
    )


def _scopes(role: str | None, scopes: Iterable[Scope | str] | None) -> frozenset[Scope] | None:
    if role is not None and scopes is not None:
        raise InvalidSpec(field="role", why="is a set of scopes; give role or scopes")
    if role is not None:
        if role not in ROLES:
            raise InvalidSpec(field="role", why=f"{role[:40]!r} is none of {', '.join(ROLES)}")
        return frozenset(ROLES[role])
    try:
        return None if scopes is None else frozenset(Scope(scope) for scope in scopes)
    except ValueError as error:
        raise InvalidSpec(field="scopes", why=f"{error}; there are {', '.join(Scope)}") from None
