"""Inbox: what the writer was asked and has not decided yet. The hub's own commands come first.

An engine's reports end jobs, give nodes back and let waiting work start; behind thousands of submits they would wait for the very
load that they relieve. Within the hub's own and within the callers' commands the order is that of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Two queues taken as one. Not thread-safe but for single calls."""

    __slots__ = ("_asked", "_ours")

    def __init__(self) -> None:
        self._ours: deque[T] = deque()
        self._asked: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._ours) + len(self._asked)

    def __bool__(self) -> bool:
        return bool(self._ours or self._asked)

    def extend(self, items: Iterable[T], *, ours: bool = False) -> None:
        (self._ours if ours else self._asked).extend(items)

    def popleft(self) -> T:
        """The next to decide. Raises `IndexError` when there is none."""
        return self._ours.popleft() if self._ours else self._asked.popleft()

    def first(self) -> T:
        """What `popleft` would give. Raises `IndexError` when there is none."""
        return self._ours[0] if self._ours else self._asked[0]

    def drain(self) -> list[T]:
        """Everything, in order; nothing is left."""
        items = [*self._ours, *self._asked]
        self._ours.clear()
        self._asked.clear()
        return items
