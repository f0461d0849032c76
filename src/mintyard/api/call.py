"""Call: one request on its way through, with what it may use. Decoding is here and nowhere else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec

from mintyard.api.access import Gate
from mintyard.api.feed import Feed
from mintyard.api.minter import Minter
from mintyard.api.parameters import nearest
from mintyard.api.sightings import Sighting
from mintyard.api.streams import Streams
from mintyard.app.link import Answer, Link
from mintyard.app.read_model.database import ReadModel
from mintyard.domain.commands import Command
from mintyard.domain.errors import (
    InvalidRequest,
    InvalidSpec,
    MediaTypeUnsupported,
    ScopeMissing,
    TooLarge,
    from_problem,
)
from mintyard.domain.hub import check_key
from mintyard.domain.limits import MAX_BODY_BYTES
from mintyard.domain.replies import Refusal
from mintyard.domain.tokens.authority import Authority, Scope
from mintyard.ports.engine import AttemptKey, LogChunk
from mintyard.ports.store import Record

T = TypeVar("T")
MAX_KEY_CHARS: Final = 64
MAX_AHEAD_RECORDS: Final = 10_000
"""How far a record that a client has seen may be ahead of what was heard here; nobody waits for later ones."""
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")


class LogReader(Protocol):
    """Reads what an attempt wrote; an `Engine` is one. Blocks; raises `NotFound` for an unknown attempt."""

    def read_log(self, key: AttemptKey, stream: str, offset: int, limit: int) -> LogChunk: ...


class JournalReader(Protocol):
    """Reads durable records; a `Store` is one. Blocks."""

    def read(self, after_seq: int, limit: int) -> list[Record]: ...


class Tower(Protocol):
    """Tells what the records after `seq` hold for watchers; blocks."""

    def after(self, seq: int) -> list[tuple[int, list[Sighting]]]: ...


class Services(msgspec.Struct, frozen=True):
    """What the handlers work with. `threads` runs what blocks, `now` is in ns, `hub` is the name that tokens
    name as cluster, `max_lag_s` the oldest position of the read model with which this process is ready."""

    link: Link
    model: ReadModel
    gate: Gate
    feed: Feed
    minter: Minter
    logs: LogReader
    watchtower: Tower
    streams: Streams
    threads: Executor
    now: Callable[[], int]
    hub: str
    max_lag_s: float = 10.0


class Call:
    """One request. `authority` is set when the route is secured; `query` and `path` hold the declared
    parameters."""

    __slots__ = ("authority", "headers", "path", "query", "receive", "request_id", "services")

    def __init__(
        self, services: Services, headers: Mapping[bytes, bytes], receive: Any, request_id: str
    ) -> None:
        self.services = services
        self.headers = headers
        self.receive = receive
        self.request_id = request_id
        self.query: dict[str, Any] = {}
        self.path: dict[str, Any] = {}
        self.authority: Authority | None = None

    # --- who asks --------------------------------------------------------------------------------------------------

    @property
    def bearer(self) -> Authority:
        assert self.authority is not None
        return self.authority

    @property
    def within(self) -> str:
        return self.bearer.account

    def need(self, scope: Scope) -> None:
        """`ScopeMissing` when the token doesn't allow it."""
        if scope not in self.bearer.scopes:
            raise ScopeMissing(scope=scope.value)

    # --- what is asked ---------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The idempotency key, empty when none was sent; the core checks its form and age."""
        raw = self.headers.get(b"idempotency-key")
        if raw is None:
            return ""
        # An empty or endless one is refused by the core as any other malformed key.
        return raw.decode("latin-1") if 0 < len(raw) <= MAX_KEY_CHARS else "x"

    @property
    def base(self) -> int:
        """The instant (ns) from which spans of the request count: the key's, so that a repeat asks for the
        same; else now."""
        now = self.services.now()
        return check_key(self.key, now) if self.key else now

    @property
    def min_seq(self) -> int:
        """The record that the answer must include, by parameter or header; the later of both."""
        raw = self.headers.get(b"x-mintyard-min-seq", b"0")
        if not raw.isdigit() or len(raw) > 19 or int(raw) >= 2**63:
            raise InvalidRequest(why="X-Mintyard-Min-Seq must be a whole number below 2^63")
        wanted = max(int(raw), self.query.get("min_seq") or 0)
        feed = self.services.feed
        durable = feed.durable_seq
        # Until the leader is heard, and heard of a record (it may be recovering itself), any may exist: then the read waits.
        if feed.connected and durable and wanted > durable + MAX_AHEAD_RECORDS:
            why = f"record {wanted} can't exist yet, the last one is {durable}"
            raise InvalidSpec(field="min_seq", why=why)
        return wanted

    async def body(self) -> bytes:
        """The whole body, read no further than `MAX_BODY_BYTES`. Errors: `TooLarge`, `MediaTypeUnsupported`."""
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise TooLarge(what="The body in bytes", size=int(length), limit=MAX_BODY_BYTES)
        encoding = self.headers.get(b"content-encoding", b"identity")
        if encoding.lower() != b"identity":
            raise MediaTypeUnsupported(
                given=f"encoding {encoding[:32].decode('latin-1')}", allowed="it uncompressed"
            )
        message = await self.receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            parts, size = [body], len(body)
            while message.get("more_body"):
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise InvalidRequest(why="the body broke off")
                part = message.get("body", b"")
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise TooLarge(
                        what="The body in bytes", size=f"more than {MAX_BODY_BYTES}", limit=MAX_BODY_BYTES
                    )
                parts.append(part)
            body = b"".join(parts)
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(what="The body in bytes", size=len(body), limit=MAX_BODY_BYTES)
        if body:
            media = self.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if media != b"application/json":
                raise MediaTypeUnsupported(
                    given=f"type {media[:64].decode('latin-1') or 'unnamed'}", allowed="application/json"
                )
        return body

    async def decode(self, decoder: msgspec.json.Decoder[T], *, optional: bool = False) -> T:
        """The body as the decoder's type. Errors: as `body`, and `InvalidRequest` that names the place."""
        body = await self.body()
        if not body and optional:
            body = b"{}"
        try:
            try:
                return decoder.decode(body)
            except msgspec.ValidationError as error:
                if "got `float`" not in str(error):
                    raise
                # JSON has one kind of number: 2.0 is the whole number 2, for JSON Schema as well.
                return msgspec.convert(_whole(msgspec.json.decode(body)), decoder.type)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(why=_why(error, decoder.type) if body else "it needs a JSON body") from None

    # --- asking the hub --------------------------------------------------------------------------------------------

    async def send(self, command: Command) -> Answer:
        """The command's answer; a refusal is raised as the error that it is."""
        answer = await self.services.link.send(command)
        if isinstance(answer.reply, Refusal):
            raise from_problem(answer.reply.problem)
        return answer

    async def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """A function that blocks, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.services.threads, partial(function, *args, **kwargs))

    async def look(self, query: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """A query of the read model, which has seen `min_seq`."""
        try:
            return await self.run(query, self.services.model, *args, min_seq=self.min_seq, **kwargs)
        except InvalidRequest as error:
            if not self.query.get("cursor"):
                raise
            # Well-formed as a parameter, and yet no cursor of this query.
            raise InvalidSpec(field="cursor", why=str(error.params.get("why", "it can't be read"))) from None

    async def look_now(self, query: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """As `look`, up to everything that this process has heard of: for what a write needs to know."""
        latest = max(self.min_seq, self.services.feed.durable_seq)
        return await self.run(query, self.services.model, *args, min_seq=latest, **kwargs)


def _why(error: Exception, kind: Any) -> str:
    """The decoder's message, with the field that was probably meant for an unknown one."""
    text = str(error).rstrip(".")
    unknown = _UNKNOWN.search(text)
    # Deeper objects have other fields; the place in the message is help enough.
    return text + nearest(unknown[1], kind.__struct_fields__) if unknown and " - at " not in text else text


def _whole(value: Any) -> Any:
    """`value` with floats that are exact whole numbers as integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {name: _whole(item) for name, item in value.items()} if isinstance(value, dict) else value
