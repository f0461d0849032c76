"""Outcome: how a job ended, for programs and shells."""

from __future__ import annotations

from mintyard.domain.errors import Exit, JobNotSucceeded
from mintyard.wire.submissions import ENDED, JobView

_EXITS = {
    "succeeded": Exit.OK,
    "timed_out": Exit.TIMEOUT,
    "cancelled": Exit.CANCELLED,
    "skipped": Exit.CANCELLED,
}


def has_ended(view: JobView) -> bool:
    """Whether nothing more will happen to the job, or to any task of the array."""
    return view.state in ENDED


def exit_status(view: JobView) -> Exit:
    """The exit status that stands for the job's end; an array that did not succeed as a whole failed."""
    return _EXITS.get(view.state, Exit.JOB_FAILED)


def how(view: JobView) -> str:
    """`, exit code 3` or `, signal 9`, when there is one to tell."""
    if view.signal:
        return f", signal {view.signal}"
    if view.exit_code:
        return f", exit code {view.exit_code}"
    if view.tasks is not None:
        return f" ({', '.join(f'{count} {state}' for state, count in view.tasks.items() if count)})"
    return f" ({view.reason})" if view.reason else ""


def check_outcome(view: JobView) -> JobView:
    """`view` when the job succeeded; else `JobNotSucceeded`, whose exit status is the job's."""
    if view.state == "succeeded":
        return view
    error = JobNotSucceeded(
        job=view.label, state=view.state, how=how(view), exit_code=view.exit_code, signal=view.signal
    )
    error.exit_status = exit_status(view)  # pyright: ignore[reportAttributeAccessIssue] (of this one, not of the class)
    raise error
