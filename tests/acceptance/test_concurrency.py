"""64 people at once against what fits exactly N: exactly N are admitted, every time (issue "The hub runs", 4).

Real connections, real processes (two API workers, writer, projector, planner), one hub for all tests of the module.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import pytest
from tests.crash.books import balance_faults, smallest
from tests.crash.live_hub import LiveHub, new_key
from tests.crash.tenants import post

from mintyard.credentials import Restrictions, narrow
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit

pytestmark = pytest.mark.slow

CLIENTS = 64
COST = 150_000_000
"""Of one job in nano-units: a core for an hour at 0.1 and a GB at 0.05."""
JOB: dict[str, Any] = {
    "launch": {"argv": ["true"]},
    "cpus_milli": 1_000,
    "memory_mib": 1_024,
    "time_limit_ms": 3_600_000,
    "held": True,  # admitted and paid for, never started: nothing is given back while others ask
}
_numbers = count(1)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHub]:
    hub = LiveHub(tmp_path_factory.mktemp("hub") / "data", workers=2)
    try:
        yield hub.start()
    finally:
        hub.destroy()


class Project:
    """A fresh account with `nano` of money, and a member's token for it."""

    def __init__(self, hub: LiveHub, nano: int) -> None:
        self.hub = hub
        self.account = f"p{next(_numbers)}"
        with hub.client() as admin:
            post(admin, "/accounts", {"account": self.account})
            post(admin, "/grants", {"account": self.account, "unit": "money", "amount": _money(nano)})
            minted = post(admin, "/tokens", {"account": self.account, "role": "member"})
        self.token: str = minted["token"]
        self.seq: int = minted["seq"]

    def balance(self) -> dict[str, int]:
        """In nano-units, as of now."""
        with self.hub.client() as admin:
            head = post(admin, "/accounts", {"account": f"p{next(_numbers)}"})["seq"]
            account = admin.get(f"/accounts/{self.account}", params={"min_seq": head}).json()
        assert balance_faults(account) == []
        (balance,) = account["balances"]
        return {name: smallest(balance[name], "money") for name in balance if name != "unit"}


def _money(nano: int) -> str:
    return f"{nano // 10**9}.{nano % 10**9:09d}"


def crowd(
    hub: LiveHub, token_of: Callable[[int], str], act: Callable[[int, httpx.Client], list[httpx.Response]]
) -> list[httpx.Response]:
    """What all clients got who began at the same instant, each on a connection of its own."""
    begin = threading.Barrier(CLIENTS)

    def one(number: int) -> list[httpx.Response]:
        with hub.client(token_of(number), timeout_s=60) as client:
            client.get("/keys")  # connected
            begin.wait()
            return act(number, client)

    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = [answer for many in threads.map(one, range(CLIENTS)) for answer in many]
    workers = {answer.headers["x-request-id"].rpartition("-")[0] for answer in answers}
    assert len(workers) == 2, "both API workers must have been asked"
    return answers


def submit(client: httpx.Client, times: int = 1) -> list[httpx.Response]:
    return [client.post("/jobs", json=JOB, headers={"idempotency-key": new_key()}) for _ in range(times)]


def outcomes(answers: list[httpx.Response]) -> Counter[str]:
    """How often each outcome came: `ok` or the problem's code."""
    return Counter("ok" if answer.is_success else answer.json()["code"] for answer in answers)


@pytest.mark.parametrize("fits", [1, 37, 64, 100])
@pytest.mark.parametrize("round_number", range(2))
def test_exactly_as_many_jobs_as_the_balance_fits(hub: LiveHub, fits: int, round_number: int) -> None:
    project = Project(hub, fits * COST + COST - 1)
    answers = crowd(hub, lambda _: project.token, lambda _, client: submit(client, 2))
    assert outcomes(answers) == {"ok": fits, "quota_exhausted": 2 * CLIENTS - fits}
    assert len({answer.json()["job"] for answer in answers if answer.is_success}) == fits
    balance = project.balance()
    assert (balance["held"], balance["left"], balance["spent"]) == (fits * COST, COST - 1, 0)


def test_batches_that_take_what_fits(hub: LiveHub) -> None:
    fits, size = 150, 5
    project = Project(hub, fits * COST)

    def act(_: int, client: httpx.Client) -> list[httpx.Response]:
        body = {"jobs": [JOB] * size, "atomic": False}
        return [client.post("/jobs/batch", json=body, headers={"idempotency-key": new_key()})]

    answers = crowd(hub, lambda _: project.token, act)
    assert outcomes(answers) == {"ok": CLIENTS}
    lines = [line for answer in answers for line in answer.json()["lines"]]
    assert sum("ticket" in line for line in lines) == fits
    assert {line["problem"]["code"] for line in lines if "ticket" not in line} == {"quota_exhausted"}
    assert project.balance()["left"] == 0


def test_batches_that_are_all_or_nothing(hub: LiveHub) -> None:
    fits, size = 100, 3
    project = Project(hub, fits * COST)

    def act(_: int, client: httpx.Client) -> list[httpx.Response]:
        return [
            client.post("/jobs/batch", json={"jobs": [JOB] * size}, headers={"idempotency-key": new_key()})
        ]

    answers = crowd(hub, lambda _: project.token, act)
    whole = fits // size
    assert outcomes(answers) == {"ok": whole, "quota_exhausted": CLIENTS - whole}
    assert project.balance()["left"] == (fits - whole * size) * COST


