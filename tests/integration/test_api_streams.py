"""Streams: watching a subtree, resuming without loss, following a log, and ending with the token or with the process."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.integration.api_hub import ApiHub, started

from mintyard.domain import commands as c
from mintyard.domain.units import Unit
from mintyard.ports.engine import AttemptKey

pytestmark = pytest.mark.slow
JOB: dict[str, Any] = {"launch": {"argv": ["true"]}, "held": True}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiHub]:
    for hub in started(tmp_path_factory.mktemp("hub")):
        hub.onboard("acme")
        hub.onboard("rival")
        hub.send(c.OpenAccount(None, "acme/lab"))
        hub.add_node(cpus=512_000)
        yield hub


@pytest.fixture
def owner(hub: ApiHub) -> Iterator[httpx.Client]:
    with hub.client(hub.mint("acme")) as client:
        yield client


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream: id, event and data."""
    event: dict[str, Any] = {}
    for line in lines:
        if not line:
            if "data" in event:
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value


def test_a_watch_sees_its_own_subtree_and_no_other(hub: ApiHub, owner: httpx.Client) -> None:
    after = hub.seq
    with hub.client(hub.mint("rival")) as rival, hub.client(hub.mint("acme/lab")) as lab:
        rival.post("/api/v1/jobs", json={**JOB, "name": "secret"})
        rival.post("/api/v1/holds", json={"amounts": {"money": "1"}, "note": "secret"})
        mine = lab.post("/api/v1/jobs", json=JOB).json()["job"]
        lab.post(f"/api/v1/jobs/{mine}/cancel")
        hold = owner.post("/api/v1/holds", json={"amounts": {"money": "1"}}).json()["ref"]
        owner.post(f"/api/v1/holds/{hold}/settle", json={"used": {"money": "0.25"}})
    with owner.stream("GET", "/api/v1/watch", params={"after": after}) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        found: list[dict[str, Any]] = []
        for event in events(stream.iter_lines()):
            found.append(event)
            if event["event"] == "hold.closed":
                break
    assert "rival" not in json.dumps(found)
    kinds = [event["event"] for event in found if event["event"] != "token.registered"]
    assert kinds == ["job.admitted", "job.ended", "hold.placed", "hold.closed"]
    ended = next(event["data"] for event in found if event["event"] == "job.ended")
    assert (ended["account"], ended["job"], ended["data"]["state"]) == ("acme/lab", mine, "cancelled")
    assert found[-1]["data"]["data"]["used"] == {"money": "0.25"}
    assert [event["id"] for event in found] == [event["data"]["id"] for event in found]


def test_resuming_misses_nothing_and_repeats_nothing(hub: ApiHub, owner: httpx.Client) -> None:
    after = hub.seq
    batch = owner.post("/api/v1/jobs/batch", json={"jobs": [JOB] * 9}).json()
    wanted = [line["ticket"]["job"] for line in batch["lines"]]  # all in one record
    seen: list[int] = []
    last = ""
    while len(seen) < 9:
        headers = {"last-event-id": last} if last else {}
        query = {"after": after, "kind": "job.admitted"}
        with owner.stream("GET", "/api/v1/watch", params=query, headers=headers) as stream:
            for _, event in zip(range(2), events(stream.iter_lines()), strict=False):
                seen.append(event["data"]["job"])
                last = event["id"]
                if len(seen) == 9:
                    break
    assert seen == wanted


def test_a_watch_is_live(hub: ApiHub, owner: httpx.Client) -> None:
    got: list[str] = []

    def watch() -> None:
        with (
            hub.client(hub.mint("acme")) as client,
            client.stream("GET", "/api/v1/watch?kind=job.admitted") as stream,
        ):
            opened.set()
            got.append(next(events(stream.iter_lines()))["event"])

    opened = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    assert opened.wait(10)
    begun = time.monotonic()
    owner.post("/api/v1/jobs", json=JOB)
    thread.join(10)
    assert got == ["job.admitted"]
    assert time.monotonic() - begun < 5


