"""The tables that the quota kernels read and count down, and their layout: what of them doesn't depend on what runs.

The tree of queues is laid out when a queue or limit is set, a lane when it first comes: both are rare beside rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.ids import ROOT, parent_of
from mintyard.domain.scheduling.quota import MAX_QUEUE_DEPTH, NO_LIMIT, RESOURCES, Limits, QueueSpec


class Tables(NamedTuple):
    """What the kernels read and count down; resources in the order of `RESOURCES`. Lanes are pairs of queue and account."""

    queue_of: NDArray[np.int32]
    """`[lanes]`: row of the queue, -1 for one without quota."""
    first_cap: NDArray[np.int32]
    """`[lanes + 1]`: where a lane's entries in `caps` begin."""
    caps: NDArray[np.int32]
    """Rows of the account limits that bind a lane."""
    cap_left: NDArray[np.int64]
    """`[account limits, 4]`."""
    parent: NDArray[np.int32]
    """`[queues]`: row of the parent, -1 for none."""
    own: NDArray[np.int64]
    """`[queues, 4]`: what of the quota of a queue and all below it is not lent."""
    usage: NDArray[np.int64]
    """`[queues, 4]`: what runs there, of the queues below only what goes beyond their own."""
    most: NDArray[np.int64]
    """`[queues, 4]`: what it may have beyond its own, at most."""
    total: NDArray[np.int64]
    """`[queues, 4]`: quota of a queue and all below it."""
    shut: NDArray[np.uint8]
    """`[queues, 4]`: somebody has waited long for this resource, nobody behind in the queue gets it."""
    cap_shut: NDArray[np.uint8]
    """`[account limits, 4]`: the same."""
    starts: NDArray[np.uint8]
    """`[queues]`."""
    ever: NDArray[np.int64]
    """`[queues, 4]`: what one job could have if nothing else ran."""
    cap_ever: NDArray[np.int64]
    """`[account limits, 4]`: the same."""


class Lane(NamedTuple):
    """Jobs of one account in one queue."""

    queue: str
    account: str


_NONE: Final = np.zeros(0, np.int32)
_NO_AMOUNTS: Final = np.zeros((0, 4), np.int64)
_NO_FLAGS: Final = np.zeros((0, 4), np.uint8)
NO_TABLES: Final = Tables(
    _NONE, _NONE, _NONE, _NO_AMOUNTS, _NONE, _NO_AMOUNTS, _NO_AMOUNTS, _NO_AMOUNTS, _NO_AMOUNTS, _NO_FLAGS, _NO_FLAGS,
    np.zeros(0, np.uint8), _NO_AMOUNTS, _NO_AMOUNTS,
)  # fmt: skip
"""Nothing is limited."""


