"""Books kept beside the hub: what an account must have spent, worked out again from answers of the API alone.

Nothing of the hub's own arithmetic is imported: units, prices and rules are written down once more.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

HOUR_MS = 3_600_000
SMALLEST = {
    "money": 10**9,
    "gpu_hours": 1_000 * HOUR_MS,
    "cpu_core_hours": 1_000 * HOUR_MS,
    "memory_gb_hours": 1_024 * HOUR_MS,
    "storage_tb_hours": 1_000_000 * HOUR_MS,
}
"""Smallest units in one of the unit that people write."""
RATES_NANO = {
    "gpu_hours": 5_000_000_000,
    "cpu_core_hours": 100_000_000,
    "memory_gb_hours": 50_000_000,
    "storage_tb_hours": 20_000_000,
}
"""Default prices an hour (feature L5)."""
Books = dict[tuple[str, str], int]
"""(account, unit) -> smallest units."""


def smallest(text: str, unit: str) -> int:
    """Smallest units of a decimal string, which is cut after 18 digits."""
    return round(Fraction(text) * SMALLEST[unit])


def balance_faults(account: dict[str, Any]) -> list[str]:
    """Whether granted + refunded = spent + held + expired + left holds for each unit, none of them negative."""
    faults: list[str] = []
    for balance in account["balances"]:
        unit = balance["unit"]
        sums = {name: smallest(balance[name], unit) for name in balance if name != "unit"}
        given = sums["granted"] + sums["refunded"]
        is_now = sums["spent"] + sums["held"] + sums["expired"] + sums["left"]
        if given != is_now or min(sums.values()) < 0:
            faults.append(f"{account['account']} {unit}: {given} given, {is_now} found: {balance}")
    return faults


def receipt_faults(job: dict[str, Any], receipt: dict[str, Any]) -> list[str]:
    """A receipt computed again: stock from run time and shape, cost from stock and default rates, the sums."""
    faults: list[str] = []
    shape = job["resources"]
    rate_of_use = {
        "gpu_hours": shape["gpus"] * shape["gpu_milli"] * shape["members"],
        "cpu_core_hours": shape["cpus_milli"] * shape["members"],
        "memory_gb_hours": shape["memory_mib"] * shape["members"],
        "storage_tb_hours": shape["storage_mb"] * shape["members"],
    }
    total = 0
    for attempt in receipt["receipts"]:
        cost = 0
        for line in attempt["resources"]:
            unit = line["unit"]
            stock = rate_of_use[unit] * attempt["run_ms"]
            money = stock * RATES_NANO[unit] // SMALLEST[unit]
            cost += money
            if smallest(line["stock"], unit) != stock or smallest(line["cost"], "money") != money:
                faults.append(f"job {job['job']}: {line} should be {stock} and {money}")
        if smallest(attempt["cost"], "money") != cost:
            faults.append(
                f"job {job['job']} attempt {attempt['attempt']}: cost {attempt['cost']}, {cost} found"
            )
        for line in attempt["charges"]:
            amount, listed = (smallest(line[name], line["unit"]) for name in ("amount", "listed"))
            if amount != listed:
                faults.append(f"job {job['job']}: charged {amount} of {listed} listed: {line}")
        refunded = sum(
            smallest(line["refunded"], "money") for line in attempt["charges"] if line["unit"] == "money"
        )
        total += cost if refunded == 0 else 0
    if smallest(receipt["cost"], "money") != total:
        faults.append(f"job {job['job']}: cost {receipt['cost']}, its attempts sum up to {total}")
    return faults


class ExpectedBooks:
    """What must have been spent, added up from receipts and from holds settled by hand."""

    def __init__(self, meters: dict[str, set[str]]) -> None:
        """`meters`: the units that were granted to each account."""
        self.meters = meters
        self.spent: Books = defaultdict(int)
        self.refunded: Books = defaultdict(int)

    def add_receipt(self, receipt: dict[str, Any]) -> None:
        for attempt in receipt["receipts"]:
            for line in attempt["charges"]:
                key = line["account"], line["unit"]
                self.spent[key] += smallest(line["amount"], line["unit"])
                self.refunded[key] += smallest(line["refunded"], line["unit"])

    def add_hold(self, account: str, unit: str, used: int) -> None:
        """A hold settled by hand is paid by the account and by all above it that meter the unit."""
        for payer in above(account):
            if unit in self.meters.get(payer, ()):
                self.spent[payer, unit] += used

    def faults(self, accounts: list[dict[str, Any]]) -> list[str]:
        """Where the hub's balances differ."""
        found: list[str] = []
        for account in accounts:
            for balance in account["balances"]:
                unit, key = balance["unit"], (account["account"], balance["unit"])
                for name, books in (("spent", self.spent), ("refunded", self.refunded)):
                    shown = smallest(balance[name], unit)
                    if shown != books[key]:
                        found.append(f"{key}: {name} {shown}, by receipts and holds {books[key]}")
        return found


def above(account: str) -> list[str]:
    """The account and those above it, the hub's own left out."""
    parts = account.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
