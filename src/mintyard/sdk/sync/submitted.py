"""Submitted: a job that was just admitted, with what one does next."""

from __future__ import annotations

from collections.abc import Iterator

from mintyard.sdk.sync.jobs import Jobs
from mintyard.wire.pages import Change
from mintyard.wire.quotes import Explanation
from mintyard.wire.submissions import JobView, Receipt, Stream, Ticket


class Submitted:
    """An admitted job: its number `job`, how many `tasks` it has, the `state` it was admitted in, and `cost`, the most that it
    may cost."""

    def __init__(self, jobs: Jobs, ticket: Ticket) -> None:
        self._jobs = jobs
        self.ticket = ticket
        self.job = ticket.job
        self.state = ticket.state
        self.tasks = ticket.tasks
        self.cost = ticket.cost

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self.job}, state={self.state!r})"

    def show(self) -> JobView:
        return self._jobs.show(self.job)

    def wait(self, timeout_s: float | None = None, *, check: bool = False) -> JobView:
        """The job once it has ended."""
        return self._jobs.wait(self.job, timeout_s, check=check)

    def logs(self, stream: Stream = "stdout", *, follow: bool = False) -> Iterator[bytes]:
        """What it writes."""
        return self._jobs.logs(self.job, stream, follow=follow)

    def cancel(self, reason: str = "") -> Change:
        return self._jobs.cancel(self.job, reason)

    def explain(self) -> Explanation:
        return self._jobs.explain(self.job)

    def receipt(self) -> Receipt:
        return self._jobs.receipt(self.job)
