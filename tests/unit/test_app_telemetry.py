"""Logs without secrets, metrics with names and units, kernels' cache, warm-up."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from mintyard.app.kernel_cache import ENV_CACHE, source_hash, use_kernel_cache
from mintyard.app.warmup import warm_up
from mintyard.domain.commands import Submit, Tick
from mintyard.domain.errors import Overloaded, Problem
from mintyard.domain.replies import Batch, Done, Refusal
from mintyard.telemetry.logs import configure_logs, mask
from mintyard.telemetry.metrics import WriterMetrics, ledger_lines, published

TOKEN = "mint_" + "Zx9-_" * 60


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    made = io.StringIO()
    yield made
    structlog.reset_defaults()
    logging.getLogger().handlers[:], _ = before
    logging.getLogger().setLevel(before[1])


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_gets_into_a_log(stream: io.StringIO, form: str) -> None:
    configure_logs("info", form, "writer", stream)
    log = structlog.get_logger("x")
    log.info(
        "minted " + TOKEN,
        order={"token": "hunter2", "env": [f"MINTYARD_TOKEN={TOKEN}"]},
        authorization="Basic abc",
    )
    log.info("store", url="postgresql://mint:s3cret@db/hub", raw=b"\x00hunter2", deep=[[[[[[[[TOKEN]]]]]]]])
    try:
        raise ValueError(f"Bearer {TOKEN}")
    except ValueError:
        log.exception("failed")
    logging.getLogger("lib").error("header Authorization: Bearer %s", "abcdefghijkl")
    text = stream.getvalue()
    for secret in (TOKEN, TOKEN[5:40], "hunter2", "s3cret", "abcdefghijkl"):
        assert secret not in text
    assert text.count("writer") >= 3
    assert "ValueError" in text


def test_json_lines_are_json(stream: io.StringIO) -> None:
    configure_logs("info", "json", "api", stream)
    structlog.get_logger().info("hello", seq=3, tokens=5)
    structlog.get_logger().debug("unheard")
    logging.getLogger("other").warning("from %s", "elsewhere")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first == first | {"event": "hello", "seq": 3, "tokens": 5, "process": "api", "level": "info"}
    assert second["event"] == "from elsewhere"


def test_mask_keeps_what_is_harmless() -> None:
    plain: dict[str, Any] = {
        "job": 3,
        "name": "train-1",
        "nested": [1.5, None, True, "mint_short"],
        "input_tokens": 9,
    }
    assert mask(plain) == plain


def test_metrics_count_by_kind_and_code() -> None:
    metrics = WriterMetrics()
    metrics.watch("commands_waiting", "Waiting.", lambda: 7)
    refusal = Refusal(Problem("quota_exhausted"))
    partly = Batch((Done(), Problem("not_found")))
    replies: list[Any] = [
        (None, None, reply) for reply in (Done(), refusal, partly, Batch((Problem("infeasible"),)))
    ]
    metrics.ticked(0.003, True, [Submit] * 4, replies)
    metrics.ticked(0.001, False, [Tick], [(None, None, Done())])
    metrics.committed(0.01, 3, 42)
    metrics.failed(Overloaded(retry_after_s=1))
    metrics.engine_failed("local", "poll")
    text = metrics.render()
    for line in (
        'mintyard_commands_total{kind="Submit",outcome="ok"} 1.0',
        'mintyard_commands_total{kind="Submit",outcome="quota_exhausted"} 1.0',
        'mintyard_commands_total{kind="Submit",outcome="partly"} 1.0',
        'mintyard_commands_total{kind="Submit",outcome="infeasible"} 1.0',
        "mintyard_ticks_total 2.0",
        "mintyard_scheduling_rounds_total 1.0",
        "mintyard_records_total 3.0",
        "mintyard_durable_seq 42.0",
        'mintyard_commit_failures_total{code="overloaded"} 1.0',
        'mintyard_engine_errors_total{call="poll",engine="local"} 1.0',
        "mintyard_commands_waiting 7.0",
    ):
        assert line in text.splitlines(), line


def test_what_processes_leave_is_put_together(tmp_path: Path) -> None:
    WriterMetrics().publish(tmp_path / "writer.prom")
    (tmp_path / "planner.prom").write_text(
        ledger_lines({"money": {"held": 5}}, {"gpus_milli": 1}, {"gpus_milli": 2})
    )
    text = published(tmp_path)
    assert 'mintyard_ledger_smallest_units{unit="money",ledger="held"} 5' in text
    assert "mintyard_ticks_total 0.0" in text
    WriterMetrics().publish(tmp_path / "missing" / "writer.prom")  # costs a metric, nothing else
    assert published(tmp_path / "missing") == ""


def test_the_kernel_cache_is_named_by_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    folder = use_kernel_cache(tmp_path / "fallback")
    assert folder == tmp_path / "user" / "mintyard" / f"kernels-{source_hash()}"
    monkeypatch.setenv(ENV_CACHE, "/chosen")
    assert use_kernel_cache(tmp_path) == Path("/chosen")
    monkeypatch.delenv(ENV_CACHE)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert use_kernel_cache(tmp_path / "fallback") == tmp_path / "fallback" / f"kernels-{source_hash()}"


def test_warming_up_places_something() -> None:
    assert warm_up() > 0
