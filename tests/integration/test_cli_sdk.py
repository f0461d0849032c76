"""Both clients against a real API, and the transport where the network breaks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from tests.integration.api_hub import ApiHub, started

from mintyard.domain import commands as c
from mintyard.domain.errors import (
    AnswerUnreadable,
    HubUnreachable,
    JobNotSucceeded,
    NotFound,
    QuotaExhausted,
    TokenMissing,
    WaitTimeout,
)
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, Outcome
from mintyard.ports.engine import AttemptKey
from mintyard.sdk import AsyncHub, Hub, narrow


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiHub]:
    for running in started(tmp_path_factory.mktemp("hub")):
        running.onboard("acme")
        running.add_node("n1", cpus=64_000, gpus=4)
        yield running


@pytest.fixture
def client(hub: ApiHub) -> Iterator[Hub]:
    with Hub(hub.url, hub.mint("acme", "owner"), fresh=True) as made:
        yield made


def end(hub: ApiHub, job: int, code: int = 0) -> None:
    hub.send(c.Tick())
    hub.send(c.TakeReports("sim", (AttemptStarted(job, 1, "b"),)))
    hub.send(c.TakeReports("sim", (AttemptEnded(job, 1, "b", Outcome.EXITED, code, 0, 60_000, 1_000, 64),)))


def test_a_job_from_submit_to_receipt(hub: ApiHub, client: Hub) -> None:
    job = client.submit(run="python train.py", gpus=1, time="30m", name="train")
    assert job.show().resources.gpus == 1
    assert "Submitted(job=" in repr(job)
    end(hub, job.job)
    hub.logs.kept[AttemptKey(job.job, 1), "stdout"] = b"epoch 1\n" * 3
    hub.logs.ended.add(AttemptKey(job.job, 1))
    assert job.wait(check=True).state == "succeeded"
    assert b"".join(job.logs()) == b"".join(job.logs(follow=True)) == b"epoch 1\n" * 3
    assert float(job.receipt().cost) > 0
    failed = client.submit({"run": "false", "time": "1m"})
    end(hub, failed.job, 3)
    with pytest.raises(JobNotSucceeded, match="exit code 3"):
        failed.wait(check=True)


def test_lists_are_fetched_as_they_are_read(client: Hub) -> None:
    jobs = client.submit(
        [{"run": "true", "name": f"page-{n}", "hold": True, "time": "1m"} for n in range(25)]
    )
    assert len(jobs) == 25
    listing = client.jobs.list(name="page-*", state=["held"])
    assert [len(page.items) for page in listing.pages(10)] == [10, 10, 5]
    assert len({view.job for view in listing}) == len(listing.all()) == 25
    first = listing.first(7)
    assert len(first.items) == 7
    assert first.next


def test_the_same_key_submits_once(client: Hub) -> None:
    from mintyard.sdk.request import new_key

    key = new_key()
    made = [client.submit(run="true", hold=True, name="once", time="1m", key=key).job for _ in range(3)]
    assert len(set(made)) == 1


def test_errors_are_those_of_the_hub(hub: ApiHub, client: Hub) -> None:
    with pytest.raises(QuotaExhausted) as caught:
        client.submit(run="true", gpus=4, time="100d")
    assert caught.value.params["account"] == "acme"
    with pytest.raises(NotFound):
        client.jobs.show(999_999)
    held = client.submit(run="true", hold=True, time="1m")
    with pytest.raises(WaitTimeout):
        held.wait(0.05)
    with Hub(hub.url, "") as nobody, pytest.raises(TokenMissing):
        nobody.whoami()


def test_narrowed_without_the_hub_and_used_with_it(hub: ApiHub, client: Hub) -> None:
    keys = client.tokens.keys()
    made = narrow(client.address.token, keys, role="job", life="5m")
    with Hub(hub.url, made) as less:
        assert less.whoami().scopes == ("job:read",)
    assert client.tokens.verify(made, keys).scopes == {"job:read"}
    assert len(client.tokens.inspect(made, keys).blocks) == 2


def test_watching_resumes_without_loss(hub: ApiHub, client: Hub) -> None:
    before = hub.seq
    job = client.submit(run="true", hold=True, time="1m")
    with closing(client.watch(job=job.job, after=before)) as events:
        first = next(events)
    job.cancel()
    with closing(client.watch(job=job.job, after=before)) as events:
        again, second = next(events), next(events)
    assert again.id == first.id
    assert second.id != first.id


async def test_the_asynchronous_client_does_the_same(hub: ApiHub) -> None:
    async with AsyncHub(hub.url, hub.mint("acme", "owner")) as client:
        job = await client.submit(run="true", time="1m", name="async")
        end(hub, job.job)
        hub.logs.kept[AttemptKey(job.job, 1), "stdout"] = b"done\n"
        hub.logs.ended.add(AttemptKey(job.job, 1))
        assert (await job.wait(10)).state == "succeeded"
        assert [piece async for piece in job.logs(follow=True)] == [b"done\n"]
        assert job.job in [view.job async for view in client.jobs.list(name="async")]
        assert [account.account for account in await client.accounts.list().all()] == ["acme"]
        assert (await client.quote(run="true", gpus=1, time="1h")).refusal is None
        async for event in client.watch(job=job.job, after=0):
            assert event.job == job.job
            break
        with pytest.raises(NotFound):
            await client.jobs.show("999999_1")


# --- the network ----------------------------------------------------------------------------------------------------


class Breaking(httpx.HTTPTransport):
    """A real transport that loses the answers to the first requests it carried."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost
        self.keys: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.keys.append(request.headers.get("idempotency-key", ""))
        response = super().handle_request(request)
        if self.lost:
            self.lost -= 1
            response.close()
            raise httpx.ReadError("the connection broke")
        return response


def test_a_lost_answer_does_not_submit_twice(hub: ApiHub) -> None:
    transport = Breaking(2)
    with Hub(hub.url, hub.mint("acme", "owner"), transport=transport) as client:
        job = client.submit(run="true", hold=True, name="lost-once", time="1m")
        assert len(set(transport.keys)) == 1
        assert len(transport.keys) == 3
        assert [view.job for view in client.jobs.list(name="lost-once")] == [job.job]


def answering(payload: bytes) -> tuple[str, threading.Thread]:
    """A server of one answer, which need not be HTTP."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening:
            taken, _ = listening.accept()
            with taken:
                taken.recv(65_536)
                taken.sendall(payload)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}", thread


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"SSH-2.0-OpenSSH\r\n", HubUnreachable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", AnswerUnreadable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello", HubUnreachable),
        (
            b"HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            AnswerUnreadable,
        ),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", HubUnreachable),
        (b"", HubUnreachable),
    ],
)
def test_something_else_answers(payload: bytes, kind: type[Exception]) -> None:
    url, thread = answering(payload)
    with Hub(url, "token", retry_s=0.0, timeout_s=5.0) as client, pytest.raises(kind):
        client.whoami()
    thread.join()
