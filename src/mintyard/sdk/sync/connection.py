"""Connection: the thin transport - httpx with keep-alive and timeouts; what is sent and what an answer means is `exchange`'s."""

from __future__ import annotations

import ssl
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any, TypeVar

import httpx

from mintyard.domain.errors import HubUnreachable, MintyardError, Unavailable
from mintyard.sdk.address import Address, is_local
from mintyard.sdk.event_stream import EventReader, ServerEvent
from mintyard.sdk.exchange import DEFAULT_RETRY_S, Exchange, Journey, Pause, problem_of, retry_after_s
from mintyard.sdk.request import Request
from mintyard.wire.problems import MAX_PROBLEM_BYTES

T = TypeVar("T")
QUIET_S = 60.0
"""A stream says something at least four times in so long; one that doesn't is broken."""
_KEEP_ALIVE_S = 60.0


class Connection:
    """One hub, one token, a pool of connections. `transport` replaces the network (tests, in-process hubs)."""

    def __init__(
        self,
        address: Address,
        *,
        timeout_s: float = 30.0,
        retry_s: float = DEFAULT_RETRY_S,
        fresh: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = address
        self.journey = Journey(address.url, address.token, retry_s, fresh=fresh)
        local = is_local(address.url)
        self._client = httpx.Client(
            base_url=address.url,
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
            limits=httpx.Limits(
                max_connections=64, max_keepalive_connections=16, keepalive_expiry=_KEEP_ALIVE_S
            ),
            # Plain HTTP needs no certificates, and loading them takes longer than most requests.
            verify=True if address.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=not local,
            follow_redirects=False,
            transport=transport,
        )

    def close(self) -> None:
        self._client.close()

    def send(self, request: Request[T]) -> T:
        """The request's result. Errors: the hub's own, `HubUnreachable`, `AnswerUnreadable`."""
        exchange = Exchange(self.journey, request)
        while True:
            try:
                if self.journey.lacks_seq(request):
                    self.journey.take_seq((self._client.get("/ready")).content)
                response = self._client.request(
                    request.method,
                    request.target,
                    content=request.body,
                    headers=self.journey.headers(request),
                )
            except httpx.TransportError as error:
                outcome = exchange.lost(reason(error))
            else:
                outcome = exchange.answered(response.status_code, response.headers, response.content)
            if not isinstance(outcome, Pause):
                return outcome
            time.sleep(outcome.seconds)

    def events(self, request: Request[Any], *, resume: bool = True) -> Generator[ServerEvent, None, None]:
        """The events of a stream, one after another; a broken connection is taken up after the last event. Ends when the hub
        ends it, or raises after `retry_s` without contact."""
        reader = EventReader()
        lost_at: float | None = None
        while True:
            try:
                with closing(self._stream(request, reader)) as stream:
                    for event in stream:
                        lost_at = None
                        yield event
                return
            except (httpx.TransportError, Unavailable) as error:
                lost_at = lost_at or time.monotonic()
                if not resume or time.monotonic() - lost_at > self.journey.retry_s:
                    if isinstance(error, MintyardError):
                        raise
                    raise HubUnreachable(url=self.address.url, why=reason(error)) from None
            reader.reset()
            time.sleep(0.5)

    def _stream(self, request: Request[Any], reader: EventReader) -> Generator[ServerEvent, None, None]:
        headers = self.journey.headers(request) | {"accept": "text/event-stream"}
        if reader.last_id:
            headers["last-event-id"] = reader.last_id
        timeout = httpx.Timeout(QUIET_S, connect=5.0)
        with self._client.stream(
            request.method, request.target, headers=headers, timeout=timeout
        ) as response:
            if response.status_code != 200:
                body = b""
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > MAX_PROBLEM_BYTES:
                        break
                error = problem_of(self.address.url, response.status_code, response.headers, body)
                if isinstance(error, Unavailable):
                    time.sleep(min(retry_after_s(response.headers), 5.0))
                raise error
            for piece in response.iter_bytes():
                yield from reader.feed(piece)


def reason(error: Exception) -> str:
    """What went wrong on the way, in a few words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return "it didn't answer in time"
    return (str(error) or type(error).__name__).splitlines()[0][:200]
