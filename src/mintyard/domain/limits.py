"""Every bound of the system in one place, each with its unit in its name (house rule 5)."""

from __future__ import annotations

from typing import Final

MAX_AMOUNT: Final = 2**62
"""Largest single amount in smallest units; sums are Python integers and checked again at the ledger."""
MAX_ACCOUNT_DEPTH: Final = 8
MAX_ACCOUNT_ID_CHARS: Final = 128
MAX_NAME_CHARS: Final = 128
MAX_ACCOUNTS: Final = 1_000_000
MAX_GRANTS_PER_ACCOUNT_UNIT: Final = 1_000
MAX_TOKEN_BYTES: Final = 4_096
MAX_TOKEN_BLOCKS: Final = 8
MAX_TOKEN_LIFE_DAYS: Final = 366
MAX_TOKENS_PER_ACCOUNT: Final = 10_000
DEFAULT_TOKEN_LIFE_HOURS: Final = 24
MAX_CEILING_COUNTERS: Final = 1_000_000
MAX_JOBS_PER_COMMAND: Final = 10_000
MAX_ARRAY_TASKS: Final = 10_000
MAX_LIVE_JOBS: Final = 4_000_000
MAX_DEPENDENCIES_PER_JOB: Final = 1_000
MAX_FILES_PER_JOB: Final = 1_000
MAX_GPU_MODELS_PER_JOB: Final = 32
MAX_LABELS_PER_JOB: Final = 32
MAX_GANG_MEMBERS: Final = 4_096
MAX_GPUS_PER_MEMBER: Final = 16
MAX_CPUS_MILLI: Final = 4_096_000
MAX_MEMORY_MIB: Final = 64 * 1_024 * 1_024
MAX_STORAGE_MB: Final = 1_000_000_000
MAX_TIME_LIMIT_MS: Final = 366 * 86_400_000
DEFAULT_TIME_LIMIT_MS: Final = 3_600_000
MAX_GRACE_MS: Final = 3_600_000
DEFAULT_GRACE_MS: Final = 5_000
MAX_RETRIES: Final = 100
MAX_PRIORITY: Final = 10_000
DEFAULT_PRIORITY: Final = 100
MAX_PAYLOAD_BYTES: Final = 256 * 1_024
MAX_NODES: Final = 100_000
MAX_QUEUES: Final = 1_000
MAX_QUOTA: Final = 2**40
"""The most that one limit on what runs at once may say."""
MAX_ACCOUNTS_PER_QUEUE: Final = 256
MAX_ENDED_JOBS_KEPT: Final = 65_536
"""Outcomes of finished jobs that new dependencies may still name; older ones are in the read model."""
IDEMPOTENCY_WINDOW_MS: Final = 24 * 3_600_000
MAX_IDEMPOTENCY_KEYS: Final = 1_000_000
MAX_CLOCK_SKEW_MS: Final = 300_000
MAX_BODY_BYTES: Final = 8 * 1_024 * 1_024
MAX_PAGE_ROWS: Final = 1_000
DEFAULT_PAGE_ROWS: Final = 100
MAX_FRAME_BYTES: Final = 64 * 1_024 * 1_024
MAX_INFLIGHT_COMMANDS: Final = 65_536
MAX_COMMANDS_PER_TICK: Final = 8_192
MAX_ESCROW_LIFE_MS: Final = 7 * 86_400_000
DEFAULT_HOLD_LIFE_MS: Final = 3_600_000
MAX_PRICE_BOOKS: Final = 1_000
MAX_RATE_NANO: Final = 10**15
CACHED_TOKEN_LIFE_S: Final = 300
MAX_RECORD_BYTES: Final = 64 * 1_024 * 1_024
"""Body of one journal record."""
MAX_APPEND_BYTES: Final = 256 * 1_024 * 1_024
MAX_RECORDS_PER_APPEND: Final = 65_536
MAX_READ_BYTES: Final = 64 * 1_024 * 1_024
"""A read of the journal ends with the record that passes this, whatever its limit in records."""
MAX_SEGMENT_BYTES: Final = 32 * 1_024 * 1_024
MAX_SEGMENT_RECORDS: Final = 65_536
MAX_SNAPSHOT_BYTES: Final = 512 * 1_024 * 1_024
SNAPSHOTS_KEPT: Final = 3
MAX_LEASE_LIFE_MS: Final = 3_600_000
MAX_IDLE_SPECS: Final = 1_024
"""Interned specs and mandates that no live job has any more, kept because the next job often has them again."""
MAX_IDLE_PAYLOAD_BYTES: Final = 4_096
"""A spec with a larger payload is not kept beyond its jobs."""
