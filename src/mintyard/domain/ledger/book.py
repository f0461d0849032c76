"""The book: accounts, grants, holds and ceiling counters, and the postings that move amounts between them.

Double entry: every movement takes from one ledger account and gives to another. A grant is four ledger accounts (left, held,
spent, expired) fed by two sources per unit (issued, refunds); their sum per unit is zero at all times. A grant is an allowance
at one account: what a job or call uses is charged at every account on the path from its own to the root that meters the unit,
so no level can be overspent (L1). An account meters a unit from its first grant of it on, also after that has run out.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Final

import msgspec

from mintyard.domain.errors import InvariantBroken
from mintyard.domain.events import (
    GrantAdjusted,
    GrantClosed,
    GrantCreated,
    HoldClosed,
    HoldDrawn,
    HoldExtended,
    HoldPlaced,
    Line,
    Refunded,
)
from mintyard.domain.ids import parent_of
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.ledger.prices import ALL_RESOURCES, RESOURCES
from mintyard.domain.lifecycle import ACCOUNT, GRANT
from mintyard.domain.units import Unit

ISSUED, REFUNDS, LEFT, HELD, SPENT, EXPIRED = range(6)
LEDGER_ACCOUNTS: Final = ("issued", "refunds", "left", "held", "spent", "expired")
_FIELDS: Final = (("granted", -1), ("refunded", -1), ("left", 1), ("held", 1), ("spent", 1), ("expired", 1))
"""Where a grant keeps each ledger account; the sources are kept as what they gave."""
UNITS: Final = tuple(Unit)


class Grant(msgspec.Struct, array_like=True, gc=False):
    """An amount of one unit at one account, with its four ledger accounts (`left` ... `expired`)."""

    id: int
    account: str
    unit: Unit
    priority: int
    starts_at: int
    expires_at: int
    note: str
    granted: int
    refunded: int = 0
    left: int = 0
    held: int = 0
    spent: int = 0
    expired: int = 0
    state: str = GRANT.initial

    def usable(self, now: int) -> bool:
        return (
            self.state == "active"
            and self.starts_at <= now
            and (self.expires_at == 0 or self.expires_at > now)
        )

    def order(self) -> tuple[int, int, int]:
        """Grants are used up by priority, then expiry (none last), then id (L2)."""
        return (self.priority, self.expires_at or 2**63, self.id)


class Counter(msgspec.Struct, array_like=True, gc=False):
    """How much of a token block's cumulative ceiling is held and spent."""

    limit: int
    expires_at: int
    held: int = 0
    spent: int = 0


class Hold(msgspec.Struct, array_like=True, gc=False):
    """Amounts reserved, by line; `drawn` is what an escrow has spent so far per unit, `spent_legs` from which grants: flat
    (grant, amount, ...)."""

    id: int
    account: str
    lines: tuple[Line, ...]
    ceilings: tuple[str | int, ...]
    job: int
    attempt: int
    book: int
    expires_at: int
    holder: str
    note: str
    drawn: dict[str, int] | None = None
    spent_legs: tuple[int, ...] = ()
    drawn_ceilings: dict[str, int] | None = None


class PlanEntry(msgspec.Struct, frozen=True, gc=False):
    """One charge that a job causes: `unit` at `account`, for the resources in `mask`, paid from `grants` in order."""

    account: str
    unit: Unit
    mask: int
    grants: list[Grant]


class Account:
    """A node of the tree. `path` runs from this account to the root; `grants` are in draw order."""

    __slots__ = ("epoch", "grants", "id", "in_use", "live_jobs", "path", "plans", "state", "tenant")

    def __init__(self, id: str, parent: Account | None) -> None:
        self.id = id
        self.path: tuple[Account, ...] = (self, *parent.path) if parent else (self,)
        self.state = ACCOUNT.initial
        self.grants: dict[Unit, list[Grant]] = {}
        self.live_jobs = 0
        self.tenant = -1
        self.in_use = [0, 0, 0]
        self.plans: dict[int, tuple[PlanEntry, ...]] = {}
        self.epoch = -1

    def count_in_use(self, shape: Shape, jobs: int) -> None:
        """Count what `jobs` more attempts of a shape have in use: GPU milli, CPU milli, MiB."""
        members, in_use = jobs * shape.members, self.in_use
        in_use[0] += members * shape.gpus * shape.gpu_milli
        in_use[1] += members * shape.cpus_milli
        in_use[2] += members * shape.memory_mib

    @property
    def parent(self) -> Account | None:
        return self.path[1] if len(self.path) > 1 else None


