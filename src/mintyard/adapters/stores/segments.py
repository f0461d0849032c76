"""Sealed segments: the byte format in which old records are archived, the same for every store.

A segment is one header and one zlib stream (RFC 1950), named by the hash of all its bytes, and never changed:

    header   magic (8 bytes), first seq, last seq, number of records, length of the stream unpacked (each 8 bytes),
             chain before the first record (32 zero bytes before record 1), chain of the last record
    stream   for each record: seq, term, now, format, length of the body (each 8 bytes), chain (32 bytes), body

All integers are big-endian and unsigned. Where segments lie, and which belong to a journal, is the adapter's affair.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from mintyard.adapters.stores.rules import HASH_BYTES
from mintyard.domain.errors import VerificationFailed
from mintyard.domain.limits import MAX_RECORD_BYTES, MAX_SEGMENT_BYTES, MAX_SEGMENT_RECORDS
from mintyard.ports.store import Record

NO_CHAIN: Final = bytes(HASH_BYTES)
_MAGIC: Final = b"mintseg\x01"
_HEADER: Final = struct.Struct(">8sQQQQ32s32s")
_RECORD: Final = struct.Struct(">QQQQQ32s")
_MAX_UNPACKED: Final = MAX_SEGMENT_BYTES + MAX_RECORD_BYTES + MAX_SEGMENT_RECORDS * _RECORD.size
_LEVEL: Final = 6


class Segment(msgspec.Struct, frozen=True):
    """What an index keeps of a segment: its name (`FIRST-HASH`) and the run of records in it."""

    name: str
    first_seq: int
    last_seq: int
    first_prev: bytes
    last_chain: bytes


def pack(first_prev: bytes, records: Sequence[Record]) -> tuple[Segment, bytes]:
    """The segment of `records` (consecutive, at least one) and its bytes; the same records give the same bytes."""
    parts: list[bytes] = []
    for r in records:
        parts += (_RECORD.pack(r.seq, r.term, r.now, r.format, len(r.body), r.chain), r.body)
    unpacked = b"".join(parts)
    first, last = records[0], records[-1]
    header = _HEADER.pack(_MAGIC, first.seq, last.seq, len(records), len(unpacked), first_prev, last.chain)
    content = header + zlib.compress(unpacked, _LEVEL)
    return Segment(_name(first.seq, content), first.seq, last.seq, first_prev, last.chain), content


def unpack(segment: Segment, content: bytes) -> list[Record]:
    """The records of `segment`; `VerificationFailed` unless `content` is, to the byte, what was sealed."""
    if _name(segment.first_seq, content) != segment.name:
        raise VerificationFailed(seq=segment.first_seq, why=f"segment {segment.name} was altered or cut")
    try:
        magic, first, last, count, length, prev, chain = _HEADER.unpack_from(content)
        known = (magic, first, last, prev, chain)
        if known != (_MAGIC, segment.first_seq, segment.last_seq, segment.first_prev, segment.last_chain):
            raise ValueError("its header differs from the index")
        if length > _MAX_UNPACKED:
            raise ValueError("it is larger than any segment")
        records = _records(_inflate(content[_HEADER.size :], length))
        if [r.seq for r in records] != list(range(first, last + 1)) or count != len(records):
            raise ValueError("its records are not those that its header names")
        if records[-1].chain != chain:
            raise ValueError("its last chain is not the one that its header names")
    except (ValueError, struct.error, zlib.error) as error:
        raise VerificationFailed(seq=segment.first_seq, why=f"segment {segment.name}: {error}") from error
    return records


def first_run(records: Sequence[Record]) -> Sequence[Record]:
    """As many of `records` as one segment takes, at least one."""
    size = 0
    for place, record in enumerate(records[:MAX_SEGMENT_RECORDS]):
        size += len(record.body)
        if size > MAX_SEGMENT_BYTES and place:
            return records[:place]
    return records[:MAX_SEGMENT_RECORDS]


def _name(first_seq: int, content: bytes) -> str:
    return f"{first_seq:020d}-{blake2b(content, digest_size=HASH_BYTES).hexdigest()}"


def _inflate(stream: bytes, length: int) -> bytes:
    inflater = zlib.decompressobj()
    unpacked = inflater.decompress(stream, length) if length else b""
    if len(unpacked) != length or inflater.decompress(inflater.unconsumed_tail, 1) or not inflater.eof:
        raise ValueError("its stream has another length than its header says")
    return unpacked


def _records(unpacked: bytes) -> list[Record]:
    records: list[Record] = []
    at = 0
    while at < len(unpacked):
        seq, term, now, format_, size, chain = _RECORD.unpack_from(unpacked, at)
        at += _RECORD.size
        body = unpacked[at : at + size]
        if len(body) != size:
            raise ValueError(f"record {seq} is cut")
        records.append(Record(seq, term, now, format_, chain, body))
        at += size
    return records
