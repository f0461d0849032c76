"""Asking: small readers of what people type - instants from now on, UNIT=AMOUNT pairs, files to write."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from mintyard.domain.errors import FileUnreadable, InvalidSpec


def since_now(text: str, field: str) -> str | None:
    """RFC 3339 for an instant, or for a span from now such as `30d`; None for nothing."""
    if not text:
        return None
    if text[0].isdigit() and text[-1:] in "smhd" and "T" not in text:
        from mintyard.wire.quantities import parse_duration

        ends_s = time.time() + parse_duration(text, field, highest_ms=100 * 366 * 86_400_000) / 1_000
        return datetime.fromtimestamp(int(ends_s), UTC).isoformat().replace("+00:00", "Z")
    from mintyard.wire.instants import parse_begin

    return parse_begin(text, time.time_ns(), field) or None


def amounts_of(parts: Sequence[str], field: str) -> dict[str, str]:
    """`UNIT=AMOUNT` words; a bare amount is money. Errors: `InvalidSpec`, `InvalidAmount`."""
    found: dict[str, str] = {}
    for part in parts:
        unit, equals, value = part.rpartition("=")
        unit = unit if equals else "money"
        if not value or not unit or unit in found:
            raise InvalidSpec(field=field, why=f"{part[:40]!r} is not UNIT=AMOUNT, each unit once")
        found[unit] = value
    from mintyard.sdk.request import amounts
    from mintyard.wire.bounds import parse_amounts

    parse_amounts(amounts(found))
    return found


def confirm_file(path: str) -> None:
    """Make sure, before something is made that is shown only once, that `path` can be written and does not exist."""
    if not path or path == "-":
        return
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.exists(path):
        raise InvalidSpec(field="--token-file", why=f"{path[:200]} exists already; nothing is overwritten")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise FileUnreadable(path=folder, why="nothing can be written there")


def write_secret(path: str, text: str) -> None:
    """Write a secret where only its owner reads it; never over an existing file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text + "\n")
