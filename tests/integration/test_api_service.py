"""The service's own pages, overload, and the worker's process as the supervisor starts it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.integration.api_hub import ApiHub

from mintyard.app.config import Config
from mintyard.credentials import CredentialStore

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def metrics_with(client: httpx.Client, line: str) -> str:
    """The metrics once they say `line`: what they count of jobs is a second old at most."""
    deadline = time.monotonic() + 20
    while line not in (text := client.get("/metrics").text):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    return text


def test_health_readiness_and_metrics(tmp_path: Path) -> None:
    hub = ApiHub(tmp_path).start()
    hub.onboard("acme")
    hub.add_node()
    with hub.client(hub.mint("acme")) as client:
        assert client.get("/health").json() == {"status": "alive"}
        ready = client.get("/ready")
        assert ready.status_code == 200
        assert ready.json()["leader"] is True
        client.post("/api/v1/jobs", json={"launch": {"argv": ["true"]}, "held": True})
        client.get("/api/v1/jobs/1")
        client.get("/api/v1/jobs/2")
        text = metrics_with(client, 'mintyard_jobs{state="held"} 1')
        assert (
            'mintyard_http_request_seconds_count{route="/api/v1/jobs",method="POST",status="201"} 1' in text
        )
        assert 'route="/api/v1/jobs/{job}",method="GET"' in text
        assert 'mintyard_http_problems_total{code="not_found"}' in text
        # From here on the test says what the feed hears.
        feed = hub.application.services.feed
        asyncio.run_coroutine_threadsafe(feed.stop(), hub.loop).result(10)
        assert feed.connected
        # A record that can't exist is refused; while the leader is not heard it may, so the reader is told to come again.
        far = {"min_seq": hub.seq + 1_000_000}
        assert client.get("/api/v1/jobs", params=far).json()["code"] == "invalid_spec"
        feed.connected = False
        late = client.get("/api/v1/jobs", params=far)
        assert (late.status_code, late.json()["code"]) == (503, "not_caught_up")
        assert int(late.headers["retry-after"]) >= 1
        feed.connected = True
        durable, feed.durable_seq = feed.durable_seq, 0
        assert client.get("/api/v1/jobs", params=far).json()["code"] == "not_caught_up"
        feed.durable_seq = durable
        # The leader goes silent: alive, not ready, and reads stop once a revocation could have been missed.
        feed.connected = False
        unready = client.get("/ready")
        assert (unready.status_code, unready.json()["leader"]) == (503, False)
        assert int(unready.headers["retry-after"]) >= 1
        feed._lost_at -= 60
        assert client.get("/api/v1/jobs").json()["code"] == "not_leader"
        assert client.get("/health").status_code == 200
    hub.stop()


def test_too_many_requests_are_told_to_come_again(tmp_path: Path) -> None:
    hub = ApiHub(tmp_path, inflight=4).start()
    hub.onboard("acme")
    token = hub.mint("acme")
    wait = {"min_seq": hub.seq + 1_000}  # each waits for two seconds

    def look(_: int) -> httpx.Response:
        with hub.client(token) as client:
            return client.get("/api/v1/jobs", params=wait)

    with ThreadPoolExecutor(12) as threads:
        looking = [threads.submit(look, number) for number in range(12)]
        time.sleep(0.5)
        with hub.client(token) as client:
            assert client.get("/health").status_code == 200
            assert client.get("/metrics").status_code == 200
        codes = sorted(answer.result().json()["code"] for answer in looking)
        retry = {answer.result().headers["retry-after"] for answer in looking}
    assert codes.count("overloaded") == 8
    assert codes.count("not_caught_up") == 4
    assert all(int(value) >= 1 for value in retry)
    hub.stop()


def test_requests_under_way_end_in_peace(tmp_path: Path) -> None:
    hub = ApiHub(tmp_path).start()
    hub.onboard("acme")
    found: list[httpx.Response] = []
    with hub.client(hub.mint("acme")) as client:
        client.get("/health")
        wait = {"min_seq": hub.seq + 1_000}
        looking = threading.Thread(target=lambda: found.append(client.get("/api/v1/jobs", params=wait)))
        looking.start()
        time.sleep(0.5)
        hub.stop()
        looking.join(20)
    assert found[0].json()["code"] == "not_caught_up"


def test_a_whole_hub_of_processes(tmp_path: Path) -> None:
    """`mintyard up` in small: supervisor, writer, projector, planner and two API processes; real jobs with real output."""
    port = free_port()
    config = Config(folder=str(tmp_path), port=port, workers=2, log_level="warning")
    (tmp_path / "up.py").write_text(
        "import sys, msgspec\nfrom mintyard.app.config import Config\nfrom mintyard.app.supervisor import run\n"
        "sys.exit(run(msgspec.json.decode(sys.argv[1].encode(), type=Config)))\n"
    )
    text = json.dumps({"folder": config.folder, "port": port, "workers": 2, "log_level": "warning"})
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    up = subprocess.Popen([sys.executable, str(tmp_path / "up.py"), text], env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=30) as client:
            wait_until_ready(client, up)
            token = CredentialStore(tmp_path / "admin").credential("admin").token
            client.headers["authorization"] = f"Bearer {token}"
            for body in (
                {"path": "accounts", "account": "acme"},
                {"path": "grants", "account": "acme", "unit": "money", "amount": "100"},
            ):
                path = body.pop("path")
                assert client.post(f"/api/v1/{path}", json=body).status_code == 201
            minted = client.post("/api/v1/tokens", json={"account": "acme", "role": "owner"}).json()["token"]
            client.headers["authorization"] = f"Bearer {minted}"
            job = {"launch": {"script": "#!/bin/sh\necho hello\n"}, "time_limit_ms": 60_000, "memory_mib": 64}
            number = client.post("/api/v1/jobs", json=job).json()["job"]
            deadline = time.monotonic() + 60
            while (shown := client.get(f"/api/v1/jobs/{number}").json()).get("state") != "succeeded":
                assert time.monotonic() < deadline, shown
                time.sleep(0.05)
            chunk = client.get(f"/api/v1/jobs/{number}/logs").json()
            assert (chunk["data"], chunk["ended"]) == ("aGVsbG8K", True)
            assert client.get(f"/api/v1/jobs/{number}/receipt").json()["final"] is True
            text = client.get("/metrics").text
            assert "mintyard_durable_seq" in text  # left by the writer's process
            assert "mintyard_read_model_lag_records" in text
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0


def wait_until_ready(client: httpx.Client, up: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while True:
        assert up.poll() is None
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)
