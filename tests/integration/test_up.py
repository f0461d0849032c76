"""`mintyard up`: orderly stop and adoption, one hub a folder, idleness, secrets, and what happens when it can't run.

Real processes throughout. What needs no hub in working order is refused before anything is started.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.crash.evidence import Evidence, script
from tests.crash.live_hub import LiveHub, new_key, processes_of, wait_for
from tests.crash.people import send
from tests.crash.tenants import post

from mintyard.app.bootstrap import ADMIN_FOLDER
from mintyard.credentials import PREFIX
from mintyard.domain.errors import Exit

pytestmark = [pytest.mark.slow, pytest.mark.acceptance]

ENDED = ("succeeded", "failed", "timed_out", "cancelled", "skipped")


@pytest.fixture(scope="module")
def shared_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHub]:
    hub = LiveHub(tmp_path_factory.mktemp("up") / "data", workers=1)
    try:
        hub.start()
        with hub.client() as client:
            post(client, "/accounts", {"account": "acme"})
            post(client, "/grants", {"account": "acme", "unit": "money", "amount": "1000"})
        yield hub
    finally:
        hub.destroy()


@pytest.fixture
def hub(shared_hub: LiveHub) -> LiveHub:
    """A hub that runs, whatever the test before has done to it."""
    assert shared_hub.process is not None
    return shared_hub if shared_hub.process.poll() is None else shared_hub.start()


def submit(client: httpx.Client, command: str) -> int:
    body = {"launch": {"script": command}, "cpus_milli": 100, "memory_mib": 32, "time_limit_ms": 60_000}
    return post(client, "/jobs", body)["job"]


def job_ended(client: httpx.Client, job: int, timeout_s: float = 60.0) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        found = send(client, "GET", f"/jobs/{job}")
        return found.json() if found.is_success and found.json()["state"] in ENDED else None

    return wait_for(ended, timeout_s, f"job {job} has ended", 0.05)


def processor_s(hub: LiveHub) -> float:
    """Processor time that the hub's processes have used so far."""
    assert hub.process is not None
    times = [psutil.Process(pid).cpu_times() for pid in (hub.process.pid, *hub.pids().values())]
    return sum(one.user + one.system for one in times)


def member(hub: LiveHub) -> str:
    with hub.client() as client:
        return post(client, "/tokens", {"account": "acme", "role": "member"})["token"]


# --- a hub in working order -----------------------------------------------------------------------------------------


def test_a_second_hub_in_the_folder_is_refused(hub: LiveHub) -> None:
    assert hub.process is not None
    second = LiveHub(hub.folder, port=hub.port, workers=1)
    second.log = hub.folder.parent / "second.log"
    process = second.launch()
    assert process.wait(60) == Exit.CONFLICT
    said = second.tail()
    assert str(hub.folder) in said
    assert str(hub.process.pid) in said
    assert "Traceback" not in said
    hub.wait_until_it_answers(5)
    assert len(hub.pids()) == 4


def test_an_idle_hub_rests(hub: LiveHub) -> None:
    """Nothing in the journal, and next to no processor time."""

    def seq() -> int:
        with hub.client() as client:
            return client.get("/journal").json()["seq"]

    before = wait_for(lambda: _same_after(seq, 1.0), 30, "the journal comes to rest")
    began, used = time.monotonic(), processor_s(hub)
    time.sleep(6)
    share = (processor_s(hub) - used) / (time.monotonic() - began)
    assert seq() == before
    assert share < 0.15, f"an idle hub takes {share:.1%} of a core"


def _same_after(look: Any, wait_s: float) -> Any:
    first = look()
    time.sleep(wait_s)
    return first if look() == first else None


