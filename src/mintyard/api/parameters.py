"""Parameters: what a query string and a path may hold, declared once for the decoder and for OpenAPI."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from mintyard.domain.errors import InvalidRequest
from mintyard.domain.limits import DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS
from mintyard.wire.bounds import MAX_NUMBER, parse_instant

MAX_QUERY_CHARS: Final = 4_096
MAX_QUERY_FIELDS: Final = 64


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'gpus'?)` for the known name next to `name`, else nothing."""
    found = difflib.get_close_matches(name[:64], list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""


class Parameter(msgspec.Struct, frozen=True):
    """A query or path parameter. `schema` is its JSON Schema, `read` makes its value of the text or raises
    `ValueError` or a refusal."""

    name: str
    read: Callable[[str], Any]
    schema: dict[str, Any]
    about: str = ""
    default: Any = None
    example: Any = None


def integer(
    name: str, about: str, *, least: int = 0, most: int = MAX_NUMBER, default: int | None = None
) -> Parameter:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Parameter(name, read, schema if default is None else schema | {"default": default}, about, default)


def flag(name: str, about: str) -> Parameter:
    def read(text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError("must be true or false")
        return text == "true"

    return Parameter(name, read, {"type": "boolean", "default": False}, about, False)


def choice(name: str, about: str, values: tuple[str, ...], default: str = "") -> Parameter:
    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"must be one of {', '.join(values)}")
        return text

    schema: dict[str, Any] = {"type": "string", "enum": list(values)}
    return Parameter(name, read, schema | ({"default": default} if default else {}), about, default)


def text(name: str, about: str, *, most: int = 128, pattern: str = "") -> Parameter:
    def read(value: str) -> str:
        if not 1 <= len(value) <= most or not (value.isascii() and value.isprintable()):
            raise ValueError(f"must be 1 to {most} printable ASCII characters")
        return value

    schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": most}
    return Parameter(name, read, schema | {"pattern": pattern or r"^[\x20-\x7e]+$"}, about, "")


def instant(name: str, about: str) -> Parameter:
    return Parameter(
        name,
        lambda value: parse_instant(value, name),
        {"type": "string", "format": "date-time", "maxLength": 40},
        about,
        None,
    )


MIN_SEQ: Final = integer(
    "min_seq", "The answer includes this record of the journal or a later one.", default=0
)
CURSOR: Final = text("cursor", "The `next` of the page before.", most=512, pattern=r"^[A-Za-z0-9_-]+$")
LIMIT: Final = integer("limit", "Rows of a page.", least=1, most=MAX_PAGE_ROWS, default=DEFAULT_PAGE_ROWS)
PAGED: Final = (CURSOR, LIMIT, MIN_SEQ)


def read_query(raw: bytes, declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The values of a query string, defaults filled in. `InvalidRequest` for an unknown, doubled or
    unreadable one."""
    values = {name: parameter.default for name, parameter in declared.items()}
    if not raw:
        return values
    try:
        if len(raw) > MAX_QUERY_CHARS:
            raise ValueError
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_QUERY_FIELDS,
        )
    except ValueError:
        why = f"the query string can't be read (at most {MAX_QUERY_CHARS} ASCII characters of name=value)"
        raise InvalidRequest(why=why) from None
    seen: set[str] = set()
    for name, value in pairs:
        parameter = declared.get(name)
        if parameter is None:
            raise InvalidRequest(why=f"there is no parameter {name[:64]!r}{nearest(name, declared)}")
        if name in seen:
            raise InvalidRequest(why=f"the parameter {name} is given twice")
        seen.add(name)
        values[name] = read_value(parameter, value)
    return values


def read_value(parameter: Parameter, value: str) -> Any:
    try:
        return parameter.read(value)
    except ValueError as error:
        raise InvalidRequest(why=f"{parameter.name} {error}") from None