def test_a_watch_ends_with_its_token(hub: ApiHub) -> None:
    token = hub.mint("acme")
    with hub.client(token) as client, hub.client(hub.admin()) as admin:
        block = client.get("/api/v1/whoami").json()["blocks"][0]["block"]
        with client.stream("GET", "/api/v1/watch") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "retry: 1000"
            admin.post(f"/api/v1/tokens/{block}/revoke")
            found = list(events(lines))
    assert found[-1]["event"] == "problem"
    assert found[-1]["data"]["code"] == "token_revoked"


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("kind=job.exploded", {}, 400, "invalid_request"),
        ("after=-1", {}, 400, "invalid_request"),
        ("", {"last-event-id": "x.y"}, 400, "invalid_request"),
        ("", {"last-event-id": "1.2.3"}, 400, "invalid_request"),
    ],
)
def test_watches_that_make_no_sense(
    owner: httpx.Client, query: str, headers: dict[str, str], status: int, code: str
) -> None:
    answer = owner.get(f"/api/v1/watch?{query}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_log_is_followed_to_its_end(hub: ApiHub, owner: httpx.Client) -> None:
    number = owner.post("/api/v1/jobs", json={**JOB, "held": False}).json()["job"]
    while owner.get(f"/api/v1/jobs/{number}").json().get("attempt") != 1:
        time.sleep(0.02)
    key = AttemptKey(number, 1)
    hub.logs.kept[key, "stdout"] = b"one\n"

    def more() -> None:
        time.sleep(0.4)
        hub.logs.kept[key, "stdout"] += b"two \xff\n"
        hub.logs.ended.add(key)

    writing = threading.Thread(target=more)
    writing.start()
    with owner.stream("GET", f"/api/v1/jobs/{number}/logs/follow") as stream:
        chunks = list(events(stream.iter_lines()))
    writing.join()
    assert b"".join(base64.b64decode(chunk["data"]["data"]) for chunk in chunks) == b"one\ntwo \xff\n"
    assert [chunk["data"]["ended"] for chunk in chunks][-1] is True
    assert chunks[-1]["id"] == "10"
    resumed = {"last-event-id": chunks[0]["id"]}
    with owner.stream("GET", f"/api/v1/jobs/{number}/logs/follow", headers=resumed) as stream:
        rest = list(events(stream.iter_lines()))
    assert base64.b64decode(rest[0]["data"]["data"]) == b"two \xff\n"


def test_a_long_poll_returns_when_something_is_written(hub: ApiHub, owner: httpx.Client) -> None:
    number = owner.post("/api/v1/jobs", json={**JOB, "held": False}).json()["job"]
    key = AttemptKey(number, 1)
    writing = threading.Timer(0.4, lambda: hub.logs.kept.__setitem__((key, "stderr"), b"oops"))
    writing.start()
    begun = time.monotonic()
    query = {"stream": "stderr", "wait_s": 15, "min_seq": hub.seq}
    chunk = owner.get(f"/api/v1/jobs/{number}/logs", params=query).json()
    assert (base64.b64decode(chunk["data"]), chunk["ended"]) == (b"oops", False)
    assert time.monotonic() - begun < 10
    writing.join()


def test_streams_end_when_the_process_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    hub = ApiHub(tmp_path_factory.mktemp("ending")).start()
    hub.onboard("acme")
    with hub.client(hub.mint("acme")) as client, client.stream("GET", "/api/v1/watch") as stream:
        lines = stream.iter_lines()
        next(lines)
        begun = time.monotonic()
        stopping = threading.Thread(target=hub.stop)
        stopping.start()
        list(lines)
        stopping.join()
    assert time.monotonic() - begun < 15


def test_a_watch_of_grants_shows_amounts(hub: ApiHub, owner: httpx.Client) -> None:
    after = hub.seq
    hub.send(c.CreateGrant(None, "acme/lab", Unit.MONEY, 1_500_000_000))
    with owner.stream("GET", f"/api/v1/watch?after={after}&kind=grant.created") as stream:
        event = next(events(stream.iter_lines()))
    assert (event["data"]["account"], event["data"]["data"]["amount"]) == ("acme/lab", "1.5")
