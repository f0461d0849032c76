"""Envelope: token text to signed blocks and back, by structure alone, before any curve operation (T2).

Token text is `mint_` and unpadded base64url of a Biscuit followed by its CRC-32. The prefix and the checksum let a
secret scanner find leaked tokens without false alarms (`mint_[A-Za-z0-9_-]{200,4091}`) and tell a badly copied token
from a forged one; they protect nothing, the signatures do.

Protocol Buffers has many encodings of one message. This room accepts exactly one: fields in order, each once, shortest
lengths, nothing unknown. So there is one text for one token, and no second reader can see another token in the same
bytes. Refused here, unread: third-party blocks, keys other than Ed25519, other signature or Datalog versions, rules,
scopes, public keys, contexts and any string outside `[A-Za-z0-9._:/@+-]{1,128}`, in which no Datalog can be written:
with such strings the library's printed form of a block (which escapes nothing) has one reading only.

No signature is checked here and no meaning is read.
"""

from __future__ import annotations

import re
import zlib
from base64 import urlsafe_b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from mintyard.domain.errors import TokenMalformed, TooLarge
from mintyard.domain.limits import MAX_TOKEN_BLOCKS, MAX_TOKEN_BYTES

PREFIX: Final = "mint_"
PATTERN: Final = re.compile(r"mint_[A-Za-z0-9_-]{200,4091}")
"""Finds token text in logs and files; `looks_like_token` then tests the checksum."""

_MAX_SYMBOL_BYTES: Final = 128
_SYMBOL_CHARACTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/@+-"
_FROM_URL: Final = bytes.maketrans(b"-_+/=", b"+/!!!")
_LAST: Final = (b"", b"", b"AQgw", b"AEIMQUYcgkosw048")
"""Last characters that leave no spare bit, by the length modulo 4."""
_KEY: Final = b"\x12\x24\x08\x00\x12\x20"
_SIGNATURE: Final = b"\x1a\x40"
_KEY_AND_SIGNATURE_BYTES: Final = len(_KEY) + 32 + len(_SIGNATURE) + 64
_PROOF_SECRET: Final = b"\x22\x22\x0a\x20"
_PROOF_SEALED: Final = b"\x22\x42\x12\x40"


class SignedBlock(NamedTuple):
    """One link of the chain: the signed bytes, the public key that signs the next link, the signature (64 bytes)."""

    data: bytes
    next_key: bytes
    signature: bytes

    @property
    def block(self) -> str:
        """The block's id: the first 16 bytes of BLAKE2b over its revocation id (the signature), in hex."""
        return blake2b(self.signature).hexdigest()[:32]


class Envelope(NamedTuple):
    """A token taken apart. `proof` is the secret for the next block, or the seal when `sealed`."""

    raw: bytes
    key_id: int
    blocks: tuple[SignedBlock, ...]
    proof: bytes
    sealed: bool


def encode_text(raw: bytes) -> str:
    """Token text of a serialized Biscuit; `TooLarge` beyond `MAX_TOKEN_BYTES` characters."""
    text = PREFIX + urlsafe_b64encode(raw + zlib.crc32(raw).to_bytes(4, "big")).rstrip(b"=").decode()
    if len(text) > MAX_TOKEN_BYTES:
        raise TooLarge(what="the token", size=f"{len(text)} bytes", limit=f"{MAX_TOKEN_BYTES} bytes")
    return text


def decode_text(token: str) -> bytes:
    """The serialized Biscuit in token text, or `TokenMalformed`."""
    if not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TokenMalformed(why="it is no text")
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenMalformed(why=f"it is longer than {MAX_TOKEN_BYTES} bytes")
    if not token.startswith(PREFIX):
        raise TokenMalformed(why=f"it does not begin with {PREFIX}")
    # Decoders skip foreign characters and ignore spare bits; one token must have one text.
    try:
        encoded = token[len(PREFIX) :].encode("ascii").translate(_FROM_URL)
        spare = len(encoded) % 4
        if spare and encoded[-1] not in _LAST[spare]:
            raise TokenMalformed(why="it is not base64url")
        decoded = a2b_base64(encoded + b"=" * (-spare % 4), strict_mode=True)
    except (UnicodeEncodeError, Base64Error):
        raise TokenMalformed(why="it is not base64url") from None
    raw, checksum = decoded[:-4], decoded[-4:]
    if len(checksum) < 4 or zlib.crc32(raw) != int.from_bytes(checksum, "big"):
        raise TokenMalformed(why="its checksum is wrong, so part of it is missing or changed")
    return raw


