"""Traces by content: finds the format of a file among the installed ones and reads it. The openb sample lies here too."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Final

from mintyard.domain.errors import TraceMalformed
from mintyard.ports.traces import Trace, TraceFormat

GROUP: Final = "mintyard.traces"


def trace_formats() -> list[TraceFormat]:
    """The installed formats by name."""
    return [entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]


def open_trace(path: Path | str, nodes: Path | str | None = None) -> Trace:
    """The trace in `path`, whatever its format; `nodes` lists the machines where the format keeps them apart.

    Errors: `NotFound`, `TraceMalformed` with file, line and reason, also for a file of no known format.
    """
    path, nodes = Path(path), None if nodes is None else Path(nodes)
    found = trace_formats()
    for candidate in found:
        if candidate.matches(path):
            return candidate.read(path, nodes)
    known = ", ".join(candidate.name for candidate in found) or "none"
    raise TraceMalformed(path=str(path), line=1, why=f"no known trace format (known: {known})")


def sample_trace() -> tuple[Path, Path]:
    """Pods and GPU nodes of the openb sample that the package ships."""
    folder = Path(str(files("mintyard"))) / "data" / "openb"
    return folder / "openb_pod_list_default.csv.gz", folder / "openb_node_list_gpu_node.csv.gz"
