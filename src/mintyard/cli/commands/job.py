"""`job`: look at jobs and steer them (U2, U12)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from mintyard.cli.options import PATIENT_RETRY_S, Output, Where, job_name
from mintyard.cli.printer import Printer, state_style
from mintyard.cli.quantities import age, clock, count, moment, money, size
from mintyard.cli.tables import Column
from mintyard.cli.watching import follow
from mintyard.domain.errors import Exit, InvalidSpec, MintyardError
from mintyard.sdk.outcome import has_ended
from mintyard.wire.submissions import JobView

if TYPE_CHECKING:
    from mintyard.sdk.sync.hub import Hub
    from mintyard.sdk.sync.listing import Listing

app = App(name="job", help="Submit jobs, look at them and steer them.")
app.command(
    "mintyard.cli.commands.submit:submit",
    name="submit",
    help="Submit a job file, a batch script, or a command.",
)
_OUT, _WHERE = Output(), Where()
LIVE = ("submitted", "blocked", "held", "pending", "starting", "running", "stopping")
Job = Annotated[str, Parameter(help="A job's number, or ARRAY_INDEX such as 12_3.")]
Jobs = Annotated[str, Parameter(help="Jobs: numbers, or ARRAY_INDEX such as 12_3.")]
Reason = Annotated[str, Parameter(name="--reason", help="Kept with the job.")]


def _resources(view: JobView) -> str:
    asked = view.resources
    each = count(asked.gpus * asked.gpu_milli) if asked.gpus else "-"
    return f"{asked.members}x{each}" if asked.members > 1 and asked.gpus else each


COLUMNS = (
    Column("JOB", lambda view: view.label),
    Column("NAME", lambda view: view.name, flexible=True),
    Column("ACCOUNT", lambda view: view.account, flexible=True),
    Column("STATE", lambda view: view.state, style=lambda view: state_style(view.state)),
    Column("GPUS", _resources, right=True),
    Column("CPUS", lambda view: count(view.resources.cpus_milli * view.resources.members), right=True),
    Column("MEMORY", lambda view: size(view.resources.memory_mib * view.resources.members), right=True),
    Column("RUN", lambda view: clock(view.run_ms), right=True),
    Column("LIMIT", lambda view: clock(view.time_limit_ms), right=True),
    Column("COST", lambda view: money(view.cost), right=True),
    Column("AGE", lambda view: age(view.submitted_at), right=True),
    Column("REASON", lambda view: view.reason, flexible=True),
)


@app.command
def ls(
    *,
    all: Annotated[bool, Parameter(name=["--all", "-a"], negative="")] = False,
    state: Annotated[str, Parameter(name=["--state", "-t"])] = "",
    account: Annotated[str, Parameter(name=["--account", "-A"])] = "",
    name: str = "",
    array: Annotated[int | None, Parameter(name="--array")] = None,
    since: str = "",
    until: str = "",
    limit: int = 100,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"], negative="")] = False,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """List jobs, the newest first: those that have not ended, unless a state is asked for.

    Parameters
    ----------
    all
        Ended ones as well.
    state
        Only these states, joined by commas.
    account
        Only jobs of this account and those below it.
    name
        Only jobs of this name; it may end in `*`.
    array
        Only the tasks of this array.
    since
        Only jobs submitted at this instant or later (2030-01-31T12:00:00Z).
    until
        Only jobs submitted before this instant.
    limit
        At most so many (100); 0 lists all.
    watch
        Then show each change, until Ctrl-C.
    """
    if limit < 0:
        raise InvalidSpec(field="--limit", why=f"is {limit}; 0 lists all")
    wanted = tuple(filter(None, state.split(","))) or (() if all or array else LIVE)
    filters: dict[str, Any] = {
        "state": wanted, "account": account, "name": name, "array_job": array, "since": since, "until": until,
    }  # fmt: skip
    with where.connect() as hub:
        listing = hub.jobs.list(**filters)
        if watch:
            return _watch(hub, listing, limit or 1_000, out.printer)
        if limit:
            page = listing.first(limit)
            return show_page(out.printer, page, COLUMNS, lambda view: view.label, "--limit")
        for page in listing.pages():
            show_page(out.printer, page, COLUMNS, lambda view: view.label, "")
    return Exit.OK


def _watch(hub: Hub, listing: Listing[JobView], most: int, printer: Printer) -> int:
    """Show the list, then each change; a job that leaves the list because it ended is shown once more."""
    open_jobs: dict[int, JobView] = {}

    def look() -> list[JobView]:
        found = list(listing.first(most).items)
        gone = open_jobs.keys() - {view.job for view in found}
        found += [hub.jobs.show(job) for job in sorted(gone)]
        open_jobs.clear()
        open_jobs.update((view.job, view) for view in found if not has_ended(view))
        return found

    return follow(printer, look(), look, COLUMNS, key=lambda view: view.job)


def show_page(
    printer: Printer, page: Any, columns: Sequence[Column], name: Callable[[Any], str], more: str
) -> int:
    """One page of a list in the form asked for; that there is more is said on stderr."""
    if printer.is_json:
        printer.json(page)
    elif printer.quiet:
        for item in page.items:
            printer.line(name(item))
    else:
        printer.table(page.items, columns)
    if page.next and more:
        printer.remark(f"there are more; {more} 0 lists all")
    return Exit.OK


@app.command
def show(job: Job, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Show a job with its attempts."""
    with where.connect() as hub:
        view = hub.jobs.show(job_name(job))
    if out.is_json:
        out.printer.json(view)
        return Exit.OK
    asked = view.resources
    out.printer.pairs(
        [
            ("job", view.label),
            ("name", view.name),
            ("account", view.account),
            ("state", view.state),
            ("reason", view.reason),
            (
                "tasks",
                ", ".join(f"{number} {state}" for state, number in (view.tasks or {}).items() if number),
            ),
            ("command", view.command),
            ("workdir", view.workdir),
            ("queue", view.queue),
            ("priority", str(view.priority)),
            ("members", str(asked.members) if asked.members > 1 else ""),
            (
                "gpus",
                f"{count(asked.gpus * asked.gpu_milli)} {'|'.join(asked.gpu_models)}" if asked.gpus else "",
            ),
            ("cpus", count(asked.cpus_milli)),
            ("memory", size(asked.memory_mib)),
            ("labels", " ".join(asked.labels)),
            ("time limit", clock(view.time_limit_ms)),
            ("waits for", ", ".join(f"{edge.when}:{edge.job}" for edge in view.waits_for)),
            ("inputs", " ".join(view.inputs)),
            ("outputs", " ".join(view.outputs)),
            ("begins", moment(view.begin_at)),
            ("submitted", moment(view.submitted_at)),
            ("started", moment(view.started_at)),
            ("ended", moment(view.ended_at)),
            ("exit code", "" if view.exit_code is None else str(view.exit_code)),
            ("signal", str(view.signal or "")),
            ("run time", clock(view.run_ms)),
            ("cpu time", clock(view.cpu_ms)),
            ("peak memory", size(view.peak_memory_mib) if view.peak_memory_mib else ""),
            ("budget", view.budget or ""),
            ("cost", view.cost),
            ("token", view.token),
        ]
    )
    if view.attempts:
        out.printer.line()
        out.printer.table(view.attempts, _ATTEMPTS)
    return Exit.OK


