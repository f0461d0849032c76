"""Tenants of the crash test: organisations, projects, grants of several kinds, and a token for each person."""

from __future__ import annotations

from typing import Any

import httpx
from tests.crash.live_hub import LiveHub, new_key
from tests.crash.people import send

GRANTS: tuple[tuple[str, str, str], ...] = (
    ("acme", "money", "1000000"),
    ("acme/vision", "money", "200000"),
    ("acme/speech", "cpu_core_hours", "10000"),
    ("acme/speech", "money", "50000"),
    ("beta", "money", "300000"),
    ("beta/lab", "gpu_hours", "5000"),
    ("beta/lab", "money", "60000"),
)
"""(account, unit, amount): what is used below is charged at each account on the path that meters the unit."""
PROJECTS = ("acme/vision", "acme/speech", "beta/lab")
_SHORT_GRANT_S = 20
"""One grant ends early, so that amounts expire while they are held and while they are not."""


def onboard(hub: LiveHub) -> dict[str, str]:
    """Open the accounts, grant, and mint a member's token for each project."""
    with hub.client() as client:
        for account in sorted({account for account, _, _ in GRANTS}):
            post(client, "/accounts", {"account": account})
        for account, unit, amount in GRANTS:
            post(client, "/grants", {"account": account, "unit": unit, "amount": amount})
        short = {"account": "acme/vision", "unit": "money", "amount": "3.5", "priority": 1}
        post(client, "/grants", short | {"expires_at": _in_s(_SHORT_GRANT_S)})
        return {
            project: post(client, "/tokens", {"account": project, "role": "member", "life_s": 86_400})[
                "token"
            ]
            for project in PROJECTS
        }


def meters() -> dict[str, set[str]]:
    """The units that each account meters."""
    found: dict[str, set[str]] = {}
    for account, unit, _ in GRANTS:
        found.setdefault(account, set()).add(unit)
    return found


def post(client: httpx.Client, path: str, body: Any) -> Any:
    """The answer's body; AssertionError for a refusal."""
    answer = send(client, "POST", path, body, new_key())
    assert answer.is_success, f"{path} {body}: {answer.status_code} {answer.text}"
    return answer.json()


def _in_s(seconds: int) -> str:
    from datetime import UTC, datetime, timedelta

    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
