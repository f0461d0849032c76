"""Job tokens: each attempt's own, narrowest credential, minted when its order leaves for the engine.

It lives in the order and in the job's environment only: never journaled, logged or kept here. It reads its own job and
nothing else, ends with the job, and ends at once when a token that the job was submitted with is revoked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from mintyard.app.effects import Start
from mintyard.app.signing import SigningKeys
from mintyard.credentials import KeySet, encode_key_set, mint, mint_alike
from mintyard.credentials.store import ENV_HUB, ENV_KEYS
from mintyard.credentials.tokens import SERIAL_BYTES
from mintyard.domain.limits import MAX_TOKEN_LIFE_DAYS
from mintyard.domain.tokens.authority import ROLES
from mintyard.domain.units import NS_PER_MS, NS_PER_S
from mintyard.ports.engine import StartOrder
from mintyard.wire.launch import decode_launch, encode_launch

START_ALLOWANCE_NS: Final = 15 * 60 * NS_PER_S
"""Time that an engine may take to start an attempt, on top of the time limit and the grace period."""
MAX_FORMS: Final = 16_384
_MAX_LIFE_NS: Final = MAX_TOKEN_LIFE_DAYS * 86_400 * NS_PER_S


class JobTokens:
    """`hub_url` is where jobs reach the hub; `hub_name` the only audience, any when empty."""

    def __init__(self, keys: SigningKeys, hub_url: str = "", clock: Callable[[], int] = time.time_ns) -> None:
        self.hub_name = ""
        self._keys = keys
        self._hub_url = hub_url
        self._clock = clock
        self._encoded: tuple[KeySet | None, str] = (None, "")
        self._read_back: set[tuple[str, tuple[str, tuple[str, ...], str]]] = set()
        """Signing key and form of what was read back once: tokens of one form differ in serial, instants and job only."""

    def equip(self, start: Start) -> StartOrder:
        """The order with its token, and with the hub's URL and public keys in the environment."""
        order, now = start.order, self._clock()
        life = (order.time_limit_ms + order.grace_ms) * NS_PER_MS + START_ALLOWANCE_NS
        key, form = self._keys.signing_key, (order.account, start.parents, self.hub_name)
        about: dict[str, Any] = {
            "account": order.account,
            "serial": os.urandom(SERIAL_BYTES),
            "scopes": ROLES["job"],
            "issued_at": now,
            "expires_at": now + min(life, _MAX_LIFE_NS),
            "clusters": (self.hub_name,) if self.hub_name else None,
            "jobs": (order.job,),
            "parents": start.parents,
        }
        if (key.key, form) in self._read_back:
            token = mint_alike(key, **about)
        else:
            token = mint(key, **about).token
            if len(self._read_back) >= MAX_FORMS:
                self._read_back.clear()
            self._read_back.add((key.key, form))
        return msgspec.structs.replace(order, token=token, payload=self._payload(order.payload))

    def _payload(self, payload: bytes) -> bytes:
        try:
            launch = decode_launch(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return payload  # the engine refuses it, with the reason
        keys = self._keys.key_set
        if keys is not self._encoded[0]:
            self._encoded = (keys, encode_key_set(keys))
        ours = {ENV_KEYS: self._encoded[1]}
        if self._hub_url:
            ours[ENV_HUB] = self._hub_url
        return encode_launch(msgspec.structs.replace(launch, env={**launch.env, **ours}))
