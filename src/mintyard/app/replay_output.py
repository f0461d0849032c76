"""What both kinds of `mintyard replay` print: a progress bar, JSON, tables, a plot in a file. Command line only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mintyard.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

Progress = Callable[[int, int], None]
"""Called with what is done and the total."""


def silent(done: int, total: int) -> None:
    return


def check_plot(path: str) -> None:
    """Errors: `InvalidRequest` for a plot that is no SVG; before the long work, not after it."""
    if path and not path.lower().endswith(".svg"):
        raise InvalidRequest(why=f"plot {path!r} is no .svg file; SVG is what there is")


def write_plot(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(why=f"{path!r} can't be written ({error.strerror})") from error


def print_json(value: msgspec.Struct) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_tables(tables: Iterable[RenderableType], plot: str) -> None:
    from rich.console import Console

    console = Console()
    for table in tables:
        console.print(table)
    if plot:
        console.print(f"Plot written to {plot}", markup=False, highlight=False)


@contextmanager
def progress_bar(first: str, then: str, *, quiet: bool = False) -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere: `first` says what is done until the total is known, `then` after it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(first, total=None)
        yield lambda done, total: bar.update(task, description=then, completed=done, total=total)
