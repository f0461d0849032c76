"""Kernel cache: where compiled kernels lie, so that they are compiled once for each version of their source.

A helper changed in another module leaves Numba's own cache stale, and a read-only home fails at import without one: so the
folder is named by a hash of the kernels' sources, and set in the environment before any process of the hub imports Numba.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ENV_CACHE: Final = "NUMBA_CACHE_DIR"
_PACKAGE: Final = "mintyard.domain.scheduling"


def source_hash() -> str:
    """8 hex digits over the sources of the scheduling room."""
    spec = find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    digest = blake2b(digest_size=4)
    for folder in folders:
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def use_kernel_cache(fallback: Path) -> Path | None:
    """Set `NUMBA_CACHE_DIR` for this process and those it starts, unless it is set: in the user's cache folder, or in
    `fallback` when that can't be written. The folder; None when neither can."""
    if os.environ.get(ENV_CACHE):
        return Path(os.environ[ENV_CACHE])
    base = os.environ.get("XDG_CACHE_HOME") or ""
    user = Path(base) if base.startswith("/") else Path.home() / ".cache"
    name = f"kernels-{source_hash()}"
    for folder in (user / "mintyard" / name, fallback / name):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            os.environ[ENV_CACHE] = str(folder)
            return folder
    return None
