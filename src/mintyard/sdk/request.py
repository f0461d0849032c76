"""Request: one call of the REST API as data, the same for both clients. No I/O may enter."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from mintyard.domain.errors import InvalidAmount, InvalidSpec
from mintyard.domain.units import Unit
from mintyard.wire.bounds import AMOUNT_PATTERN

T = TypeVar("T")
API: Final = "/api/v1"
_AMOUNT: Final = re.compile(AMOUNT_PATTERN)
_encoder: Final = msgspec.json.Encoder(order="deterministic")


class Request(Generic[T]):
    """`method` at `target` (path and query) with a JSON `body`. `decode` makes the result of the answer's body. A write carries
    an idempotency `key`, so that it may be sent again."""

    __slots__ = ("answer", "body", "key", "method", "target")

    def __init__(
        self, method: str, target: str, answer: Any, body: bytes | None = None, key: str = ""
    ) -> None:
        self.method = method
        self.target = target
        self.answer = answer
        self.body = body
        self.key = key

    def __repr__(self) -> str:
        return f"Request({self.method} {self.target})"


def get(path: str, answer: type[T], /, **query: Any) -> Request[T]:
    """A read. Query values that are None or empty are left out."""
    return Request("GET", target(path, query), answer)


def post(
    path: str, answer: type[T], body: msgspec.Struct | None = None, /, *, key: str = "", **query: Any
) -> Request[T]:
    return _write("POST", path, answer, body, key, query)


def patch(path: str, answer: type[T], body: msgspec.Struct, /, *, key: str = "") -> Request[T]:
    return _write("PATCH", path, answer, body, key, {})


def _write(
    method: str, path: str, answer: type[T], body: msgspec.Struct | None, key: str, query: Mapping[str, Any]
) -> Request[T]:
    content = _encoder.encode(without_nones(body)) if body is not None else None
    return Request(method, target(path, query), answer, content, key or new_key())


def without_nones(body: msgspec.Struct) -> Any:
    """The struct's fields, those that are None left out: what is not said is not sent."""
    built = msgspec.to_builtins(body)
    return (
        {name: value for name, value in built.items() if value is not None}
        if isinstance(built, dict)
        else built
    )


def target(path: str, query: Mapping[str, Any]) -> str:
    """Path and query string below the API's root."""
    given = {
        name: _text(value) for name, value in query.items() if value is not None and value not in ("", ())
    }
    return f"{API}{path}{'?' if given else ''}{urlencode(given)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return instant(value) or ""
    if not isinstance(value, str) and isinstance(value, Iterable):
        return ",".join(map(str, value))
    return str(value)


def segment(value: object) -> str:
    """`value` as one segment of a path: slashes are escaped, since account ids hold them. `InvalidSpec` when it is empty or
    could be read as another path."""
    text = str(value)
    if text in ("", ".", ".."):
        raise InvalidSpec(field="name", why=f"{text!r} names nothing")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise InvalidSpec(field="name", why="must be plain text") from None


def new_key(now: Callable[[], int] = time.time_ns, offset_ms: int = 0) -> str:
    """A UUIDv7 (RFC 9562): 48 bits of Unix milliseconds (the clock's plus `offset_ms`), the rest random."""
    raw = bytearray((now() // 1_000_000 + offset_ms).to_bytes(6, "big") + secrets.token_bytes(10))
    raw[6] = raw[6] & 0x0F | 0x70
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def amount(value: str | int | float | Decimal, unit: Unit | str = "") -> str:
    """The decimal string of an amount. Floats are taken by their shortest text; `InvalidAmount` for what isn't a plain one."""
    if isinstance(value, str):
        return _plain(value, unit)
    number = Decimal(str(value)) if isinstance(value, float) else value
    if isinstance(value, bool) or not isinstance(number, int | Decimal):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidAmount(text=str(value)[:64], unit=str(unit), why="not a number")
    if isinstance(number, Decimal) and not number.is_finite():
        raise InvalidAmount(text=str(value), unit=str(unit), why="not finite")
    return _plain(format(number, "f") if isinstance(number, Decimal) else str(number), unit)


def _plain(text: str, unit: Unit | str) -> str:
    """What the API takes as an amount; how fine and how large it may be, the hub knows."""
    if _AMOUNT.fullmatch(text) is None:
        why = "negative" if text.startswith("-") else "not a plain decimal number"
        raise InvalidAmount(text=text[:64], unit=str(unit) or "any unit", why=why)
    return text


def amounts(values: Mapping[Any, str | int | float | Decimal]) -> dict[Unit, str]:
    """Decimal strings by unit; `InvalidSpec` for a unit that there isn't."""
    made: dict[Unit, str] = {}
    for name, value in values.items():
        try:
            unit = Unit(name)
        except ValueError:
            known = ", ".join(Unit)
            raise InvalidSpec(field="unit", why=f"{str(name)[:40]!r} is no unit; there are {known}") from None
        made[unit] = amount(value, unit)
    return made


def instant(value: str | datetime | None, field: str = "instant") -> str | None:
    """RFC 3339 of an aware `datetime`; text is sent as it is."""
    if value is None or isinstance(value, str):
        return value or None
    if value.tzinfo is None:
        raise InvalidSpec(field=field, why="has no time zone")
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
