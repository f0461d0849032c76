"""`mintyard replay --journal`: a recorded journal decided again, alike or under another policy. Command line only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from mintyard.app import replay_comparison as comparison
from mintyard.app.journal import stream
from mintyard.app.journal_store import open_store, recorded_url
from mintyard.app.replay_otherwise import Change
from mintyard.app.replay_output import (
    Progress,
    check_plot,
    print_json,
    print_tables,
    progress_bar,
    write_plot,
)
from mintyard.app.replay_world import read_world, text_of
from mintyard.app.warmup import warm_up
from mintyard.domain.errors import Exit, InvalidRequest
from mintyard.domain.snapshot import state_hash
from mintyard.ports.store import Store


class Alike(msgspec.Struct, frozen=True):
    """A journal whose inputs decide the same events again."""

    records: int
    jobs: int
    state_hash: str
    rules: dict[str, int]


@contextmanager
def opened(place: str) -> Iterator[Store]:
    """The journal in a hub's folder, in a file, or at a store's URL, to read from. Errors: `NotFound`, those of the store."""
    store = open_store(recorded_url(place))
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
    check_plot(plot)
    if change == Change():
        if plot:
            raise InvalidRequest(why="there is nothing to plot without --policy, --backfill or --order")
        alike = replay_alike(place)
        if output == "json":
            print_json(alike)
        else:
            sys.stdout.write(
                f"{alike.records:,} records, {alike.jobs:,} jobs: every event decided alike\n"
                f"state hash {alike.state_hash}\n"
            )
        return int(Exit.OK)
    with progress_bar(
        "reading the record", "replaying under other rules", quiet=output == "json"
    ) as progress:
        found = replay_otherwise(place, change, progress)
    if plot:
        write_plot(plot, comparison.plot(found))
    if output == "json":
        print_json(found.comparison)
    else:
        print_tables(comparison.tables(found.comparison), plot)
    return int(Exit.OK)
