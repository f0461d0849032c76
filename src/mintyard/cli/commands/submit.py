"""`job submit` and `quote`: hand in work, or ask what it would cost (S1, L8, U9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from mintyard.cli.options import PATIENT_RETRY_S, RETRY_S, Where
from mintyard.cli.printer import Printer
from mintyard.cli.quantities import moment
from mintyard.cli.work import More, Read, Sbatch, read_work
from mintyard.domain.errors import Exit
from mintyard.wire.jobs import Job
from mintyard.wire.problems import error_of
from mintyard.wire.quotes import Quote

if TYPE_CHECKING:
    from mintyard.sdk.address import Address
    from mintyard.sdk.sync.hub import Hub

_SBATCH, _MORE, _WHERE = Sbatch(), More(), Where()
Words = Annotated[str, Parameter(allow_leading_hyphen=True)]
Account = Annotated[str, Parameter(name=["--account", "-A"], group="Hub")]


def submit(
    *file: Words,
    sbatch: Sbatch = _SBATCH,
    more: More = _MORE,
    account: Account = "",
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="")] = False,
    parsable: Annotated[bool, Parameter(name=["--parsable", "--quiet", "-q"], negative="")] = False,
    wait: Annotated[bool, Parameter(name=["--wait", "-W"], negative="")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    where: Where = _WHERE,
) -> int:
    """Submit a job file, a batch script, or a command.

        mintyard job submit train.yaml
        mintyard job submit train.sh --gpus 2 --time 00:30:00 --array 0-9%2
        mintyard job submit --gpus 1 -- python train.py --epochs 3
        mintyard job submit --wrap "nvidia-smi | tee gpus.txt"

    Parameters
    ----------
    file
        A YAML job file or a batch script, `-` for standard input; then the script's arguments.
    account
        Pay from this account, below the token's own: the token is narrowed to it here.
    dry_run
        Show what would be sent and what it would cost; nothing is changed.
    parsable
        Print the number alone.
    wait
        Wait for the end; the exit status is the job's.
    json
        Write the answer as JSON, as `-o json` does.
    """
    printer = Printer(json=json or sbatch.answer_format == "json", quiet=parsable)
    found = narrowed(where.address(), account)
    read = read_work(file, sbatch, more, local=_is_local(found))
    say_unsupported(printer, read)
    with where.connect(PATIENT_RETRY_S if wait else RETRY_S, found=found) as hub:
        if dry_run:
            return _show_quote(printer, hub.quote(read.jobs), read.jobs)
        tickets = _send(hub, read.jobs)
        _show_tickets(printer, tickets, read.jobs)
        if not wait:
            return Exit.OK
        from mintyard.cli.waiting import wait_for

        return wait_for(hub, [ticket.job for ticket in tickets], printer, show=False)


def quote(
    *file: Words,
    sbatch: Sbatch = _SBATCH,
    more: More = _MORE,
    account: Account = "",
    json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    where: Where = _WHERE,
) -> int:
    """Ask what work would cost at most, whether it would be admitted, and when it would start. Takes what `job submit` takes.

    Parameters
    ----------
    file
        A YAML job file or a batch script, `-` for standard input.
    account
        The account that would pay.
    json
        Write the answer as JSON, as `-o json` does.
    """
    printer = Printer(json=json or sbatch.answer_format == "json")
    found = narrowed(where.address(), account)
    read = read_work(file, sbatch, more, local=_is_local(found))
    say_unsupported(printer, read)
    with where.connect(found=found, timeout_s=60.0) as hub:
        return _show_quote(printer, hub.quote(read.jobs), None)


def say_unsupported(printer: Printer, read: Read) -> None:
    for flag in read.unsupported:
        printer.remark(f"warning: sbatch flag not supported, ignored: {flag}")


def narrowed(found: Address, account: str) -> Address:
    """The address with a token that pays from `account`, narrowed offline. `Widening` when it isn't below the token's own."""
    if not account:
        return found
    from mintyard.sdk import offline

    token, keys = offline.own(found.token, found.keys)
    if offline.inspect(token, keys).authority.account == account:
        return found
    return msgspec.structs.replace(found, token=offline.narrow(token, keys, account=account))


def _is_local(found: Address) -> bool:
    from mintyard.sdk.address import is_local

    return is_local(found.url)


def _send(hub: Hub, jobs: Sequence[Job]) -> list[Any]:
    if len(jobs) == 1:
        return [hub.jobs.submit(jobs[0])]
    return [line.ticket for line in hub.jobs.submit_batch(jobs).lines if line.ticket is not None]


def _show_tickets(printer: Printer, tickets: Sequence[Any], jobs: Sequence[Job]) -> None:
    if printer.is_json:
        printer.json(tickets[0] if len(jobs) == 1 else {"items": tickets})
        return
    for ticket, job in zip(tickets, jobs, strict=True):
        if printer.quiet:
            printer.line(str(ticket.job), flush=True)
            continue
        name = f" ({job.ref or job.name})" if len(jobs) > 1 else ""
        tasks = f" with {ticket.tasks} tasks" if job.array is not None else ""
        printer.line(f"Submitted job {ticket.job}{name}{tasks}", flush=True)


def _show_quote(printer: Printer, found: Quote, jobs: Sequence[Job] | None) -> int:
    if printer.is_json:
        printer.json({"jobs": jobs, "quote": found} if jobs is not None else found)
    else:
        if jobs is not None:
            printer.line("Nothing was submitted. Would be sent:")
            for job in jobs:
                printer.json(job)
        printer.pairs(
            [
                ("cost at most", f"{found.cost} {found.currency}"),
                ("each", ", ".join(found.per_job[:20]) if len(found.per_job) > 1 else ""),
                *(
                    (f"{line.account} holds", f"{line.amount} {line.unit} of {line.left}")
                    for line in found.lines
                ),
                ("would start", moment(found.starts_at)),
                ("waits for", found.reason),
            ]
        )
    if found.refusal is None:
        return Exit.OK
    raise error_of(found.refusal)
