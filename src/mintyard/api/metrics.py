"""Metrics of the HTTP side (O1) in Prometheus text form: requests by route template, method and status, and how
long they took.

No label may hold anything that a caller chose. Several processes share a port, so each writes what it counted
into a shared folder and whoever is scraped adds all up."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from pathlib import Path
from typing import Final

import msgspec

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
Key = tuple[str, str, int]


class Series(msgspec.Struct, array_like=True):
    """One histogram: a count for each bucket (the last has no bound), and the sum of seconds."""

    counts: list[int]
    seconds: float = 0.0


class Counted(msgspec.Struct, array_like=True):
    """Everything that one process has counted."""

    requests: list[tuple[str, str, int, Series]] = []
    refused: dict[str, int] = {}
    inflight: int = 0
    token_misses: int = 0


class HttpMetrics:
    """Counts of this process. `folder` is shared by the processes of one hub on this machine, None for a
    process alone."""

    def __init__(self, folder: Path | None = None) -> None:
        self.requests: dict[Key, Series] = {}
        self.refused: dict[str, int] = {}
        self.inflight = 0
        self.token_misses = 0
        self._folder = folder
        self._file = f"http-{os.getpid()}.msgpack"

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        series = self.requests.get((route, method, status))
        if series is None:
            series = self.requests[route, method, status] = Series([0] * (len(BOUNDS_S) + 1))
        series.counts[bisect_left(BOUNDS_S, seconds)] += 1
        series.seconds += seconds

    def refuse(self, code: str) -> None:
        """Count an error by its code."""
        self.refused[code] = self.refused.get(code, 0) + 1

    def publish(self) -> None:
        """Let the other processes see what was counted here. Blocks for one small write."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                path = self._folder / self._file
                fresh = path.with_suffix(".new")
                fresh.write_bytes(msgspec.msgpack.encode(self._counted()))
                fresh.replace(path)

    def _counted(self) -> Counted:
        rows = [(*key, series) for key, series in self.requests.items()]
        return Counted(rows, self.refused, self.inflight, self.token_misses)

    def render(self) -> str:
        """All processes' counts as text. A process that has ended still counts, so that no sum goes back."""
        total = HttpMetrics()
        for counted in [self._counted(), *self._others()]:
            for route, method, status, series in counted.requests:
                known = total.requests.setdefault((route, method, status), Series([0] * (len(BOUNDS_S) + 1)))
                known.counts = [mine + more for mine, more in zip(known.counts, series.counts, strict=True)]
                known.seconds += series.seconds
            for code, count in counted.refused.items():
                total.refused[code] = total.refused.get(code, 0) + count
            total.inflight += counted.inflight
            total.token_misses += counted.token_misses
        return "\n".join(_lines(total)) + "\n"

    def _others(self) -> list[Counted]:
        found: list[Counted] = []
        if self._folder is not None:
            for path in sorted(self._folder.glob("http-*.msgpack")):
                if path.name != self._file:
                    with contextlib.suppress(OSError, msgspec.DecodeError):
                        counted = msgspec.msgpack.decode(path.read_bytes(), type=Counted)
                        alive = os.path.exists(f"/proc/{path.stem.removeprefix('http-')}")
                        found.append(counted if alive else msgspec.structs.replace(counted, inflight=0))
        return found


def _lines(total: HttpMetrics) -> list[str]:
    lines = [
        "# HELP mintyard_http_request_seconds Time from the first byte of a request to the last of its answer.",
        "# TYPE mintyard_http_request_seconds histogram",
    ]
    for (route, method, status), series in sorted(total.requests.items()):
        labels = f'route="{route}",method="{method}",status="{status}"'
        so_far = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), series.counts, strict=True):
            so_far += count
            lines.append(f'mintyard_http_request_seconds_bucket{{{labels},le="{bound}"}} {so_far}')
        lines.append(f"mintyard_http_request_seconds_sum{{{labels}}} {series.seconds:.6f}")
        lines.append(f"mintyard_http_request_seconds_count{{{labels}}} {so_far}")
    lines += [
        "# HELP mintyard_http_problems_total Requests that were answered with a problem, by its code.",
        "# TYPE mintyard_http_problems_total counter",
    ]
    lines += [
        f'mintyard_http_problems_total{{code="{code}"}} {n}' for code, n in sorted(total.refused.items())
    ]
    lines += [
        "# HELP mintyard_http_requests_inflight Requests that are being answered.",
        "# TYPE mintyard_http_requests_inflight gauge",
        f"mintyard_http_requests_inflight {total.inflight}",
        "# HELP mintyard_tokens_verified_total Tokens whose signatures were checked, not found in memory.",
        "# TYPE mintyard_tokens_verified_total counter",
        f"mintyard_tokens_verified_total {total.token_misses}",
    ]
    return lines


def hub_lines(counts: dict[str, dict[str, int]], now_s: float, seq: int) -> str:
    """Counts of the hub's state: `counts` by kind (jobs, nodes, tokens) and state."""
    lines: list[str] = []
    for kind, by_state in sorted(counts.items()):
        lines += [f"# HELP mintyard_{kind} Live {kind} by state.", f"# TYPE mintyard_{kind} gauge"]
        lines += [f'mintyard_{kind}{{state="{state}"}} {count}' for state, count in sorted(by_state.items())]
    lines += [
        "# HELP mintyard_journal_seq The record that the counts are of.",
        "# TYPE mintyard_journal_seq gauge",
        f"mintyard_journal_seq {seq}",
        "# HELP mintyard_state_time_seconds The time of that record.",
        "# TYPE mintyard_state_time_seconds gauge",
        f"mintyard_state_time_seconds {now_s:.3f}",
    ]
    return "\n".join(lines) + "\n"


def forget_former(folder: Path, since: Path) -> None:
    """Remove what processes of earlier runs of the hub left: what is older than the file `since`, which this
    run wrote."""
    with contextlib.suppress(OSError):
        begun = since.stat().st_mtime_ns
        for path in folder.glob("http-*.msgpack"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime_ns < begun:
                    path.unlink()
