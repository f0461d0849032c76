"""Say what came out. Reads `best.json`, writes `report.txt`; fails when the best fit is no better than guessing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

GUESSING = 0.55


def main() -> int:
    found = json.loads(Path("best.json").read_text())
    best = found["best"]
    largest = sorted(enumerate(best["weights"]), key=lambda pair: -abs(pair[1]))[:3]
    text = f"best of {found['fits']}: step {best['step']}, penalty {best['penalty']}: {best['accuracy']:.1%} of the test points"
    text += " are right; largest weights " + ", ".join(f"w{index}={weight:+.2f}" for index, weight in largest)
    Path("report.txt").write_text(text + "\n")
    print(text)
    return 0 if best["accuracy"] > GUESSING else 1


if __name__ == "__main__":
    sys.exit(main())
