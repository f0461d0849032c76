"""One fit of a logistic regression by gradient descent; which step and penalty follows from the task's index.

Reads `points.npz`, writes `fit-INDEX.json`.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np

STEPS = (0.03, 0.3, 3.0)
PENALTIES = (0.0, 0.003, 0.1)
ROUNDS = 400


def loss(features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """Mean logistic loss in nats."""
    margins = features @ weights
    return float(np.mean(np.logaddexp(0, margins) - labels * margins))


def fit(features: np.ndarray, labels: np.ndarray, step: float, penalty: float) -> np.ndarray:
    weights = np.zeros(features.shape[1])
    for _ in range(ROUNDS):
        chances = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        gradient = features.T @ (chances - labels) / len(labels) + penalty * weights
        weights -= step * gradient
    return weights


def main() -> None:
    index = int(os.environ["MINTYARD_ARRAY_INDEX"])
    step, penalty = STEPS[index // len(PENALTIES)], PENALTIES[index % len(PENALTIES)]
    begun = time.perf_counter()
    with np.load("points.npz") as data:
        weights = fit(data["train"], data["train_labels"], step, penalty)
        test_loss = loss(data["test"], data["test_labels"], weights)
        accuracy = float(np.mean((data["test"] @ weights > 0) == data["test_labels"]))
    result = {"index": index, "step": step, "penalty": penalty, "test_loss": test_loss, "accuracy": accuracy}
    with open(f"fit-{index}.json", "w") as file:
        json.dump(result | {"weights": weights.tolist()}, file)
    print(
        f"step {step:<4} penalty {penalty:<5}: test loss {test_loss:.4f}, accuracy {accuracy:.1%}, ", end=""
    )
    print(f"{ROUNDS} rounds in {time.perf_counter() - begun:.2f} s on {os.environ['MINTYARD_NODE']}")


if __name__ == "__main__":
    main()
