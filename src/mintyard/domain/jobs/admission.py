"""Admission: validate, check quota, hold, queue (S1). Decides which jobs of a request are admitted and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from mintyard.domain.commands import Submit
from mintyard.domain.errors import BudgetTooSmall, DependencyUnknown, InvalidSpec, LimitReached, TooLarge
from mintyard.domain.events import AnyEvent, HoldPlaced, JobAdmitted, MandateInterned, SpecInterned
from mintyard.domain.ids import ROOT, check_name, is_within
from mintyard.domain.jobs.dag import EACH, Edge, resolve
from mintyard.domain.jobs.spec import JobRequest, JobSpec, Shape, When
from mintyard.domain.ledger.book import Account
from mintyard.domain.ledger.charging import Draft, shared_lines, take_ceilings, take_lines
from mintyard.domain.ledger.prices import ALL_RESOURCES, Bill, PriceBook
from mintyard.domain.limits import (
    MAX_AMOUNT,
    MAX_ARRAY_TASKS,
    MAX_CPUS_MILLI,
    MAX_DEPENDENCIES_PER_JOB,
    MAX_FILES_PER_JOB,
    MAX_GANG_MEMBERS,
    MAX_GPUS_PER_MEMBER,
    MAX_GRACE_MS,
    MAX_JOBS_PER_COMMAND,
    MAX_LIVE_JOBS,
    MAX_MEMORY_MIB,
    MAX_PAYLOAD_BYTES,
    MAX_PRIORITY,
    MAX_RETRIES,
    MAX_STORAGE_MB,
    MAX_TIME_LIMIT_MS,
)
from mintyard.domain.queues import check_entry
from mintyard.domain.replies import Batch, Ticket
from mintyard.domain.scheduling.explain import check_feasible
from mintyard.domain.state import Mandate, SpecEntry, State, chain_key
from mintyard.domain.tokens.authority import Authority, Block, Scope
from mintyard.domain.tokens.registry import check_caps, reach, require
from mintyard.domain.units import Unit, format_amount

_canonical = msgspec.msgpack.Encoder(order="deterministic")


class Admission:
    """One submit command in the making: numbers given out and amounts taken so far, none of it applied."""

    def __init__(self, state: State, account: Account, blocks: tuple[Block, ...], now: int) -> None:
        self.state = state
        self.account = account
        self.now = now
        self.draft = Draft()
        self.job = state.next_job
        self.hold = state.ledger.next_hold
        self.specs: dict[JobSpec, SpecEntry] = {}
        self.next_spec = state.next_spec
        self.out: list[AnyEvent] = []
        self.charged = tuple(block for block in blocks if block.ceilings)
        self.blocks = blocks
        self.book_number, self.book = state.price_book(now)
        self.mandate = 0
        self.feasible: set[int] = set()

    def spec(self, content: JobSpec) -> SpecEntry:
        """The interned spec; a new one is checked first."""
        known = self.state.spec_ids.get(content)
        if known is not None:
            return self.state.specs[known]
        entry = self.specs.get(content)
        if entry is None:
            check_spec(content)
            entry = SpecEntry(self.next_spec, content, -1)
            self.specs[content] = entry
            self.next_spec += 1
            self.out.append(SpecInterned(entry.id, content))
        return entry

    def need_mandate(self) -> int:
        if not self.mandate:
            digest = mandate_digest(self.account.id, self.blocks)
            known = self.state.mandate_ids.get(digest)
            self.mandate = known if known is not None else self.state.next_mandate
            if known is None:
                self.out.append(MandateInterned(self.mandate, self.account.id, self.blocks, digest))
        return self.mandate

    def place_hold(self, entry: SpecEntry, job: int, attempt: int) -> None:
        self.out.append(job_hold(self.state, self.account, self.charged, entry, self, job, attempt))
        self.hold += 1


def mandate_digest(account: str, blocks: tuple[Block, ...]) -> str:
    return blake2b(_canonical.encode((account, blocks)), digest_size=16).hexdigest()


def job_hold(
    state: State,
    account: Account,
    blocks: Sequence[Block],
    entry: SpecEntry,
    making: Admission | Rehold,
    job: int,
    attempt: int,
) -> HoldPlaced:
    """The hold for one attempt: its whole time limit at every level and ceiling, or the refusal of the first that is short."""
    charges = entry.charges_on(state.ledger, account, making.book_number, making.book)
    lines = shared_lines(charges.entries, making.now, charges.shared, making.draft.grants)
    if lines is None:
        lines = take_lines(charges.entries, making.now, making.draft)
    ceilings: tuple[str | int, ...] = ()
    limits: tuple[str | int, ...] = ()
    if blocks:
        ceiling = entry.ceiling(making.book_number, making.book)
        try:
            ceilings, limits = take_ceilings(state.ledger, blocks, ceiling, making.draft, making.now)
        except Exception:
            for line in lines:
                making.draft.give(line.legs)
            raise
        ceilings = charges.common(ceilings)
    return HoldPlaced(
        making.hold, account.id, lines, ceilings, job, attempt, making.book_number, 0, "", "", limits
    )


class Rehold:
    """A hold in the making for another attempt of a job; `draft` holds what the last attempt's end gives back."""

    def __init__(self, state: State, now: int, draft: Draft, hold: int, book_number: int) -> None:
        self.now = now
        self.draft = draft
        self.hold = hold
        self.book_number = book_number
        self.book: PriceBook = state.prices[book_number]


