"""State: everything the hub knows, folded from events. Records only; what changes them is in the rooms and in `hub.py`.

Derived indexes (queue, dependents, expiry heaps, interning tables) are rebuilt from the records when a snapshot is loaded and
are not part of the state hash.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mintyard.domain.errors import InvalidSpec
from mintyard.domain.events import Line
from mintyard.domain.ids import ROOT
from mintyard.domain.jobs.spec import JobSpec
from mintyard.domain.ledger.book import Account, Book, Counter, PlanEntry
from mintyard.domain.ledger.charging import check_covered
from mintyard.domain.ledger.prices import ALL_RESOURCES, Bill, PriceBook, bill, resource_mask
from mintyard.domain.limits import MAX_AMOUNT, MAX_IDLE_PAYLOAD_BYTES, MAX_IDLE_SPECS
from mintyard.domain.scheduling.cluster import Amounts, Cluster
from mintyard.domain.scheduling.prediction import History, JobKinds, Kind
from mintyard.domain.scheduling.profile import Run, RunningJobs
from mintyard.domain.scheduling.queue import PendingQueue
from mintyard.domain.scheduling.quota_state import Quotas
from mintyard.domain.scheduling.shapes import ShapeTable
from mintyard.domain.tokens.authority import Block
from mintyard.domain.units import NS_PER_MS, Unit


class Token(msgspec.Struct, array_like=True, gc=False):
    """A registered token: its root block id, never the token."""

    id: str
    account: str
    name: str
    state: str
    expires_at: int
    parents: tuple[str, ...]


MAX_CEILING_CHARGES = 256
_FEW_JOBS = 12
"""So many are put into the queue faster one after the other."""


class Charges(NamedTuple):
    """What one attempt of a spec holds at an account: plan entries with their amounts, as of `epoch` of the book's plans.
    `shared` are lines that holds have in common, by the grants that they draw on; `ceilings` what they charge there."""

    epoch: int
    entries: tuple[tuple[PlanEntry, int], ...]
    shared: dict[tuple[int, ...], tuple[Line, ...]]
    ceilings: dict[tuple[str | int, ...], tuple[str | int, ...]]

    def common(self, ceilings: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """One object for equal ceilings."""
        if len(self.ceilings) >= MAX_CEILING_CHARGES:
            self.ceilings.clear()
        return self.ceilings.setdefault(ceilings, ceilings)


class SpecEntry:
    """An interned spec with what follows from it: class for the scheduler, mask of resources, bills by price book."""

    __slots__ = ("bills", "charges", "content", "count", "id", "mask", "shape_class")

    def __init__(self, id: int, content: JobSpec, shape_class: int) -> None:
        self.id = id
        self.content = content
        self.count = 0
        self.shape_class = shape_class
        self.mask = resource_mask(content.shape)
        self.bills: dict[int, Bill] = {}
        self.charges: dict[tuple[str, int], Charges] = {}

    def ceiling(self, number: int, book: PriceBook) -> Bill:
        """The most that one attempt may use: the whole time limit at the highest rate that its GPU models have.

        Raises `InvalidSpec` when that is more than the ledger counts."""
        known = self.bills.get(number)
        if known is None:
            content = self.content
            rate = book.gpu_rate(content.shape.gpu_models)
            known = bill(content.shape, content.time_limit_ms, book, rate)
            if max(*known.stock, sum(known.money)) > MAX_AMOUNT:
                raise InvalidSpec(
                    field="time_limit_ms",
                    why="with these resources it amounts to more than the ledger counts",
                )
            self.bills[number] = known
        return known

    def charges_on(self, ledger: Book, account: Account, number: int, book: PriceBook) -> Charges:
        """What one attempt holds on the path of `account`: entries with their amounts, those of nothing left out. Kept until
        some account meters a new unit. Raises `WrongResourceType` when a resource would be paid by nothing."""
        known = self.charges.get((account.id, number))
        if known is not None and known.epoch == ledger.plan_epoch:
            return known
        plan = ledger.plan(account, self.mask)
        if account.id != ROOT or plan:
            check_covered(plan, self.mask, account.id)
        ceiling = self.ceiling(number, book)
        amounts = ((entry, ceiling.amount(entry.unit, entry.mask)) for entry in plan)
        entries = tuple((entry, amount) for entry, amount in amounts if amount)
        charges = self.charges[account.id, number] = Charges(ledger.plan_epoch, entries, {}, {})
        return charges


class CeilingCharge(NamedTuple):
    """((block, unit), amount, limit) of each ceiling that is charged, and the same as events carry it."""

    rows: tuple[tuple[tuple[str, Unit], int, int], ...]
    flat: tuple[str | int, ...]

    def fits(self, counters: dict[tuple[str, Unit], Counter]) -> bool:
        """Whether every ceiling is known and has room; when not, `take_ceilings` says what follows."""
        for key, amount, limit in self.rows:
            counter = counters.get(key)
            if counter is None:
                return False
            used = counter.held + counter.spent + amount
            if used > limit or used > counter.limit:
                return False
        return True


class Mandate:
    """Who pays for a job and which ceilings bind it; shared by all jobs submitted with the same token."""

    __slots__ = ("account", "blocks", "ceilings", "charged", "count", "digest", "id", "parents")

    def __init__(self, id: int, account: Account, blocks: tuple[Block, ...], digest: str) -> None:
        self.id = id
        self.account = account
        self.blocks = blocks
        self.parents = tuple(block.block for block in blocks)
        """What the tokens of its jobs stem from."""
        self.digest = digest
        self.count = 0
        self.charged = tuple(block for block in blocks if block.ceilings)
        self.ceilings: dict[tuple[SpecEntry, int], CeilingCharge] = {}
        """By the entry itself, not its number: one that was decided on but refused leaves its number to the next."""

    def ceiling_charge(self, entry: SpecEntry, number: int, book: PriceBook) -> CeilingCharge:
        """What one attempt of a spec is charged at each ceiling; kept for a while."""
        known = self.ceilings.get((entry, number))
        if known is None:
            if len(self.ceilings) >= MAX_CEILING_CHARGES:
                self.ceilings.clear()
            ceiling = entry.ceiling(number, book)
            rows = tuple(
                ((block.block, unit), amount, limit)
                for block in self.charged
                for unit, limit in block.ceilings.items()
                if (amount := ceiling.amount(unit, ALL_RESOURCES))
            )
            flat = tuple(part for (block, unit), amount, _ in rows for part in (block, unit.value, amount))
            known = self.ceilings[entry, number] = CeilingCharge(rows, flat)
        return known


def chain_key(account: str, blocks: tuple[Block, ...]) -> tuple[str, str]:
    """A chain is known by its last block, whose id hangs on all before it."""
    return (account, blocks[-1].block if blocks else "")


class Job(msgspec.Struct, gc=False):
    """A live job. `attempt` is the last one started, 0 before the first. `waiting` counts unmet dependencies."""

    id: int
    spec: SpecEntry
    mandate: Mandate
    state: str
    hold: int = 0
    attempt: int = 0
    array_job: int = 0
    array_index: int = -1
    waiting: int = 0
    submitted_at: int = 0
    queued_at: int = 0
    placed_at: int = 0
    began_at: int = 0
    placement: tuple[tuple[int, int], ...] = ()
    boots: dict[str, int] | None = None
    retried: int = 0
    requeued: int = 0
    spent: int = 0
    """Nano-units of earlier attempts, refunds deducted."""
    reason: str = ""


RAN = frozenset({"succeed", "fail", "time_out"})
"""Ends that say how long a job like this runs."""


def run_of(job: Job) -> Run:
    """By when a live job has ended: its time limit, counted from its placement."""
    content = job.spec.content
    return job.placed_at + content.time_limit_ms * NS_PER_MS, job.placement, job.spec.shape_class


def described(job: Job) -> Kind:
    """What jobs that run alike have in common."""
    content = job.spec.content
    return (job.mandate.account.id, content.name, job.spec.shape_class, content.time_limit_ms)


class ArrayJob(msgspec.Struct, array_like=True, gc=False):
    """A job array: how many of its tasks are live, how many hold resources now, and how those ended that did not succeed."""

    id: int
    account: str
    throttle: int
    live: int
    active: int = 0
    bad: str = ""
    """Empty while all succeed, see `lifecycle.joint_end`."""
    size: int = 0


class Node(msgspec.Struct, array_like=True, gc=False):
    """A node; its numbers are in the cluster's arrays at `index`. `running` counts attempts bound to it."""

    name: str
    index: int
    engine: str
    state: str
    cpus_milli: int
    memory_mib: int
    gpus: int
    gpu_model: str
    labels: tuple[str, ...]
    virtual: bool
    running: int = 0
    reason: str = ""


