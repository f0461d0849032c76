"""Retention: how long the local engine keeps logs of acknowledged attempts, and the claims that keep them from starting
again.

Only `kept/` and acknowledged claims are touched; working folders are the jobs' own and stay.
"""

from __future__ import annotations

import os
import time

from mintyard.agent.records import FORGOTTEN_BYTES, claim_path, file_path, parse_key

_STREAMS = ("stdout", "stderr")


def _size(state: str, key: str) -> int:
    total = 0
    for stream in _STREAMS:
        try:
            total += os.stat(file_path(state, key, stream)).st_size
        except FileNotFoundError:
            continue
    return total


def prune_logs(state: str, keep_attempts: int, keep_mib: int) -> int:
    """Remove the oldest kept attempts beyond `keep_attempts`, or beyond `keep_mib` together (0: no bound); how many."""
    kept: list[tuple[float, str, int]] = []
    for entry in os.scandir(os.path.join(state, "kept")):
        try:
            kept.append((entry.stat().st_mtime, entry.name, _size(state, entry.name) if keep_mib else 0))
        except FileNotFoundError:
            continue
    kept.sort(reverse=True)
    removed, total = 0, 0
    for index, (_, key, size) in enumerate(kept):
        total += size
        if index >= keep_attempts or (keep_mib and total > keep_mib << 20):
            _forget(state, key)
            removed += 1
    return removed


def _forget(state: str, key: str) -> None:
    """The claim first: cut short in between, the rest is found again by its link in `kept`."""
    try:
        os.truncate(claim_path(state, key), FORGOTTEN_BYTES)
    except FileNotFoundError:
        pass
    for path in (*(file_path(state, key, stream) for stream in _STREAMS), os.path.join(state, "kept", key)):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue


def prune_claims(state: str, keep_days: float) -> int:
    """Remove claims without logs older than `keep_days`; how many. No order of that age can still be on its way."""
    oldest = time.time() - keep_days * 86_400
    removed = 0
    for entry in os.scandir(os.path.join(state, "claims")):
        try:
            found = entry.stat()
            if found.st_size != FORGOTTEN_BYTES or found.st_mtime > oldest or parse_key(entry.name) is None:
                continue
            os.unlink(entry.path)
            removed += 1
        except FileNotFoundError:
            continue
    return removed
