"""Channel, the worker's end: a Link over Unix sockets, batching what many requests send at a time into one frame.

Reconnects by itself. What was sent and not answered when a connection breaks may or may not have happened: its sender gets
`CommitUnknown`. What was not sent yet waits for the next connection, for `patience_s` at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import structlog

from mintyard.app.frames import (
    CHANNEL_VERSION,
    MAX_ITEMS_PER_FRAME,
    Ask,
    Decoder,
    Found,
    Goodbye,
    Hello,
    Message,
    Notices,
    Outcomes,
    Told,
    encode_commands,
    encode_frame,
)
from mintyard.app.link import Answer, Notice
from mintyard.app.questions import Finding, Question
from mintyard.domain.commands import Command
from mintyard.domain.errors import (
    CommitUnknown,
    MintyardError,
    NotLeader,
    Overloaded,
    Problem,
    StoreUnavailable,
    from_problem,
)
from mintyard.domain.limits import MAX_INFLIGHT_COMMANDS

_log = structlog.get_logger(__name__)
DEFAULT_PATIENCE_S: Final = 2.0
MAX_UNREAD_NOTICES: Final = 65_536
_FIRST_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 1.0


class ChannelLink:
    """The Link of a process that is not the leader's. `writer` and `planner` are the paths of their sockets.

    `on_notice` is called for each notice before any answer that came after it is handed out."""

    def __init__(
        self,
        writer: Path,
        planner: Path | None = None,
        *,
        on_notice: Callable[[Notice], None] | None = None,
        patience_s: float = DEFAULT_PATIENCE_S,
        max_inflight: int = MAX_INFLIGHT_COMMANDS,
    ) -> None:
        self._commands = _Wire(writer, patience_s, max_inflight, self._heard)
        self._questions = _Wire(planner, patience_s, max_inflight, None) if planner else None
        self._on_notice = on_notice
        self._readers: set[asyncio.Queue[Notice | None]] = set()
        self._last: Notice | None = None
        self._suspended: set[str] = set()
        self._resumed: set[str] = set()
        self._revoked: set[str] = set()
        self._accounts: dict[str, int] = {}

    async def start(self) -> None:
        """Begin to connect; returns at once."""
        self._commands.start()
        if self._questions is not None:
            self._questions.start()

    async def connected(self) -> None:
        """Wait for a connection to the leader's process."""
        await self._commands.connected.wait()

    async def send(self, command: Command) -> Answer:
        return await self._commands.send(command)

    async def ask(self, question: Question) -> Finding:
        if self._questions is None:
            raise StoreUnavailable(why="this process knows no planner")
        return await self._questions.send(question)

    async def notices(self) -> AsyncIterator[Notice]:
        """As the Link says; raises `NotLeader` when the connection breaks. Opened again, it waits for the next one."""
        unread: asyncio.Queue[Notice | None] = asyncio.Queue()
        self._readers.add(unread)
        try:
            if self._last is not None and self._commands.connected.is_set():
                yield self._everything(self._last)
            while True:
                notice = await unread.get()
                if notice is None or unread.qsize() > MAX_UNREAD_NOTICES:
                    raise NotLeader()
                yield notice
        finally:
            self._readers.discard(unread)

    async def close(self) -> None:
        await self._commands.close()
        if self._questions is not None:
            await self._questions.close()

    def _everything(self, last: Notice) -> Notice:
        return Notice(
            last.durable_seq,
            tuple(self._revoked),
            tuple(self._suspended),
            tuple(self._resumed),
            tuple(self._accounts.items()),
            last.key_version,
        )

    def _heard(self, notice: Notice | None, first: bool) -> None:
        """Keep what is revoked and suspended. The first notice of a connection has everything: what it lacks was resumed.
        None: the connection broke."""
        if notice is None:
            self._last = None
            for unread in self._readers:
                unread.put_nowait(None)
            return
        if first:
            self._resumed |= self._suspended.difference(notice.suspended)
            notice = msgspec.structs.replace(notice, resumed=tuple(self._resumed))
        self._resumed = self._resumed.union(notice.resumed).difference(notice.suspended)
        self._suspended.update(notice.suspended)
        self._suspended.difference_update(notice.resumed)
        self._revoked.update(notice.revoked)
        self._accounts.update(notice.accounts)
        self._last = notice
        if self._on_notice is not None:
            self._on_notice(notice)
        for unread in self._readers:
            unread.put_nowait(notice)


