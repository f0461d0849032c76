"""Quotas as part of the state: what is set, and what of it is in use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mintyard.domain.jobs.spec import Shape
from mintyard.domain.scheduling.quota import NO_LIMIT, NOTHING_SAID, RESOURCES, Limits, QueueSpec
from mintyard.domain.scheduling.quota_tables import Lane, Layout, Tables


class Quotas:
    """Queues and account limits, with what runs in each lane, and the tables for a round that follow from them."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueSpec] = {}
        self.accounts: dict[str, Limits] = {}
        self.lanes: list[Lane] = []
        self._lane_of: dict[Lane, int] = {}
        self._used = np.zeros((64, len(RESOURCES)), np.int64)
        self._cells = self._used.data
        self._layout: Layout | None = None

    def lane(self, queue: str, account: str) -> int:
        """The number of the jobs of an account in a queue, whether there is such a queue or not."""
        known = self._lane_of.get((queue, account))  # pyright: ignore[reportArgumentType, reportCallIssue] (equal to a Lane)
        if known is not None:
            return known
        lane = Lane(queue, account)
        number = self._lane_of[lane] = len(self.lanes)
        self.lanes.append(lane)
        if number == len(self._used):
            self._used = np.concatenate([self._used, np.zeros_like(self._used)])
            self._cells = self._used.data
        return number

    def count(self, lane: int, shape: Shape, jobs: int) -> None:
        """`jobs` more (fewer when negative) run in a lane."""
        cells, members = self._cells, shape.members * jobs
        cells[lane, 0] += shape.gpus * shape.gpu_milli * members
        cells[lane, 1] += shape.cpus_milli * members
        cells[lane, 2] += shape.memory_mib * members
        cells[lane, 3] += jobs

    @property
    def used(self) -> NDArray[np.int64]:
        """`[lanes, 4]`: what runs in each lane."""
        return self._used[: len(self.lanes)]

    def __bool__(self) -> bool:
        return bool(self.queues or self.accounts)

    def set_queue(self, spec: QueueSpec) -> None:
        self.queues[spec.name] = spec
        self._layout = None

    def remove_queue(self, name: str) -> None:
        del self.queues[name]
        self._layout = None

    def limit_account(self, account: str, limits: Limits) -> None:
        """`NOTHING_SAID` takes the limit away."""
        if limits == NOTHING_SAID:
            self.accounts.pop(account, None)
        else:
            self.accounts[account] = limits
        self._layout = None

    def children(self, name: str) -> list[str]:
        return sorted(one.name for one in self.queues.values() if one.parent == name)

    def path(self, name: str) -> Iterator[QueueSpec]:
        """The queue and those above it, as far as they are there."""
        while (spec := self.queues.get(name)) is not None:
            yield spec
            name = spec.parent

    def height(self, name: str) -> int:
        """How many levels lie below a queue."""
        return max((1 + self.height(child) for child in self.children(name)), default=0)

    def most(self, queue: str, account: str) -> tuple[list[int], list[str]]:
        """What a job there could have if nothing else ran, of each resource, and which limit says so."""
        most, limits = [NO_LIMIT] * len(RESOURCES), [""] * len(RESOURCES)
        if queue in self.queues:
            most = self._laid_out().most_of(queue)
            limits = [f"Queue {queue}"] * len(RESOURCES)
        for above in self.limits_on(account):
            for index, limit in enumerate(self.accounts[above].row(NO_LIMIT)):
                if limit < most[index]:
                    most[index], limits[index] = limit, f"The limit of account {above}"
        return most, limits

    def is_parent(self, name: str) -> bool:
        return name in self._laid_out().parents

    def limits_on(self, account: str) -> list[str]:
        """The accounts with a limit on the path of `account`, itself first."""
        return self._laid_out().limits_on(account)

    def tables(self) -> Tables:
        """Fresh tables for a round, as of what runs now."""
        layout = self._laid_out()
        layout.add_lanes(self.lanes)
        return layout.tables(self.used)

    @property
    def rows(self) -> dict[str, int]:
        """The row of each queue in the tables."""
        return self._laid_out().rows

    def _laid_out(self) -> Layout:
        if self._layout is None:
            self._layout = Layout(self.queues, self.accounts)
        return self._layout
