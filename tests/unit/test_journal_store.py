"""Stores by URL: every declared adapter is there, and nothing of a URL that can't be opened is shown."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mintyard.app import journal_store
from mintyard.app.journal_store import GROUP, open_store, schemes
from mintyard.domain.errors import InvalidRequest, StoreUnavailable

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """What the project declares, installed or not, and one adapter whose library is missing."""
    table = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"][GROUP]
    entries = [EntryPoint(name, value, GROUP) for name, value in table.items()]
    entries.append(EntryPoint("oracle", "no_such_library:open", GROUP))
    monkeypatch.setattr(journal_store, "entry_points", lambda *, group: entries if group == GROUP else [])
    return entries


def test_the_three_stores_are_declared() -> None:
    assert schemes() == ["memory", "oracle", "postgresql", "sqlite"]


def test_by_scheme(tmp_path: Path) -> None:
    for url in ("memory://", f"sqlite:///{tmp_path}/journal.db"):
        store = open_store(url)
        assert store.acquire("hub-1", 1_000) is not None
        store.close()


def test_a_named_memory_store_is_shared_and_an_unnamed_one_is_not() -> None:
    assert open_store("memory://test-shared").acquire("hub-1", 60_000) is not None
    assert open_store("memory://test-shared").acquire("hub-2", 60_000) is None
    assert open_store("memory://").acquire("hub-1", 60_000) is not None
    assert open_store("memory://").acquire("hub-2", 60_000) is not None


@pytest.mark.parametrize(
    "url", ["", "journal.db", "/var/lib/x.db", "mysql://u:hunter2@h/d", "SQLITE:///x", "://", "a" * 99 + ":x"]
)
def test_unknown_ones_are_refused_without_showing_them(url: str) -> None:
    with pytest.raises(InvalidRequest, match="sqlite") as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


def test_a_missing_library_is_named() -> None:
    with pytest.raises(StoreUnavailable, match="no_such_library"):
        open_store("oracle://u:hunter2@h/d")


def test_every_declared_adapter_loads(declared: list[EntryPoint]) -> None:
    for entry in declared:
        if entry.name != "oracle":
            assert callable(entry.load())
