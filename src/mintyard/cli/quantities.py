"""Quantities for people: how durations, sizes, instants and amounts look in tables."""

from __future__ import annotations

import time
from datetime import UTC, datetime

_SPANS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def clock(duration_ms: int) -> str:
    """`[D-]H:MM:SS`, as squeue writes it."""
    seconds = duration_ms // 1_000
    days, rest = divmod(seconds, 86_400)
    text = f"{rest // 3_600}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def size(mebibytes: int) -> str:
    """`512M`, `16G`, `1.5T`."""
    for unit, scale in (("T", 1_048_576), ("G", 1_024)):
        if mebibytes >= scale:
            return f"{mebibytes / scale:.3g}{unit}" if mebibytes % scale else f"{mebibytes // scale}{unit}"
    return f"{mebibytes}M"


def count(milli: int) -> str:
    """`2` or `0.5` from thousandths."""
    return str(milli // 1_000) if milli % 1_000 == 0 else f"{milli / 1_000:g}"


def age(instant: str | None, now_s: float | None = None) -> str:
    """How long ago an instant was, in its largest part: `5m`; `-5m` lies ahead."""
    if not instant:
        return ""
    seconds = (time.time() if now_s is None else now_s) - seconds_of(instant)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    for span, unit in _SPANS:
        if seconds >= span:
            return f"{sign}{int(seconds // span)}{unit}"
    return "0s"


def seconds_of(instant: str) -> float:
    """Unix seconds of an RFC 3339 instant."""
    head, _, tail = instant.partition(".")
    if tail:
        digits = tail.rstrip("Z")
        return datetime.fromisoformat(head + "+00:00").timestamp() + float(f"0.{digits}")
    return datetime.fromisoformat(instant.replace("Z", "+00:00")).timestamp()


def moment(instant: str | None) -> str:
    """An instant to the second in this machine's time zone, with its offset."""
    if not instant:
        return ""
    local = datetime.fromtimestamp(int(seconds_of(instant)), UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S %z")


def money(amount: str, digits: int = 6) -> str:
    """An amount for a table, cut to `digits` decimals and marked when something was cut."""
    whole, _, rest = amount.partition(".")
    if len(rest) <= digits:
        return amount
    kept = rest[:digits].rstrip("0")
    if whole == "0" and not kept and rest.strip("0"):
        return f"<0.{'1':0>{digits}}"
    return f"{whole}.{kept}…" if kept else f"{whole}…"
