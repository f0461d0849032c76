"""Charging: decides which grants and ceilings a hold takes from, and what of it is spent in the end. Changes nothing itself.

A `Draft` is what has been decided within one command but not applied yet, so that a batch can't take the same amount twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from mintyard.domain.errors import CeilingReached, QuotaExhausted, TokenExpired, WrongResourceType
from mintyard.domain.events import Line
from mintyard.domain.ledger.book import Book, Hold, PlanEntry, rows
from mintyard.domain.ledger.prices import ALL_RESOURCES, RESOURCES, Bill
from mintyard.domain.tokens.authority import Block
from mintyard.domain.units import NS_PER_S, Unit, format_amount

MAX_SHARED_LINES = 64


class Draft:
    """Amounts taken (positive) or given back (negative) by decisions that are not applied yet."""

    __slots__ = ("counters", "grants", "limits")

    def __init__(self) -> None:
        self.grants: dict[int, int] = {}
        self.counters: dict[tuple[str, Unit], int] = {}
        self.limits: set[tuple[str, Unit]] = set()

    def take(self, legs: Sequence[int]) -> None:
        for at in range(0, len(legs), 2):
            self.grants[legs[at]] = self.grants.get(legs[at], 0) + legs[at + 1]

    def give(self, legs: Sequence[int]) -> None:
        for at in range(0, len(legs), 2):
            self.grants[legs[at]] = self.grants.get(legs[at], 0) - legs[at + 1]


def take_line(entry: PlanEntry, amount: int, now: int, draft: Draft) -> Line:
    """A line of `amount` from the entry's grants in draw order, noted in `draft`; `QuotaExhausted` says what is short."""
    legs: tuple[int, ...] = ()
    missing = amount
    taken = draft.grants
    for grant in entry.grants:
        if not grant.usable(now):
            continue
        number = grant.id
        before = taken.get(number, 0)
        free = grant.left - before
        if free >= missing:
            taken[number] = before + missing
            legs = (*legs, number, missing) if legs else (number, missing)
            missing = 0
            break
        if free > 0:
            taken[number] = before + free
            legs += (number, free)
            missing -= free
    if missing:
        draft.give(legs)
        raise _short(entry, amount, missing, now)
    return Line(entry.unit, entry.mask, amount, legs)


def _short(entry: PlanEntry, amount: int, missing: int, now: int) -> QuotaExhausted:
    unit = entry.unit
    starts = min((g.starts_at for g in entry.grants if g.state == "active" and g.starts_at > now), default=0)
    later = f" A further grant starts at {iso_time(starts)}." if starts else ""
    return QuotaExhausted(
        account=entry.account,
        unit=unit.value,
        short=format_amount(missing, unit),
        needed=format_amount(amount, unit),
        left=format_amount(amount - missing, unit),
        later=later,
    )