def submit(state: State, command: Submit, now: int, out: list[AnyEvent]) -> Batch:
    """Admit all jobs of the command, or refuse with the first reason. Ticket order is request order."""
    authority = command.authority
    require(state, authority, Scope.JOB_SUBMIT, now)
    account = reach(state, ROOT, authority.account if authority else ROOT)
    if not command.jobs:
        raise InvalidSpec(field="jobs", why="a request needs at least one job")
    if len(command.jobs) == 1:
        request = command.jobs[0]
        if request.array is None and not request.dependencies:
            return _submit_one(state, account, authority, request, now, out)
    count = sum(1 + len(job.array.indices) if job.array else 1 for job in command.jobs)
    if count > MAX_JOBS_PER_COMMAND + len(command.jobs):
        raise TooLarge(what="The number of jobs and tasks", size=count, limit=MAX_JOBS_PER_COMMAND)
    if len(state.jobs) + count > MAX_LIVE_JOBS:
        raise LimitReached(what="live jobs", limit=MAX_LIVE_JOBS)
    admission = Admission(state, account, authority.blocks if authority else (), now)
    if authority is not None:
        for shape in {job.spec.shape for job in command.jobs}:
            check_caps(authority.caps, shape)
    edges = resolve(command.jobs)
    numbers: list[int] = []
    at = admission.job
    for job in command.jobs:
        numbers.append(at)
        at += 1 + (len(job.array.indices) if job.array else 0)
    reach_of = authority.account if authority else ROOT
    tickets = tuple(
        _admit(admission, command.jobs, index, numbers, edges[index], reach_of)
        for index in range(len(numbers))
    )
    out.extend(admission.out)
    return Batch(tickets)


def _submit_one(
    state: State,
    account: Account,
    authority: Authority | None,
    request: JobRequest,
    now: int,
    out: list[AnyEvent],
) -> Batch:
    """The way of most requests, one plain job: the same checks in the same order, without the accounts that several jobs in
    one command need. What is out of the ordinary at grants or ceilings goes the long way."""
    if len(state.jobs) >= MAX_LIVE_JOBS:
        raise LimitReached(what="live jobs", limit=MAX_LIVE_JOBS)
    content = request.spec
    blocks: tuple[Block, ...] = ()
    if authority is not None:
        blocks = authority.blocks
        check_caps(authority.caps, content.shape)
    known = state.spec_ids.get(content)
    if known is None:
        check_spec(content)
        entry = SpecEntry(state.next_spec, content, -1)
        out.append(SpecInterned(entry.id, content))
    else:
        entry = state.specs[known]
    check_entry(state, content, account.id)
    if len(state.cluster):
        check_feasible(state.cluster, content.shape)
    number, book = state.price_book(now)
    cost = sum(entry.ceiling(number, book).money)
    check_budget(content, cost)
    mandate = known_mandate(state, account, blocks)
    if mandate is None:
        mandate = Mandate(state.next_mandate, account, blocks, mandate_digest(account.id, blocks))
        out.append(MandateInterned(mandate.id, account.id, blocks, mandate.digest))
    job = state.next_job
    charges = entry.charges_on(state.ledger, account, number, book)
    lines = shared_lines(charges.entries, now, charges.shared)
    ceilings = mandate.ceiling_charge(entry, number, book) if mandate.charged else None
    if lines is not None and (ceilings is None or ceilings.fits(state.ledger.counters)):
        flat = ceilings.flat if ceilings else ()
        out.append(HoldPlaced(state.ledger.next_hold, account.id, lines, flat, job, 1, number))
    else:
        making = Rehold(state, now, Draft(), state.ledger.next_hold, number)
        out.append(job_hold(state, account, mandate.charged, entry, making, job, 1))
    first = "held" if request.held else "pending"
    out.append(JobAdmitted(job, entry.id, mandate.id, first))
    return Batch((Ticket(job, 0, first, cost),))