def test_no_token_is_left_in_any_file(hub: LiveHub, tmp_path: Path) -> None:
    """Neither the administrator's, nor one that was minted, nor a job's own; only the credentials file has the first."""
    minted, own = member(hub), tmp_path / "own-token"
    with hub.client(minted) as client:
        job = submit(client, f'echo "$MINTYARD_TOKEN" > {own}; echo done\n')
        assert job_ended(client, job)["state"] == "succeeded"
        refused = client.get("/whoami", headers={"authorization": f"Bearer {minted[:-4]}AAAA"})
        assert refused.status_code == 401
    tokens = {"admin": hub.admin.token, "minted": minted, "job": own.read_text().strip()}
    assert all(token.startswith(PREFIX) and len(token) > 100 for token in tokens.values())
    # The text, a part of it from its signatures, and the signatures' bytes as a database might hold them.
    needles = {
        name: (token.encode(), token[-60:-20].encode(), urlsafe_b64decode(token[-64:-20])[3:-3])
        for name, token in tokens.items()
    }
    credential_files = {hub.folder / folder / "credentials.json" for folder in (ADMIN_FOLDER, "home")}
    searched = 0
    for path in sorted(hub.folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            searched += 1
            if path in credential_files:
                assert path.stat().st_mode & 0o077 == 0, f"{path} can be read by others"
                continue
            found = [name for name, parts in needles.items() if any(part in content for part in parts)]
            assert not found, f"{path} holds the token of {found}"
    assert searched > 15
    assert any(path.exists() and tokens["admin"].encode() in path.read_bytes() for path in credential_files)


def test_jobs_go_on_over_an_orderly_stop(hub: LiveHub) -> None:
    """TERM ends the hub, not its jobs; the next start takes them up as they are, and what ended meanwhile."""
    ledger = hub.folder.parent / "evidence"
    with hub.client(member(hub)) as client:
        long, short = (submit(client, script(ledger, sleep_s)) for sleep_s in (12.0, 1.5))
        wait_for(lambda: len(Evidence(ledger).running()) == 2, 30, "both jobs run")
        pids = Evidence(ledger).running()
    assert hub.stop() == Exit.OK
    assert not hub.pids()
    left = {process.pid for process in processes_of(hub.folder)}
    assert pids[long, 1] in left, "the long job must go on"
    wait_for(lambda: (short, 1) not in Evidence(ledger).running(), 10, "the short job ends without a hub")
    hub.start()
    # Wall time would tell how busy the machine is; what a start costs is what its five processes work for it.
    assert processor_s(hub) < 35
    with hub.client() as client:
        for job in (long, short):
            shown = job_ended(client, job)
            (run,) = Evidence(ledger).runs[job, 1]
            assert (shown["state"], shown["attempt"], run.natural) == ("succeeded", 1, True)
            assert (run.pid, run.ended_pid) == (pids[job, 1],) * 2
            assert shown["run_ms"] >= (run.ended - run.began) // 1_000_000 - 1
    assert "stopped=0" in hub.tail(200) or '"stopped": 0' in hub.tail(200)


def test_a_supervisor_that_is_killed_takes_its_processes_along(hub: LiveHub) -> None:
    """So that the next start finds folder and port free."""
    assert hub.process is not None
    children = psutil.Process(hub.process.pid).children()
    assert len(children) == 4
    hub.process.send_signal(signal.SIGKILL)
    hub.process.wait()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


# --- what can't be run ----------------------------------------------------------------------------------------------


def refused(hub: LiveHub, timeout_s: float = 60.0) -> tuple[int, str]:
    """Exit status and what it said of a hub that must not come up; nothing of it is left."""
    process = hub.launch()
    try:
        status = process.wait(timeout_s)
    finally:
        hub.destroy()
    return status, hub.tail()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, said = refused(LiveHub(tmp_path / "data", port=port))
    assert status == Exit.USAGE
    assert f"127.0.0.1:{port}" in said
    assert "in use" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("port = [", "can't be read"),
        ("port = 70000", "port"),
        ("prot = 8080", "Did you mean port?"),
        ('log_level = "loud"', "log_level"),
        ('engine = "slurmish"', "slurmish"),
        ("engine_options = {nodes = [{name = 7}]}", "node"),
    ],
)
def test_a_bad_configuration(tmp_path: Path, text: str, named: str) -> None:
    hub = LiveHub(tmp_path / "data")
    port = "" if text.startswith("port") else f"port = {hub.port}\n"
    (hub.folder / "mintyard.toml").write_text(f"{port}{text}\n")
    status, said = refused(hub)
    assert status == Exit.USAGE, said
    assert named in said
    assert "Traceback" not in said


