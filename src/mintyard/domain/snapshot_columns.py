"""Jobs and holds of a snapshot as columns: a million of them are packed and unpacked in seconds.

A column is the little-endian bytes of one integer a row. What equal rows have in common (lines, ceilings, reasons) is kept
once in a table, in the order in which rows use it; what few rows have is kept apart, with the number of its row. Equal states
give equal bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.errors import InvariantBroken
from mintyard.domain.events import Line
from mintyard.domain.ledger.book import Hold
from mintyard.domain.lifecycle import JOB
from mintyard.domain.state import Job, Mandate, SpecEntry

T = TypeVar("T", bound=Hashable)
_STATES = tuple(sorted(JOB.states))


class PackedJobs(msgspec.Struct, array_like=True):
    """`states` and `reasons` are tables; `state` and `reason` point into them. `more` has (row, placement, boots, retried,
    requeued, spent) of the rows where any of these is not the default."""

    count: int
    states: tuple[str, ...]
    reasons: list[str]
    id: bytes
    hold: bytes
    submitted_at: bytes
    queued_at: bytes
    placed_at: bytes
    began_at: bytes
    array_job: bytes
    array_index: bytes
    spec: bytes
    mandate: bytes
    attempt: bytes
    waiting: bytes
    reason: bytes
    state: bytes
    more: list[tuple[int, tuple[tuple[int, int], ...], dict[str, int] | None, int, int, int]]


class PackedHolds(msgspec.Struct, array_like=True):
    """`accounts`, `lines` and `ceilings` are tables. `more` has (row, holder, note, drawn, spent_legs, drawn_ceilings)."""

    count: int
    accounts: list[str]
    lines: list[tuple[Line, ...]]
    ceilings: list[tuple[str | int, ...]]
    id: bytes
    job: bytes
    expires_at: bytes
    account: bytes
    line: bytes
    ceiling: bytes
    attempt: bytes
    book: bytes
    more: list[tuple[int, str, str, dict[str, int] | None, tuple[int, ...], dict[str, int] | None]]


class _Table(Generic[T]):
    """Numbers for values in the order of their first use."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        known = self._numbers.setdefault(value, len(self.values))
        if known == len(self.values):
            self.values.append(value)
        return known


def pack_jobs(jobs: Sequence[Job]) -> PackedJobs:
    """`jobs` in the order of their numbers."""
    states = {name: at for at, name in enumerate(_STATES)}
    reasons = _Table[str]()
    return PackedJobs(
        count=len(jobs),
        states=_STATES,
        id=_long(job.id for job in jobs),
        hold=_long(job.hold for job in jobs),
        submitted_at=_long(job.submitted_at for job in jobs),
        queued_at=_long(job.queued_at for job in jobs),
        placed_at=_long(job.placed_at for job in jobs),
        began_at=_long(job.began_at for job in jobs),
        array_job=_long(job.array_job for job in jobs),
        array_index=_short(job.array_index for job in jobs),
        spec=_long(job.spec.id for job in jobs),
        mandate=_long(job.mandate.id for job in jobs),
        attempt=_short(job.attempt for job in jobs),
        waiting=_short(job.waiting for job in jobs),
        reason=_short(reasons.number(job.reason) for job in jobs),
        state=_short(states[job.state] for job in jobs),
        reasons=reasons.values,
        more=[
            (row, job.placement, job.boots, job.retried, job.requeued, job.spent)
            for row, job in enumerate(jobs)
            if job.placement or job.boots is not None or job.retried or job.requeued or job.spent
        ],
    )


def pack_holds(holds: Sequence[Hold]) -> PackedHolds:
    """`holds` in the order of their numbers."""
    accounts, lines, ceilings = _Table[str](), _Table[tuple[Line, ...]](), _Table[tuple[str | int, ...]]()
    return PackedHolds(
        count=len(holds),
        id=_long(hold.id for hold in holds),
        job=_long(hold.job for hold in holds),
        expires_at=_long(hold.expires_at for hold in holds),
        account=_short(accounts.number(hold.account) for hold in holds),
        line=_short(lines.number(hold.lines) for hold in holds),
        ceiling=_short(ceilings.number(hold.ceilings) for hold in holds),
        attempt=_short(hold.attempt for hold in holds),
        book=_short(hold.book for hold in holds),
        accounts=accounts.values,
        lines=lines.values,
        ceilings=ceilings.values,
        more=[
            (row, hold.holder, hold.note, hold.drawn, hold.spent_legs, hold.drawn_ceilings)
            for row, hold in enumerate(holds)
            if hold.holder
            or hold.note
            or hold.drawn is not None
            or hold.spent_legs
            or hold.drawn_ceilings is not None
        ],
    )


