"""Replay of a real trace: reads the files, drives the production core on a virtual clock with the ledger on, and reports.

`replay` is the whole of it as a function; `main` is `mintyard replay`. No policy, price or rule of its own may enter: what a
trace becomes is in `trace_replay_workload`, what happens in `trace_replay_run`, what is said about it in `trace_replay_report`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from mintyard.app import trace_replay_report as reports
from mintyard.app.charts import clean
from mintyard.app.journal_store import open_store, url_to_write
from mintyard.app.replay_output import (
    Progress,
    check_plot,
    print_json,
    print_tables,
    progress_bar,
    silent,
    write_plot,
)
from mintyard.app.trace_replay_hub import Journal, ReplayHub, balances, spent_at
from mintyard.app.trace_replay_run import Run
from mintyard.app.trace_replay_workload import Rules, Workload, make_workload, synthetic_nodes
from mintyard.app.traces import open_trace, sample_trace
from mintyard.app.warmup import warm_up
from mintyard.domain.commands import Tick
from mintyard.domain.errors import Exit, InvalidRequest, InvariantBroken, MintyardError
from mintyard.domain.scheduling.choices import DEFAULT_BACKFILL, DEFAULT_ORDER, Backfill, Order
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.snapshot import state_hash
from mintyard.domain.units import Unit, format_amount, parse_amount
from mintyard.ports.traces import Trace

SYNTHETIC: Final = "synthetic:"
DEFAULT_POLICY: Final = Tick().policy


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay and how. Without `file` it is the openb sample that the package ships.

    `nodes`: a file in openb's form, or `synthetic:GPUSxNODES[,CPUS[,MEMORY_GB]]`. `balance`: money for each tenant as a
    decimal; empty is enough for everything. `journal`: a folder or a store's URL. `plot`: an SVG file to write. `rules`
    and their meaning: `trace_replay_workload`."""

    file: str = ""
    nodes: str = ""
    policy: Policy = DEFAULT_POLICY
    backfill: Backfill = DEFAULT_BACKFILL
    order: Order = DEFAULT_ORDER
    rules: Rules = Rules()
    balance: str = ""
    journal: str = ""
    plot: str = ""


def replay(options: ReplayOptions, progress: Progress = silent) -> reports.TraceReport:
    """Replay a trace to its end. `progress(done, total)` is called now and then, counted in jobs.

    Deterministic: equal files and options give the same report but for the times of this machine, and the same state hash.
    Errors: `NotFound`, `TraceMalformed`, `InvalidRequest`, `InvalidAmount`, `Infeasible` before anything is written;
    `AlreadyExists` for a journal that has records, and those of the store."""
    check_plot(options.plot)
    balance = parse_amount(options.balance, Unit.MONEY) if options.balance else None
    trace, source = read_trace(options)
    nodes = synthetic_nodes(options.nodes) if options.nodes.startswith(SYNTHETIC) else trace.nodes
    workload = make_workload(trace, nodes, options.rules, source)
    warm_up()
    with _journal(options.journal) as journal:
        run, wall_s, cpu_s = _drive(workload, options, balance, journal, progress)
        if journal is not None:
            journal.flush()
        report = _report(run, options, trace, journal, (wall_s, cpu_s))
    if options.plot:
        write_plot(options.plot, reports.plot(report, run.measures, run.total))
    return report


def read_trace(options: ReplayOptions) -> tuple[Trace, str]:
    """The trace and its file's name for people."""
    named = "" if options.nodes.startswith(SYNTHETIC) else options.nodes
    if not options.file:
        pods, nodes = sample_trace()
        return open_trace(pods, named or nodes), "the openb sample"
    return open_trace(options.file, named or None), options.file


@contextmanager
def _journal(place: str) -> Iterator[Journal | None]:
    """The journal at a folder or URL, empty when it comes. What is left to write is lost when the replay breaks off."""
    if not place:
        yield None
        return
    store = open_store(url_to_write(place))
    try:
        journal = Journal(store)
        try:
            yield journal
        finally:
            journal.release()
    finally:
        store.close()


