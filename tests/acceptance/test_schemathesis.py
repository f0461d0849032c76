"""Schemathesis against the live server: nothing it makes from our own description may surprise either of them.

The streams are left out, since they don't end by themselves; `tests/integration/test_api_streams.py` has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.api_hub import ApiHub, started

pytestmark = [pytest.mark.slow, pytest.mark.acceptance]
EXAMPLES = int(os.environ.get("MINTYARD_SCHEMATHESIS_EXAMPLES", "5"))
SEED = "20301"
MAX_RUN_S = os.environ.get("MINTYARD_SCHEMATHESIS_S", "150")
"""Of one run; on two idle cores all phases end well before it."""
ENDLESS = ("watch", "follow_logs")
END_THE_CALLER = ("revoke_all", "revoke_block", "revoke_token", "suspend_token")
"""What they name may be the caller's own token, which schemathesis learns from answers: each has a run of its own."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiHub]:
    for hub in started(tmp_path_factory.mktemp("hub")):
        hub.onboard("acme", money=1_000_000)
        hub.add_node(cpus=512_000, gpus=8)
        yield hub


def run(hub: ApiHub, token: str, *options: str) -> str:
    """Run schemathesis with all checks; its report when it found something."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli"),
        *("--config-file", str(Path(__file__).with_name("schemathesis.toml"))),
        *("run", f"{hub.url}/api/v1/openapi.json", "--checks", "all", "--seed", SEED, "--no-color"),
        *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", str(EXAMPLES)),
        *("--header", f"Authorization: Bearer {token}", "--request-timeout", "20", "--warnings", "off"),
        *("--max-time", MAX_RUN_S),
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=hub.folder, timeout=1_500)
    return "" if done.returncode == 0 else done.stdout[-20_000:] + done.stderr[-4_000:]


@pytest.mark.parametrize("account", ["/", "acme"])
def test_the_server_does_what_it_says(hub: ApiHub, account: str) -> None:
    token = hub.mint(account, "admin")
    left_out = [part for name in (*ENDLESS, *END_THE_CALLER) for part in ("--exclude-operation-id", name)]
    assert run(hub, token, *left_out) == ""


@pytest.mark.parametrize("operation", END_THE_CALLER)
def test_orders_that_may_be_a_tokens_last(hub: ApiHub, operation: str) -> None:
    assert run(hub, hub.mint("acme", "admin"), "--include-operation-id", operation) == ""
