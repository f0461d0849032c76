"""Units of account: which stocks the ledger counts, in which integer unit, and how people write them.

Every amount in the core is an integer in the smallest unit below. Instants are nanoseconds since the Unix
epoch, durations are milliseconds. One GB of memory is 1,024 MiB, one TB of storage is 1,000,000 MB.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Final

from mintyard.domain.errors import InvalidAmount
from mintyard.domain.limits import MAX_AMOUNT

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
MS_PER_HOUR: Final = 3_600_000
MIB_PER_GB: Final = 1_024
MB_PER_TB: Final = 1_000_000


class Unit(StrEnum):
    """A stock that can be granted, held and spent (feature L1)."""

    MONEY = "money"
    """Nano-units of the organisation's currency (10^-9 USD by default)."""
    GPU = "gpu_hours"
    """milli-GPU x ms."""
    CPU = "cpu_core_hours"
    """milli-core x ms."""
    MEMORY = "memory_gb_hours"
    """MiB x ms."""
    STORAGE = "storage_tb_hours"
    """MB x ms."""
    INPUT_TOKENS = "input_tokens"
    """LLM tokens read."""
    OUTPUT_TOKENS = "output_tokens"
    """LLM tokens written."""


SCALE: Final[dict[Unit, int]] = {
    Unit.MONEY: 1_000_000_000,
    Unit.GPU: 1_000 * MS_PER_HOUR,
    Unit.CPU: 1_000 * MS_PER_HOUR,
    Unit.MEMORY: MIB_PER_GB * MS_PER_HOUR,
    Unit.STORAGE: MB_PER_TB * MS_PER_HOUR,
    Unit.INPUT_TOKENS: 1,
    Unit.OUTPUT_TOKENS: 1,
}
"""How many smallest units make one of the unit people write (one USD, one GPU-hour, one token)."""


def parse_amount(text: str, unit: Unit) -> int:
    """Smallest units for a decimal string such as `"12.5"`; exact, or `InvalidAmount`.

    A text of 18 decimals, as `format_amount` writes an amount that no decimal equals, gives that amount back.
    Refused: anything but a plain finite decimal, a negative amount, one finer than the smallest unit,
    one above `MAX_AMOUNT`. Exponents are refused as well, so that no short text makes a huge number.
    """
    if not isinstance(text, str) or len(text) > 64 or not text.strip() or any(c in text for c in "eE_"):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidAmount(text=str(text)[:64], unit=unit.value, why="not a plain decimal number")
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise InvalidAmount(text=text, unit=unit.value, why="not a plain decimal number") from None
    if not value.is_finite():
        raise InvalidAmount(text=text, unit=unit.value, why="not finite")
    if value < 0:
        raise InvalidAmount(text=text, unit=unit.value, why="negative")
    numerator, denominator = value.as_integer_ratio()
    amount, rest = divmod(numerator * SCALE[unit], denominator)
    if rest and SCALE[unit] % 3 == 0 and len(text.strip().partition(".")[2]) == 18:
        # What `format_amount` cut after 18 digits: the smallest unit it stood for lies just above.
        amount += 1
    elif rest:
        raise InvalidAmount(text=text, unit=unit.value, why=f"finer than 1/{SCALE[unit]}")
    if amount > MAX_AMOUNT:
        raise InvalidAmount(text=text, unit=unit.value, why="too large")
    return amount


def format_amount(amount: int, unit: Unit) -> str:
    """The shortest exact or 18-digit decimal string of `amount` smallest units (the wire form)."""
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    whole, rest = divmod(amount, SCALE[unit])
    if not rest:
        return f"{sign}{whole}"
    # Scales with a factor 3 or 9 don't divide a power of ten; 18 digits then identify every smallest unit.
    digits = f"{rest * 10**18 // SCALE[unit]:018d}".rstrip("0")
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"