def known_mandate(state: State, account: Account, blocks: tuple[Block, ...]) -> Mandate | None:
    """The interned mandate of a token's blocks at an account, if some live job has it."""
    key = chain_key(account.id, blocks)
    mandate = state.chains.get(key)
    if mandate is None or mandate.blocks != blocks:
        known = state.mandate_ids.get(mandate_digest(account.id, blocks))
        if known is None:
            return None
        mandate = state.chains[key] = state.mandates[known]
    return mandate


def _admit(
    admission: Admission,
    jobs: Sequence[JobRequest],
    index: int,
    numbers: Sequence[int],
    edges: Sequence[Edge],
    within: str,
) -> Ticket:
    request = jobs[index]
    _check_array(request)
    entry = admission.spec(request.spec)
    _check_feasible(admission, entry)
    cost = entry.ceiling(admission.book_number, admission.book).amount(Unit.MONEY, ALL_RESOURCES)
    tasks = len(request.array.indices) if request.array else 0
    check_budget(request.spec, cost)
    if request.array is not None and cost * len(request.array.indices) > MAX_AMOUNT:
        raise InvalidSpec(field="array", why="its tasks together amount to more than the ledger counts")
    outside = tuple(_outside(admission.state, request, within))
    base = numbers[index]
    for task in range(tasks) if request.array else (-1,):
        waits = (*outside, *(part for edge in edges for part in _edge(edge, jobs, numbers, task)))
        state = "held" if request.held else "blocked" if waits else "pending"
        number = base + 1 + task if request.array else base
        mandate = admission.need_mandate()
        admission.place_hold(entry, number, 1)
        if request.array is None:
            admission.out.append(JobAdmitted(number, entry.id, mandate, state, waits_for=waits))
        else:
            admission.out.append(
                JobAdmitted(
                    number,
                    entry.id,
                    mandate,
                    state,
                    base,
                    request.array.indices[task],
                    request.array.throttle,
                    tasks,
                    waits,
                )
            )
    first = "held" if request.held else "blocked" if edges or outside else "pending"
    return Ticket(base, tasks, first, cost * max(tasks, 1))


def _edge(edge: Edge, jobs: Sequence[JobRequest], numbers: Sequence[int], task: int) -> tuple[int | str, ...]:
    """(job, when) of an edge for one task: a task of the source's array, all of it, or a plain job."""
    base = numbers[edge.source]
    if jobs[edge.source].array is None or edge.task == -1:
        return (base, edge.when.value)
    return (base + 1 + (task if edge.task == EACH else edge.task), edge.when.value)


def _outside(state: State, request: JobRequest, within: str) -> Iterator[int | str]:
    """Edges to jobs submitted before: live ones are waited for, ended ones must satisfy the edge already."""
    if len(request.dependencies) > MAX_DEPENDENCIES_PER_JOB:
        raise TooLarge(
            what="The number of dependencies", size=len(request.dependencies), limit=MAX_DEPENDENCIES_PER_JOB
        )
    for dependency in request.dependencies:
        if dependency.ref:
            continue
        number = dependency.job
        job = state.jobs.get(number)
        owner = (
            job.mandate.account.id
            if job
            else state.arrays[number].account
            if number in state.arrays
            else None
        )
        if owner is not None and is_within(owner, within):
            if dependency.when is not When.STARTED or job is None or job.began_at == 0:
                yield number
                yield dependency.when.value
            continue
        ended = state.ended.get(number)
        if owner is not None or ended is None or not is_within(ended[1], within):
            raise DependencyUnknown(job=number)
        if not satisfies(dependency.when, ended[0]):
            raise InvalidSpec(
                field="dependencies", why=f"job {number} {ended[0]}, so {dependency.when} can never hold"
            )


