"""Log files that a job names: opened for writing and reading without ever leaving its working folder.

Each folder on the way is opened without following links, so neither `..` nor a symbolic link swapped in later leads
out, and only plain files count: a pipe or device would block or confuse a reader.
"""

from __future__ import annotations

import errno
import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_of(name: str) -> list[str]:
    """The steps of a relative file name; ValueError for one that is absolute, empty, or has `..` or NUL in it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or name.endswith("/") or "\0" in name or ".." in parts or not parts:
        raise ValueError(f"{name!r} does not name a file within the working folder")
    return parts


def open_within(root: str, name: str, flags: int) -> int:
    """Open the plain file `name` below `root`; folders on the way are made when `flags` has O_CREAT.

    Raises ValueError for a name that leaves `root`, OSError (ELOOP, ENOTDIR for links) for the rest."""
    parts = parts_of(name)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            if flags & os.O_CREAT:
                try:
                    os.mkdir(part, 0o755, dir_fd=folder)
                except FileExistsError:
                    pass
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        handle = os.open(
            parts[-1],
            flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY,
            0o644,
            dir_fd=folder,
        )
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a plain file", name)
    os.set_blocking(handle, True)
    return handle
