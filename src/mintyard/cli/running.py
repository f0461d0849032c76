"""Running: one command line from its words to its exit status; every error becomes a message and a status here."""

from __future__ import annotations

import difflib
import os
import sys

from cyclopts import CycloptsError, UnknownCommandError

from mintyard.cli.application import application
from mintyard.cli.problems import asks_json, report
from mintyard.cli.work import TAIL
from mintyard.domain.errors import Exit, ExtraMissing, MintyardError, UsageInvalid

INTERRUPTED = 130
PIPE_CLOSED = 141
_TAKE_TAIL = (("job", "submit"), ("quote",))
_SERVER_HALF = frozenset(
    {
        "alembic", "httptools", "litestar", "numba", "numpy", "prometheus_client", "psutil", "psycopg", "sqlalchemy",
        "structlog", "uvicorn", "uvloop",
    }
)  # fmt: skip


def run(words: list[str]) -> int:
    """The exit status of the command line `words`."""
    json = asks_json(words)
    command = ["mintyard", *(word for word in words[:2] if not word.startswith("-"))]
    try:
        head, tail = _cut(words)
        token = TAIL.set(tail)
        try:
            status = _call(head)
        finally:
            TAIL.reset(token)
        sys.stdout.flush()
        return status
    except MintyardError as error:
        return report(error, json=json)
    except CycloptsError as error:
        return report(usage(error, command), json=json)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _SERVER_HALF:
            raise
        return report(ExtraMissing(command=" ".join(command), module=missing), json=json)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone; what is still buffered must not fail again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def usage(error: CycloptsError, command: list[str]) -> UsageInvalid:
    """What the parser didn't like, as our own error. The parser names eight commands at most, and none that is like it."""
    if isinstance(error, UnknownCommandError) and error.unused_tokens and error.app is not None:
        word = error.unused_tokens[0]
        known = [name for name in error.app if not name.startswith("-")]
        likely = difflib.get_close_matches(word, known, 1)
        hint = f"the nearest is {likely[0]}" if likely else "there are " + ", ".join(known)
        above = command[: command.index(word)] if word in command else command[:1]
        return UsageInvalid(why=f'Unknown command "{word}"; {hint}', command=" ".join(above))
    why = " ".join(str(error).split()).rstrip(".")
    return UsageInvalid(why=why, command=" ".join(command))


def _cut(words: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """The command line up to `--` and what follows, where a command takes that; else as it is."""
    if "--" in words and any(tuple(words[: len(noun)]) == noun for noun in _TAKE_TAIL):
        at = words.index("--")
        return words[:at], tuple(words[at + 1 :])
    return words, None


def _call(head: list[str]) -> int:
    result = application()(head, exit_on_error=False, print_error=False)
    return int(result) if isinstance(result, int) else int(Exit.OK)
