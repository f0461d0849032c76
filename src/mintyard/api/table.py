"""The whole table of routes, in the order in which the reference shows them."""

from __future__ import annotations

from typing import Final

from mintyard.api.resources.accounts import ACCOUNTS, GRANTS
from mintyard.api.resources.holds import HOLDS
from mintyard.api.resources.jobs import JOBS
from mintyard.api.resources.logs import LOGS
from mintyard.api.resources.nodes import NODES, PRICES
from mintyard.api.resources.queues import QUEUES
from mintyard.api.resources.quotes import QUOTES, STATEMENTS
from mintyard.api.resources.service import SERVICE
from mintyard.api.resources.tokens import TOKENS
from mintyard.api.resources.watch import WATCH
from mintyard.api.routes import Route

TABLES: Final = (
    ACCOUNTS,
    GRANTS,
    TOKENS,
    JOBS,
    LOGS,
    QUOTES,
    STATEMENTS,
    HOLDS,
    NODES,
    PRICES,
    QUEUES,
    WATCH,
    SERVICE,
)
ROUTES: Final[tuple[Route, ...]] = tuple(route for table in TABLES for route in table.routes)
