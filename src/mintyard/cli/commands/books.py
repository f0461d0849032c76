"""`hold`, `statement`, `price` and `node`: the books and the machines (L3, L5, L8, U12)."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from mintyard.cli.asking import amounts_of, since_now
from mintyard.cli.commands.account import show_list, tell
from mintyard.cli.options import Output, UnitName, Where
from mintyard.cli.printer import state_style
from mintyard.cli.quantities import age, count, moment, size
from mintyard.cli.tables import Column
from mintyard.cli.watching import follow
from mintyard.domain.errors import Exit, InvalidSpec
from mintyard.wire.nodes import Node

holds = App(name="hold", help="Set amounts aside for something that is not a job, or give them to a holder.")
prices = App(name="price", help="See and set prices.")
nodes = App(name="node", help="See nodes, and say which take work.")
_OUT, _WHERE = Output(), Where()
Number = Annotated[int, Parameter(help="The hold's number.")]
Amounts = Annotated[str, Parameter(help="UNIT=AMOUNT, as often as needed; a bare amount is money.")]
HoldState = Literal["held", "settled", "voided", "expired", "any"]

HOLDS = (
    Column("HOLD", lambda one: str(one.hold), right=True),
    Column("ACCOUNT", lambda one: one.account, flexible=True),
    Column("STATE", lambda one: one.state, style=lambda one: state_style(one.state)),
    Column("JOB", lambda one: str(one.job or "-"), right=True),
    Column(
        "AMOUNTS",
        lambda one: " ".join(dict.fromkeys(f"{line.amount} {line.unit}" for line in one.lines)),
        flexible=True,
    ),
    Column("HOLDER", lambda one: one.holder, flexible=True),
    Column("EXPIRES", lambda one: moment(one.expires_at)),
    Column("NOTE", lambda one: one.note, flexible=True),
)


@holds.command
def place(
    *amounts: Amounts,
    account: Annotated[str, Parameter(name=["--account", "-A"])] = "",
    life: str = "1h",
    holder: str = "",
    note: str = "",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Hold amounts. With a holder it is an escrow, which the holder spends without asking.

    Parameters
    ----------
    account
        At this account; else the token's own.
    life
        How long it is kept (1h): 30m, 2d.
    holder
        Who may draw on it.
    note
        Shown with the hold.
    """
    given = amounts_of(amounts, "AMOUNT")
    if not given:
        raise InvalidSpec(field="AMOUNT", why="is missing; write such as money=5")
    with where.connect() as hub:
        made = hub.holds.place(given, account=account, life=life, holder=holder, note=note)
        return tell(out.printer, made, "hold")


