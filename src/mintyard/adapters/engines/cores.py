"""Cores: which of the machine's cores an attempt is bound to, the least loaded first.

Best effort and only about locality: the hub decides how much runs at once. Pure bookkeeping.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Cores:
    """Load per core in milli-cores. A member gets as many cores as its share rounds up to; all of them: no binding."""

    def __init__(self, available: Iterable[int]) -> None:
        self._load = dict.fromkeys(sorted(available), 0)
        self._taken: dict[str, list[tuple[int, int]]] = {}

    def take(self, key: str, cpus_milli: int, members: int) -> list[list[int]]:
        """The cores of each member; an empty list where it may use all."""
        if key in self._taken:
            self.release(key)
        number = max(1, -(-cpus_milli // 1_000))
        if number >= len(self._load):
            return [[] for _ in range(members)]
        share = cpus_milli // number
        chosen: list[list[int]] = []
        for _ in range(members):
            cores = heapq.nsmallest(number, self._load, key=lambda core: (self._load[core], core))
            self._add(key, cores, share)
            chosen.append(sorted(cores))
        return chosen

    def adopt(self, key: str, members: Iterable[Iterable[int]]) -> None:
        """Count what an earlier engine bound, when it isn't counted yet."""
        if key not in self._taken:
            for cores in members:
                self._add(key, [core for core in cores if core in self._load], 1_000)

    def release(self, key: str) -> None:
        for core, share in self._taken.pop(key, ()):
            self._load[core] -= share

    def load(self) -> dict[int, int]:
        return dict(self._load)

    def _add(self, key: str, cores: Iterable[int], share: int) -> None:
        for core in cores:
            self._load[core] += share
            self._taken.setdefault(key, []).append((core, share))