def _drive(
    workload: Workload,
    options: ReplayOptions,
    balance: int | None,
    journal: Journal | None,
    progress: Progress,
) -> tuple[Run, float, float]:
    """The run at its end, and what it took: wall time and CPU time in s."""
    wall, cpu = time.perf_counter(), time.process_time()
    hub = ReplayHub(journal)
    _set_up(hub, workload, balance)
    run = Run(
        hub,
        workload,
        options.policy,
        options.rules.fill,
        progress,
        backfill=options.backfill,
        order=options.order,
    )
    run.go()
    hub.state.ledger.check()
    cost = sum(tally.cost for tally in run.measures.tenants.values())
    spent = spent_at(hub.state, workload.organisation)
    if cost != spent:
        raise InvariantBroken(why=f"the jobs cost {cost}, the organisation spent {spent}")
    return run, time.perf_counter() - wall, time.process_time() - cpu


def _set_up(hub: ReplayHub, workload: Workload, balance: int | None) -> None:
    """Accounts, money at the organisation and at each tenant, and the machines."""
    now, organisation = workload.start_ns, workload.organisation
    hub.found("replay", [organisation, *workload.accounts], now)
    needed = dict.fromkeys(workload.tenants, 0)
    for arrival in workload.arrivals:
        needed["/".join(arrival.account.split("/", 2)[:2])] += arrival.cost
    hub.grant(organisation, max(sum(needed.values()), 1), "enough for everything", now)
    for tenant, amount in needed.items():
        if balance is None:
            hub.grant(tenant, max(amount, 1), "enough for everything", now)
        else:
            hub.grant(tenant, max(balance, 1), "balance", now)
    hub.join(workload.nodes, now)


def _report(
    run: Run, options: ReplayOptions, trace: Trace, journal: Journal | None, took: tuple[float, float]
) -> reports.TraceReport:
    measures, workload, state, total = run.measures, run.workload, run.hub.state, run.total
    wall_s, cpu_s = took
    tallies = measures.tenants.values()
    head = journal.head if journal is not None else None
    rules = options.rules
    return reports.TraceReport(
        trace=Path(options.file).name if options.file else "the openb sample",
        policy=options.policy.value,
        seed=rules.seed,
        load=rules.load,
        fill=rules.fill,
        cluster=reports.Cluster(
            len(workload.nodes), total.gpus_milli // 1_000, total.cpus_milli, total.memory_mib
        ),
        jobs=len(workload.arrivals),
        done=sum(tally.done for tally in tallies),
        timed_out=sum(tally.timed_out for tally in tallies),
        running=len(state.jobs) - len(state.queue),
        pending=len(state.queue),
        refused=dict(sorted(measures.refused.items())),
        skipped=workload.skipped,
        assumed=workload.assumed,
        wait_ms=reports.spread(measures.waits_ms),
        bounded_slowdown=reports.spread(measures.slowdowns),
        utilisation=reports.utilisation(measures, total, workload.arrivals[-1].at_ms, run.last_ms),
        makespan_ms=run.last_ms,
        currency=state.currency,
        cost=format_amount(sum(tally.cost for tally in tallies), Unit.MONEY),
        tenants=len(measures.tenants),
        top_tenants=reports.tenant_lines(measures),
        ledger=balances(state, workload.organisation),
        records=run.hub.seq,
        state_hash=state_hash(state).hex(),
        wall_s=round(wall_s, 3),
        cpu_s=round(cpu_s, 3),
        jobs_per_s=round(len(workload.arrivals) / max(wall_s, 1e-9), 1),
        core_share=round(run.hub.core_ns / 1e9 / max(cpu_s, 1e-9), 4),
        journal=reports.JournalLine(head.seq, head.chain.hex()) if head is not None else None,
    )


# --- command line -------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """`mintyard replay`; the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.journal:
            return _journal_again(arguments)
        options = _options(arguments)
        if arguments.output == "json":
            report = replay(options)
            print_json(report)
        else:
            report = show(options)
    except MintyardError as error:
        sys.stderr.write(f"{clean(str(error))}\n{clean(error.cure)}\n")
        return int(error.exit_status)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped.\n")
        return int(Exit.CANCELLED)
    return int(Exit.OK if report.exact else Exit.VERIFICATION)


