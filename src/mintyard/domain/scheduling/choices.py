"""What a round can be told to do about time, by name. Names only: `backfill`, `prediction` and `round` do it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Backfill(StrEnum):
    """How those who don't fit are kept from waiting for ever."""

    NODES = "nodes"
    """Who has waited long enough keeps whole nodes, whatever ends when."""
    EASY = "easy"
    """A reservation in time for the first, and for who has waited long enough."""
    CONSERVATIVE = "conservative"
    """A reservation in time for everyone, up to `backfill.MAX_CONSERVATIVE`."""


class Order(StrEnum):
    """By which scale a waiting job ages."""

    AGEING = "ageing"
    """One scale for all (S3)."""
    RESPONSE_RATIO = "response_ratio"
    """Its own predicted run time: base x (1 + wait / run time), Brinch Hansen's highest response ratio next (1971)."""


DEFAULT_BACKFILL: Final = Backfill.EASY
DEFAULT_ORDER: Final = Order.AGEING
"""What a hub does unless it is told otherwise, and so does a replayed trace."""
