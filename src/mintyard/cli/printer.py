"""Printer: answers on stdout as table or JSON, remarks on stderr, colours only on a terminal (NO_COLOR, no-color.org)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any

import msgspec

from mintyard.cli.tables import Column, lay_out, pairs, plain

_STATES = {
    "running": "32", "succeeded": "32", "active": "32", "ready": "32", "ok": "32", "held": "33", "pending": "33",
    "blocked": "33", "starting": "36", "stopping": "36", "draining": "33", "cordoned": "33", "lost_cordoned": "31",
    "failed": "31", "timed_out": "31", "lost": "31", "revoked": "31", "suspended": "33", "cancelled": "90",
    "skipped": "90", "expired": "90", "warning": "33",
}  # fmt: skip


def colours_on(stream: IO[str]) -> bool:
    """Whether `stream` takes colours: a terminal that isn't dumb, and nobody has said no."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def state_style(state: str) -> str:
    """The colour of a state, as an SGR parameter."""
    return _STATES.get(state, "")


class Printer:
    """Writes what a command found in the form that was asked for."""

    def __init__(self, *, json: bool = False, headers: bool = True, quiet: bool = False) -> None:
        self.is_json = json
        self.quiet = quiet
        self._headers = headers

    def table(
        self,
        items: Sequence[Any],
        columns: Sequence[Column],
        *,
        headers: bool | None = None,
        least: list[int] | None = None,
    ) -> None:
        """Rows for people; nothing at all is said as such, on stderr."""
        if not items and headers is None:
            self.remark("none found")
            return
        shown = self._headers if headers is None else headers and self._headers
        cells = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for line in lay_out(
            items, columns, headers=shown, cells=cells, colours=colours_on(sys.stdout), least=least
        ):
            self.line(line)

    def pairs(self, values: Iterable[tuple[str, str]]) -> None:
        for line in pairs(values):
            self.line(line)

    def json(self, value: Any) -> None:
        """`value` as JSON: indented on a terminal and alike in a file, so that it can be compared."""
        self.line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())

    def json_line(self, value: Any) -> None:
        """One line of JSON, for streams."""
        self.line(msgspec.json.encode(value).decode(), flush=True)

    def line(self, text: str = "", *, flush: bool = False) -> None:
        print(text, flush=flush)

    def remark(self, text: str) -> None:
        """A remark that is no result: on stderr, not with --quiet."""
        if not self.quiet:
            sys.stdout.flush()
            print(plain(text), file=sys.stderr, flush=True)
