"""Views: what queries answer. Amounts are integers in smallest units, instants ns (0: not yet, never), durations ms."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from mintyard.domain.jobs.spec import Shape
from mintyard.domain.units import Unit

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some rows in a stable order; `next` is the opaque cursor of the page after it, empty at the end. `seq` is the
    record up to which it is true."""

    rows: tuple[T, ...]
    next: str
    seq: int


class Balance(msgspec.Struct, frozen=True):
    """granted + refunded = left + held + spent + expired."""

    unit: Unit
    granted: int = 0
    refunded: int = 0
    left: int = 0
    held: int = 0
    spent: int = 0
    expired: int = 0

    @property
    def even(self) -> bool:
        return self.granted + self.refunded == self.left + self.held + self.spent + self.expired


class AccountView(msgspec.Struct, frozen=True):
    """An account with what its own grants amount to, by unit in the order of `Unit`; accounts below are not added in."""

    account: str
    parent: str
    state: str
    opened_at: int
    balances: tuple[Balance, ...]


class GrantView(msgspec.Struct, frozen=True):
    grant: int
    account: str
    state: str
    priority: int
    starts_at: int
    expires_at: int
    note: str
    created_at: int
    closed_at: int
    balance: Balance


class TokenView(msgspec.Struct, frozen=True):
    """A registered token by its root block, never the token. `blocks_revoked` were narrowed from it and ended alone."""

    token: str
    account: str
    name: str
    state: str
    expires_at: int
    registered_at: int
    parents: tuple[str, ...] = ()
    blocks_revoked: tuple[str, ...] = ()


class NodeView(msgspec.Struct, frozen=True):
    """`running` attempts use `used_*` of it now."""

    node: str
    engine: str
    state: str
    cpus_milli: int
    memory_mib: int
    gpus: int
    gpu_model: str
    labels: tuple[str, ...]
    virtual: bool
    reason: str
    joined_at: int
    running: int
    used_cpus_milli: int
    used_memory_mib: int
    used_gpus_milli: int


class SpecSummary(msgspec.Struct, frozen=True):
    """A job's spec without its payload: `command` is the first line of what runs; environment and script stay out."""

    name: str
    shape: Shape
    time_limit_ms: int
    priority: int
    queue: str
    retries: int
    grace_ms: int
    budget: int | None
    begin_at: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    command: str = ""
    workdir: str = ""


class JobView(msgspec.Struct, frozen=True):
    """A job or one task of an array (`array_job` and `array_index`, else 0 and -1). `cost` is in nano-units at list price,
    over all attempts, refunds deducted; `exit_code` is None until user code has ended by itself."""

    job: int
    account: str
    token: str
    state: str
    spec: SpecSummary
    array_job: int
    array_index: int
    submitted_at: int
    queued_at: int
    placed_at: int
    began_at: int
    ended_at: int
    attempt: int
    exit_code: int | None
    signal: int
    run_ms: int
    cpu_ms: int
    peak_memory_mib: int
    cost: int
    reason: str
    waits_for: tuple[tuple[int, str], ...] = ()

    @property
    def name(self) -> str:
        """As people write it: `12`, or `10_3` for a task."""
        return f"{self.array_job}_{self.array_index}" if self.array_job else str(self.job)


class ArrayView(msgspec.Struct, frozen=True):
    """A job array: `tasks` counts them by state; `state` is running or pending while any is, then succeeded or failed."""

    job: int
    account: str
    state: str
    spec: SpecSummary
    size: int
    throttle: int
    submitted_at: int
    ended_at: int
    tasks: dict[str, int]
    cost: int


class MemberView(msgspec.Struct, frozen=True, array_like=True):
    """Where one member ran: the node and the indices of its GPUs there."""

    node: str
    gpus: tuple[int, ...] = ()


class ResourceLine(msgspec.Struct, frozen=True):
    """What one resource amounted to: `stock` in its smallest unit, at `rate_nano` per hour, is `money` nano-units."""

    unit: Unit
    stock: int
    rate_nano: int
    money: int


