"""Configuration of a hub: one typed record from flags, environment, file and defaults, in this order of precedence.

A setting has one name: `log_level` in `mintyard.toml`, `MINTYARD_LOG_LEVEL` in the environment, `--log-level` as a flag.
Tables (`engine_options`) are JSON in the environment. Unknown names are refused, with the likely one meant.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from mintyard.domain.errors import ConfigInvalid, InvalidName
from mintyard.domain.ids import check_name
from mintyard.domain.limits import MAX_INFLIGHT_COMMANDS, MAX_LEASE_LIFE_MS
from mintyard.domain.scheduling.choices import DEFAULT_BACKFILL, DEFAULT_ORDER

PREFIX: Final = "MINTYARD_"
CONFIG_FILE: Final = "mintyard.toml"
ENV_CONFIG: Final = "MINTYARD_CONFIG"
_OTHERS: Final = frozenset(
    PREFIX + name
    for name in (
        "CONFIG",
        "HOME",
        "TOKEN",
        "KEYS",
        "HUB",
        "CONTEXT",
        "DATA",
        "JOB",
        "ATTEMPT",
        "ACCOUNT",
        "NODE",
        "RANK",
    )
)
"""Variables of the client and of jobs."""
_LIKELY: Final = 0.82
_NAMES: Final = {"name": "hub", "currency": "currency"}


def _default_folder() -> str:
    base = os.environ.get("XDG_DATA_HOME") or ""
    return str((Path(base) if base.startswith("/") else Path.home() / ".local" / "share") / "mintyard")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. Empty `store`, `read_model` and `url` follow from the others."""

    folder: str = msgspec.field(default_factory=_default_folder)
    """Where the hub keeps its keys, journal, read model, engine state and logs."""
    name: str = "mintyard"
    """The hub's name, given at the first start; the audience that tokens name."""
    currency: str = "USD"
    store: str = ""
    """URL of the journal's store; default: SQLite in the folder."""
    read_model: str = ""
    """URL of the read model's database; default: SQLite in the folder."""
    engine: str = "local"
    engine_options: dict[str, Any] = {}
    """Options of the engine, such as `nodes` (declared virtual nodes) of the local one."""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    """0: any free one, see the ready file."""
    url: str = ""
    """Where clients and jobs reach the hub."""
    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    """API processes."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    lease_ms: Annotated[int, Meta(ge=500, le=MAX_LEASE_LIFE_MS)] = 10_000
    """How long a writer leads without renewing."""
    tick_ms: Annotated[float, Meta(ge=0.0, le=1_000.0)] = 2.0
    """Ticks under load are at least this far apart."""
    round_limit: Annotated[int, Meta(ge=1, le=100_000)] = 1_024
    """Starts planned in one round."""
    backfill: Literal["nodes", "easy", "conservative"] = DEFAULT_BACKFILL.value
    """How jobs that don't fit are kept from waiting for ever: whole nodes after a minute, or starts reserved by time limits."""
    order: Literal["ageing", "response_ratio"] = DEFAULT_ORDER.value
    """Whether priorities age by one scale for all, or each by its predicted run time, which favours short jobs."""
    max_inflight: Annotated[int, Meta(ge=1, le=MAX_INFLIGHT_COMMANDS)] = MAX_INFLIGHT_COMMANDS
    """Commands taken and not answered, beyond which the hub is overloaded."""
    stop_s: Annotated[float, Meta(ge=0.0, le=3_600.0)] = 30.0
    """How long an orderly stop may take."""
    restart_pause_s: Annotated[float, Meta(ge=0.05, le=3_600.0)] = 10.0
    """The longest pause before a process of the hub that keeps dying is started again."""

    @property
    def path(self) -> Path:
        return Path(self.folder).expanduser().absolute()

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.path / 'journal' / 'journal.db'}"

    @property
    def read_model_url(self) -> str:
        return self.read_model or f"sqlite:///{self.path / 'read_model' / 'read_model.db'}"

    @property
    def public_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.url or f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{self.port}"  # noqa: S104

    @property
    def keys_folder(self) -> Path:
        return self.path / "keys"

    @property
    def run_folder(self) -> Path:
        """Sockets, pid and ready files of the running hub."""
        return self.path / "run"


FIELDS: Final = tuple(Config.__struct_fields__)


def load_config(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | str | None = None,
) -> Config:
    """The configuration in force. `flags` maps names to values, None meaning not given.

    The file is `file`, else `MINTYARD_CONFIG`, else `mintyard.toml` in the folder that flags or environment name (or the
    default one), when there is one. `ConfigInvalid` names source, setting and reason."""
    environment = os.environ if environment is None else environment
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    _check_names(given, "flags")
    from_env = _from_environment(environment)
    named = file or environment.get(ENV_CONFIG) or ""
    folder = str(given.get("folder") or from_env.get("folder") or _default_folder())
    path = Path(named).expanduser() if named else Path(folder).expanduser() / CONFIG_FILE
    from_file = _from_file(path, required=bool(named))
    merged: dict[str, Any] = {}
    for source, values in ((str(path), from_file), ("environment", from_env), ("flags", given)):
        for name, value in values.items():
            merged[name] = _checked(source, name, value, strict=values is from_file)
    return Config(**merged)


def _checked(source: str, name: str, value: Any, *, strict: bool) -> Any:
    """One value in its type, within its bounds; names as the core will want them, before anything is started."""
    try:
        found = getattr(msgspec.convert({name: value}, Config, strict=strict), name)
        return check_name(_NAMES[name], found) if name in _NAMES else found
    except msgspec.ValidationError as error:
        why = str(error).replace(f" - at `$.{name}", " - at `$").removesuffix(" - at `$`")
    except InvalidName as error:
        why = str(error).rstrip(".")
    raise ConfigInvalid(source=source, field=name, why=why, suggestion="")


def _from_file(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        with path.open("rb") as opened:
            values = tomllib.load(opened)
    except FileNotFoundError:
        if required:
            raise ConfigInvalid(
                source=str(path), field="file", why="it does not exist", suggestion=""
            ) from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigInvalid(
            source=str(path), field="file", why=f"it can't be read ({error})", suggestion=""
        ) from None
    _check_names(values, str(path))
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    names = {PREFIX + name.upper(): name for name in FIELDS}
    for variable, text in environment.items():
        if variable in names and text:
            values[names[variable]] = _table(variable, text) if variable.endswith("_OPTIONS") else text
        elif variable.startswith(PREFIX) and variable not in names and variable not in _OTHERS:
            likely = difflib.get_close_matches(variable, names, 1, _LIKELY)
            if likely:
                raise ConfigInvalid(
                    source="environment",
                    field=variable,
                    why="unknown",
                    suggestion=f" Did you mean {likely[0]}?",
                )
    return values


def _table(variable: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigInvalid(
            source="environment", field=variable, why=f"no JSON object ({error})", suggestion=""
        ) from None


def _check_names(values: Mapping[str, Any], source: str) -> None:
    for name in values:
        if name not in FIELDS:
            likely = difflib.get_close_matches(name, FIELDS, 1, 0.6)
            suggestion = f" Did you mean {likely[0]}?" if likely else ""
            raise ConfigInvalid(
                source=source, field=name, why="there is no such setting", suggestion=suggestion
            )
