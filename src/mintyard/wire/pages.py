"""Pages and answers: how lists are cut, and what a write says."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from mintyard.wire.bounds import Sequence

Item = TypeVar("Item")


class Page(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A part of a list. `next` is the cursor of the following page, None on the last; `seq` is the record up to which the
    list was read."""

    items: tuple[Item, ...]
    next: str | None = None
    seq: Sequence = 0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A write took effect: what it made or changed, its state now, and the record that holds it (pass it as `min_seq`)."""

    ref: int | str
    state: str
    seq: Sequence
