"""The client's side: the hub doesn't answer, a job did not succeed, or the command line can't be followed."""

from __future__ import annotations

from mintyard.domain.errors.families import Broken, Conflict, Exit, Refused, Unavailable


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
    """`params` has `state`, `exit_code`, `signal`; an instance's exit status is that of the job's end."""

    code = "job_not_succeeded"
    exit_status = Exit.JOB_FAILED
    message = "Job {job} ended as {state}{how}."
    remedy = "Look at its output: `mintyard job logs {job}`."


class UsageInvalid(Refused):
    code = "usage_invalid"
    status = 400
    exit_status = Exit.USAGE
    message = "{why}."
    remedy = "See `{command} --help`."


class ExtraMissing(Refused):
    code = "extra_missing"
    status = 501
    exit_status = Exit.USAGE
    message = (
        "`{command}` needs the server half of mintyard, which is not installed here ({module} is missing)."
    )
    remedy = "Install it with `pip install 'mintyard[hub]'`."


class FileUnreadable(Refused):
    code = "file_unreadable"
    status = 400
    exit_status = Exit.USAGE
    message = "{path} can't be read: {why}."
    remedy = "Check the name and who may read it; `-` is standard input."
