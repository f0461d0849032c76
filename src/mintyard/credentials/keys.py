"""Keys: the hub's Ed25519 key ring on disk, and the key set, its public half (T5).

A key is `next` (published, not yet signing), `active` (signs), `retiring` (signs no more, its tokens live on) or `dead`
(its tokens end at once). `next` exists so that every verifier knows a key before the first token signed with it.
Verifiers need a key set only; the ring never leaves the process that mints.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

import biscuit_auth
import msgspec

from mintyard.domain.errors import IllegalTransition, KeyRingDamaged, KeyRingExposed, KeySetInvalid, NotFound
from mintyard.domain.limits import MAX_TOKEN_LIFE_DAYS
from mintyard.domain.units import NS_PER_S

RING_FILE: Final = "keys.json"
RING_FORMAT: Final = 1
MAX_KEYS: Final = 64
"""Keys kept in a ring, dead ones included; beyond it the oldest dead keys are forgotten."""
MAX_KEY_SET_BYTES: Final = 65_536
RETIREMENT_NS: Final = MAX_TOKEN_LIFE_DAYS * 86_400 * NS_PER_S
"""How long a retiring key verifies: as long as the last token signed with it may live."""
_ED25519: Final = biscuit_auth.Algorithm.Ed25519  # pyright: ignore[reportAttributeAccessIssue] (stubs lag behind)
_log = logging.getLogger(__name__)


class KeyState(StrEnum):
    NEXT = "next"
    ACTIVE = "active"
    RETIRING = "retiring"
    DEAD = "dead"


TRANSITIONS: Final[dict[KeyState, tuple[KeyState, ...]]] = {
    KeyState.NEXT: (KeyState.ACTIVE, KeyState.DEAD),
    KeyState.ACTIVE: (KeyState.RETIRING, KeyState.DEAD),
    KeyState.RETIRING: (KeyState.DEAD,),
    KeyState.DEAD: (),
}


def key_id(public: bytes) -> int:
    """The u32 that a token names its key by: BLAKE2b-32 of the public key."""
    return int.from_bytes(blake2b(public, digest_size=4).digest(), "big")


class VerifyingKey(msgspec.Struct, frozen=True):
    """A public key: `key` is its id in 8 hex digits, `public` its 32 bytes in hex."""

    key: str
    public: str
    state: KeyState


class KeySet(msgspec.Struct, frozen=True):
    """Every key of a hub at one time. `version` grows with each change, so that an older set can be told apart."""

    version: int
    keys: tuple[VerifyingKey, ...]

    def find(self, key: str) -> VerifyingKey | None:
        for one in self.keys:
            if one.key == key:
                return one
        return None


def encode_key_set(keys: KeySet) -> str:
    """Compact JSON, to be handed out and kept beside a token."""
    return msgspec.json.encode(keys).decode()


def decode_key_set(text: str | bytes) -> KeySet:
    """`KeySetInvalid` for anything but a key set whose ids match its keys."""
    if len(text) > MAX_KEY_SET_BYTES:
        raise KeySetInvalid(why=f"it is longer than {MAX_KEY_SET_BYTES} bytes")
    try:
        keys = msgspec.json.decode(text, type=KeySet)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise KeySetInvalid(why=str(error)) from None
    return check_key_set(keys)


def check_key_set(keys: KeySet) -> KeySet:
    """`keys` when it is sound: bounded, no id twice, each id the hash of its key; else `KeySetInvalid`."""
    if not 0 <= keys.version < 2**62:
        raise KeySetInvalid(why="its version is out of range")
    if len(keys.keys) > MAX_KEYS or len({one.key for one in keys.keys}) != len(keys.keys):
        raise KeySetInvalid(why="it has too many keys, or one twice")
    for one in keys.keys:
        try:
            public = bytes.fromhex(one.public)
            verifier(one.public)
        except ValueError:
            raise KeySetInvalid(why=f"key {one.key[:16]} is no Ed25519 public key") from None
        if one.public != public.hex() or one.key != f"{key_id(public):08x}":
            raise KeySetInvalid(why=f"key {one.key[:16]} does not match its id")
    return keys


@lru_cache(maxsize=256)
def verifier(public: str) -> biscuit_auth.PublicKey:
    """The library's form of a public key in hex; ValueError when it is none."""
    return biscuit_auth.PublicKey.from_bytes(bytes.fromhex(public), _ED25519)  # pyright: ignore[reportCallIssue]


