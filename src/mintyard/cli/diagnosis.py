"""Diagnosis: the checks of `doctor`, one function for each thing that can be wrong; they look and change nothing.

The four classic faults (O5): token validation fails, quota short, call to another cluster refused, token leaked.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mintyard import __version__, credentials
from mintyard.cli.options import Where, skip_httpx_command_line
from mintyard.cli.quantities import moment
from mintyard.credentials import CredentialStore, KeySet
from mintyard.domain.errors import Exit, MintyardError, TokenMissing
from mintyard.domain.ids import ROOT, parent_of
from mintyard.domain.limits import MAX_CLOCK_SKEW_MS
from mintyard.domain.tokens.authority import Authority
from mintyard.domain.units import NS_PER_S
from mintyard.sdk.address import Address
from mintyard.wire.bounds import format_instant

if TYPE_CHECKING:
    from mintyard.app.config import Config
    from mintyard.sdk.sync.hub import Hub

TIMEOUT_S: Final = 5.0
WARN_SKEW_S: Final = 5.0
ENDS_SOON_S: Final = 3_600
MIN_FREE_BYTES: Final = 1_073_741_824


class Finding(msgspec.Struct, frozen=True):
    """What one check found: `state` is ok, warning, fault or skipped; a fault has cause and cure, and the exit status for it."""

    check: str
    state: str
    found: str
    cause: str = ""
    cure: str = ""
    code: str = ""
    exit_status: int = 0


def _ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def _warning(check: str, found: str, cause: str, cure: str) -> Finding:
    return Finding(check, "warning", found, cause, cure)


def _fault(check: str, found: str, cause: str, cure: str, exit_status: Exit, code: str = "") -> Finding:
    return Finding(check, "fault", found, cause, cure, code, int(exit_status))


def _of_error(check: str, error: MintyardError, cause: str = "") -> Finding:
    return _fault(check, str(error), cause, error.cure, error.exit_status, error.code)


def examine(where: Where, folder: str, *, verify: bool = False) -> list[Finding]:
    """Every check in order; one that fails never keeps the later ones from being made, as far as they can be."""
    found: list[Finding] = []
    found += _guarded("login", lambda: _login(where))
    try:
        address = where.address()
    except MintyardError:
        address = None
    hub_is_up = False
    if address is not None:
        held = address
        found += _guarded("token here", lambda: _token_here(held))
        reached = _guarded("hub", lambda: _reach(held))
        found += reached
        hub_is_up = all(one.state != "fault" for one in reached)
        if hub_is_up:
            found += _guarded("token at the hub", lambda: _at_hub(where, held))
    found += _guarded("server half", lambda: _server_side(folder, verify, hub_is_up))
    return found


def _guarded(check: str, look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of one look; an error ends it and is itself a finding."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except MintyardError as error:
        found.append(_of_error(check, error))
    except OSError as error:
        why = error.strerror or str(error)
        found.append(_fault(check, why, "the operating system refused", "see the message", Exit.UNAVAILABLE))
    return found


# --- here -----------------------------------------------------------------------------------------------------------


def _login(where: Where) -> Iterator[Finding]:
    store = CredentialStore()
    found = where.address()
    if not found.token:
        error = TokenMissing()
        yield _fault(
            "login", f"no token for {found.url}", "nobody logged in here, or with another hub only",
            "mintyard login URL, set MINTYARD_TOKEN, or start a hub here with mintyard up", Exit.TOKEN, error.code,
        )  # fmt: skip
        return
    yield _ok("login", f"token from {found.source} for {found.url}")
    for warning in found.warnings:
        yield _warning(
            "login",
            warning,
            "others can read the token: count it as leaked",
            "chmod 600, then mintyard token revoke and mint a new one",
        )
    mode = stat.S_IMODE(store.path.parent.stat().st_mode) if store.path.exists() else 0
    if mode & 0o022:
        yield _warning(
            "login", f"{store.path.parent} can be written by others (mode {mode:04o})", "they could replace your token",
            f"chmod go-w {store.path.parent}",
        )  # fmt: skip


def _token_here(address: Address) -> Iterator[Finding]:
    """What can be told of the token without the hub."""
    if not address.token:
        return
    if address.keys is None:
        yield _warning(
            "token here", "no key set beside it: it can't be checked or narrowed offline", "it came without one",
            "mintyard login URL fetches the keys; or set MINTYARD_KEYS",
        )  # fmt: skip
        return
    try:
        authority = credentials.verify(address.token, address.keys, time.time_ns())
    except MintyardError as error:
        yield _of_error("token here", error, _cause(error))
        return
    left_s = (authority.expires_at - time.time_ns()) / NS_PER_S
    until = moment(format_instant(authority.expires_at))
    if left_s < ENDS_SOON_S:
        yield _warning(
            "token here",
            f"valid, but only until {until}",
            "tokens end by themselves",
            "mintyard token mint --save NAME",
        )
    else:
        yield _ok("token here", f"valid for {authority.account} until {until}")
    narrowed = _narrowed(authority)
    if narrowed:
        yield _ok("token here", f"narrowed {len(authority.blocks) - 1} times: {narrowed}")


def _cause(error: MintyardError) -> str:
    return {
        "token_expired": "its life is over, or this machine's clock is ahead",
        "token_not_yet_valid": "it begins later, or this machine's clock is behind",
        "token_unknown_key": "the key set here is older than the token, or it is another hub's",
        "token_key_dead": "an operator withdrew the key it was signed with",
        "token_bad_signature": "it was altered, or is another hub's",
        "token_malformed": "it was not copied whole",
        "token_revoked": "somebody ended it, or the token it was narrowed from, or its account's tokens",
        "token_suspended": "somebody suspended it",
        "token_unregistered": "another hub minted it, or the registration never took effect",
        "token_wrong_audience": "it is limited to other clusters: calls across clusters need a token for each",
    }.get(error.code, "")


def _narrowed(authority: Authority) -> str:
    limits = [
        *(f"{unit} ceiling" for block in authority.blocks[1:] for unit in block.ceilings),
        *(["some clusters"] if authority.clusters is not None else []),
        *(["some models"] if authority.models is not None else []),
        *(["some jobs"] if authority.jobs is not None else []),
        f"{len(authority.scopes)} scopes",
    ]
    return ", ".join(limits) if len(authority.blocks) > 1 else ""


# --- the hub --------------------------------------------------------------------------------------------------------


def _reach(address: Address) -> Iterator[Finding]:
    skip_httpx_command_line()
    import httpx

    from mintyard.sdk.address import is_local
    from mintyard.sdk.sync.connection import reason

    try:
        with httpx.Client(
            base_url=address.url, timeout=TIMEOUT_S, trust_env=not is_local(address.url)
        ) as client:
            began = time.time()
            alive = client.get("/health")
            took_s = time.time() - began
            ready = client.get("/ready")
    except (httpx.HTTPError, OSError) as error:
        cause = (
            "it is not running, or listens elsewhere"
            if is_local(address.url)
            else "it is down, or the network is"
        )
        cure = (
            "mintyard up"
            if is_local(address.url)
            else "ask its operator; check the address with mintyard config show"
        )
        yield _fault(
            "hub", f"{address.url}: {reason(error)}", cause, cure, Exit.UNAVAILABLE, "hub_unreachable"
        )
        return
    if alive.status_code != 200:
        yield _fault(
            "hub", f"{address.url} answers {alive.status_code} to /health", "something else answers there",
            "check the address with mintyard config show", Exit.UNAVAILABLE, "answer_unreadable",
        )  # fmt: skip
        return
    yield _ok("hub", f"{address.url} answers in {took_s * 1_000:.0f} ms")
    yield _clock(alive.headers.get("date", ""), began, took_s)
    yield _ready(ready.status_code, ready.content)


def _clock(date: str, began: float, took_s: float) -> Finding:
    try:
        hub_s = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return Finding("clock", "skipped", "the hub doesn't say its time")
    # The header has whole seconds, so it lies up to a second in the past; the answer was made somewhere in `took_s`.
    drift_s = max(hub_s - (began + took_s), began - (hub_s + 1.0), 0.0)
    if drift_s * 1_000 > MAX_CLOCK_SKEW_MS:
        return _fault(
            "clock", f"this machine's clock differs by {drift_s:.0f} s from the hub's", "no time synchronisation",
            "set the clock (chrony, ntpd); until then writes may be refused and tokens look expired", Exit.CONFLICT,
        )  # fmt: skip
    if drift_s > WARN_SKEW_S:
        return _warning(
            "clock",
            f"differs by {drift_s:.0f} s from the hub's",
            "no time synchronisation",
            "set the clock (chrony, ntpd)",
        )
    return _ok("clock", "agrees with the hub's")


def _ready(status: int, body: bytes) -> Finding:
    try:
        told: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        told = None
    told = told if isinstance(told, dict) else {}
    if status == 200:
        return _ok(
            "ready",
            f"journal at record {told.get('durable_seq', '?')}, read model {told.get('lag_s', '?')} s behind",
        )
    cause = "the hub is not ready"
    cure = "wait a moment; then look at the hub's log"
    if told.get("status") == "draining":
        cause, cure = "it is shutting down", "wait for its restart"
    elif told.get("leader") is False:
        cause, cure = (
            "no writer leads: it starts, or its store can't be reached",
            "look at the writer's log; mintyard doctor --folder on its machine",
        )
    elif told.get("read_model") is False:
        cause, cure = (
            "the read model can't be read",
            "look at the projector's log; it can be rebuilt from the journal",
        )
    elif told.get("lag_s"):
        cause, cure = (
            f"the read model is {told['lag_s']} s behind",
            "the projector catches up by itself, or has died: see its log",
        )
    return _fault("ready", f"/ready answers {status}", cause, cure, Exit.UNAVAILABLE)


def _at_hub(where: Where, address: Address) -> Iterator[Finding]:
    if not address.token:
        return
    with where.connect(retry_s=0.0, timeout_s=TIMEOUT_S, found=address) as hub:
        yield from _keys(hub, address.keys)
        try:
            mine = hub.whoami()
        except MintyardError as error:
            yield _of_error("token at the hub", error, _cause(error))
            return
        yield _ok("token at the hub", f"accepted for {mine.account}")
        for check, look in (("quota", lambda: _quota(hub, mine.account)), ("engine", lambda: _nodes(hub))):
            try:
                yield from look()
            except MintyardError as error:
                if error.code != "scope_missing":
                    yield _of_error(check, error)
                else:
                    yield Finding(check, "skipped", str(error))


def _keys(hub: Hub, held: KeySet | None) -> Iterator[Finding]:
    now = hub.tokens.keys()
    if held is None or held == now:
        return
    if held.version >= now.version:
        yield _fault(
            "keys", f"the key set here (version {held.version}) is not this hub's (version {now.version})",
            "the login was made with another hub at this address", "mintyard login again, with a token of this hub", Exit.TOKEN,
        )  # fmt: skip
    else:
        yield _warning(
            "keys", f"the key set here is version {held.version}, the hub has {now.version}", "keys were rotated",
            "mintyard login again, with the same token",
        )  # fmt: skip


def _quota(hub: Hub, account: str) -> Iterator[Finding]:
    """Whether anything on the way up that this token sees can pay."""
    if account == ROOT:
        yield _ok("quota", "the hub itself is not limited")
        return
    found = hub.accounts.show(account)
    if found.state != "active":
        yield _fault(
            "quota",
            f"{account} is {found.state}",
            "somebody suspended or closed it",
            "ask the owner of the account above",
            Exit.FORBIDDEN,
        )
    elif not found.balances:
        above = parent_of(account)
        yield _warning(
            "quota", f"nothing was granted to {account}", f"it spends what {above} has, if that has anything",
            f"if jobs are refused, ask for a grant: mintyard grant create {account} AMOUNT",
        )  # fmt: skip
    else:
        empty = [str(balance.unit) for balance in found.balances if balance.left.strip("0.") == ""]
        left = ", ".join(f"{balance.left} {balance.unit}" for balance in found.balances)
        if len(empty) == len(found.balances):
            yield _fault(
                "quota", f"{account} has nothing left", "all is spent, held by running jobs, or expired",
                "mintyard statement shows where it went; ask for a grant, or wait for jobs to end", Exit.QUOTA,
                "quota_exhausted",
            )  # fmt: skip
        else:
            yield _ok("quota", f"{account} has {left}")


def _nodes(hub: Hub) -> Iterator[Finding]:
    nodes = hub.nodes.list().first(1_000).items
    states: dict[str, int] = {}
    for node in nodes:
        states[node.state] = states.get(node.state, 0) + 1
    shown = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    if not nodes:
        yield _fault(
            "engine",
            "there are no nodes",
            "the engine has not reported any",
            "look at the hub's log; check engine and engine_options",
            Exit.UNAVAILABLE,
        )
    elif not states.get("ready"):
        yield _fault(
            "engine",
            f"no node takes work: {shown}",
            "all are cordoned, draining or lost",
            "mintyard node ls; mintyard node uncordon NODE",
            Exit.UNAVAILABLE,
        )
    elif states.get("lost"):
        yield _warning(
            "engine",
            shown,
            "lost nodes don't answer their engine",
            "look at those machines; mintyard node ls --state lost",
        )
    else:
        yield _ok("engine", shown)


# --- the hub's machine ----------------------------------------------------------------------------------------------


def _server_side(folder: str, verify: bool, hub_is_up: bool) -> Iterator[Finding]:
    if any(find_spec(name) is None for name in ("litestar", "sqlalchemy", "numba")):
        yield Finding("server half", "skipped", f"not installed here (client {__version__})")
        return
    from mintyard.cli.commands.server import load

    config = load(folder, "")
    if not config.path.exists():
        state = "skipped" if not folder else "fault"
        found = f"no hub was started in {config.path}"
        yield Finding("folder", state, found, exit_status=0 if state == "skipped" else int(Exit.NOT_FOUND))
        return
    yield from _folder(config)
    yield from _store(config, verify)


def _folder(config: Config) -> Iterator[Finding]:
    free = shutil.disk_usage(config.path).free
    if free < MIN_FREE_BYTES:
        yield _fault(
            "disk", f"{free // 2**20} MiB are free in {config.path}", "journal, logs or jobs have filled it",
            "make room: the hub stops taking writes when the journal can't be written", Exit.UNAVAILABLE,
        )  # fmt: skip
    else:
        yield _ok("disk", f"{free // 2**30} GiB are free in {config.path}")
    for path in (config.path, config.keys_folder):
        if path.exists() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
            yield _warning(
                "folder",
                f"{path} is open to others (mode {mode:04o})",
                "it holds signing keys",
                f"chmod go= {path}",
            )
    if not os.access(config.path, os.W_OK):
        yield _fault(
            "folder",
            f"{config.path} can't be written",
            "it belongs to another user",
            "run the hub as its owner",
            Exit.FORBIDDEN,
        )


def _store(config: Config, verify: bool) -> Iterator[Finding]:
    from mintyard.app.journal import verify_store
    from mintyard.app.journal_store import open_store

    path = Path(config.store_url.removeprefix("sqlite:///"))
    if config.store_url.startswith("sqlite:") and not path.exists():
        yield Finding("store", "skipped", f"there is no journal at {path} yet")
        return
    store = open_store(config.store_url)
    try:
        head = store.head()
        yield _ok("store", f"opens; its journal ends at record {head.seq if head else 0}")
        if verify:
            report = verify_store(store)
            yield _ok("journal", f"{report.records} records verified")
    except MintyardError as error:
        yield _of_error("journal" if error.code == "verification_failed" else "store", error)
    finally:
        store.close()
