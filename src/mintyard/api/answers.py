"""Answers: what goes back over HTTP, as ASGI messages. One answer for each outcome, problems among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from mintyard.domain.errors import MintyardError, Refused, Unavailable
from mintyard.wire.problems import MEDIA_TYPE, details_of

JSON: Final = b"application/json"
PROBLEM: Final = MEDIA_TYPE.encode()
EVENTS: Final = b"text/event-stream"
RETRY_AFTER_S: Final = 1
Headers = list[tuple[bytes, bytes]]
_encoder = msgspec.json.Encoder()


class Answer:
    """A whole answer. `struct` is any wire struct; `body` overrides it."""

    __slots__ = ("body", "headers", "media", "status")

    def __init__(
        self, struct: Any = None, status: int = 200, headers: Headers | None = None, *, body: bytes | None = None,
        media: bytes = JSON,
    ) -> None:  # fmt: skip
        self.body = _encoder.encode(struct) if body is None else body
        self.status = status
        self.headers = headers or []
        self.media = media

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", self.media), (b"content-length", b"%d" % len(self.body)), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class Stream:
    """Server-sent events (WHATWG HTML, section 9.2) from an iterator of encoded parts."""

    __slots__ = ("headers", "parts", "status")

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self.parts = parts
        self.status = 200
        self.headers: Headers = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", EVENTS), *self.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def server_event(kind: str, struct: Any, id: str = "") -> bytes:
    """One event of a stream; JSON has no line breaks, so one data line is enough."""
    lead = f"id: {id}\nevent: {kind}\ndata: " if id else f"event: {kind}\ndata: "
    return lead.encode() + _encoder.encode(struct) + b"\n\n"


def problem(error: MintyardError, request_id: str, headers: Headers | None = None) -> Answer:
    """The problem document of `error`, with the headers that go with it: when to retry, how to authenticate."""
    extra = list(headers or ())
    status = error.status
    if isinstance(error, Unavailable) or status in (429, 503):
        after = error.params.get("retry_after_s", RETRY_AFTER_S)
        extra.append((b"retry-after", b"%d" % max(1, int(after))))
        error.params.setdefault("retry_after_s", max(1, int(after)))
    if status == 401:
        given = b"" if error.code == "token_missing" else b', error="invalid_token"'
        extra.append((b"www-authenticate", b'Bearer realm="mintyard"' + given))
    elif error.code == "scope_missing":
        scope = str(error.params.get("scope", "")).encode("ascii", "replace")
        challenge = b'Bearer realm="mintyard", error="insufficient_scope", scope="' + scope + b'"'
        extra.append((b"www-authenticate", challenge))
    return Answer(details_of(error, request_id), status, extra, media=PROBLEM)


def is_fault(error: MintyardError) -> bool:
    """Whether it is ours: worth a line in the log."""
    return error.status >= 500 and not isinstance(error, (Refused, Unavailable))
