"""Files beside an SQLite journal: sealed segments and snapshots, each written once, whole or not at all.

A large file in the database would hold up the writer's commits; as a file it costs the database one small row.
The database's index decides which files count: one without a row is a leftover of a crash and is never read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from mintyard.domain.errors import InvariantBroken, StoreUnavailable

_NAME: Final = re.compile(r"[0-9a-z][0-9a-z.-]{0,200}")


class Folder:
    """Files by name in `path`, which is made (0700) when the first one is written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, content: bytes) -> None:
        """Durable under its name when this returns, else `StoreUnavailable` and no such file."""
        target = self._locate(name)
        part = target.with_name(f"{name}.{os.getpid()}.part")
        try:
            if not self.path.is_dir():
                self.path.mkdir(mode=0o700, exist_ok=True)
                sync_folder(self.path.parent)
            part.unlink(missing_ok=True)
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                part.replace(target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            sync_folder(self.path)
        except OSError as error:
            raise StoreUnavailable(why=f"can't write {target}: {error.strerror}") from error

    def read(self, name: str) -> bytes | None:
        """None when there is none."""
        target = self._locate(name)
        try:
            return target.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable(why=f"can't read {target}: {error.strerror}") from error

    def remove(self, name: str) -> None:
        """One that stays behind only takes room: no error."""
        try:
            self._locate(name).unlink(missing_ok=True)
        except OSError:
            return

    def _locate(self, name: str) -> Path:
        # Names come from an index that someone may have altered: none may lead out of the folder.
        if not _NAME.fullmatch(name):
            raise InvariantBroken(why=f"{name!r} can't name a file of the store")
        return self.path / name


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable: without it a new file may be gone after a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
