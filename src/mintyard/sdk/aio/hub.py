"""Hub: the client of one hub (U3). `async with AsyncHub() as hub: job = await hub.submit(run="python train.py", gpus=1)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Self

import httpx

from mintyard.domain.units import Unit
from mintyard.sdk.address import Address, address
from mintyard.sdk.aio.accounts import AsyncAccounts, AsyncGrants
from mintyard.sdk.aio.connection import AsyncConnection
from mintyard.sdk.aio.holds import AsyncHolds, AsyncNodes, AsyncPrices
from mintyard.sdk.aio.jobs import AsyncJobs, JobName, event_value
from mintyard.sdk.aio.queues import AsyncQueues
from mintyard.sdk.aio.submitted import AsyncSubmitted
from mintyard.sdk.aio.tokens import AsyncTokens
from mintyard.sdk.exchange import DEFAULT_RETRY_S
from mintyard.sdk.request import Request, get, instant, post, segment
from mintyard.sdk.submission import Work, jobs_of
from mintyard.wire.quotes import AskQuote, Quote
from mintyard.wire.statements import JournalHead, Statement, StatementLine, WatchEvent
from mintyard.wire.submissions import JobView, Stream
from mintyard.wire.tokens import WhoAmI


class AsyncHub:
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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = address_found or address(url, token, context)
        self.connection = AsyncConnection(
            self.address, timeout_s=timeout_s, retry_s=retry_s, fresh=fresh, transport=transport
        )
        self.jobs = AsyncJobs(self.connection)
        self.accounts = AsyncAccounts(self.connection)
        self.grants = AsyncGrants(self.connection)
        self.tokens = AsyncTokens(self.connection)
        self.holds = AsyncHolds(self.connection)
        self.nodes = AsyncNodes(self.connection)
        self.prices = AsyncPrices(self.connection)
        self.queues = AsyncQueues(self.connection)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.connection.close()

    # --- work --------------------------------------------------------------------------------------------------------

    async def submit(
        self, work: Work | None = None, *, dry_run: bool = False, key: str = "", **fields: Any
    ) -> Any:
        """Submit one job, given as fields, a map of fields or a `Job`, and get a `Submitted`; or a list of them in one request,
        all or none, and get a list. Fields are those of a job file: `run`, `gpus`, `cpus`, `memory`, `time`, `array`, `needs` ...
        """
        jobs = jobs_of(work, fields)
        if work is None or not isinstance(work, Sequence):
            ticket = await self.jobs.submit(jobs[0], dry_run=dry_run, key=key)
            return AsyncSubmitted(self.jobs, ticket)
        answer = await self.jobs.submit_batch(jobs, dry_run=dry_run, key=key)
        return [AsyncSubmitted(self.jobs, line.ticket) for line in answer.lines if line.ticket is not None]

    async def quote(self, work: Work | None = None, **fields: Any) -> Quote:
        """What jobs would cost at most, whether they would be admitted, and when they would start. Changes nothing."""
        body = AskQuote(jobs=tuple(jobs_of(work, fields)))
        return await self.connection.send(post("/quotes", Quote, body))

    async def wait(self, job: JobName, timeout_s: float | None = None, *, check: bool = False) -> JobView:
        """As `jobs.wait`."""
        return await self.jobs.wait(job, timeout_s, check=check)

    def logs(
        self,
        job: JobName,
        stream: Stream = "stdout",
        *,
        follow: bool = False,
        offset: int = 0,
        attempt: int = 0,
    ) -> AsyncIterator[bytes]:
        """As `jobs.logs`."""
        return self.jobs.logs(job, stream, follow=follow, offset=offset, attempt=attempt)

    # --- the books and the hub itself -----------------------------------------------------------------------------------

    async def statement(
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
        page = await self.connection.send(get(path, Statement, **query))
        opening, lines = page.opening, list[StatementLine](page.lines)
        while page.next:
            page = await self.connection.send(get(path, Statement, **query, cursor=page.next))
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

    async def watch(
        self, *, kinds: Sequence[str] = (), job: int | None = None, after: int | None = None
    ) -> AsyncIterator[WatchEvent]:
        """Changes in the token's part of the hub as they happen (from record `after` on), without loss or repetition across
        broken connections."""
        request: Request[WatchEvent] = get("/watch", WatchEvent, kind=kinds, job=job, after=after)
        async for event in self.connection.events(request):
            value = event_value(self.address.url, event.kind, event.data, "", WatchEvent)
            if value is not None:
                yield value

    async def whoami(self) -> WhoAmI:
        """The effective rights of the token."""
        return await self.connection.send(get("/whoami", WhoAmI))

    async def journal_head(self) -> JournalHead:
        """The journal's last record and its hash over everything before (for auditors of the whole hub)."""
        return await self.connection.send(get("/journal", JournalHead))