class Layout:
    """Queues and account limits as rows, children before their parents, accounts by name."""

    def __init__(self, queues: Mapping[str, QueueSpec], accounts: Mapping[str, Limits]) -> None:
        names = sorted(queues, key=lambda name: (-_depth(queues, name), name))
        self.rows = rows = {name: row for row, name in enumerate(names)}
        specs = [queues[name] for name in names]
        self.parents = frozenset(spec.parent for spec in specs)
        self.parent = np.array([rows.get(spec.parent, -1) for spec in specs], np.int32)
        self.starts = np.array([spec.starts for spec in specs], np.uint8)
        for row in range(len(names) - 1, -1, -1):
            if self.parent[row] >= 0:
                self.starts[row] &= self.starts[self.parent[row]]
        self.own, self.most, self.total = _amounts(specs, self.parent)
        self.ever = np.array([self.most_of(name) for name in names], np.int64).reshape(
            len(names), len(RESOURCES)
        )
        self.cap_of = {account: row for row, account in enumerate(sorted(accounts))}
        limits = [accounts[account].row(NO_LIMIT) for account in self.cap_of]
        self.cap_limits = np.array(limits, np.int64).reshape(len(limits), len(RESOURCES))
        self._queue_of: list[int] = []
        self._first_cap: list[int] = [0]
        self._caps: list[int] = []
        self._arrays: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]] | None = None

    def limits_on(self, account: str) -> list[str]:
        """The accounts with a limit on the path of `account`, itself first."""
        found: list[str] = []
        above: str | None = account
        while above is not None:
            if above in self.cap_of:
                found.append(above)
            above = parent_of(above) if above != ROOT else None
        return found

    def most_of(self, queue: str) -> list[int]:
        """What an empty tree lets a queue have: its own, and from above what it may borrow."""
        path = [self.rows[queue]]
        while self.parent[path[-1]] >= 0:
            path.append(int(self.parent[path[-1]]))
        most = self.total[path.pop()]
        for row in reversed(path):
            most = self.own[row] + np.minimum(self.most[row], most)
        return np.minimum(most, NO_LIMIT).tolist()

    def add_lanes(self, lanes: Sequence[Lane]) -> None:
        """Those that came since the last time: `lanes` are all there are."""
        for lane in lanes[len(self._queue_of) :]:
            self._queue_of.append(self.rows.get(lane.queue, -1))
            self._caps += [self.cap_of[above] for above in self.limits_on(lane.account)]
            self._first_cap.append(len(self._caps))
            self._arrays = None

    def tables(self, used: NDArray[np.int64]) -> Tables:
        """`used` `[lanes, 4]`: what runs in each lane."""
        if self._arrays is None:
            self._arrays = (
                np.array(self._queue_of, np.int32),
                np.array(self._first_cap, np.int32),
                np.array(self._caps, np.int32),
            )
        queue_of, first_cap, caps = self._arrays
        usage = np.zeros_like(self.own)
        queued = queue_of >= 0
        np.add.at(usage, queue_of[queued], used[queued])
        for row, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                usage[parent] += np.maximum(usage[row] - self.own[row], 0)
        left = self.cap_limits.copy()
        lane_of_cap = np.repeat(np.arange(len(used)), np.diff(first_cap))
        np.subtract.at(left, caps, used[lane_of_cap])
        return Tables(
            queue_of,
            first_cap,
            caps,
            left,
            self.parent,
            self.own,
            usage,
            self.most,
            self.total,
            np.zeros(self.own.shape, np.uint8),
            np.zeros(left.shape, np.uint8),
            self.starts,
            self.ever,
            self.cap_limits,
        )


def _depth(queues: Mapping[str, QueueSpec], name: str) -> int:
    depth = 0
    while (spec := queues.get(name)) is not None and depth <= MAX_QUEUE_DEPTH:
        depth, name = depth + 1, spec.parent
    return depth


def _amounts(
    specs: Sequence[QueueSpec], parent: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(own, most, total) of each queue, children before parents."""
    count = len(specs)
    said = np.array([[one is not None for one in msgspec.structs.astuple(spec.nominal)] for spec in specs])
    said = said.reshape(count, 4)
    total = np.array([spec.nominal.row(0) for spec in specs], np.int64).reshape(count, 4)
    lending = np.array([spec.lending.row(NO_LIMIT) for spec in specs], np.int64).reshape(count, 4)
    borrowing = np.array([spec.borrowing.row(NO_LIMIT) for spec in specs], np.int64).reshape(count, 4)
    own = np.zeros_like(total)
    for row, above in enumerate(parent.tolist()):
        total[row] = np.minimum(total[row], NO_LIMIT)
        own[row] = np.maximum(0, total[row] - lending[row])
        if above >= 0:
            total[above] += total[row] - own[row]
            said[above] |= said[row]
    # Known at the roots only: a resource that nobody in the tree has a quota of.
    for row in range(count - 1, -1, -1):
        if parent[row] >= 0:
            said[row] = said[parent[row]]
    total = np.where(said, total, NO_LIMIT)
    own = np.where(said, own, NO_LIMIT)
    most = np.where(borrowing >= NO_LIMIT, NO_LIMIT, np.minimum(NO_LIMIT, total - own + borrowing))
    return own, most, total
