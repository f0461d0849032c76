"""Logs over REST: what an attempt wrote, by offset, by long poll or as a stream that follows it.

Logs are never copied into the hub: they are read where the engine keeps them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

from mintyard.api.answers import Answer, Stream, server_event
from mintyard.api.call import Call
from mintyard.api.parameters import MIN_SEQ, choice, integer
from mintyard.api.routes import Table, shown
from mintyard.app.read_model import queries, views
from mintyard.domain.errors import InvalidRequest, MintyardError, NotFound
from mintyard.domain.lifecycle import JOB
from mintyard.domain.tokens.authority import Scope
from mintyard.ports.engine import AttemptKey
from mintyard.wire.problems import details_of
from mintyard.wire.submissions import LogChunk

LOGS = Table("logs")
MAX_CHUNK_BYTES: Final = 1_048_576
MAX_WAIT_S: Final = 60
MAX_FOLLOW_S: Final = 6 * 3_600
_PAUSE_S: Final = 0.2
_QUIET_S: Final = 15.0
"""A stream that has nothing to say says so this often, so that proxies keep it and a gone client is noticed."""
_TERMINAL: Final = frozenset(JOB.terminal)
_QUERY = (
    choice("stream", "Which stream.", ("stdout", "stderr"), "stdout"),
    integer("offset", "The first byte.", default=0),
    integer("attempt", "Which attempt; 0 is the last.", most=2**31 - 1, default=0),
    MIN_SEQ,
)


class _Log:
    """One stream of one attempt, from an offset on."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.stream: str = call.query["stream"]
        self.offset: int = call.query["offset"]
        self.job = self.attempt = 0

    async def find(self) -> bool:
        """Look the attempt up; whether the job has ended. `NotFound` for what isn't the caller's."""
        call = self.call
        detail = await call.look(queries.show_job, call.within, call.path["job"], only=call.bearer.jobs)
        job = detail.job
        if isinstance(job, views.ArrayView):
            raise InvalidRequest(
                why=f"job {job.job} is an array; ask for a task of it, such as {job.job}_INDEX"
            )
        self.job = job.job
        asked: int = call.query["attempt"]
        if asked > job.attempt:
            raise NotFound(what="attempt", name=f"{job.job}.{asked}")
        self.attempt = asked or job.attempt
        return job.state in _TERMINAL

    async def read(self, limit: int, job_ended: bool) -> LogChunk:
        """What there is from the offset on. Before the first attempt that is nothing."""
        data, ended = b"", job_ended
        if self.attempt:
            key = AttemptKey(self.job, self.attempt)
            reader = self.call.services.logs.read_log
            try:
                chunk = await self.call.run(reader, key, self.stream, self.offset, limit)
                data, ended = chunk.data, chunk.ended
            except NotFound:
                # Placed and not started yet, or ended before it started, or its log was cleared away.
                data, ended = b"", job_ended
        made = LogChunk(
            job=self.job,
            attempt=self.attempt,
            stream=self.stream,  # pyright: ignore[reportArgumentType] (one of both)
            offset=self.offset,
            next_offset=self.offset + len(data),
            ended=ended,
            data=data,
        )
        self.offset = made.next_offset
        return made

    async def wait(self, limit: int, wait_s: float) -> LogChunk:
        """As `read`, after something was written, it ended, or the time is over."""
        deadline = time.monotonic() + wait_s
        while True:
            job_ended = await self.find()
            chunk = await self.read(limit, job_ended)
            if chunk.data or chunk.ended or time.monotonic() >= deadline or self.call.services.streams.ending:
                return chunk
            await self.call.services.streams.pause(_PAUSE_S)


@LOGS.add(
    "GET",
    "/jobs/{job}/logs",
    "Read a job's output from an offset on",
    answer=LogChunk,
    query=(
        *_QUERY,
        integer("limit", "Bytes at most.", least=1, most=MAX_CHUNK_BYTES, default=65_536),
        integer("wait_s", "Wait so long for something new.", most=MAX_WAIT_S, default=0),
    ),
    scope=Scope.JOB_READ,
    refusals=(NotFound,),
)
async def read_logs(call: Call) -> Answer:
    return shown(await _Log(call).wait(call.query["limit"], call.query["wait_s"]))


@LOGS.add(
    "GET",
    "/jobs/{job}/logs/follow",
    "Follow a job's output as server-sent events",
    answer=LogChunk,
    query=_QUERY,
    scope=Scope.JOB_READ,
    refusals=(NotFound,),
    media="text/event-stream",
)
async def follow_logs(call: Call) -> Stream:
    """Each event `log` holds a chunk and its end's offset as id; a client that resumes with Last-Event-ID goes
    on there. The stream ends after the chunk with `ended`."""
    call.services.streams.check()
    log = _Log(call)
    resumed = call.headers.get(b"last-event-id", b"")
    if resumed:
        if not resumed.isdigit() or len(resumed) > 18:
            raise InvalidRequest(why="Last-Event-ID must be the id of an event of this stream")
        log.offset = int(resumed)
    await log.find()
    return Stream(call.services.streams.hold(_events(log)))


async def _events(log: _Log) -> AsyncIterator[bytes]:
    deadline = time.monotonic() + MAX_FOLLOW_S
    yield b": follow\n\n"
    try:
        header = log.call.headers.get(b"authorization")
        while time.monotonic() < deadline and not log.call.services.streams.ending:
            log.call.services.gate.admit(header, log.call.services.now())
            chunk = await log.wait(MAX_CHUNK_BYTES, _QUIET_S)
            if chunk.data or chunk.ended:
                yield server_event("log", chunk, str(chunk.next_offset))
            else:
                yield b": quiet\n\n"
            if chunk.ended:
                return
    except MintyardError as error:
        yield server_event("problem", details_of(error, log.call.request_id))
