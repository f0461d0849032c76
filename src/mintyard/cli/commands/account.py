"""`account`, `grant` and `onboard`: who may spend what (L1, L2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from mintyard.cli.asking import confirm_file, since_now
from mintyard.cli.commands.job import show_page
from mintyard.cli.options import Output, UnitName, Where
from mintyard.cli.printer import Printer, state_style
from mintyard.cli.quantities import age, moment
from mintyard.cli.tables import Column
from mintyard.domain.errors import AlreadyExists, Exit, InvalidSpec
from mintyard.domain.ids import ROOT, check_account_id
from mintyard.domain.units import Unit
from mintyard.wire.accounts import Account, Balance
from mintyard.wire.pages import Change

if TYPE_CHECKING:
    from mintyard.sdk.sync.hub import Hub

app = App(name="account", help="Open accounts and see what they have.")
grants = App(name="grant", help="Give accounts what they may spend.")
_OUT, _WHERE = Output(), Where()
ONBOARD_LIFE_S = 30 * 86_400
Name = Annotated[str, Parameter(help="A path of names such as acme/vision/ann; / is the hub itself.")]
TokenFile = Annotated[str, Parameter(name="--token-file")]
Number = Annotated[int, Parameter(help="The grant's number.")]


def _money(account: Account) -> Balance | None:
    return next((balance for balance in account.balances if balance.unit is Unit.MONEY), None)


def _left(account: Account) -> str:
    return " ".join(
        f"{balance.left} {balance.unit}" for balance in account.balances if balance.unit is not Unit.MONEY
    )


COLUMNS = (
    Column("ACCOUNT", lambda one: one.account, flexible=True),
    Column("STATE", lambda one: one.state, style=lambda one: state_style(one.state)),
    Column("LEFT", lambda one: money.left if (money := _money(one)) else "-", right=True),
    Column("HELD", lambda one: money.held if (money := _money(one)) else "-", right=True),
    Column("SPENT", lambda one: money.spent if (money := _money(one)) else "-", right=True),
    Column("OTHER UNITS LEFT", _left, flexible=True),
    Column("AGE", lambda one: age(one.opened_at), right=True),
)
_BALANCES = (
    Column("UNIT", lambda one: str(one.unit)),
    *(
        Column(name.upper(), lambda one, name=name: getattr(one, name), right=True)
        for name in ("granted", "refunded", "left", "held", "spent", "expired")
    ),
)
GRANTS = (
    Column("GRANT", lambda one: str(one.grant), right=True),
    Column("ACCOUNT", lambda one: one.account, flexible=True),
    Column("UNIT", lambda one: str(one.unit)),
    Column("STATE", lambda one: one.state, style=lambda one: state_style(one.state)),
    Column("GRANTED", lambda one: one.granted, right=True),
    Column("LEFT", lambda one: one.left, right=True),
    Column("HELD", lambda one: one.held, right=True),
    Column("SPENT", lambda one: one.spent, right=True),
    Column("PRIORITY", lambda one: str(one.priority), right=True),
    Column("EXPIRES", lambda one: moment(one.expires_at)),
    Column("NOTE", lambda one: one.note, flexible=True),
)


def tell(printer: Printer, change: Change, what: str) -> int:
    """What a write did: the thing and its state now."""
    if printer.is_json:
        printer.json(change)
    else:
        printer.line(str(change.ref) if printer.quiet else f"{what} {change.ref} {change.state}")
    return Exit.OK


@app.command(name="open")
def open_account(
    account: Name,
    *,
    parents: Annotated[bool, Parameter(name=["--parents", "-p"], negative="")] = False,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Open an account below one that exists.

    Parameters
    ----------
    parents
        Open missing accounts above it as well, and don't mind when it exists.
    """
    with where.connect() as hub:
        if not parents:
            return tell(out.printer, hub.accounts.open(account), "account")
        opened = open_path(hub, account)
        change = opened[-1] if opened else Change(ref=account, state=hub.accounts.show(account).state, seq=0)
        return tell(out.printer, change, "account")