@holds.command(name="ls")
def list_holds(
    account: Annotated[str, Parameter(help="Only holds of this account and those below it.")] = "",
    *,
    state: Annotated[HoldState, Parameter(name=["--state", "-t"])] = "held",
    job: int | None = None,
    limit: int = 1_000,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """List open holds; other states on demand."""
    with where.connect() as hub:
        listing = hub.holds.list(account=account, state=state, job=job)
        return show_list(out.printer, listing, HOLDS, lambda one: str(one.hold), limit)


@holds.command(name="show")
def show_hold(hold: Number, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Show a hold."""
    with where.connect() as hub:
        found = hub.holds.show(hold)
    if out.is_json:
        out.printer.json(found)
        return Exit.OK
    out.printer.pairs(
        [
            ("hold", str(found.hold)),
            ("account", found.account),
            ("state", found.state),
            ("job", str(found.job or "")),
            *((f"held at {line.account}", f"{line.amount} {line.unit}") for line in found.lines),
            ("drawn", " ".join(f"{amount} {unit}" for unit, amount in found.drawn.items())),
            ("used", " ".join(f"{amount} {unit}" for unit, amount in found.used.items())),
            ("holder", found.holder),
            ("note", found.note),
            ("placed", moment(found.placed_at)),
            ("expires", moment(found.expires_at)),
            ("closed", moment(found.closed_at)),
        ]
    )
    return Exit.OK


@holds.command
def extend(hold: Number, *amounts: Amounts, life: str = "", out: Output = _OUT, where: Where = _WHERE) -> int:
    """Add amounts to a hold, or let it live so long from now.

    Parameters
    ----------
    life
        From now on: 30m, 2d.
    """
    with where.connect() as hub:
        change = hub.holds.extend(hold, amounts_of(amounts, "AMOUNT"), life=life or None)
        return tell(out.printer, change, "hold")


@holds.command
def draw(hold: Number, *amounts: Amounts, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Report what an escrow's holder has spent, in total so far."""
    with where.connect() as hub:
        return tell(out.printer, hub.holds.draw(hold, amounts_of(amounts, "AMOUNT")), "hold")


@holds.command
def settle(hold: Number, *amounts: Amounts, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Replace a hold by what was used; the rest is released."""
    with where.connect() as hub:
        return tell(out.printer, hub.holds.settle(hold, amounts_of(amounts, "AMOUNT")), "hold")


@holds.command
def void(hold: Number, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Release a hold; what an escrow has drawn stays spent."""
    with where.connect() as hub:
        return tell(out.printer, hub.holds.void(hold), "hold")


# --- statement ------------------------------------------------------------------------------------------------------

LINES = (
    Column("AT", lambda line: moment(line.at)),
    Column("CAUSE", lambda line: line.cause, flexible=True),
    Column("FROM", lambda line: line.debit, flexible=True),
    Column("TO", lambda line: line.credit, flexible=True),
    Column("AMOUNT", lambda line: line.amount, right=True),
    Column("LEFT", lambda line: line.left, right=True),
    Column("HELD", lambda line: line.held, right=True),
    Column("SPENT", lambda line: line.spent, right=True),
    Column("JOB", lambda line: str(line.job or ""), right=True),
)


def statement(
    account: Annotated[str, Parameter(help="The account; else the token's own.")] = "",
    *,
    unit: Annotated[UnitName, Parameter(name=["--unit", "-u"])] = "money",
    since: str = "",
    until: str = "",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Show what moved at an account in one unit, with the balance before and after.

    Parameters
    ----------
    unit
        money, gpu_hours ...
    since
        From this instant on (2030-01-31T12:00:00Z).
    until
        Before this instant.
    """
    with where.connect() as hub:
        name = account or hub.whoami().account
        found = hub.statement(
            name, unit, since=since_now(since, "--since"), until=since_now(until, "--until")
        )
    if out.is_json:
        out.printer.json(found)
        return Exit.OK
    for title, balance in (("before", found.opening), ("after", found.closing)):
        if title == "after" and found.lines:
            out.printer.table(found.lines, LINES)
        out.printer.line(
            f"{title}: {balance.left} left, {balance.held} held, {balance.spent} spent, {balance.expired} expired;"
            f" {balance.granted} granted, {balance.refunded} refunded ({found.unit})"
        )
    return Exit.OK


# --- prices ---------------------------------------------------------------------------------------------------------

PRICES = (
    Column("BOOK", lambda one: str(one.number), right=True),
    Column("NOW", lambda one: "*" if one.in_force else ""),
    Column("GPU", lambda one: one.gpu, right=True),
    Column("CPU", lambda one: one.cpu, right=True),
    Column("MEMORY", lambda one: one.memory, right=True),
    Column("STORAGE", lambda one: one.storage, right=True),
    Column(
        "GPU MODELS",
        lambda one: " ".join(f"{name}={rate}" for name, rate in one.gpu_models.items()),
        flexible=True,
    ),
    Column("FROM", lambda one: moment(one.effective_from)),
)


@prices.command(name="ls")
def list_prices(*, out: Output = _OUT, where: Where = _WHERE) -> int:
    """List price books: money per hour of a GPU, a core, a GB of memory and a TB of storage."""
    with where.connect() as hub:
        return show_list(out.printer, hub.prices.list(), PRICES, lambda one: str(one.number), 0)


@prices.command(name="set")
def set_prices(
    *,
    gpu: str = "5",
    cpu: str = "0.1",
    memory: str = "0.05",
    storage: str = "0.02",
    gpu_model: Annotated[list[str] | None, Parameter(name="--gpu-model", negative="")] = None,
    effective: Annotated[str, Parameter(name="--from")] = "",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Set a whole price book; jobs admitted before keep their prices.

    Parameters
    ----------
    gpu
        Per GPU-hour (5).
    cpu
        Per core-hour (0.1).
    memory
        Per GB-hour (0.05).
    storage
        Per TB-hour (0.02).
    gpu_model
        MODEL=RATE where a model differs, as often as needed.
    effective
        From when on; at once without it.
    """
    models = {}
    for part in gpu_model or []:
        name, equals, rate = part.partition("=")
        if not equals or not name or not rate or name in models:
            raise InvalidSpec(field="--gpu-model", why=f"{part[:40]!r} is not MODEL=RATE, each model once")
        models[name] = rate
    with where.connect() as hub:
        change = hub.prices.set(
            gpu=gpu, cpu=cpu, memory=memory, storage=storage, gpu_models=models, effective_from=since_now(effective, "--from")
        )  # fmt: skip
        return tell(out.printer, change, "price book")


# --- nodes ----------------------------------------------------------------------------------------------------------


def _used(node: Node, what: str) -> str:
    if what == "memory":
        return f"{size(node.used_memory_mib)}/{size(node.memory_mib)}"
    if what == "gpus":
        return f"{count(node.used_gpus_milli)}/{node.gpus}" if node.gpus else "-"
    return f"{count(node.used_cpus_milli)}/{count(node.cpus_milli)}"


NODES = (
    Column("NODE", lambda one: one.node, flexible=True),
    Column("STATE", lambda one: one.state, style=lambda one: state_style(one.state)),
    Column("ENGINE", lambda one: one.engine),
    Column("GPUS", lambda one: _used(one, "gpus"), right=True),
    Column(
        "MODEL",
        lambda one: f"{one.gpu_model}{' (virtual)' if one.virtual and one.gpus else ''}",
        flexible=True,
    ),
    Column("CPUS", lambda one: _used(one, "cpus"), right=True),
    Column("MEMORY", lambda one: _used(one, "memory"), right=True),
    Column("JOBS", lambda one: str(one.running), right=True),
    Column("AGE", lambda one: age(one.joined_at), right=True),
    Column("REASON", lambda one: one.reason, flexible=True),
)
NodeName = Annotated[str, Parameter(help="The node's name.")]
Reason = Annotated[str, Parameter(name="--reason", help="Kept with the node.")]


@nodes.command(name="ls")
def list_nodes(
    *,
    state: Annotated[str, Parameter(name=["--state", "-t"])] = "",
    engine: str = "",
    limit: int = 1_000,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"], negative="")] = False,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """List nodes: what they have, and how much of it is in use.

    Parameters
    ----------
    state
        Only nodes in this state; removed ones show only so.
    engine
        Only nodes of this engine.
    limit
        At most so many; 0 lists all.
    watch
        Then show each change, until Ctrl-C.
    """
    with where.connect() as hub:
        listing = hub.nodes.list(state=state, engine=engine)
        if watch:
            most = limit or 2**31
            return follow(
                out.printer,
                listing.first(most).items,
                lambda: listing.first(most).items,
                NODES,
                key=lambda one: one.node,
            )
        return show_list(out.printer, listing, NODES, lambda one: one.node, limit)


@nodes.command(name="show")
def show_node(node: NodeName, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Show a node."""
    with where.connect() as hub:
        found = hub.nodes.show(node)
    if out.is_json:
        out.printer.json(found)
        return Exit.OK
    out.printer.pairs(
        [
            ("node", found.node),
            ("state", found.state),
            ("reason", found.reason),
            ("engine", found.engine),
            (
                "gpus",
                f"{_used(found, 'gpus')} {found.gpu_model}{' (declared, not real)' if found.virtual else ''}",
            ),
            ("cpus", _used(found, "cpus")),
            ("memory", _used(found, "memory")),
            ("labels", " ".join(found.labels)),
            ("running", str(found.running)),
            ("joined", moment(found.joined_at)),
        ]
    )
    return Exit.OK


@nodes.command
def cordon(node: NodeName, *, reason: Reason = "", out: Output = _OUT, where: Where = _WHERE) -> int:
    """Take no new work on a node."""
    with where.connect() as hub:
        return tell(out.printer, hub.nodes.cordon(node, reason), "node")


@nodes.command
def uncordon(node: NodeName, *, reason: Reason = "", out: Output = _OUT, where: Where = _WHERE) -> int:
    """Take work on a node again."""
    with where.connect() as hub:
        return tell(out.printer, hub.nodes.uncordon(node, reason), "node")


@nodes.command
def drain(node: NodeName, *, reason: Reason = "", out: Output = _OUT, where: Where = _WHERE) -> int:
    """Let a node run empty: what runs ends, nothing new starts."""
    with where.connect() as hub:
        return tell(out.printer, hub.nodes.drain(node, reason), "node")


@nodes.command
def remove(node: NodeName, *, reason: Reason = "", out: Output = _OUT, where: Where = _WHERE) -> int:
    """Forget a node that runs nothing."""
    with where.connect() as hub:
        return tell(out.printer, hub.nodes.remove(node, reason), "node")
