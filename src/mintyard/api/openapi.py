"""OpenAPI 3.1 made from the table of routes and the wire types, so that it can't say anything else than the
server does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

import mintyard
from mintyard.api.parameters import Parameter
from mintyard.api.routes import PATH_PARAMETERS, PREFIX, Route
from mintyard.api.table import ROUTES
from mintyard.domain import errors
from mintyard.domain.errors import MintyardError
from mintyard.domain.limits import MAX_BODY_BYTES
from mintyard.wire.problems import MEDIA_TYPE, ProblemDetails, details_of

_REF: Final = "#/components/schemas/{name}"
_ALWAYS: Final = (errors.InvalidRequest, MintyardError, errors.Overloaded)
_SECURED: Final = (
    errors.TokenMissing,
    errors.TokenMalformed,
    errors.TokenExpired,
    errors.TokenRevoked,
    errors.TokenWrongAudience,
    errors.ScopeMissing,
)
_BODY: Final = (errors.TooLarge, errors.MediaTypeUnsupported)
_WRITES: Final = (
    errors.TokenUnregistered,
    errors.TokenSuspended,
    errors.IdempotencyKeyInvalid,
    errors.IdempotencyKeyReused,
    errors.LimitReached,
    errors.StoreUnavailable,
    errors.CommitUnknown,
)
_READS: Final = (errors.NotCaughtUp, errors.NotLeader, errors.InvalidSpec)
_MEANING: Final = {
    400: "The request can't be read.",
    401: "No usable token was sent.",
    402: "The balance, a ceiling or the budget is too small; the answer says by how much.",
    403: "The token doesn't allow it.",
    404: "It doesn't exist, or belongs to others.",
    409: "It is in another state, or exists already.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "A value is impossible.",
    429: "A limit of the hub is reached.",
    500: "A fault of the hub.",
    503: "The hub can't answer now; send the same request again.",
}
KEY_HEADER: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A UUIDv7 made for this request. A repeat within 24 hours gets the same answer and has one effect.",
    "schema": {
        "type": "string",
        "minLength": 36,
        "maxLength": 36,
        "pattern": "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
    },
}
SEQ_HEADER: Final[dict[str, Any]] = {
    "name": "X-Mintyard-Min-Seq",
    "in": "header",
    "required": False,
    "description": "As the parameter `min_seq`; the later of both counts.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
}


def _components(routes: Iterable[Route]) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """The schema of each wire type by its identity, and all named schemas."""
    types: list[Any] = [ProblemDetails]
    for route in routes:
        types += [kind for kind in (route.body, route.answer) if kind is not None and kind not in types]
    schemas, named = msgspec.json.schema_components(types, ref_template=_REF)
    return {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}, named


def _parameter(parameter: Parameter, place: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": parameter.name,
        "in": place,
        "required": place == "path",
        "description": parameter.about,
        "schema": parameter.schema,
    }
    return made if parameter.example is None else made | {"example": parameter.example}


def _example(kind: type[MintyardError], request: str = "b1c2-1f") -> dict[str, Any]:
    return {"summary": kind.message, "value": msgspec.to_builtins(details_of(kind(), request))}


def refusals_of(route: Route) -> list[type[MintyardError]]:
    """Every error class that the route documents."""
    kinds = [*_ALWAYS, *route.refusals]
    if route.secured:
        kinds += _SECURED
    if route.body is not None or route.writes:
        kinds += _BODY
    kinds += _WRITES if route.writes else _READS
    if route.names:
        kinds.append(errors.NotFound)
    return list(dict.fromkeys(kinds))


def statuses_of(route: Route) -> set[int]:
    return {route.status, *(kind.status for kind in refusals_of(route))}


def _responses(route: Route, schemas: dict[int, dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.answer is not None:
        schema = schemas[id(route.answer)]
        if route.media == "text/event-stream":
            # Each event's data is one of these; the stream as a whole is text.
            schema = {"type": "string", "description": f"Events whose data is {schema.get('$ref', 'JSON')}."}
        content = {route.media: {"schema": schema}}
    headers: dict[str, Any] = {
        "X-Request-Id": {"description": "Names the request in the hub's log.", "schema": {"type": "string"}}
    }
    if route.answer is not None and route.secured and route.media == "application/json":
        headers["X-Mintyard-Seq"] = {
            "description": "The record of the journal that the answer holds or is as of.",
            "schema": {"type": "integer"},
        }
    if any(parameter.name == "cursor" for parameter in route.query):
        headers["Link"] = {"description": 'The next page, `rel="next"`.', "schema": {"type": "string"}}
    answers: dict[str, Any] = {
        str(route.status): {"description": route.summary + ".", "content": content, "headers": headers}
    }
    by_status: dict[int, list[type[MintyardError]]] = {}
    for kind in refusals_of(route):
        by_status.setdefault(kind.status, []).append(kind)
    for status, kinds in sorted(by_status.items()):
        made: dict[str, Any] = {
            "description": _MEANING.get(status, "A problem."),
            "content": {
                MEDIA_TYPE: {
                    "schema": schemas[id(ProblemDetails)],
                    "examples": {kind.code: {"$ref": f"#/components/examples/{kind.code}"} for kind in kinds},
                }
            },
        }
        if status in (429, 503):
            made["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
            }
        if status == 401:
            made["headers"] = {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}}
        answers[str(status)] = made
    return answers


def _operation(route: Route, schemas: dict[int, dict[str, Any]]) -> dict[str, Any]:
    parameters = [_parameter(PATH_PARAMETERS[name], "path") for name in route.names]
    parameters += [_parameter(parameter, "query") for parameter in route.query]
    if route.secured:
        parameters.append(KEY_HEADER if route.writes else SEQ_HEADER)
    made: dict[str, Any] = {
        "operationId": route.operation,
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": parameters,
        "responses": _responses(route, schemas),
        "security": [{"token": []}] if route.secured else [],
    }
    about = " ".join(route.description.split())
    if route.scope is not None:
        about = f"{about} Needs the scope `{route.scope.value}`.".strip()
    if about:
        made["description"] = about
    if route.body is not None:
        made["requestBody"] = {
            "required": not route.optional_body,
            "content": {"application/json": {"schema": schemas[id(route.body)]}},
        }
    return made


def document() -> dict[str, Any]:
    """The whole description of `/api/v1`, ready for JSON."""
    schemas, named = _components(ROUTES)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "mintyard",
            "version": mintyard.__version__,
            "summary": "Compute tokens, balances and jobs of one AI compute centre.",
            "description": (
                "Amounts are decimal strings, instants RFC 3339 in UTC, everything bounded. Errors are problem "
                "documents (RFC 9457) with a stable `code`. What belongs to other accounts is answered as if it "
                f"did not exist. Bodies have at most {MAX_BODY_BYTES} bytes. A request that changes something and carries "
                "an `Idempotency-Key` (a UUIDv7 made within the last 24 hours) may be sent again: it is done once."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in ROUTES)],
        "paths": paths,
        "components": {
            "schemas": named,
            "examples": {
                kind.code: _example(kind)
                for kind in sorted(
                    {kind for route in ROUTES for kind in refusals_of(route)}, key=lambda kind: kind.code
                )
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "Biscuit",
                    "description": "A compute token, as `POST /api/v1/tokens` mints it or a bearer narrowed it.",
                }
            },
        },
    }
