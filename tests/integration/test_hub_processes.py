"""Real processes: a writer killed with -9 while the local engine runs jobs, an embedded hub from first start to stop, minting."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mintyard.app.bootstrap import ADMIN_CONTEXT, admin_credentials, prepare_folder
from mintyard.app.channel import ChannelLink
from mintyard.app.config import Config
from mintyard.app.embedded import EmbeddedHub
from mintyard.app.instance import write_running
from mintyard.app.journal import stream, verify_store
from mintyard.app.journal_store import open_store
from mintyard.app.minting import MintingService, TokenWish
from mintyard.app.planner import open_planner
from mintyard.app.questions import CountState
from mintyard.app.record import decode_body
from mintyard.app.recovery import recover
from mintyard.app.replay_journal import replay
from mintyard.app.sockets import WRITER_SOCKET, socket_path
from mintyard.credentials import verify
from mintyard.domain.commands import CreateGrant, OpenAccount, Submit
from mintyard.domain.errors import FolderInUse, MintyardError, Unavailable, Widening
from mintyard.domain.events import JobEnded, JobRequeued
from mintyard.domain.jobs.spec import JobRequest, JobSpec, Shape
from mintyard.domain.replies import Refusal, Ticket
from mintyard.domain.tokens.authority import ROLES, Authority, Scope
from mintyard.domain.units import Unit
from mintyard.wire.launch import Launch, encode_launch

pytestmark = pytest.mark.slow


def config_of(folder: Path, **more: Any) -> Config:
    nodes = [{"name": "n", "count": 2, "cpus_milli": 64_000, "memory_mib": 65_536}]
    return Config(
        folder=str(folder), engine_options={"nodes": nodes, "cgroup": "off"}, lease_ms=5_000, **more
    )


def job(script: str, **spec: Any) -> JobRequest:
    payload = encode_launch(Launch(argv=("/bin/sh", "-c", script)))
    return JobRequest(JobSpec("real", Shape(100, 16), payload=payload, **spec))


def admin(config: Config) -> Authority:
    context = admin_credentials(config).contexts()[ADMIN_CONTEXT]
    assert context.keys is not None
    return verify(context.token, context.keys, time.time_ns())


@pytest.fixture
def writers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Every writer that a test starts; none outlives it."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for writer in started:
        writer.kill()
        writer.wait()


def start_writer(config: Config, writers: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    path = write_running(config)
    (config.run_folder / "writer.ready").unlink(missing_ok=True)
    with (config.path / "writer.log").open("ab") as log:
        writer = subprocess.Popen(
            [sys.executable, "-m", "mintyard.app.processes", "writer", "--config", str(path)],
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    writers.append(writer)
    deadline = time.monotonic() + 120
    while not (config.run_folder / "writer.ready").exists() or not admin_credentials(config).contexts():
        assert writer.poll() is None, (config.path / "writer.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return writer


async def ask(link: ChannelLink, command: Any) -> Any:
    """Send until it is answered by a leader; only for what may be repeated."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return (await link.send(command)).reply
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_a_killed_writer_loses_nothing_and_runs_nothing_twice(
    tmp_path: Path, writers: list[subprocess.Popen[bytes]]
) -> None:
    config = config_of(tmp_path / "hub")
    prepare_folder(config)
    ran = tmp_path / "ran"
    ran.mkdir()
    writer = start_writer(config, writers)
    link = ChannelLink(socket_path(config.run_folder, WRITER_SOCKET), patience_s=0.5)
    await link.start()
    who = admin(config)
    for command in (
        OpenAccount(who, "lab"),
        CreateGrant(None, "/", Unit.MONEY, 10**17),
        CreateGrant(None, "lab", Unit.MONEY, 10**16),
    ):
        assert not isinstance(await ask(link, command), Refusal)
    acknowledged: list[int] = []
    done = False

    async def load() -> None:
        number = 0
        while not done:
            number += 1
            script = f"echo x >> {ran}/$MINTYARD_JOB-$MINTYARD_ATTEMPT; sleep 0.{number % 9}"
            try:
                reply = (await link.send(Submit(who, (job(script),)))).reply
            except MintyardError:
                await asyncio.sleep(0.02)
                continue
            part = reply.parts[0] if hasattr(reply, "parts") else reply  # pyright: ignore
            assert isinstance(part, Ticket), part
            acknowledged.append(part.job)
            await asyncio.sleep(0.02)

    loading = [asyncio.ensure_future(load()) for _ in range(2)]
    for _ in range(3):
        before = len(acknowledged)
        while len(acknowledged) < before + 10:
            await asyncio.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        await asyncio.to_thread(writer.wait)
        writer = await asyncio.to_thread(start_writer, config, writers)
    done = True
    await asyncio.gather(*loading)
    store = open_store(config.store_url)
    planner = open_planner(store)
    deadline = time.monotonic() + 120
    while True:
        planner.catch_up()
        counts: Any = planner.ask(CountState())
        if not sum(counts.jobs.values()):
            break
        assert time.monotonic() < deadline, (config.path / "writer.log").read_text()[-3_000:]
        await asyncio.sleep(0.2)
    await link.close()
    writer.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(writer.wait, 60) == 0
    verify_store(store)
    assert replay(stream(store)).difference is None
    events = [event for record in stream(store) for event in decode_body(record).events]
    ended = {event.job: event for event in events if isinstance(event, JobEnded)}
    assert set(acknowledged) <= ended.keys()
    assert {event.trigger for event in ended.values()} == {"succeed"}
    assert not [event for event in events if isinstance(event, JobRequeued)]  # adopted, not started again
    runs = {path.name: path.read_text() for path in ran.iterdir()}
    assert runs == {f"{number}-1": "x\n" for number in ended}
    state = recover(store).state
    totals = state.ledger.totals[Unit.MONEY]
    assert sum(totals) == 0
    store.close()


