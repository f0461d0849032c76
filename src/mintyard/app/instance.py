"""Instance: one hub a folder, and the small files by which others find it: lock, configuration in force, ready file.

All lie in the folder's `run/`, readable by the hub's user only. No secret is in them.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from mintyard.app.config import Config
from mintyard.credentials.keys import write_private
from mintyard.domain.errors import ConfigInvalid, FolderInUse

LOCK_FILE: Final = "lock"
RUNNING_FILE: Final = "config.json"
READY_FILE: Final = "ready.json"
HOLDER_FILE: Final = "holder"
METRICS_FOLDER: Final = "metrics"


class Ready(msgspec.Struct, frozen=True):
    """A hub that takes requests: its supervisor's process id and its URL."""

    pid: int
    url: str
    version: str
    started_at: int
    """ns since the Unix epoch."""


@contextmanager
def sole_instance(config: Config) -> Iterator[None]:
    """Hold the folder's lock; `FolderInUse` when another hub does. The kernel frees it when the process ends, however."""
    config.run_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(config.run_folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise FolderInUse(folder=str(config.path), pid=pid or "?") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lease_holder(config: Config) -> str:
    """The name under which this folder's hub takes the store's lease: the same after a crash, so that a restarted writer need
    not wait for its predecessor's lease, which the folder's lock shows to be dead. Another folder or machine has another."""
    path = config.run_folder / HOLDER_FILE
    try:
        known = path.read_text().strip()
    except FileNotFoundError:
        known = ""
    if not known:
        known = os.urandom(8).hex()
        write_private(path, known.encode())
    return f"{socket.gethostname()[:40]}-{known[:32]}"


def write_running(config: Config) -> Path:
    """Leave the configuration in force for the hub's processes; its path."""
    path = config.run_folder / RUNNING_FILE
    write_private(path, msgspec.json.encode(config))
    return path


def read_running(path: Path | str) -> Config:
    """What `write_running` left; `ConfigInvalid`."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Config)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigInvalid(
            source=str(path), field="file", why=f"it can't be read ({error})", suggestion=""
        ) from None


def write_ready(config: Config, ready: Ready) -> None:
    write_private(config.run_folder / READY_FILE, msgspec.json.encode(ready))


def read_ready(config: Config) -> Ready | None:
    """None when no hub runs there, or not yet; a file that a killed hub left behind doesn't count."""
    try:
        ready = msgspec.json.decode((config.run_folder / READY_FILE).read_bytes(), type=Ready)
        os.kill(ready.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return ready


def clear_ready(config: Config) -> None:
    with suppress(FileNotFoundError):
        (config.run_folder / READY_FILE).unlink()
