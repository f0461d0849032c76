"""`python -m scripts.docs [--check] [--folder FOLDER]`: write the reference, or say how the committed one differs."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from scripts.docs.pages import pages

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
_SHOWN_LINES = 40


def differences(folder: Path) -> list[str]:
    """What differs between `folder` and the code, as lines of a diff; empty when nothing does."""
    wanted = pages()
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    lines = [f"{name} is made by nothing any more" for name in sorted(found.keys() - wanted.keys())]
    for name, text in wanted.items():
        committed = found[name].read_text(encoding="utf-8") if name in found else ""
        if committed != text:
            lines += difflib.unified_diff(
                committed.splitlines(), text.splitlines(), f"committed/{name}", f"made/{name}", lineterm=""
            )
    return lines


def write(folder: Path) -> int:
    """Write what differs, remove what nothing makes any more; how many files changed."""
    wanted = pages()
    changed = 0
    for name, text in wanted.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed += 1
    for path in folder.rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in wanted:
            path.unlink()
            changed += 1
    return changed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.docs", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 when a page is out of date"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    if options.check:
        lines = differences(options.folder)
        sys.stdout.write(
            "\n".join(lines[:_SHOWN_LINES]) + "\n" if lines else "docs/reference is up to date\n"
        )
        if lines:
            sys.stdout.write(f"... {len(lines)} lines differ; `make docs` writes them anew\n")
        return 1 if lines else 0
    sys.stdout.write(f"docs/reference: {write(options.folder)} files changed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
