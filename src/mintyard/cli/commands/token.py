"""`token`: mint at the hub; narrow, inspect and verify here, without one (T1-T4)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from mintyard.cli.asking import amounts_of, confirm_file, since_now, write_secret
from mintyard.cli.commands.account import TokenFile, show_list, tell
from mintyard.cli.options import Output, ScopeName, Where
from mintyard.cli.printer import Printer, state_style
from mintyard.cli.quantities import age, count, moment, seconds_of, size
from mintyard.cli.tables import Column
from mintyard.credentials import Context, CredentialStore, KeySet, decode_key_set
from mintyard.domain.errors import Exit, FileUnreadable, InvalidSpec
from mintyard.domain.limits import DEFAULT_TOKEN_LIFE_HOURS
from mintyard.domain.tokens.authority import Authority
from mintyard.domain.units import Unit, format_amount
from mintyard.wire.bounds import format_instant
from mintyard.wire.tokens import MintedToken, Role

if TYPE_CHECKING:
    from mintyard.sdk.sync.hub import Hub

app = App(name="token", help="Mint compute tokens, narrow them offline, look at them, end them.")
_OUT, _WHERE = Output(), Where()
_LIMITS = "What the token is limited to"
MAX_TOKEN_FILE_BYTES = 16_384
LIFE_MARGIN_S = 5
"""A new token's life counts from when the hub signs it."""
Id = Annotated[str, Parameter(help="The token's id, 32 hex digits; `token ls` shows it.")]
Given = Annotated[str, Parameter(help="A file with the token, `-` for standard input; else the one in use.")]
Keys = Annotated[
    str, Parameter(name="--keys", help="A file with the hub's key set; else the one stored with the login.")
]
_Scopes = Annotated[list[ScopeName] | None, Parameter(name="--scope", negative="", group=_LIMITS)]
_Ceilings = Annotated[list[str] | None, Parameter(name="--ceiling", negative="", group=_LIMITS)]
_Text = Annotated[str | None, Parameter(group=_LIMITS)]
_Names = Annotated[list[str] | None, Parameter(negative="", group=_LIMITS)]
_Jobs = Annotated[list[int] | None, Parameter(negative="", group=_LIMITS)]

COLUMNS = (
    Column("TOKEN", lambda one: one.id),
    Column("NAME", lambda one: one.name, flexible=True),
    Column("ACCOUNT", lambda one: one.account, flexible=True),
    Column("STATE", lambda one: one.state, style=lambda one: state_style(one.state)),
    Column("EXPIRES", lambda one: moment(one.expires_at)),
    Column("AGE", lambda one: age(one.registered_at), right=True),
)


