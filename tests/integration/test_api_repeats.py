"""The same request twice: one effect and one answer, one after the other and all at the same time (U1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.integration.api_hub import ApiHub, new_key, started

from mintyard.app.record import decode_body
from mintyard.domain import commands as c

pytestmark = pytest.mark.slow
JOB: dict[str, Any] = {"launch": {"argv": ["true"]}}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiHub]:
    for hub in started(tmp_path_factory.mktemp("hub")):
        hub.onboard("acme")
        hub.onboard("rival")
        yield hub


@pytest.fixture(scope="module")
def owner(hub: ApiHub) -> Iterator[httpx.Client]:
    with hub.client(hub.mint("acme")) as client:
        yield client


def effects(hub: ApiHub, after: int) -> list[c.Command]:
    """Commands that changed something since record `after`."""
    inputs = [command for record in hub.journal.read(after, 100) for command in decode_body(record).inputs]
    return [command for command in inputs if not isinstance(command, c.Tick)]


def said(answer: httpx.Response) -> str:
    """The answer without the record's number: a repeat is answered as of a later one."""
    return json.dumps(
        json.loads(answer.text, object_hook=lambda row: {k: v for k, v in row.items() if k != "seq"})
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/jobs", JOB),
        ("/api/v1/jobs/batch", {"jobs": [JOB, JOB]}),
        ("/api/v1/jobs/batch", {"jobs": [JOB, JOB], "atomic": False}),
        ("/api/v1/tokens", {"role": "member"}),
        ("/api/v1/holds", {"amounts": {"money": "0.01"}}),
        ("/api/v1/accounts", {"account": "acme/twice"}),
    ],
)
def test_duplicates_have_one_effect_and_one_answer(
    hub: ApiHub, owner: httpx.Client, path: str, body: Any
) -> None:
    headers = {"idempotency-key": new_key()}
    before = hub.seq

    def send(_: int) -> httpx.Response:
        return owner.post(path, json=body, headers=headers)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(send, range(24)))
    assert {answer.status_code for answer in answers} <= {200, 201}, answers[0].text

    assert len({said(answer) for answer in answers}) == 1
    assert len(effects(hub, before)) == 1


def test_the_key_of_another_account_is_its_own(hub: ApiHub, owner: httpx.Client) -> None:
    headers = {"idempotency-key": new_key()}
    first = owner.post("/api/v1/jobs", json=JOB, headers=headers).json()
    with hub.client(hub.mint("rival")) as rival:
        second = rival.post("/api/v1/jobs", json=JOB, headers=headers).json()
    assert first["job"] != second["job"]
    reused = owner.post("/api/v1/jobs", json={**JOB, "name": "other"}, headers=headers)
    assert (reused.status_code, reused.json()["code"]) == (422, "idempotency_key_reused")