class Remembered(msgspec.Struct, array_like=True, gc=False):
    """The reply to a request with an idempotency key."""

    digest: bytes
    reply: bytes
    keep_until: int


class Agenda:
    """What falls due when: a heap whose stale entries are skipped by asking `alive`."""

    __slots__ = ("alive", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, str, int]] = []
        self.alive: dict[tuple[str, int], int] = {}

    def set(self, kind: str, number: int, at: int) -> None:
        """Make it due at `at`, instead of when it was due before; 0 is never."""
        if at:
            self.alive[kind, number] = at
            heappush(self.heap, (at, kind, number))
        else:
            self.alive.pop((kind, number), None)

    def drop(self, kind: str, number: int) -> None:
        self.alive.pop((kind, number), None)

    def until(self, now: int) -> list[tuple[int, str, int]]:
        """Everything due at or before `now`, in order."""
        heap = self.heap
        found: list[tuple[int, str, int]] = []
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if self.alive.get(entry[1:]) == entry[0] and (not found or found[-1] != entry):
                found.append(entry)
        for entry in found:
            heappush(heap, entry)
        return found

    def next(self) -> int:
        """When something falls due next, 0 when nothing will."""
        while self.heap:
            at, kind, number = self.heap[0]
            if self.alive.get((kind, number)) == at:
                return at
            heappop(self.heap)
        return 0


