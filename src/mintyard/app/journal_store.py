"""Where the journal is kept, by URL: the scheme names an adapter of the entry-point group `mintyard.stores`.

Nothing here knows an adapter. A third party adds one by an entry point `SCHEME = "package.module:function"` whose
function takes the URL and returns a `Store`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final, cast

from mintyard.domain.errors import InvalidRequest, StoreUnavailable
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


def schemes() -> list[str]:
    """The schemes for which an adapter is installed."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})
