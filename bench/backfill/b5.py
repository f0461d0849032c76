"""B5: backfill on KTH-SP2, average bounded slowdown (threshold 10 s), through the production round.

`easy` and `easy_exact` reproduce published figures; `ours` is EASY with the order by response ratio over run times predicted
online from what ended before, nothing else known. Reservations always go by requested times.

`--part tune` is the first half of the log, which is what was looked at to choose; `--part conservative` is conservative backfill,
slow with its 32 reservations a round; `--quick` takes the first 4,000 jobs, whose figures compare only among themselves.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np

from bench.backfill.replay import KTH, LUBLIN, Estimates, Log, Schedule, read_log, replay
from bench.report import finish, table
from mintyard.domain.scheduling.choices import Backfill, Order
from mintyard.domain.scheduling.round import Rules
from mintyard.domain.scheduling.scoring import Policy
from mintyard.domain.scheduling_round import rules_of

TAU_S = 10
NEVER_MS = 1 << 50
"""Patience without end: only the first who does not fit reserves, as in EASY."""
EASY = Rules(backfill=Backfill.EASY, reservations=1, patience_ms=NEVER_MS)
SJBF = Rules(backfill=Backfill.EASY, reservations=1, patience_ms=NEVER_MS, shortest_first=True)
RATIO = Rules(
    backfill=Backfill.EASY,
    reservations=1,
    patience_ms=NEVER_MS,
    order=Order.RESPONSE_RATIO,
    shortest_first=True,
)
HUB = rules_of(4_096, Policy.STRANDED, Backfill.EASY, Order.RESPONSE_RATIO)
"""What a hub does with `backfill=easy` and `order=response_ratio`."""
CONSERVATIVE = Rules(backfill=Backfill.CONSERVATIVE)


class Case(NamedTuple):
    """One line: its figure's name, what it is, rules, what is known of run times, the published figure."""

    figure: str
    label: str
    rules: Rules
    estimates: Estimates = Estimates.REQUESTED
    published: str = "-"


CASES = (
    Case("easy", "EASY, requested times", EASY, published="92.58"),
    Case("easy_exact", "EASY, exact times", EASY, Estimates.EXACT, "71.72"),
    Case("ours", "response ratio, learned", RATIO),
    Case("hub", "the same as a hub runs it", HUB),
    Case("ratio_requested", "response ratio, requested times", RATIO, Estimates.UNLEARNED),
    Case("ratio_exact", "response ratio, exact times", RATIO, Estimates.EXACT),
    Case("sjbf", "EASY-SJBF, requested times", SJBF, Estimates.UNLEARNED, "69.41"),
    Case("sjbf_exact", "EASY-SJBF, exact times", SJBF, Estimates.EXACT, "49.85"),
)
SLOW = Case("conservative", "conservative, requested times", CONSERVATIVE, Estimates.UNLEARNED)
QUICK = ("easy", "easy_exact", "ours")


def slowdowns(log: Log, schedule: Schedule) -> Any:
    """Bounded slowdown of each job."""
    run_s = np.array([job.run_s for job in log.jobs], np.int64)
    return np.maximum(1.0, (schedule.wait_s + run_s) / np.maximum(run_s, TAU_S))


def run(given: argparse.Namespace) -> None:
    missing = [name for name in (KTH,) if not (given.data / name).exists()]
    if missing:
        where = "the Parallel Workloads Archive (KTH-SP2); a filtered copy is in algo74/predictsim on GitHub, data/swf_filtered"
        raise SystemExit(f"{given.data} has no {', '.join(missing)}; it comes from {where}")
    figures: dict[str, float] = {}
    log = read_log(given.data / KTH, most=4_000 if given.quick else 10**9)
    if given.part == "tune":
        half = Log(log.jobs[: len(log.jobs) // 2], log.procs)
        _cases(figures, "first half of KTH-SP2", half, CASES)
    elif given.part == "conservative":
        _cases(figures, "KTH-SP2", log, (SLOW,))
    else:
        cases = [case for case in CASES if not given.quick or case.figure in QUICK]
        _cases(figures, "KTH-SP2", log, cases)
        if not given.quick:
            _confirm(figures, given, log)
    finish("B5", figures)


def _confirm(figures: dict[str, float], given: argparse.Namespace, log: Log) -> None:
    """On what was not looked at to choose: the second half of the log, and logs of other machines."""
    chosen = [case for case in CASES if case.figure in ("easy", "ours", "hub")]
    second = Log(log.jobs[len(log.jobs) // 2 :], log.procs)
    _cases(figures, "second half of KTH-SP2", second, chosen, "second_half.")
    if (given.data / LUBLIN).exists():
        other = read_log(given.data / LUBLIN)
        known = [case for case in CASES if case.figure in ("easy", "ratio_requested")]
        title = f"Lublin 256, {len(other.jobs)} jobs, no requested times: run times known"
        _cases(figures, title, other, known, "lublin.")


def _cases(figures: dict[str, float], title: str, log: Log, cases: Any, prefix: str = "") -> None:
    rows: list[list[Any]] = []
    whole = len(log.jobs) > 28_000
    for case in cases:
        began = time.process_time()
        schedule = replay(log, case.rules, case.estimates)
        took_s = time.process_time() - began
        found = slowdowns(log, schedule)
        wait_h = schedule.wait_s / 3_600
        figures[f"{prefix}{case.figure}"] = float(found.mean())
        figures[f"{prefix}{case.figure}_max"] = float(found.max())
        rows.append([
            case.label, f"{found.mean():.2f}", case.published if whole else "-", float(found.max()),
            float(np.percentile(found, 99)), float(wait_h.mean()), float(wait_h.max()), f"{fairness(found):.3f}",
            float(1e6 * took_s / schedule.rounds),
        ])  # fmt: skip
        print(f"  {title}: {case.label}: {found.mean():.2f}", flush=True)
        if case.figure == "ours":
            errors = schedule.history.errors
            share = errors.absolute_ms / max(1, errors.limit_absolute_ms)
            figures[f"{prefix}prediction_error_ratio"] = share
            figures[f"{prefix}fairness"] = fairness(found)
    header = [
        f"{title}, {log.procs} processors", "average", "published", "max", "p99", "wait mean h", "wait max h",
        "Jain", "CPU us/round",
    ]  # fmt: skip
    print(table(header, rows), flush=True)


def fairness(found: Any) -> float:
    """Jain's index of the jobs' log slowdowns: 1 when all are slowed alike."""
    values = 1 + np.log(found)
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))
