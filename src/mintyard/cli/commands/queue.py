"""`queue`, and what accounts may have running at once (S10)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter

from mintyard.cli.commands.account import show_list, tell
from mintyard.cli.options import Output, Where
from mintyard.cli.quantities import count, size
from mintyard.cli.tables import Column
from mintyard.domain.errors import Exit
from mintyard.domain.limits import MAX_QUOTA
from mintyard.wire.quantities import parse_count, parse_cpus, parse_memory, refuse
from mintyard.wire.queues import InUse, Limits, Queue

app = App(name="queue", help="Share the machines between queues: quotas, borrowing, who may submit.")
_OUT, _WHERE = Output(), Where()
_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
Name = Annotated[str, Parameter(help="The queue's name.")]
Amounts = Annotated[
    str,
    Parameter(
        help="Of each resource at once, such as gpus=8,cpus=64,memory=1T,jobs=20; others are not limited."
    ),
]


def parse_limits(text: str, field: str) -> Limits:
    """`gpus=8,cpus=64,memory=1T,jobs=20`, any of them; empty says nothing."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        match name:
            case "gpus":
                key, amount = "gpus_milli", _gpus(value, f"{field}.gpus")
            case "cpus":
                key, amount = "cpus_milli", parse_cpus(value, f"{field}.cpus", 0, MAX_QUOTA)
            case "memory":
                key, amount = "memory_mib", parse_memory(value, f"{field}.memory", 0, MAX_QUOTA)
            case "jobs":
                key, amount = "jobs", parse_count(value, f"{field}.jobs", 0, MAX_QUOTA)
            case _:
                refuse(field, part, "write gpus=8,cpus=64,memory=1T,jobs=20, each at most once")
        if key in found:
            refuse(field, part, "each resource at most once")
        found[key] = amount
    return Limits(**found)


def _gpus(text: str, field: str) -> int:
    milli = Decimal(text) * 1_000 if _NUMBER.fullmatch(text) else Decimal(-1)
    if milli != int(milli) or not 0 <= milli <= MAX_QUOTA:
        refuse(field, text, "write a number of GPUs such as 8 or 0.5")
    return int(milli)


def shown_limits(amounts: Limits | InUse) -> str:
    """As `parse_limits` reads it; `-` for nothing."""
    forms = (
        ("gpus", amounts.gpus_milli, count),
        ("cpus", amounts.cpus_milli, count),
        ("memory", amounts.memory_mib, size),
    )
    parts = [f"{name}={form(value)}" for name, value, form in forms if value is not None]
    if amounts.jobs is not None:
        parts.append(f"jobs={amounts.jobs}")
    return ",".join(parts) or "-"


def _of(queue: Queue, resource: str) -> str:
    """What is in use of a resource, of the nominal quota where there is one."""
    used, nominal = getattr(queue.used, resource), getattr(queue.nominal, resource)
    shown = (
        (lambda amount: str(amount)) if resource == "jobs" else size if resource == "memory_mib" else count
    )
    return shown(used) if nominal is None else f"{shown(used)}/{shown(nominal)}"


def _state(queue: Queue) -> str:
    return " ".join(
        ["starts" if queue.starting else "stopped", *([] if queue.accepts else ["refuses new jobs"])]
    )


QUEUES = (
    Column("QUEUE", lambda one: one.queue, flexible=True),
    Column("PARENT", lambda one: one.parent or "-", flexible=True),
    Column("STATE", _state),
    Column("GPUS", lambda one: _of(one, "gpus_milli"), right=True),
    Column("CPUS", lambda one: _of(one, "cpus_milli"), right=True),
    Column("MEMORY", lambda one: _of(one, "memory_mib"), right=True),
    Column("RUNNING", lambda one: _of(one, "jobs"), right=True),
    Column("WAITING", lambda one: str(one.waiting), right=True),
    Column("BORROWED GPUS", lambda one: count(one.borrowed.gpus_milli), right=True),
)
LIMITS = (
    Column("ACCOUNT", lambda one: one.account, flexible=True),
    Column("LIMIT", lambda one: shown_limits(one.limits), flexible=True),
    Column("IN USE", lambda one: shown_limits(one.used), flexible=True),
)


