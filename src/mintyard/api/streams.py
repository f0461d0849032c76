"""Streams: how many are open in this process, and when they must end. A stream holds no place among the
requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from mintyard.domain.errors import Overloaded

DEFAULT_STREAMS: Final = 1_024


class Streams:
    """Counts open streams, at most `most`. `end` lets all of them end soon: the process is about to stop."""

    def __init__(self, most: int = DEFAULT_STREAMS) -> None:
        self.open = 0
        self.ending = False
        self._most = most
        self._end: asyncio.Event | None = None

    def check(self) -> None:
        """`Overloaded` when no further stream may be opened."""
        if self.ending or self.open >= self._most:
            raise Overloaded(retry_after_s=5)

    async def hold(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The parts of a stream, counted while it is open."""
        self.open += 1
        try:
            async for part in parts:
                yield part
        finally:
            self.open -= 1

    def end(self) -> None:
        self.ending = True
        if self._end is not None:
            self._end.set()

    async def pause(self, seconds: float) -> None:
        """Sleep, but no longer than until the streams must end."""
        if self._end is None:
            self._end = asyncio.Event()
        if not self.ending:
            try:
                await asyncio.wait_for(self._end.wait(), seconds)
            except TimeoutError:
                pass
