"""Pages for operators: configuration and metrics."""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from typing import Any

import msgspec
from scripts.docs.markdown import class_fields, code, page, prose, table

from mintyard.api.metrics import HttpMetrics, hub_lines
from mintyard.app import assembly, config
from mintyard.telemetry.metrics import WriterMetrics, ledger_lines


def pages() -> dict[str, str]:
    return {"configuration.md": _configuration(), "metrics.md": _metrics()}


def _configuration() -> str:
    notes = class_fields(config.Config)
    hints = typing.get_type_hints(config.Config, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(config.Config):
        default = "in the user's data folder" if field.name == "folder" else code(_written(field.default))
        rows.append(
            (
                code(field.name),
                code(config.PREFIX + field.name.upper()),
                code("--" + field.name.replace("_", "-")),
                _kind(hints[field.name]),
                default,
                notes.get(field.name, ""),
            )
        )
    return page(
        "Configuration",
        prose(config.__doc__),
        "The file is the one that `MINTYARD_CONFIG` names, else `mintyard.toml` in the hub's folder.",
        table(("in the file", "environment", "flag", "type", "default", "about"), rows),
    )


def _written(default: Any) -> str:
    if default is msgspec.NODEFAULT:
        return "{}"
    return '""' if default == "" else str(default)


def _kind(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Annotated:
        inner, *marks = typing.get_args(hint)
        bounds = [m for m in marks if isinstance(m, msgspec.Meta)]
        return f"{_kind(inner)} from {bounds[0].ge:,} to {bounds[0].le:,}" if bounds else _kind(inner)
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(code(value) for value in typing.get_args(hint))
    if typing.get_origin(hint) is dict:
        return "table"
    assert isinstance(hint, type)
    assert not isinstance(hint, types.GenericAlias)
    return {"str": "text", "int": "whole number", "float": "number"}[hint.__name__]


def _metrics() -> str:
    writer = WriterMetrics()
    watched = _watched()
    http = HttpMetrics()
    http.observe("/jobs", "POST", 200, 0.01)
    http.refuse("quota_exhausted")
    counts = {"jobs": {"running": 1}, "nodes": {"ready": 1}, "tokens": {"active": 1}}
    parts = (
        ("Writer", writer.render(), "Counted where commands are decided and records are written."),
        ("HTTP", http.render(), "Summed over the API processes."),
        ("State", hub_lines(counts, 0.0, 1), "Counted in the state that the planner follows."),
        (
            "Ledger",
            ledger_lines({"money": {"held": 1}}, {"gpus": 1}, {"gpus": 1}),
            "Sums over the whole hub.",
        ),
    )
    shown = [
        (
            "`GET /metrics` on the hub's port, in Prometheus text form, needs no token. Names end with their unit; no label "
            "holds what a caller chose."
        )
    ]
    for title, text, about in parts:
        rows = _families(text)
        if title == "Writer":
            rows += [(code(f"mintyard_{name}"), "gauge", "", help_text) for name, help_text in watched]
        shown += [f"## {title}", about, table(("metric", "type", "labels", "about"), rows)]
    return page("Metrics", *shown)


def _families(text: str) -> list[tuple[str, str, str, str]]:
    """Name, type, labels and help of each family in Prometheus text."""
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    rows = []
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
        if name.endswith("_created"):
            continue
        sample = re.search(rf"^{re.escape(name)}(?:_bucket|_total)?\{{(.*)\}} ", text, re.M)
        labels = [label for label in re.findall(r"(\w+)=", sample[1]) if label != "le"] if sample else []
        labels = labels or list(_declared_labels(name))
        rows.append((code(name), kind, ", ".join(map(code, labels)), helps.get(name, "")))
    return rows


def _declared_labels(name: str) -> tuple[str, ...]:
    """Labels of a family that has no sample yet."""
    for value in vars(WriterMetrics()).values():
        if getattr(value, "_name", "") == name.removesuffix("_total"):
            return tuple(value._labelnames)
    return ()


def _watched() -> list[tuple[str, str]]:
    """The gauges that `LeaderSide` adds, read from its source."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(assembly))) if isinstance(node, ast.Call)]
    return [
        (str(call.args[0].value), str(call.args[1].value))
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "watch"
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[1], ast.Constant)
    ]
