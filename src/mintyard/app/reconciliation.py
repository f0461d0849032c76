"""Reconciliation: what an engine runs against what the state says, after a restart of either. Pure.

Nothing is believed from silence: a running attempt that the engine doesn't know is stopped first, which takes its claim, so
that it can never run again; only the engine's answer to that ends it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from mintyard.app.effects import LiveAttempt
from mintyard.domain.jobs.reports import AttemptEnded, Outcome
from mintyard.domain.limits import DEFAULT_GRACE_MS
from mintyard.ports.engine import AttemptKey, StopOrder


class Mending(msgspec.Struct, frozen=True):
    """`start` again (harmless when it runs), `stop`, and of the stopped those that ran and were `lost`."""

    start: tuple[AttemptKey, ...]
    stop: tuple[StopOrder, ...]
    lost: frozenset[AttemptKey]


def compare(known: Collection[AttemptKey], live: Iterable[LiveAttempt]) -> Mending:
    """`known` must have been asked before `live` was looked up, by whoever sends the orders."""
    start: list[AttemptKey] = []
    stop: list[StopOrder] = []
    lost: set[AttemptKey] = set()
    wanted: set[AttemptKey] = set()
    for attempt in live:
        key = attempt.key
        wanted.add(key)
        if attempt.state == "starting":
            if key not in known:
                start.append(key)
        elif attempt.state == "stopping" or key not in known:
            stop.append(StopOrder(key.job, key.attempt, attempt.grace_ms))
            if attempt.state == "running":
                lost.add(key)
    unwanted = sorted(set(known) - wanted, key=lambda key: (key.job, key.attempt))
    stop += [StopOrder(key.job, key.attempt, DEFAULT_GRACE_MS) for key in unwanted]
    return Mending(tuple(start), tuple(stop), frozenset(lost))


def explain_end(report: AttemptEnded, lost: Collection[AttemptKey]) -> AttemptEnded:
    """An attempt that ran, and of which the engine knew nothing any more, was lost with its node's memory of it."""
    if report.outcome is Outcome.NEVER_STARTED and AttemptKey(report.job, report.attempt) in lost:
        why = "the engine no longer knew of the attempt"
        return msgspec.structs.replace(report, outcome=Outcome.NODE_LOST, message=report.message or why)
    return report
