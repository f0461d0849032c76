"""Control groups, version 2, where this user may make them: exact kill, CPU time and memory limit of an attempt.

Everything here is best effort: a method that can't do its part says so by its result, and the supervisor falls back to
walking its descendants.
"""

from __future__ import annotations

import os


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> bool:
    """Into a file that the kernel made; none is created."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(handle, text.encode())
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def own_group() -> str:
    """The folder of this process's own v2 group, empty when there is none."""
    path = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    for line in _read("/proc/self/mountinfo").splitlines():
        head, _, tail = line.partition(" - ")
        if path and tail.startswith("cgroup2 "):
            return os.path.join(head.split()[4], path.lstrip("/"))
    return ""


def open_base(choice: str, name: str) -> str:
    """Make the group that will hold the attempts' groups, below `choice` (a folder, `auto` or `off`); empty: none.

    One for all fork servers of a state folder, whose name it has; empty groups that killed ones left are removed."""
    parent = own_group() if choice == "auto" else "" if choice == "off" else choice
    if not parent:
        return ""
    base = os.path.join(parent, name)
    remove_empty(base)
    try:
        os.makedirs(base, exist_ok=True)
    except OSError:
        return ""
    for controller in ("memory", "cpu", "pids"):
        _write(os.path.join(base, "cgroup.subtree_control"), f"+{controller}")
    return base if os.access(os.path.join(base, "cgroup.procs"), os.W_OK) else ""


def remove_empty(base: str) -> None:
    """Remove the groups below `base` in which nothing runs, and `base` itself when it was the last."""
    if not os.path.isdir(base):
        return
    for group in (*(entry.path for entry in os.scandir(base) if entry.is_dir()), base):
        try:
            os.rmdir(group)
        except OSError:
            continue


class Group:
    """The group of one attempt; `path` is empty when there is none."""

    def __init__(self, base: str, key: str, memory_mib: int) -> None:
        self.path = os.path.join(base, key) if base else ""
        self.limits_memory = False
        if not self.path:
            return
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError:
            self.path = ""
            return
        if memory_mib > 0 and _write(os.path.join(self.path, "memory.max"), str(memory_mib << 20)):
            _write(os.path.join(self.path, "memory.swap.max"), "0")
            _write(os.path.join(self.path, "memory.oom.group"), "1")
            self.limits_memory = True

    def add(self, pid: int) -> None:
        if self.path and not _write(os.path.join(self.path, "cgroup.procs"), str(pid)):
            self.remove()

    def kill(self) -> bool:
        return bool(self.path) and _write(os.path.join(self.path, "cgroup.kill"), "1")

    def members(self) -> list[int]:
        return (
            [int(pid) for pid in _read(os.path.join(self.path, "cgroup.procs")).split()] if self.path else []
        )

    def peak_mib(self) -> int:
        text = _read(os.path.join(self.path, "memory.peak")).strip() if self.path else ""
        return int(text) >> 20 if text.isdigit() else 0

    def kernel_killed(self) -> bool:
        """Whether the kernel killed something in it for want of memory."""
        events = _read(os.path.join(self.path, "memory.events")).split() if self.limits_memory else []
        counts = dict(zip(events[::2], events[1::2], strict=True))
        return int(counts.get("oom_kill", "0")) > 0

    def remove(self) -> None:
        if self.path:
            try:
                os.rmdir(self.path)
            except OSError:
                pass
        self.path, self.limits_memory = "", False