@app.command(name="ls")
def list_queues(*, out: Output = _OUT, where: Where = _WHERE) -> int:
    """List queues: what runs in each of its quota, what it borrows, and how many jobs wait."""
    with where.connect() as hub:
        return show_list(out.printer, hub.queues.list(), QUEUES, lambda one: one.queue, 0)


@app.command(name="show")
def show_queue(queue: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Show a queue."""
    with where.connect() as hub:
        found = hub.queues.show(queue)
    if out.is_json:
        out.printer.json(found)
        return Exit.OK
    out.printer.pairs(
        [
            ("queue", found.queue),
            ("parent", found.parent or "-"),
            ("state", _state(found)),
            ("nominal", shown_limits(found.nominal)),
            ("borrowing", shown_limits(found.borrowing) if found.parent else "-"),
            ("lending", shown_limits(found.lending) if found.parent else "-"),
            ("open to", " ".join(found.accounts) or "everybody"),
            ("in use", shown_limits(found.used)),
            ("borrowed", shown_limits(found.borrowed)),
            ("could start", shown_limits(found.available)),
            ("waiting", str(found.waiting)),
        ]
    )
    return Exit.OK


@app.command(name="set")
def set_queue(
    queue: Name,
    *,
    parent: str = "",
    nominal: Amounts = "",
    borrowing: Amounts = "",
    lending: Amounts = "",
    account: Annotated[list[str] | None, Parameter(name=["--account", "-A"], negative="")] = None,
    accepts: bool = True,
    starts: bool = True,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Make a queue, or change all of one. From the first on, jobs must name a queue that is there.

    Parameters
    ----------
    parent
        The queue above it. Those below one parent lend each other what they don't use.
    nominal
        Its quota: what it has for sure.
    borrowing
        At most so much more than its quota; else as much as others leave.
    lending
        At most so much of its quota for others; else all that it leaves.
    account
        Who may submit, with all below; several times for several. Else everybody.
    accepts
        Whether new jobs are taken.
    starts
        Whether waiting jobs start.
    """
    with where.connect() as hub:
        change = hub.queues.set(
            queue,
            parent=parent,
            nominal=parse_limits(nominal, "nominal"),
            borrowing=parse_limits(borrowing, "borrowing"),
            lending=parse_limits(lending, "lending"),
            accounts=account or (),
            accepts=accepts,
            starts=starts,
        )
    return tell(out.printer, change, "queue")


def _switch(queue: str, out: Output, where: Where, **changes: bool) -> int:
    with where.connect() as hub:
        found = msgspec.structs.replace(hub.queues.show(queue), **changes)
        change = hub.queues.set(
            found.queue,
            parent=found.parent,
            nominal=found.nominal,
            borrowing=found.borrowing,
            lending=found.lending,
            accounts=found.accounts,
            accepts=found.accepts,
            starts=found.starts,
        )
    return tell(out.printer, change, "queue")


@app.command
def stop(queue: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Start nothing from a queue any more; what runs runs on, new jobs wait."""
    return _switch(queue, out, where, starts=False)


@app.command
def start(queue: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Start jobs from a queue again."""
    return _switch(queue, out, where, starts=True)


@app.command
def close(queue: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Refuse new jobs; those that wait still start."""
    return _switch(queue, out, where, accepts=False)


@app.command(name="open")
def reopen(queue: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Take new jobs again."""
    return _switch(queue, out, where, accepts=True)


@app.command
def remove(queue: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Remove a queue without jobs and without queues below it."""
    with where.connect() as hub:
        return tell(out.printer, hub.queues.remove(queue), "queue")


@app.command
def limit(
    account: Annotated[str, Parameter(help="The account; it binds all below, in every queue.")],
    limits: Amounts = "",
    *,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Limit what an account may have running at once; without amounts the limit is taken away."""
    with where.connect() as hub:
        return tell(out.printer, hub.queues.limit(account, parse_limits(limits, "limits")), "account")


@app.command(name="limits")
def list_limits(*, out: Output = _OUT, where: Where = _WHERE) -> int:
    """List limits on accounts, and what runs under each."""
    with where.connect() as hub:
        return show_list(out.printer, hub.queues.limits(), LIMITS, lambda one: one.account, 0)