class Book:
    """All ledger state. Only `apply_*` methods change it; they take events and check that no balance goes below its floor."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.grants: dict[int, Grant] = {}
        self.holds: dict[int, Hold] = {}
        self.counters: dict[tuple[str, Unit], Counter] = {}
        self.next_grant = 1
        self.next_hold = 1
        self.plan_epoch = 0
        self.now = 0
        self._expiring: list[tuple[int, str, str]] = []

    # --- reading ---------------------------------------------------------------------------------------------------

    @property
    def totals(self) -> dict[Unit, list[int]]:
        """The six ledger accounts of each unit, summed over all grants; each sums to zero. Walks all grants."""
        sums: dict[Unit, list[int]] = {unit: [0] * 6 for unit in UNITS}
        for grant in self.grants.values():
            of_unit = sums[grant.unit]
            for at, part in enumerate(
                (-grant.granted, -grant.refunded, grant.left, grant.held, grant.spent, grant.expired)
            ):
                of_unit[at] += part
        return sums

    def plan(self, account: Account, mask: int) -> tuple[PlanEntry, ...]:
        """What a job that uses the resources in `mask` is charged on the path of `account`.

        At each account a resource with grants of its own unit is paid in that unit, the others in money where the account
        meters money. An empty coverage of some resource shows in `covered`.
        """
        if account.epoch != self.plan_epoch:
            account.plans.clear()
            account.epoch = self.plan_epoch
        entries = account.plans.get(mask)
        if entries is None:
            entries = account.plans[mask] = tuple(self._plan_entries(account, mask))
        return entries

    @staticmethod
    def _plan_entries(account: Account, mask: int) -> Iterator[PlanEntry]:
        for level in account.path:
            rest = mask
            for bit, unit in enumerate(RESOURCES):
                if mask >> bit & 1 and unit in level.grants:
                    rest &= ~(1 << bit)
                    yield PlanEntry(level.id, unit, 1 << bit, level.grants[unit])
            if rest and Unit.MONEY in level.grants:
                yield PlanEntry(level.id, Unit.MONEY, rest, level.grants[Unit.MONEY])

    def unit_plan(self, account: Account, unit: Unit) -> tuple[PlanEntry, ...]:
        """The entries for an amount of one unit that is not a job's: every account on the path that meters it."""
        return tuple(
            PlanEntry(level.id, unit, 0, level.grants[unit]) for level in account.path if unit in level.grants
        )

    @staticmethod
    def uncovered(entries: tuple[PlanEntry, ...], mask: int) -> int:
        """The bits of `mask` that no entry pays for."""
        for entry in entries:
            mask &= ~entry.mask
        return mask & ALL_RESOURCES

    # --- movements -------------------------------------------------------------------------------------------------

    @staticmethod
    def _move(grant: Grant, source: int, target: int, amount: int) -> None:
        """One posting: `amount` from one ledger account of the grant to another."""
        if amount < 0:
            raise InvariantBroken(why=f"negative posting of {amount} at grant {grant.id}")
        for side, sign in ((source, -1), (target, 1)):
            field, way = _FIELDS[side]
            setattr(grant, field, getattr(grant, field) + way * sign * amount)
        if grant.left < 0 or grant.held < 0 or grant.spent < 0 or grant.granted < 0:
            raise InvariantBroken(why=f"grant {grant.id} below zero: left {grant.left}, held {grant.held}")

    def home(self, grant: Grant) -> int:
        """Where released and refunded amounts go: back to `left`, or to `expired` once the grant is closed."""
        return LEFT if grant.state == "active" else EXPIRED

    def open_account(self, account: str) -> None:
        above = parent_of(account)
        self.accounts[account] = Account(account, self.accounts[above] if above else None)

    def apply_grant_created(self, event: GrantCreated) -> None:
        grant = Grant(
            event.grant,
            event.account,
            event.unit,
            event.priority,
            event.starts_at,
            event.expires_at,
            event.note,
            0,
        )
        self.grants[event.grant] = grant
        self.next_grant = event.grant + 1
        grants = self.accounts[event.account].grants
        if event.unit not in grants:
            grants[event.unit] = []
            self.plan_epoch += 1
        grants[event.unit].append(grant)
        grants[event.unit].sort(key=Grant.order)
        self._move(grant, ISSUED, LEFT, event.amount)

    def apply_grant_adjusted(self, event: GrantAdjusted) -> None:
        grant = self.grants[event.grant]
        grant.state = GRANT.step(grant.state, "adjust")
        if event.delta >= 0:
            self._move(grant, ISSUED, LEFT, event.delta)
        else:
            self._move(grant, LEFT, ISSUED, -event.delta)
        grant.priority, grant.expires_at = event.priority, event.expires_at
        self.accounts[grant.account].grants[grant.unit].sort(key=Grant.order)

    def apply_grant_closed(self, event: GrantClosed) -> None:
        grant = self.grants[event.grant]
        grant.state = GRANT.step(grant.state, event.trigger)
        self._move(grant, LEFT, EXPIRED, event.amount)

    def apply_hold_placed(self, event: HoldPlaced) -> None:
        self.holds[event.hold] = Hold(
            event.hold,
            event.account,
            event.lines,
            event.ceilings,
            event.job,
            event.attempt,
            event.book,
            event.expires_at,
            event.holder,
            event.note,
        )
        self.next_hold = event.hold + 1
        self._reserve(event.lines, event.ceilings, event.limits)

    def _reserve(
        self, lines: tuple[Line, ...], ceilings: tuple[str | int, ...], limits: tuple[str | int, ...]
    ) -> None:
        grants = self.grants
        for line in lines:
            numbers = iter(line.legs)
            for number in numbers:
                amount = next(numbers)
                grant = grants[number]
                grant.left -= amount
                grant.held += amount
                if amount < 0 or grant.left < 0:
                    raise InvariantBroken(why=f"hold of {amount} leaves {grant.left} at grant {grant.id}")
        if limits:
            for block, unit, limit, expires_at in _rows(limits, 4):
                key = (block, Unit(unit))
                if key not in self.counters:
                    self.counters[key] = Counter(limit, expires_at)
                    heappush(self._expiring, (expires_at, block, unit))
        for block, unit, amount in _rows(ceilings, 3):
            counter = self.counters[block, unit]
            counter.held += amount
            if counter.held + counter.spent > counter.limit:
                raise InvariantBroken(why=f"ceiling {block} {unit} above its limit")

    def apply_hold_extended(self, event: HoldExtended) -> None:
        hold = self.holds[event.hold]
        self._reserve(event.lines, event.ceilings, event.limits)
        hold.lines = tuple(
            Line(old.unit, old.mask, old.amount + new.amount, _merge(old.legs, new.legs))
            for old, new in zip(hold.lines, event.lines, strict=True)
        )
        added = {(block, unit): amount for block, unit, amount in _rows(event.ceilings, 3)}
        hold.ceilings = tuple(
            part
            for block, unit, amount in _rows(hold.ceilings, 3)
            for part in (block, unit, amount + added.get((block, unit), 0))
        )
        hold.expires_at = event.expires_at

    def apply_hold_drawn(self, event: HoldDrawn) -> None:
        hold = self.holds[event.hold]
        for grant, amount in _rows(event.spent, 2):
            self._move(self.grants[grant], HELD, SPENT, amount)
        hold.spent_legs = _merge(hold.spent_legs, event.spent)
        drawn_ceilings = hold.drawn_ceilings if hold.drawn_ceilings is not None else {}
        for block, unit, amount in _rows(event.ceilings, 3):
            counter = self.counters.get((block, Unit(unit)))
            if counter is None and not amount:
                continue
            if counter is None:
                raise InvariantBroken(why=f"ceiling {block} {unit} is drawn on but not kept")
            counter.held -= amount
            counter.spent += amount
            drawn_ceilings[f"{block}:{unit}"] = drawn_ceilings.get(f"{block}:{unit}", 0) + amount
        hold.drawn_ceilings = drawn_ceilings
        drawn = hold.drawn if hold.drawn is not None else {}
        drawn.update(dict(_rows(event.units, 2)))
        hold.drawn = drawn

    def apply_hold_closed(self, event: HoldClosed) -> None:
        del self.holds[event.hold]
        self.post_closed(event.spent, event.released, event.ceilings)

    def post_closed(
        self,
        spent: tuple[int, ...],
        released: tuple[int, ...],
        ceilings: tuple[str | int, ...],
        times: int = 1,
    ) -> None:
        """Move what holds that are over had, as `HoldClosed` says it of one; `times` of them are alike."""
        grants = self.grants
        numbers = iter(spent)
        for number in numbers:
            amount = times * next(numbers)
            grant = grants[number]
            grant.held -= amount
            grant.spent += amount
            if amount < 0 or grant.held < 0:
                raise InvariantBroken(why=f"grant {number}: {amount} leaves {grant.held} held")
        numbers = iter(released)
        for number in numbers:
            amount = times * next(numbers)
            grant = grants[number]
            grant.held -= amount
            if grant.state == "active":
                grant.left += amount
            else:
                grant.expired += amount
            if amount < 0 or grant.held < 0:
                raise InvariantBroken(why=f"grant {number}: {amount} leaves {grant.held} held")
        if not ceilings:
            return
        counters = self.counters
        parts: Iterator[Any] = iter(ceilings)
        for block in parts:
            unit, used, freed = next(parts), times * next(parts), times * next(parts)
            counter = counters.get((block, unit))
            if counter is None and not used and not freed:
                continue  # all was drawn before its block ended, and the counter with it
            if counter is None:
                raise InvariantBroken(why=f"ceiling {block} {unit} is charged but not kept")
            counter.held -= used + freed
            counter.spent += used
            if counter.held < 0:
                raise InvariantBroken(why=f"ceiling {block} released twice")
            if counter.held == 0 and counter.expires_at <= self.now:
                # Not at once: the next attempt of the same job may charge it again within this record.
                heappush(self._expiring, (counter.expires_at, block, unit))

    def apply_refunded(self, event: Refunded) -> None:
        for grant_id, amount in _rows(event.legs, 2):
            grant = self.grants[grant_id]
            self._move(grant, REFUNDS, self.home(grant), amount)
            if grant.refunded > grant.spent:
                raise InvariantBroken(why=f"grant {grant_id} refunded more than spent")
        for block, unit, amount in _rows(event.ceilings, 3):
            counter = self.counters.get((block, Unit(unit)))
            if counter is not None:
                counter.spent -= amount

    def advance(self, now: int) -> None:
        """Forget ceilings whose block can no longer be used: a function of time alone, so no event is needed.

        One that open holds still charge goes in the record after the last of them was closed."""
        self.now = now
        while self._expiring and self._expiring[0][0] <= now:
            _, block, unit = heappop(self._expiring)
            counter = self.counters.get((block, Unit(unit)))
            if counter is not None and counter.held == 0:
                del self.counters[block, Unit(unit)]

    def restore_counter(self, block: str, unit: Unit, counter: Counter) -> None:
        """Put back a counter from a snapshot."""
        self.counters[block, unit] = counter
        heappush(self._expiring, (counter.expires_at, block, unit.value))

    # --- checking --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every invariant of the ledger, from scratch; raises `InvariantBroken`. For tests, simulation and `doctor`."""
        held: dict[int, int] = {}
        for grant in self.grants.values():
            parts = (-grant.granted, -grant.refunded, grant.left, grant.held, grant.spent, grant.expired)
            if sum(parts) or min(parts[2:]) < 0:
                raise InvariantBroken(why=f"grant {grant.id} does not balance: {parts}")
            held[grant.id] = grant.held
        counted: dict[tuple[str, Unit], int] = {}
        for hold in self.holds.values():
            for line in hold.lines:
                legs = line.legs
                if sum(legs[1::2]) != line.amount:
                    raise InvariantBroken(why=f"hold {hold.id}: legs don't sum to the line")
                for at in range(0, len(legs), 2):
                    held[legs[at]] -= legs[at + 1]
            for grant, amount in _rows(hold.spent_legs, 2) if hold.spent_legs else ():
                held[grant] += amount
            for block, unit, amount in _rows(hold.ceilings, 3) if hold.ceilings else ():
                left = amount - (hold.drawn_ceilings or {}).get(f"{block}:{unit}", 0)
                counted[block, Unit(unit)] = counted.get((block, Unit(unit)), 0) + left
        if any(held.values()):
            raise InvariantBroken(
                why=f"held amounts without a hold: { {k: v for k, v in held.items() if v} }"
            )
        for key, counter in self.counters.items():
            if (
                counter.held != counted.pop(key, 0)
                or counter.spent < 0
                or counter.held + counter.spent > counter.limit
            ):
                raise InvariantBroken(why=f"ceiling {key} is off: {counter}")
        if any(counted.values()):
            raise InvariantBroken(why="a hold charges a ceiling that is not kept")


def _rows(flat: tuple[Any, ...], width: int) -> Iterator[tuple[Any, ...]]:
    """The rows of a flat tuple."""
    return zip(*[iter(flat)] * width, strict=True)


rows = _rows


def _merge(legs: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    if not more:
        return legs
    merged: dict[int, int] = {}
    for grant, amount in (*_rows(legs, 2), *_rows(more, 2)):
        merged[grant] = merged.get(grant, 0) + amount
    return tuple(part for leg in merged.items() for part in leg)
