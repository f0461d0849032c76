"""The parts of the API that need no hub: notations, parameters, the description, metrics, the minter's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.api.answers import problem
from mintyard.api.metrics import HttpMetrics
from mintyard.api.openapi import document, statuses_of
from mintyard.api.parameters import LIMIT, flag, instant, read_query
from mintyard.api.routes import PREFIX
from mintyard.api.table import ROUTES
from mintyard.domain.errors import InvalidRequest, InvalidSpec, Overloaded, ScopeMissing, TokenExpired
from mintyard.wire.bounds import format_instant, parse_instant
from mintyard.wire.problems import ProblemDetails, details_of, error_of


@given(st.integers(0, 2**63 - 1))
def test_instants_survive(ns: int) -> None:
    assert parse_instant(format_instant(ns), "at") == ns


@pytest.mark.parametrize(
    "text",
    ["", "2030-01-01", "2030-01-01T00:00:00", "2030-02-30T00:00:00Z", "2030-01-01t00:00:00Z", "1969-12-31T23:59:59Z",
     "2300-01-01T00:00:00Z", "2030-01-01T00:00:00.1234567890Z", "2030-01-01T00:00:00Z\n", "٢٠٣٠-01-01T00:00:00Z", "now"],
)  # fmt: skip
def test_what_is_no_instant(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_instant(text, "at")


def test_zones_are_understood() -> None:
    assert parse_instant("2030-01-01T01:00:00.5+01:00", "at") == parse_instant("2030-01-01T00:00:00.5Z", "at")


DECLARED = {parameter.name: parameter for parameter in (LIMIT, flag("dry_run", ""), instant("since", ""))}


def test_queries_are_read() -> None:
    assert read_query(b"", DECLARED) == {"limit": 100, "dry_run": False, "since": None}
    found = read_query(b"limit=7&dry_run=true&since=1970-01-01T00:00:01Z", DECLARED)
    assert found == {"limit": 7, "dry_run": True, "since": 10**9}


@given(st.binary(max_size=200))
def test_no_query_breaks_the_reader(raw: bytes) -> None:
    try:
        read_query(raw, DECLARED)
    except (InvalidRequest, InvalidSpec):
        pass


@pytest.mark.parametrize(
    "raw", [b"limit=+1", b"limit=1_0", b"limit=", b"dry_run=1", b"limit=\xd9\xa3", b"limit"]
)
def test_loose_values_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_query(raw, DECLARED)


def test_problems_come_back_as_the_error_they_were() -> None:
    details = details_of(ScopeMissing(scope="job:read"), "r-1")
    again = error_of(msgspec.json.decode(msgspec.json.encode(details), type=ProblemDetails))
    assert isinstance(again, ScopeMissing)
    assert again.params == {"scope": "job:read"}


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (Overloaded(retry_after_s=7), b"retry-after", b"7"),
        (
            TokenExpired(expired_at="x"),
            b"www-authenticate",
            b'Bearer realm="mintyard", error="invalid_token"',
        ),
    ],
)
def test_errors_bring_their_headers(error: Any, name: bytes, value: bytes) -> None:
    assert dict(problem(error, "r").headers)[name] == value


def test_the_description_has_every_route_and_every_answer() -> None:
    described = json.loads(msgspec.json.encode(document()))
    operations = {
        (method.upper(), path): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }
    assert set(operations) == {(route.method, PREFIX + route.path) for route in ROUTES}
    assert len({operation["operationId"] for operation in operations.values()}) == len(ROUTES)
    for route in ROUTES:
        operation = operations[route.method, PREFIX + route.path]
        assert {int(status) for status in operation["responses"]} == statuses_of(route)
        assert operation["security"] == ([{"token": []}] if route.secured else [])
    references = {
        text.split('"')[0] for text in json.dumps(described).split('"$ref": "#/components/schemas/')[1:]
    }
    assert references <= set(described["components"]["schemas"])


def test_siblings_counts_are_added_up(tmp_path: Path) -> None:
    first, second = HttpMetrics(tmp_path), HttpMetrics(tmp_path)
    second._file = "http-1.msgpack"  # another process, which still lives
    for metrics in (first, second):
        metrics.observe("/api/v1/jobs", "POST", 201, 0.003)
        metrics.refuse("not_found")
    second.observe("/api/v1/jobs", "POST", 201, 60.0)
    second.publish()
    text = first.render()
    labels = 'route="/api/v1/jobs",method="POST",status="201"'
    assert f'mintyard_http_request_seconds_bucket{{{labels},le="0.005"}} 2' in text
    assert f'mintyard_http_request_seconds_bucket{{{labels},le="+Inf"}} 3' in text
    assert f"mintyard_http_request_seconds_count{{{labels}}} 3" in text
    assert 'mintyard_http_problems_total{code="not_found"} 2' in text
