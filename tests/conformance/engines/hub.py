"""A hub in a process of its own, for the tests that kill it: starts one job in a state folder and then sleeps.

`python -m tests.conformance.engines.hub STATE PAYLOAD_HEX`: prints `started` once user code runs.
"""

from __future__ import annotations

import sys
import time

from tests.conformance.engines.backends import NODES

from mintyard.adapters.engines.local import LocalEngine
from mintyard.domain.jobs.reports import AttemptStarted
from mintyard.ports.engine import MemberPlacement, StartOrder


def main(state: str, payload: str) -> None:
    engine = LocalEngine(state, nodes=NODES, idle_s=0.3)
    members = (MemberPlacement("node0"),)
    engine.start(
        [StartOrder(1, 1, "job1", "acme", members, 1_000, 512, 0, 60_000, 1_000, bytes.fromhex(payload))]
    )
    while not any(isinstance(report, AttemptStarted) for report in engine.poll(1.0)):
        pass
    print("started", flush=True)
    time.sleep(300)


if __name__ == "__main__":
    main(*sys.argv[1:])
