"""Stores shared by real processes: killed in the middle of appends, deposed, and several that want to lead."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from tests.conformance.stores.appender import take_lease
from tests.conformance.stores.backends import DURABLE, Backend, chain_on, make_backend

from mintyard.adapters.stores.sqlite_file import open_file
from mintyard.app.journal import verify_store

ROOT = Path(__file__).parents[2]
LIFE_MS = 60_000


@pytest.fixture(params=DURABLE)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with make_backend(request.param, tmp_path) as made:
        yield made


@contextmanager
def appender(mode: str, url: str, holder: str, life_ms: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.stores.appender", mode, url, holder, str(life_ms)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def step(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return line(process)


@pytest.mark.slow
def test_kill_9_in_the_middle_of_appends_loses_nothing_acknowledged(backend: Backend) -> None:
    """Six leaders one after the other, each killed while it appends. What the next one finds is a whole prefix that
    holds every record whose append had returned."""
    acknowledged = 0
    for kill in range(6):
        # The same holder name: a restart of the same leader need not wait for its own lease.
        with appender("stream", backend.url, "hub-1", LIFE_MS) as process:
            assert [line(process), line(process)] == [["open"], ["term", str(kill + 1)]]
            for _ in range(3 + 17 * kill):
                acknowledged = int(line(process)[1])
            process.send_signal(signal.SIGKILL)
            assert process.stdout is not None
            rest = process.stdout.read()
        # The last line may be torn by the kill only if it lacks its end; a whole one was an acknowledgement.
        for text in rest.split("\n")[:-1]:
            acknowledged = int(text.split()[1])
        store = backend.open()
        report = verify_store(store)
        assert report.last_seq >= acknowledged
        assert report.last_term == kill + 1
        store.seal(report.last_seq - 10)
        assert verify_store(store) == report
        store.close()


@pytest.mark.slow
def test_a_deposed_leader_in_another_process_is_fenced(backend: Backend) -> None:
    store = backend.open()
    with appender("step", backend.url, "hub-1", 200) as process:
        assert [line(process), line(process)] == [["open"], ["term", "1"]]
        assert step(process) == ["ack", "1"]
        lease = take_lease(store, "hub-2", LIFE_MS)
        assert lease.term == 2
        assert step(process) == ["fenced", "1", "2"]
        store.append(lease.term, chain_on(store.head(), 1, lease.term))
        assert step(process) == ["fenced", "1", "2"]
    assert verify_store(store).last_seq == 2


@pytest.mark.slow
def test_a_stopped_leader_wakes_up_fenced(backend: Backend) -> None:
    """It was suspended, not dead: its lease ran out meanwhile, and it doesn't know."""
    store = backend.open()
    with appender("step", backend.url, "hub-1", 300) as process:
        assert [line(process), line(process)] == [["open"], ["term", "1"]]
        process.send_signal(signal.SIGSTOP)
        lease = take_lease(store, "hub-2", LIFE_MS)
        store.append(lease.term, chain_on(None, 1, lease.term))
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        assert line(process) == ["fenced", "1", "2"]
    assert verify_store(store).last_seq == 1


@pytest.mark.slow
def test_processes_that_take_turns_make_one_chain(backend: Backend) -> None:
    lines: list[str] = []
    with (
        appender("contend", backend.url, "hub-1", 2_000) as one,
        appender("contend", backend.url, "hub-2", 2_000) as two,
        appender("contend", backend.url, "hub-3", 2_000) as three,
    ):
        for process in (one, two, three):
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0
            lines += out.splitlines()
    acks = sorted(int(text.split()[1]) for text in lines if text.startswith("ack"))
    report = verify_store(backend.open())
    # Acknowledged twice, or kept without an acknowledgement, would both show here.
    assert acks == list(range(1, report.last_seq + 1))
    assert report.last_term == 24


@pytest.mark.slow
def test_first_starts_at_once_make_one_store(backend: Backend) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(appender("step", backend.url, f"hub-{i}", LIFE_MS)) for i in range(4)
        ]
        # Nobody errs over the making of the store; one of them leads, and the others wait for its lease.
        assert [line(process) for process in processes] == [["open"]] * 4
        said: queue.Queue[tuple[int, list[str]]] = queue.Queue()
        for i, process in enumerate(processes):
            threading.Thread(target=lambda i=i, p=process: said.put((i, line(p))), daemon=True).start()
        leader, words = said.get(timeout=30)
        assert words == ["term", "1"]
        assert step(processes[leader]) == ["ack", "1"]
        assert said.empty()
        assert [p.poll() for p in processes] == [None] * 4
        assert verify_store(backend.open()).last_seq == 1


def open_and_close(path: Path, ready: Barrier, said: Queue[str]) -> None:
    ready.wait(30)
    try:
        open_file(path, 5_000, read_only=False).close()
    except Exception as error:
        said.put(str(error))
    else:
        said.put("open")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_processes_that_make_one_sqlite_file_at_once_all_get_it(tmp_path: Path) -> None:
    """SQLite refuses a second change to WAL at once, whatever the busy time-out says."""
    context = multiprocessing.get_context("fork")
    for turn in range(30):
        ready, said = context.Barrier(6), context.Queue()
        path = tmp_path / str(turn) / "journal.db"
        processes = [context.Process(target=open_and_close, args=(path, ready, said)) for _ in range(6)]
        for process in processes:
            process.start()
        assert [said.get(timeout=30) for _ in processes] == ["open"] * 6
        for process in processes:
            process.join()
