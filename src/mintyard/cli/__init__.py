"""The command line (U2): `mintyard NOUN VERB`, with the habits of kubectl and sbatch.

It parses, asks the SDK or, for what runs here, the server half, and prints. Nothing of the server is loaded before it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status (`mintyard.domain.errors.Exit`, 130 after Ctrl-C, 141 when nobody reads)."""
    from mintyard.cli.running import run

    return run(sys.argv[1:] if arguments is None else list(arguments))
