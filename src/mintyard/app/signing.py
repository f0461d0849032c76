"""Signing keys: the key ring as a long-lived process sees it, read again whenever its file was replaced."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mintyard.credentials import KeyRing, KeySet, SigningKey
from mintyard.credentials.keys import RING_FILE


class SigningKeys:
    """The ring in `folder` (made when there is none). A key that another process withdrew is never signed with again."""

    def __init__(self, folder: Path | str) -> None:
        self._path = Path(folder) / RING_FILE
        self._ring = KeyRing.open(folder, time.time_ns())
        self._seen = self._stamp()
        # With the stamp of the ring they were read from: a reload in another thread must not leave older ones behind.
        self._key: tuple[tuple[int, int], SigningKey] | None = None
        self._keys: tuple[tuple[int, int], KeySet] | None = None

    @property
    def signing_key(self) -> SigningKey:
        seen, kept = self._refresh(), self._key
        if kept is None or kept[0] != seen:
            kept = self._key = (seen, self._ring.signing_key)
        return kept[1]

    @property
    def key_set(self) -> KeySet:
        """The same object until the ring changes."""
        seen, kept = self._refresh(), self._keys
        if kept is None or kept[0] != seen:
            kept = self._keys = (seen, self._ring.key_set)
        return kept[1]

    @property
    def version(self) -> int:
        """Grows with each change of the ring."""
        return self.key_set.version

    def _stamp(self) -> tuple[int, int]:
        found = os.stat(self._path)
        return found.st_ino, found.st_mtime_ns

    def _refresh(self) -> tuple[int, int]:
        """Have what the file holds now; its stamp."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._ring.reload()
            self._seen = stamp
        return stamp
