"""Run times predicted online from the hub's own history, and the kinds of jobs that wait. Integers only, no clock.

Similar jobs run alike: history keeps, per *template* (Smith, Foster, Taylor 1998), a decayed mean of run times, so that the last
few weigh most, as in Tsafrir's mean of the user's last two (2007). Four templates from special to general: account + name +
shape + time limit; account + name + time limit; account; time limit. A prediction starts at half the limit and is drawn from the
general to the special one by what each has seen (shrinkage), and never exceeds the limit. What a prediction is for: order and
estimates. Reservations go by time limits, so a wrong prediction never breaks one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.limits import MAX_TIME_LIMIT_MS
from mintyard.domain.scheduling.prediction_kernel import (
    ERROR_COLUMNS,
    ROW_COLUMNS,
    ROW_LAST,
    TEMPLATES,
    count_runs,
    predict,
)
from mintyard.domain.scheduling.queue_kernel import INVERSE_BITS, MAX_WAIT_SCALES

Kind = tuple[str, str, int, int]
"""Account, name, class of the shape, time limit in ms."""
Template = tuple[int | str, ...]
MAX_TEMPLATES: Final = 65_536
"""Templates remembered; the quarter that was used the longest ago goes when there are more."""
MAX_PENDING: Final = 4_096
MAX_KINDS: Final = 4_096
"""Fewer kinds of waiting jobs are never worth forgetting."""
MIN_SCALE_MS: Final = 10_000
"""A job counts as at least this long (the threshold of bounded slowdown) ..."""
MAX_SCALE_MS: Final = 86_400_000
"""... and as at most this long, so that the priority of any job grows at a known pace."""


class Errors(msgspec.Struct, frozen=True):
    """How predictions, made when a run time became known, compared with it. Sums in ms."""

    runs: int = 0
    under: int = 0
    """Ran longer than predicted."""
    absolute_ms: int = 0
    limit_absolute_ms: int = 0
    """The same for the time limit as prediction."""


def templates(kind: Kind) -> tuple[Template, ...]:
    """From special to general."""
    account, name, shape_class, limit_ms = kind
    return (
        (0, account, name, shape_class, limit_ms),
        (1, account, name, limit_ms),
        (2, account),
        (3, limit_ms),
    )


class History:
    """Run times seen so far. What is noted is counted a little later, many at once; when makes no difference.

    A template's row is its decayed sum of run times (ms x `ONE`), the weight of that sum, and the number of the last run time
    counted."""

    def __init__(self, most: int = MAX_TEMPLATES) -> None:
        self.most = most
        self.version: int = 0
        """Grows when predictions may have changed."""
        self.layout: int = 0
        """Grows when a template has got or lost its row."""
        self._rows: dict[Template, int] = {}
        self._table = np.zeros((64, ROW_COLUMNS), np.int64)
        self._errors = np.zeros(ERROR_COLUMNS, np.int64)
        self._places: dict[Kind, tuple[int, ...]] = {}
        self._pending: list[tuple[Kind, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def note(self, kind: Kind, run_ms: int) -> None:
        """A job of a kind ran for `run_ms`."""
        self._pending.append((kind, run_ms))
        if len(self._pending) >= MAX_PENDING:
            self.settle()

    def settle(self) -> None:
        """Count what was noted."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        places = self._places
        ready: list[tuple[int, ...]] = []
        for kind, run_ms in pending:
            rows = places.get(kind)
            if rows is None:
                if len(self._rows) + TEMPLATES > self.most:
                    self._count(ready)
                    ready = []
                    self._forget()
                    places = self._places
                rows = places[kind] = self._new_rows(kind)
            ready.append((*rows, kind[3], run_ms))
        self._count(ready)
        self.version += 1

    def predict(self, kind: Kind) -> int:
        """Expected run time in ms, 1 to the limit."""
        self.settle()
        return int(self.predict_all(self.rows_of([kind]), np.array([kind[3]], np.int64))[0])

    def rows_of(self, kinds: Sequence[Kind]) -> NDArray[np.int64]:
        """Row of each template of each kind, `[kinds, TEMPLATES]`, -1 where there is none; good until `layout` changes."""
        get = self._rows.get
        found = [[get(template, -1) for template in templates(kind)] for kind in kinds]
        return np.array(found, np.int64).reshape(len(kinds), TEMPLATES)

    def predict_all(self, rows: NDArray[np.int64], limits_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """`predict` for many kinds, by their rows and time limits."""
        return predict(self._table, rows, limits_ms)

    @property
    def errors(self) -> Errors:
        self.settle()
        runs, under, absolute, by_limit = self._errors.tolist()
        return Errors(runs, under, absolute, by_limit)

    def encode(self) -> bytes:
        """Canonical bytes."""
        self.settle()
        rows = [
            (template, self._table[row].tolist())
            for template, row in sorted(self._rows.items(), key=_by_template)
        ]
        return msgspec.msgpack.encode((self._errors.tolist(), rows))

    @classmethod
    def decode(cls, data: bytes) -> History:
        """The history that `encode` wrote; an empty one from no bytes."""
        history = cls()
        if data:
            errors, rows = msgspec.msgpack.decode(
                data, type=tuple[list[int], list[tuple[Template, list[int]]]]
            )
            history._errors[:] = errors
            history._rows = {template: row for row, (template, _) in enumerate(rows)}
            history._table = np.zeros((max(64, len(rows)), ROW_COLUMNS), np.int64)
            for row, (_, values) in enumerate(rows):
                history._table[row] = values
        return history

    def _count(self, ready: list[tuple[int, ...]]) -> None:
        if ready:
            count_runs(self._table, self._errors, np.array(ready, np.int64))

    def _new_rows(self, kind: Kind) -> tuple[int, ...]:
        rows = self._rows
        found: list[int] = []
        for template in templates(kind):
            row = rows.get(template)
            if row is None:
                row = rows[template] = len(rows)
                self.layout += 1
            found.append(row)
        while len(rows) > len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        return tuple(found)

    def _forget(self) -> None:
        """Drop the quarter of the rows that were used the longest ago."""
        table = self._table[: len(self._rows)]
        oldest = np.sort(table[:, ROW_LAST])[len(table) // 4]
        kept = [(template, row) for template, row in self._rows.items() if table[row, ROW_LAST] > oldest]
        self._table = np.zeros_like(self._table)
        self._table[: len(kept)] = table[[row for _, row in kept]]
        self._rows = {template: row for row, (template, _) in enumerate(kept)}
        self._places = {}
        self.layout += 1


def _by_template(item: tuple[Template, int]) -> Template:
    """By level first: templates of one level compare part by part."""
    return item[0]


class JobKinds:
    """Kinds of jobs that wait: what has account, name, shape and time limit in common. Kind 0 is unknown: no limit.

    Derived from the queue: kinds that nothing waits for are forgotten by `sweep`."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int], int] = {}
        self._found: list[Kind] = [("", "", -1, MAX_TIME_LIMIT_MS)]
        self._keys: list[tuple[int, int]] = [(-1, -1)]
        self._limits = np.full(1, MAX_TIME_LIMIT_MS, np.int64)
        self._classes = np.full(1, -1, np.int64)
        self.sweep_from = MAX_KINDS
        """With more kinds than this it is worth looking for those that nobody waits with."""
        self._rows = np.zeros((0, TEMPLATES), np.int64)
        self._layout: int = -1
        self._predicted = np.zeros(0, np.int64)
        self._version: int = -1

    def __len__(self) -> int:
        return len(self._found)

    def intern(self, tenant: int, spec: int, kind: Kind) -> int:
        """The number of a kind; `tenant` and `spec` are a short key that no other kind has."""
        key = (tenant, spec)
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = len(self._found)
            self._found.append(kind)
            self._keys.append(key)
        return known

    def find(self, tenant: int, spec: int) -> int:
        """Its number, 0 when it is not known."""
        return self._ids.get((tenant, spec), 0)

    @property
    def limits_ms(self) -> NDArray[np.int64]:
        """Time limit of each kind."""
        self._extend()
        return self._limits

    @property
    def classes(self) -> NDArray[np.int64]:
        """Class of the shape of each kind, -1 for kind 0."""
        self._extend()
        return self._classes

    def predicted_ms(self, history: History) -> NDArray[np.int64]:
        """Expected run time of each kind."""
        history.settle()
        if history.layout != self._layout:
            self._layout = history.layout
            self._rows = self._rows[:0]
        if len(self._rows) < len(self._found):
            self._rows = np.concatenate([self._rows, history.rows_of(self._found[len(self._rows) :])])
        elif history.version == self._version and len(self._predicted) == len(self._found):
            return self._predicted
        self._version = history.version
        self._predicted = history.predict_all(self._rows, self.limits_ms)
        return self._predicted

    def scales(self, history: History) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For `PendingQueue.evaluate`: by kind, 2^40 / scale rounded up and the longest wait that counts, where the scale is
        the expected run time (response ratio: priority = base x (1 + wait / run time))."""
        scale = np.clip(self.predicted_ms(history), MIN_SCALE_MS, MAX_SCALE_MS)
        return -(-(1 << INVERSE_BITS) // scale), scale * MAX_WAIT_SCALES

    def sweep(self, in_use: NDArray[np.integer[Any]]) -> NDArray[np.int32] | None:
        """When there are more than twice the kinds `in_use`: forget the others; old to new number, else None."""
        used = np.union1d(np.zeros(1, np.int64), in_use)
        self.sweep_from = max(MAX_KINDS, 2 * len(used))
        if len(self._found) <= 2 * len(used):
            return None
        renumbered = np.zeros(len(self._found), np.int32)
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        kept: list[int] = used.tolist()
        self._found = [self._found[old] for old in kept]
        self._keys = [self._keys[old] for old in kept]
        self._ids = {key: number for number, key in enumerate(self._keys) if number}
        self._limits, self._classes = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._rows, self._predicted = self._rows[:0], self._predicted[:0]
        return renumbered

    def _extend(self) -> None:
        first = len(self._limits)
        if first < len(self._found):
            more = self._found[first:]
            self._limits = np.concatenate([self._limits, np.array([one[3] for one in more], np.int64)])
            self._classes = np.concatenate([self._classes, np.array([one[2] for one in more], np.int64)])
