"""Watch over REST (U1): the changes of the caller's subtree as server-sent events, resumable without loss."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

from mintyard.api.answers import Stream, server_event
from mintyard.api.call import Call, JournalReader
from mintyard.api.parameters import Parameter, integer
from mintyard.api.routes import Table
from mintyard.api.sightings import KINDS, Owners, Sighting, sightings
from mintyard.app.read_model.database import ReadModel
from mintyard.domain.errors import InvalidRequest, MintyardError, ScopeMissing
from mintyard.domain.ids import is_within
from mintyard.domain.tokens.authority import Authority, Scope
from mintyard.wire.bounds import format_instant
from mintyard.wire.problems import details_of
from mintyard.wire.statements import WatchEvent

WATCH = Table("watch")
MAX_KEPT_RECORDS: Final = 4_096
RECORDS_A_READ: Final = 256
MAX_WATCH_S: Final = 6 * 3_600
_QUIET_S: Final = 15.0
_EVENT_ID: Final = re.compile(rb"(0|[1-9][0-9]{0,17})(?:\.(0|[1-9][0-9]{0,8}))?")
_SCOPES: Final = (Scope.JOB_READ, Scope.ACCOUNT_READ, Scope.NODE_READ)


class Watchtower:
    """Reads records once for all watchers of this process. Blocks; safe to share between threads."""

    def __init__(self, journal: JournalReader, model: ReadModel) -> None:
        self._journal = journal
        self._owners = Owners(model)
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, list[Sighting]] = OrderedDict()

    def after(self, seq: int) -> list[tuple[int, list[Sighting]]]:
        """What the records after `seq` tell, in order, at most `RECORDS_A_READ` of them; nothing at the
        journal's end."""
        with self._lock:
            found: list[tuple[int, list[Sighting]]] = []
            while len(found) < RECORDS_A_READ and (known := self._kept.get(seq + 1)) is not None:
                seq += 1
                self._kept.move_to_end(seq)
                found.append((seq, known))
            if found:
                return found
            for record in self._journal.read(seq, RECORDS_A_READ):
                told = sightings(record, self._owners)
                self._kept[record.seq] = told
                found.append((record.seq, told))
            while len(self._kept) > MAX_KEPT_RECORDS:
                self._kept.popitem(last=False)
            return found


def read_kinds(value: str) -> tuple[str, ...]:
    kinds = tuple(value.split(","))
    if not set(kinds) <= set(KINDS):
        raise ValueError(f"must be kinds joined by commas: {', '.join(KINDS)}")
    return kinds


_ONE_KIND = "|".join(kind.replace(".", "[.]") for kind in KINDS)
KIND = Parameter(
    "kind",
    read_kinds,
    {"type": "string", "maxLength": 1_024, "pattern": f"^({_ONE_KIND})(,({_ONE_KIND}))*$"},
    "Only events of these kinds, joined by commas.",
    (),
)


@WATCH.add(
    "GET",
    "/watch",
    "Watch what changes, as server-sent events",
    answer=WatchEvent,
    query=(
        KIND,
        integer("after", "Begin after this record instead of now."),
        integer("job", "Only this job.", least=1),
    ),
    refusals=(ScopeMissing,),
    media="text/event-stream",
)
async def watch(call: Call) -> Stream:
    """Events of the caller's account and those below it, of nodes and prices, as far as the token's scopes show
    them. A client
    that resumes with Last-Event-ID misses nothing and gets nothing twice. The stream ends with a `problem`
    event when the token does."""
    if not any(scope in call.bearer.scopes for scope in _SCOPES):
        raise ScopeMissing(scope=_SCOPES[0].value)
    call.services.streams.check()
    seq, place = _start(call)
    return Stream(call.services.streams.hold(_events(call, seq, place)))


def _start(call: Call) -> tuple[int, int]:
    """(record, place): everything up to there was seen. A bare record number means all of it."""
    raw = call.headers.get(b"last-event-id", b"")
    if not raw:
        after = call.query["after"]
        return (call.services.feed.durable_seq if after is None else after), -1
    match = _EVENT_ID.fullmatch(raw)
    if match is None:
        raise InvalidRequest(why="Last-Event-ID must be the id of an event of this stream")
    return (int(match[1]) - 1, int(match[2])) if match[2] is not None else (int(match[1]), -1)


def visible(event: Sighting, bearer: Authority) -> bool:
    """Whether the bearer may see the event: by scope, by account, and by job where its token is limited to
    some."""
    if event.scope not in bearer.scopes:
        return False
    if bearer.jobs is not None and event.job not in bearer.jobs:
        return False
    return event.shared or is_within(event.account, bearer.account)


async def _events(call: Call, seq: int, place: int) -> AsyncIterator[bytes]:
    services = call.services
    kinds, job = call.query["kind"], call.query["job"]
    header = call.headers.get(b"authorization")
    deadline = time.monotonic() + MAX_WATCH_S
    yield b"retry: 1000\n\n"
    try:
        while time.monotonic() < deadline and not services.streams.ending:
            bearer = services.gate.admit(header, services.now())
            told = await call.run(services.watchtower.after, seq) if services.feed.durable_seq > seq else []
            if not told and not await _news(call):
                yield b": quiet\n\n"
            for at, events in told:
                for event in events:
                    if at == seq + 1 and int(event.id.split(".")[1]) <= place:
                        continue
                    if (
                        visible(event, bearer)
                        and (not kinds or event.kind in kinds)
                        and job in (None, event.job)
                    ):
                        yield server_event(event.kind, _wire(event), event.id)
                seq, place = at, -1
    except MintyardError as error:
        yield server_event("problem", details_of(error, call.request_id))


async def _news(call: Call) -> bool:
    """Until something became durable, or the streams must end; False when it was quiet for long."""
    services = call.services
    waits = [
        asyncio.ensure_future(services.feed.moved()),
        asyncio.ensure_future(services.streams.pause(_QUIET_S)),
    ]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return waits[0] in done or services.streams.ending


def _wire(event: Sighting) -> WatchEvent:
    return WatchEvent(
        id=event.id,
        at=format_instant(event.at),
        kind=event.kind,
        account=event.account,
        data=event.data,
        job=event.job or None,
    )
