"""Orphans: what to do about an attempt whose supervisor died without recording an end.

Both the fork server and the engine may call it, at once and repeatedly: the end is recorded once. Nothing else.
"""

from __future__ import annotations

import os
import signal
import time

from mintyard.agent import kernel, records
from mintyard.agent.supervisor import EXITED, NEVER_STARTED, NODE_LOST

PATIENCE_S = 5.0


def bury(state: str, key: str, patience_s: float = PATIENCE_S) -> bool:
    """Kill what is left of `key` and record its end; True when an end is on record (or was never due).

    False when its supervisor lives, or something of it survives SIGKILL (uninterruptible sleep): try again later."""
    found = records.read_attempt(state, key)
    if found is None or found.forgotten or found.end is not None:
        return True
    if records.is_held(state, key):
        return False
    # Read again: it may have ended between the two looks.
    found = records.read_attempt(state, key)
    if found is None or found.forgotten or found.end is not None:
        return True
    boot, same_boot = str(found.claim.get("boot", "")), found.claim.get("machine") == kernel.boot_id()
    group = str((found.started or {}).get("cgroup", ""))
    if boot and same_boot and not _kill_marked(f"MINTYARD_MARK={boot}", group, patience_s):
        return False
    usage = records.read_record(records.file_path(state, key, "usage")) or {}
    if not same_boot:
        outcome, number, message = NODE_LOST, 0, "the machine was restarted"
    elif found.started is None:
        outcome, number, message = NEVER_STARTED, 0, "its supervisor died before user code ran"
    else:
        # The node is there, and a job can kill its supervisor: were that the node's fault, work would be free of charge
        # and run again and again.
        outcome, number, message = EXITED, int(signal.SIGKILL), "its supervisor was killed"
    end = {
        "boot": boot,
        "run_ms": int(usage.get("run_ms", 0)),
        "cpu_ms": int(usage.get("cpu_ms", 0)),
        "peak_memory_mib": int(usage.get("peak_memory_mib", 0)),
        "outcome": outcome,
        "exit_code": 0,
        "signal": number,
        "message": message,
    }
    records.write_end_of_dead(state, key, end)
    return True


def _kill_marked(mark: str, group: str, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        left = kernel.marked(mark)
        if group:
            left += _grouped(group)
        if not left:
            return True
        kernel.signal_all(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def _grouped(group: str) -> list[int]:
    try:
        with open(os.path.join(group, "cgroup.procs")) as file:
            pids = [int(pid) for pid in file.read().split()]
    except OSError:
        return []
    if not pids:
        try:
            os.rmdir(group)
        except OSError:
            pass
    return pids