class _Wire:
    """One connection that is kept up: requests out, answers back by number."""

    def __init__(
        self,
        path: Path,
        patience_s: float,
        max_inflight: int,
        heard: Callable[[Notice | None, bool], None] | None,
    ) -> None:
        self.connected = asyncio.Event()
        self._path = path
        self._patience_s = patience_s
        self._max_inflight = max_inflight
        self._heard = heard
        self._unsent: deque[tuple[Command | Question, asyncio.Future[Any], float]] = deque()
        self._sent: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._flushing = False
        self._writable = True
        self._lost_at = 0.0
        self._why: MintyardError = NotLeader()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._broken = asyncio.Event()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost_at = self._loop.time()
        self._task = self._loop.create_task(self._keep_connected())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._transport is not None:
            self._transport.abort()
        self._lose(NotLeader())
        self._give_up(float("inf"))

    def send(self, request: Command | Question) -> asyncio.Future[Any]:
        """A future of the answer; many requests of one turn of the loop go out in one frame."""
        if len(self._sent) + len(self._unsent) >= self._max_inflight:
            raise Overloaded(retry_after_s=1)
        now = self._loop.time()
        if self._transport is None and now - self._lost_at > self._patience_s:
            raise self._why
        future: asyncio.Future[Any] = self._loop.create_future()
        self._unsent.append((request, future, now))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._flushing = False
        while self._unsent and self._transport is not None and self._writable and self.connected.is_set():
            batch: list[Command] = []
            first = self._number
            while self._unsent and len(batch) < MAX_ITEMS_PER_FRAME:
                request, future, _ = self._unsent.popleft()
                if future.done():
                    continue  # whoever asked has gone
                self._sent[self._number] = future
                batch.append(cast(Command, request))
                self._number += 1
            self._write(first, batch)

    def _write(self, first: int, batch: list[Command]) -> None:
        transport = self._transport
        if transport is None or not batch:
            return
        if self._heard is None:
            for at, question in enumerate(batch):
                transport.write(encode_frame(Ask(first + at, cast(Question, question))))
            return
        for frame in encode_commands(first, batch):
            if isinstance(frame, bytes):
                transport.write(frame)
            else:
                self._settle(frame[0], frame[1])

    def _settle(self, number: int, outcome: Any) -> None:
        future = self._sent.pop(number, None)
        if future is None or future.done():
            return
        if isinstance(outcome, MintyardError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    # --- connection -------------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._broken.clear()
            try:
                transport, _ = await self._loop.create_unix_connection(
                    lambda: _WireProtocol(self), str(self._path)
                )
            except OSError:
                self._give_up(self._patience_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                continue
            self._transport = transport
            self._writable = True
            transport.write(encode_frame(Hello(CHANNEL_VERSION, self._heard is not None)))
            await self._broken.wait()
            pause_s = _FIRST_PAUSE_S if self.connected.is_set() else min(2 * pause_s, _MAX_PAUSE_S)
            self._lose(self._why)
            await asyncio.sleep(pause_s)

    def _lose(self, why: MintyardError) -> None:
        if self._transport is not None:
            self._lost_at = self._loop.time()
        self._transport = None
        self._why = why
        self.connected.clear()
        # A question can be put again at no cost; a command may have taken effect.
        error: MintyardError = CommitUnknown() if self._heard is not None else NotLeader()
        for number in list(self._sent):
            self._settle(number, error)
        if self._heard is not None:
            self._heard(None, False)

    def _give_up(self, patience_s: float) -> None:
        """Fail what has waited too long to be sent."""
        before = self._loop.time() - patience_s if patience_s != float("inf") else float("inf")
        while self._unsent and self._unsent[0][2] <= before:
            _, future, _ = self._unsent.popleft()
            if not future.done():
                future.set_exception(self._why)

    def broken(self) -> None:
        self._broken.set()

    def set_writable(self, writable: bool) -> None:
        self._writable = writable
        if writable:
            self._flush()

    def heed(self, message: Message, first_notice: bool) -> None:
        match message:
            case Outcomes():
                for told in message.told:
                    self._settle(told.id, _outcome(told))
            case Notices() if self._heard is not None:
                self._heard(message.notice, first_notice)
            case Found():
                problem = Problem(message.code, dict(message.params))
                self._settle(message.id, message.finding or from_problem(problem))
            case Hello():
                self._why = NotLeader()
                self.connected.set()
                self._flush()
            case Goodbye():
                self._why = from_problem(Problem(message.code, dict(message.params)))
                _log.info("the hub's process hung up", why=str(self._why))
            case _:
                _log.warning("an unexpected message", kind=type(message).__name__)


class _WireProtocol(asyncio.Protocol):
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._decoder = Decoder()
        self._first = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.broken()

    def pause_writing(self) -> None:
        self._wire.set_writable(False)

    def resume_writing(self) -> None:
        self._wire.set_writable(True)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except (ValueError, msgspec.DecodeError) as error:
            _log.warning("the hub sent what is no frame", error=str(error)[:200])
            self._transport.abort()
            return
        for message in messages:
            self._wire.heed(message, self._first)
            if isinstance(message, Notices):
                self._first = False


def _outcome(told: Told) -> Answer | MintyardError:
    return from_problem(told.reply) if isinstance(told.reply, Problem) else Answer(told.seq, told.reply)
