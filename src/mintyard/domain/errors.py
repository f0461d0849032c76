"""Errors: one root and four families, each class with its code, HTTP status, exit status, message and remedy.

*Refused* is the caller's (correct the request), *Unavailable* passes (retry), *Conflict* needs a reload, *Broken* is ours.
The same class serves the core, RFC 9457 problem details, CLI exit status and SDK exceptions; the reference page is
made from these classes. Parameters are plain JSON values, named in the message, so that a message can be translated.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar, Final

import msgspec


class Exit(IntEnum):
    """Exit status of the command line."""

    OK = 0
    JOB_FAILED = 1
    USAGE = 2
    CANCELLED = 3
    TOKEN = 4
    QUOTA = 5
    NOT_FOUND = 6
    CONFLICT = 7
    INFEASIBLE = 8
    TIMEOUT = 9
    UNAVAILABLE = 10
    VERIFICATION = 11
    FORBIDDEN = 12
    RATE_LIMITED = 13
    BROKEN = 14


class Problem(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """An error as data: what crosses processes; everything else follows from the code."""

    code: str
    params: dict[str, Any] = {}


class MintyardError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_status: ClassVar[Exit] = Exit.BROKEN
    message: ClassVar[str] = "Something went wrong."
    remedy: ClassVar[str] = "Report this with the request id."

    def __init__(self, **params: Any) -> None:
        super().__init__(params)
        self.params = params

    def __str__(self) -> str:
        return fill(self.message, self.params)

    @property
    def cure(self) -> str:
        """The remedy with its parameters filled in."""
        return fill(self.remedy, self.params)

    def problem(self) -> Problem:
        return Problem(self.code, self.params)


class _Blank(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def fill(template: str, params: dict[str, Any]) -> str:
    """`template` with `{name}` replaced; a missing parameter shows as `?`, never as another error."""
    return template.format_map(_Blank(params))


REGISTRY: Final[dict[str, type[MintyardError]]] = {}


def from_problem(problem: Problem) -> MintyardError:
    """The exception for `problem`; a code this version doesn't know becomes `Unknown` with the code kept."""
    kind = REGISTRY.get(problem.code)
    return kind(**problem.params) if kind else Unknown(reported=problem.code, **{k: v for k, v in problem.params.items() if k != "reported"})


def _register(cls: type[MintyardError]) -> type[MintyardError]:
    if REGISTRY.setdefault(cls.code, cls) is not cls:
        raise ValueError(f"error code {cls.code} is taken")
    return cls


class Refused(MintyardError):
    """The request can't be granted as it is."""

    def __init_subclass__(cls) -> None:
        _register(cls)


class Unavailable(MintyardError):
    """The service can't answer now; the same request may be sent again."""

    status = 503
    exit_status = Exit.UNAVAILABLE

    def __init_subclass__(cls) -> None:
        _register(cls)


class Conflict(MintyardError):
    """The thing has changed or is in another state; look at it again."""

    status = 409
    exit_status = Exit.CONFLICT

    def __init_subclass__(cls) -> None:
        _register(cls)


class Broken(MintyardError):
    """A fault of ours."""

    def __init_subclass__(cls) -> None:
        _register(cls)


# --- malformed requests ---------------------------------------------------------------------------------------------


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
    remedy = "Write a plain positive decimal string such as \"12.5\"."


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
    message = "Job {job} is not known here any more."
    remedy = "Depend on a live job, or on one that ended lately."


class IdempotencyKeyInvalid(Refused):
    code = "idempotency_key_invalid"
    status = 400
    exit_status = Exit.USAGE
    message = "The idempotency key {why}."
    remedy = "Make a new UUIDv7 for each new request and send it again only for a retry within 24 hours."


class IdempotencyKeyReused(Conflict):
    code = "idempotency_key_reused"
    status = 422
    exit_status = Exit.CONFLICT
    message = "This idempotency key came before with another request."
    remedy = "Make a new UUIDv7 for each new request."


# --- tokens (T2: each failure its own code) -------------------------------------------------------------------------


class TokenMissing(Refused):
    code = "token_missing"
    status = 401
    exit_status = Exit.TOKEN
    message = "No compute token was sent."
    remedy = "Send `Authorization: Bearer TOKEN`, or set MINTYARD_TOKEN."


class TokenMalformed(Refused):
    code = "token_malformed"
    status = 401
    exit_status = Exit.TOKEN
    message = "The token can't be read: {why}."
    remedy = "Copy it whole, or mint a new one."


