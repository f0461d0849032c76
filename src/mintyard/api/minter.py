"""Minter: signs new tokens for requests that may be repeated. The text goes into one answer and is kept nowhere
but here, for a short while, so that a client whose answer was lost gets the same token and not a second one."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from mintyard.app.minting import MintingService, TokenWish
from mintyard.app.signing import SigningKeys
from mintyard.credentials import KeySet, Minted
from mintyard.domain.tokens.authority import Authority

REPEAT_S: Final = 600.0
MAX_REPEATS: Final = 1_024


class Minter:
    """Signs under the hub's keys, whose folder only the hub can read. Safe to share between threads."""

    def __init__(
        self, keys: SigningKeys, service: MintingService, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._service = service
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: OrderedDict[bytes, tuple[float, Minted]] = OrderedDict()

    @property
    def key_set(self) -> KeySet:
        """The public keys as they are now."""
        return self._keys.key_set

    def sign(self, maker: Authority, wish: TokenWish, key: str, request: bytes) -> Minted:
        """A signed token for `wish`, not registered yet. The same maker's account, idempotency `key` and
        `request` within ten minutes give the same token again; without a key each is new. Errors: as
        `MintingService.sign`."""
        if not key:
            return self._service.sign(maker, wish)
        name = blake2b(f"{maker.account}\n{key.lower()}\n".encode() + request, digest_size=16).digest()
        with self._lock:
            now = self._clock()
            known = self._recent.get(name)
            if known is not None and now - known[0] < REPEAT_S:
                return known[1]
            minted = self._service.sign(maker, wish)
            self._recent[name] = (now, minted)
            while len(self._recent) > MAX_REPEATS or now - next(iter(self._recent.values()))[0] >= REPEAT_S:
                self._recent.popitem(last=False)
            return minted