def test_a_folder_that_can_t_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    hub = LiveHub(tmp_path / "data")
    hub.environment["MINTYARD_FOLDER"] = str(tmp_path / "file" / "hub")
    status, said = refused(hub)
    assert status == Exit.USAGE
    assert str(tmp_path / "file") in said
    assert "Traceback" not in said


def test_a_folder_that_can_t_be_written(tmp_path: Path) -> None:
    hub = LiveHub(tmp_path / "data")
    if os.getuid() == 0:  # which may write everywhere, unless it gives that right away
        rights = "-dac_override,-dac_read_search"
        hub.wrapper = ("setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}")
    hub.folder.chmod(0o500)
    hub.log = tmp_path / "log"
    try:
        status, said = refused(hub)
    finally:
        hub.folder.chmod(0o700)
    assert status == Exit.USAGE
    assert str(hub.folder) in said
    assert "Traceback" not in said


def test_damaged_keys_end_the_start_with_the_reason(tmp_path: Path) -> None:
    """It must not found a second hub over the first one's keys."""
    hub = LiveHub(tmp_path / "data", restart_pause_s=0.1)
    keys = hub.folder / "keys"
    keys.mkdir(mode=0o700)
    (keys / "keys.json").write_text("{not a key ring")
    (keys / "keys.json").chmod(0o600)
    status, said = refused(hub)
    assert status == Exit.BROKEN
    assert "keys.json" in said
    assert "Traceback" not in said
    assert (keys / "keys.json").read_text() == "{not a key ring"


# --- a disk that fills up -------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", mount], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("can't mount a small disk here")
    yield mount
    subprocess.run(["umount", "-l", mount], check=False)


def test_a_full_disk_refuses_and_loses_nothing(small_disk: Path) -> None:
    """What was acknowledged stays, what can't be written is not acknowledged, and with room it goes on by itself."""
    hub = LiveHub(small_disk / "data", workers=1)
    hub.log = small_disk.parent / "hub.log"
    body = {
        "launch": {"argv": ["true"]},
        "cpus_milli": 100,
        "memory_mib": 32,
        "held": True,
        "name": "x" * 100,
    }
    try:
        hub.start()
        with hub.client() as client:
            post(client, "/accounts", {"account": "acme"})
            post(client, "/grants", {"account": "acme", "unit": "money", "amount": "1000000"})
        with hub.client(member(hub)) as client:
            taken = [post(client, "/jobs", body)["job"]]
            filler = small_disk / "filler"
            _fill(filler)
            refused: list[str] = []
            for _ in range(200):
                answer = client.post("/jobs", json=body, headers={"idempotency-key": new_key()})
                if answer.is_success:
                    taken.append(answer.json()["job"])
                else:
                    assert answer.status_code == 503, answer.text
                    assert "retry-after" in answer.headers
                    refused.append(answer.json()["code"])
                    if len(refused) >= 3:
                        break
                _fill(filler)
            assert refused, "a full disk must refuse at some time"
            filler.unlink()
            later = send(client, "POST", "/jobs", body, new_key(), patience_s=60)
            assert later.status_code == 201, later.text
            taken.append(later.json()["job"])
            for job in taken:
                found = send(client, "GET", f"/jobs/{job}?min_seq={later.json()['seq']}", patience_s=60)
                assert found.status_code == 200, found.text
        assert hub.process is not None
        assert hub.process.poll() is None
        assert hub.stop() == Exit.OK
        assert not re.search(r"Traceback", hub.tail(500)), hub.tail(500)
    finally:
        hub.destroy()


def _fill(filler: Path) -> None:
    """Write until there is no room."""
    with filler.open("ab") as file:
        for size in (1 << 16, 4_096):
            try:
                while True:
                    os.write(file.fileno(), b"\0" * size)
            except OSError:
                continue