def signer(private: bytes) -> biscuit_auth.PrivateKey:
    """The library's form of a 32-byte private key; ValueError when it is none."""
    return biscuit_auth.PrivateKey.from_bytes(private, _ED25519)  # pyright: ignore[reportCallIssue]


class SigningKey(msgspec.Struct, frozen=True):
    """A private key with its id; its text form shows the id only."""

    key: str
    private: bytes

    def __repr__(self) -> str:
        return f"SigningKey(key={self.key!r})"

    def biscuit(self) -> biscuit_auth.PrivateKey:
        return signer(self.private)


class _Entry(msgspec.Struct, frozen=True):
    """A key in the ring file; a dead key has lost its private half. Instants in ns."""

    public: str
    private: str
    state: KeyState
    made_at: int
    retired_at: int = 0

    @property
    def key(self) -> str:
        return f"{key_id(bytes.fromhex(self.public)):08x}"

    def __repr__(self) -> str:
        return f"_Entry({self.key}, {self.state})"

    def moved(self, state: KeyState, now: int) -> _Entry:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(what="key", source=self.state, target=state)
        private = "" if state is KeyState.DEAD else self.private
        return msgspec.structs.replace(self, state=state, private=private, retired_at=now)


class _Ring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    version: int
    keys: tuple[_Entry, ...]


def _fresh(taken: set[str], now: int) -> _Entry:
    while True:
        pair = biscuit_auth.KeyPair()
        public, private = bytes(pair.public_key.to_bytes()).hex(), bytes(pair.private_key.to_bytes()).hex()
        entry = _Entry(public, private, KeyState.NEXT, now)
        if entry.key not in taken:
            return entry