class TokenBadSignature(Refused):
    code = "token_bad_signature"
    status = 401
    exit_status = Exit.TOKEN
    message = "The token's signature doesn't match its key."
    remedy = "It was altered or made elsewhere: mint a new one with this hub."


class TokenUnknownKey(Refused):
    code = "token_unknown_key"
    status = 401
    exit_status = Exit.TOKEN
    message = "The token was signed with key {key}, which is not known here."
    remedy = "Fetch the hub's key set again, or mint a new token."


class TokenExpired(Refused):
    code = "token_expired"
    status = 401
    exit_status = Exit.TOKEN
    message = "The token expired at {expired_at}."
    remedy = "Mint or renew a token: `mintyard token mint`."


class TokenNotYetValid(Refused):
    code = "token_not_yet_valid"
    status = 401
    exit_status = Exit.TOKEN
    message = "The token is valid only from {valid_from} on."
    remedy = "Wait, or check the clock of the machine that minted it."


class TokenRevoked(Refused):
    code = "token_revoked"
    status = 401
    exit_status = Exit.TOKEN
    message = "The token, or one that it was narrowed from, was revoked."
    remedy = "Ask the account's owner for a new token."


class TokenSuspended(Refused):
    code = "token_suspended"
    status = 401
    exit_status = Exit.TOKEN
    message = "The token is suspended."
    remedy = "Ask the account's owner to resume it."


class TokenUnregistered(Refused):
    code = "token_unregistered"
    status = 401
    exit_status = Exit.TOKEN
    message = "This hub never issued that token."
    remedy = "Mint a token with this hub."


class TokenKeyDead(Refused):
    code = "token_key_dead"
    status = 401
    exit_status = Exit.TOKEN
    message = "The token was signed with key {key}, which was withdrawn."
    remedy = "Mint a new token: every token of that key has ended."


class TokenSealed(Refused):
    code = "token_sealed"
    status = 422
    exit_status = Exit.TOKEN
    message = "The token is sealed: it can be used, not narrowed."
    remedy = "Narrow the token that it was sealed from."


class KeySetMissing(Refused):
    code = "key_set_missing"
    status = 400
    exit_status = Exit.TOKEN
    message = "No key set is kept beside the token, so it can't be checked here."
    remedy = "Set MINTYARD_KEYS, or log in again: the hub hands out its public keys."


class KeySetInvalid(Refused):
    code = "key_set_invalid"
    status = 400
    exit_status = Exit.TOKEN
    message = "The key set can't be read: {why}."
    remedy = "Fetch the hub's key set again."


class KeySetOutdated(Conflict):
    code = "key_set_outdated"
    message = "Key set {offered} is older than key set {held}, which is in use."
    remedy = "Fetch the hub's key set again; an old one would bring withdrawn keys back."


class CredentialsDamaged(Refused):
    code = "credentials_damaged"
    status = 400
    exit_status = Exit.TOKEN
    message = "{path} can't be read: {why}."
    remedy = "Move it away and log in again."


class TokenWrongAudience(Refused):
    code = "token_wrong_audience"
    status = 403
    exit_status = Exit.TOKEN
    message = "The token is for {allowed}, not for {asked}."
    remedy = "Use it there, or get a token that allows {asked}."


class ScopeMissing(Refused):
    code = "scope_missing"
    status = 403
    exit_status = Exit.FORBIDDEN
    message = "The token lacks the scope {scope}."
    remedy = "Use a token with {scope}; `mintyard token inspect` shows what yours has."


class CapExceeded(Refused):
    code = "cap_exceeded"
    status = 403
    exit_status = Exit.QUOTA
    message = "The token allows at most {limit} {what} at once, the job asks for {asked}."
    remedy = "Ask for less, or use a wider token."


class Forbidden(Refused):
    code = "forbidden"
    status = 403
    exit_status = Exit.FORBIDDEN
    message = "{what} is not yours to change."
    remedy = "Ask its owner or an operator."


class Widening(Refused):
    code = "token_widening"
    status = 422
    exit_status = Exit.FORBIDDEN
    message = "A token can't be given more than its maker has: {what}."
    remedy = "Ask for at most what your own token allows."


# --- quota (L3: what is short, and by how much) ---------------------------------------------------------------------


class QuotaExhausted(Refused):
    code = "quota_exhausted"
    status = 402
    exit_status = Exit.QUOTA
    message = "{account} is short of {short} {unit}: the request needs {needed}, {left} is left."
    remedy = "Ask for a grant of at least {short} {unit} to {account}, or ask for less.{later}"


