"""What a client does with answers, losses and streams, without a network."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import formatdate
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.domain.errors import (
    AnswerUnreadable,
    Exit,
    HubUnreachable,
    IdempotencyKeyInvalid,
    JobNotSucceeded,
    LimitReached,
    MintyardError,
    Overloaded,
    QuotaExhausted,
    TooLarge,
    Unknown,
)
from mintyard.sdk.event_stream import MAX_EVENT_BYTES, EventReader
from mintyard.sdk.exchange import Exchange, Journey, Pause, problem_of, retry_after_s
from mintyard.sdk.outcome import check_outcome, exit_status, has_ended
from mintyard.sdk.request import get, post
from mintyard.wire.pages import Change
from mintyard.wire.problems import details_of
from mintyard.wire.submissions import JobView, Resources

URL = "http://hub.example"
PROBLEM = {"content-type": "application/problem+json"}


def problem(error: MintyardError) -> bytes:
    return msgspec.json.encode(details_of(error))


def journey(retry_s: float = 30.0) -> Journey:
    return Journey(URL, "secret", retry_s)


def write(held: Journey) -> Exchange[Change]:
    return Exchange(held, post("/jobs", Change))


def answer(exchange: Exchange[Change], error: MintyardError, **headers: str) -> Change | Pause:
    given_ = PROBLEM | {name.replace("_", "-"): value for name, value in headers.items()}
    return exchange.answered(error.status, given_, problem(error))


def test_value_and_what_is_learned() -> None:
    held = journey()
    exchange = write(held)
    headers = {"x-mintyard-seq": "12", "date": formatdate(time.time() + 3_600, usegmt=True)}
    assert exchange.answered(201, headers, b'{"ref":1,"state":"pending","seq":12,"new_field":[]}') == Change(
        ref=1, state="pending", seq=12
    )
    assert held.seq == 12
    assert abs(held.skew_ms - 3_600_000) < 5_000
    assert held.headers(get("/jobs", dict))["x-mintyard-min-seq"] == "12"
    sent = held.headers(exchange.request)
    assert "x-mintyard-min-seq" not in sent
    assert sent["idempotency-key"] == exchange.request.key
    assert sent["authorization"] == "Bearer secret"


def test_a_read_does_not_move_the_seq_and_nonsense_is_ignored() -> None:
    held = journey()
    Exchange(held, get("/x", dict)).answered(200, {"x-mintyard-seq": "9"}, b"{}")
    write(held).answered(
        200, {"x-mintyard-seq": "9" * 30, "date": "yesterday"}, b'{"ref":1,"state":"a","seq":1}'
    )
    assert (held.seq, held.skew_ms) == (0, 0)


def test_a_fresh_client_asks_once_how_far_the_hub_is() -> None:
    held = Journey(URL, "secret", fresh=True)
    read = get("/jobs", dict)
    assert held.lacks_seq(read)
    assert not held.lacks_seq(get("/whoami", dict))
    assert not held.lacks_seq(post("/jobs", Change))
    held.take_seq(b'{"status":"not ready","durable_seq":12}')
    assert held.headers(read)["x-mintyard-min-seq"] == "12"
    assert not held.lacks_seq(read)
    for nonsense in (
        b"",
        b"[]",
        b'{"durable_seq":-1}',
        b'{"durable_seq":9223372036854775808}',
        b"[" * 100_000,
        b"\xff",
    ):
        other = Journey(URL, "secret", fresh=True)
        other.take_seq(nonsense)
        assert (other.seq, other.lacks_seq(read)) == (0, False)
    assert not journey().lacks_seq(read)


def test_a_refusal_is_raised_as_the_hub_raised_it() -> None:
    error = QuotaExhausted(account="acme", short="1", unit="money", needed="2", left="1", later="")
    with pytest.raises(QuotaExhausted) as caught:
        answer(write(journey()), error)
    assert caught.value.params == error.params
    assert str(caught.value) == str(error)


def test_a_code_of_a_newer_hub_is_kept() -> None:
    body = b'{"type":"t","title":"T","status":418,"detail":"d","code":"teapot","params":{"x":1}}'
    with pytest.raises(Unknown) as caught:
        write(journey()).answered(418, PROBLEM, body)
    assert caught.value.params["reported"] == "teapot"


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (404, {"content-type": "text/html"}, b"<h1>nginx</h1>", AnswerUnreadable),
        (500, {}, b"", AnswerUnreadable),
        (302, {"location": "http://evil"}, b"", AnswerUnreadable),
        (400, PROBLEM, b"{", AnswerUnreadable),
        (400, PROBLEM, b"[" * 100_000, AnswerUnreadable),
        (400, PROBLEM, b'{"code":1}', AnswerUnreadable),
        (400, PROBLEM, b"\xff", AnswerUnreadable),
        (504, {}, b"", HubUnreachable),
        (502, {}, b"bad gateway", HubUnreachable),
    ],
)
def test_what_is_no_hub(
    status: int, headers: Mapping[str, str], body: bytes, kind: type[MintyardError]
) -> None:
    assert isinstance(problem_of(URL, status, headers, body), kind)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"ref":1}', b"\xff", b"[" * 100_000, b"null"])
def test_an_unreadable_value(body: bytes) -> None:
    with pytest.raises(AnswerUnreadable):
        write(journey()).answered(200, {}, body)


def test_busy_hubs_are_obeyed_and_losses_repeated_with_the_same_key() -> None:
    exchange = write(journey())
    key = exchange.request.key
    pause = answer(exchange, Overloaded(retry_after_s=3), retry_after="3")
    assert isinstance(pause, Pause)
    assert pause.seconds == 3.0
    first, second = exchange.lost("reset"), exchange.lost("reset")
    assert isinstance(first, Pause)
    assert first.seconds < 1.0
    assert second.seconds > 0.0
    assert exchange.request.key == key


def test_patience_ends() -> None:
    with pytest.raises(HubUnreachable, match="connection refused"):
        write(journey(0.0)).lost("connection refused")
    with pytest.raises(Overloaded):
        answer(write(journey(1.0)), Overloaded(retry_after_s=60), retry_after="60")
    with pytest.raises(LimitReached):
        answer(write(journey()), LimitReached(limit=1, what="tokens"), retry_after="1")


def test_a_wrong_clock_here_is_made_good_once() -> None:
    held = journey()
    exchange = write(held)
    late = exchange.request.key
    error = IdempotencyKeyInvalid(why="is from the future")
    date = formatdate(time.time() - 86_400, usegmt=True)
    assert answer(exchange, error, date=date) == Pause(0.0)
    assert exchange.request.key != late
    ms = int(exchange.request.key.replace("-", "")[:12], 16)
    assert abs(ms / 1_000 - (time.time() - 86_400)) < 5
    with pytest.raises(IdempotencyKeyInvalid):
        answer(exchange, error, date=date)
    with pytest.raises(IdempotencyKeyInvalid):
        answer(write(journey()), error, date=formatdate(time.time(), usegmt=True))


def test_retry_after() -> None:
    assert [retry_after_s({"retry-after": text}) for text in ("5", "", "x", "-1", "9" * 20, "1e3")] == [
        5.0,
        0,
        0,
        0,
        0,
        0,
    ]
    assert 50 < retry_after_s({"retry-after": formatdate(time.time() + 60, usegmt=True)}) <= 60
    assert retry_after_s({"retry-after": formatdate(0, usegmt=True)}) == 0.0


# --- streams --------------------------------------------------------------------------------------------------------

STREAM = (
    b': hello\n\nid: 4.0\nevent: job\ndata: {"a":\ndata: 1}\n\nid: 5\r\ndata: x\r\n\r\n'
    b"event: none\n\ndata:y\n\nretry: 5\nevent: half\ndata: z\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_how_bytes_arrive(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    found = [event for start, end in pairwise(places) for event in reader.feed(STREAM[start:end])]
    assert [(event.kind, event.data, event.id) for event in found] == [
        ("job", b'{"a":\n1}', "4.0"),
        ("message", b"x", "5"),
        ("message", b"y", "5"),
    ]
    assert reader.last_id == "5"
    reader.reset()
    assert [event.data for event in reader.feed(b"data: new\n\n")] == [b"new"]


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(data: bytes) -> None:
    for event in EventReader().feed(data):
        assert event.data is not None


def test_an_event_without_end_is_refused() -> None:
    one_line, many_lines = (
        b"data: " + b"x" * 1_048_576,
        b"data: " + b"x" * 1_048_576 + b"\n",
    )
    for piece in (one_line, many_lines):
        with pytest.raises(TooLarge):
            endless(piece)


def endless(piece: bytes) -> None:
    reader = EventReader()
    for _ in range(MAX_EVENT_BYTES // 1_048_576 + 2):
        reader.feed(piece)


# --- outcomes -------------------------------------------------------------------------------------------------------


def view(state: str, **fields: object) -> JobView:
    resources = Resources(cpus_milli=1, memory_mib=1, gpus=0, gpu_milli=1_000, members=1, storage_mb=0)
    given_: dict[str, object] = {
        "job": 1, "label": "1", "name": "n", "account": "a", "state": state, "resources": resources, "queue": "q",
        "priority": 1, "time_limit_ms": 1, "grace_ms": 1, "retries": 0, "cost": "0",
    }  # fmt: skip
    return JobView(**given_ | fields)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("succeeded", Exit.OK),
        ("failed", Exit.JOB_FAILED),
        ("timed_out", Exit.TIMEOUT),
        ("cancelled", Exit.CANCELLED),
        ("skipped", Exit.CANCELLED),
    ],
)
def test_each_end_has_its_exit_status(state: str, status: Exit) -> None:
    ended = view(state)
    assert has_ended(ended)
    assert exit_status(ended) == status
    if status == Exit.OK:
        assert check_outcome(ended) is ended
    else:
        with pytest.raises(JobNotSucceeded) as caught:
            check_outcome(ended)
        assert caught.value.exit_status == status
    assert JobNotSucceeded.exit_status == Exit.JOB_FAILED


def test_how_a_job_ended_is_told() -> None:
    for fields, told in (
        ({"exit_code": 3}, "exit code 3"),
        ({"signal": 9}, "signal 9"),
        ({"reason": "dependency failed"}, "dependency failed"),
        ({"tasks": {"failed": 1, "succeeded": 2}}, "1 failed, 2 succeeded"),
    ):
        with pytest.raises(JobNotSucceeded, match=told):
            check_outcome(view("failed", **fields))
    assert not has_ended(view("running"))
