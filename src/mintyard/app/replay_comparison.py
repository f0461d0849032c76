"""A journal replayed: alike under its own policy, otherwise under another, and what that changes. Tables, JSON, plot.

Nothing is decided here: the runs are `replay_world` and `replay_otherwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from mintyard.app.charts import Line, Panel, averages, svg
from mintyard.app.replay_measures import NOT_STARTED, Figures, ScheduleMeasures
from mintyard.app.replay_otherwise import Change, Otherwise, Unknown
from mintyard.app.replay_world import World, read_world, text_of
from mintyard.app.trace_replay_report import Spread, duration, money, spread
from mintyard.domain.units import NS_PER_MS, Unit, format_amount
from mintyard.ports.store import Record

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN: Final = 5
BUCKETS: Final = 480


class Moved(msgspec.Struct, frozen=True):
    """A job that starts `by_ms` later than recorded (negative: earlier)."""

    job: int
    account: str
    by_ms: int


class Comparison(msgspec.Struct, frozen=True):
    """What was recorded, and what comes of the same world under `rules`.

    `later_by_ms` is over all jobs that start in both; `gpu_percent` of both is up to the end of the record."""

    records: int
    recorded_rules: dict[str, int]
    rules: str
    recorded: Figures
    otherwise: Figures
    earlier: int
    later: int
    unchanged: int
    later_by_ms: Spread
    most_earlier: list[Moved]
    most_later: list[Moved]
    unknown: Unknown
    currency: str


class Replayed(msgspec.Struct, frozen=True):
    """A comparison with what its plot is drawn from."""

    comparison: Comparison
    recorded: ScheduleMeasures
    otherwise: ScheduleMeasures
    until_ms: int


def compare(
    records: Iterable[Record], change: Change, progress: Callable[[int, int], None] = lambda done, total: None
) -> Replayed:
    """Run the recorded world again under other rules. Errors: `DecidedOtherwise`, and those of the store."""
    world = read_world(records)
    run = Otherwise(world, change, progress)
    measures = run.go()
    return _replayed(world, run, measures)


def _replayed(world: World, run: Otherwise, measures: ScheduleMeasures) -> Replayed:
    first = world.recorded.first_ns
    until_ms = max((world.last - first) // NS_PER_MS, 0) if first else 0
    pairs = [
        (job, measures.jobs[number])
        for job in world.recorded.jobs.values()
        if (number := run.numbers.get(job.number)) is not None
    ]
    moved = [
        Moved(before.number, before.account, (now.started_at - before.started_at) // NS_PER_MS)
        for before, now in pairs
        if NOT_STARTED not in (before.started_at, now.started_at)
    ]
    ranked = sorted(moved, key=lambda one: (one.by_ms, one.job))
    comparison = Comparison(
        records=world.records,
        recorded_rules={text_of(tick): count for tick, count in world.rounds.items()},
        rules=text_of(run.round),
        recorded=world.recorded.figures(until_ms),
        otherwise=measures.figures(until_ms),
        earlier=sum(one.by_ms < 0 for one in moved),
        later=sum(one.by_ms > 0 for one in moved),
        unchanged=sum(one.by_ms == 0 for one in moved),
        later_by_ms=spread([one.by_ms for one in moved]),
        most_earlier=[one for one in ranked[:SHOWN] if one.by_ms < 0],
        most_later=[one for one in ranked[::-1][:SHOWN] if one.by_ms > 0],
        unknown=run.unknown,
        currency=world.state.currency,
    )
    return Replayed(comparison, world.recorded, measures, until_ms)


# --- for people -----------------------------------------------------------------------------------------------------


def tables(found: Comparison) -> list[RenderableType]:
    """The comparison for a terminal."""
    from rich.table import Table

    rules = ", ".join(found.recorded_rules) or "no round"
    figures = Table("", title=f"{found.records:,} records under other rules", title_justify="left")
    figures.add_column(f"recorded ({rules})", justify="right")
    figures.add_column(found.rules, justify="right")
    for name, tell in _ROWS:
        figures.add_row(name, tell(found.recorded), tell(found.otherwise))
    figures.add_row(f"cost, {found.currency}", _cost(found.recorded), _cost(found.otherwise))
    moved = Table("", title="What changes for jobs", title_justify="left", show_header=False)
    moved.add_column(justify="right")
    moved.add_row("start earlier", f"{found.earlier:,}")
    moved.add_row("start later", f"{found.later:,}")
    moved.add_row("start as before", f"{found.unchanged:,}")
    moved.add_row("start later by, mean", _signed(found.later_by_ms.mean))
    for title, jobs in (("most earlier", found.most_earlier), ("most later", found.most_later)):
        for job in jobs:
            moved.add_row(f"{title}: job {job.job} of {job.account}", _signed(job.by_ms))
    unknown = found.unknown
    for name, count in (
        ("requests refused now", unknown.refused_now),
        ("requests taken only now", unknown.taken_now),
        ("requests about what is not there now", unknown.without_object),
        ("attempts without a recorded end of their own", unknown.no_own_end),
    ):
        if count:
            moved.add_row(name, f"{count:,}")
    return [figures, moved]


_ROWS: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("jobs", lambda f: f"{f.jobs:,}"),
    ("succeeded", lambda f: f"{f.succeeded:,}"),
    ("failed or cut at their limit", lambda f: f"{f.failed:,}"),
    ("cancelled or skipped", lambda f: f"{f.cancelled:,}"),
    ("not ended", lambda f: f"{f.unfinished:,}"),
    ("wait, mean", lambda f: duration(f.wait_ms.mean)),
    ("wait, p50", lambda f: duration(f.wait_ms.p50)),
    ("wait, p99", lambda f: duration(f.wait_ms.p99)),
    ("wait, longest", lambda f: duration(f.wait_ms.max)),
    ("bounded slowdown, mean", lambda f: f"{f.bounded_slowdown.mean:.2f}"),
    ("GPUs in use, average", lambda f: f"{f.gpu_percent:.1f} %"),
    ("cores in use, average", lambda f: f"{f.cpu_percent:.1f} %"),
    ("last end after", lambda f: duration(f.last_end_ms)),
)


def _cost(figures: Figures) -> str:
    return money(format_amount(figures.cost, Unit.MONEY))


def _signed(ms: float) -> str:
    return f"{'-' if ms < 0 else '+'}{duration(abs(ms))}" if ms else duration(0)


def plot(found: Replayed) -> str:
    """Both runs over time, as SVG: GPUs (cores where there are none) in use and jobs that wait."""
    comparison = found.comparison
    length_ms = max(found.until_ms, comparison.otherwise.last_end_ms, 1)
    total = found.otherwise.state.cluster.total()
    what, most = ("GPUs", total.gpus_milli) if total.gpus_milli else ("Cores", total.cpus_milli)

    def lines(pick: Callable[[ScheduleMeasures], Iterable[int]], scale: float) -> list[Line]:
        made: list[Line] = []
        for name, run in (("recorded", found.recorded), (comparison.rules, found.otherwise)):
            values = averages(run.at_ms, list(pick(run)), 0, length_ms, BUCKETS)
            made.append(Line(name, [value * scale for value in values]))
        return made

    in_use = lines(lambda run: run.gpus if total.gpus_milli else run.cpus, 100 / most if most else 0)
    panels = [
        Panel(f"{what} in use", "percent of all there is", in_use),
        Panel("Waiting", "pending jobs", lines(lambda run: run.waiting, 1)),
    ]
    title = f"Recorded and under {comparison.rules}"
    subtitle = f"{comparison.recorded.jobs:,} jobs, {comparison.records:,} records"
    return svg(title, subtitle, length_ms, panels)
