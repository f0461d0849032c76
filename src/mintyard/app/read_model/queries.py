"""The queries that the API calls. All block: an event loop runs them in threads.

`within` is the caller's account: nothing outside its subtree is ever read, and what belongs to others is `NotFound`.
`min_seq` is a record that the answer must include (the `seq` of an `Answer`); `NotCaughtUp` when that takes too long.
`after` is a page's `next`; `rows` is 1 to `limits.MAX_PAGE_ROWS`. Every answer comes from one consistent state.
"""

from mintyard.app.read_model.query_jobs import JobFilter, job_number, list_jobs, receipt, show_job
from mintyard.app.read_model.query_ledger import (
    list_accounts,
    list_grants,
    list_holds,
    list_prices,
    show_account,
    show_grant,
    show_hold,
    statement,
    totals,
)
from mintyard.app.read_model.query_registry import list_nodes, list_tokens, position, show_node, show_token

__all__ = [
    "JobFilter",
    "job_number",
    "list_accounts",
    "list_grants",
    "list_holds",
    "list_jobs",
    "list_nodes",
    "list_prices",
    "list_tokens",
    "position",
    "receipt",
    "show_account",
    "show_grant",
    "show_hold",
    "show_job",
    "show_node",
    "show_token",
    "statement",
    "totals",
]
