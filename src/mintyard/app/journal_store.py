"""Where the journal is kept, by URL: the scheme names an adapter of the entry-point group `mintyard.stores`.

Nothing here knows an adapter. A third party adds one by an entry point `SCHEME = "package.module:function"` whose
function takes the URL and returns a `Store`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final, cast

from mintyard.domain.errors import InvalidRequest, NotFound, StoreUnavailable
from mintyard.ports.store import Store

GROUP: Final = "mintyard.stores"
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{0,31}):")


def open_store(url: str) -> Store:
    """The store at `url` (`memory://NAME`, `sqlite:///PATH`, `postgresql://...`), opened and checked.

    `InvalidRequest` for a URL no adapter answers to, `StoreUnavailable` when it can't be reached, `StoreForeign`,
    `StoreTooNew` or `StoreCorrupt` when what is there can't be used. The URL may hold a password: no error shows it.
    """
    match = _SCHEME.match(url)
    if match is None:
        raise InvalidRequest(why=f"a store's URL begins with one of {', '.join(schemes())} and a colon")
    found = {entry.name: entry for entry in entry_points(group=GROUP)}.get(match[1])
    if found is None:
        raise InvalidRequest(why=f"no store is known for {match[1]!r}; there are {', '.join(schemes())}")
    try:
        opener = cast("Callable[[str], Store]", found.load())
    except ImportError as error:
        raise StoreUnavailable(why=f"its adapter can't be loaded ({error}); install mintyard[hub]") from error
    return opener(url)


def journal_file(folder: Path) -> Path:
    """Where a hub keeps the journal in its folder."""
    return folder / "journal" / "journal.db"


def recorded_url(place: str) -> str:
    """The URL of the journal in a hub's folder, in a file, or already at a URL. Errors: `NotFound`."""
    if _SCHEME.match(place) is not None:
        return place
    path = Path(place).expanduser().absolute()
    path = journal_file(path) if path.is_dir() else path
    if not path.is_file():
        raise NotFound(what="journal", name=str(path))
    return f"sqlite:///{path}"


def url_to_write(place: str) -> str:
    """The URL of a journal to begin in a folder, which is made, where a hub would keep it; or `place` if it is a URL."""
    if _SCHEME.match(place) is not None:
        return place
    path = journal_file(Path(place).expanduser().absolute())
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InvalidRequest(why=f"{place!r} can't be a folder ({error.strerror})") from error
    return f"sqlite:///{path}"


def schemes() -> list[str]:
    """The schemes for which an adapter is installed."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})