def satisfies(when: str, final: str) -> bool:
    """Whether a job that ended as `final` satisfies a dependency. One that never ran satisfies only `afterany`."""
    if when == When.OK:
        return final == "succeeded"
    if when == When.NOT_OK:
        return final in ("failed", "timed_out", "cancelled")
    return True


def _check_array(request: JobRequest) -> None:
    array = request.array
    if array is None:
        return
    if not array.indices or len(array.indices) > MAX_ARRAY_TASKS:
        raise InvalidSpec(field="array", why=f"takes 1 to {MAX_ARRAY_TASKS} indices")
    if len(set(array.indices)) != len(array.indices) or not all(0 <= i < 2**31 for i in array.indices):
        raise InvalidSpec(field="array", why="indices must be different and within 0 and 2^31 - 1")
    if not 0 <= array.throttle <= MAX_ARRAY_TASKS:
        raise InvalidSpec(field="array.throttle", why=f"must be within 0 and {MAX_ARRAY_TASKS}")


def check_budget(spec: JobSpec, cost: int) -> None:
    """`BudgetTooSmall` when the time limit may cost more than the job's own budget."""
    if spec.budget is not None and cost > spec.budget:
        raise BudgetTooSmall(
            cost=format_amount(cost, Unit.MONEY), budget=format_amount(spec.budget, Unit.MONEY)
        )


def _check_feasible(admission: Admission, entry: SpecEntry) -> None:
    """What its queue says; then `Infeasible` when nodes are known and none of them, empty, could ever run it. With no node yet,
    jobs may wait."""
    if entry.id not in admission.feasible:
        check_entry(admission.state, entry.content, admission.account.id)
        if len(admission.state.cluster):
            check_feasible(admission.state.cluster, entry.content.shape)
        admission.feasible.add(entry.id)


def check_spec(spec: JobSpec) -> None:
    """Every number within its bounds, every name well-formed; `InvalidSpec` names the field."""
    check_name("job", spec.name)
    check_name("queue", spec.queue)
    _within("time_limit_ms", spec.time_limit_ms, 1, MAX_TIME_LIMIT_MS)
    _within("priority", spec.priority, 0, MAX_PRIORITY)
    _within("retries", spec.retries, 0, MAX_RETRIES)
    _within("grace_ms", spec.grace_ms, 0, MAX_GRACE_MS)
    _within("begin_at", spec.begin_at, 0, 2**63 - 1)
    if spec.budget is not None:
        _within("budget", spec.budget, 0, MAX_AMOUNT)
    for field, files in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        _within(field, len(files), 0, MAX_FILES_PER_JOB)
    _within("payload", len(spec.payload), 0, MAX_PAYLOAD_BYTES)
    check_shape(spec.shape)


def check_shape(shape: Shape) -> None:
    _within("cpus_milli", shape.cpus_milli, 1, MAX_CPUS_MILLI)
    _within("memory_mib", shape.memory_mib, 1, MAX_MEMORY_MIB)
    _within("gpus", shape.gpus, 0, MAX_GPUS_PER_MEMBER)
    _within("gpu_milli", shape.gpu_milli, 1, 1_000)
    _within("members", shape.members, 1, MAX_GANG_MEMBERS)
    _within("storage_mb", shape.storage_mb, 0, MAX_STORAGE_MB)
    if shape.gpu_milli != 1_000 and shape.gpus != 1:
        raise InvalidSpec(field="gpu_milli", why="a share of a GPU goes with one GPU a member")
    for label in (*shape.gpu_models, *shape.labels):
        check_name("label", label)


def _within(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidSpec(field=field, why=f"{value} is not within {least} and {most}")


def list_cost(bill: Bill) -> int:
    """Money for all resources at list price."""
    return bill.amount(Unit.MONEY, ALL_RESOURCES)


def ceiling_blocks(mandate: Mandate) -> tuple[Block, ...]:
    return tuple(block for block in mandate.blocks if block.ceilings)
