"""Event stream: server-sent events (WHATWG HTML, section 9.2) from bytes, piece by piece. No I/O may enter."""

from __future__ import annotations

from typing import Final

import msgspec

from mintyard.domain.errors import TooLarge

MAX_EVENT_BYTES: Final = 16 * 1_048_576


class ServerEvent(msgspec.Struct, frozen=True):
    """One event: its `kind`, its data as sent, and the id to resume after."""

    kind: str
    data: bytes
    id: str


class EventReader:
    """Feed it bytes as they come; it gives back the events that are whole. `last_id` survives a broken connection."""

    def __init__(self) -> None:
        self.last_id = ""
        self._rest = b""
        self._kind = ""
        self._data: list[bytes] = []
        self._size = 0

    def reset(self) -> None:
        """Forget a half event: the connection broke."""
        self._rest, self._kind, self._data, self._size = b"", "", [], 0

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that `piece` completes. `TooLarge` for one that never ends."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            raise TooLarge(what="An event in bytes", size=f"over {MAX_EVENT_BYTES}", limit=MAX_EVENT_BYTES)
        found: list[ServerEvent] = []
        for line in lines:
            event = self._line(line.rstrip(b"\r"))
            if event is not None:
                found.append(event)
        return found

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            kind, data = self._kind, self._data
            self._kind, self._data, self._size = "", [], 0
            return ServerEvent(kind or "message", b"\n".join(data), self.last_id) if data else None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self.last_id = value.decode("utf-8", "replace")
        return None
