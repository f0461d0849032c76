"""A store that fails on purpose: wraps any store and does what disks, networks and rivals do, by script or by seed.

For tests and simulation. Faults are real where they can be: a rival takes the inner store's lease, a lost answer
leaves its records in the inner store. The same plan and the same calls give the same faults.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from mintyard.domain.errors import CommitUnknown, InvariantBroken, StoreUnavailable
from mintyard.ports.store import Lease, Record, Snapshot, Store

T = TypeVar("T")
L = TypeVar("L", Lease, Lease | None)
_RIVAL: Final = "rival"
_RIVAL_LIFE_MS: Final = 1_000
DEFAULT_STALL_MS: Final = 1_000


class Fault(StrEnum):
    """What goes wrong with a call."""

    BEFORE_COMMIT = "before_commit"
    """Nothing is written: `StoreUnavailable`."""
    AFTER_COMMIT = "after_commit"
    """Everything is durable but the answer is lost: `CommitUnknown` from `append`."""
    MID_COMMIT = "mid_commit"
    """The connection is lost while committing: `CommitUnknown`, durable or not as the seed decides; the next calls
    find no connection either."""
    STALL = "stall"
    """The call succeeds, late."""
    RIVAL = "rival"
    """Another process took the lease just before: `Fenced` from the inner store."""
    DISK_FULL = "disk_full"
    """Nothing is written, now and in the next calls that write: `StoreUnavailable`; reads go on."""


_READS: Final = frozenset({"head", "read", "load_snapshot"})
_NEED_LEASE: Final = frozenset({"append", "renew"})


class Injected(msgspec.Struct, frozen=True):
    """One fault that was done: call number from 0, method, fault, and whether the call took effect."""

    call: int
    method: str
    fault: Fault
    durable: bool


class FaultPlan:
    """Decides the fault of each call. `script` maps call numbers (from 0) to faults; `per_mille` gives each fault a
    rate for the calls that the script doesn't name. `seed` drives every choice."""

    def __init__(
        self,
        seed: int = 0,
        *,
        script: Mapping[int, Fault] | None = None,
        per_mille: Mapping[Fault, int] | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._script = dict(script or {})
        self._rates = [(fault, rate) for fault, rate in sorted((per_mille or {}).items())]
        if any(rate < 0 for _, rate in self._rates) or sum(rate for _, rate in self._rates) > 1_000:
            raise InvariantBroken(why="fault rates are 0 to 1000 per mille in all")

    def draw(self, call: int) -> Fault | None:
        # One draw a call, named by the script or not, so that a script doesn't shift what the seed does later.
        ticket = self._random.randrange(1_000)
        if call in self._script:
            return self._script[call]
        for fault, rate in self._rates:
            if ticket < rate:
                return fault
            ticket -= rate
        return None

    def coin(self) -> bool:
        return self._random.random() < 0.5

    def outage_calls(self) -> int:
        """How many further calls find the store away."""
        return self._random.randrange(3)


class FaultyStore:
    """`stall` waits that many ms: a simulation moves its virtual clock instead. `quiet` ends all faults."""

    def __init__(
        self,
        inner: Store,
        plan: FaultPlan,
        stall: Callable[[int], None] = lambda ms: time.sleep(ms / 1_000),
        stall_ms: int = DEFAULT_STALL_MS,
    ) -> None:
        self.inner = inner
        self.injected: list[Injected] = []
        self.quiet = False
        self._plan = plan
        self._stall = stall
        self._stall_ms = stall_ms
        self._calls = 0
        self._away_calls = 0
        self._full_calls = 0
        self._lease: Lease | None = None

    def acquire(self, holder: str, life_ms: int) -> Lease | None:
        return self._call("acquire", lambda: self._keep(self.inner.acquire(holder, life_ms)))

    def renew(self, lease: Lease, life_ms: int) -> Lease:
        return self._call("renew", lambda: self._keep(self.inner.renew(lease, life_ms)))

    def release(self, lease: Lease) -> None:
        self._call("release", lambda: self.inner.release(lease))

    def append(self, term: int, records: Sequence[Record]) -> int:
        return self._call("append", lambda: self.inner.append(term, records))

    def head(self) -> Record | None:
        return self._call("head", self.inner.head)

    def read(self, after_seq: int, limit: int) -> list[Record]:
        return self._call("read", lambda: self.inner.read(after_seq, limit))

    def seal(self, upto_seq: int) -> int:
        return self._call("seal", lambda: self.inner.seal(upto_seq))

    def save_snapshot(self, snapshot: Snapshot) -> None:
        self._call("save_snapshot", lambda: self.inner.save_snapshot(snapshot))

    def load_snapshot(self, max_schema: int) -> Snapshot | None:
        return self._call("load_snapshot", lambda: self.inner.load_snapshot(max_schema))

    def close(self) -> None:
        self.inner.close()

    def _keep(self, lease: L) -> L:
        """Remember the lease, so that a rival can take it."""
        self._lease = lease or self._lease
        return lease

    def _call(self, method: str, act: Callable[[], T]) -> T:
        call = self._calls
        self._calls += 1
        if self.quiet:
            return act()
        fault = self._plan.draw(call)
        if self._away_calls:
            self._away_calls -= 1
            raise StoreUnavailable(why="injected: there is no connection")
        if method in _READS:
            return self._read(call, method, fault, act)
        if self._full_calls:
            self._full_calls -= 1
            raise StoreUnavailable(why="injected: no room is left")
        return self._write(call, method, fault, act)

    def _read(self, call: int, method: str, fault: Fault | None, act: Callable[[], T]) -> T:
        if fault is Fault.STALL:
            self._note(call, method, fault, durable=False)
            self._stall(self._stall_ms)
        elif fault is not None and fault not in (Fault.RIVAL, Fault.DISK_FULL):
            self._note(call, method, fault, durable=False)
            raise StoreUnavailable(why="injected: the connection was lost")
        return act()

    def _write(self, call: int, method: str, fault: Fault | None, act: Callable[[], T]) -> T:
        match fault:
            case None:
                return act()
            case Fault.BEFORE_COMMIT:
                self._note(call, method, fault, durable=False)
                raise StoreUnavailable(why="injected: the transaction was rolled back")
            case Fault.DISK_FULL:
                self._full_calls = self._plan.outage_calls()
                self._note(call, method, fault, durable=False)
                raise StoreUnavailable(why="injected: no room is left")
            case Fault.STALL:
                self._stall(self._stall_ms)
                result = act()
                self._note(call, method, fault, durable=True)
                return result
            case Fault.AFTER_COMMIT:
                act()
                self._note(call, method, fault, durable=True)
                raise CommitUnknown()
            case Fault.MID_COMMIT:
                durable = self._plan.coin()
                self._away_calls = self._plan.outage_calls()
                if durable:
                    act()
                self._note(call, method, fault, durable=durable)
                raise CommitUnknown()
            case Fault.RIVAL:
                return self._with_rival(call, method, act)

    def _with_rival(self, call: int, method: str, act: Callable[[], T]) -> T:
        """A rival holds the lease during the call and gives it up after it."""
        if method not in _NEED_LEASE or self._lease is None:
            return act()
        self.inner.release(self._lease)
        rival = self.inner.acquire(_RIVAL, _RIVAL_LIFE_MS)
        self._note(call, method, Fault.RIVAL, durable=False)
        try:
            return act()
        finally:
            if rival is not None:
                self.inner.release(rival)

    def _note(self, call: int, method: str, fault: Fault, *, durable: bool) -> None:
        self.injected.append(Injected(call, method, fault, durable))
