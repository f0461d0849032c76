"""Cache: a verifier that remembers valid tokens, and in which a revocation beats the memory at once (T2, T3, T6).

The key is SHA-256 of the token, never the token. A remembered token is tested on every use: end and start against the
caller's clock, and, whenever anything was revoked, suspended or re-keyed since its last test (one integer tells), key
state, revoked and suspended blocks with all parents, and the account's epoch. Refusals are remembered only when no
clock or later order can turn them (malformed, forged, unknown key), bounded, by full hash, until the keys change.

No I/O and no clock in here: the caller passes `now` in ns and feeds orders in from the hub's stream.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

from mintyard.credentials.keys import KeySet, KeyState, check_key_set
from mintyard.credentials.tokens import check_time, read
from mintyard.domain.errors import (
    KeySetOutdated,
    MintyardError,
    TokenBadSignature,
    TokenKeyDead,
    TokenMalformed,
    TokenRevoked,
    TokenSuspended,
    TokenUnknownKey,
)
from mintyard.domain.ids import check_account_id, parent_of
from mintyard.domain.limits import CACHED_TOKEN_LIFE_S, MAX_TOKEN_BYTES
from mintyard.domain.tokens.authority import Authority
from mintyard.domain.units import NS_PER_S

DEFAULT_CACHED_TOKENS: Final = 65_536
DEFAULT_CACHED_REFUSALS: Final = 8_192


class _Entry:
    """A verified token: its rights, what can end it, and the order count at its last full test."""

    __slots__ = ("accounts", "authority", "blocks", "orders", "public", "start", "until", "used")

    def __init__(self, authority: Authority, public: str, until: int) -> None:
        self.authority = authority
        self.public = public
        self.start = authority.not_before
        self.until = until
        self.orders = -1
        self.used = False
        self.blocks = frozenset(block.block for block in authority.blocks) | frozenset(authority.parents)
        accounts: list[str] = []
        account: str | None = authority.account
        while account is not None:
            accounts.append(account)
            account = parent_of(account)
        self.accounts = tuple(accounts)


class Validator:
    """Verifies tokens against one hub's keys and orders; safe to share between threads.

    `cached_tokens` and `cached_refusals` bound the memory in entries, `life_s` how long one verification is trusted.
    A method that takes orders returns after the order binds: a `validate` begun later refuses.
    """

    def __init__(
        self,
        keys: KeySet,
        *,
        cached_tokens: int = DEFAULT_CACHED_TOKENS,
        cached_refusals: int = DEFAULT_CACHED_REFUSALS,
        life_s: int = CACHED_TOKEN_LIFE_S,
    ) -> None:
        if not 0 <= life_s <= CACHED_TOKEN_LIFE_S:
            raise ValueError(f"life_s is {life_s}, it may be 0 to {CACHED_TOKEN_LIFE_S}")
        self._keys = check_key_set(keys)
        self._cached_tokens = cached_tokens
        self._cached_refusals = cached_refusals
        self._life_ns = life_s * NS_PER_S
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._refusals: OrderedDict[bytes, tuple[type[MintyardError], dict[str, object]]] = OrderedDict()
        self._revoked: set[str] = set()
        self._suspended: set[str] = set()
        self._epochs: dict[str, int] = {}
        self._orders = 0
        self._applied_seq = 0
        self._last_heard_ns = 0
        self.misses = 0
        """Validations that were not answered from memory."""

    # --- validation ------------------------------------------------------------------------------------------------

    def validate(self, token: str, now: int) -> Authority:
        """What `token` allows at `now` (ns). Raises as `tokens.verify` does, and `TokenRevoked`, `TokenSuspended`."""
        try:
            digest = sha256(token.encode()).digest() if len(token) <= MAX_TOKEN_BYTES else b""
        except (AttributeError, TypeError, UnicodeEncodeError):
            raise TokenMalformed(why="it is no plain text") from None
        # No lock: an order first changes its set, then the count, and only then returns to its sender.
        entry = self._entries.get(digest)
        if entry is not None:
            if entry.start <= now < entry.until:
                if entry.orders != self._orders:
                    with self._lock:
                        self._test(entry)
                entry.used = True
                return entry.authority
            check_time(entry.authority, now)  # an expired token costs no second verification
        with self._lock:
            self.misses += 1
            refusal = self._refusals.get(digest)
            keys = self._keys
        if refusal is not None:
            raise refusal[0](**refusal[1])
        return self._verify(token, digest, keys, now)

    def _verify(self, token: str, digest: bytes, keys: KeySet, now: int) -> Authority:
        try:
            authority = read(token, keys)
        except (TokenMalformed, TokenBadSignature, TokenUnknownKey) as error:
            self._remember_refusal(digest, keys, error)
            raise
        check_time(authority, now)
        key = keys.find(authority.key)
        entry = _Entry(authority, key.public if key else "", min(authority.expires_at, now + self._life_ns))
        with self._lock:
            self._test(entry)  # against the orders and keys of this moment, not of when the reading began
            self._entries.pop(digest, None)  # a place of its own at the young end
            self._entries[digest] = entry
            self._evict()
        return authority

    def _evict(self) -> None:
        """Drop the oldest tokens not used since their last chance (CLOCK, the cheap LRU); the lock is held."""
        while len(self._entries) > self._cached_tokens:
            digest, entry = self._entries.popitem(last=False)
            if entry.used and self._cached_tokens:
                entry.used = False
                self._entries[digest] = entry

    def _remember_refusal(self, digest: bytes, keys: KeySet, error: MintyardError) -> None:
        with self._lock:
            if digest and keys is self._keys:
                self._refusals[digest] = (type(error), error.params)
                while len(self._refusals) > self._cached_refusals:
                    self._refusals.popitem(last=False)

    def _test(self, entry: _Entry) -> None:
        """Everything but the clock, against the present orders; the lock is held."""
        key = self._keys.find(entry.authority.key)
        if key is None or key.public != entry.public:
            raise TokenUnknownKey(key=entry.authority.key)
        if key.state is KeyState.DEAD:
            raise TokenKeyDead(key=key.key)
        if not self._revoked.isdisjoint(entry.blocks):
            raise TokenRevoked()
        if self._epochs:
            issued_at = entry.authority.issued_at
            if any(issued_at <= self._epochs.get(account, -1) for account in entry.accounts):
                raise TokenRevoked()
        if not self._suspended.isdisjoint(entry.blocks):
            raise TokenSuspended()
        entry.orders = self._orders

    # --- orders ----------------------------------------------------------------------------------------------------

    def revoke(self, blocks: Iterable[str]) -> None:
        """End every token that contains, or names as parent, one of these block ids."""
        with self._lock:
            self._revoked.update(blocks)
            self._orders += 1

    def forget(self, blocks: Iterable[str]) -> None:
        """Drop revocations and suspensions of blocks whose tokens have expired anyhow."""
        with self._lock:
            gone = set(blocks)
            self._revoked -= gone
            self._suspended -= gone
            self._orders += 1

    def revoke_account(self, account: str, at_ns: int) -> None:
        """End every token of `account` and the accounts below it that was issued at `at_ns` or before."""
        check_account_id(account)
        with self._lock:
            self._epochs[account] = max(at_ns, self._epochs.get(account, at_ns))
            self._orders += 1

    def suspend(self, block: str) -> None:
        """Refuse every token that contains, or names as parent, this block, until `resume`."""
        with self._lock:
            self._suspended.add(block)
            self._orders += 1

    def resume(self, block: str) -> None:
        with self._lock:
            self._suspended.discard(block)
            self._orders += 1

    def replace_keys(self, keys: KeySet) -> None:
        """Use a newer key set; the same version with other keys, or an older one, is `KeySetOutdated`."""
        check_key_set(keys)
        with self._lock:
            if keys.version < self._keys.version or (
                keys.version == self._keys.version and keys != self._keys
            ):
                raise KeySetOutdated(offered=keys.version, held=self._keys.version)
            self._keys = keys
            self._refusals.clear()
            self._orders += 1

    def load(
        self, revoked: Iterable[str], suspended: Iterable[str], epochs: Mapping[str, int], seq: int, now: int
    ) -> None:
        """Replace all orders by a snapshot of the hub's at `seq`; the iterables are read before anything changes."""
        fresh = set(revoked), set(suspended), dict(epochs)
        with self._lock:
            self._revoked, self._suspended, self._epochs = fresh
            self._applied_seq = seq
            self._last_heard_ns = max(self._last_heard_ns, now)
            self._orders += 1

    # --- position in the feed --------------------------------------------------------------------------------------

    def hear(self, seq: int, now: int) -> None:
        """The feed stands at `seq` (its orders are applied), heard at `now` (ns); neither ever moves back."""
        with self._lock:
            self._applied_seq = max(self._applied_seq, seq)
            self._last_heard_ns = max(self._last_heard_ns, now)

    @property
    def applied_seq(self) -> int:
        """Sequence number of the last order applied."""
        return self._applied_seq

    @property
    def last_heard_ns(self) -> int:
        """When the feed was last heard of, 0 for never."""
        return self._last_heard_ns

    def staleness_ns(self, now: int) -> int:
        """How old the newest news is: the bound on how late a revocation may bind here."""
        return max(0, now - self._last_heard_ns)

    @property
    def keys(self) -> KeySet:
        return self._keys

    @property
    def size(self) -> tuple[int, int]:
        """Tokens and refusals remembered."""
        return len(self._entries), len(self._refusals)