def open_path(hub: Hub, account: str) -> list[Change]:
    """Open what is missing of `account` and those above it, within what the token may; what was opened."""
    check_account_id(account)
    if account == ROOT:
        return []
    own = hub.whoami().account
    names = account.split("/")
    opened: list[Change] = []
    for depth in range(1, len(names) + 1):
        path = "/".join(names[:depth])
        if own != ROOT and not path.startswith(own + "/"):
            continue
        try:
            opened.append(hub.accounts.open(path))
        except AlreadyExists:
            continue
    return opened


@app.command
def ls(
    below: Annotated[str, Parameter(help="Only this account and those below it.")] = "",
    *,
    state: Annotated[Literal["", "active", "suspended", "closed"], Parameter(name=["--state", "-t"])] = "",
    limit: int = 1_000,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """List accounts with what they have left.

    Parameters
    ----------
    state
        Only accounts in this state.
    limit
        At most so many; 0 lists all.
    """
    with where.connect() as hub:
        return show_list(
            out.printer, hub.accounts.list(below=below, state=state), COLUMNS, lambda one: one.account, limit
        )


def show_list(printer: Printer, listing: Any, columns: Any, name: Any, limit: int) -> int:
    """A list in the form asked for: `limit` rows of it, 0 for all."""
    if limit < 0:
        raise InvalidSpec(field="--limit", why=f"is {limit}; 0 lists all")
    if limit:
        return show_page(printer, listing.first(limit), columns, name, "--limit")
    return show_page(printer, listing.first(2**31), columns, name, "")


@app.command
def show(account: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Show an account with all its balances."""
    with where.connect() as hub:
        found = hub.accounts.show(account)
    if out.is_json:
        out.printer.json(found)
        return Exit.OK
    out.printer.pairs(
        [("account", found.account), ("state", found.state), ("opened", moment(found.opened_at))]
    )
    if found.balances:
        out.printer.line()
        out.printer.table(found.balances, _BALANCES)
    else:
        out.printer.remark("nothing was granted to it; accounts above it may pay")
    return Exit.OK


@app.command
def suspend(account: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Suspend an account and those below it: nothing new starts."""
    with where.connect() as hub:
        return tell(out.printer, hub.accounts.suspend(account), "account")


@app.command
def resume(account: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Resume a suspended account."""
    with where.connect() as hub:
        return tell(out.printer, hub.accounts.resume(account), "account")


@app.command
def close(account: Name, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Close an account for good."""
    with where.connect() as hub:
        return tell(out.printer, hub.accounts.close(account), "account")


# --- grants ---------------------------------------------------------------------------------------------------------

Expiry = Annotated[
    str, Parameter(name="--expires", help="When it ends: 30d from now, or 2030-01-31T12:00:00Z.")
]


@grants.command
def create(
    account: Name,
    amount: Annotated[str, Parameter(help="How much, as a plain decimal such as 12.5.")],
    *,
    unit: Annotated[UnitName, Parameter(name=["--unit", "-u"])] = "money",
    priority: int = 100,
    starts: str = "",
    expires: Expiry = "",
    note: str = "",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Give an amount of one unit to an account.

    Parameters
    ----------
    unit
        What of: money, gpu_hours, cpu_core_hours ...
    priority
        A lower one is used up first (100).
    starts
        From when on.
    note
        Shown with the grant.
    """
    with where.connect() as hub:
        change = hub.grants.create(
            account, unit, amount, priority=priority, starts_at=since_now(starts, "--starts"),
            expires_at=since_now(expires, "--expires"), note=note,
        )  # fmt: skip
        return tell(out.printer, change, "grant")


@grants.command(name="ls")
def list_grants(
    account: Annotated[str, Parameter(help="Only grants to this account and those below it.")] = "",
    *,
    unit: Annotated[UnitName | None, Parameter(name=["--unit", "-u"])] = None,
    state: Annotated[Literal["", "active", "expired", "ended"], Parameter(name=["--state", "-t"])] = "",
    limit: int = 1_000,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """List grants and where their amounts are now."""
    with where.connect() as hub:
        listing = hub.grants.list(account=account, unit=unit or "", state=state)
        return show_list(out.printer, listing, GRANTS, lambda one: str(one.grant), limit)


@grants.command(name="show")
def show_grant(grant: Number, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Show a grant."""
    with where.connect() as hub:
        found = hub.grants.show(grant)
    if out.is_json:
        out.printer.json(found)
    else:
        fields = {name: getattr(found, name) for name in found.__struct_fields__}
        out.printer.pairs(
            (name.replace("_", " "), moment(value) if name.endswith("_at") else str(value or ""))
            for name, value in fields.items()
        )
    return Exit.OK


@grants.command
def adjust(
    grant: Number,
    *,
    add: str | None = None,
    take_back: str | None = None,
    priority: int | None = None,
    expires: Expiry = "",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Add to a grant, take back of what is left, or change its priority or end."""
    with where.connect() as hub:
        change = hub.grants.adjust(
            grant, add=add, take_back=take_back, priority=priority, expires_at=since_now(expires, "--expires")
        )
        return tell(out.printer, change, "grant")


@grants.command
def end(grant: Number, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """End a grant now: what is left expires, what is held may still be settled."""
    with where.connect() as hub:
        return tell(out.printer, hub.grants.end(grant), "grant")


@grants.command
def refund(
    grant: Number,
    amount: Annotated[str, Parameter(help="How much, at most what was spent from it.")],
    *,
    cause: str = "goodwill",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Give back to a grant what was spent from it."""
    with where.connect() as hub:
        return tell(out.printer, hub.grants.refund(grant, amount, cause), "grant")


# --- onboard --------------------------------------------------------------------------------------------------------


def onboard(
    account: Name,
    *,
    grant: Annotated[list[str] | None, Parameter(name=["--grant", "-g"], negative="")] = None,
    money: str = "",
    gpu_hours: str = "",
    expires: Expiry = "",
    role: Annotated[
        Literal["owner", "member", "auditor", "service"], Parameter(name=["--role", "-r"])
    ] = "owner",
    life: str = "",
    kept_in: TokenFile = "",
    save: str = "",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Set up an account in one step: open it and those above it, grant to it, and mint a token for it.

    Can be repeated: what exists stays, but each run grants and mints anew.

    Parameters
    ----------
    grant
        UNIT=AMOUNT, as often as needed: -g gpu_hours=100 -g money=50.
    money
        Short for -g money=AMOUNT.
    gpu_hours
        Short for -g gpu_hours=AMOUNT.
    role
        What its token may do (owner).
    life
        How long its token lives: 12h, 90d. Else 30 days, or as long as the token in use.
    kept_in
        Write the token there (0600) instead of to standard output.
    save
        Store it as a login of this name, and use it from now on.
    """
    from mintyard.sdk.request import amounts

    wanted = [(unit, value) for unit, _, value in (part.partition("=") for part in grant or [])]
    wanted += [("money", money)] * bool(money) + [("gpu_hours", gpu_hours)] * bool(gpu_hours)
    if any(not value for _, value in wanted) or len({unit for unit, _ in wanted}) < len(wanted):
        raise InvalidSpec(field="--grant", why="is UNIT=AMOUNT, each unit once")
    given = amounts(dict(wanted))
    ends_at = since_now(expires, "--expires")
    confirm_file(kept_in)
    printer = out.printer
    with where.connect() as hub:
        opened = open_path(hub, account)
        granted = [
            hub.grants.create(account, unit, value, expires_at=ends_at) for unit, value in given.items()
        ]
        from mintyard.cli.commands.token import at_most, hand_out

        minted = hub.tokens.mint(account, role=role, name=account, life=life or at_most(hub, ONBOARD_LIFE_S))

        if printer.is_json:
            told = {"account": account, "opened": opened, "grants": granted, "token": minted}
            printer.json(told)
        elif not printer.quiet:
            for change in opened:
                printer.remark(f"opened account {change.ref}")
            for change, (unit, value) in zip(granted, given.items(), strict=True):
                printer.remark(f"granted {value} {unit} (grant {change.ref})")
        hand_out(printer, hub, minted, kept_in=kept_in, save=save)
    return Exit.OK
