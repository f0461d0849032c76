"""The page of the command line, made from the application's own help."""

from __future__ import annotations

import argparse
import sys

from scripts.docs.markdown import MADE, code, table

from mintyard.app import trace_replay
from mintyard.cli.application import application


def pages() -> dict[str, str]:
    # cyclopts names what has no name of its own after the running program.
    running, sys.argv[0] = sys.argv[0], "mintyard"
    try:
        text = application().generate_docs(output_format="markdown", recursive=True)
    finally:
        sys.argv[0] = running
    for nothing in (' *[default: ""]*', " *[default: False]*", " *[default: []]*"):
        text = text.replace(nothing, "")
    lines = "\n".join(line.rstrip() for line in text.strip().split("\n"))
    return {"command-line.md": f"{MADE}\n\n{lines}\n\n{_replay()}\n"}


def _replay() -> str:
    """`mintyard replay` reads its own words; its table is made from that parser."""
    rows = []
    for action in trace_replay._parser()._actions:
        names = ", ".join(map(code, action.option_strings)) or code(action.metavar or action.dest)
        default = "" if action.default in (None, "", False, argparse.SUPPRESS) else code(action.default)
        rows.append((names, _choices(action), default, action.help or ""))
    return "### What `mintyard replay` takes\n\n" + table(("word", "value", "default", "about"), rows)


def _choices(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    return (
        " or ".join(code(choice) for choice in action.choices)
        if action.choices
        else code(action.metavar or "")
    )
