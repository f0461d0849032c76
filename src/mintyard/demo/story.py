"""Story: what the demo shows, in order. Each step is a command that a user would type; checks go by the Python client."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from mintyard.demo.console import Console, DemoFailed
from mintyard.demo.witness import Witness, paid
from mintyard.domain.units import Unit

if TYPE_CHECKING:
    from mintyard.demo.hub import RunningHub

ORGANISATION: Final = "acme"
PROJECT: Final = "acme/vision"
USER: Final = "acme/vision/ann"
ACCOUNTS: Final = (ORGANISATION, PROJECT, USER)
ADMINISTRATOR: Final = "mintyard"
"""The login that `mintyard up` stores: the hub's name."""
TRIAL: Final = Decimal(2)
TRIAL_LIFE_S: Final = 20
GOODWILL: Final = Decimal("0.01")
_QUOTA, _TIMEOUT = 5, 9
_SUBMITTED: Final = re.compile(r"^Submitted job (\d+)(?: \((\w+)\))?", re.M)
_PATIENCE_S: Final = 60.0


def tell(console: Console, hub: RunningHub) -> None:
    """The whole story; raises `DemoFailed` at the first thing that is not as it must be."""
    start(console, hub)
    onboard(console, hub)
    pipeline = compute(console)
    refused(console)
    slow = timed_out(console)
    waited = explain(console)
    replay(console)
    account_for(console, [*pipeline, slow, *waited])
    verify(console)


def start(console: Console, hub: RunningHub) -> None:
    console.step("A hub on this machine, on SQLite, in a fresh folder")
    hub.start(console)
    console.say(f"  ready at {hub.url}; its administrator's token is stored for the command line")
    console.run("mintyard node ls")


def onboard(console: Console, hub: RunningHub) -> None:
    console.step("An organisation, a project, a user; each may use so much, and it counts at all three")
    console.run(f"mintyard account open --parents {USER}")
    console.run(f"mintyard grant create {ORGANISATION} 1000")
    console.run(f"mintyard grant create {PROJECT} 100")
    console.run(f"mintyard grant create {USER} 5")
    console.run(f"mintyard grant create {USER} {TRIAL} --expires {TRIAL_LIFE_S}s --priority 200 --note trial")
    console.step(
        "A token for the user, narrowed offline: whoever has it may spend 3 in all, for half an hour"
    )
    console.run(f"mintyard token mint {USER} --role member --life 1h --save ann")
    console.run("mintyard token narrow --ceiling money=3 --life 30m --gpus 3 > narrow.token")
    console.run(f"mintyard login {hub.url} --name narrow --token-file narrow.token")
    console.run("mintyard token inspect")
    with Witness(console, "narrow") as witness:
        ceilings = [block.ceilings for block in witness.hub.whoami().blocks if block.ceilings]
    console.check(ceilings == [{Unit.MONEY: "3"}], "the hub reads the same ceiling from the narrowed token")


def compute(console: Console) -> list[int]:
    console.step(
        "Work that computes: data, nine fits of a model, the best of them, a report; edges follow from files"
    )
    console.run("cat pipeline.yaml")
    console.run("mintyard quote pipeline.yaml")
    numbers = submitted(console.run("mintyard job submit pipeline.yaml"))
    last = numbers["report"]
    console.run(f"mintyard job wait {last}")
    console.run("mintyard job ls --all")
    console.run(f"mintyard job logs {numbers['choose']}")
    report = console.run(f"mintyard job logs {last}")
    console.check(report.startswith("best of 9:"), "the report is of all nine fits")
    with Witness(console, "narrow") as witness:
        views = [witness.hub.jobs.show(numbers[name]) for name in ("prepare", "choose", "report")]
        fits = [task.job for task in witness.hub.jobs.list(array_job=numbers["fit"])]
    times = [instant or "" for view in views for instant in (view.started_at, view.ended_at)]
    console.check(
        len(fits) == 9 and times == sorted(times), "each step began after what it reads was written"
    )
    return [numbers["prepare"], *fits, numbers["choose"], last]


def refused(console: Console) -> None:
    console.step(
        "Work beyond the balance, and work beyond the token's ceiling: refused, with what is short and by how much"
    )
    with Witness(console, "narrow") as witness:
        before = witness.balance(USER)
    console.run("cat week.yaml")
    console.run("mintyard job submit week.yaml", expect=_QUOTA)
    console.run("mintyard job submit --job-name dear --gpus 1 --time 42m --wrap 'echo never'", expect=_QUOTA)
    with Witness(console, "narrow") as witness:
        after = witness.balance(USER)
    traces = [name for name in ("granted", "refunded", "held", "spent") if before[name] != after[name]]
    console.check(not traces, "the refusals left no trace in the balance")


