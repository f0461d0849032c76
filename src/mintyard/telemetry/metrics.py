"""Metrics of the hub's own processes (O1), for Prometheus: names begin with `mintyard_` and end with their unit.

The writer's process counts; it leaves its text in a folder, from which whichever API process is scraped takes it, so that one
port shows everything. No label may hold what a caller chose.
"""

from __future__ import annotations

import os
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mintyard.domain.errors import MintyardError, Problem
from mintyard.domain.replies import Batch, Refusal

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
PUBLISHED: Final = "*.prom"


class WriterMetrics:
    """What the writer and its dispatch did. An `Observer` of the writer: called once a tick or commit, never per command."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.ticks = Counter("mintyard_ticks", "Ticks decided.", registry=registry)
        self.rounds = Counter("mintyard_scheduling_rounds", "Scheduling rounds planned.", registry=registry)
        self.tick_seconds = Histogram(
            "mintyard_tick_seconds", "Time that a tick took to decide.", buckets=_SECONDS, registry=registry
        )
        self.commands = Counter(
            "mintyard_commands",
            "Commands by kind and outcome (ok, or the error's code).",
            ["kind", "outcome"],
            registry=registry,
        )
        self.commits = Counter("mintyard_commits", "Appends to the journal.", registry=registry)
        self.records = Counter("mintyard_records", "Records written to the journal.", registry=registry)
        self.commit_seconds = Histogram(
            "mintyard_commit_seconds", "Time from hand-over to durable.", buckets=_SECONDS, registry=registry
        )
        self.failures = Counter(
            "mintyard_commit_failures",
            "States discarded or leadership lost, by the error's code.",
            ["code"],
            registry=registry,
        )
        self.durable_seq = Gauge("mintyard_durable_seq", "The last durable record.", registry=registry)
        self.engine_errors = Counter(
            "mintyard_engine_errors", "Failed calls to an engine.", ["engine", "call"], registry=registry
        )
        self._gauges: list[tuple[Gauge, Callable[[], float]]] = []

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Show `read()` as the gauge `mintyard_NAME` whenever the text is made."""
        self._gauges.append((Gauge("mintyard_" + name, help_text, registry=self.registry), read))

    # --- Observer ---------------------------------------------------------------------------------------------------

    def ticked(
        self, seconds: float, planned: bool, kinds: list[type], replies: list[tuple[Any, Any, Any]]
    ) -> None:
        self.ticks.inc()
        self.tick_seconds.observe(seconds)
        if planned:
            self.rounds.inc()
        tally = Tally(
            (kind.__name__, outcome_of(reply)) for kind, (_, _, reply) in zip(kinds, replies, strict=True)
        )
        for (kind, outcome), count in tally.items():
            self.commands.labels(kind, outcome).inc(count)

    def committed(self, seconds: float, records: int, durable_seq: int) -> None:
        self.commits.inc()
        self.records.inc(records)
        self.commit_seconds.observe(seconds)
        self.durable_seq.set(durable_seq)

    def failed(self, error: MintyardError) -> None:
        self.failures.labels(error.code).inc()

    def engine_failed(self, engine: str, what: str) -> None:
        self.engine_errors.labels(engine, what).inc()

    # --- text -------------------------------------------------------------------------------------------------------

    def render(self) -> str:
        for gauge, read in self._gauges:
            gauge.set(read())
        return generate_latest(self.registry).decode()

    def publish(self, path: Path) -> None:
        """Leave the text at `path`, replaced whole."""
        leave(path, self.render())


def outcome_of(reply: Any) -> str:
    """`ok`, or the code of the refusal; a batch in which something was refused is `partly`."""
    if isinstance(reply, Refusal):
        return reply.problem.code
    if isinstance(reply, Batch):
        refused = sum(isinstance(part, Problem) for part in reply.parts)
        if refused == 1 == len(reply.parts):
            only = reply.parts[0]
            return only.code if isinstance(only, Problem) else "ok"
        return "partly" if refused else "ok"
    return reply.code if isinstance(reply, MintyardError) else "ok"


def ledger_lines(
    ledger: Mapping[str, Mapping[str, str]], used: Mapping[str, int], total: Mapping[str, int]
) -> str:
    """The ledger's totals by unit and ledger account in smallest units, and what the nodes have and give, as text."""
    lines = [
        "# HELP mintyard_ledger_smallest_units Sums over the whole hub, by unit and ledger account.",
        "# TYPE mintyard_ledger_smallest_units gauge",
    ]
    for unit, by_account in sorted(ledger.items()):
        lines += [
            f'mintyard_ledger_smallest_units{{unit="{unit}",ledger="{account}"}} {amount}'
            for account, amount in sorted(by_account.items())
        ]
    for name, help_text, amounts in (("used", "in use", used), ("total", "that the nodes have", total)):
        lines += [
            f"# HELP mintyard_resources_{name} Resources {help_text}.",
            f"# TYPE mintyard_resources_{name} gauge",
        ]
        lines += [
            f'mintyard_resources_{name}{{resource="{what}"}} {n}' for what, n in sorted(amounts.items())
        ]
    return "\n".join(lines) + "\n"


def leave(path: Path, text: str) -> None:
    """Put `text` at `path`, replaced whole; a folder that can't be written costs a metric, nothing else."""
    fresh = path.with_suffix(f".{os.getpid()}.new")
    with suppress(OSError):
        fresh.write_text(text)
        fresh.replace(path)


def published(folder: Path) -> str:
    """Everything that the hub's other processes left in `folder`."""
    texts: list[str] = []
    for path in sorted(folder.glob(PUBLISHED)):
        with suppress(OSError):
            texts.append(path.read_text())
    return "".join(texts)
