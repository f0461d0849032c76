"""Tables: rows of text in aligned columns, as wide as terminals count, safe against what names may hold. No I/O may enter."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

GAP: Final = "  "
_MIN_CELL: Final = 8


class Column(msgspec.Struct, frozen=True):
    """`show` gives an item's text; `right` aligns numbers; `flexible` columns give way where a terminal is narrow."""

    title: str
    show: Callable[[Any], str]
    right: bool = False
    flexible: bool = False
    style: Callable[[Any], str] | None = None


def plain(text: str) -> str:
    """`text` on one line with nothing a terminal would obey: controls and invisible characters are spelled out."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )


def width(text: str) -> int:
    """Terminal cells of printable `text`: wide East Asian characters take two, combining ones none (UAX #11)."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def shorten(text: str, cells: int) -> str:
    """`text` cut to at most `cells`, with an ellipsis where something is missing."""
    if width(text) <= cells:
        return text
    kept, used = "", 1
    for c in text:
        used += width(c)
        if used > cells:
            break
        kept += c
    return kept + "…"


def lay_out(
    items: Iterable[Any],
    columns: Sequence[Column],
    *,
    headers: bool = True,
    cells: int | None = None,
    colours: bool = False,
    least: list[int] | None = None,
) -> list[str]:
    """The lines of a table. `cells` is the terminal's width, None for no limit; with `colours`, styles are applied. `least` holds
    the columns' widths from table to table, so that later rows stand under earlier ones."""
    kept = list(items)
    texts = [[plain(column.show(item)) for column in columns] for item in kept]
    titles = [column.title for column in columns]
    rows = ([titles] if headers else []) + texts
    if not rows:
        return []
    widths = [max(width(row[at]) for row in rows) for at in range(len(columns))]
    if least is not None:
        widths = [max(pair) for pair in zip(widths, least or widths, strict=True)]
        least[:] = widths
    if cells is not None:
        _shrink(widths, columns, cells)
    lines: list[str] = []
    for number, row in enumerate(rows):
        item = None if headers and number == 0 else kept[number - headers]
        lines.append(_line(row, columns, widths, item, colours))
    return lines


def _shrink(widths: list[int], columns: Sequence[Column], cells: int) -> None:
    """Take what is too much from the widest flexible columns."""
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - cells
    while excess > 0:
        at = max(
            (at for at, column in enumerate(columns) if column.flexible),
            key=lambda at: widths[at],
            default=-1,
        )
        if at < 0 or widths[at] <= _MIN_CELL:
            return
        cut = min(excess, widths[at] - _MIN_CELL)
        others = [widths[other] for other, column in enumerate(columns) if column.flexible and other != at]
        if others:
            cut = min(cut, max(1, widths[at] - max(max(others), _MIN_CELL)))
        widths[at] -= cut
        excess -= cut


def _line(row: list[str], columns: Sequence[Column], widths: list[int], item: Any, colours: bool) -> str:
    parts: list[str] = []
    for at, column in enumerate(columns):
        text = shorten(row[at], widths[at])
        space = " " * (widths[at] - width(text))
        style = column.style(item) if colours and item is not None and column.style else ""
        text = f"\x1b[{style}m{text}\x1b[0m" if style else text
        parts.append(space + text if column.right else text + space)
    return GAP.join(parts).rstrip(" ")


def pairs(values: Iterable[tuple[str, str]]) -> list[str]:
    """`name: value` lines, values aligned; empty values are left out."""
    kept = [(name, plain(value)) for name, value in values if value]
    longest = max((width(name) for name, _ in kept), default=0)
    return [f"{name}:{' ' * (longest - width(name) + 1)}{value}" for name, value in kept]
