"""Submitted: a job that was just admitted, with what one does next."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mintyard.sdk.aio.jobs import AsyncJobs
from mintyard.wire.pages import Change
from mintyard.wire.quotes import Explanation
from mintyard.wire.submissions import JobView, Receipt, Stream, Ticket


class AsyncSubmitted:
    """An admitted job: its number `job`, how many `tasks` it has, the `state` it was admitted in, and `cost`, the most that it
    may cost."""

    def __init__(self, jobs: AsyncJobs, ticket: Ticket) -> None:
        self._jobs = jobs
        self.ticket = ticket
        self.job = ticket.job
        self.state = ticket.state
        self.tasks = ticket.tasks
        self.cost = ticket.cost

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self.job}, state={self.state!r})"

    async def show(self) -> JobView:
        return await self._jobs.show(self.job)

    async def wait(self, timeout_s: float | None = None, *, check: bool = False) -> JobView:
        """The job once it has ended."""
        return await self._jobs.wait(self.job, timeout_s, check=check)

    def logs(self, stream: Stream = "stdout", *, follow: bool = False) -> AsyncIterator[bytes]:
        """What it writes."""
        return self._jobs.logs(self.job, stream, follow=follow)

    async def cancel(self, reason: str = "") -> Change:
        return await self._jobs.cancel(self.job, reason)

    async def explain(self) -> Explanation:
        return await self._jobs.explain(self.job)

    async def receipt(self) -> Receipt:
        return await self._jobs.receipt(self.job)
