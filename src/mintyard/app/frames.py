"""Frames of the channel: what crosses between a hub's processes, as MessagePack with a length in front. No I/O.

A frame is 4 bytes of length, big-endian, and one message. The first message each way is `Hello`; versions must be equal,
since all processes of a hub are of one installation. Bearer tokens never cross: what is sent was verified before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from mintyard.app.link import Notice
from mintyard.app.questions import Finding, Question
from mintyard.domain.commands import Command
from mintyard.domain.errors import Problem, TooLarge
from mintyard.domain.limits import MAX_FRAME_BYTES
from mintyard.domain.replies import Batch, Done, Refusal, Ticket

CHANNEL_VERSION: Final = 1
MAX_ITEMS_PER_FRAME: Final = 4_096
_LENGTH: Final = struct.Struct(">I")


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """`notices`: whether the peer wants the feed."""

    version: int
    notices: bool = False


class Commands(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Commands numbered from `first` on."""

    first: int
    commands: list[Command]


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of command `id`: its reply at record `seq`, or the error of the link as a problem."""

    id: int
    seq: int
    reply: Done | Ticket | Batch | Refusal | Problem


class Outcomes(msgspec.Struct, frozen=True, array_like=True, tag=3):
    told: list[Told]


class Notices(msgspec.Struct, frozen=True, array_like=True, tag=4):
    notice: Notice


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=5):
    id: int
    question: Question


class Found(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The finding for question `id`, or the problem instead."""

    id: int
    finding: Finding | None = None
    code: str = ""
    params: dict[str, object] = {}


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The last message, with the reason."""

    code: str
    params: dict[str, object] = {}


Message = Hello | Commands | Outcomes | Notices | Ask | Found | Goodbye
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Message)


def encode_frame(message: Message) -> bytes:
    """`TooLarge` beyond `MAX_FRAME_BYTES`."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise TooLarge(what="A frame", size=f"{len(body)} bytes", limit=f"{MAX_FRAME_BYTES} bytes")
    return _LENGTH.pack(len(body)) + body


def encode_commands(first: int, commands: list[Command]) -> Iterator[bytes | tuple[int, TooLarge]]:
    """Frames of all `commands`, cut where they grow too large; one too large by itself comes as its number and error."""
    pending = [(first, commands)]
    while pending:
        start, part = pending.pop()
        try:
            yield encode_frame(Commands(start, part))
        except TooLarge as error:
            if len(part) == 1:
                yield start, error
            else:
                half = len(part) // 2
                pending += [(start + half, part[half:]), (start, part[:half])]


class Decoder:
    """Turns a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. ValueError (also `msgspec.DecodeError`) for what is no frame: hang up."""
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = at + _LENGTH.size + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                messages.append(_decoder.decode(view[at + _LENGTH.size : end]))
            at = end
        if at:
            del buffer[:at]
        return messages
