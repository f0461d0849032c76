"""The page of the command line, made from the application's own help."""

from __future__ import annotations

from scripts.docs.markdown import MADE


def pages() -> dict[str, str]:
    from mintyard.cli import app

    return {"command-line.md": f"{MADE}\n\n{app.generate_docs(output_format='markdown').strip()}\n"}
