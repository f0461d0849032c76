"""Sockets of a hub's processes: where they lie, who may connect, and making them closed to others."""

from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Final

from mintyard.domain.errors import StoreForeign

WRITER_SOCKET: Final = "writer.sock"
PLANNER_SOCKET: Final = "planner.sock"
MAX_PATH_BYTES: Final = 100
"""A Unix socket's address takes 108 bytes on Linux, fewer elsewhere."""
_UCRED: Final = struct.Struct("3i")


def socket_path(run_folder: Path, name: str) -> Path:
    """Where the hub's socket `name` lies: in `run_folder`, or in a private folder of a short name when that is too long."""
    path = run_folder / name
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        return path
    digest = blake2b(os.fsencode(run_folder.absolute()), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"mintyard-{os.getuid()}-{digest}" / name


def bind_socket(path: Path) -> socket.socket:
    """A listening socket at `path`, which only this user can reach; one left behind by a dead process is replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(path.parent)
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise StoreForeign(
            store=str(path.parent), why="others may enter the sockets' folder, or it is not ours"
        )
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        os.chmod(path, 0o600)
        listening.listen(128)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def peer_user(connected: socket.socket) -> int:
    """The user id of the process at the other end, by the kernel; -1 where the kernel doesn't say."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return -1
    return _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _UCRED.size))[1]
