"""Pages: lists over HTTP, with the next page's address in the body and in a `Link` header (RFC 8288)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

from mintyard.api.answers import Answer
from mintyard.api.call import Call
from mintyard.app.read_model.views import Page as Found
from mintyard.wire.bounds import format_instant
from mintyard.wire.pages import Page

_INSTANTS: Final = ("since", "until")


def paged(call: Call, path: str, found: Found[Any], view: Callable[[Any], Any]) -> Answer:
    """The rows of `found` as wire structs."""
    headers = [(b"x-mintyard-seq", b"%d" % found.seq), (b"cache-control", b"no-store")]
    if found.next:
        headers.append(next_link(call, path, found.next))
    page = Page(items=tuple(view(row) for row in found.rows), next=found.next or None, seq=found.seq)
    return Answer(page, 200, headers)


def next_link(call: Call, path: str, cursor: str) -> tuple[bytes, bytes]:
    """The header that names the following page of the same query, relative to the API's root."""
    given = {
        name: _text(name, value)
        for name, value in call.query.items()
        if value not in ("", None, False, ()) and name not in ("cursor", "min_seq")
    }
    target = f"/api/v1{path}?{urlencode(given | {'cursor': cursor})}"
    return (b"link", f'<{target}>; rel="next"'.encode())


def _text(name: str, value: Any) -> str:
    """A parameter's value as it was written."""
    if isinstance(value, tuple):
        return ",".join(value)
    return format_instant(value) if name in _INSTANTS else str(value)
