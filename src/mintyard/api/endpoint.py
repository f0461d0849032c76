"""Endpoint: one request through one route - admit, decode, handle, answer - and the same treatment of every
error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol
from urllib.parse import unquote_to_bytes

import msgspec
import structlog
from litestar.types import ASGIApp

from mintyard.api.answers import Answer, Stream, is_fault, problem
from mintyard.api.call import Call, Services
from mintyard.api.metrics import HttpMetrics
from mintyard.api.parameters import Parameter, read_query, read_value
from mintyard.api.routes import PATH_PARAMETERS, Route
from mintyard.domain.errors import InvalidRequest, MintyardError, NotFound, NotLeader
from mintyard.domain.limits import MAX_NAME_CHARS

_log = structlog.get_logger(__name__)
MAX_SILENCE_S: Final = 10.0
"""Reads stop when the leader was not heard for so long: a revocation could have been missed."""


class Received(Protocol):
    """What is used of a request: a Litestar `Request` is one."""

    @property
    def scope(self) -> Any: ...

    @property
    def receive(self) -> Any: ...


Served = Callable[[Received], Awaitable[ASGIApp]]


def endpoint(route: Route, services: Services, metrics: HttpMetrics) -> Served:
    """The Litestar handler of `route`."""
    decoder = msgspec.json.Decoder(route.body) if route.body is not None else None
    declared = {parameter.name: parameter for parameter in route.query}
    names = [PATH_PARAMETERS[name] for name in route.names]

    async def serve(request: Received) -> ASGIApp:
        scope: Any = request.scope
        state = scope["state"]
        headers: dict[bytes, bytes] = state["headers"]
        call = Call(services, headers, request.receive, state["request_id"])
        try:
            if route.secured:
                _admit(call, route)
            if declared or scope["query_string"]:
                call.query = read_query(scope["query_string"], declared)
            for parameter in names:
                call.path[parameter.name] = _path_value(parameter, scope["path_params"][parameter.name])
            if route.writes:
                _ = call.base  # a key that can't be is refused also where nothing reaches the core
            elif route.secured:
                _ = call.min_seq
            if decoder is not None:
                body = await call.decode(decoder, optional=route.optional_body)
                return await route.handler(call, body)
            if route.writes:
                await _no_body(call)
            return await route.handler(call)
        except MintyardError as error:
            return failed(error, call.request_id, metrics, route.path)
        except Exception:  # noqa: BLE001 (a request must be answered, whatever failed)
            _log.exception("a request failed", request=call.request_id, route=route.path)
            return failed(MintyardError(), call.request_id, metrics, route.path)

    serve.__name__ = route.operation
    return serve


def failed(error: MintyardError, request_id: str, metrics: HttpMetrics, route: str) -> Answer:
    """The answer to an error, counted; ours are logged, the caller's are not."""
    metrics.refuse(error.code)
    if is_fault(error):
        _log.error("a request failed", request=request_id, route=route, code=error.code, why=str(error))
    return problem(error, request_id)


def _admit(call: Call, route: Route) -> None:
    services = call.services
    if not route.writes and services.feed.silent_s > MAX_SILENCE_S:
        raise NotLeader()
    call.authority = services.gate.admit(call.headers.get(b"authorization"), services.now())
    if route.scope is not None:
        call.need(route.scope)


def _path_value(parameter: Parameter, raw: str) -> Any:
    """The decoded value; one that nothing can be called is simply not found."""
    try:
        value = unquote_to_bytes(raw).decode()
        if not value or len(value) > MAX_NAME_CHARS or not value.isprintable():
            raise ValueError
        return read_value(parameter, value)
    except (ValueError, InvalidRequest):
        raise NotFound(what=parameter.name, name=raw[:MAX_NAME_CHARS]) from None


async def _no_body(call: Call) -> None:
    body = await call.body()
    if body.strip() not in (b"", b"{}"):
        raise InvalidRequest(why="this request takes no body")


__all__ = ["Received", "Served", "Stream", "endpoint", "failed"]
