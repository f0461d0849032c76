"""Bounds and notations shared by the wire types: amounts as decimal strings, instants as RFC 3339 in UTC, bounded numbers.

A client that reads these types knows what it may send before it sends it; OpenAPI takes the same bounds from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from msgspec import Meta

from mintyard.domain import limits
from mintyard.domain.errors import InvalidSpec
from mintyard.domain.units import NS_PER_S, Unit, format_amount, parse_amount

MAX_NUMBER: Final = 2**63 - 1
INSTANT_PATTERN: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$"
)
AMOUNT_PATTERN: Final = r"^[0-9]{1,40}(\.[0-9]{1,20})?$"

AccountId = Annotated[
    str,
    Meta(
        max_length=limits.MAX_ACCOUNT_ID_CHARS,
        pattern=r"^(/|[a-z0-9][a-z0-9._-]{0,62}(/[a-z0-9][a-z0-9._-]{0,62}){0,7})$",
        description="A path of names such as `acme/vision/ann`; `/` is the hub itself.",
        examples=["acme/vision"],
    ),
]
Amount = Annotated[
    str,
    Meta(
        max_length=64,
        pattern=AMOUNT_PATTERN,
        description="A plain decimal string in the unit's own measure, never negative.",
        examples=["12.5"],
    ),
]
AmountOut = Annotated[str, Meta(pattern=r"^-?[0-9]+(\.[0-9]+)?$", examples=["12.5"])]
Instant = Annotated[
    str,
    Meta(
        max_length=40,
        pattern=INSTANT_PATTERN,
        description="An RFC 3339 instant with its zone.",
        examples=["2030-01-31T12:00:00Z"],
        extra_json_schema={"format": "date-time"},
    ),
]
BlockId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$", examples=["0f1e2d3c4b5a69788796a5b4c3d2e1f0"])]
Name = Annotated[str, Meta(max_length=limits.MAX_NAME_CHARS)]
Note = Annotated[str, Meta(max_length=limits.MAX_NAME_CHARS, description="Printable, shown with the thing.")]
Number = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
Priority = Annotated[int, Meta(ge=0, le=limits.MAX_AMOUNT)]
Sequence = Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="A record of the journal.")]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def parse_instant(text: str, field: str) -> int:
    """ns since the epoch for an RFC 3339 instant with its zone, to the ns; `InvalidSpec` for anything else."""
    match = _INSTANT.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1] + match[3])
    except ValueError:
        why = f"{text[:64]!r} is no RFC 3339 instant such as 2030-01-31T12:00:00Z"
        raise InvalidSpec(field=field, why=why) from None
    ns = (moment - _EPOCH) // timedelta(seconds=1) * NS_PER_S + int((match[2] or "0").ljust(9, "0"))
    if not 0 <= ns <= MAX_NUMBER:
        raise InvalidSpec(field=field, why=f"{text[:64]!r} is outside 1970-01-01 to 2262-04-11")
    return ns


def format_instant(ns: int) -> str:
    """RFC 3339 in UTC, with as many digits of the second as it needs, at most nine."""
    seconds, rest = divmod(ns, NS_PER_S)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{rest:09d}".rstrip("0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


def instant_or_none(ns: int | None) -> str | None:
    """The instant for people, None for 0: `never` and `not yet` are absent, not 1970."""
    return format_instant(ns) if ns else None


def parse_amounts(amounts: Mapping[Unit, str]) -> dict[Unit, int]:
    """Smallest units per unit; `InvalidAmount` names the one that doesn't fit."""
    return {unit: parse_amount(text, unit) for unit, text in amounts.items()}


def format_amounts(amounts: Mapping[Unit, int]) -> dict[Unit, str]:
    return {unit: format_amount(amount, unit) for unit, amount in amounts.items()}
