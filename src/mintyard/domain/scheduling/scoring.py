"""Policies by name, their integer parameters, and the plain definition of every score. No numba, no state.

A policy chooses among the feasible nodes the one with the least key; ties go to the lowest index. The functions here are
the definition and the test's oracle; `kernels` compiles the same. Sources: S7 (0.6/0.4 and 60/30/10), FGD and GPU packing
(Weng et al., USENIX ATC'23), dot product (Grandl et al., SIGCOMM'14).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mintyard.domain.scheduling.feasibility import Need, NodeView
from mintyard.domain.scheduling.layout import (
    CPU_PER_GPU,
    CPU_TOTAL,
    GPU_MILLI,
    GPUS,
    MEMORY_TOTAL,
    NEED_CPU,
    NEED_GPUS,
    NEED_MEMORY,
    NEED_MILLI,
    ONE,
    PARAMETERS,
    SHARE_CPU,
    SHARE_LATENCY,
    SHARE_MEMORY,
    WEIGHT_CPU,
    WEIGHT_GPU,
    WEIGHT_MEMORY,
)

_SCALE: Final = (1 << 31) - 1
"""Weights are positive 32-bit integers; an amount left times its weight stays below 2^31 for best fit."""


class Policy(StrEnum):
    """How a node is chosen among those that can run a member."""

    STRANDED = "stranded"
    """Least increase of GPU that can't be used for lack of CPU, then least GPU left. Fast default."""
    BEST_FIT = "best_fit"
    """Least left of CPU and GPU, each against the largest node: the form whose figures FGD's authors publish, without memory."""
    LEAST_LOADED = "least_loaded"
    """0.6 x free CPU + 0.4 x free memory (S7): spreads; for services, the worst packer."""
    LEAST_LOADED_NETWORK = "least_loaded_network"
    """60 % CPU, 30 % memory, 10 % network latency (S7)."""
    DOT_PRODUCT = "dot_product"
    """Least alignment of what is free with what is asked."""
    GPU_PACKING = "gpu_packing"
    """GPUs in use first, then nodes in use, then untouched ones."""
    FGD = "fgd"
    """Least growth of fragmentation for the classes seen, truncated to an integer 0 to 100."""


def parameters(policy: Policy, cpu_per_gpu_milli: int) -> NDArray[np.int64]:
    """The parameters a kernel reads, int64 `[PARAMETERS]`."""
    values = np.zeros(PARAMETERS, np.int64)
    values[CPU_PER_GPU] = cpu_per_gpu_milli
    if policy is Policy.LEAST_LOADED_NETWORK:
        values[[SHARE_CPU, SHARE_MEMORY, SHARE_LATENCY]] = 60, 30, 10
    else:
        values[[SHARE_CPU, SHARE_MEMORY]] = 60, 40
    return values


def set_weights(policy: Policy, requests: NDArray[np.int64], table: NDArray[np.int32]) -> None:
    """Fill the weight columns of `requests` for the linear policies; `table` `[ROWS, nodes]` gives the largest node."""
    cpu, memory, gpus = (int(table[row].max(initial=0)) for row in (CPU_TOTAL, MEMORY_TOTAL, GPUS))
    largest = (max(1, cpu), max(1, memory), max(1, gpus * GPU_MILLI))
    columns = (WEIGHT_CPU, WEIGHT_MEMORY, WEIGHT_GPU)
    if policy is Policy.BEST_FIT:
        for column, most in zip(columns, largest, strict=True):
            requests[:, column] = 0 if column == WEIGHT_MEMORY else _SCALE // most
    elif policy is Policy.DOT_PRODUCT:
        asked = (
            requests[:, NEED_CPU],
            requests[:, NEED_MEMORY],
            requests[:, NEED_GPUS] * requests[:, NEED_MILLI],
        )
        for column, most, amount in zip(columns, largest, asked, strict=True):
            # The share asked, per unit of the largest node; what could never fit counts as a whole node.
            requests[:, column] = np.minimum(amount, most) * _SCALE // (most * most)


@cache
def fragmentation_steps() -> tuple[int, ...]:
    """The least change of fragmentation (milli) at which int(100 sigmoid(change / 1000)) reaches 1, 2 .. 99.

    Computed in decimals, so that every machine has the same table: floats would differ in the last digit.
    """
    steps: list[int] = []
    for score in range(1, 100):
        exact = (Decimal(score) / Decimal(100 - score)).ln() * 1_000
        steps.append(int(exact.to_integral_value(rounding="ROUND_CEILING")))
    return tuple(steps)


def stranded_key(node: NodeView, need: Need, cpu_per_gpu_milli: int) -> tuple[int, ...]:
    """(increase of stranded GPU x ratio, GPU left)."""

    def stranded(cpu: int, idle: int) -> int:
        return max(0, idle * cpu_per_gpu_milli - cpu * GPU_MILLI)

    left = node.idle - need.gpus * need.milli
    return stranded(node.cpu - need.cpu, left) - stranded(node.cpu, node.idle), left


def linear_key(node: NodeView, need: Need) -> tuple[int, ...]:
    """Weighted sum of what is left: best fit and dot product."""
    left = (node.cpu - need.cpu, node.memory - need.memory, node.idle - need.gpus * need.milli)
    return (sum(amount * weight for amount, weight in zip(left, need.weights, strict=True)),)


def loaded_key(node: NodeView, need: Need, shares: tuple[int, int, int]) -> tuple[int, ...]:
    """Minus the weighted free shares of CPU, memory and network after placing it."""
    cpu = (node.cpu - need.cpu) * (ONE // node.cpu_total if node.cpu_total else 0)
    memory = (node.memory - need.memory) * (ONE // node.memory_total if node.memory_total else 0)
    network = (1_000 - node.latency) * (ONE // 1_000)
    return (-(shares[0] * cpu + shares[1] * memory + shares[2] * network),)


def packing_key(node: NodeView, need: Need) -> tuple[int, ...]:
    """(0 GPU in use, 1 node in use, 2 untouched; milli left on that GPU or node)."""
    asked = need.gpus * need.milli
    if not asked and not node.slots:
        return 0, 0
    tight = [slot - need.milli for slot in node.slots if need.milli <= slot < GPU_MILLI]
    if 0 < asked < GPU_MILLI and tight:
        return 0, min(tight)
    untouched = all(slot == GPU_MILLI for slot in node.slots)
    return (2 if untouched else 1), node.idle - asked


def fragmentation(node: NodeView, typical: Sequence[Need]) -> int:
    """Idle milli that typical classes can't use here, weighted by demand: all of it for a class that can't run or needs
    no GPU, else what lies on GPUs with less than it wants."""
    total = 0
    for kind in typical:
        enough = sum(1 for slot in node.slots if slot >= kind.milli)
        runs = kind.gpus and node.cpu >= kind.cpu and node.eligible[kind.eligible] and enough >= kind.gpus
        lost = sum(max(0, slot) for slot in node.slots if slot < kind.milli) if runs else node.idle
        total += kind.demand * lost
    return total


def fragmentation_score(change: int, weight: int) -> int:
    """int(100 sigmoid(change / weight / 1000)), exact."""
    return sum(1 for step in fragmentation_steps() if step * weight <= change)