_ATTEMPTS = (
    Column("ATTEMPT", lambda one: str(one.attempt), right=True),
    Column("STATE", lambda one: one.state, style=lambda one: state_style(one.state)),
    Column("NODES", lambda one: ",".join(member.node for member in one.members), flexible=True),
    Column("STARTED", lambda one: moment(one.started_at)),
    Column("RUN", lambda one: clock(one.run_ms), right=True),
    Column("EXIT", lambda one: "" if one.exit_code is None else str(one.exit_code), right=True),
    Column("COST", lambda one: money(one.cost), right=True),
    Column("MESSAGE", lambda one: one.message, flexible=True),
)


@app.command
def explain(job: Job, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Say why a job does not run, what it waits for, when it may start, and what would change that."""
    with where.connect() as hub:
        found = hub.jobs.explain(job_name(job))
    if out.is_json:
        out.printer.json(found)
        return Exit.OK
    out.printer.pairs(
        [
            ("job", str(found.job)),
            ("state", found.state),
            ("reason", found.reason),
            ("ahead of it", "" if found.ahead is None else str(found.ahead)),
            ("may start", moment(found.starts_at)),
        ]
    )
    for detail in found.details:
        out.printer.line(f"  - {detail}")
    for change in found.changes:
        out.printer.line(f"  try: {change}")
    return Exit.OK


@app.command
def logs(
    job: Job,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    stderr: Annotated[bool, Parameter(name=["--stderr", "-e"], negative="")] = False,
    attempt: int = 0,
    offset: int = 0,
    where: Where = _WHERE,
) -> int:
    """Write what a job has written, byte for byte.

    Parameters
    ----------
    follow
        Go on until the job ends.
    stderr
        Its standard error instead.
    attempt
        Of this attempt; 0 is the last.
    offset
        From this byte on.
    """
    stream: Literal["stdout", "stderr"] = "stderr" if stderr else "stdout"
    name = job_name(job)
    with where.connect(PATIENT_RETRY_S if follow else 5.0) as hub:
        try:
            for piece in hub.jobs.logs(name, stream, follow=follow, offset=offset, attempt=attempt):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        except KeyboardInterrupt:
            Printer().remark(f"\ninterrupted; job {name} goes on")
            return 130
    return Exit.OK


def _control(verb: str, jobs: Sequence[str], reason: str, out: Output, where: Where) -> int:
    """The verb for each job by itself; the exit status of the first that was refused."""
    from mintyard.cli.problems import report

    names = [job_name(job) for job in jobs]
    status = int(Exit.OK)
    changes: list[Any] = []
    with where.connect() as hub:
        for name in names:
            try:
                change = getattr(hub.jobs, verb)(name, reason)
            except MintyardError as error:
                status = status or report(error, json=out.is_json)
                continue
            changes.append(change)
            if not out.is_json:
                out.printer.line(name if out.quiet else f"job {name} {change.state}", flush=True)
    if out.is_json:
        out.printer.json(changes[0] if len(names) == 1 and changes else {"items": changes})
    return status


@app.command
def cancel(*jobs: Jobs, reason: Reason = "", out: Output = _OUT, where: Where = _WHERE) -> int:
    """Cancel jobs; of an array all tasks that have not ended."""
    return _control("cancel", _some(jobs), reason, out, where)


@app.command
def hold(*jobs: Jobs, reason: Reason = "", out: Output = _OUT, where: Where = _WHERE) -> int:
    """Keep jobs from starting."""
    return _control("hold", _some(jobs), reason, out, where)


@app.command
def release(*jobs: Jobs, reason: Reason = "", out: Output = _OUT, where: Where = _WHERE) -> int:
    """Let held jobs compete again."""
    return _control("release", _some(jobs), reason, out, where)


@app.command
def requeue(*jobs: Jobs, reason: Reason = "", out: Output = _OUT, where: Where = _WHERE) -> int:
    """Stop jobs and queue them again."""
    return _control("requeue", _some(jobs), reason, out, where)


def _some(jobs: Sequence[str]) -> Sequence[str]:
    if not jobs:
        raise InvalidSpec(field="JOB", why="is missing; give at least one number")
    return jobs


@app.command
def wait(
    *jobs: Jobs,
    timeout: str = "",
    passthrough: Annotated[bool, Parameter(name="--passthrough", negative="")] = False,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Wait for jobs to end. The exit status is the job's: 0 succeeded, 1 failed, 3 cancelled or skipped, 9 timed out.

    Parameters
    ----------
    timeout
        Give up after so long (30s, 10m); the exit status is then 9 and the job goes on.
    passthrough
        Exit with the job's own exit code instead of 1.
    """
    from mintyard.cli.waiting import wait_for
    from mintyard.wire.quantities import parse_duration

    names = [job_name(job) for job in _some(jobs)]
    timeout_s = parse_duration(timeout, "--timeout", 0, bare_ms=1_000) / 1_000 if timeout else None
    with where.connect(PATIENT_RETRY_S) as hub:
        return wait_for(hub, names, out.printer, timeout_s=timeout_s, passthrough=passthrough)


@app.command
def update(
    job: Job,
    *,
    time: Annotated[str, Parameter(name=["--time", "-t"])] = "",
    priority: int | None = None,
    begin: str = "",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Change a job that has not started.

    Parameters
    ----------
    time
        Its time limit (2h, 00:30:00); a longer one holds more first.
    priority
        0 to 10000.
    begin
        Not before: now+1hour, 2030-01-31T12:00:00.
    """
    import time as clocks

    from mintyard.wire.instants import parse_begin

    if not time and priority is None and not begin:
        raise InvalidSpec(field="--time", why="or --priority or --begin is needed: nothing is changed")
    begin_at = parse_begin(begin, clocks.time_ns(), "--begin") if begin else None
    with where.connect() as hub:
        change = hub.jobs.update(job_name(job), time=time or None, priority=priority, begin_at=begin_at)
    if out.is_json:
        out.printer.json(change)
    else:
        out.printer.line(job if out.quiet else f"job {job} {change.state}")
    return Exit.OK


@app.command
def receipt(job: Job, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Show what a job has cost, to the last nano-unit."""
    with where.connect() as hub:
        found = hub.jobs.receipt(job_name(job))
    if out.is_json:
        out.printer.json(found)
        return Exit.OK
    final = "" if found.final else " so far"
    out.printer.pairs(
        [
            ("job", str(found.job)),
            ("account", found.account),
            ("state", found.state),
            (f"cost{final}", found.cost),
        ]
    )
    for one in found.receipts:
        out.printer.line(f"\nattempt {one.attempt}, {clock(one.run_ms)} at price book {one.book}")
        out.printer.table(one.resources, _RESOURCES)
        out.printer.table(one.charges, _CHARGES)
    return Exit.OK


_RESOURCES = (
    Column("RESOURCE", lambda line: str(line.unit)),
    Column("USED", lambda line: line.stock, right=True),
    Column("RATE", lambda line: line.rate, right=True),
    Column("COST", lambda line: line.cost, right=True),
)
_CHARGES = (
    Column("ACCOUNT", lambda line: line.account, flexible=True),
    Column("UNIT", lambda line: str(line.unit)),
    Column("LISTED", lambda line: line.listed, right=True),
    Column("PAID", lambda line: line.amount, right=True),
    Column("REFUNDED", lambda line: line.refunded, right=True),
)
