"""Jobs: submit, list, show, control, wait and read (S1, S8, U1, U12)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from mintyard.domain.errors import AnswerUnreadable, InvalidSpec, WaitTimeout
from mintyard.sdk.aio.connection import AsyncConnection
from mintyard.sdk.aio.listing import AsyncListing
from mintyard.sdk.outcome import check_outcome, has_ended
from mintyard.sdk.request import Request, get, instant, patch, post, segment
from mintyard.sdk.submission import jobs_of, milliseconds
from mintyard.wire.jobs import Job
from mintyard.wire.pages import Change, Page
from mintyard.wire.problems import ProblemDetails, error_of
from mintyard.wire.quotes import Explanation
from mintyard.wire.submissions import (
    BatchAnswer,
    ControlAnswer,
    ControlJob,
    ControlJobs,
    JobView,
    LogChunk,
    Receipt,
    Stream,
    SubmitBatch,
    Ticket,
    UpdateJob,
    Verb,
)

JobName = int | str
"""A job's number, an array's, or a task's as `"12_3"`."""
FIRST_LOOK_S = 0.1
LONGEST_LOOK_S = 2.0


class AsyncJobs:
    """Everything about jobs of the token's account and those below it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def submit(self, job: Job | Mapping[str, Any], *, dry_run: bool = False, key: str = "") -> Ticket:
        """Submit one job, array or gang; `dry_run` answers as if. Errors: every refusal of quota, token and spec."""
        (made,) = jobs_of(job, {})
        return await self._connection.send(post("/jobs", Ticket, made, key=key, dry_run=dry_run or None))

    async def submit_batch(
        self,
        jobs: Sequence[Job | Mapping[str, Any]],
        *,
        atomic: bool = True,
        dry_run: bool = False,
        key: str = "",
    ) -> BatchAnswer:
        """Submit many in one request: all or none, or with `atomic=False` each by itself with a line of its own."""
        body = SubmitBatch(jobs=tuple(jobs_of(jobs, {})), atomic=atomic, dry_run=dry_run)
        return await self._connection.send(post("/jobs/batch", BatchAnswer, body, key=key))

    def list(
        self,
        *,
        state: str | Sequence[str] = (),
        account: str = "",
        name: str = "",
        array_job: int | None = None,
        token: str = "",
        since: str | datetime | None = None,
        until: str | datetime | None = None,
    ) -> AsyncListing[JobView]:
        """Jobs, the newest first."""
        query = {
            "state": state,
            "account": account,
            "name": name,
            "array_job": array_job,
            "token": token,
            "since": instant(since, "since"),
            "until": instant(until, "until"),
        }
        return AsyncListing(self._connection, "/jobs", Page[JobView], query)

    async def show(self, job: JobName) -> JobView:
        """A job with its attempts; of an array the counts of its tasks."""
        return await self._connection.send(get(f"/jobs/{segment(job)}", JobView))

    async def _control(self, job: JobName, verb: str, reason: str, key: str) -> Change:
        path = f"/jobs/{segment(job)}/{verb}"
        return await self._connection.send(post(path, Change, ControlJob(reason=reason), key=key))

    async def cancel(self, job: JobName, reason: str = "", *, key: str = "") -> Change:
        """Cancel a job, or all tasks of an array that have not ended."""
        return await self._control(job, "cancel", reason, key)

    async def hold(self, job: JobName, reason: str = "", *, key: str = "") -> Change:
        """Keep a job from starting."""
        return await self._control(job, "hold", reason, key)

    async def release(self, job: JobName, reason: str = "", *, key: str = "") -> Change:
        """Let a held job compete again."""
        return await self._control(job, "release", reason, key)

    async def requeue(self, job: JobName, reason: str = "", *, key: str = "") -> Change:
        """Stop a job and queue it again."""
        return await self._control(job, "requeue", reason, key)

    async def control(
        self, verb: Verb, jobs: Sequence[int], reason: str = "", *, key: str = ""
    ) -> ControlAnswer:
        """Do the same to many jobs by number, each by itself."""
        body = ControlJobs(verb=verb, jobs=tuple(jobs), reason=reason)
        return await self._connection.send(post("/jobs/control", ControlAnswer, body, key=key))

    async def update(
        self,
        job: JobName,
        *,
        time: str | float | None = None,
        priority: int | None = None,
        begin_at: str | datetime | None = None,
        key: str = "",
    ) -> Change:
        """Change a job that has not started. `time` is its limit, as `"2h"` or in seconds."""
        body = UpdateJob(
            time_limit_ms=None if time is None else milliseconds(time, "time"),
            priority=priority,
            begin_at=instant(begin_at, "begin_at"),
        )
        return await self._connection.send(patch(f"/jobs/{segment(job)}", Change, body, key=key))

    async def explain(self, job: JobName) -> Explanation:
        """Why a job does not run, what it waits for, when it may start, and what would change that."""
        return await self._connection.send(get(f"/jobs/{segment(job)}/explain", Explanation))

    async def receipt(self, job: JobName) -> Receipt:
        """What a job has cost, to the last nano-unit."""
        return await self._connection.send(get(f"/jobs/{segment(job)}/receipt", Receipt))

    async def wait(self, job: JobName, timeout_s: float | None = None, *, check: bool = False) -> JobView:
        """The job once it has ended. `WaitTimeout` after `timeout_s`; with `check`, `JobNotSucceeded` unless it succeeded."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = FIRST_LOOK_S
        while True:
            view = await self.show(job)
            if has_ended(view):
                return check_outcome(view) if check else view
            left_s = LONGEST_LOOK_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                raise WaitTimeout(what=f"The end of job {view.label}", seconds=timeout_s)
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, LONGEST_LOOK_S)

    async def read_log(
        self,
        job: JobName,
        stream: Stream = "stdout",
        offset: int = 0,
        attempt: int = 0,
        *,
        limit: int = 65_536,
        wait_s: int = 0,
    ) -> LogChunk:
        """A part of one stream of one attempt (0: the last) from `offset` on."""
        query = {"stream": stream, "offset": offset, "attempt": attempt, "limit": limit, "wait_s": wait_s}
        return await self._connection.send(get(f"/jobs/{segment(job)}/logs", LogChunk, **query))

    async def logs(
        self,
        job: JobName,
        stream: Stream = "stdout",
        *,
        follow: bool = False,
        offset: int = 0,
        attempt: int = 0,
    ) -> AsyncIterator[bytes]:
        """What a job writes, in pieces as they come: what there is, or with `follow` until it ends."""
        if offset < 0 or attempt < 0:
            raise InvalidSpec(field="offset", why="and attempt are whole numbers from 0")
        while not follow:
            chunk = await self.read_log(job, stream, offset, attempt, limit=1_048_576)
            if not chunk.data:
                return
            offset = chunk.next_offset
            yield chunk.data
        query = {"stream": stream, "offset": offset, "attempt": attempt}
        request: Request[LogChunk] = get(f"/jobs/{segment(job)}/logs/follow", LogChunk, **query)
        async for event in self._connection.events(request):
            chunk = event_value(self._connection.address.url, event.kind, event.data, "log", LogChunk)
            if chunk is not None and chunk.data:
                yield chunk.data
            if chunk is not None and chunk.ended:
                return


def event_value(url: str, kind: str, data: bytes, wanted: str, answer: type[Any]) -> Any:
    """The value of an event of the kind `wanted` (empty: any), None for others; a `problem` event is raised."""
    try:
        if kind == "problem":
            raise error_of(msgspec.json.decode(data, type=ProblemDetails))
        return msgspec.json.decode(data, type=answer) if wanted in ("", kind) else None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise AnswerUnreadable(url=url, why=str(error)[:200]) from None
