"""Choose the fit with the lowest test loss. Reads all `fit-*.json`, writes `best.json`."""

from __future__ import annotations

import json
from pathlib import Path


def main() -> None:
    fits = sorted(
        (json.loads(path.read_text()) for path in Path().glob("fit-*.json")), key=lambda fit: fit["test_loss"]
    )
    Path("best.json").write_text(json.dumps({"best": fits[0], "fits": len(fits)}))
    for fit in fits:
        print(
            f"{fit['test_loss']:.4f}  {fit['accuracy']:6.1%}  step {fit['step']:<4} penalty {fit['penalty']}"
        )


if __name__ == "__main__":
    main()
