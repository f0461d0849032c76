"""Exchange: the way of one request through losses and retries, without I/O, the same for both clients.

A client sends what `headers` says, tells what came of it, and sleeps or returns as it is told. A write goes out again only with
its own idempotency key, so it takes effect once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from mintyard.domain.errors import (
    AnswerUnreadable,
    HubUnreachable,
    IdempotencyKeyInvalid,
    LimitReached,
    MintyardError,
)
from mintyard.sdk.request import API, Request, new_key
from mintyard.wire.problems import MAX_PROBLEM_BYTES, MEDIA_TYPE, ProblemDetails, error_of

T = TypeVar("T")
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
DEFAULT_RETRY_S: Final = 30.0
MIN_SKEW_MS: Final = 60_000
"""A clock that differs by less is not the cause of a refused key."""
_BUSY: Final = frozenset({429, 502, 503})
_TIMELESS: Final = frozenset({f"{API}/keys", f"{API}/whoami"})
"""Reads that don't depend on the journal."""
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


class _Ready(msgspec.Struct):
    durable_seq: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


class Journey:
    """What one client remembers between requests: the last record it wrote, so that it reads its own writes, and by how much
    the hub's clock differs from this one. `fresh`: it shall also see what others wrote before its first read."""

    def __init__(
        self, url: str, token: str, retry_s: float = DEFAULT_RETRY_S, *, fresh: bool = False
    ) -> None:
        self.url = url
        self.retry_s = retry_s
        self.seq = 0
        self.fresh = fresh
        self.skew_ms = 0
        self._token = token

    def lacks_seq(self, request: Request[Any]) -> bool:
        """Whether the hub must first be asked how far it is: once, before the first read that may not be stale."""
        return self.fresh and not self.seq and request.method == "GET" and request.target not in _TIMELESS

    def take_seq(self, body: bytes) -> None:
        """What `/ready` says: everything up to its durable record is to be seen from now on."""
        self.fresh = False
        try:
            self.seq = max(self.seq, msgspec.json.decode(body, type=_Ready).durable_seq)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            pass

    def headers(self, request: Request[Any]) -> dict[str, str]:
        headers = {"accept": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        if request.body is not None:
            headers["content-type"] = "application/json"
        if request.key:
            headers["idempotency-key"] = request.key
        if self.seq and request.method == "GET":
            headers["x-mintyard-min-seq"] = str(self.seq)
        return headers

    def learn(self, request: Request[Any], headers: Mapping[str, str]) -> None:
        """Take what the answer says about record and time."""
        told = headers.get("x-mintyard-seq", "")
        if request.method != "GET" and told.isdigit() and len(told) < 20:
            self.seq = max(self.seq, int(told))
        try:
            then = parsedate_to_datetime(headers.get("date", ""))
            self.skew_ms = int((then.timestamp() - time.time()) * 1_000)
        except (ValueError, TypeError):
            pass


class Pause(msgspec.Struct, frozen=True):
    """Send the same again after so long."""

    seconds: float


class Exchange(Generic[T]):
    """One request under way. Each method returns the result, says how long to pause, or raises what the caller shall see."""

    def __init__(self, journey: Journey, request: Request[T]) -> None:
        self.journey = journey
        self.request = request
        self._deadline = time.monotonic() + journey.retry_s
        self._pause_s = FIRST_PAUSE_S
        self._rekeyed = False

    def lost(self, why: str) -> Pause:
        """No answer came: `HubUnreachable` when it has lasted too long."""
        return self._again(HubUnreachable(url=self.journey.url, why=why), 0.0)

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> T | Pause:
        """The answer's value; a `Pause` when the hub asks for patience."""
        journey = self.journey
        journey.learn(self.request, headers)
        if 200 <= status < 300:
            return self._value(body)
        error = problem_of(journey.url, status, headers, body)
        if isinstance(error, IdempotencyKeyInvalid) and self._rekey():
            return Pause(0.0)
        if status in _BUSY and not isinstance(error, LimitReached):
            return self._again(error, retry_after_s(headers))
        raise error

    def _value(self, body: bytes) -> T:
        answer = self.request.answer
        decoder = _decoders.get(answer)
        if decoder is None:
            decoder = _decoders[answer] = msgspec.json.Decoder(answer)
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise AnswerUnreadable(url=self.journey.url, why=str(error)[:200]) from None

    def _rekey(self) -> bool:
        """A refused key may come of a wrong clock here: make one by the hub's clock, once. Nothing took effect yet."""
        if self._rekeyed or abs(self.journey.skew_ms) < MIN_SKEW_MS:
            return False
        self._rekeyed = True
        self.request.key = new_key(offset_ms=self.journey.skew_ms)
        return True

    def _again(self, error: MintyardError, after_s: float) -> Pause:
        pause_s = max(after_s, self._pause_s * random.uniform(0.5, 1.0))
        if time.monotonic() + pause_s > self._deadline:
            raise error
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        return Pause(pause_s)


def problem_of(url: str, status: int, headers: Mapping[str, str], body: bytes) -> MintyardError:
    """The hub's error; what isn't a problem document of a hub comes from something else on the way."""
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == MEDIA_TYPE and len(body) <= MAX_PROBLEM_BYTES:
        try:
            return error_of(msgspec.json.decode(body, type=ProblemDetails))
        except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
            pass
    if status in _BUSY or status == 504:
        return HubUnreachable(url=url, why=f"something before it answered {status}")
    return AnswerUnreadable(url=url, why=f"it answered {status} without a problem document")


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds of a `Retry-After` header (RFC 9110, section 10.2.3), as a number or a date; 0 without one."""
    text = headers.get("retry-after", "").strip()
    if text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0
