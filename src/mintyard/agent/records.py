"""The state folder of one engine: its files are the truth that outlives hub and agent.

    claims/J.A     one line each: the claim, `started`, the end. Made once, exclusively, durable before user code runs;
                   its supervisor holds an flock on it as long as it lives. Stays, so that a late order still loses
    attempts/J.A   a hard link to it: the attempt is not acknowledged
    kept/J.A       the same link after its acknowledgement, until retention takes its logs
    files/J.A.*    stdout, stderr, script, usage, stop
    work/J/        working folder of a job that names none

One file per attempt for all that must last: making a file costs more than writing one. Only reading and writing of
these files may enter; no process is started or killed here.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
from typing import Any

FOLDERS = ("claims", "attempts", "kept", "files", "work")
FORGOTTEN_BYTES = 3
"""A claim whose logs are gone is cut to this length, which no claim written whole can have."""
_RESERVED_BYTES = 8_192
_KEEP_SIZE = 1
_UNSUPPORTED = {22, 38, 95}
_KEY = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Attempt:
    """What the claim file says: `claim` (`{}` when torn by a power cut), then `started` and `end` once they are there."""

    __slots__ = ("claim", "end", "forgotten", "started")

    def __init__(self, data: bytes) -> None:
        self.claim: dict[str, Any] = {}
        self.started: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.forgotten = len(data) == FORGOTTEN_BYTES
        for line in () if self.forgotten else data.split(b"\n"):
            try:
                content = json.loads(line) if line.startswith(b"{") else None
            except ValueError:
                continue
            if not isinstance(content, dict):
                continue
            if content.get("kind") == "claim":
                self.claim = content
            elif content.get("kind") == "started":
                self.started = content
            elif content.get("kind") == "end" and self.end is None:
                self.end = content


def prepare(state: str) -> None:
    """Make the folders, for their owner only."""
    os.makedirs(state, mode=0o700, exist_ok=True)
    for name in FOLDERS:
        os.makedirs(os.path.join(state, name), mode=0o700, exist_ok=True)


def claim_path(state: str, key: str) -> str:
    return os.path.join(state, "claims", key)


def file_path(state: str, key: str, name: str) -> str:
    return os.path.join(state, "files", f"{key}.{name}")


def key_of(job: int, attempt: int) -> str:
    return f"{job}.{attempt}"


def parse_key(name: str) -> tuple[int, int] | None:
    """(job, attempt) of a file name, None for drafts and foreign files."""
    match = _KEY.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _line(kind: str, content: dict[str, Any]) -> bytes:
    # A line begins on its own, whatever a power cut left before it.
    return b"\n" + json.dumps({"kind": kind, **content}).encode() + b"\n"


def _reserve(handle: int) -> None:
    """Allocate blocks for the end now, so that a full disk can't lose it later."""
    if _LIBC.fallocate(handle, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(_RESERVED_BYTES)):
        code = ctypes.get_errno()
        if code not in _UNSUPPORTED:
            raise OSError(code, os.strerror(code))


def claim(state: str, key: str, content: dict[str, Any], end: dict[str, Any] | None = None) -> int | None:
    """Win `key`, or return None when it is taken. Durable on return, and complete from the instant it is visible.

    link(2) is the exclusive create: it fails when the name exists and, unlike O_EXCL, never shows an empty file. The
    returned descriptor carries an flock, taken before the claim is visible, that the kernel drops when its last holder
    dies. With `end` the attempt is over in the same step."""
    target = claim_path(state, key)
    if os.path.lexists(target):
        return None
    draft = os.path.join(state, "claims", f".{key}.{os.getpid()}.{os.urandom(4).hex()}")
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _reserve(handle)
            _write_all(handle, _line("claim", content) + (_line("end", end) if end else b""))
            os.link(draft, target)
            os.link(draft, os.path.join(state, "attempts", key))
        finally:
            os.unlink(draft)
        os.fsync(handle)
        _sync_folder(os.path.join(state, "claims"))
    except FileExistsError:
        os.close(handle)
        return None
    except OSError:
        os.close(handle)
        raise
    return handle


def _sync_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_started(handle: int, content: dict[str, Any]) -> None:
    """By the holder of the claim. Not synced: after a power cut nothing runs, whatever is read."""
    _write_all(handle, _line("started", content))


def write_end(handle: int, content: dict[str, Any]) -> None:
    """By the holder of the claim; durable on return. A torn try may be repeated."""
    _write_all(handle, _line("end", content))
    os.fsync(handle)


def write_end_of_dead(state: str, key: str, content: dict[str, Any]) -> bool:
    """By whoever buries an attempt: False when its supervisor lives after all, or an end is there already."""
    handle = os.open(claim_path(state, key), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = read_attempt(state, key)
        if found is None or found.forgotten or found.end is not None:
            return False
        write_end(handle, content)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def read_attempt(state: str, key: str) -> Attempt | None:
    """None when nobody claimed `key`."""
    try:
        handle = os.open(claim_path(state, key), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return Attempt(os.read(handle, 1 << 20))
    finally:
        os.close(handle)


def is_held(state: str, key: str) -> bool:
    """Whether the supervisor (or a child of it that has not yet become user code) holds the claim."""
    try:
        handle = os.open(claim_path(state, key), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def write_record(path: str, content: dict[str, Any], durable: bool = False) -> None:
    """Replace the record in one step: a reader sees the old or the new one."""
    draft = f"{path}.{os.getpid()}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            _write_all(handle, json.dumps(content).encode())
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(draft, path)
    except OSError:
        os.unlink(draft)
        raise


def read_record(path: str) -> dict[str, Any] | None:
    """The record, or None when there is none or it is unreadable (torn by a power cut)."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None
