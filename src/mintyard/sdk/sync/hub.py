"""Hub: the client of one hub (U3). `with Hub() as hub: job = hub.submit(run="python train.py", gpus=1)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Self

import httpx

from mintyard.domain.units import Unit
from mintyard.sdk.address import Address, address
from mintyard.sdk.exchange import DEFAULT_RETRY_S
from mintyard.sdk.request import Request, get, instant, post, segment
from mintyard.sdk.submission import Work, jobs_of
from mintyard.sdk.sync.accounts import Accounts, Grants
from mintyard.sdk.sync.connection import Connection
from mintyard.sdk.sync.holds import Holds, Nodes, Prices
from mintyard.sdk.sync.jobs import JobName, Jobs, event_value
from mintyard.sdk.sync.queues import Queues
from mintyard.sdk.sync.submitted import Submitted
from mintyard.sdk.sync.tokens import Tokens
from mintyard.wire.quotes import AskQuote, Quote
from mintyard.wire.statements import JournalHead, Statement, StatementLine, WatchEvent
from mintyard.wire.submissions import JobView, Stream
from mintyard.wire.tokens import WhoAmI


class Hub:
    """A hub as one token sees it. Without `url` and `token` they come from the environment (`MINTYARD_HUB`, `MINTYARD_TOKEN`),
    else from the credentials file's `context` (default: the current one).

    Requests are sent again when the connection broke or the hub is busy, for at most `retry_s`; writes carry an idempotency key,
    so they take effect once. What this client wrote, it reads; with `fresh` also what others wrote before its first read.
    Errors are the classes of `mintyard.domain.errors`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        context: str = "",
        timeout_s: float = 30.0,
        retry_s: float = DEFAULT_RETRY_S,
        fresh: bool = False,
        address_found: Address | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = address_found or address(url, token, context)
        self.connection = Connection(
            self.address, timeout_s=timeout_s, retry_s=retry_s, fresh=fresh, transport=transport
        )
        self.jobs = Jobs(self.connection)
        self.accounts = Accounts(self.connection)
        self.grants = Grants(self.connection)
        self.tokens = Tokens(self.connection)
        self.holds = Holds(self.connection)
        self.nodes = Nodes(self.connection)
        self.prices = Prices(self.connection)
        self.queues = Queues(self.connection)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    # --- work --------------------------------------------------------------------------------------------------------

    def submit(self, work: Work | None = None, *, dry_run: bool = False, key: str = "", **fields: Any) -> Any:
        """Submit one job, given as fields, a map of fields or a `Job`, and get a `Submitted`; or a list of them in one request,
        all or none, and get a list. Fields are those of a job file: `run`, `gpus`, `cpus`, `memory`, `time`, `array`, `needs` ...
        """
        jobs = jobs_of(work, fields)
        if work is None or not isinstance(work, Sequence):
            ticket = self.jobs.submit(jobs[0], dry_run=dry_run, key=key)
            return Submitted(self.jobs, ticket)
        answer = self.jobs.submit_batch(jobs, dry_run=dry_run, key=key)
        return [Submitted(self.jobs, line.ticket) for line in answer.lines if line.ticket is not None]

    def quote(self, work: Work | None = None, **fields: Any) -> Quote:
        """What jobs would cost at most, whether they would be admitted, and when they would start. Changes nothing."""
        body = AskQuote(jobs=tuple(jobs_of(work, fields)))
        return self.connection.send(post("/quotes", Quote, body))

    def wait(self, job: JobName, timeout_s: float | None = None, *, check: bool = False) -> JobView:
        """As `jobs.wait`."""
        return self.jobs.wait(job, timeout_s, check=check)

    def logs(
        self,
        job: JobName,
        stream: Stream = "stdout",
        *,
        follow: bool = False,
        offset: int = 0,
        attempt: int = 0,
    ) -> Iterator[bytes]:
        """As `jobs.logs`."""
        return self.jobs.logs(job, stream, follow=follow, offset=offset, attempt=attempt)

    # --- the books and the hub itself -----------------------------------------------------------------------------------

    def statement(
        self,
        account: str,
        unit: Unit | str = Unit.MONEY,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
    ) -> Statement:
        """What moved at an account in one unit within [`since`, `until`), all of it, with the balance before and after."""
        path = f"/accounts/{segment(account)}/statement"
        query = {
            "unit": str(unit),
            "since": instant(since, "since"),
            "until": instant(until, "until"),
            "limit": 1_000,
        }
        page = self.connection.send(get(path, Statement, **query))
        opening, lines = page.opening, list[StatementLine](page.lines)
        while page.next:
            page = self.connection.send(get(path, Statement, **query, cursor=page.next))
            lines += page.lines
        return Statement(
            account=page.account,
            unit=page.unit,
            opening=opening,
            lines=tuple(lines),
            closing=page.closing,
            since=page.since,
            until=page.until,
            seq=page.seq,
        )

    def watch(
        self, *, kinds: Sequence[str] = (), job: int | None = None, after: int | None = None
    ) -> Iterator[WatchEvent]:
        """Changes in the token's part of the hub as they happen (from record `after` on), without loss or repetition across
        broken connections."""
        request: Request[WatchEvent] = get("/watch", WatchEvent, kind=kinds, job=job, after=after)
        for event in self.connection.events(request):
            value = event_value(self.address.url, event.kind, event.data, "", WatchEvent)
            if value is not None:
                yield value

    def whoami(self) -> WhoAmI:
        """The effective rights of the token."""
        return self.connection.send(get("/whoami", WhoAmI))

    def journal_head(self) -> JournalHead:
        """The journal's last record and its hash over everything before (for auditors of the whole hub)."""
        return self.connection.send(get("/journal", JournalHead))