def _journal_again(arguments: argparse.Namespace) -> int:
    """A recorded journal instead of a trace: what describes a trace has no meaning then."""
    from mintyard.app import replay_command
    from mintyard.app.replay_otherwise import Change

    plain = vars(_parser().parse_args([]))
    kept = ("journal", "policy", "backfill", "order", "plot", "output")
    given = [name for name, value in vars(arguments).items() if name not in kept and value != plain[name]]
    if given:
        names = ", ".join("FILE" if name == "file" else f"--{name.replace('_', '-')}" for name in given)
        raise InvalidRequest(why=f"--journal replays what was recorded; {names} can't be given with it")
    change = Change(
        Policy(arguments.policy) if arguments.policy else None,
        Backfill(arguments.backfill) if arguments.backfill else None,
        Order(arguments.order) if arguments.order else None,
    )
    return replay_command.run(arguments.journal, change, arguments.output, arguments.plot)


def show(options: ReplayOptions) -> reports.TraceReport:
    """Replay with a progress bar (on a terminal only) and print the tables."""
    with progress_bar("replaying", "replaying") as progress:
        report = replay(options, progress)
    print_tables(reports.tables(report), options.plot)
    return report


def _options(arguments: argparse.Namespace) -> ReplayOptions:
    return ReplayOptions(
        file=arguments.file,
        nodes=arguments.nodes,
        policy=Policy(arguments.policy) if arguments.policy else DEFAULT_POLICY,
        backfill=Backfill(arguments.backfill or DEFAULT_BACKFILL),
        order=Order(arguments.order or DEFAULT_ORDER),
        rules=Rules(
            arguments.limit,
            arguments.load,
            arguments.seed,
            arguments.margin,
            round(arguments.unknown_run_s * 1_000),
            arguments.fill,
        ),
        balance=arguments.balance,
        journal=arguments.write_journal,
        plot=arguments.plot,
    )


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) < 1e12:
        raise ValueError(text)
    return value


_finite.__name__ = "number"


def _parser() -> argparse.ArgumentParser:
    rules = Rules()
    parser = argparse.ArgumentParser(
        prog="mintyard replay",
        description="Replay a cluster trace (openb CSV, Standard Workload Format, Philly CSV, plain or gzip) through the "
        "production core with a virtual clock and the ledger on. Without FILE: the openb sample on 1,213 nodes.",
    )
    add = parser.add_argument
    add("file", nargs="?", default="", metavar="FILE", help="the trace")
    add(
        "--nodes",
        default="",
        metavar="FILE|SPEC",
        help="machines: openb CSV, or synthetic:GPUSxNODES[,CPUS[,GB]]",
    )
    add(
        "--policy",
        choices=[policy.value for policy in Policy],
        default="",
        help=f"how nodes are chosen (default {DEFAULT_POLICY.value}); with --journal: what would have been under it",
    )
    add(
        "--backfill",
        choices=[backfill.value for backfill in Backfill],
        default="",
        help=f"how jobs that don't fit reserve (default {DEFAULT_BACKFILL.value}); with --journal as --policy",
    )
    add(
        "--order",
        choices=[order.value for order in Order],
        default="",
        help=f"by which scale priorities age (default {DEFAULT_ORDER.value}); with --journal as --policy",
    )
    add("--limit", type=int, default=0, metavar="N", help="the first N jobs only")
    add("--seed", type=int, default=rules.seed, help="of what is drawn at random (default %(default)s)")
    add("--load", type=_finite, default=rules.load, metavar="FACTOR", help="jobs arrive FACTOR times as fast")
    add(
        "--margin",
        type=_finite,
        default=rules.margin,
        metavar="FACTOR",
        help="time limit = run time x FACTOR where unknown",
    )
    add(
        "--unknown-run-s",
        type=_finite,
        default=rules.unknown_run_ms / 1_000,
        metavar="S",
        help="mean of unknown run times",
    )
    add(
        "--fill",
        action="store_true",
        help="jobs in random order up to 130 %% of all GPUs; they never leave (FGD's fill)",
    )
    add("--balance", default="", metavar="MONEY", help="what each tenant has (default: enough)")
    add("--write-journal", default="", metavar="DIR|URL", help="write the journal there")
    add(
        "--journal",
        default="",
        metavar="DIR|URL",
        help="replay a recorded journal (a hub's folder, a file or a store) instead of a trace: every input is decided again and "
        "must give the same events; with --policy, what would have been under that policy",
    )
    add("--plot", default="", metavar="FILE.svg", help="write a plot of utilisation")
    add("-o", "--output", choices=["table", "json"], default="table")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
