"""Migrations of the read model: run at start by the projector's process, checked by everyone else.

The steps are in `migrations/versions`, for both dialects; each runs in one transaction with its version mark.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from mintyard.app.read_model.database import ReadModel, translated
from mintyard.domain.errors import StoreTooNew, StoreUnavailable

_FOLDER: Final = "mintyard.app.read_model"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(files(_FOLDER) / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def head() -> str:
    """The newest schema that this version knows."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def known() -> list[str]:
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def _current(model: ReadModel) -> str | None:
    with translated(), model.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def migrate_schema(model: ReadModel, schema_name: str) -> None:
    """Create or update the tables; harmless to repeat and to run from two processes at once."""
    with model.write() as connection:
        if model.dialect == "postgresql":
            connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{schema_name}"')
        current = MigrationContext.configure(connection).get_current_revision()
        _check_known(current)
        if current != head():
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def check_schema(model: ReadModel) -> None:
    """`StoreUnavailable` until the projector has made or updated the tables, `StoreTooNew` when a later version has."""
    current = _current(model)
    _check_known(current)
    if current != head():
        raise StoreUnavailable(
            why="read model: its tables are not made yet; the projector makes them when it starts"
        )


def _check_known(current: str | None) -> None:
    if current is not None and current not in known():
        raise StoreTooNew(store="read model", found=current, known=head())