def numbers_of(packed: PackedJobs | PackedHolds) -> list[int]:
    """The numbers of all rows, ascending; the same list goes to both `unpack_*`, so that a job and its hold share them."""
    return _longs(packed.id).tolist()


def unpack_jobs(
    packed: PackedJobs,
    job_ids: list[int],
    hold_ids: list[int],
    specs: dict[int, SpecEntry],
    mandates: dict[int, Mandate],
) -> list[Job]:
    """In the order of their numbers."""
    names = {name: name for name in JOB.states}  # one string for all
    states = [names[name] for name in packed.states]
    instants = _Instants()
    jobs = list(
        map(
            Job,
            job_ids,
            map(specs.__getitem__, _longs(packed.spec).tolist()),
            map(mandates.__getitem__, _longs(packed.mandate).tolist()),
            map(states.__getitem__, _shorts(packed.state).tolist()),
            _same(_longs(packed.hold), hold_ids),
            _shorts(packed.attempt).tolist(),
            instants.of(_longs(packed.array_job)),
            _shorts(packed.array_index).tolist(),
            _shorts(packed.waiting).tolist(),
            instants.of(_longs(packed.submitted_at)),
            instants.of(_longs(packed.queued_at)),
            instants.of(_longs(packed.placed_at)),
            instants.of(_longs(packed.began_at)),
            repeat(()),
            repeat(None),
            repeat(0),
            repeat(0),
            repeat(0),
            map(packed.reasons.__getitem__, _shorts(packed.reason).tolist()),
        )
    )
    _check_count(jobs, packed)
    for row, placement, boots, retried, requeued, spent in packed.more:
        job = jobs[row]
        job.placement, job.boots = placement, boots
        job.retried, job.requeued, job.spent = retried, requeued, spent
    return jobs


def unpack_holds(packed: PackedHolds, hold_ids: list[int], job_ids: list[int]) -> list[Hold]:
    """In the order of their numbers; equal parts are one object."""
    holds = list(
        map(
            Hold,
            hold_ids,
            map(packed.accounts.__getitem__, _shorts(packed.account).tolist()),
            map(packed.lines.__getitem__, _shorts(packed.line).tolist()),
            map(packed.ceilings.__getitem__, _shorts(packed.ceiling).tolist()),
            _same(_longs(packed.job), job_ids),
            _shorts(packed.attempt).tolist(),
            _shorts(packed.book).tolist(),
            _longs(packed.expires_at).tolist(),
            repeat(""),
            repeat(""),
        )
    )
    _check_count(holds, packed)
    for row, holder, note, drawn, spent_legs, drawn_ceilings in packed.more:
        hold = holds[row]
        hold.holder, hold.note = holder, note
        hold.drawn, hold.spent_legs, hold.drawn_ceilings = drawn, spent_legs, drawn_ceilings
    return holds


def _check_count(rows: Sequence[Job | Hold], packed: PackedJobs | PackedHolds) -> None:
    if len(rows) != packed.count:
        raise InvariantBroken(why="columns of a snapshot differ in length")


class _Instants:
    """Numbers that many rows share, as one object each: a million rows of one tick need one integer, not a million."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, column: NDArray[np.int64]) -> list[int]:
        distinct, rows = np.unique(column, return_inverse=True)
        known = [self._known.setdefault(number, number) for number in distinct.tolist()]
        return list(map(known.__getitem__, rows.tolist()))


def _same(column: NDArray[np.int64], known: list[int]) -> list[int]:
    """The column's numbers, as the objects in the sorted list `known` where they are in it."""
    if not known:
        return column.tolist()
    sorted_known = np.array(known, np.int64)
    at = np.minimum(np.searchsorted(sorted_known, column), len(known) - 1)
    found = sorted_known[at] == column
    numbers = list(map(known.__getitem__, at.tolist()))
    for row in np.flatnonzero(~found).tolist():
        numbers[row] = int(column[row])
    return numbers


def _long(numbers: Iterable[int]) -> bytes:
    return np.fromiter(numbers, "<i8").tobytes()


def _short(numbers: Iterable[int]) -> bytes:
    return np.fromiter(numbers, "<i4").tobytes()


def _longs(column: bytes) -> NDArray[np.int64]:
    return np.frombuffer(column, "<i8").astype(np.int64, copy=False)


def _shorts(column: bytes) -> NDArray[Any]:
    return np.frombuffer(column, "<i4")
