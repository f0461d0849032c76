"""Watching: a list, and then each row that changes, as `kubectl get -w` shows them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from mintyard.cli.printer import Printer
from mintyard.cli.tables import Column
from mintyard.domain.errors import Exit

LOOK_S = 1.0


def follow(
    printer: Printer,
    first: Sequence[Any],
    fetch: Callable[[], Iterable[Any]],
    columns: Sequence[Column],
    *,
    key: Callable[[Any], Hashable],
    looks: int | None = None,
) -> int:
    """Print `first`, then what `fetch` finds changed, each second, until Ctrl-C (or `looks` times). In JSON one line a row."""
    known: dict[Hashable, tuple[str, ...]] = {}
    rows: Iterable[Any] = first
    headers = True
    least: list[int] = []
    done = 0
    try:
        while True:
            changed: list[Any] = []
            for item in rows:
                told = tuple(column.show(item) for column in columns if column.title != "AGE")
                if known.get(key(item)) != told:
                    known[key(item)] = told
                    changed.append(item)
            _show(printer, changed, columns, headers, least)
            headers = False
            if looks is not None and done >= looks:
                return Exit.OK
            done += 1
            time.sleep(LOOK_S)
            rows = fetch()
    except KeyboardInterrupt:
        return 130


def _show(
    printer: Printer, items: list[Any], columns: Sequence[Column], headers: bool, least: list[int]
) -> None:
    if printer.is_json:
        for item in items:
            printer.json_line(item)
    elif printer.quiet:
        for item in items:
            printer.line(columns[0].show(item), flush=True)
    elif items or headers:
        printer.table(items, columns, headers=headers, least=least)
        sys.stdout.flush()
