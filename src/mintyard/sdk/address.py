"""Address: which hub and which token a client uses. A stored token goes only to the hub that it was stored for."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from mintyard.credentials import Credential, CredentialStore, KeySet
from mintyard.credentials.store import ENV_HUB, ENV_TOKEN
from mintyard.domain.errors import InvalidSpec, TokenMissing

DEFAULT_URL: Final = "http://127.0.0.1:8080"


class Address(msgspec.Struct, frozen=True):
    """Where to and as whom. `source` says where the token came from. The text form hides it."""

    url: str
    token: str = ""
    keys: KeySet | None = None
    source: str = ""
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Address(url={self.url!r}, source={self.source!r})"


def check_url(url: str) -> str:
    """`url` without a trailing slash; `InvalidSpec` for anything but http(s)://HOST[:PORT][/PATH]."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:
        raise InvalidSpec(field="hub", why=f"{url[:80]!r} is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidSpec(field="hub", why=f"{url[:80]!r} is no URL such as {DEFAULT_URL}")
    if parts.username or parts.password:
        raise InvalidSpec(field="hub", why="holds a user name or password; a token goes there instead")
    return url.strip().rstrip("/")


def is_local(url: str) -> bool:
    """Whether the hub is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address(
    url: str | None = None,
    token: str | None = None,
    context: str = "",
    environment: Mapping[str, str] | None = None,
    store: CredentialStore | None = None,
) -> Address:
    """What is given, the rest from environment and credentials file (see `credentials.store`). Without any token the address has
    none, and the hub will say so. Errors: `NotFound` for an unknown `context`, `CredentialsDamaged`, `InvalidSpec`."""
    environment = os.environ if environment is None else environment
    store = store or CredentialStore(environment=environment)
    named = url or ("" if context else environment.get(ENV_HUB, ""))
    if token is not None and named:
        return Address(check_url(named), token.strip(), source="the caller")
    try:
        found = store.credential(context)
    except TokenMissing:
        found = Credential("", "", None, "")
    if token is not None:
        return Address(check_url(found.hub or DEFAULT_URL), token.strip(), source="the caller")
    if found.source == ENV_TOKEN:
        kept = environment.get(ENV_HUB, "")
    else:
        # What the file says, not the environment: a stored token must not follow MINTYARD_HUB to another hub.
        name = context or store.current
        kept = store.contexts()[name].hub if found.token else ""
    if not named or (found.token and (not kept or _same(kept, named))):
        where = check_url(named or kept or DEFAULT_URL)
        return Address(where, found.token, found.keys, found.source, found.warnings)
    return _for_url(check_url(named), store)


def _same(one: str, other: str) -> bool:
    """Whether both name the same hub; `localhost` and 127.0.0.1 do."""
    first, second = urlsplit(one.rstrip("/")), urlsplit(other.rstrip("/"))
    if is_local(one) and is_local(other):
        return (first.scheme, first.port, first.path) == (second.scheme, second.port, second.path)
    return bool(one) and first == second


def _for_url(url: str, store: CredentialStore) -> Address:
    """The token that was stored for `url`; none when there is none, never another hub's."""
    for name, context in store.contexts().items():
        if context.token and _same(context.hub, url):
            return Address(url, context.token, context.keys, f"{store.path} ({name})")
    return Address(url)
