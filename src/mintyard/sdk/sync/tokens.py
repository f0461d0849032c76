"""Tokens: mint, list, suspend, resume and revoke at the hub; narrow, inspect and verify are offline (T1-T4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from mintyard.credentials import Inspection, KeySet
from mintyard.domain.tokens.authority import Authority, Scope
from mintyard.domain.units import Unit
from mintyard.sdk import offline
from mintyard.sdk.narrowing import life_seconds, milli
from mintyard.sdk.request import amounts, get, instant, post, segment
from mintyard.sdk.sync.accounts import Quantity
from mintyard.sdk.sync.connection import Connection
from mintyard.sdk.sync.listing import Listing
from mintyard.wire.pages import Change, Page
from mintyard.wire.tokens import Caps, MintedToken, MintToken, RevokeAll, RevokeBlock, Role, Token


class Tokens:
    """Compute tokens. What is offline takes the client's own token and key set when none are given."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def mint(
        self,
        account: str = "",
        *,
        role: Role | None = None,
        scopes: Iterable[Scope | str] | None = None,
        name: str = "",
        life: str | float | None = None,
        not_before: str | datetime | None = None,
        ceilings: Mapping[Unit | str, Quantity] | None = None,
        gpus: Quantity | None = None,
        cpus: Quantity | None = None,
        memory: str | None = None,
        clusters: Iterable[str] | None = None,
        models: Iterable[str] | None = None,
        jobs: Iterable[int] | None = None,
        key: str = "",
    ) -> MintedToken:
        """A new token for `account` (empty: the client's own). Its text is shown this once. `life` as `"12h"` or in seconds
        (a day by default), `gpus`, `cpus` and `memory` cap what one job may ask for at once, `ceilings` what all uses together
        may spend. Without `role` and `scopes` it is a member's."""
        asked = None if scopes is None else tuple(Scope(scope) for scope in scopes)
        extra = {} if life is None else {"life_s": life_seconds(life)}
        body = MintToken(
            account=account or None,
            role=role if role or asked is not None else "member",
            scopes=asked,
            name=name,
            not_before=instant(not_before, "not_before"),
            caps=Caps(
                gpus_milli=milli(gpus, "gpus"), cpus_milli=milli(cpus, "cpus"), memory_mib=mebibytes(memory)
            ),
            ceilings=amounts(ceilings or {}),
            clusters=None if clusters is None else tuple(clusters),
            models=None if models is None else tuple(models),
            jobs=None if jobs is None else tuple(jobs),
            **extra,
        )
        return self._connection.send(post("/tokens", MintedToken, body, key=key))

    def list(self, *, account: str = "", state: str = "") -> Listing[Token]:
        return Listing(self._connection, "/tokens", Page[Token], {"account": account, "state": state})

    def show(self, token: str) -> Token:
        return self._connection.send(get(f"/tokens/{segment(token)}", Token))

    def _move(self, token: str, trigger: str, key: str) -> Change:
        return self._connection.send(post(f"/tokens/{segment(token)}/{trigger}", Change, key=key))

    def suspend(self, token: str, *, key: str = "") -> Change:
        """Refuse a token and all narrowed from it until `resume`."""
        return self._move(token, "suspend", key)

    def resume(self, token: str, *, key: str = "") -> Change:
        return self._move(token, "resume", key)

    def revoke(self, token: str, *, key: str = "") -> Change:
        """End a token and all narrowed from it."""
        return self._move(token, "revoke", key)

    def revoke_block(self, token: str, block: str, *, key: str = "") -> Change:
        """End what was narrowed from a token at `block`, and all narrowed from there."""
        path = f"/tokens/{segment(token)}/revoke-block"
        return self._connection.send(post(path, Change, RevokeBlock(block=block), key=key))

    def revoke_all(self, account: str, *, key: str = "") -> Change:
        """End every token issued so far for an account and those below it."""
        return self._connection.send(post("/tokens/revoke-all", Change, RevokeAll(account=account), key=key))

    def keys(self) -> KeySet:
        """The hub's public keys: all that narrowing and verifying need."""
        return self._connection.send(get("/keys", KeySet))

    # --- offline -----------------------------------------------------------------------------------------------------

    def narrow(self, token: str = "", keys: KeySet | None = None, **restrictions: object) -> str:
        """A token that allows less, made without the hub; `restrictions` are those of `mintyard.sdk.narrow`."""
        address = self._connection.address
        return offline.narrow(token or address.token, keys or address.keys, **restrictions)  # pyright: ignore[reportArgumentType]

    def inspect(self, token: str = "", keys: KeySet | None = None) -> Inspection:
        """What a token holds, block by block."""
        address = self._connection.address
        return offline.inspect(token or address.token, keys or address.keys)

    def verify(self, token: str = "", keys: KeySet | None = None) -> Authority:
        """What a token allows now, revocation aside; raises what is wrong with it."""
        address = self._connection.address
        return offline.verify(token or address.token, keys or address.keys)


def mebibytes(memory: str | None) -> int | None:
    from mintyard.wire.quantities import parse_memory

    return None if memory is None else parse_memory(memory, "memory")
