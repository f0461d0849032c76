"""The projector as a process: killed at any moment, it goes on and tells the same as one that never stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.read_model_run import Run

from mintyard.app.journal_store import open_store
from mintyard.app.projector import dump, open_projector, rebuild
from mintyard.app.read_model import ReadModel, open_read_model, queries
from mintyard.app.tailer import Tailer

START_S = 180
"""A process that starts on a busy machine."""


def copied(run: Run, url: str, upto: int | None = None) -> None:
    """The run's records in the store at `url`, as far as they are not there yet."""
    store = open_store(url)
    lease = store.acquire("copier", 60_000)
    assert lease is not None
    head = store.head()
    for record in run.store.read(head.seq if head else 0, (upto or 10**6) - (head.seq if head else 0)):
        store.append(lease.term, [record])
    store.release(lease)
    store.close()


CHILD = """
import sys, threading
from mintyard.app.journal_store import open_store
from mintyard.app.projector import run_projector
from mintyard.app.read_model import open_read_model
run_projector(open_store(sys.argv[1]), open_read_model(sys.argv[2], migrate=True), threading.Event())
"""


def projecting(store_url: str, model_url: str) -> subprocess.Popen[bytes]:
    """A projector in a process of its own, which has no end but being killed."""
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, store_url, model_url], env=os.environ | {"PYTHONPATH": path}
    )


def moved_from(model: ReadModel, seq: int) -> int:
    """Where the read model is once the child has projected something more."""
    deadline = time.monotonic() + START_S
    while (now := queries.position(model).seq) <= seq:
        assert time.monotonic() < deadline, "the projector does not start"
        time.sleep(0.002)
    return now


@pytest.mark.slow
def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    run = Run(21)
    run.term = 1
    run.found()
    run.play(400)
    assert run.head is not None
    store_url, model_url = f"sqlite:///{tmp_path}/hub.db", f"sqlite:///{tmp_path}/read.db"
    copied(run, store_url, 20)
    chance = random.Random(5)
    open_read_model(model_url, migrate=True).close()
    reader = open_read_model(model_url)
    reached = 0
    for upto in range(60, 260, 40):
        child = projecting(store_url, model_url)
        copied(run, store_url, upto)
        reached = moved_from(reader, reached)
        time.sleep(chance.uniform(0, 0.05))
        child.kill()
        assert child.wait(10) == -signal.SIGKILL
    copied(run, store_url)
    store, model = open_store(store_url), open_read_model(model_url, migrate=True)
    Tailer(store, open_projector(store, model)).catch_up()
    other = open_read_model(f"sqlite:///{tmp_path}/other.db", migrate=True)
    rebuild(store, other)
    assert dump(model) == dump(other)
    assert queries.totals(model).even
    assert queries.position(model).seq == run.head.seq
    for opened in (store, model, other, reader):
        opened.close()


@pytest.mark.slow
def test_a_reader_in_another_process_sees_its_write(tmp_path: Path) -> None:
    """Writer and reader here, the projector elsewhere: `min_seq` is all that the reader needs."""
    run = Run(22)
    run.term = 1
    run.found()
    store_url, model_url = f"sqlite:///{tmp_path}/hub.db", f"sqlite:///{tmp_path}/read.db"
    copied(run, store_url)
    open_read_model(model_url, migrate=True).close()
    child = projecting(store_url, model_url)
    reader = open_read_model(model_url, wait_ms=30_000)
    try:
        moved_from(reader, 0)
        for _ in range(10):
            run.play(3)
            copied(run, store_url)
            assert run.head is not None
            assert queries.totals(reader, min_seq=run.head.seq).seq == run.head.seq
    finally:
        reader.close()
        child.kill()
        child.wait(10)
