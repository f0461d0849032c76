"""`whoami`, `watch`, `login`, `logout`, `config` and `completion`: the client's own affairs."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from mintyard.cli.options import PATIENT_RETRY_S, Output, Where
from mintyard.cli.printer import state_style
from mintyard.cli.quantities import count, moment, size
from mintyard.cli.tables import Column, plain
from mintyard.credentials import Context, CredentialStore
from mintyard.domain.errors import Exit, MintyardError, TokenMissing

config = App(name="config", help="See the stored logins and what is in force.")
_OUT, _WHERE = Output(), Where()
TokenFile = Annotated[str, Parameter(name="--token-file")]


def whoami(*, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Ask the hub what the token in use may do."""
    with where.connect() as hub:
        found = hub.whoami()
    if out.is_json:
        out.printer.json(found)
        return Exit.OK
    ceilings = [f"{amount} {unit}" for block in found.blocks for unit, amount in block.ceilings.items()]
    caps = found.caps
    out.printer.pairs(
        [
            ("hub", hub.address.url),
            ("account", found.account),
            ("scopes", " ".join(found.scopes)),
            ("expires", moment(found.expires_at)),
            ("token", found.blocks[0].block if found.blocks else ""),
            ("narrowed", f"{len(found.blocks) - 1} times" if len(found.blocks) > 1 else ""),
            ("ceilings", ", ".join(ceilings)),
            ("gpus a job", "" if caps.gpus_milli is None else count(caps.gpus_milli)),
            ("cpus a job", "" if caps.cpus_milli is None else count(caps.cpus_milli)),
            ("memory a job", "" if caps.memory_mib is None else size(caps.memory_mib)),
            ("clusters", " ".join(found.clusters or ())),
            ("models", " ".join(found.models or ())),
            ("jobs", " ".join(map(str, found.jobs or ()))),
        ]
    )
    return Exit.OK


def watch(
    *,
    kind: Annotated[list[str] | None, Parameter(name=["--kind", "-k"], negative="")] = None,
    job: int | None = None,
    after: int | None = None,
    count: int = 0,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Show what changes, as it happens, until Ctrl-C. In JSON one line an event.

    Parameters
    ----------
    kind
        Only events of these kinds.
    job
        Only this job.
    after
        Begin after this record of the journal instead of now.
    count
        End after so many events.
    """
    seen = 0
    with where.connect(PATIENT_RETRY_S) as hub:
        try:
            for event in hub.watch(kinds=tuple(kind or ()), job=job, after=after):
                if out.is_json:
                    out.printer.json_line(event)
                else:
                    fields = " ".join(f"{name}={_short(value)}" for name, value in event.data.items())
                    out.printer.line(
                        f"{moment(event.at)} {event.kind} {event.account} {plain(fields)}", flush=True
                    )
                seen += 1
                if count and seen >= count:
                    return Exit.OK
        except KeyboardInterrupt:
            return 130
    return Exit.OK


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def login(
    hub: Annotated[str, Parameter(help="URL of the hub.")],
    *,
    name: str = "",
    kept_in: TokenFile = "-",
    out: Output = _OUT,
) -> int:
    """Store a token for a hub, with the hub's keys beside it, and use it from now on.

    The token is read from standard input (or --token-file) and tried first.

    Parameters
    ----------
    name
        The login's name; the hub's host by default.
    kept_in
        A file with the token.
    """
    from urllib.parse import urlsplit

    from mintyard.cli.commands.token import read_token
    from mintyard.cli.options import skip_httpx_command_line
    from mintyard.sdk.address import check_url

    skip_httpx_command_line()
    from mintyard.sdk.sync.hub import Hub

    url = check_url(hub)
    if kept_in == "-" and sys.stdin.isatty():
        out.printer.remark("paste the token, then Ctrl-D:")
    with Hub(url, read_token(kept_in), retry_s=5.0) as client:
        found = client.whoami()
        keys = client.tokens.keys()
    label = name or (urlsplit(url).hostname or "hub").replace(":", "-")
    CredentialStore().save(label, Context(url, client.address.token, keys))
    if out.is_json:
        out.printer.json(
            {"name": label, "hub": url, "account": found.account, "expires_at": found.expires_at}
        )
    else:
        out.printer.line(f"logged in to {url} as {found.account} ({label})")
    return Exit.OK


def logout(name: Annotated[str, Parameter(help="The login's name; else the one in use.")] = "") -> int:
    """Forget a stored login with its token. The token itself goes on: `mintyard token revoke` ends it."""
    store = CredentialStore()
    label = name or store.current
    if not label:
        raise TokenMissing()
    store.remove(label)
    print(f"forgot {label}")
    return Exit.OK


_CONTEXTS = (
    Column("USED", lambda row: "*" if row["current"] else ""),
    Column("NAME", lambda row: row["name"], flexible=True),
    Column("HUB", lambda row: row["hub"], flexible=True),
    Column("ACCOUNT", lambda row: row["account"], flexible=True),
    Column("EXPIRES", lambda row: moment(row["expires_at"])),
    Column("TOKEN", lambda row: row["state"], style=lambda row: state_style(row["state"])),
)


def _described(name: str, context: Context, current: str) -> dict[str, Any]:
    """A login without its secret."""
    from mintyard import credentials
    from mintyard.wire.bounds import format_instant

    row: dict[str, Any] = {
        "name": name, "hub": context.hub, "current": name == current, "account": "", "expires_at": None, "state": "missing",
    }  # fmt: skip
    if context.token and context.keys is None:
        row["state"] = "kept, no keys"
    elif context.token and context.keys is not None:
        try:
            authority = credentials.read(context.token, context.keys)
            row |= {
                "account": authority.account,
                "expires_at": format_instant(authority.expires_at),
                "state": "ok",
            }
            import time

            if time.time_ns() >= authority.expires_at:
                row["state"] = "expired"
        except MintyardError as error:
            row["state"] = error.code
    return row


@config.command(name="show")
def show_config(*, out: Output = _OUT, where: Where = _WHERE) -> int:
    """Show the stored logins, which is in use, and what the environment overrides. No secret is shown."""
    store = CredentialStore()
    found = where.address()
    rows = [_described(name, context, store.current) for name, context in sorted(store.contexts().items())]
    variables = sorted(name for name in os.environ if name.startswith("MINTYARD_"))
    if out.is_json:
        out.printer.json(
            {
                "file": str(store.path),
                "hub": found.url,
                "source": found.source,
                "environment": variables,
                "contexts": rows,
            }
        )
        return Exit.OK
    out.printer.pairs(
        [
            ("file", str(store.path)),
            ("hub", found.url),
            ("token from", found.source or "nowhere"),
            ("environment", " ".join(variables)),
        ]
    )
    if rows:
        out.printer.line()
        out.printer.table(rows, _CONTEXTS)
    for warning in found.warnings:
        out.printer.remark(f"warning: {warning}")
    return Exit.OK


@config.command
def use(name: Annotated[str, Parameter(help="The login's name.")]) -> int:
    """Use this login from now on."""
    CredentialStore().use(name)
    print(f"using {name}")
    return Exit.OK


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="bash, zsh or fish.")]) -> int:
    """Write the completion script of a shell: `source <(mintyard completion bash)`."""
    from mintyard.cli.application import application

    print(application().generate_completion(prog_name="mintyard", shell=shell))
    return Exit.OK
