"""Charts: lines over time as an SVG file, in panels one below the other that share the time axis.

Text, numbers and rectangles only: no library, no font of its own, no script. What is drawn comes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

import msgspec

WIDTH: Final = 960
PANEL_HEIGHT: Final = 250
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 76, 24, 92, 56, 56
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#8a5a9e", "#555555")
"""Told apart also by those who see few colours (Okabe and Ito)."""
_MAX_POINTS: Final = 1_000
_TIME_UNITS: Final = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1_000))
_FONT: Final = "font-family='system-ui, sans-serif'"


class Line(msgspec.Struct, frozen=True):
    """One value for each of equal stretches of time."""

    name: str
    values: Sequence[float]


class Panel(msgspec.Struct, frozen=True):
    """Lines with one scale from 0 to the first round number that none passes, at least 1. `unit` stands at the axis."""

    title: str
    unit: str
    lines: Sequence[Line]


def clean(text: str) -> str:
    """`text` without characters that XML or a terminal can't show."""
    return "".join(c if c.isprintable() else "?" for c in text)


def averages(at: Sequence[int], values: Sequence[int], start: int, end: int, buckets: int) -> list[float]:
    """Time-weighted averages of a step function over `buckets` equal parts of [start, end].

    `values[i]` holds from `at[i]` (ascending) on; before `at[0]` it is 0."""
    if end <= start or buckets < 1:
        return [float(values[-1]) if values else 0.0] * max(buckets, 0)
    sums = [0.0] * buckets
    width = (end - start) / buckets
    for index, value in enumerate(values):
        since = max(at[index], start)
        until = min(at[index + 1] if index + 1 < len(at) else end, end)
        if until <= since or value == 0:
            continue
        first = min(int((since - start) / width), buckets - 1)
        last = min(int((until - start) / width), buckets - 1)
        for bucket in range(first, last + 1):
            low = max(since, start + bucket * width)
            high = min(until, start + (bucket + 1) * width)
            sums[bucket] += value * max(high - low, 0.0)
    return [total / width for total in sums]


def steps(most: float, about: int = 5) -> list[float]:
    """Round numbers from 0 up to the first that is not below `most`, about so many."""
    if not most > 0:
        return [0.0, 1.0]
    raw = most / about
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [number * step for number in range(ceil(most / step * 0.9999) + 1)]


def time_unit(length_ms: int) -> tuple[str, int]:
    """Name and length (ms) of the largest unit of which there are at least three."""
    return next(((name, ms) for name, ms in _TIME_UNITS if length_ms >= 3 * ms), _TIME_UNITS[-1])


def svg(title: str, subtitle: str, length_ms: int, panels: Sequence[Panel]) -> str:
    """The whole picture; every line spans `length_ms`. More than 1,000 points a line is a `ValueError`."""
    if any(len(line.values) > _MAX_POINTS for panel in panels for line in panel.lines):
        raise ValueError(f"a line has more than {_MAX_POINTS} points")
    height = _TOP + len(panels) * (PANEL_HEIGHT + _GAP) - _GAP + _BOTTOM
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' role='img'>",
        f"<title>{escape(clean(title))}</title>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
        _text(_LEFT, 28, title, size=18, weight="600"),
        _text(_LEFT, 48, subtitle, size=12, fill="#555555"),
    ]
    for number, panel in enumerate(panels):
        top = _TOP + number * (PANEL_HEIGHT + _GAP)
        parts += _panel(panel, top, length_ms, last=number == len(panels) - 1)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, top: int, length_ms: int, last: bool) -> list[str]:
    bottom, width = top + PANEL_HEIGHT, WIDTH - _LEFT - _RIGHT
    largest = max((value for line in panel.lines for value in line.values), default=0.0)
    marks = steps(max(largest, 1.0))
    most = marks[-1]
    unit, unit_ms = time_unit(length_ms)
    parts = [_text(_LEFT, top - 8, panel.title, size=13, weight="600")]
    for mark in marks:
        y = bottom - mark / most * PANEL_HEIGHT
        parts.append(
            f"<line x1='{_LEFT}' x2='{_LEFT + width}' y1='{y:.1f}' y2='{y:.1f}' stroke='#e3e3e3' stroke-width='1'/>"
        )
        parts.append(_text(_LEFT - 8, y + 4, _number(mark), size=11, anchor="end", fill="#555555"))
    for mark in steps(length_ms / unit_ms, 8):
        if mark * unit_ms > length_ms * 1.0001:
            break
        x = _LEFT + (mark * unit_ms / length_ms if length_ms else 0) * width
        parts.append(
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{bottom}' y2='{bottom + 5}' stroke='#555555' stroke-width='1'/>"
        )
        parts.append(_text(x, bottom + 19, _number(mark), size=11, anchor="middle", fill="#555555"))
    parts.append(
        f"<path d='M{_LEFT} {top}V{bottom}H{_LEFT + width}' fill='none' stroke='#555555' stroke-width='1'/>"
    )
    middle = (top + bottom) / 2
    parts.append(
        f"<text x='20' y='{middle:.1f}' {_FONT} font-size='12' fill='#333333' text-anchor='middle' "
        f"transform='rotate(-90 20 {middle:.1f})'>{escape(clean(panel.unit))}</text>"
    )
    if last:
        parts.append(
            _text(_LEFT + width / 2, bottom + 42, f"time since the first arrival ({unit})", anchor="middle")
        )
    for number, line in enumerate(panel.lines):
        parts.append(_curve(line.values, COLOURS[number % len(COLOURS)], bottom, width, most))
    if len(panel.lines) > 1:
        parts += _legend(panel.lines, top)
    return parts


def _curve(values: Sequence[float], colour: str, bottom: int, width: int, most: float) -> str:
    """A line of steps: each value over its stretch."""
    points: list[str] = []
    each = width / max(len(values), 1)
    for index, value in enumerate(values):
        y = bottom - min(value / most, 1.0) * PANEL_HEIGHT
        x = _LEFT + index * each
        points.append(f"{'M' if index == 0 else 'L'}{x:.1f} {y:.1f}H{x + each:.1f}")
    return f"<path d='{''.join(points)}' fill='none' stroke='{colour}' stroke-width='1.6' stroke-linejoin='round'/>"


def _legend(lines: Sequence[Line], top: int) -> list[str]:
    """Right-aligned above the panel."""
    parts: list[str] = []
    x = WIDTH - _RIGHT
    for number in range(len(lines) - 1, -1, -1):
        name = lines[number].name
        x -= round(8 * len(name))
        parts.append(_text(x, top - 8, name, size=12))
        x -= 24
        parts.append(
            f"<line x1='{x}' x2='{x + 18}' y1='{top - 12}' y2='{top - 12}' "
            f"stroke='{COLOURS[number % len(COLOURS)]}' stroke-width='3'/>"
        )
        x -= 16
    return parts


def _text(
    x: float,
    y: float,
    text: str,
    size: int = 12,
    anchor: str = "start",
    fill: str = "#222222",
    weight: str = "400",
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {_FONT} font-size='{size}' font-weight='{weight}' fill='{fill}' "
        f"text-anchor='{anchor}'>{escape(clean(text))}</text>"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"