async def test_a_term_signal_commits_and_frees_the_lease(
    tmp_path: Path, writers: list[subprocess.Popen[bytes]]
) -> None:
    config = config_of(tmp_path / "hub")
    prepare_folder(config)
    writer = start_writer(config, writers)
    writer.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(writer.wait, 60) == 0
    store = open_store(config.store_url)
    lease = store.acquire("somebody-else", 1_000)
    assert lease is not None  # at once: it was given back
    store.close()


def test_an_embedded_hub_from_first_start_to_stop(tmp_path: Path) -> None:
    config = config_of(tmp_path / "hub")

    async def use(hub: EmbeddedHub) -> None:
        who = admin(config)
        link = hub.link
        await link.send(OpenAccount(who, "lab"))
        await link.send(CreateGrant(None, "/", Unit.MONEY, 10**17))
        await link.send(CreateGrant(None, "lab", Unit.MONEY, 10**16))
        minting = MintingService(hub.keys, link)
        minted = await minting.mint(
            who, TokenWish(account="lab", scopes=frozenset(ROLES["member"]), name="m")
        )
        member = verify(minted.token, hub.keys.key_set, time.time_ns())
        assert set(member.parents) == {block.block for block in who.blocks}
        assert minted.token not in repr(minted)
        with pytest.raises(Widening):
            await minting.mint(member, TokenWish(account="lab", scopes=frozenset({Scope.PRICE_WRITE})))
        reply: Any = (await link.send(Submit(member, (job("echo $MINTYARD_TOKEN"),)))).reply
        assert isinstance(reply.parts[0], Ticket)
        while True:
            counts: Any = await link.ask(CountState())
            if not sum(counts.jobs.values()):
                break
            await asyncio.sleep(0.05)

    with EmbeddedHub(config) as hub:
        asyncio.run(use(hub))
        with pytest.raises(FolderInUse):
            EmbeddedHub(config).start()
    first = admin(config)
    store = open_store(config.store_url)
    bodies = b"".join(record.body for record in stream(store))
    assert b"mint_" not in bodies
    store.close()
    with EmbeddedHub(config, read_side=False):
        assert admin(config).root == first.root  # a second start makes nothing new
    credentials = config.path / "admin" / "credentials.json"
    assert credentials.stat().st_mode & 0o777 == 0o600
