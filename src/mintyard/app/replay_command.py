"""`mintyard replay --journal`: a recorded journal decided again, alike or under another policy. Command line only."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from mintyard.app import replay_comparison as comparison
from mintyard.app.journal import stream
from mintyard.app.journal_store import open_store
from mintyard.app.replay_otherwise import Change
from mintyard.app.replay_world import read_world, text_of
from mintyard.app.warmup import warm_up
from mintyard.domain.errors import Exit, InvalidRequest, NotFound
from mintyard.domain.snapshot import state_hash
from mintyard.ports.store import Store

Progress = Callable[[int, int], None]
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:")


class Alike(msgspec.Struct, frozen=True):
    """A journal whose inputs decide the same events again."""

    records: int
    jobs: int
    state_hash: str
    rules: dict[str, int]


@contextmanager
def opened(place: str) -> Iterator[Store]:
    """The journal in a hub's folder, in a file, or at a store's URL, to read from. Errors: `NotFound`, those of the store."""
    if _SCHEME.match(place) is None:
        path = Path(place).expanduser().absolute()
        path = path / "journal" / "journal.db" if path.is_dir() else path
        if not path.is_file():
            raise NotFound(what="journal", name=str(path))
        place = f"sqlite:///{path}"
    store = open_store(place)
    try:
        if store.head() is None:
            raise InvalidRequest(why="the journal has no record yet")
        yield store
    finally:
        store.close()


def replay_alike(place: str) -> Alike:
    """Errors: `DecidedOtherwise` at the first record that this version decides otherwise."""
    with opened(place) as store:
        world = read_world(stream(store))
    return Alike(
        world.records,
        len(world.recorded.jobs),
        state_hash(world.state).hex(),
        {text_of(tick): count for tick, count in world.rounds.items()},
    )


def replay_otherwise(place: str, change: Change, progress: Progress) -> comparison.Replayed:
    warm_up()
    with opened(place) as store:
        return comparison.compare(stream(store), change, progress)


def run(place: str, change: Change, output: str, plot: str) -> int:
    """Print what comes of it; the exit status."""
    if plot and not plot.lower().endswith(".svg"):
        raise InvalidRequest(why=f"plot {plot!r} is no .svg file; SVG is what there is")
    if change == Change():
        if plot:
            raise InvalidRequest(why="there is nothing to plot without --policy, --backfill or --order")
        alike = replay_alike(place)
        if output == "json":
            _json(alike)
        else:
            sys.stdout.write(
                f"{alike.records:,} records, {alike.jobs:,} jobs: every event decided alike\n"
                f"state hash {alike.state_hash}\n"
            )
        return int(Exit.OK)
    found = _with_bar(place, change, quiet=output == "json")
    if plot:
        try:
            Path(plot).write_text(comparison.plot(found), encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(why=f"{plot!r} can't be written ({error.strerror})") from error
    if output == "json":
        _json(found.comparison)
        return int(Exit.OK)
    from rich.console import Console

    console = Console()
    for table in comparison.tables(found.comparison):
        console.print(table)
    if plot:
        console.print(f"Plot written to {plot}", markup=False, highlight=False)
    return int(Exit.OK)


def _with_bar(place: str, change: Change, *, quiet: bool) -> comparison.Replayed:
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
        task = bar.add_task("reading the record", total=None)

        def told(done: int, total: int) -> None:
            bar.update(task, description="replaying under other rules", completed=done, total=total)

        return replay_otherwise(place, change, told)


def _json(value: msgspec.Struct) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
