"""A hub for tests of the API, all of it real: core, journal in SQLite, read model, planner, and uvicorn on a free port.

It runs in a thread of its own, so tests are plain blocking clients of it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from mintyard.api.access import Gate
from mintyard.api.application import Application
from mintyard.api.call import Services
from mintyard.api.feed import Feed
from mintyard.api.minter import Minter
from mintyard.api.resources.watch import Watchtower
from mintyard.api.server import listening_socket, running, server
from mintyard.api.streams import Streams
from mintyard.app.journal_store import open_store
from mintyard.app.leader import Leader
from mintyard.app.link import Answer
from mintyard.app.local_link import LocalLink
from mintyard.app.minting import MintingService, TokenWish
from mintyard.app.planner import open_planner
from mintyard.app.projector import Projector
from mintyard.app.read_model.database import open_read_model
from mintyard.app.signing import SigningKeys
from mintyard.app.tailer import Tailer
from mintyard.app.warmup import warm_up
from mintyard.app.writer import Writer
from mintyard.credentials import Validator
from mintyard.domain import commands as c
from mintyard.domain.errors import NotFound
from mintyard.domain.ids import ROOT
from mintyard.domain.jobs.reports import NodeSeen
from mintyard.domain.replies import Refusal
from mintyard.domain.tokens.authority import ROLES, Scope
from mintyard.domain.units import NS_PER_S, SCALE, Unit
from mintyard.ports.engine import AttemptKey, LogChunk

HUB = "centre"


class KeptLogs:
    """Logs by attempt and stream, as an engine would read them from disk."""

    def __init__(self) -> None:
        self.kept: dict[tuple[AttemptKey, str], bytes] = {}
        self.ended: set[AttemptKey] = set()

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk:
        data = self.kept.get((key, stream))
        if data is None:
            raise NotFound(what="log of attempt", name=f"{key.job}.{key.attempt}")
        part = data[offset : offset + limit]
        return LogChunk(part, offset, key in self.ended and offset + len(part) >= len(data))


class ApiHub:
    """`start()` returns when it serves; `send` executes a command as the hub itself, `mint` makes tokens."""

    def __init__(self, folder: Path, inflight: int = 2_048, now: Callable[[], int] = time.time_ns) -> None:
        self.folder = folder
        self.logs = KeptLogs()
        self.now = now
        self._inflight = inflight
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._ready = threading.Event()
        self._tailing = threading.Event()
        self._failure: BaseException | None = None
        self.server: uvicorn.Server
        self.application: Application
        self.writer: Writer
        self.link: LocalLink
        self.port = 0

    def start(self) -> ApiHub:
        _warm_once()
        self._thread.start()
        assert self._ready.wait(30)
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        try:
            await self._serve()
        except BaseException as error:
            self._failure = error
            self._ready.set()
            raise

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        url = f"sqlite:///{self.folder / 'journal.db'}"
        self.keys = SigningKeys(self.folder / "keys")
        self.writer = Writer(Leader(lambda: open_store(url), life_ms=60_000))
        await self.writer.start()
        await asyncio.wait_for(self.writer.leading(), 10)
        self.journal = open_store(url)
        tailed = open_store(url)
        self.model = open_read_model(f"sqlite:///{self.folder / 'read.db'}", migrate=True)
        tailer = Tailer(tailed, Projector(self.model))
        tailing = threading.Thread(target=tailer.run, args=(self._tailing,), daemon=True)
        tailing.start()
        planned = open_store(url)
        self.planner = open_planner(planned)
        planning = threading.Thread(target=self.planner.run, args=(self._tailing,), daemon=True)
        planning.start()
        self.link = LocalLink(self.writer, self.loop, self.planner)
        await self._found()
        validator = Validator(self.keys.key_set)
        threads = ThreadPoolExecutor(8, thread_name_prefix="api")
        services = Services(
            link=self.link,
            model=self.model,
            gate=Gate(validator, HUB),
            feed=Feed(self.link, validator, lambda: self.keys.key_set, self.now),
            minter=Minter(self.keys, MintingService(self.keys, self.link)),
            logs=self.logs,
            watchtower=Watchtower(self.journal, self.model),
            streams=Streams(),
            threads=threads,
            now=self.now,
            hub=HUB,
        )
        self.application = Application(services, inflight=self._inflight)
        bound = listening_socket("127.0.0.1", 0)
        self.port = bound.getsockname()[1]
        self.server = server(self.application, stop_s=2)
        async with running(self.application):
            self._ready.set()
            await self.server.serve(sockets=[bound])
        threads.shutdown()
        await self.link.close()
        await self.writer.stop()
        self._tailing.set()
        await asyncio.to_thread(tailing.join)
        await asyncio.to_thread(planning.join)
        self.model.close()
        for store in (self.journal, tailed, planned):
            store.close()

    async def _found(self) -> None:
        answer = await self.link.send(c.Found(HUB))
        assert not isinstance(answer.reply, Refusal), answer

    # --- for tests --------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, *many: c.Command) -> Answer:
        """Execute as the hub itself; the last answer, none of them a refusal."""
        answer: Answer | None = None
        for command in many:
            answer = asyncio.run_coroutine_threadsafe(self.link.send(command), self.loop).result(10)
            assert not isinstance(answer.reply, Refusal), answer
        assert answer is not None
        return answer

    def mint(self, account: str, role: str = "", scopes: tuple[Scope, ...] = (), **wish: Any) -> str:
        service = MintingService(self.keys, self.link)
        made = service.mint(
            None, TokenWish(account=account, scopes=frozenset(scopes or ROLES[role or "owner"]), **wish)
        )
        return asyncio.run_coroutine_threadsafe(made, self.loop).result(10).token

    def client(self, token: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20)

    def onboard(self, account: str, money: int = 1_000) -> None:
        """An account with money, and one node for everybody."""
        self.send(
            c.OpenAccount(None, account),
            c.CreateGrant(None, account, Unit.MONEY, money * SCALE[Unit.MONEY]),
        )

    def add_node(self, name: str = "n1", cpus: int = 8_000, gpus: int = 0) -> None:
        self.send(c.TakeReports("sim", (NodeSeen(name, cpus, 8 * cpus, gpus, "A100" if gpus else ""),)))

    @property
    def seq(self) -> int:
        return self.writer.durable_seq

    def admin(self) -> str:
        return self.mint(ROOT, "admin", expires_at=self.now() + 86_400 * NS_PER_S)


_warm_once = cache(warm_up)


def started(folder: Path, **options: Any) -> Iterator[ApiHub]:
    """For fixtures: a hub that is stopped afterwards."""
    hub = ApiHub(folder, **options).start()
    yield hub
    hub.stop()


def new_key() -> str:
    """A UUIDv7 (RFC 9562)."""
    import secrets

    raw = bytearray((time.time_ns() // 1_000_000).to_bytes(6, "big") + secrets.token_bytes(10))
    raw[6] = raw[6] & 0x0F | 0x70
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
