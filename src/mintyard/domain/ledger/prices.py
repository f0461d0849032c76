"""Prices: what a stock costs, exactly and however the interval is cut (L5).

Rates are nano-units of money per hour of one GPU, core, GB of memory or TB of storage. A charge is the floor of
stock x rate over the hour, per resource and on the cumulative stock: charges of parts are differences of cumulative
charges, so the remainder is carried and no cutting of an interval changes the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mintyard.domain.jobs.spec import Shape
from mintyard.domain.units import SCALE, Unit

RESOURCES: Final = (Unit.GPU, Unit.CPU, Unit.MEMORY, Unit.STORAGE)
"""What a job uses up while it runs; the position is the bit in a line's mask."""
ALL_RESOURCES: Final = (1 << len(RESOURCES)) - 1


class PriceBook(msgspec.Struct, frozen=True, array_like=True):
    """Rates from `effective_from` (ns) on. `gpu_models` overrides the GPU rate per model. Defaults are feature L5's, in USD."""

    effective_from: int = 0
    gpu_nano: int = 5_000_000_000
    cpu_nano: int = 100_000_000
    memory_nano: int = 50_000_000
    storage_nano: int = 20_000_000
    gpu_models: dict[str, int] = {}

    def gpu_rate(self, models: Sequence[str]) -> int:
        """The highest rate among `models`; with none named, among all models and the default: a hold must cover any."""
        if models:
            return max(self.gpu_models.get(model, self.gpu_nano) for model in models)
        return max([self.gpu_nano, *self.gpu_models.values()])


def per_ms(shape: Shape) -> tuple[int, int, int, int]:
    """Stock that a job of `shape` uses each ms, in the order of `RESOURCES`, over all its members."""
    n = shape.members
    return (
        n * shape.gpus * shape.gpu_milli,
        n * shape.cpus_milli,
        n * shape.memory_mib,
        n * shape.storage_mb,
    )


def resource_mask(shape: Shape) -> int:
    """The bits of the resources that `shape` has any of."""
    return sum(1 << bit for bit, amount in enumerate(per_ms(shape)) if amount)


_POSITION: Final = {unit.value: bit for bit, unit in enumerate(RESOURCES)}
_MONEY: Final = Unit.MONEY.value
_GPU_SCALE, _CPU_SCALE, _MEMORY_SCALE, _STORAGE_SCALE = (SCALE[unit] for unit in RESOURCES)


class Bill(msgspec.Struct, frozen=True):
    """What a run of a shape amounts to: stock and money per resource, in the order of `RESOURCES`."""

    stock: tuple[int, int, int, int]
    money: tuple[int, int, int, int]

    def amount(self, unit: str, mask: int) -> int:
        """The amount of `unit` for the resources in `mask`."""
        if unit == _MONEY:
            gpu, cpu, memory, storage = self.money
            if mask == ALL_RESOURCES:
                return gpu + cpu + memory + storage
            return (
                (gpu if mask & 1 else 0)
                + (cpu if mask & 2 else 0)
                + (memory if mask & 4 else 0)
                + (storage if mask & 8 else 0)
            )
        bit = _POSITION.get(unit)
        return 0 if bit is None else self.stock[bit]


def bill(shape: Shape, run_ms: int, book: PriceBook, gpu_rate: int) -> Bill:
    """What `run_ms` in total amounts to; `gpu_rate` as pinned or as placed. The one place where a price is applied."""
    gpu, cpu, memory, storage = per_ms(shape)
    gpu, cpu, memory, storage = gpu * run_ms, cpu * run_ms, memory * run_ms, storage * run_ms
    return Bill(
        (gpu, cpu, memory, storage),
        (
            gpu * gpu_rate // _GPU_SCALE,
            cpu * book.cpu_nano // _CPU_SCALE,
            memory * book.memory_nano // _MEMORY_SCALE,
            storage * book.storage_nano // _STORAGE_SCALE,
        ),
    )