def looks_like_token(text: str) -> bool:
    """Whether `text` is token text with a right checksum (for scrubbing logs); says nothing of its validity."""
    try:
        decode_text(text)
    except TokenMalformed:
        return False
    return True


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A one- or two-byte length in its shortest form, and the place behind it."""
    size = data[at]
    if size < 0x80:
        return size, at + 1
    high = data[at + 1]
    if not 0 < high < 0x80:
        raise TokenMalformed(why="a length in it is not in its shortest form")
    return size & 0x7F | high << 7, at + 2


def _key_id(raw: bytes) -> tuple[int, int]:
    """The root key id (field 1, a u32 in its shortest form), and the place behind it."""
    if raw[0] != 0x08:
        raise TokenMalformed(why="it does not name its key")
    value, shift, at = 0, 0, 1
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise TokenMalformed(why="its key id is too long")
    if value > 0xFFFFFFFF or (shift and not byte):
        raise TokenMalformed(why="its key id is not a plain number")
    return value, at


def _signed_block(data: bytes) -> SignedBlock:
    if data[0] != 0x0A:
        raise TokenMalformed(why="a block is missing its content")
    size, at = _length(data, 1)
    end = at + size
    content, rest = data[at:end], data[end:]
    if rest[:6] != _KEY or rest[38:40] != _SIGNATURE or len(rest) != _KEY_AND_SIGNATURE_BYTES:
        raise TokenMalformed(why="a block has more or other parts than an Ed25519 key and signature")
    _check_content(content)
    return SignedBlock(content, rest[6:38], rest[40:])


@lru_cache(maxsize=1_024)
def _check_content(data: bytes) -> None:
    """`symbols* version facts* checks*` and no other field, every symbol harmless.

    Remembered by content, since tokens narrowed from one parent share their first blocks.
    """
    at, size = 0, len(data)
    symbols: list[bytes] = []
    while at < size and data[at] == 0x0A:
        length, at = (data[at + 1], at + 2) if data[at + 1] < 0x80 else _length(data, at + 1)
        symbol = data[at : at + length]
        at += length
        if not 0 < length <= _MAX_SYMBOL_BYTES or len(symbol) != length:
            raise TokenMalformed(why=f"a name in it is empty or longer than {_MAX_SYMBOL_BYTES} characters")
        symbols.append(symbol)
    if b"".join(symbols).translate(None, _SYMBOL_CHARACTERS):
        raise TokenMalformed(why="a name in it has characters other than letters, digits and . _ : / @ + -")
    if data[at : at + 2] != b"\x18\x03":
        raise TokenMalformed(why="a block is written in another version of Datalog")
    at += 2
    for tag in (0x22, 0x32):
        while at < size and data[at] == tag:
            length, at = _length(data, at + 1)
            at += length
    if at != size:
        raise TokenMalformed(why="a block holds something other than facts and checks")


def split(raw: bytes) -> Envelope:
    """Take a serialized Biscuit apart; `TokenMalformed` for anything but its one canonical encoding."""
    try:
        return _split(raw)
    except IndexError:
        raise TokenMalformed(why="it ends too early") from None


def _split(raw: bytes) -> Envelope:
    key_id, at = _key_id(raw)
    blocks: list[SignedBlock] = []
    tag = 0x12
    while raw[at] == tag:
        if len(blocks) == MAX_TOKEN_BLOCKS:
            raise TokenMalformed(why=f"it has more than {MAX_TOKEN_BLOCKS} blocks")
        size, at = _length(raw, at + 1)
        data = raw[at : at + size]
        at += size
        blocks.append(_signed_block(data))
        tag = 0x1A
    proof = raw[at:]
    if not blocks:
        raise TokenMalformed(why="it has no block")
    if len(proof) == 36 and proof[:4] == _PROOF_SECRET:
        return Envelope(raw, key_id, tuple(blocks), proof[4:], sealed=False)
    if len(proof) == 68 and proof[:4] == _PROOF_SEALED:
        return Envelope(raw, key_id, tuple(blocks), proof[4:], sealed=True)
    raise TokenMalformed(why="its last part is neither a key nor a seal")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def join(key_id: int, blocks: tuple[SignedBlock, ...], proof: bytes, *, sealed: bool) -> bytes:
    """The inverse of `split`."""
    parts = [b"\x08", _varint(key_id)]
    for index, block in enumerate(blocks):
        data = b"".join(
            (b"\x0a", _varint(len(block.data)), block.data, _KEY, block.next_key, _SIGNATURE, block.signature)
        )
        parts += [b"\x1a" if index else b"\x12", _varint(len(data)), data]
    parts += [_PROOF_SEALED if sealed else _PROOF_SECRET, proof]
    return b"".join(parts)
