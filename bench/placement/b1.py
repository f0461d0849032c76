"""B1: placement quality on openb: the fill protocol through the production round, ours (the default policy) beside FGD.

`fill.MIX` is the default policy, `fill_fgd.MIX` our own FGD, in percent of all GPU milli, mean of seeds 42 to 51; the published
figures (FGD, USENIX ATC'23) stand beside them. `--quick`: five mixes on three seeds, FGD on one.
The churn protocol is not here yet.
"""

from __future__ import annotations

import argparse
from math import sqrt
from statistics import mean, stdev
from typing import Any, Final

from bench.placement.fill import fill, mixes, read_mix
from bench.report import finish, table
from mintyard.domain.commands import Tick
from mintyard.domain.scheduling.scoring import Policy

SEEDS: Final = range(42, 52)
QUICK: Final = ("default", "gpuspec33", "gpushare100", "multigpu50", "cpu200")
T_95: Final = 2.262
"""Student's t for ten paired seeds."""
PUBLISHED: Final = {
    "default": (93.08, 95.39),
    "cpu050": (93.79, 95.21),
    "cpu100": (93.44, 95.35),
    "cpu200": (92.40, 95.05),
    "gpushare40": (91.69, 94.15),
    "gpushare100": (85.01, 86.90),
    "gpuspec10": (93.30, 94.95),
    "gpuspec33": (93.09, 94.55),
    "multigpu20": (93.93, 95.65),
    "multigpu50": (95.74, 97.18),
}
"""BestFit and FGD by the protocol's authors, same seeds."""


def run(given: argparse.Namespace) -> None:
    folder = given.data / "openb" if (given.data / "openb").is_dir() else given.data
    ours = Tick().policy
    figures: dict[str, float] = {}
    rows: list[list[Any]] = []
    for name in mixes(folder):
        if given.quick and name not in QUICK:
            continue
        mix = read_mix(folder, name)
        seeds = list(SEEDS)[:3] if given.quick else list(SEEDS)
        mine = [fill(mix, ours, seed) for seed in seeds]
        best_fit = [fill(mix, Policy.BEST_FIT, seed) for seed in seeds]
        fgd = [fill(mix, Policy.FGD, seed) for seed in (seeds[:1] if given.quick else seeds)]
        figures[f"fill.{name}"], figures[f"fill_fgd.{name}"] = mean(mine), mean(fgd)
        figures[f"fill_best_fit.{name}"] = mean(best_fit)
        published = PUBLISHED.get(name, (0.0, 0.0))
        gain = [one - other for one, other in zip(mine, fgd, strict=False)]
        rows.append(
            [
                name,
                f"{mean(mine):.2f}",
                f"{mean(fgd):.2f}",
                f"{published[1]:.2f}",
                f"{mean(best_fit):.2f}",
                f"{published[0]:.2f}",
                f"{mean(gain):+.2f} ± {_half_width(gain):.2f}",
                f"{mean(mine) - published[1]:+.2f}",
            ]
        )
    header = [
        "mix",
        f"ours ({ours.value})",
        "own FGD",
        "published FGD",
        "own BestFit",
        "published BestFit",
        "ours - own FGD, 95 %",
        "ours - published FGD",
    ]
    print(table(header, rows))
    finish("B1", figures)


def _half_width(values: list[float]) -> float:
    """Of the 95 % interval of the mean of paired differences."""
    return T_95 * stdev(values) / sqrt(len(values)) if len(values) > 2 else 0.0
