"""Problems on the command line: one line says what is wrong, one what to try; the exit status follows from the error class."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import msgspec

from mintyard.cli.printer import colours_on
from mintyard.cli.tables import plain
from mintyard.domain.errors import MintyardError


def asks_json(arguments: Sequence[str]) -> bool:
    """Whether the words ask for JSON, as far as can be told before they are parsed."""
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    follows = any(
        first in ("-o", "--output") and second == "json" for first, second in itertools.pairwise(words)
    )
    return follows or any(word in ("--json", "-ojson", "-o=json", "--output=json") for word in words)


def report(error: MintyardError, *, json: bool) -> int:
    """Write `error` to stderr, as text or as a problem object; its exit status."""
    sys.stdout.flush()
    if json:
        from mintyard.wire.problems import details_of

        text = msgspec.json.format(msgspec.json.encode(details_of(error)), indent=2).decode()
    else:
        text = _for_people(error)
    print(text, file=sys.stderr, flush=True)
    return int(error.exit_status)


def _for_people(error: MintyardError) -> str:
    bold, end = ("\x1b[31;1m", "\x1b[0m") if colours_on(sys.stderr) else ("", "")
    lines = [f"{bold}error:{end} {plain(str(error))} [{error.code}]"]
    cure = plain(error.cure)
    if cure and cure != "?":
        lines.append(f"try: {cure}")
    return "\n".join(lines)
