"""Waiting: for jobs to end, with a progress bar on a terminal; Ctrl-C leaves the jobs running and says so."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from mintyard.cli.printer import Printer
from mintyard.domain.errors import Exit, WaitTimeout
from mintyard.sdk.outcome import exit_status, has_ended, how
from mintyard.wire.submissions import JobView

if TYPE_CHECKING:
    from mintyard.sdk.sync.hub import Hub

INTERRUPTED = 130
_FIRST_LOOK_S = 0.1
_LONGEST_LOOK_S = 2.0


def wait_for(
    hub: Hub, jobs: Sequence[int | str], printer: Printer, *, timeout_s: float | None = None, show: bool = True,
    passthrough: bool = False,
) -> int:  # fmt: skip
    """Wait until all `jobs` have ended. The exit status of the first, in the order given, that did not succeed; with
    `passthrough` its process's own exit code."""
    try:
        views = _ended(hub, jobs, printer, timeout_s)
    except KeyboardInterrupt:
        names = " ".join(map(str, jobs))
        printer.remark(f"interrupted; still there: mintyard job wait {names} | mintyard job cancel {names}")
        return INTERRUPTED
    if show and printer.is_json:
        printer.json(views[0] if len(views) == 1 else {"items": views})
    elif show and not printer.quiet:
        for view in views:
            printer.line(f"Job {view.label} {view.state}{how(view)}")
    worst = next((view for view in views if view.state != "succeeded"), None)
    if worst is None:
        return Exit.OK
    if passthrough and worst.exit_code:
        return worst.exit_code
    return exit_status(worst)


def _ended(hub: Hub, jobs: Sequence[int | str], printer: Printer, timeout_s: float | None) -> list[JobView]:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    views: dict[int | str, JobView] = {}
    pause_s = _FIRST_LOOK_S
    with _bar(len(jobs)) if _shows(printer) else nullcontext() as bar:
        while True:
            for job in jobs:
                if job not in views or not has_ended(views[job]):
                    views[job] = hub.jobs.show(job)
            waiting = [view for view in views.values() if not has_ended(view)]
            if bar is not None:
                _advance(bar, views.values())
            if not waiting:
                return [views[job] for job in jobs]
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(what=f"The end of job {waiting[0].label}", seconds=timeout_s)
            left_s = pause_s if deadline is None else max(0.0, deadline - time.monotonic())
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, _LONGEST_LOOK_S)


def _shows(printer: Printer) -> bool:
    return sys.stderr.isatty() and not printer.quiet and not printer.is_json


def _bar(total: int) -> Any:
    """A progress bar on stderr; loaded only where somebody sees it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:g}/{task.total:g}"))
    bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    bar.add_task("waiting", total=total)
    return bar


def _advance(bar: Any, views: Any) -> None:
    """Jobs count as one each, arrays by their tasks; what is happening stands before the bar."""
    done = total = 0
    states: dict[str, int] = {}
    for view in views:
        counts = view.tasks or {view.state: 1}
        total += sum(counts.values())
        for state, number in counts.items():
            states[state] = states.get(state, 0) + number
            done += number if state in ("succeeded", "failed", "timed_out", "cancelled", "skipped") else 0
    shown = ", ".join(f"{number} {state}" for state, number in sorted(states.items()) if number)
    bar.update(bar.task_ids[0], completed=done, total=total, description=shown)
