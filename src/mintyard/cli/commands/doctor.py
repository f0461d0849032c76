"""`doctor`: look for what is wrong between here and a job that runs, each finding with cause and cure (O5)."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from mintyard.cli.diagnosis import Finding, examine
from mintyard.cli.options import Output, Where
from mintyard.cli.printer import colours_on
from mintyard.cli.tables import plain
from mintyard.domain.errors import Exit

_OUT, _WHERE = Output(), Where()
_MARKS = {"ok": ("ok  ", "32"), "warning": ("warn", "33"), "fault": ("FAIL", "31"), "skipped": ("-   ", "90")}


def doctor(
    *,
    folder: Annotated[
        str, Parameter(name="--folder", help="The hub's folder, where it runs on this machine.")
    ] = "",
    verify: Annotated[
        bool, Parameter(name="--verify", negative="", help="Verify the whole journal as well.")
    ] = False,
    out: Output = _OUT,
    where: Where = _WHERE,
) -> int:
    """Look for what is wrong: hub, clock, token, quota, engine, store, disk. Exit status 0 when nothing is, else that of the
    first fault."""
    found = examine(where, folder, verify=verify)
    faults = [one for one in found if one.state == "fault"]
    if out.is_json:
        out.printer.json({"healthy": not faults, "findings": found})
    elif not out.quiet:
        import sys

        colours = colours_on(sys.stdout)
        for one in found:
            _show(out, one, colours)
        warned = sum(one.state == "warning" for one in found)
        out.printer.line(f"{len(faults)} faults, {warned} warnings in {len(found)} checks")
    return faults[0].exit_status if faults else Exit.OK


def _show(out: Output, one: Finding, colours: bool) -> None:
    mark, style = _MARKS[one.state]
    mark = f"\x1b[{style}m{mark}\x1b[0m" if colours else mark
    out.printer.line(f"{mark}  {one.check}: {plain(one.found)}")
    if one.cause:
        out.printer.line(f"      cause: {plain(one.cause)}")
    if one.cure:
        out.printer.line(f"      cure:  {plain(one.cure)}")
