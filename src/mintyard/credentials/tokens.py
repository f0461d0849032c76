"""Tokens: mint, narrow, verify, inspect and seal a Biscuit (T1, T2, T4).

Minting needs a signing key; everything else the public key set only, and no network. Order of a verification: text,
checksum, structure and key id first (no curve operation), then all signatures, then the closed grammar, then the
clock. Whether a token was revoked is asked of `cache.Validator`, what is left to spend of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import biscuit_auth
import msgspec

from mintyard.credentials import ed25519
from mintyard.credentials.envelope import Envelope, decode_text, encode_text, join, split
from mintyard.credentials.grammar import (
    Origin,
    Restrictions,
    instant,
    intersect,
    read_block,
    widening,
    write_origin,
    write_restrictions,
)
from mintyard.credentials.keys import KeySet, KeyState, SigningKey, VerifyingKey, verifier
from mintyard.domain.errors import (
    InvalidSpec,
    InvariantBroken,
    NotAcceptableTime,
    TokenBadSignature,
    TokenExpired,
    TokenKeyDead,
    TokenMalformed,
    TokenNotYetValid,
    TokenSealed,
    TokenUnknownKey,
    TooLarge,
    Widening,
)
from mintyard.domain.limits import MAX_TOKEN_BLOCKS, MAX_TOKEN_LIFE_DAYS
from mintyard.domain.tokens.authority import Authority, Caps, Scope
from mintyard.domain.units import NS_PER_S, Unit

SERIAL_BYTES = 16


class Minted(msgspec.Struct, frozen=True):
    """A new token: its text (the secret), the id it is registered under, its rights. The text form hides the secret."""

    token: str
    block: str
    authority: Authority

    def __repr__(self) -> str:
        return f"Minted(block={self.block!r}, authority={self.authority!r})"


class BlockView(msgspec.Struct, frozen=True):
    """One block for people: its id, what it adds as values and as Datalog."""

    block: str
    adds: Restrictions
    statements: tuple[str, ...]


class Inspection(msgspec.Struct, frozen=True):
    """A token for people; it holds nothing that a token could be made from."""

    key: str
    key_state: KeyState
    serial: str
    sealed: bool
    blocks: tuple[BlockView, ...]
    authority: Authority


class _Read(msgspec.Struct, frozen=True):
    """A token whose signatures hold."""

    envelope: Envelope
    key: VerifyingKey
    biscuit: biscuit_auth.Biscuit
    origin: Origin
    chain: tuple[Restrictions, ...]
    authority: Authority


def mint(
    key: SigningKey,
    *,
    account: str,
    serial: bytes,
    scopes: Iterable[Scope],
    issued_at: int,
    expires_at: int,
    not_before: int = 0,
    caps: Caps = Caps(),  # noqa: B008 (frozen)
    ceilings: Mapping[Unit, int] | None = None,
    clusters: Iterable[str] | None = None,
    models: Iterable[str] | None = None,
    jobs: Iterable[int] | None = None,
    parents: Iterable[str] = (),
) -> Minted:
    """Sign a new token. `serial`: 16 random bytes from the caller. Instants in ns; the end is cut to a whole second.

    Raises `InvalidSpec`, `InvalidName`, `NotAcceptableTime` (a life that is empty or longer than
    `MAX_TOKEN_LIFE_DAYS`), `TooLarge`. The new token is read back before it is handed out.
    """
    asked, origin = _asked(
        account,
        serial,
        scopes,
        issued_at,
        expires_at,
        not_before,
        caps,
        ceilings,
        clusters,
        models,
        jobs,
        parents,
    )
    text = _written(key, asked, origin)
    public = bytes(biscuit_auth.KeyPair.from_private_key(key.biscuit()).public_key.to_bytes()).hex()
    made = _read(text, KeySet(0, (VerifyingKey(key.key, public, KeyState.ACTIVE),)))
    if made.origin != origin or made.chain != (_rounded(asked),):
        raise InvariantBroken(why="a minted token reads otherwise than it was written")
    return Minted(text, made.authority.root, made.authority)


def mint_alike(
    key: SigningKey,
    *,
    account: str,
    serial: bytes,
    scopes: Iterable[Scope],
    issued_at: int,
    expires_at: int,
    clusters: Iterable[str] | None = None,
    jobs: Iterable[int] | None = None,
    parents: Iterable[str] = (),
) -> str:
    """The text of a token as `mint` makes it, not read back, which is more than half of the work. Only for tokens that differ
    in nothing but serial, instants and job numbers from one that `mint` has made and read back. Errors: as `mint`."""
    asked, origin = _asked(
        account, serial, scopes, issued_at, expires_at, 0, Caps(), None, clusters, None, jobs, parents
    )
    return _written(key, asked, origin)


def _asked(
    account: str,
    serial: bytes,
    scopes: Iterable[Scope],
    issued_at: int,
    expires_at: int,
    not_before: int,
    caps: Caps,
    ceilings: Mapping[Unit, int] | None,
    clusters: Iterable[str] | None,
    models: Iterable[str] | None,
    jobs: Iterable[int] | None,
    parents: Iterable[str],
) -> tuple[Restrictions, Origin]:
    if not isinstance(serial, bytes) or len(serial) != SERIAL_BYTES:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpec(field="serial", why=f"it is not {SERIAL_BYTES} bytes")
    asked = Restrictions(
        account=account,
        scopes=_scopes(scopes),
        expires_at=expires_at,
        not_before=not_before or None,
        caps=caps,
        ceilings=dict(ceilings or {}),
        clusters=_tuple(clusters),
        models=_tuple(models),
        jobs=_tuple(jobs),
    )
    return asked, Origin(serial.hex(), issued_at, tuple(parents))


def _written(key: SigningKey, asked: Restrictions, origin: Origin) -> str:
    source = f"{write_origin(origin)}\n{write_restrictions(asked)}"
    _check_life(origin.issued_at, (asked.expires_at or 0) // NS_PER_S * NS_PER_S, asked.not_before or 0)
    builder = biscuit_auth.BiscuitBuilder(source)
    builder.set_root_key_id(int(key.key, 16))
    return encode_text(bytes(builder.build(key.biscuit()).to_bytes()))


def _tuple(values: Iterable[object] | None) -> tuple | None:
    return None if values is None else tuple(values)


def _scopes(scopes: Iterable[Scope]) -> frozenset[Scope]:
    try:
        return frozenset(Scope(scope) for scope in scopes)
    except ValueError as error:
        raise InvalidSpec(field="scopes", why=str(error)) from None


def _check_life(issued_at: int, expires_at: int, not_before: int) -> None:
    if expires_at <= max(issued_at, not_before):
        raise NotAcceptableTime(
            field="expires_at", given=instant(expires_at), why="the token would never be valid"
        )
    if expires_at - issued_at > MAX_TOKEN_LIFE_DAYS * 86_400 * NS_PER_S:
        why = f"a token lives {MAX_TOKEN_LIFE_DAYS} days at most"
        raise NotAcceptableTime(field="expires_at", given=instant(expires_at), why=why)


def _rounded(asked: Restrictions) -> Restrictions:
    """`asked` as it reads after writing: whole seconds, sorted lists."""
    end, start = asked.expires_at, asked.not_before
    return msgspec.structs.replace(
        asked,
        expires_at=None if end is None else end // NS_PER_S * NS_PER_S,
        not_before=None if not start else -(-start // NS_PER_S) * NS_PER_S,
        clusters=asked.clusters and tuple(sorted(asked.clusters)),
        models=asked.models and tuple(sorted(asked.models)),
        jobs=asked.jobs and tuple(sorted(asked.jobs)),
    )


def _find_key(envelope: Envelope, keys: KeySet) -> VerifyingKey:
    name = f"{envelope.key_id:08x}"
    key = keys.find(name)
    if key is None:
        raise TokenUnknownKey(key=name)
    if key.state is KeyState.DEAD:
        raise TokenKeyDead(key=name)
    return key


def _signed(envelope: Envelope, key: VerifyingKey) -> biscuit_auth.Biscuit:
    try:
        return biscuit_auth.Biscuit.from_bytes(envelope.raw, verifier(key.public))
    except biscuit_auth.BiscuitValidationError:
        raise TokenBadSignature() from None


def _read(token: str, keys: KeySet) -> _Read:
    envelope = split(decode_text(token))
    key = _find_key(envelope, keys)
    biscuit = _signed(envelope, key)
    first, origin = read_block(biscuit.block_source(0), first=True)
    if origin is None:
        raise TokenMalformed(why="its first block lacks its facts")
    rest = (read_block(biscuit.block_source(at), first=False)[0] for at in range(1, len(envelope.blocks)))
    chain = (first, *rest)
    ids = [signed.block for signed in envelope.blocks]
    return _Read(envelope, key, biscuit, origin, chain, intersect(origin, chain, ids, key.key))


def check_time(authority: Authority, now: int) -> None:
    """`TokenExpired` or `TokenNotYetValid` for `now` in ns; the end is exclusive."""
    if now >= authority.expires_at:
        raise TokenExpired(expired_at=instant(authority.expires_at))
    if now < authority.not_before:
        raise TokenNotYetValid(valid_from=instant(authority.not_before))


def verify(token: str, keys: KeySet, now: int) -> Authority:
    """What `token` allows at `now` (ns), checked from scratch, revocation aside.

    Raises `TokenMalformed`, `TokenUnknownKey`, `TokenKeyDead`, `TokenBadSignature`, `TokenExpired`,
    `TokenNotYetValid`.
    """
    authority = _read(token, keys).authority
    check_time(authority, now)
    return authority


def read(token: str, keys: KeySet) -> Authority:
    """As `verify` without the clock."""
    return _read(token, keys).authority


def narrow(token: str, keys: KeySet, restrictions: Restrictions) -> str:
    """A new token that allows at most what `token` does and `restrictions` says, made offline.

    Raises as `verify` does (time aside), `Widening` when `restrictions` go beyond the token, `InvalidSpec` or
    `InvalidName` for bad values, `TokenSealed`, `TooLarge` beyond 8 blocks or 4 KiB.
    """
    held = _read(token, keys)
    if held.envelope.sealed:
        raise TokenSealed()
    if len(held.envelope.blocks) >= MAX_TOKEN_BLOCKS:
        raise TooLarge(
            what="the token", size=f"{MAX_TOKEN_BLOCKS + 1} blocks", limit=f"{MAX_TOKEN_BLOCKS} blocks"
        )
    asked = _rounded(_checked(restrictions))
    source = write_restrictions(asked)
    if not source:
        raise InvalidSpec(field="restrictions", why="nothing is narrowed")
    beyond = widening(held.authority, asked)
    if beyond:
        raise Widening(what=beyond)
    text = encode_text(bytes(held.biscuit.append(biscuit_auth.BlockBuilder(source)).to_bytes()))
    made = _read(text, keys)
    if made.chain != (*held.chain, asked) or made.origin != held.origin:
        raise InvariantBroken(why="a narrowed token reads otherwise than it was written")
    return text


def _checked(restrictions: Restrictions) -> Restrictions:
    scopes = restrictions.scopes
    for field in ("expires_at", "not_before"):
        if type(getattr(restrictions, field)) not in (int, type(None)):
            raise InvalidSpec(field=field, why="it is not a whole number")
    return msgspec.structs.replace(restrictions, scopes=None if scopes is None else _scopes(scopes))


def inspect(token: str, keys: KeySet) -> Inspection:
    """What is in a token, block by block, also when it has expired; raises as `verify` does (time aside)."""
    held = _read(token, keys)
    blocks = tuple(
        BlockView(signed.block, adds, tuple(held.biscuit.block_source(index).split("\n")[:-1]))
        for index, (signed, adds) in enumerate(zip(held.envelope.blocks, held.chain, strict=True))
    )
    return Inspection(
        held.key.key, held.key.state, held.origin.serial, held.envelope.sealed, blocks, held.authority
    )


def seal(token: str, keys: KeySet) -> str:
    """The same token with its next key replaced by a signature of that key: it can't be narrowed any more."""
    held = _read(token, keys)
    envelope = held.envelope
    if envelope.sealed:
        return token
    last = envelope.blocks[-1]
    # Biscuit 3, "Sealed token": block, algorithm (0 is Ed25519) as 32 bits little-endian, next key, signature.
    message = last.data + (0).to_bytes(4, "little") + last.next_key + last.signature
    seal_signature = ed25519.sign(envelope.proof, message)
    text = encode_text(join(envelope.key_id, envelope.blocks, seal_signature, sealed=True))
    if _read(text, keys).authority != held.authority:
        raise InvariantBroken(why="a sealed token reads otherwise than before")
    return text
