"""Store: where a client keeps its token and the key set beside it; one named context for each hub.

Order of precedence: `MINTYARD_TOKEN` (with `MINTYARD_KEYS`, a key set as JSON, and `MINTYARD_HUB`), which is how a job
gets its own; then the context named by `MINTYARD_CONTEXT`; then the current context of the file. The file is
`$MINTYARD_HOME/credentials.json`, else `$XDG_CONFIG_HOME/mintyard/credentials.json`, else under `~/.config`, readable
by its owner only and replaced whole. No network and no verification here.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from mintyard.credentials.keys import MAX_KEY_SET_BYTES, KeySet, check_key_set, decode_key_set, write_private
from mintyard.domain.errors import CredentialsDamaged, LimitReached, NotFound, TokenMissing
from mintyard.domain.ids import check_name

ENV_HOME: Final = "MINTYARD_HOME"
ENV_TOKEN: Final = "MINTYARD_TOKEN"  # noqa: S105 (the variable's name)
ENV_KEYS: Final = "MINTYARD_KEYS"
ENV_HUB: Final = "MINTYARD_HUB"
ENV_CONTEXT: Final = "MINTYARD_CONTEXT"
CREDENTIALS_FILE: Final = "credentials.json"
CREDENTIALS_FORMAT: Final = 1
MAX_CONTEXTS: Final = 100
DEFAULT_CONTEXT: Final = "default"


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """One hub: its URL, the token used there, the hub's public keys. The text form hides the token."""

    hub: str = ""
    token: str = ""
    keys: KeySet | None = None

    def __repr__(self) -> str:
        return f"Context(hub={self.hub!r}, token={'***' if self.token else ''!r})"


class Credential(msgspec.Struct, frozen=True):
    """What a client uses now: `source` says where it came from, `warnings` what its owner should know."""

    token: str
    hub: str
    keys: KeySet | None
    source: str
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Credential(hub={self.hub!r}, source={self.source!r})"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int = CREDENTIALS_FORMAT
    current: str = ""
    contexts: dict[str, Context] = {}


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """The client's folder. Empty variables count as unset, a relative XDG path is ignored (XDG Base Directory)."""
    chosen = environment.get(ENV_HOME)
    if chosen:
        return Path(chosen).expanduser()
    base = environment.get("XDG_CONFIG_HOME") or ""
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "mintyard"


class CredentialStore:
    """The credentials file in `folder`. Writers take turns by a lock file, so that two logins lose nothing."""

    def __init__(self, folder: Path | str | None = None, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._folder = Path(folder) if folder is not None else home(environment)
        self.path = self._folder / CREDENTIALS_FILE

    def contexts(self) -> dict[str, Context]:
        """All contexts by name; `CredentialsDamaged`."""
        return dict(self._load()[0].contexts)

    @property
    def current(self) -> str:
        """Name of the context in use, empty when there is none."""
        return self._environment.get(ENV_CONTEXT) or self._load()[0].current

    def save(self, name: str, context: Context) -> None:
        """Keep `context` under `name` and make it the current one."""
        check_name("context", name)
        if context.keys is not None:
            check_key_set(context.keys)
        with self._change() as file:
            if name not in file.contexts and len(file.contexts) >= MAX_CONTEXTS:
                raise LimitReached(limit=MAX_CONTEXTS, what="contexts")
            self._write(_File(current=name, contexts={**file.contexts, name: context}))

    def use(self, name: str) -> None:
        """Make `name` the current context; `NotFound`."""
        with self._change() as file:
            if name not in file.contexts:
                raise NotFound(what="context", name=name[:128])
            self._write(msgspec.structs.replace(file, current=name))

    def remove(self, name: str) -> None:
        """Forget `name` with its token; `NotFound`. The last one left becomes the current one."""
        with self._change() as file:
            if name not in file.contexts:
                raise NotFound(what="context", name=name[:128])
            rest = {key: context for key, context in file.contexts.items() if key != name}
            current = file.current if file.current != name else (next(iter(rest)) if len(rest) == 1 else "")
            self._write(_File(current=current, contexts=rest))

    def credential(self, context: str = "") -> Credential:
        """The token to use, by precedence, or from `context` when named; `TokenMissing`, `NotFound`, `KeySetInvalid`."""
        token = self._environment.get(ENV_TOKEN, "").strip()
        if token and not context:
            text = self._environment.get(ENV_KEYS, "")
            hub = self._environment.get(ENV_HUB, "")
            return Credential(token, hub, decode_key_set(text) if text else None, ENV_TOKEN)
        file, warnings = self._load()
        name = context or self._environment.get(ENV_CONTEXT) or file.current
        if not name:
            raise TokenMissing()
        found = file.contexts.get(name)
        if found is None:
            raise NotFound(what="context", name=name[:128])
        if not found.token:
            raise TokenMissing()
        hub = self._environment.get(ENV_HUB) or found.hub
        return Credential(found.token, hub, found.keys, f"{self.path} ({name})", warnings)

    def _load(self) -> tuple[_File, tuple[str, ...]]:
        try:
            with self.path.open("rb") as opened:
                mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
                data = opened.read(MAX_CONTEXTS * MAX_KEY_SET_BYTES)
        except FileNotFoundError:
            return _File(), ()
        except OSError as error:
            raise CredentialsDamaged(
                path=str(self.path), why=error.strerror or "it can't be opened"
            ) from None
        try:
            file = msgspec.json.decode(data, type=_File)
        except msgspec.DecodeError as error:
            why = "it holds other fields" if isinstance(error, msgspec.ValidationError) else "it is no JSON"
            raise CredentialsDamaged(path=str(self.path), why=why) from None
        if file.format != CREDENTIALS_FORMAT:
            raise CredentialsDamaged(path=str(self.path), why=f"its format is {file.format}")
        for context in file.contexts.values():
            if context.keys is not None:
                check_key_set(context.keys)
        if mode & 0o077:
            warning = (
                f"{self.path} can be read by others (mode {mode:04o}): run chmod 600 and replace its tokens"
            )
            return file, (warning,)
        return file, ()

    @contextmanager
    def _change(self) -> Iterator[_File]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / ".credentials.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self._load()[0]
        finally:
            os.close(descriptor)

    def _write(self, file: _File) -> None:
        write_private(self.path, msgspec.json.format(msgspec.json.encode(file), indent=1))
