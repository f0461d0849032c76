"""Feed: listens to the leader's notices and tells the validator, so that a revocation binds here at once (T3)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

import structlog

from mintyard.app.link import Link, Notice
from mintyard.credentials import KeySet, Validator
from mintyard.domain.errors import MintyardError

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
REACH_TIMEOUT_S: Final = 2.0


class Feed:
    """Follows `Link.notices()` for ever, opening it again when it breaks. `keys` reads the hub's key set anew."""

    def __init__(
        self,
        link: Link,
        validator: Validator,
        keys: Callable[[], KeySet],
        now: Callable[[], int] = time.time_ns,
        *,
        told_first: bool = False,
    ) -> None:
        self.durable_seq = 0
        self.connected = False
        self._link = link
        self._validator = validator
        self._keys = keys
        self._told_first = told_first
        self._now = now
        self._key_version = validator.keys.version
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._lost_at = 0.0

    @property
    def silent_s(self) -> float:
        """For how long the leader could not be heard, 0 while it can."""
        return 0.0 if self.connected else time.monotonic() - self._lost_at

    def start(self) -> None:
        self._lost_at = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="notices")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def reached(self, seq: int) -> bool:
        """Whether every order up to record `seq` binds here now; waits for it, not longer than
        `REACH_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(REACH_TIMEOUT_S):
                while self.durable_seq < seq:
                    await self.moved()
        except TimeoutError:
            return False
        return True

    async def moved(self) -> None:
        """Until the next notice."""
        await self._moved.wait()

    async def _follow(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async for notice in self._link.notices():
                    self.connected, pause_s = True, _FIRST_PAUSE_S
                    if not self._told_first:
                        self.take(notice)
                why = "it ended"
            except (MintyardError, OSError) as error:
                why = str(error)
            if self.connected:
                self.connected, self._lost_at = False, time.monotonic()
                _log.warning("the leader's notices broke off", why=why)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def take(self, notice: Notice) -> None:
        """Let what the notice orders bind here. With `told_first` the link calls this, before any answer that
        came after."""
        validator = self._validator
        if notice.revoked:
            validator.revoke(notice.revoked)
        for block in notice.suspended:
            validator.suspend(block)
        for block in notice.resumed:
            validator.resume(block)
        for account, before in notice.accounts:
            validator.revoke_account(account, before)
        if notice.key_version > self._key_version:
            keys = self._keys()
            validator.replace_keys(keys)
            self._key_version = keys.version
        validator.hear(notice.durable_seq, self._now())
        self.durable_seq = max(self.durable_seq, notice.durable_seq)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
