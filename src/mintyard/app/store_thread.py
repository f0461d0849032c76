"""The store's thread: runs blocking store calls one by one, off the event loop, and brings their outcome back to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

Done = Callable[[Any, BaseException | None], None]


class StoreThread:
    """`post` never blocks; outcomes arrive in the order of the calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "mintyard-store") -> None:
        self._loop = loop
        self._calls: SimpleQueue[tuple[Callable[[], Any], Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, act: Callable[[], Any], done: Done) -> None:
        """Run `act` in the thread, then `done(result, error)` in the loop."""
        self._calls.put((act, done))

    async def call(self, act: Callable[[], Any]) -> Any:
        """As `post`, awaited; raises what `act` raised."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.post(act, done)
        return await future

    async def close(self) -> None:
        """End the thread after everything posted so far."""
        self._calls.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            act, done = call
            result: Any = None
            error: BaseException | None = None
            try:
                result = act()
            except Exception as caught:  # noqa: BLE001 (the outcome belongs to whoever posted the call)
                error = caught
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(done, result, error)
