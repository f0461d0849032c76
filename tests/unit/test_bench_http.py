"""The load over HTTP: its arithmetic, its reading of answers, and a whole run against a small server. No timing."""

from __future__ import annotations

import asyncio
import math

import pytest
from bench.throughput.http import job, live_of
from bench.throughput.http_load import Plan, encode_request, parse_answer, run, summarize
from bench.throughput.noop import ThreadedNoopEngine
from bench.throughput.tenants import SPECS

from mintyard.domain.jobs.reports import AttemptEnded
from mintyard.ports.engine import StartOrder
from mintyard.wire.jobs import job_from, to_request

ANSWER = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nContent-Length: 2\r\nx-a: b\r\n\r\n{}"


@pytest.mark.parametrize("cut", range(len(ANSWER)))
def test_an_answer_counts_only_when_it_is_whole(cut: int) -> None:
    assert parse_answer(ANSWER[:cut])[1] == 0
    assert parse_answer(ANSWER) == (201, len(ANSWER))


def test_what_is_no_answer_is_not_counted_as_one() -> None:
    with pytest.raises(ValueError, match="no answer"):
        parse_answer(b"SSH-2.0-x\r\n\r\n")


def test_a_request_is_whole() -> None:
    request = encode_request("/api/v1/jobs", "mint_x", {"a": "ä"}, "h:1")
    head, _, body = request.partition(b"\r\n\r\n")
    assert body == '{"a":"ä"}'.encode()
    assert b"content-length: %d" % len(body) in head
    assert b"authorization: Bearer mint_x" in head


def test_rates_count_answers_and_latencies_count_arrivals_of_the_window() -> None:
    due = [0.5, 1.0, 1.5, 1.9, 2.5, 1.8]
    answered = [1.1, 1.2, 1.6, 2.4, 2.6, 0.0]
    statuses = [201, 201, 429, 201, 201, 0]
    rate, quantiles, unanswered, counts = summarize(due, answered, statuses, 3, 1.0, 2.0)
    assert rate == 3 * 2  # answered within the window and accepted: the first two
    assert quantiles[0] == pytest.approx(350)  # due within it and accepted: 200 and 500 ms
    assert unanswered == 1
    assert counts == {201: 2, 429: 1, 0: 1}


def test_nothing_accepted_has_no_latency() -> None:
    rate, quantiles, _, _ = summarize([1.0], [1.1], [503], 1, 1.0, 2.0)
    assert rate == 0
    assert all(math.isnan(one) for one in quantiles)


@pytest.mark.parametrize("rate", [0.0, 2_000.0])
async def test_each_request_of_a_run_is_answered_once(rate: int) -> None:
    seen = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            seen += 1
            status = b"503 Busy" if seen % 10 == 0 else b"201 Created"
            writer.write(ANSWER.replace(b"201 Created", status)[:20])
            await asyncio.sleep(0)
            writer.write(ANSWER.replace(b"201 Created", status)[20:])

    async def serve_until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve_until_closed, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    requests = [encode_request("/x", "t", {"n": n}, "h") for n in range(3)]
    plan = Plan(
        host="127.0.0.1",
        port=port,
        requests=requests,
        jobs=2,
        connections=4,
        rate=rate,
        seconds=0.2,
        warm_s=0.05,
    )
    result = await asyncio.wait_for(run(plan), 30)
    server.close()
    await server.wait_closed()
    assert result.unanswered == 0
    assert set(result.statuses) == {201, 503}
    assert result.acknowledged == 2 * (seen - seen // 10)


def test_the_mix_is_what_the_hub_takes() -> None:
    requests = [to_request(job_from(job(at))) for at in range(SPECS)]
    assert any(one.spec.shape.gpus for one in requests)


def test_live_jobs_are_added_up_and_silence_is_no_zero() -> None:
    text = 'mintyard_jobs{state="pending"} 3\nmintyard_jobs{state="running"} 4\nmintyard_journal_seq 9\n'
    assert live_of(text) == 7
    assert live_of("mintyard_journal_seq 9\n") == 0
    assert live_of("nothing") > 0


def test_every_order_is_reported_as_ended() -> None:
    engine = ThreadedNoopEngine(3)
    assert len(engine.nodes()) == 3
    assert engine.poll(0) == []
    engine.start([StartOrder(n, 1, "", "", (), 1, 1, 0, 0, 0, b"") for n in (1, 2)])
    engine.start([StartOrder(3, 1, "", "", (), 1, 1, 0, 0, 0, b"")])
    ended = [report.job for report in engine.poll(0) if type(report) is AttemptEnded]
    assert ended == [1, 2, 3]