def timed_out(console: Console) -> int:
    console.step("A batch script as it is, killed at its time limit and charged for what it used")
    console.run("cat endless.sh")
    job = only(console.run("mintyard job submit endless.sh"))
    console.run(f"mintyard job wait {job}", expect=_TIMEOUT)
    console.run(f"mintyard job logs {job}")
    with Witness(console, "narrow") as witness:
        shown = witness.hub.jobs.show(job)
    lawful = shown.state == "timed_out" and 3_000 <= shown.run_ms <= 3_000 + shown.grace_ms
    console.check(
        lawful, f"it ran {shown.run_ms} ms, within its limit of 3,000 and the grace of {shown.grace_ms}"
    )
    return job


def explain(console: Console) -> list[int]:
    console.step(
        "Work that has to wait: why, for what, until when, and what would change it (these GPUs are virtual)"
    )
    busy = only(console.run("mintyard job submit busy.yaml"))
    with Witness(console, "narrow") as witness:
        until(lambda: witness.hub.jobs.show(busy).state == "running", f"job {busy} runs")
        console.run("mintyard node ls")
        waiting = only(console.run("mintyard job submit waiting.yaml"))
        console.run(f"mintyard job explain {waiting}")
        found = witness.hub.jobs.explain(waiting)
        console.check(found.state == "pending" and bool(found.details), f"it waits: {found.reason}")
    console.run(f"mintyard job cancel {busy} --reason 'make room'")
    console.run(f"mintyard job wait {waiting}")
    console.run(f"mintyard job logs {waiting}")
    console.run(f"mintyard job wait {busy}", expect=3)
    return [busy, waiting]


def replay(console: Console) -> None:
    console.step(
        "A real trace: Alibaba's openb, 8,152 pods on 1,213 nodes, scheduled by the same code on a virtual clock"
    )
    console.run("mintyard replay --plot utilisation.svg", live=True)
    plot = console.work / "utilisation.svg"
    console.check(plot.is_file() and plot.stat().st_size > 1_000, f"utilisation over time is drawn in {plot}")


def account_for(console: Console, jobs: list[int]) -> None:
    console.step("Receipts and statements: what everything cost, to the last nano-unit")
    console.run(f"mintyard job receipt {jobs[0]}")
    console.run(f"mintyard statement {USER}", most_lines=14)
    with Witness(console, ADMINISTRATOR) as witness:
        receipts = [witness.hub.jobs.receipt(job) for job in jobs]
        console.check(all(receipt.final for receipt in receipts), f"all {len(jobs)} receipts are final")
        for account in ACCOUNTS:
            balance, sum_paid = witness.balance(account), paid(receipts, account)
            same = sum_paid == balance["spent"] - balance["refunded"]
            console.check(same, f"{account}: the receipts add up to what it spent, {sum_paid}")


def verify(console: Console) -> None:
    console.step("The books: every record of the journal, and each account's balance")
    console.run("mintyard journal verify --folder ../hub")
    console.run("mintyard journal replay --folder ../hub")
    console.run(f"mintyard grant refund 3 {GOODWILL} --cause 'a quiet fan' --context {ADMINISTRATOR}")
    console.run(f"mintyard account ls --context {ADMINISTRATOR}")
    with Witness(console, ADMINISTRATOR) as witness:
        for account in ACCOUNTS:
            b = witness.balance(account)
            console.check(
                b["granted"] + b["refunded"] == b["spent"] + b["held"] + b["expired"] + b["left"],
                f"{account}: granted {b['granted']} + refunded {b['refunded']} = spent {b['spent']} + held {b['held']} "
                f"+ expired {b['expired']} + left {b['left']}, exactly",
            )
            console.check(b["held"] == 0, f"{account}: nothing is held, since nothing runs")
        user = witness.balance(USER)
    console.check(user["expired"] == TRIAL, "the trial grant, of which nothing was used, has expired")
    console.check(user["refunded"] == GOODWILL, f"{GOODWILL} was given back")
    console.run(f"mintyard doctor --folder ../hub --context {ADMINISTRATOR}")


# --- reading what commands said -------------------------------------------------------------------------------------


def submitted(output: str) -> dict[str, int]:
    """Job numbers by name."""
    return {name: int(number) for number, name in _SUBMITTED.findall(output)}


def only(output: str) -> int:
    found = _SUBMITTED.findall(output)
    if len(found) != 1:
        raise DemoFailed(f"one job should have been submitted, not {len(found)}")
    return int(found[0][0])


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what}: not within {_PATIENCE_S:.0f} s")
        time.sleep(0.2)
