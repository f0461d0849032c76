"""Malformed requests: what the caller must correct before anything is looked at."""

from __future__ import annotations

from mintyard.domain.errors.families import Conflict, Exit, Refused


class InvalidRequest(Refused):
    code = "invalid_request"
    status = 400
    exit_status = Exit.USAGE
    message = "The request is malformed: {why}."
    remedy = "Compare it with the reference at /api/v1/openapi.json."


class ConfigInvalid(Refused):
    code = "config_invalid"
    status = 400
    exit_status = Exit.USAGE
    message = "{source}: {field}: {why}."
    remedy = "Correct it; `mintyard up --help` and docs/reference name every setting.{suggestion}"


class InvalidAmount(Refused):
    code = "invalid_amount"
    status = 422
    exit_status = Exit.USAGE
    message = "{text!r} is no amount of {unit}: {why}."
    remedy = 'Write a plain positive decimal string such as "12.5".'


class InvalidName(Refused):
    code = "invalid_name"
    status = 422
    exit_status = Exit.USAGE
    message = "{name!r} can't name a {what}: {why}."
    remedy = "Choose another name."


class InvalidSpec(Refused):
    code = "invalid_spec"
    status = 422
    exit_status = Exit.USAGE
    message = "{field}: {why}."
    remedy = "Correct {field} and send it again."


class MediaTypeUnsupported(Refused):
    code = "media_type_unsupported"
    status = 415
    exit_status = Exit.USAGE
    message = "A body of {given} is not read here."
    remedy = "Send {allowed}."


class MethodNotAllowed(Refused):
    code = "method_not_allowed"
    status = 405
    exit_status = Exit.USAGE
    message = "{method} is not possible at {path}."
    remedy = "Possible are {allowed}."


class TooLarge(Refused):
    code = "too_large"
    status = 413
    exit_status = Exit.USAGE
    message = "{what} is {size}, the limit is {limit}."
    remedy = "Send less at a time."


class TraceMalformed(Refused):
    code = "trace_malformed"
    status = 422
    exit_status = Exit.USAGE
    message = "{path}, line {line}: {why}."
    remedy = "Compare the file with the format's description; `mintyard replay --help` names the formats."


class LimitReached(Refused):
    code = "limit_reached"
    status = 429
    exit_status = Exit.RATE_LIMITED
    message = "No more than {limit} {what} are kept."
    remedy = "Remove some, or wait until some have ended."


class DependencyCycle(Refused):
    code = "dependency_cycle"
    status = 422
    exit_status = Exit.USAGE
    message = "The jobs wait for each other: {cycle}."
    remedy = "Break the cycle at one of its edges."


class DependencyUnknown(Refused):
    code = "dependency_unknown"
    status = 422
    exit_status = Exit.NOT_FOUND
    message = "Job {job} is not known here, or ended too long ago."
    remedy = "Depend on a live job, or on one that ended lately."


class IdempotencyKeyInvalid(Refused):
    code = "idempotency_key_invalid"
    status = 422
    exit_status = Exit.USAGE
    message = "The idempotency key {why}."
    remedy = "Make a new UUIDv7 for each new request and send it again only for a retry within 24 hours."


class IdempotencyKeyReused(Conflict):
    code = "idempotency_key_reused"
    status = 422
    exit_status = Exit.CONFLICT
    message = "This idempotency key came before with another request."
    remedy = "Make a new UUIDv7 for each new request."
