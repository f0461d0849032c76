"""Routes: the table of everything that REST answers to. The server, OpenAPI and the tests of isolation read the
same table."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec

from mintyard.api.answers import Answer, Stream
from mintyard.api.call import Call
from mintyard.api.parameters import Parameter, integer, text
from mintyard.domain.errors import MintyardError
from mintyard.domain.tokens.authority import Scope

PREFIX: Final = "/api/v1"
Handler = Callable[..., Awaitable[Answer | Stream]]

_JOB: Final = re.compile(r"[1-9][0-9]{0,17}(_[0-9]{1,9})?")


def _job(text: str) -> str:
    if not _JOB.fullmatch(text):
        raise ValueError("must be a job's number such as 12 or 12_3")
    return text


PATH_PARAMETERS: Final[dict[str, Parameter]] = {
    "account": Parameter(
        "account",
        str,
        {"type": "string", "minLength": 1, "maxLength": 128, "pattern": r"^(/|[a-z0-9][a-z0-9._/-]*)$"},
        "An account's id, percent-encoded: `acme%2Fvision`; the hub itself is `%2F`.",
        example="acme/vision",
    ),
    "grant": integer("grant", "A grant's number.", least=1),
    "hold": integer("hold", "A hold's number.", least=1),
    "job": Parameter(
        "job",
        _job,
        {"type": "string", "pattern": r"^[1-9][0-9]{0,17}(_[0-9]{1,9})?$"},
        "A job's number, an array's, or a task's as ARRAY_INDEX.",
        example="12_3",
    ),
    "node": text("node", "A node's name, percent-encoded.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"),
    "queue": text("queue", "A queue's name, percent-encoded.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"),
    "token": Parameter(
        "token",
        str,
        {"type": "string", "pattern": r"^[0-9a-f]{32}$"},
        "A token's id: that of its root block.",
        example="0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    ),
}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One operation. `body` and `answer` are wire types, `scope` what the token must allow (the core checks it
    again for a command), `refusals` what it may answer besides what every route may."""

    method: Literal["GET", "POST", "PATCH"]
    path: str
    operation: str
    summary: str
    tag: str
    handler: Handler
    answer: Any = None
    body: type[msgspec.Struct] | None = None
    optional_body: bool = False
    status: int = 200
    query: tuple[Parameter, ...] = ()
    scope: Scope | None = None
    secured: bool = True
    refusals: tuple[type[MintyardError], ...] = ()
    media: str = "application/json"
    description: str = ""

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def names(self) -> tuple[str, ...]:
        """The path's parameters in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))


class Table:
    """Collects routes where their handlers are written."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.routes: list[Route] = []

    def add(
        self, method: Literal["GET", "POST", "PATCH"], path: str, summary: str, **about: Any
    ) -> Callable[[Handler], Handler]:
        """Register the function below as the handler of `method path`; its name is the operation's."""

        def register(handler: Handler) -> Handler:
            route = Route(
                method=method,
                path=path,
                summary=summary,
                tag=self.tag,
                operation=handler.__name__,  # pyright: ignore[reportAttributeAccessIssue] (a function has one)
                handler=handler,
                description=handler.__doc__ or "",
                **about,
            )
            self.routes.append(route)
            return handler

        return register


def changed(call: Call, answer: Any, struct: Any, status: int = 200) -> Answer:
    """The answer to a write: `struct`, and the record that holds it in a header."""
    return Answer(struct, status, [(b"x-mintyard-seq", b"%d" % answer.seq)])


def shown(struct: Any, seq: int | None = None) -> Answer:
    """The answer to a read as of record `seq`."""
    headers = [(b"x-mintyard-seq", b"%d" % seq)] if seq is not None else []
    return Answer(struct, 200, [*headers, (b"cache-control", b"no-store")])
