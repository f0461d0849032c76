"""Application: the ASGI app of one API process - what surrounds every request, the routes, and the service's
own pages."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog
from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from mintyard.api.answers import Answer, problem
from mintyard.api.call import Services
from mintyard.api.endpoint import Served, endpoint, failed
from mintyard.api.metrics import HttpMetrics, hub_lines
from mintyard.api.openapi import document
from mintyard.api.resources.service import readiness
from mintyard.api.routes import PREFIX
from mintyard.api.table import ROUTES
from mintyard.app.questions import Counts, CountState
from mintyard.domain.errors import InvalidRequest, MethodNotAllowed, MintyardError, NotFound, Overloaded
from mintyard.domain.units import NS_PER_S
from mintyard.telemetry.metrics import ledger_lines

_log = structlog.get_logger(__name__)
DEFAULT_INFLIGHT: Final = 2_048
_COUNTS_LIFE_S: Final = 1.0
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_FREE: Final = frozenset({"/health", "/ready", "/metrics"})
"""Answered also when too many requests are under way."""
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


class Application:
    """The ASGI callable. Every request gets an id, a place in the count of those under way, and a line in the
    metrics; a request too many is told to come again. `draining` is set when the process is about to end."""

    def __init__(
        self,
        services: Services,
        metrics: HttpMetrics | None = None,
        inflight: int = DEFAULT_INFLIGHT,
        published: Callable[[], str] = str,
    ) -> None:
        self.services = services
        self.metrics = metrics or HttpMetrics()
        self.draining = False
        self._most = inflight
        self._published = published
        self._ids = _ids()
        self._counts: tuple[float, Counts | None] = (0.0, None)
        self._litestar = self._build()

    def _build(self) -> Litestar:
        handlers: list[HTTPRouteHandler] = []
        self._direct: dict[tuple[str, str], Served] = {}
        for route in ROUTES:
            served = endpoint(route, self.services, self.metrics)
            path = PREFIX + route.path
            handler = HTTPRouteHandler(_typed(path), http_method=route.method, status_code=route.status)
            handlers.append(handler(_annotated(served)))
            if not route.names:
                self._direct[route.method, path] = served
        specification = msgspec.json.encode(document())
        own = {
            PREFIX + "/openapi.json": lambda: _ready_answer(specification),
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
        }
        for path, page in own.items():
            handlers.append(HTTPRouteHandler(path, http_method="GET")(_annotated(_page(page))))
        self._allowed = {
            path: ", ".join(sorted([*methods, "OPTIONS"])).encode()
            for path, methods in _methods([*own]).items()
        }
        return Litestar(
            route_handlers=handlers,
            openapi_config=None,
            logging_config=None,
            exception_handlers={Exception: self._outside},
        )

    def drain(self) -> None:
        """No new request is taken, streams end soon, those under way are ended in peace."""
        self.draining = True
        self.services.streams.end()

    # --- around every request --------------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._litestar(scope, receive, send)
            return
        begun = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else next(self._ids)
        state = dict(scope.get("state") or ())
        state["headers"], state["request_id"] = headers, request_id.decode()
        # Ids may hold slashes, sent as %2F: routes are matched before decoding.
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.split(b"?")[0].decode("latin-1")
        scope = {**scope, "state": state, "path": path}
        status = 500

        async def tell(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if scope["method"] == "OPTIONS":
                    self._allow(scope, message)
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        metrics = self.metrics
        metrics.inflight += 1
        try:
            if (
                metrics.inflight - self.services.streams.open > self._most or self.draining
            ) and path not in _FREE:
                error = Overloaded(retry_after_s=1)
                await failed(error, state["request_id"], metrics, "")(scope, receive, tell)
            elif (served := self._direct.get((scope["method"], path))) is not None:
                # A path without parameters needs no router, whose way costs as much as all the rest of a submit.
                scope |= {"path_template": path, "path_params": {}}
                await (await served(_Received(scope, receive)))(scope, receive, tell)
            else:
                await self._litestar(scope, receive, tell)
        finally:
            metrics.inflight -= 1
            metrics.observe(_template(scope), _method(scope["method"]), status, time.perf_counter() - begun)

    def _allow(self, scope: Any, message: Any) -> None:
        """OPTIONS names all methods of the path, where Litestar names those of one of its handlers."""
        allowed = self._allowed.get(_template(scope))
        if allowed is not None:
            kept = [pair for pair in message["headers"] if pair[0].lower() != b"allow"]
            message["headers"] = [*kept, (b"allow", allowed)]

    def _outside(self, request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        """Errors that no endpoint has seen: unknown paths and methods."""
        scope: Any = request.scope
        request_id = scope["state"].get("request_id", "")
        headers: dict[str, str] = {}
        status = error.status_code if isinstance(error, HTTPException) else 500
        path = scope["path"][:128]
        if status == 404:
            told: MintyardError = NotFound(what="route", name=path)
        elif status == 405 and isinstance(error, HTTPException):
            allowed = (error.headers or {}).get("allow", "")
            headers["allow"] = allowed
            told = MethodNotAllowed(method=str(scope["method"])[:16], path=path, allowed=allowed)
        elif status < 500:
            told = InvalidRequest(why="it can't be read")
        else:
            _log.exception("a request failed", request=request_id, exc_info=error)
            told = MintyardError()
        self.metrics.refuse(told.code)
        answer = problem(told, request_id)
        for name, value in answer.headers:
            headers[name.decode()] = value.decode()
        return Response(
            answer.body, status_code=answer.status, headers=headers, media_type=answer.media.decode()
        )

    # --- the service's own pages -----------------------------------------------------------------------------------

    async def _health(self) -> Answer:
        return Answer({"status": "alive"})

    async def _ready(self) -> Answer:
        if self.draining:
            return Answer({"status": "draining"}, 503, [(b"retry-after", b"1")])
        ready, found = await readiness(self.services, self._look)
        found = {"status": "ready" if ready else "not ready", **found}
        return Answer(found, 200 if ready else 503, [] if ready else [(b"retry-after", b"1")])

    async def _look(self, query: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.services.threads, query, *args)

    async def _metrics(self) -> Answer:
        self.metrics.token_misses = self.services.gate.validator.misses
        text = self.metrics.render()
        counts = await self._count()
        if counts is not None:
            kinds = {"jobs": counts.jobs, "nodes": counts.nodes, "tokens": counts.tokens}
            text += hub_lines(kinds, counts.now / NS_PER_S, counts.seq)
            text += ledger_lines(counts.ledger, counts.used, counts.total)
        text += await self._look(self._published)
        return Answer(body=text.encode(), media=_TEXT)

    async def _count(self) -> Counts | None:
        """Counts of the hub's state, at most a second old; None when the planner can't say."""
        at, counts = self._counts
        if time.monotonic() - at >= _COUNTS_LIFE_S:
            try:
                found = await self.services.link.ask(CountState())
                counts = found if isinstance(found, Counts) else None
            except MintyardError:
                counts = None
            self._counts = (time.monotonic(), counts)
        return counts


class _Received:
    """What an endpoint needs of a request."""

    __slots__ = ("receive", "scope")

    def __init__(self, scope: Any, receive: Any) -> None:
        self.scope = scope
        self.receive = receive


def _ids() -> Any:
    """Request ids of this process: random at its start, then counted."""
    lead = secrets.token_hex(6).encode()
    return (lead + b"-%x" % number for number in itertools.count(1))


def _annotated(function: Any) -> Any:
    """Litestar reads signatures: a request in, an ASGI app out."""
    function.__annotations__ = {"request": Request, "return": ASGIApp}
    return function


def _page(page: Any) -> Any:
    async def serve(request: Any) -> Any:
        found = page()
        return found if isinstance(found, Answer) else await found

    return serve


def _ready_answer(body: bytes) -> Answer:
    return Answer(body=body, headers=[(b"cache-control", b"max-age=60")])


def _template(scope: Any) -> str:
    """The route's template: the only form in which a path may be a label."""
    template = scope.get("path_template", "")
    return template.replace(":str}", "}") if template else "unknown"


def _method(method: str) -> str:
    return method if method in ("GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS") else "other"


def _typed(path: str) -> str:
    """Litestar's form of a template: parameters with their type; ours are read by `endpoint`."""
    return re.sub(r"\{(\w+)\}", r"{\1:str}", path)


def _methods(own: list[str]) -> dict[str, list[str]]:
    """What each path answers to, by path."""
    methods = {path: ["GET"] for path in own}
    for route in ROUTES:
        methods.setdefault(PREFIX + route.path, []).append(route.method)
    return methods