class Shares:
    """Each tenant's share in use as of the last round: a cache, never part of the state."""

    __slots__ = ("milli", "stale", "total")

    def __init__(self) -> None:
        self.milli: NDArray[np.int64] = np.zeros(0, np.int64)
        self.stale: set[int] = set()
        self.total = Amounts()


class State:
    """The whole state of one hub. `now` is the time of the last record, never decreasing."""

    def __init__(self) -> None:
        self.name = ""
        self.currency = "USD"
        self.format = 1
        self.now = 0
        self.seq = 0
        self.ledger = Book()
        self.tokens: dict[str, Token] = {}
        self.revoked: dict[str, int] = {}
        self.prices: list[PriceBook] = [PriceBook()]
        self.specs: dict[int, SpecEntry] = {}
        self.mandates: dict[int, Mandate] = {}
        self.idle_specs: OrderedDict[int, None] = OrderedDict()
        self.idle_mandates: OrderedDict[int, None] = OrderedDict()
        """Numbers of those that no live job has, the longest idle first."""
        self.jobs: dict[int, Job] = {}
        self.arrays: dict[int, ArrayJob] = {}
        self.ended: OrderedDict[int, tuple[str, str]] = OrderedDict()
        """How jobs ended, the oldest first. (The front of a plain dict costs more to find with each one deleted there.)"""
        self.nodes: dict[str, Node] = {}
        self.cluster = Cluster()
        self.history = History()
        self.quotas = Quotas()
        self.keys: dict[tuple[str, str], Remembered] = {}
        self.next_job = 1
        self.next_spec = 1
        self.next_mandate = 1
        # derived
        self.shapes = ShapeTable()
        self.queue = PendingQueue()
        self.kinds = JobKinds()
        self.running: RunningJobs[Job] = RunningJobs(run_of)
        self.spec_ids: dict[JobSpec, int] = {}
        self.mandate_ids: dict[str, int] = {}
        self.chains: dict[tuple[str, str], Mandate] = {}
        """Mandates by account and last block, as far as they were asked for: spares their digest."""
        self.epoch = 0
        """Counts what changes more than balances: grants, prices, nodes."""
        self.terms: dict[tuple[int, int], Any] = {}
        """What mandates and specs come to, while it holds (`jobs.bulk.submits`)."""
        self.dependents: dict[int, list[tuple[int, str]]] = {}
        self.nodes_by_index: dict[int, Node] = {}
        self.due = Agenda()
        self.key_order: list[tuple[int, str, str]] = []
        self.revoked_order: list[tuple[int, str]] = []
        self.token_order: list[tuple[int, str]] = []
        self.token_counts: dict[str, int] = {}
        self.tenants: list[Account] = []
        self.shares = Shares()
        self.groups: list[int] = []
        self.group_of: dict[int, int] = {}

    def account(self, account: str) -> Account | None:
        return self.ledger.accounts.get(account)

    def price_book(self, now: int) -> tuple[int, PriceBook]:
        """The number and the content of the book in force at `now`: of those in effect, the one set last."""
        for number in range(len(self.prices) - 1, -1, -1):
            if self.prices[number].effective_from <= now:
                return number, self.prices[number]
        return 0, self.prices[0]

    # --- adding records, with what is derived from them ------------------------------------------------------------

    def add_token(self, token: Token) -> None:
        self.tokens[token.id] = token
        heappush(self.token_order, (token.expires_at, token.id))
        self.token_counts[token.account] = self.token_counts.get(token.account, 0) + 1

    def add_spec(self, number: int, content: JobSpec) -> SpecEntry:
        entry = SpecEntry(number, content, self.shapes.intern(content.shape))
        self.specs[number] = entry
        self.spec_ids[content] = number
        return entry

    def use(self, entry: SpecEntry, mandate: Mandate, jobs: int = 1) -> None:
        """Count `jobs` more live jobs of a spec under a mandate."""
        self.use_spec(entry, jobs)
        if mandate.count == 0:
            self.idle_mandates.pop(mandate.id, None)
        mandate.count += jobs
        mandate.account.live_jobs += jobs

    def use_spec(self, entry: SpecEntry, jobs: int = 1) -> None:
        if entry.count == 0:
            self.idle_specs.pop(entry.id, None)
        entry.count += jobs

    def drop_spec(self, entry: SpecEntry) -> None:
        """A live job less; without any, the spec is idle for a while, then forgotten."""
        entry.count -= 1
        if entry.count:
            return
        idle = self.idle_specs
        idle[entry.id] = None
        if len(entry.content.payload) > MAX_IDLE_PAYLOAD_BYTES:
            self._forget_spec(entry.id)
        elif len(idle) > MAX_IDLE_SPECS:
            self._forget_spec(next(iter(idle)))  # constant for an ordered dict

    def drop_mandate(self, mandate: Mandate) -> None:
        """A live job less; without any, the mandate is idle for a while, then forgotten."""
        mandate.account.live_jobs -= 1
        mandate.count -= 1
        if mandate.count:
            return
        idle = self.idle_mandates
        idle[mandate.id] = None
        if len(idle) > MAX_IDLE_SPECS:
            old = self.mandates.pop(idle.popitem(last=False)[0])
            del self.mandate_ids[old.digest]
            self.chains.pop(chain_key(old.account.id, old.blocks), None)

    def _forget_spec(self, number: int) -> None:
        del self.idle_specs[number]
        del self.spec_ids[self.specs.pop(number).content]

    def add_array(self, array: ArrayJob) -> None:
        """A throttled array takes the lowest free group of the queue."""
        self.arrays[array.id] = array
        if array.throttle:
            group = self.groups.index(0) if 0 in self.groups else len(self.groups)
            self.groups[group : group + 1] = [array.id]
            self.group_of[array.id] = group

    def drop_array(self, array: ArrayJob) -> None:
        del self.arrays[array.id]
        group = self.group_of.pop(array.id, None)
        if group is not None:
            self.groups[group] = 0

    def enqueue(self, job: Job, queued_at: int) -> None:
        """Let a pending job compete. Its tenant is the account that pays."""
        account = job.mandate.account
        if account.tenant < 0:
            account.tenant = len(self.tenants)
            self.tenants.append(account)
        job.queued_at = queued_at
        content = job.spec.content
        self.queue.add(
            job.id,
            job.spec.shape_class,
            account.tenant,
            content.priority,
            queued_at,
            content.begin_at,
            runs=job.attempt,
            group=self.group_of.get(job.array_job, -1),
            kind=self.kind_of(job),
            lane=self.quotas.lane(content.queue, account.id),
        )

    def enqueue_all(self, jobs: list[Job]) -> None:
        """`enqueue` for each from its own `queued_at` on, one by one or at once, whichever is faster; none may wait already."""
        if len(jobs) < _FEW_JOBS:
            for job in jobs:
                self.enqueue(job, job.queued_at)
        else:
            self.enqueue_many(jobs)

    def enqueue_many(self, jobs: list[Job]) -> None:
        """`enqueue_all` at once."""
        for job in jobs:
            account = job.mandate.account
            if account.tenant < 0:
                account.tenant = len(self.tenants)
                self.tenants.append(account)
        groups, lane = self.group_of, self.quotas.lane
        self.queue.add_many(
            jobs=[job.id for job in jobs],
            class_ids=[job.spec.shape_class for job in jobs],
            tenants=[job.mandate.account.tenant for job in jobs],
            bases=[job.spec.content.priority for job in jobs],
            enqueued_at=[job.queued_at for job in jobs],
            begin_at=[job.spec.content.begin_at for job in jobs],
            runs=[job.attempt for job in jobs],
            groups=[groups.get(job.array_job, -1) for job in jobs] if groups else [-1] * len(jobs),
            kinds=[self.kind_of(job) for job in jobs],
            lanes=[lane(job.spec.content.queue, job.mandate.account.id) for job in jobs],
        )

    def kind_of(self, job: Job) -> int:
        """The number of its kind in `kinds`. Its account must be a tenant."""
        tenant, entry = job.mandate.account.tenant, job.spec
        return self.kinds.find(tenant, entry.id) or self.kinds.intern(tenant, entry.id, described(job))

    def note_run(self, job: Job, trigger: str, run_ms: int) -> None:
        """Let the history learn from a job that ended."""
        if trigger in RAN:
            self.history.note(described(job), run_ms)

    def bind(self, job: Job, sign: int) -> None:
        """Count the job's resources as in use (+1) or free again (-1), at its account, array and nodes."""
        if sign > 0:
            self.running.start(job)
        else:
            self.running.end(job)
        self._count_in_use(job.mandate.account, job.spec.content, sign)
        if job.array_job:
            self.arrays[job.array_job].active += sign
        placement = job.placement
        if len(placement) == 1:
            self.nodes_by_index[placement[0][0]].running += sign
        else:
            for node in self.running_on(placement):
                node.running += sign

    def occupy(self, placed: list[Job]) -> None:
        """`Cluster.take` and `bind` for jobs that were just placed."""
        self.cluster.take_many(
            [(job.placement, job.spec.shape_class, job.spec.content.shape) for job in placed]
        )
        self.running.started.update([(job.id, job) for job in placed])
        for job in placed:
            if job.array_job:
                self.arrays[job.array_job].active += 1
        self._bind_all(placed, 1)

    def free(self, ended: list[Job]) -> None:
        """`Cluster.give_back` and the reverse of `bind`, save for their arrays, for jobs whose attempts are over."""
        self.cluster.give_back_many(
            [(job.placement, job.spec.shape_class, job.spec.content.shape) for job in ended]
        )
        for job in ended:
            self.running.end(job)
        self._bind_all(ended, -1)

    def _bind_all(self, jobs: list[Job], sign: int) -> None:
        counts: dict[tuple[SpecEntry, Mandate], int] = {}
        nodes = self.nodes_by_index
        for job in jobs:
            key = (job.spec, job.mandate)
            counts[key] = counts.get(key, 0) + sign
            placement = job.placement
            if len(placement) == 1:
                nodes[placement[0][0]].running += sign
            else:
                for node in self.running_on(placement):
                    node.running += sign
        for (entry, mandate), n in counts.items():
            self._count_in_use(mandate.account, entry.content, n)

    def _count_in_use(self, account: Account, content: JobSpec, jobs: int) -> None:
        account.count_in_use(content.shape, jobs)
        self.quotas.count(self.quotas.lane(content.queue, account.id), content.shape, jobs)
        if account.tenant >= 0:
            self.shares.stale.add(account.tenant)

    # --- asking ----------------------------------------------------------------------------------------------------

    def began(self, job: int) -> bool:
        """Whether user code of the job has ever run."""
        found = self.jobs.get(job)
        return found is not None and found.began_at > 0

    def due_before(self, now: int, limit: int) -> list[tuple[str, int]]:
        """(kind, number) of grants and holds whose expiry is at or before `now`, oldest first, at most `limit`; each once.

        Entries that were due stay until an event has closed them, so asking changes nothing."""
        due: list[tuple[str, int]] = []
        for _, kind, number in self.due.until(now):
            if len(due) == limit:
                break
            due.append((kind, number))
        return due

    def running_on(self, placement: tuple[tuple[int, int], ...]) -> list[Node]:
        """The nodes of a placement, each once."""
        if len(placement) == 1:
            return [self.nodes_by_index[placement[0][0]]]
        return [self.nodes_by_index[index] for index in dict.fromkeys(node for node, _ in placement)]