def iso_time(instant: int) -> str:
    """RFC 3339 in UTC of an instant in ns."""
    return datetime.fromtimestamp(instant // NS_PER_S, UTC).isoformat().replace("+00:00", "Z")


def take_lines(entries: Iterable[tuple[PlanEntry, int]], now: int, draft: Draft) -> tuple[Line, ...]:
    """Lines for all `entries` with their amounts, or the refusal of the first that is short, with nothing left in `draft`."""
    lines: list[Line] = []
    try:
        for entry, amount in entries:
            lines.append(take_line(entry, amount, now, draft))
    except QuotaExhausted:
        for line in lines:
            draft.give(line.legs)
        raise
    return tuple(lines)


def shared_lines(
    entries: Sequence[tuple[PlanEntry, int]],
    now: int,
    shared: dict[tuple[int, ...], tuple[Line, ...]],
    taken: dict[int, int] | None = None,
) -> tuple[Line, ...] | None:
    """What `take_lines` gives where each entry finds enough in one grant, one object for equal lines (so that a million holds
    share a few); None when some entry doesn't, and `take_lines` must say how or why not. `taken` is a draft's, if there is
    one; it is noted there only when all entries found enough."""
    numbers: list[int] = []
    for entry, amount in entries:
        for grant in entry.grants:
            left = grant.left - taken.get(grant.id, 0) if taken else grant.left
            if (
                left > 0
                and grant.state == "active"
                and grant.starts_at <= now
                and (grant.expires_at == 0 or grant.expires_at > now)
            ):
                if left < amount:
                    return None
                numbers.append(grant.id)
                break
        else:
            return None
    key = tuple(numbers)
    lines = shared.get(key)
    if lines is None:
        if len(shared) >= MAX_SHARED_LINES:
            shared.clear()
        lines = shared[key] = tuple(
            [
                Line(entry.unit, entry.mask, amount, (number, amount))
                for (entry, amount), number in zip(entries, numbers, strict=True)
            ]
        )
    if taken is not None:
        for (_, amount), number in zip(entries, numbers, strict=True):
            taken[number] = taken.get(number, 0) + amount
    return lines


def check_covered(entries: tuple[PlanEntry, ...], mask: int, account: str) -> None:
    """`WrongResourceType` when some resource of the job would be paid by nothing on the path."""
    missing = Book.uncovered(entries, mask)
    if missing:
        unit = next(unit for bit, unit in enumerate(RESOURCES) if missing >> bit & 1)
        raise WrongResourceType(account=account, unit=unit.value)


def take_ceilings(
    book: Book, blocks: Sequence[Block], amounts: dict[Unit, int] | Bill, draft: Draft, now: int
) -> tuple[tuple[str | int, ...], tuple[str | int, ...]]:
    """What each ceiling in `blocks` is charged, flat (block, unit, amount, ...), and the limits of those charged for the first
    time, flat (block, unit, limit, expires_at, ...); with nothing left in `draft` `CeilingReached` when one does not fit, and
    `TokenExpired` when a block is past and what was used of its ceiling is not known any more."""
    taken: list[tuple[str, Unit, int]] = []
    ceilings: list[str | int] = []
    limits: list[str | int] = []
    for block in blocks:
        for unit, limit in block.ceilings.items():
            amount = (
                amounts.amount(unit, ALL_RESOURCES) if isinstance(amounts, Bill) else amounts.get(unit, 0)
            )
            if amount == 0:
                continue
            key = (block.block, unit)
            counter = book.counters.get(key)
            if counter is None and block.expires_at <= now:
                raise TokenExpired(expired_at=iso_time(block.expires_at))
            used = (counter.held + counter.spent if counter else 0) + draft.counters.get(key, 0)
            bound = min(limit, counter.limit) if counter else limit
            if used + amount > bound:
                for name, kind, back in taken:
                    draft.counters[name, kind] -= back
                raise CeilingReached(
                    unit=unit.value,
                    limit=format_amount(bound, unit),
                    used=format_amount(used, unit),
                    needed=format_amount(amount, unit),
                    short=format_amount(used + amount - bound, unit),
                )
            draft.counters[key] = draft.counters.get(key, 0) + amount
            taken.append((block.block, unit, amount))
            ceilings += (block.block, unit.value, amount)
            if counter is None and key not in draft.limits:
                draft.limits.add(key)
                limits += (block.block, unit.value, limit, block.expires_at)
    return tuple(ceilings), tuple(limits)


class Settlement:
    """How a hold's amounts divide into what is spent now and what is released; flat tuples as the events carry them."""

    __slots__ = ("ceilings", "released", "spent")

    def __init__(
        self, spent: tuple[int, ...], released: tuple[int, ...], ceilings: tuple[str | int, ...]
    ) -> None:
        self.spent = spent
        self.released = released
        self.ceilings = ceilings


def settle(hold: Hold, used: dict[Unit, int] | Bill) -> Settlement:
    """Spend `used` (in total, draws included) from the hold's legs in order, at most what is held, and release the rest."""
    spent: list[int] = []
    released: list[int] = []
    is_bill = isinstance(used, Bill)
    already = dict(rows(hold.spent_legs, 2)) if hold.spent_legs else None
    unit, mask, charge = "", -1, 0
    for line in hold.lines:
        if line.unit is not unit or line.mask != mask:  # mostly the same at every level
            unit, mask = line.unit, line.mask
            charge = used.amount(unit, mask) if is_bill else used.get(unit, 0)
        amount = line.amount
        due = charge if charge < amount else amount
        legs = line.legs
        if already is None and len(legs) == 2:
            if due > 0:
                spent += (legs[0], due)
            if due < amount:
                released += (legs[0], amount - due)
            continue
        for at in range(0, len(legs), 2):
            grant, amount = legs[at], legs[at + 1]
            part = due if due < amount else amount
            due -= part
            # A grant lies in one line only, so what it was drawn for before is found by its number.
            drawn = already.get(grant, 0) if already else 0
            if part > drawn:
                spent += (grant, part - drawn)
            rest = amount - (part if part > drawn else drawn)
            if rest:
                released += (grant, rest)
    return Settlement(tuple(spent), tuple(released), _settle_ceilings(hold, used) if hold.ceilings else ())


def _settle_ceilings(hold: Hold, used: dict[Unit, int] | Bill) -> tuple[str | int, ...]:
    ceilings: list[str | int] = []
    before = hold.drawn_ceilings
    is_bill = isinstance(used, Bill)
    charges: dict[str, int] = {}
    parts: Iterator[Any] = iter(hold.ceilings)
    for block in parts:
        unit, amount = next(parts), next(parts)
        due = charges.get(unit, -1)
        if due < 0:
            due = charges[unit] = used.amount(unit, ALL_RESOURCES) if is_bill else used.get(unit, 0)
        if due > amount:
            due = amount
        drawn = before.get(f"{block}:{unit}", 0) if before else 0
        if due < drawn:
            due = drawn
        ceilings += (block, unit, due - drawn, amount - due)
    return tuple(ceilings)


def draw(hold: Hold, spent: dict[Unit, int]) -> tuple[tuple[int, ...], tuple[str | int, ...]]:
    """What moves from held to spent now that the holder has spent `spent` in total; amounts already drawn don't move again."""
    share = settle(hold, spent)
    ceilings = tuple(
        part for block, unit, now, _ in rows(share.ceilings, 4) if now for part in (block, unit, now)
    )
    return share.spent, ceilings
