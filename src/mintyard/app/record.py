"""Record bodies: what one tick decided, as canonical bytes and back. Headers and the hash chain are the journal's affair.

A body is MessagePack of (inputs, events): the commands that changed something, in order, and everything that came of them.
Commands that gave no events are left out: they changed nothing, so replaying the rest gives the same events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mintyard.domain.commands import Command
from mintyard.domain.errors import VerificationFailed
from mintyard.domain.events import AnyEvent
from mintyard.ports.store import Record


class Body(msgspec.Struct, frozen=True, array_like=True):
    """The content of one record."""

    inputs: list[Command]
    events: list[AnyEvent]


_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(Body)


def encode_body(inputs: Sequence[Command], events: Sequence[AnyEvent]) -> bytes:
    """Equal inputs and events give equal bytes."""
    return _encoder.encode((inputs, events))


def decode_body(record: Record) -> Body:
    """`VerificationFailed` when the body can't be read although its hash may fit (another program or version wrote it)."""
    try:
        return _decoder.decode(record.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise VerificationFailed(seq=record.seq, why=f"its body can't be read ({error})") from error
