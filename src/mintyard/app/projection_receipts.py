"""Receipts: what a settled attempt amounted to, per resource and per account, exactly as it was posted.

Pure: from the hold's closing event, the hold's lines, the pinned prices and the job's shape. Nothing is stored here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from mintyard.app.read_model.rows import PriceRow
from mintyard.app.read_model.views import ChargeLine, HoldLine, Receipt, ResourceLine
from mintyard.domain.events import HoldClosed
from mintyard.domain.jobs.spec import Shape
from mintyard.domain.ledger.prices import RESOURCES, PriceBook, bill, per_ms
from mintyard.domain.units import Unit

_CPU = RESOURCES.index(Unit.CPU)
_models_decoder = msgspec.json.Decoder(dict[str, int])


def price_book(row: PriceRow) -> PriceBook:
    return PriceBook(
        row.effective_from,
        row.gpu_nano,
        row.cpu_nano,
        row.memory_nano,
        row.storage_nano,
        _models_decoder.decode(row.gpu_models),
    )


def pairs(flat: Sequence[int]) -> Iterable[tuple[int, int]]:
    """(grant, amount) of a flat tuple."""
    return zip(flat[::2], flat[1::2], strict=True)


def used_amounts(flat: Sequence[str | int]) -> dict[str, int]:
    """Amounts by unit of a flat tuple (unit, amount, ...)."""
    return {str(unit): int(amount) for unit, amount in zip(flat[::2], flat[1::2], strict=True)}


def receipt_of(
    event: HoldClosed,
    lines: Sequence[HoldLine],
    shape: Shape,
    number: int,
    book: PriceBook,
    gpu_models: Sequence[str],
    at: int,
) -> Receipt:
    """The receipt of one settled attempt. `gpu_models` are those of the nodes that it ran on."""
    used = used_amounts(event.used)
    stock_per_ms = per_ms(shape)
    run_ms = used.get(Unit.CPU, 0) // stock_per_ms[_CPU]
    resources = _resources(shape, run_ms, book, book.gpu_rate(gpu_models or [""]), used.get(Unit.MONEY, 0))
    spent = dict(pairs(event.spent))
    charged = tuple(_charge(line, resources, spent) for line in lines)
    return Receipt(
        event.job,
        event.attempt,
        event.account,
        event.hold,
        at,
        run_ms,
        number,
        tuple(line for line in resources if line.stock or line.money),
        sum(line.money for line in resources),
        charged,
    )


def _resources(
    shape: Shape, run_ms: int, book: PriceBook, gpu_rate: int, total: int
) -> tuple[ResourceLine, ...]:
    """One line for each of `RESOURCES`. Their sum is `total`, what the event says: were prices ever computed in another way
    than when it was written, the difference shows at the first resource used instead of making the receipt untrue."""
    rates = (gpu_rate, book.cpu_nano, book.memory_nano, book.storage_nano)
    made = bill(shape, run_ms, book, gpu_rate)
    money, stocks = list(made.money), made.stock
    first = next((bit for bit, stock in enumerate(stocks) if stock), 0)
    money[first] += total - sum(money)
    return tuple(
        ResourceLine(unit, stocks[bit], rates[bit], money[bit]) for bit, unit in enumerate(RESOURCES)
    )


def _charge(line: HoldLine, resources: Sequence[ResourceLine], spent: dict[int, int]) -> ChargeLine:
    covered = [resource for bit, resource in enumerate(resources) if line.resources >> bit & 1]
    listed = sum(resource.money if line.unit is Unit.MONEY else resource.stock for resource in covered)
    amount = sum(spent.get(grant, 0) for grant in dict.fromkeys(line.legs[::2]))
    return ChargeLine(line.account, line.unit, tuple(resource.unit for resource in covered), listed, amount)


def refunded(receipt: Receipt, given: dict[tuple[str, str], int], cause: str) -> Receipt:
    """The receipt after amounts were given back: by (account, unit)."""
    return msgspec.structs.replace(
        receipt,
        charges=tuple(
            msgspec.structs.replace(
                line, refunded=line.refunded + given.get((line.account, line.unit.value), 0)
            )
            for line in receipt.charges
        ),
        refund_cause=cause,
    )
