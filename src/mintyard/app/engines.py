"""Which engine runs the jobs, by kind: the name of an entry point of the group `mintyard.engines`.

Nothing here knows an adapter. A third party adds one by an entry point `KIND = "package.module:factory"`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

from mintyard.app.config import Config
from mintyard.domain.errors import EngineUnavailable, InvalidRequest
from mintyard.ports.engine import Engine

GROUP: Final = "mintyard.engines"


def engine_of(config: Config) -> Engine:
    """The engine that the configuration names, opened. `InvalidRequest` for an unknown kind or option,
    `EngineUnavailable` when it can't work here."""
    kind = config.engine
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if kind not in found:
        raise InvalidRequest(why=f"no engine is known for {kind!r}; there are {', '.join(sorted(found))}")
    try:
        factory = found[kind].load()
    except ImportError as error:
        why = f"its adapter can't be loaded ({error}); install mintyard[hub]"
        raise EngineUnavailable(engine=kind, why=why) from error
    try:
        return factory(**engine_options(config))
    except TypeError as error:
        raise InvalidRequest(why=f"options of engine {kind}: {error}") from error


def engine_options(config: Config) -> dict[str, Any]:
    """The engine's options; the local engine keeps its state in the hub's folder unless told otherwise."""
    options = dict(config.engine_options)
    if config.engine == "local":
        options.setdefault("state", str(config.path / "engine"))
    return options


def kinds() -> list[str]:
    """The kinds for which an adapter is installed."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})