@app.command
def mint(
    account: Annotated[str, Parameter(help="For this account; else the token's own.")] = "",
    *,
    role: Annotated[Role | None, Parameter(name=["--role", "-r"], group=_LIMITS)] = None,
    scope: _Scopes = None,
    name: str = "",
    life: Annotated[str, Parameter(name="--life", group=_LIMITS)] = "",
    not_before: _Text = None,
    ceiling: _Ceilings = None,
    gpus: _Text = None,
    cpus: _Text = None,
    memory: _Text = None,
    cluster: _Names = None,
    model: _Names = None,
    job: _Jobs = None,
    kept_in: TokenFile = "",
    save: str = "",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Mint a new token. Its text is shown this once.

    Parameters
    ----------
    role
        What it may do; a member's by default.
    scope
        Single permissions instead of a role, as often as needed.
    name
        For people to know it by.
    life
        How long: 12h, 30d. Else a day, or as long as the token in use.
    not_before
        From when on.
    ceiling
        UNIT=AMOUNT over all its uses together: --ceiling gpu_hours=10.
    gpus
        The most that one job may ask for.
    cpus
        The most cores that one job may ask for.
    memory
        The most memory that one job may ask for.
    cluster
        Only at these hubs.
    model
        Only these models.
    job
        Only these jobs.
    kept_in
        Write it there (0600) instead of to standard output.
    save
        Store it as a login of this name, and use it from now on.
    """
    confirm_file(kept_in)
    ceilings, begins = amounts_of(ceiling or [], "--ceiling"), since_now(not_before or "", "--not-before")
    with where.connect() as hub:
        minted = hub.tokens.mint(
            account, role=role, scopes=scope, name=name, life=life or at_most(hub, DEFAULT_TOKEN_LIFE_HOURS * 3_600),
            not_before=begins, ceilings=ceilings, gpus=gpus, cpus=cpus, memory=memory, clusters=cluster,
            models=model, jobs=job,
        )  # fmt: skip
        if out.is_json:
            out.printer.json(minted)
        hand_out(out.printer, hub, minted, kept_in=kept_in, save=save)
    return Exit.OK


def at_most(hub: Hub, seconds: int) -> int:
    """`seconds`, or what is left of the life of the token in use: none outlives its maker."""
    left_s = seconds_of(hub.whoami().expires_at) - time.time() - LIFE_MARGIN_S
    return max(1, min(seconds, int(left_s)))


def hand_out(printer: Printer, hub: Hub, minted: MintedToken, *, kept_in: str, save: str) -> None:
    """Put a new token where it was asked for: a file, a stored login, else standard output."""
    if kept_in and kept_in != "-":
        write_secret(kept_in, minted.token)
        printer.remark(f"token {minted.id} for {minted.account} written to {kept_in}")
    if save:
        CredentialStore().save(save, Context(hub.address.url, minted.token, hub.tokens.keys()))
        printer.remark(f"stored as {save}, which is in use from now on")
    if not printer.is_json and (kept_in == "-" or not (kept_in or save)):
        printer.line(minted.token)
        printer.remark(f"token {minted.id} for {minted.account}, valid until {moment(minted.expires_at)}")


@app.command
def narrow(
    token: Given = "",
    *,
    keys: Keys = "",
    account: _Text = None,
    role: Annotated[Role | None, Parameter(name=["--role", "-r"], group=_LIMITS)] = None,
    scope: _Scopes = None,
    life: _Text = None,
    expires: _Text = None,
    not_before: _Text = None,
    ceiling: _Ceilings = None,
    gpus: _Text = None,
    cpus: _Text = None,
    memory: _Text = None,
    cluster: _Names = None,
    model: _Names = None,
    job: _Jobs = None,
    seal: Annotated[bool, Parameter(name="--seal", negative="")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Make a token that allows less, here and without the hub. A ceiling binds over all its uses together.

    Parameters
    ----------
    account
        Pay only from this account or below.
    role
        Only this role's permissions.
    scope
        Only these permissions.
    life
        End after so long: 30m, 12h.
    expires
        End then.
    not_before
        Begin then.
    ceiling
        UNIT=AMOUNT over all its uses together.
    gpus
        The most that one job may ask for.
    cpus
        The most cores that one job may ask for.
    memory
        The most memory that one job may ask for.
    cluster
        Only at these hubs.
    model
        Only these models.
    job
        Only these jobs.
    seal
        Nobody can narrow the new token further.
    json
        Write JSON.
    """
    from mintyard import credentials
    from mintyard.sdk import offline
    from mintyard.sdk.narrowing import restrictions

    held, known = offline.own(read_token(token), read_keys(keys))
    wanted = restrictions(
        account=account, role=role, scopes=scope, life=life, expires_at=since_now(expires or "", "--expires"),
        not_before=since_now(not_before or "", "--not-before"), ceilings=amounts_of(ceiling or [], "--ceiling"),
        gpus=gpus, cpus=cpus, memory=memory, clusters=cluster, models=model, jobs=job,
    )  # fmt: skip
    made = credentials.narrow(held, known, wanted)
    made = credentials.seal(made, known) if seal else made
    authority = credentials.read(made, known)
    if json:
        Printer(json=True).json({"token": made, "id": authority.root, "block": authority.blocks[-1].block})
    else:
        print(made)
    return Exit.OK


@app.command
def inspect(
    token: Given = "",
    *,
    keys: Keys = "",
    raw: Annotated[bool, Parameter(name="--raw", negative="")] = False,
    out: Output = _OUT,
) -> int:
    """Show what a token holds, block by block, here and without the hub; also when it has expired.

    Parameters
    ----------
    raw
        The Datalog of each block as well.
    """
    from mintyard.sdk import offline

    found = offline.inspect(*offline.own(read_token(token), read_keys(keys)))
    authority, now = found.authority, time.time_ns()
    if out.is_json:
        out.printer.json(
            {
                "id": authority.root, "key": found.key, "key_state": found.key_state, "sealed": found.sealed,
                "expired": now >= authority.expires_at, "authority": authority_json(authority),
                "blocks": [{"block": one.block, "statements": one.statements} for one in found.blocks],
            }
        )  # fmt: skip
        return Exit.OK
    state = (
        "expired"
        if now >= authority.expires_at
        else "not yet valid"
        if now < authority.not_before
        else "valid"
    )
    out.printer.pairs(
        [
            ("token", authority.root),
            ("time", state),
            ("signed with", f"{found.key} ({found.key_state.value})"),
            ("blocks", f"{len(found.blocks)}{', sealed' if found.sealed else ''}"),
            *_pairs(authority),
        ]
    )
    for number, block in enumerate(found.blocks if raw else ()):
        out.printer.line(f"\nblock {number} {block.block}")
        for statement in block.statements:
            out.printer.line(f"  {statement}")
    return Exit.OK


def _pairs(authority: Authority) -> list[tuple[str, str]]:
    caps = authority.caps
    ceilings = [
        f"{format_amount(limit, unit)} {unit}"
        for block in authority.blocks
        for unit, limit in block.ceilings.items()
    ]
    return [
        ("account", authority.account),
        ("scopes", " ".join(sorted(authority.scopes))),
        ("issued", moment(format_instant(authority.issued_at))),
        ("valid from", moment(format_instant(authority.not_before)) if authority.not_before else ""),
        ("expires", moment(format_instant(authority.expires_at))),
        ("gpus a job", "" if caps.gpus_milli is None else count(caps.gpus_milli)),
        ("cpus a job", "" if caps.cpus_milli is None else count(caps.cpus_milli)),
        ("memory a job", "" if caps.memory_mib is None else size(caps.memory_mib)),
        ("ceilings", ", ".join(ceilings)),
        ("clusters", " ".join(authority.clusters or ())),
        ("models", " ".join(authority.models or ())),
        ("jobs", " ".join(map(str, authority.jobs or ()))),
    ]


def authority_json(authority: Authority) -> Mapping[str, Any]:
    """The rights as the API's `whoami` shows them."""
    return {
        "account": authority.account,
        "scopes": sorted(authority.scopes),
        "issued_at": format_instant(authority.issued_at),
        "not_before": format_instant(authority.not_before) if authority.not_before else None,
        "expires_at": format_instant(authority.expires_at),
        "caps": {name: getattr(authority.caps, name) for name in authority.caps.__struct_fields__},
        "ceilings": [
            {"block": one.block, "unit": Unit(unit), "amount": format_amount(limit, Unit(unit))}
            for one in authority.blocks
            for unit, limit in one.ceilings.items()
        ],
        "clusters": authority.clusters,
        "models": authority.models,
        "jobs": authority.jobs,
    }


@app.command
def verify(token: Given = "", *, keys: Keys = "", out: Output = _OUT) -> int:
    """Check a token's signatures, key and times here, without the hub; exit status 4 when it doesn't hold. Whether it was
    revoked, only the hub knows: `mintyard whoami`."""
    from mintyard.sdk import offline

    authority = offline.verify(*offline.own(read_token(token), read_keys(keys)))
    if out.is_json:
        out.printer.json({"valid": True, "id": authority.root, "authority": authority_json(authority)})
    elif not out.quiet:
        until = moment(format_instant(authority.expires_at))
        out.printer.line(f"token {authority.root} is valid for {authority.account} until {until}")
    return Exit.OK


@app.command
def ls(
    account: Annotated[str, Parameter(help="Only tokens for this account and those below it.")] = "",
    *,
    state: Annotated[
        Literal["", "active", "suspended", "revoked", "expired"], Parameter(name=["--state", "-t"])
    ] = "",
    limit: int = 1_000,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """List registered tokens; their texts are kept nowhere."""
    with where.connect() as hub:
        return show_list(
            out.printer, hub.tokens.list(account=account, state=state), COLUMNS, lambda one: one.id, limit
        )


@app.command
def show(token: Id, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Show a registered token."""
    with where.connect() as hub:
        found = hub.tokens.show(token)
    if out.is_json:
        out.printer.json(found)
        return Exit.OK
    out.printer.pairs(
        [
            ("token", found.id),
            ("name", found.name),
            ("account", found.account),
            ("state", found.state),
            ("registered", moment(found.registered_at)),
            ("expires", moment(found.expires_at)),
            ("parents", " ".join(found.parents)),
            ("blocks revoked", " ".join(found.blocks_revoked)),
        ]
    )
    return Exit.OK


@app.command
def revoke(
    token: Annotated[str, Parameter(help="The token's id; a file with a token, or `-`, also does.")] = "",
    *,
    block: str = "",
    all_of: str = "",
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """End a token and everything narrowed from it, at once and for good.

    Parameters
    ----------
    block
        Only what was narrowed from it at this block.
    all_of
        Instead: every token issued so far for this account and those below it.
    """
    if bool(token) == bool(all_of):
        raise InvalidSpec(field="TOKEN", why="is missing; give one, or --all-of ACCOUNT")
    with where.connect() as hub:
        if all_of:
            return tell(out.printer, hub.tokens.revoke_all(all_of), "tokens of")
        name = token_id(token)
        change = hub.tokens.revoke_block(name, block) if block else hub.tokens.revoke(name)
        return tell(out.printer, change, "block" if block else "token")


@app.command
def suspend(token: Id, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Refuse a token and everything narrowed from it until it is resumed."""
    with where.connect() as hub:
        return tell(out.printer, hub.tokens.suspend(token_id(token)), "token")


@app.command
def resume(token: Id, *, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Let a suspended token be used again."""
    with where.connect() as hub:
        return tell(out.printer, hub.tokens.resume(token_id(token)), "token")


def token_id(text: str) -> str:
    """An id as it is; of a file with a token (or `-`) the id of that token."""
    if len(text) == 32 and all(letter in "0123456789abcdef" for letter in text):
        return text
    from mintyard.sdk import offline

    return offline.inspect(*offline.own(read_token(text), None)).authority.root


def read_token(name: str) -> str:
    """The token in a file or on standard input; empty when none is named. The text itself as argument would be visible to all,
    so it is refused."""
    if not name:
        return ""
    from mintyard.credentials import looks_like_token

    if looks_like_token(name):
        why = "is a token itself, which others could read in the list of processes; give a file, or - and pipe it in"
        raise InvalidSpec(field="TOKEN", why=why)
    text = _read(name).strip()
    if not text:
        raise FileUnreadable(path=name, why="it is empty")
    return text


def read_keys(name: str) -> KeySet | None:
    return decode_key_set(_read(name, 65_536)) if name else None


def _read(name: str, most: int = MAX_TOKEN_FILE_BYTES) -> str:
    try:
        with os.fdopen(os.dup(sys.stdin.fileno()), "rb") if name == "-" else Path(name).open("rb") as opened:
            data = opened.read(most + 1)
        if len(data) > most:
            raise FileUnreadable(path=name, why=f"it is longer than {most} bytes")
        return data.decode()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text"
        raise FileUnreadable(path=name, why=why.lower()) from None
