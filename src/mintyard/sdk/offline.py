"""Offline: narrow, inspect and verify tokens from the key set alone, with no hub (T2, T4)."""

from __future__ import annotations

import time
from typing import Any

from mintyard import credentials
from mintyard.credentials import Inspection, KeySet
from mintyard.domain.errors import KeySetMissing, TokenMissing
from mintyard.domain.tokens.authority import Authority
from mintyard.sdk.address import Address, address
from mintyard.sdk.narrowing import restrictions


def own(token: str, keys: KeySet | None) -> tuple[str, KeySet]:
    """Token and key set, the missing ones as a client would find them. `TokenMissing`, `KeySetMissing`."""
    if not token or keys is None:
        found: Address = address()
        token, keys = token or found.token, keys or found.keys
    if not token:
        raise TokenMissing()
    if keys is None:
        raise KeySetMissing()
    return token.strip(), keys


def narrow(token: str = "", keys: KeySet | None = None, **limits: Any) -> str:
    """A token that allows at most what `token` does and the limits say (`narrowing.restrictions` names them). A ceiling binds
    over all uses of the new token together. Errors: `Widening`, `TokenSealed`, `InvalidSpec` and those of `verify`."""
    return credentials.narrow(*own(token, keys), restrictions(**limits))


def inspect(token: str = "", keys: KeySet | None = None) -> Inspection:
    """What is in a token, block by block, also when it has expired."""
    return credentials.inspect(*own(token, keys))


def verify(token: str = "", keys: KeySet | None = None, now_ns: int | None = None) -> Authority:
    """What a token allows at `now_ns` (default: this machine's clock), revocation aside. Errors: the token's own family."""
    return credentials.verify(*own(token, keys), time.time_ns() if now_ns is None else now_ns)