class CeilingReached(Refused):
    code = "ceiling_reached"
    status = 402
    exit_status = Exit.QUOTA
    message = "The token's ceiling is {limit} {unit}; {used} is used, the request needs {needed}, so {short} is short."
    remedy = "Use a token with a higher ceiling, or ask for less."


class WrongResourceType(Refused):
    code = "wrong_resource_type"
    status = 402
    exit_status = Exit.QUOTA
    message = "Nothing on {account} or above it pays for {unit}."
    remedy = "Grant {unit} or money to {account} or an account above it."


class BudgetTooSmall(Refused):
    code = "budget_too_small"
    status = 402
    exit_status = Exit.QUOTA
    message = "The job may cost {cost}, its budget is {budget}."
    remedy = "Raise the budget, or lower resources or time limit."


# --- things and their states ----------------------------------------------------------------------------------------


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


# --- the service ----------------------------------------------------------------------------------------------------


class Overloaded(Unavailable):
    code = "overloaded"
    message = "More requests are waiting than the hub takes."
    remedy = "Send it again after {retry_after_s} s."


class NotLeader(Unavailable):
    code = "not_leader"
    message = "This process no longer leads the hub."
    remedy = "Send it again: another process leads or will shortly."


class StoreUnavailable(Unavailable):
    code = "store_unavailable"
    message = "The store can't be reached: {why}."
    remedy = "Send it again; check the store with `mintyard doctor`."


class CommitUnknown(Unavailable):
    code = "commit_unknown"
    message = "The store broke off in mid-commit; whether the request took effect is being found out."
    remedy = "Send it again with the same Idempotency-Key."


class EngineUnavailable(Unavailable):
    code = "engine_unavailable"
    message = "The engine {engine} can't be reached: {why}."
    remedy = "Its jobs go on; they are looked at again when it answers."


class NotCaughtUp(Unavailable):
    code = "not_caught_up"
    message = "The read model is at {seq}, the request asked for {min_seq}."
    remedy = "Send it again after {retry_after_s} s."


class WaitTimeout(Unavailable):
    code = "wait_timeout"
    status = 504
    exit_status = Exit.TIMEOUT
    message = "{what} did not happen within {seconds} s."
    remedy = "Wait longer, or look at it with `mintyard job explain`."


class Fenced(Conflict):
    code = "fenced"
    status = 503
    exit_status = Exit.UNAVAILABLE
    message = "Term {term} was superseded by term {current}."
    remedy = "Another process leads; this one must recover from the store."


class FolderInUse(Conflict):
    code = "folder_in_use"
    message = "Another hub (process {pid}) runs in {folder}."
    remedy = "Stop it first, or choose another folder."


class JournalGap(Conflict):
    code = "journal_gap"
    message = "The journal's next record is {expected}, not {given}."
    remedy = "Read the head again and continue from there."


class StoreCorrupt(Broken):
    code = "store_corrupt"
    message = "The store {store} is damaged: {why}."
    remedy = "Stop the hub, keep a copy of the store, and restore it from a backup."


class StoreForeign(Broken):
    code = "store_foreign"
    message = "{store} is not a mintyard store: {why}."
    remedy = "Name another place for the store; nothing was changed there."


class StoreTooNew(Broken):
    code = "store_too_new"
    message = "The store {store} has schema {found}; this version knows up to {known}."
    remedy = "Update mintyard on this machine."


class VerificationFailed(Broken):
    code = "verification_failed"
    exit_status = Exit.VERIFICATION
    message = "The journal does not verify at record {seq}: {why}."
    remedy = "Restore the journal from a backup taken before record {seq}; don't start the hub on it."


class KeyRingDamaged(Broken):
    code = "key_ring_damaged"
    message = "The key ring {path} can't be read: {why}."
    remedy = "Restore it from a backup; without it a new ring is made and every token ends."


class KeyRingExposed(Broken):
    code = "key_ring_exposed"
    message = "Others on this machine can reach the signing keys in {path} (mode {mode})."
    remedy = "Close it with `chmod go= {path}`, then withdraw the keys: they may have been read."


class Fault(Broken):
    code = "fault"
    message = "The hub failed at this request; it is in its log under the request's id."
    remedy = "Report this with the request id. A write may or may not have taken effect: look, or repeat it with its key."


class IllegalTransition(Broken):
    code = "illegal_transition"
    message = "A {what} can't go from {source} to {target}."


class InvariantBroken(Broken):
    code = "invariant_broken"
    message = "An invariant does not hold: {why}."
    remedy = "Stop the hub, keep its folder, and report this."


class Unknown(Broken):
    code = "unknown"
    message = "The hub reported {reported}, which this version doesn't know."
    remedy = "Update the client."
