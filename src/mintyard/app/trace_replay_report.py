"""The report of a replay: what was measured as figures with units, as a table and as a plot. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from mintyard.app.charts import Line, Panel, averages, svg
from mintyard.app.trace_replay_hub import Balance
from mintyard.app.trace_replay_run import Measures
from mintyard.domain.scheduling.cluster import Amounts
from mintyard.domain.units import Unit, format_amount

if TYPE_CHECKING:
    from rich.console import RenderableType

TENANTS_SHOWN: Final = 10
BUCKETS: Final = 480


class Spread(msgspec.Struct, frozen=True):
    """A distribution; the percentiles are values that occurred (nearest rank). All 0 when there was none."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Utilisation(msgspec.Struct, frozen=True):
    """Of one resource: percent of all there is, weighted by time.

    `average` from the first arrival to the last end, `average_arriving` to the last arrival, `peak` at `peak_at_ms`."""

    resource: str
    unit: str
    total: int
    average: float
    average_arriving: float
    peak: float
    peak_at_ms: int


class TenantLine(msgspec.Struct, frozen=True):
    """One account below the organisation; `cost` in the currency, `gpu_hours` used, both exact decimals."""

    account: str
    jobs: int
    done: int
    timed_out: int
    refused: int
    gpu_hours: str
    cost: str


class JournalLine(msgspec.Struct, frozen=True):
    """The journal that was written: its last record and its chain."""

    records: int
    chain: str


class Cluster(msgspec.Struct, frozen=True):
    nodes: int
    gpus: int
    cpus_milli: int
    memory_mib: int


class TraceReport(msgspec.Struct, frozen=True):
    """Everything that a replay found. Times are virtual ms, except `wall_s` and `cpu_s` of this machine.

    `done` ended by themselves, `timed_out` were cut at their limit, `running` and `pending` are what was left at the end,
    `refused` counts by the refusal's code. `core_share` is the part of the CPU time spent in the core's `execute`."""

    trace: str
    policy: str
    seed: int
    load: float
    fill: bool
    cluster: Cluster
    jobs: int
    done: int
    timed_out: int
    running: int
    pending: int
    refused: dict[str, int]
    skipped: dict[str, int]
    assumed: dict[str, int]
    wait_ms: Spread
    bounded_slowdown: Spread
    utilisation: list[Utilisation]
    makespan_ms: int
    currency: str
    cost: str
    tenants: int
    top_tenants: list[TenantLine]
    ledger: list[Balance]
    records: int
    state_hash: str
    wall_s: float
    cpu_s: float
    jobs_per_s: float
    core_share: float
    journal: JournalLine | None = None

    @property
    def exact(self) -> bool:
        """Whether the ledger's identity holds at every level."""
        return all(line.exact for line in self.ledger)


def spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    if not ordered:
        return Spread(0, 0, 0, 0, 0, 0)
    last = len(ordered) - 1

    def rank(percent: int) -> float:
        return ordered[min(-(-percent * len(ordered) // 100) - 1, last)]

    mean = round(sum(ordered) / len(ordered), 3)
    return Spread(len(ordered), mean, rank(50), rank(95), rank(99), ordered[-1])


def utilisation(measures: Measures, total: Amounts, last_arrival_ms: int, end_ms: int) -> list[Utilisation]:
    """One line for each resource that the machines have."""
    lines: list[Utilisation] = []
    rows = zip(
        ("GPU", "CPU", "memory"),
        ("milli-GPU", "milli-core", "MiB"),
        (total.gpus_milli, total.cpus_milli, total.memory_mib),
        measures.in_use,
        strict=True,
    )
    for resource, unit, most, used in rows:
        if most:
            peak = max(used)
            lines.append(
                Utilisation(
                    resource,
                    unit,
                    most,
                    average(measures.at_ms, used, end_ms, most),
                    average(measures.at_ms, used, last_arrival_ms, most),
                    round(100 * peak / most, 3),
                    measures.at_ms[used.index(peak)],
                )
            )
    return lines


def average(at: Sequence[int], used: Sequence[int], until_ms: int, most: int) -> float:
    """Percent of `most` in use over the time up to `until_ms`, where `used[i]` holds from `at[i]` on.

    The sum is one of integers."""
    if until_ms <= 0:
        return round(100 * used[-1] / most, 3)
    area = 0
    for index, value in enumerate(used):
        end = min(at[index + 1] if index + 1 < len(at) else until_ms, until_ms)
        area += value * max(end - at[index], 0)
    return round(100 * area / (most * until_ms), 3)


def tenant_lines(measures: Measures) -> list[TenantLine]:
    """The tenants that cost most, at most ten."""
    ranked = sorted(measures.tenants.items(), key=lambda item: (-item[1].cost, item[0]))
    return [
        TenantLine(
            account,
            tally.jobs,
            tally.done,
            tally.timed_out,
            tally.refused,
            format_amount(tally.gpu_milli_ms, Unit.GPU),
            format_amount(tally.cost, Unit.MONEY),
        )
        for account, tally in ranked[:TENANTS_SHOWN]
    ]


def plot(report: TraceReport, measures: Measures, total: Amounts) -> str:
    """Utilisation of each resource and the number of jobs that wait, over virtual time, as SVG."""
    length_ms = plotted_ms(measures, report.makespan_ms)

    def line(name: str, values: Sequence[int], scale: float) -> Line:
        found = averages(measures.at_ms, values, 0, length_ms, BUCKETS)
        return Line(name, [value * scale for value in found])

    amounts = (total.gpus_milli, total.cpus_milli, total.memory_mib)
    in_use = [
        line(name, values, 100 / most)
        for name, values, most in zip(("GPU", "CPU", "memory"), measures.in_use, amounts, strict=True)
        if most
    ]
    cluster = report.cluster
    subtitle = (
        f"{report.jobs:,} jobs on {cluster.nodes:,} nodes with {cluster.gpus:,} GPUs and "
        f"{cluster.cpus_milli // 1_000:,} cores · policy {report.policy} · load {report.load:g}"
    )
    if length_ms < report.makespan_ms:
        subtitle += f" · the last jobs end after {duration(report.makespan_ms)}"
    panels = [
        Panel("In use", "percent of all there is", in_use),
        Panel("Waiting", "pending jobs", [line("pending", measures.pending, 1)]),
    ]
    return svg(f"Replay of {report.trace}", subtitle, length_ms, panels)


def plotted_ms(measures: Measures, makespan_ms: int) -> int:
    """How much is drawn: up to the end of 99 % of the jobs where the few others would take most of the width."""
    ends = sorted(measures.ends_ms)
    most = ends[len(ends) * 99 // 100] if ends else makespan_ms
    return max(most if most * 2 < makespan_ms else makespan_ms, 1)


# --- for people ---------------------------------------------------------------------------------------------------


def duration(ms: float) -> str:
    """`1d 02:03:04`, `02:03:04`, `5.25 s`."""
    if ms < 60_000:
        return f"{ms / 1_000:.2f} s"
    seconds = round(ms / 1_000)
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3_600:02}:{rest % 3_600 // 60:02}:{rest % 60:02}"
    return f"{days}d {clock}" if days else clock


def money(amount: str) -> str:
    """A decimal with thousands apart and two places, cut (not rounded): for reading; JSON has it exactly."""
    whole, _, rest = amount.partition(".")
    return f"{int(whole):,}.{rest[:2]:0<2}"


def tables(report: TraceReport) -> list[RenderableType]:
    """The report for a terminal."""
    from rich.table import Table

    found: list[RenderableType] = [_figures(report)]
    use = Table("resource", title="Utilisation", title_justify="left")
    for name in ("there is", "average", "while jobs arrive", "peak", "peak at"):
        use.add_column(name, justify="right")
    for line in report.utilisation:
        amount = f"{line.total // 1_000:,}" if line.unit != "MiB" else f"{line.total // 1_024:,} GB"
        percents = (f"{value:.1f} %" for value in (line.average, line.average_arriving, line.peak))
        use.add_row(line.resource, amount, *percents, duration(line.peak_at_ms))
    found.append(use)
    top = Table("account", title=f"Tenants by cost ({report.tenants} in all)", title_justify="left")
    for name in ("jobs", "done", "timed out", "refused", "GPU-hours", f"cost, {report.currency}"):
        top.add_column(name, justify="right")
    for tenant in report.top_tenants:
        counts = (f"{n:,}" for n in (tenant.jobs, tenant.done, tenant.timed_out, tenant.refused))
        top.add_row(tenant.account, *counts, money(tenant.gpu_hours), money(tenant.cost))
    found.append(top)
    found.append(_book(report))
    return found


def _book(report: TraceReport) -> RenderableType:
    """The identity of the ledger, every amount exact."""
    from rich.table import Table

    book = Table("ledger", title="Granted + refunded = spent + held + expired + left", title_justify="left")
    for row in report.ledger:
        unit = report.currency if row.unit == Unit.MONEY else row.unit
        book.add_column(f"{row.level}, {unit}", justify="right", overflow="fold")
    for name in ("granted", "refunded", "spent", "held", "expired", "left"):
        book.add_row(name, *(getattr(row, name) for row in report.ledger))
    book.add_row("adds up", *("exactly" if row.exact else "NO" for row in report.ledger))
    return book


def _figures(report: TraceReport) -> RenderableType:
    from rich.table import Table

    wait, slowdown = report.wait_ms, report.bounded_slowdown
    rows: list[tuple[str, str]] = [
        ("done", f"{report.done:,} of {report.jobs:,} jobs"),
        ("cut at their limit", f"{report.timed_out:,}"),
        *((f"refused: {code}", f"{count:,}") for code, count in report.refused.items()),
        *((f"left out: {why}", f"{count:,}") for why, count in report.skipped.items()),
        *((f"assumed: {what}", f"{count:,}") for what, count in report.assumed.items()),
        ("wait, mean", duration(wait.mean)),
        ("wait, p50 / p95 / p99", " / ".join(map(duration, (wait.p50, wait.p95, wait.p99)))),
        ("wait, longest", duration(wait.max)),
        (
            "bounded slowdown, mean / p95 / max",
            f"{slowdown.mean:.2f} / {slowdown.p95:.2f} / {slowdown.max:.2f}",
        ),
        ("makespan", duration(report.makespan_ms)),
        ("cost", f"{money(report.cost)} {report.currency}"),
        ("speed", f"{report.jobs_per_s:,.0f} jobs/s; {report.wall_s:.1f} s, {report.cpu_s:.1f} s of CPU"),
        ("spent in the core", f"{report.core_share:.0%} of the CPU time"),
        ("records", f"{report.records:,}"),
        ("final state", report.state_hash),
    ]
    for what, count in (("still running", report.running), ("never placed", report.pending)):
        if count:
            rows.insert(2, (what, f"{count:,}"))
    if report.journal is not None:
        rows.append(("journal's last chain", report.journal.chain))
    table = Table(title=f"Replay of {report.trace}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table
