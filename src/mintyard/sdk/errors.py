"""Errors that only a client meets: the hub doesn't answer, or what answers is something else."""

from __future__ import annotations

from mintyard.domain.errors import Broken, Conflict, Exit, Unavailable


class HubUnreachable(Unavailable):
    code = "hub_unreachable"
    message = "The hub at {url} can't be reached: {why}."
    remedy = "Start it with `mintyard up`, or name another with MINTYARD_HUB; `mintyard doctor` looks for the cause."


class AnswerUnreadable(Broken):
    code = "answer_unreadable"
    status = 502
    message = "What answers at {url} can't be understood: {why}."
    remedy = "Check the address; if it is a hub, update the older of both sides."


class JobNotSucceeded(Conflict):
    """A job that was waited for ended otherwise than well; `params` has `state`, `exit_code`, `signal`."""

    code = "job_not_succeeded"
    exit_status = Exit.JOB_FAILED
    message = "Job {job} ended as {state}{how}."
    remedy = "Look at its output: `mintyard job logs {job}`."
