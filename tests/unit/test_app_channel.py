"""The channel: framing, batches over a real Unix socket, notices before answers, broken connections, hostile peers."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.hub_material import AUTHORITY, founded, lead, nodes, opener, submit, ticket

from mintyard.adapters.stores.memory import MemoryDisk
from mintyard.app import frames
from mintyard.app.channel import ChannelLink
from mintyard.app.channel_server import ChannelServer
from mintyard.app.frames import Commands, Decoder, Goodbye, Hello, encode_commands, encode_frame
from mintyard.app.link import Notice
from mintyard.app.questions import Counts, CountState, ExplainJob, Question
from mintyard.app.sockets import bind_socket, socket_path
from mintyard.app.writer import WriterSettings
from mintyard.domain.commands import SetTokenState
from mintyard.domain.errors import (
    CommitUnknown,
    InvalidRequest,
    MintyardError,
    NotFound,
    NotLeader,
    Overloaded,
    StoreForeign,
    TooLarge,
)
from mintyard.domain.limits import MAX_FRAME_BYTES
from mintyard.domain.replies import Batch, Refusal


class Oracle:
    """A planner that knows one thing."""

    def ask(self, question: Question) -> Counts:
        if isinstance(question, ExplainJob):
            raise NotFound(what="job", name=str(question.job))
        return Counts(7, 0, {"pending": 1}, {}, {}, {}, {}, {})


async def connect(path: Path, **more: Any) -> ChannelLink:
    link = ChannelLink(path, **more)
    await link.start()
    await asyncio.wait_for(link.connected(), 10)
    return link


async def test_commands_travel_in_batches_and_come_back_by_number(tmp_path: Path) -> None:
    writer = await lead(opener(MemoryDisk()))
    server = ChannelServer(tmp_path / "run" / "w.sock", writer)
    await server.start()
    link = await connect(server.path)
    other = await connect(server.path)
    await founded(link, nodes())  # pyright: ignore[reportArgumentType]
    before = writer.durable_seq
    mine = [asyncio.ensure_future(link.send(submit(f"m{n}"))) for n in range(200)]
    theirs = [asyncio.ensure_future(other.send(submit(f"t{n}"))) for n in range(200)]
    jobs = [ticket((await one).reply).job for one in mine]
    assert jobs == sorted(jobs)
    assert sorted(jobs + [ticket((await one).reply).job for one in theirs]) == list(range(1, 401))
    assert writer.durable_seq - before < 40  # not one tick a command
    refused = await link.send(submit("", authority=None))
    assert isinstance(refused.reply, (Refusal, Batch))
    await link.close()
    await other.close()
    await server.close()
    await writer.stop()
    assert not server.path.exists()


async def test_a_notice_arrives_before_its_answer_and_a_reader_starts_with_everything(tmp_path: Path) -> None:
    writer = await lead(opener(MemoryDisk()))
    server = ChannelServer(tmp_path / "run" / "w.sock", writer)
    await server.start()
    heard: list[Notice] = []
    link = await connect(server.path, on_notice=heard.append)
    await founded(link)  # pyright: ignore[reportArgumentType]
    answer = await link.send(SetTokenState(None, AUTHORITY.root, "suspend"))
    assert any(notice.suspended == (AUTHORITY.root,) and notice.durable_seq >= answer.seq for notice in heard)
    late = await connect(server.path)
    feed = late.notices()
    first = await asyncio.wait_for(anext(feed), 10)
    assert first.suspended == (AUTHORITY.root,)
    await link.send(SetTokenState(None, AUTHORITY.root, "resume"))
    while not (notice := await asyncio.wait_for(anext(feed), 10)).resumed:
        pass
    assert notice.resumed == (AUTHORITY.root,)
    await late.close()

    async def drain() -> None:
        async for _ in feed:
            pass

    with pytest.raises(NotLeader):
        await asyncio.wait_for(drain(), 10)
    await link.close()
    await server.close()
    await writer.stop()


async def test_what_was_resumed_while_away_is_told_on_return(tmp_path: Path) -> None:
    disk = MemoryDisk()
    writer = await lead(opener(disk))
    server = ChannelServer(tmp_path / "run" / "w.sock", writer)
    await server.start()
    heard: list[Notice] = []
    link = await connect(server.path, on_notice=heard.append)
    await founded(link)  # pyright: ignore[reportArgumentType]
    await link.send(SetTokenState(None, AUTHORITY.root, "suspend"))
    await server.close()
    from mintyard.app.local_link import LocalLink

    local = LocalLink(writer, asyncio.get_running_loop())
    await local.send(SetTokenState(None, AUTHORITY.root, "resume"))
    heard.clear()
    again = ChannelServer(server.path, writer)
    await again.start()
    while not heard:
        await asyncio.sleep(0.005)
    assert AUTHORITY.root in heard[0].resumed
    await link.close()
    await again.close()
    await writer.stop()


async def test_a_broken_connection_leaves_the_fate_of_what_was_sent_open(tmp_path: Path) -> None:
    path = tmp_path / "run" / "w.sock"
    listening = bind_socket(path)
    hello = encode_frame(Hello(frames.CHANNEL_VERSION))

    async def greet_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello)
        await reader.readexactly(len(hello))
        while len(await reader.read(65_536)) < 50:
            pass
        writer.close()

    server = await asyncio.start_unix_server(greet_and_hang_up, sock=listening)
    link = await connect(path, patience_s=0.05)
    with pytest.raises(CommitUnknown):
        await asyncio.wait_for(link.send(submit()), 10)
    server.close()
    path.unlink(missing_ok=True)

    async def send_until_known() -> None:
        while True:
            try:
                await link.send(submit())
            except CommitUnknown:
                await asyncio.sleep(0.01)

    with pytest.raises(NotLeader):  # unsent, so its fate is known
        await asyncio.wait_for(send_until_known(), 20)
    await link.close()


async def test_too_much_at_a_time_is_turned_away_on_both_ends(tmp_path: Path) -> None:
    writer = await lead(opener(MemoryDisk()), WriterSettings(max_inflight=5))
    server = ChannelServer(tmp_path / "run" / "w.sock", writer)
    await server.start()
    link = await connect(server.path, max_inflight=10)
    await founded(link)  # pyright: ignore[reportArgumentType]
    many = [asyncio.ensure_future(link.send(submit())) for _ in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await link.send(submit())
    outcomes = await asyncio.gather(*many, return_exceptions=True)
    assert all(isinstance(outcome, Overloaded) for outcome in outcomes)  # all of a frame or none
    assert writer.queued == 0
    ticket((await link.send(submit())).reply)
    await link.close()
    await server.close()
    await writer.stop()


async def test_questions_go_to_the_planner(tmp_path: Path) -> None:
    writer = await lead(opener(MemoryDisk()))
    server = ChannelServer(tmp_path / "run" / "w.sock", writer)
    planner = ChannelServer(tmp_path / "run" / "p.sock", planner=Oracle())
    await server.start()
    await planner.start()
    link = await connect(server.path, planner=planner.path)
    found = await link.ask(CountState())
    assert isinstance(found, Counts)
    assert found.seq == 7
    with pytest.raises(NotFound, match="no job 3"):
        await link.ask(ExplainJob(3, "/"))
    wrong = await connect(planner.path)
    with pytest.raises(InvalidRequest):
        await wrong.send(submit())
    for one in (link, wrong):
        await one.close()
    await planner.close()
    await server.close()
    await writer.stop()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        encode_frame(Commands(0, [submit()])),
        encode_frame(Hello(frames.CHANNEL_VERSION + 1)),
        encode_frame(Hello(frames.CHANNEL_VERSION)) * 2,
        encode_frame(Hello(frames.CHANNEL_VERSION)) + encode_frame(Goodbye("not_leader")),
        encode_frame(Hello(frames.CHANNEL_VERSION)) + struct.pack(">I", 5000) + b"\x92" * 5000,
    ],
)
async def test_a_peer_that_talks_nonsense_is_hung_up_on(tmp_path: Path, data: bytes) -> None:
    writer = await lead(opener(MemoryDisk()))
    server = ChannelServer(tmp_path / "run" / "w.sock", writer)
    await server.start()
    reader, peer = await asyncio.open_unix_connection(str(server.path))
    peer.write(data)
    try:
        async with asyncio.timeout(10):
            await reader.read(-1)
    except ConnectionResetError:
        pass
    peer.close()
    link = await connect(server.path)  # others are served as before
    await founded(link)  # pyright: ignore[reportArgumentType]
    await link.close()
    await server.close()
    await writer.stop()


def test_the_socket_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "run" / "w.sock"
    bind_socket(path).close()
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(path.parent).st_mode & 0o777 == 0o700
    bind_socket(path).close()  # what a dead process left is replaced
    os.chmod(path.parent, 0o755)
    with pytest.raises(StoreForeign):
        bind_socket(path)


def test_a_folder_with_a_long_name_gets_a_short_socket(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    path = socket_path(long, "w.sock")
    assert len(str(path)) < 100
    assert path != socket_path(tmp_path / ("y" * 100), "w.sock")
    assert socket_path(Path("/run/m"), "w.sock") == Path("/run/m/w.sock")


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20), st.data())
def test_frames_survive_any_cut(numbers: list[int], data: st.DataObject) -> None:
    sent = [Hello(number, number % 2 == 0) for number in numbers]
    stream = b"".join(map(encode_frame, sent))
    decoder = Decoder()
    got: list[Any] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += decoder.feed(stream[:size])
        stream = stream[size:]
    assert got == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    try:
        Decoder().feed(data)
    except (ValueError, msgspec.DecodeError):
        pass


def test_commands_that_don_t_fit_one_frame_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 2_000)
    commands: list[Any] = [submit(payload=b"x" * 300) for _ in range(9)]
    commands[4] = submit(payload=b"x" * 3_000)
    seen: dict[int, Any] = {}
    for frame in encode_commands(10, commands):
        if isinstance(frame, bytes):
            assert len(frame) <= 2_004
            (message,) = Decoder().feed(frame)
            assert isinstance(message, Commands)
            seen |= {message.first + at: command for at, command in enumerate(message.commands)}
        else:
            assert isinstance(frame[1], TooLarge)
            seen[frame[0]] = None
    assert seen == {10 + at: (command if at != 4 else None) for at, command in enumerate(commands)}


def test_every_error_survives_the_channel() -> None:
    from mintyard.app.channel import _outcome
    from mintyard.app.frames import Outcomes, Told

    error = Overloaded(retry_after_s=1)
    (message,) = Decoder().feed(encode_frame(Outcomes([Told(3, 0, error.problem())])))
    assert isinstance(message, Outcomes)
    outcome = _outcome(message.told[0])
    assert isinstance(outcome, MintyardError)
    assert outcome.problem() == error.problem()