class ChargeLine(msgspec.Struct, frozen=True):
    """What was posted at one account in `unit` for `resources`. `listed` is what the resources amount to in that unit;
    `amount` is less only where the hold was less. `refunded` was given back later."""

    account: str
    unit: Unit
    resources: tuple[Unit, ...]
    listed: int
    amount: int
    refunded: int = 0


class Receipt(msgspec.Struct, frozen=True):
    """One settled attempt. `resources` sum to `money`, the list price; `book` is the number of the price book pinned."""

    job: int
    attempt: int
    account: str
    hold: int
    at: int
    run_ms: int
    book: int
    resources: tuple[ResourceLine, ...]
    money: int
    charges: tuple[ChargeLine, ...]
    refund_cause: str = ""


class AttemptView(msgspec.Struct, frozen=True):
    """One attempt; `state` is starting, running, the job's final state, or the cause of its requeue."""

    attempt: int
    state: str
    placement: tuple[MemberView, ...]
    placed_at: int
    began_at: int
    ended_at: int
    exit_code: int | None
    signal: int
    run_ms: int
    cpu_ms: int
    peak_memory_mib: int
    cost: int
    message: str


class JobDetail(msgspec.Struct, frozen=True):
    """One job with its attempts in order, or an array without."""

    job: JobView | ArrayView
    attempts: tuple[AttemptView, ...]
    seq: int


class JobReceipt(msgspec.Struct, frozen=True):
    """Everything a job has cost: a receipt for each settled attempt. `money` is its list price, refunds deducted."""

    job: int
    account: str
    state: str
    receipts: tuple[Receipt, ...]
    money: int
    seq: int


class HoldLine(msgspec.Struct, frozen=True, array_like=True):
    """An amount held at one account; `resources` is the mask of `ledger.prices.RESOURCES` that it covers, `legs` is flat
    (grant, amount, ...)."""

    account: str
    unit: Unit
    resources: int
    amount: int
    legs: tuple[int, ...] = ()


class HoldView(msgspec.Struct, frozen=True):
    """`drawn` is what an escrow's holder has reported so far, `used` what the hold was settled on."""

    hold: int
    account: str
    state: str
    lines: tuple[HoldLine, ...]
    drawn: dict[Unit, int]
    used: dict[Unit, int]
    job: int
    attempt: int
    book: int
    holder: str
    note: str
    placed_at: int
    expires_at: int
    closed_at: int


class StatementLine(msgspec.Struct, frozen=True):
    """One posting: `amount` moved from `debit` to `credit`; `left`, `held` and `spent` are the account's after it."""

    seq: int
    ordinal: int
    at: int
    cause: str
    debit: str
    credit: str
    amount: int
    grant: int
    hold: int
    job: int
    attempt: int
    left: int
    held: int
    spent: int


class Statement(msgspec.Struct, frozen=True):
    """The postings of one account and unit in [`since`, `until`), with the balance before the first line shown and after
    the last. `next` is the cursor of the following page, whose `opening` is this page's `closing`."""

    account: str
    unit: Unit
    since: int
    until: int
    opening: Balance
    lines: tuple[StatementLine, ...]
    closing: Balance
    next: str
    seq: int


class PriceView(msgspec.Struct, frozen=True):
    """`in_force`: jobs admitted now are priced by it."""

    number: int
    effective_from: int
    set_at: int
    gpu_nano: int
    cpu_nano: int
    memory_nano: int
    storage_nano: int
    gpu_models: dict[str, int]
    in_force: bool


class TotalsLine(msgspec.Struct, frozen=True):
    """Sums over a subtree in one unit, told twice: by the grants' balances and by the postings."""

    balance: Balance
    posted: Balance

    @property
    def even(self) -> bool:
        """granted + refunded = spent + held + expired + left, and both tell the same."""
        return self.balance.even and self.balance == self.posted


class Totals(msgspec.Struct, frozen=True):
    within: str
    lines: tuple[TotalsLine, ...]
    seq: int

    @property
    def even(self) -> bool:
        return all(line.even for line in self.lines)