class KeyRing:
    """The ring in `folder` (0700), one file (0600) replaced whole, so a crash leaves the old ring or the new one.

    `KeyRing.open` makes it at first start. Changes take a lock file and start from what is on disk: two processes that
    rotate at once rotate twice, and neither loses the other's key. Reading happens at `open` and at `reload`.
    """

    def __init__(self, folder: Path, ring: _Ring) -> None:
        self._folder = folder
        self._ring = ring

    @classmethod
    def open(cls, folder: Path | str, now: int) -> KeyRing:
        """The ring in `folder`, made when there is none; `KeyRingDamaged`, `KeyRingExposed`, OSError. `now` in ns."""
        folder = Path(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / RING_FILE).exists():
            with _locked(folder):
                if not (folder / RING_FILE).exists():
                    first = _fresh(set(), now)
                    second = _fresh({first.key}, now)
                    keys = (first.moved(KeyState.ACTIVE, 0), second)
                    _write(folder, _Ring(RING_FORMAT, 1, keys))
        return cls(folder, _read(folder))

    def reload(self) -> None:
        self._ring = _read(self._folder)

    @property
    def signing_key(self) -> SigningKey:
        """The active key."""
        for entry in self._ring.keys:
            if entry.state is KeyState.ACTIVE:
                return SigningKey(entry.key, bytes.fromhex(entry.private))
        raise KeyRingDamaged(path=str(self._folder / RING_FILE), why="it has no active key")

    @property
    def key_set(self) -> KeySet:
        keys = tuple(VerifyingKey(entry.key, entry.public, entry.state) for entry in self._ring.keys)
        return KeySet(self._ring.version, keys)

    def rotate(self, now: int) -> KeySet:
        """The next key signs from now on, the active one retires, a new next one is made."""
        with _locked(self._folder):
            self.reload()
            keys = [self._step(entry, now) for entry in self._ring.keys]
            keys.append(_fresh({entry.key for entry in keys}, now))
            return self._replace(keys)

    @staticmethod
    def _step(entry: _Entry, now: int) -> _Entry:
        if entry.state is KeyState.NEXT:
            return entry.moved(KeyState.ACTIVE, 0)
        return entry.moved(KeyState.RETIRING, now) if entry.state is KeyState.ACTIVE else entry

    def withdraw(self, key: str, now: int) -> KeySet:
        """Key `key` is dead: its tokens end at once. When it signed, the next key takes over; `NotFound`."""
        with _locked(self._folder):
            self.reload()
            old = next((entry for entry in self._ring.keys if entry.key == key), None)
            if old is None:
                raise NotFound(what="key", name=key[:64])
            if old.state is KeyState.DEAD:
                return self.key_set
            keys = [entry.moved(KeyState.DEAD, now) if entry is old else entry for entry in self._ring.keys]
            if old.state is KeyState.ACTIVE:
                keys = [self._step(entry, now) for entry in keys]
            if old.state in (KeyState.ACTIVE, KeyState.NEXT):
                keys.append(_fresh({entry.key for entry in keys}, now))
            return self._replace(keys)

    def expire(self, now: int) -> KeySet:
        """Retiring keys whose last token has ended (`RETIREMENT_NS`) die; nothing is written when there is none."""
        due = [
            e.key
            for e in self._ring.keys
            if e.state is KeyState.RETIRING and now >= e.retired_at + RETIREMENT_NS
        ]
        for key in due:
            self.withdraw(key, now)
        return self.key_set

    def _replace(self, keys: list[_Entry]) -> KeySet:
        dead = [entry for entry in keys if entry.state is KeyState.DEAD]
        surplus = dead[: max(0, len(keys) - MAX_KEYS)]
        kept = tuple(entry for entry in keys if entry not in surplus)
        if len(kept) > MAX_KEYS:
            raise KeyRingDamaged(
                path=str(self._folder / RING_FILE), why=f"more than {MAX_KEYS} keys are alive"
            )
        ring = _Ring(RING_FORMAT, self._ring.version + 1, kept)
        _write(self._folder, ring)
        self._ring = ring
        return self.key_set


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_private(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, readable by its owner only, durable, whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write(folder: Path, ring: _Ring) -> None:
    write_private(folder / RING_FILE, msgspec.json.format(msgspec.json.encode(ring), indent=1))


def _read(folder: Path) -> _Ring:
    path = folder / RING_FILE
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        # A group may be let in by a mounted volume (Kubernetes' fsGroup does); everybody never is.
        if mode & 0o007:
            raise KeyRingExposed(path=str(path), mode=f"{mode:04o}")
        if mode & 0o070:
            _log.warning("key ring %s is open to its group (mode %04o)", path, mode)
        data = file.read(1_048_576)
    try:
        ring = msgspec.json.decode(data, type=_Ring)
        if ring.format != RING_FORMAT:
            raise KeyRingDamaged(
                path=str(path), why=f"its format is {ring.format}, this version reads {RING_FORMAT}"
            )
        for entry in ring.keys:
            _check(entry)
    except (ValueError, msgspec.DecodeError) as error:
        # The error's text may quote the file, and the file holds keys.
        raise KeyRingDamaged(path=str(path), why=f"it is no key ring ({type(error).__name__})") from None
    states = [entry.state for entry in ring.keys]
    if states.count(KeyState.ACTIVE) != 1 or states.count(KeyState.NEXT) != 1:
        raise KeyRingDamaged(path=str(path), why="it does not have exactly one active and one next key")
    check_key_set(KeySet(ring.version, tuple(VerifyingKey(e.key, e.public, e.state) for e in ring.keys)))
    return ring


def _check(entry: _Entry) -> None:
    """ValueError unless the private half belongs to the public one (none when dead)."""
    if entry.state is KeyState.DEAD:
        if entry.private:
            raise ValueError("a dead key kept its private half")
        return
    private = signer(bytes.fromhex(entry.private))
    if bytes(biscuit_auth.KeyPair.from_private_key(private).public_key.to_bytes()).hex() != entry.public:
        raise ValueError("the halves of a key differ")
