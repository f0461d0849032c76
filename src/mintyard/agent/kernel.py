"""What Linux says about processes: descendants, CPU time, memory, boot clock; and how to tie them to a supervisor.

Plain reads of /proc and a few prctl calls; no policy and no files of ours.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_MS = 1_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
CHILDREN_LISTED = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Whether the kernel lists children (CONFIG_PROC_CHILDREN); if not, all of /proc is read."""


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's, also those that called setsid."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent dies, or now when `parent` is gone already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)


def boot_clock_ms() -> int:
    """Milliseconds since boot, suspended time included: neither a set clock nor a suspend moves it back."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the third on (state, ppid, ...), or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    return text[text.rfind(b")") + 2 :].split()


def start_time(pid: int) -> int:
    """Ticks since boot at which `pid` started; 0 when there is none, or only a zombie."""
    fields = _stat(pid)
    return 0 if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _listed_children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
    except OSError:
        pass
    return found


def _all_children() -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for pid in all_pids():
        if fields := _stat(pid):
            below.setdefault(int(fields[1]), []).append(pid)
    return below


def children(pid: int) -> list[int]:
    """The direct children of `pid`, zombies too."""
    return _listed_children(pid) if CHILDREN_LISTED else _all_children().get(pid, [])


def descendants(root: int) -> list[int]:
    """Every process below `root`, parents first; zombies too."""
    tree = None if CHILDREN_LISTED else _all_children()
    found: list[int] = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        below = _listed_children(pid) if tree is None else tree.get(pid, [])
        found.extend(below)
        waiting.extend(below)
    return found


def cpu_ms(pids: list[int]) -> int:
    """CPU time of `pids` and of the children they have waited for."""
    total = 0
    for pid in pids:
        if fields := _stat(pid):
            total += sum(map(int, fields[11:15]))
    return total * _TICK_MS


def resident_mib(pids: list[int]) -> int:
    """Memory of `pids` together: anonymous pages of each, shared pages once (the largest).

    Pages shared by copy-on-write are counted for each process: see `proportional_mib` for the exact, slow way."""
    private = shared = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                fields = file.read().split()
        except OSError:
            continue
        private += int(fields[1]) - int(fields[2])
        shared = max(shared, int(fields[2]))
    return (private + shared) * _PAGE >> 20


def proportional_mib(pids: list[int]) -> int:
    """Proportional set size of `pids` together: each shared page divided among those that map it."""
    total_kib = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                total_kib += sum(int(line.split()[1]) for line in file if line.startswith(b"Pss:"))
        except OSError:
            continue
    return total_kib >> 10


def marked(mark: str) -> list[int]:
    """Processes whose environment holds the entry `mark`; not this one, no zombies."""
    needle, found = mark.encode(), []
    for pid in all_pids():
        if pid == os.getpid() or not start_time(pid):
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if needle in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def signal_exactly(pid: int, started: int, number: int) -> bool:
    """Send `number` to `pid` if it is still the process that started at `started`; never to one that reuses the id."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_time(pid) != started:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
