"""Engines: adapters of the Engine port, found by the entry point group `mintyard.engines`.

Importing this package imports no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from mintyard.domain.errors import InvalidRequest, NotFound
from mintyard.ports.engine import Engine

GROUP: Final = "mintyard.engines"


def engine_kinds() -> list[str]:
    """The kinds that are installed, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def open_engine(kind: str, options: Mapping[str, Any]) -> Engine:
    """An engine of `kind` (`local`, `simulated`, or one that another package brings).

    `options` are the keyword arguments of its factory. Raises `NotFound` for an unknown kind, `InvalidRequest` for
    options it doesn't know, `EngineUnavailable` when it can't work here."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in found:
        raise NotFound(what="engine", name=kind)
    factory = found[kind].load()
    try:
        return factory(**options)
    except TypeError as error:
        raise InvalidRequest(why=f"options of engine {kind}: {error}") from error
