"""Compiled kernels of run-time prediction: run times counted one after the other, and predictions of many kinds."""

# Numba has no types.
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

TEMPLATES: Final = 4
ONE: Final = 1_024
"""Weight of one run time."""
DECAY: Final = 5
"""Each new run time takes a fifth from the weight of those before."""

ROW_TOTAL: Final = 0
"""Decayed sum of run times, ms x `ONE`; at most `DECAY` x `ONE` times a year, far below 2^63."""
ROW_WEIGHT: Final = 1
ROW_LAST: Final = 2
"""Number of the last run time counted here."""
ROW_COLUMNS: Final = 3

ERROR_RUNS: Final = 0
ERROR_UNDER: Final = 1
ERROR_ABSOLUTE: Final = 2
ERROR_LIMIT: Final = 3
ERROR_COLUMNS: Final = 4

_LIMIT: Final = TEMPLATES
_RUN: Final = TEMPLATES + 1


@njit(cache=True)
def _predict(table: Any, rows: Any, limit: int) -> int:
    """Half the limit, drawn towards each template's mean from the last (general) to the first (special)."""
    expected = limit // 2
    for at in range(TEMPLATES - 1, -1, -1):
        row = rows[at]
        if row >= 0 and table[row, ROW_WEIGHT] > 0:
            expected = (table[row, ROW_TOTAL] + expected * ONE) // (table[row, ROW_WEIGHT] + ONE)
    return max(1, min(limit, expected))


@njit(cache=True)
def predict(table: Any, rows: Any, limits: Any) -> Any:
    """Expected run time (ms) of each kind, by the rows of its templates, -1 for none."""
    expected = np.empty(rows.shape[0], np.int64)
    for kind in range(rows.shape[0]):
        expected[kind] = _predict(table, rows[kind], limits[kind])
    return expected


@njit(cache=True)
def count_runs(table: Any, errors: Any, runs: Any) -> None:
    """Count run times in order, int64 `[runs, TEMPLATES + 2]`: rows, time limit, run time; each is first compared with what
    would have been predicted."""
    for at in range(runs.shape[0]):
        limit, run = runs[at, _LIMIT], runs[at, _RUN]
        missed = run - _predict(table, runs[at], limit)
        errors[ERROR_RUNS] += 1
        if missed > 0:
            errors[ERROR_UNDER] += 1
        errors[ERROR_ABSOLUTE] += abs(missed)
        errors[ERROR_LIMIT] += abs(limit - run)
        for column in range(TEMPLATES):
            row = runs[at, column]
            table[row, ROW_TOTAL] += run * ONE - table[row, ROW_TOTAL] // DECAY
            table[row, ROW_WEIGHT] += ONE - table[row, ROW_WEIGHT] // DECAY
            table[row, ROW_LAST] = errors[ERROR_RUNS]
