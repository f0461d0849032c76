"""Rows: one struct a table, its fields named and ordered as the table's columns. The projector folds events into these.

Only what a table holds may enter; what callers see is in `views`.
"""

from __future__ import annotations

from typing import Final

import msgspec
from sqlalchemy import Table

from mintyard.app.read_model import schema


class CursorRow(msgspec.Struct):
    id: int
    seq: int
    chain: bytes
    term: int
    at: int
    hub: str = ""
    currency: str = ""
    format: int = 1


class AccountRow(msgspec.Struct):
    id: str
    parent: str
    state: str
    opened_at: int
    moved_at: int


class GrantRow(msgspec.Struct):
    id: int
    account: str
    unit: str
    state: str
    priority: int
    starts_at: int
    expires_at: int
    note: str
    created_at: int
    closed_at: int = 0
    granted: int = 0
    refunded: int = 0
    left: int = 0
    held: int = 0
    spent: int = 0
    expired: int = 0


class TokenRow(msgspec.Struct):
    id: str
    account: str
    name: str
    state: str
    expires_at: int
    parents: str
    registered_at: int
    moved_at: int


class RevocationRow(msgspec.Struct):
    block: str
    token: str
    revoked_at: int
    keep_until: int


class NodeRow(msgspec.Struct):
    name: str
    index: int
    engine: str
    state: str
    cpus_milli: int
    memory_mib: int
    gpus: int
    gpu_model: str
    labels: str
    virtual: bool
    reason: str
    joined_at: int
    moved_at: int
    running: int = 0
    used_cpus_milli: int = 0
    used_memory_mib: int = 0
    used_gpus_milli: int = 0


class SpecRow(msgspec.Struct):
    id: int
    content: str


class MandateRow(msgspec.Struct):
    id: int
    account: str
    token: str


class ArrayRow(msgspec.Struct):
    id: int
    account: str
    name: str
    spec: int
    size: int
    throttle: int
    submitted_at: int


class JobRow(msgspec.Struct):
    id: int
    account: str
    token: str
    name: str
    state: str
    spec: int
    array_job: int
    array_index: int
    waits_for: str
    submitted_at: int
    queued_at: int = 0
    placed_at: int = 0
    began_at: int = 0
    ended_at: int = 0
    attempt: int = 0
    exit_code: int = 0
    signal: int = 0
    run_ms: int = 0
    cpu_ms: int = 0
    peak_memory_mib: int = 0
    cost: int = 0
    reason: str = ""


class AttemptRow(msgspec.Struct):
    job: int
    attempt: int
    account: str
    state: str
    placement: str
    boots: str
    placed_at: int
    began_at: int = 0
    ended_at: int = 0
    exit_code: int = 0
    signal: int = 0
    run_ms: int = 0
    cpu_ms: int = 0
    peak_memory_mib: int = 0
    cost: int = 0
    message: str = ""
    receipt: str = ""


class HoldRow(msgspec.Struct):
    id: int
    account: str
    job: int
    attempt: int
    state: str
    lines: str
    ceilings: str
    drawn: str
    used: str
    book: int
    holder: str
    note: str
    placed_at: int
    expires_at: int
    closed_at: int = 0


class PostingRow(msgspec.Struct, frozen=True):
    seq: int
    ordinal: int
    at: int
    account: str
    grant: int
    unit: str
    debit: str
    credit: str
    amount: int
    cause: str
    hold: int
    job: int
    attempt: int


class PriceRow(msgspec.Struct):
    number: int
    effective_from: int
    set_at: int
    gpu_nano: int
    cpu_nano: int
    memory_nano: int
    storage_nano: int
    gpu_models: str


ROWS: Final[dict[Table, type[msgspec.Struct]]] = {
    schema.cursor: CursorRow,
    schema.accounts: AccountRow,
    schema.grants: GrantRow,
    schema.tokens: TokenRow,
    schema.revocations: RevocationRow,
    schema.nodes: NodeRow,
    schema.specs: SpecRow,
    schema.mandates: MandateRow,
    schema.arrays: ArrayRow,
    schema.jobs: JobRow,
    schema.attempts: AttemptRow,
    schema.holds: HoldRow,
    schema.postings: PostingRow,
    schema.prices: PriceRow,
}
