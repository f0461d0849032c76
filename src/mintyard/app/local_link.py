"""Local link: the Link in one process, and `call` for threads that wait. Futures exist only here, at the edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any, Protocol

from mintyard.app.decisions import Look, Outcome
from mintyard.app.link import Answer, Notice
from mintyard.app.questions import Finding, Question
from mintyard.app.writer import Writer
from mintyard.domain.commands import Command
from mintyard.domain.errors import MintyardError, StoreUnavailable

MAX_UNREAD_NOTICES = 65_536


class Planner(Protocol):
    """What answers questions (`app.planner`)."""

    def ask(self, question: Question) -> Finding: ...


class LocalLink:
    """A Link to a writer of this process, usable from any event loop. `loop` is the writer's."""

    def __init__(
        self, writer: Writer, loop: asyncio.AbstractEventLoop, planner: Planner | None = None
    ) -> None:
        self._writer = writer
        self._writer_loop = loop
        self._planner = planner
        self._edges: dict[asyncio.AbstractEventLoop, _Edge] = {}

    async def send(self, command: Command) -> Answer:
        loop = asyncio.get_running_loop()
        edge = self._edges.get(loop)
        if edge is None:
            self._edges = {kept: e for kept, e in self._edges.items() if not kept.is_closed()}
            edge = self._edges[loop] = _Edge(loop)
        future: asyncio.Future[Answer] = loop.create_future()
        self._writer.offer(((command, future),), edge.take)
        return await future

    async def ask(self, question: Question) -> Finding:
        if self._planner is None:
            raise StoreUnavailable(why="this process has no planner")
        return await asyncio.get_running_loop().run_in_executor(None, self._planner.ask, question)

    async def notices(self) -> AsyncIterator[Notice]:
        """As the Link says; a reader that falls too far behind starts again with everything."""
        loop = asyncio.get_running_loop()
        unread: asyncio.Queue[Notice] = asyncio.Queue()

        def put(notice: Notice) -> None:
            loop.call_soon_threadsafe(unread.put_nowait, notice)

        async def on_writer(subscribe: bool) -> Notice:
            return self._writer.subscribe(put) if subscribe else self._writer.unsubscribe(put) or Notice(0)

        async def run(subscribe: bool) -> Notice:
            if loop is self._writer_loop:
                return await on_writer(subscribe)
            return await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(on_writer(subscribe), self._writer_loop)
            )

        try:
            yield await run(True)
            while True:
                notice = await unread.get()
                if unread.qsize() > MAX_UNREAD_NOTICES:
                    while not unread.empty():
                        unread.get_nowait()
                    await run(False)
                    notice = await run(True)
                yield notice
        finally:
            if not self._writer_loop.is_closed():
                await run(False)

    async def close(self) -> None:
        self._edges.clear()


class _Edge:
    """Brings outcomes to the futures of one event loop, a batch at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def take(self, outcomes: list[tuple[asyncio.Future[Answer], Outcome]]) -> None:
        try:
            self._loop.call_soon_threadsafe(_resolve, outcomes)
        except RuntimeError:
            pass  # the caller's loop is closed: nobody waits


def _resolve(outcomes: list[tuple[asyncio.Future[Answer], Outcome]]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, MintyardError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def call(
    writer: Writer, command: Command | Look, timeout_s: float | None = None, *, ours: bool = False
) -> Answer:
    """Execute one command from a thread that may wait (not the writer's loop). Raises as `Link.send` does, TimeoutError."""
    future: Future[Answer] = Future()

    def take(outcomes: list[tuple[Any, Outcome]]) -> None:
        outcome = outcomes[0][1]
        if isinstance(outcome, MintyardError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    writer.offer(((command, None),), take, ours=ours)
    return future.result(timeout_s)
