"""Variants of one kernel: functions that differ in constants they close over (the kind of score), each compiled for itself.

Numba names machine code by the function's qualified name, its argument types and a number that is counted anew in each process;
variants have name and types in common. A process that took one from the cache and compiled another could be given the code of
the first for the second, and would decide otherwise. So each gets a name of its own.
"""

# Numba has no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled_as(*constants: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`njit(cache=True)` for the variant with these constants."""

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__qualname__ += "_" + "_".join(str(int(one)) for one in constants)
        return njit(cache=True)(function)

    return compiled
