"""Make data that a straight line can't part: two spirals' worth of points in features of sines, saved for the fits.

Writes `points.npz` with features (rows x features, float64) and labels (0 or 1), parted into training and test.
"""

from __future__ import annotations

import argparse

import numpy as np

ROWS = 6_000
NOISE = 1.1
WAVES = 6


def points(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows x 2 coordinates, labels) of two interleaved spirals with noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, ROWS)
    turn = np.sqrt(random.random(ROWS)) * 3 * np.pi
    sign = np.where(labels == 1, 1.0, -1.0)
    spiral = np.stack([sign * turn * np.cos(turn), sign * turn * np.sin(turn)], axis=1)
    return spiral / (3 * np.pi) + random.normal(0, NOISE / (3 * np.pi), (ROWS, 2)), labels


def features(coordinates: np.ndarray) -> np.ndarray:
    """Radius, angle and their waves: what makes the spirals separable by a plane."""
    radius = np.hypot(coordinates[:, 0], coordinates[:, 1])
    angle = np.arctan2(coordinates[:, 1], coordinates[:, 0])
    columns = [np.ones_like(radius), radius, coordinates[:, 0], coordinates[:, 1]]
    for wave in range(1, WAVES + 1):
        phase = 3 * np.pi * radius * wave
        columns += [np.cos(wave * angle - phase), np.sin(wave * angle - phase)]
    made = np.stack(columns, axis=1)
    return (made - made.mean(axis=0)) / np.where(made.std(axis=0) == 0, 1, made.std(axis=0)) + (
        made.std(axis=0) == 0
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=7)
    seed = parser.parse_args().seed
    coordinates, labels = points(seed)
    made = features(coordinates)
    cut = ROWS * 3 // 4
    np.savez(
        "points.npz", train=made[:cut], train_labels=labels[:cut], test=made[cut:], test_labels=labels[cut:]
    )
    print(f"{ROWS} points with {made.shape[1]} features, {cut} for training")


if __name__ == "__main__":
    main()