@pytest.mark.parametrize("fits", [1, 40, 90])
def test_a_ceiling_narrowed_offline_binds_all_that_is_narrowed_from_it(hub: LiveHub, fits: int) -> None:
    """The ceiling stands in no database when the clients begin: nobody but its maker has seen the narrowed token."""
    project = Project(hub, 1_000 * COST)
    keys = hub.admin.keys
    assert keys is not None
    shared = narrow(project.token, keys, Restrictions(ceilings={Unit.MONEY: fits * COST + COST // 2}))

    def own(number: int) -> str:
        """Each client's own: every other one may pay for one job only."""
        ceilings = {Unit.MONEY: COST} if number % 2 else {}
        return narrow(
            shared,
            keys,
            Restrictions(scopes=frozenset({Scope.JOB_SUBMIT, Scope.JOB_READ}), ceilings=ceilings),
        )

    answers = crowd(hub, own, lambda _, client: submit(client, 3))
    assert outcomes(answers) == {"ok": fits, "ceiling_reached": 3 * CLIENTS - fits}
    balance = project.balance()
    assert (balance["held"], balance["left"]) == (fits * COST, (1_000 - fits) * COST)


def test_ceilings_of_their_own_bind_beside_the_shared_one(hub: LiveHub) -> None:
    project = Project(hub, 1_000 * COST)
    keys = hub.admin.keys
    assert keys is not None
    shared = narrow(project.token, keys, Restrictions(ceilings={Unit.MONEY: 500 * COST}))
    answers = crowd(
        hub,
        lambda _: narrow(shared, keys, Restrictions(ceilings={Unit.MONEY: 2 * COST})),
        lambda _, client: submit(client, 3),
    )
    assert outcomes(answers) == {"ok": 2 * CLIENTS, "ceiling_reached": CLIENTS}
    assert project.balance()["held"] == 2 * CLIENTS * COST


def test_one_escrow_is_never_drawn_beyond_its_amount(hub: LiveHub) -> None:
    """The holder's clients report running totals, out of order: those beyond the amount are refused, the highest other
    one is what is spent."""
    step, fits = 1_000_003, 40
    project = Project(hub, 10**10)
    with hub.client(project.token) as client:
        hold = post(client, "/holds", {"amounts": {"money": _money(fits * step)}, "holder": "edge"})["ref"]

    def act(number: int, client: httpx.Client) -> list[httpx.Response]:
        body = {"spent": {"money": _money((number * 37 % CLIENTS + 1) * step)}}
        return [client.post(f"/holds/{hold}/draw", json=body, headers={"idempotency-key": new_key()})]

    answers = crowd(hub, lambda _: project.token, act)
    assert outcomes(answers) == {"ok": fits, "invalid_amount": CLIENTS - fits}
    balance = project.balance()
    assert (balance["spent"], balance["held"], balance["left"]) == (fits * step, 0, 10**10 - fits * step)


def test_one_hold_extended_by_many_takes_exactly_what_is_left(hub: LiveHub) -> None:
    step, fits = 1_000_003, 23
    project = Project(hub, (fits + 1) * step + step - 1)
    with hub.client(project.token) as client:
        hold = post(client, "/holds", {"amounts": {"money": _money(step)}})["ref"]

    def act(_: int, client: httpx.Client) -> list[httpx.Response]:
        body = {"amounts": {"money": _money(step)}}
        return [client.post(f"/holds/{hold}/extend", json=body, headers={"idempotency-key": new_key()})]

    answers = crowd(hub, lambda _: project.token, act)
    assert outcomes(answers) == {"ok": fits, "quota_exhausted": CLIENTS - fits}
    balance = project.balance()
    assert (balance["held"], balance["left"]) == ((fits + 1) * step, step - 1)


def test_one_hold_is_settled_once(hub: LiveHub) -> None:
    project = Project(hub, 10**9)
    with hub.client(project.token) as client:
        hold = post(client, "/holds", {"amounts": {"money": _money(CLIENTS)}})["ref"]

    def act(number: int, client: httpx.Client) -> list[httpx.Response]:
        body = {"used": {"money": _money(number + 1)}}
        return [client.post(f"/holds/{hold}/settle", json=body, headers={"idempotency-key": new_key()})]

    answers = crowd(hub, lambda _: project.token, act)
    assert sum(answer.is_success for answer in answers) == 1
    winner = next(number for number, answer in enumerate(answers) if answer.is_success)
    balance = project.balance()
    assert (balance["spent"], balance["held"]) == (winner + 1, 0)


def test_one_key_sent_by_all_makes_one_job(hub: LiveHub) -> None:
    project = Project(hub, 10 * COST)
    key = new_key()
    answers = crowd(
        hub,
        lambda _: project.token,
        lambda _, client: [client.post("/jobs", json=JOB, headers={"idempotency-key": key})],
    )
    assert outcomes(answers) == {"ok": CLIENTS}
    assert len({answer.json()["job"] for answer in answers}) == 1
    assert project.balance()["held"] == COST
