"""Things and their states: what is not there, or can't do that now."""

from __future__ import annotations

from mintyard.domain.errors.families import Conflict, Exit, Refused


class NotFound(Refused):
    code = "not_found"
    status = 404
    exit_status = Exit.NOT_FOUND
    message = "There is no {what} {name}."
    remedy = "List what there is; things of other tenants are not shown."


class AlreadyExists(Conflict):
    code = "already_exists"
    message = "{what} {name} exists already."
    remedy = "Use it, or choose another name."


class WrongState(Conflict):
    code = "wrong_state"
    message = "{what} {name} is {state}; {action} is possible only from {allowed}."
    remedy = "Look at it again; it may have moved on."


class AccountClosed(Refused):
    code = "account_closed"
    status = 403
    exit_status = Exit.FORBIDDEN
    message = "Account {account} is {state}."
    remedy = "Ask the owner of the account above it."


class ChargesChanged(Conflict):
    code = "charges_changed"
    message = "What {account} is charged for has changed since the job was admitted."
    remedy = "Cancel the job and submit it again."


class Infeasible(Refused):
    code = "infeasible"
    status = 422
    exit_status = Exit.INFEASIBLE
    message = "No node could ever run this job: {why}."
    remedy = "{fix}"


class NotAcceptableTime(Refused):
    code = "bad_time"
    status = 422
    exit_status = Exit.USAGE
    message = "{field} is {given}: {why}."
    remedy = "Correct {field}."


class QueueRefuses(Refused):
    code = "queue_refuses"
    status = 403
    exit_status = Exit.FORBIDDEN
    message = "Queue {queue} takes no such job: {why}."
    remedy = "Use a queue that is open to you; the list of queues shows them."


class QueueBusy(Conflict):
    code = "queue_busy"
    message = "Queue {queue} can't be changed so: {why}."
    remedy = "Let its jobs end or cancel them first; it can refuse new ones meanwhile."
