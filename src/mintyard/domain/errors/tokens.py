"""Tokens: each failure of a credential has its own code (T2)."""

from __future__ import annotations

from mintyard.domain.errors.families import Conflict, Exit, Refused


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
