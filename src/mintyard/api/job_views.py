"""Job views: from the read model's jobs, attempts and receipts to the wire."""

from __future__ import annotations

from typing import Any

from mintyard.app.read_model import views
from mintyard.domain.lifecycle import JOB
from mintyard.domain.units import Unit, format_amount
from mintyard.wire import submissions as wire
from mintyard.wire.bounds import instant_or_none

_TERMINAL = frozenset(JOB.terminal)


def money(nano: int) -> str:
    return format_amount(nano, Unit.MONEY)


def _spec_fields(spec: views.SpecSummary) -> dict[str, Any]:
    shape = spec.shape
    return {
        "name": spec.name,
        "resources": wire.Resources(
            cpus_milli=shape.cpus_milli,
            memory_mib=shape.memory_mib,
            gpus=shape.gpus,
            gpu_milli=shape.gpu_milli,
            members=shape.members,
            storage_mb=shape.storage_mb,
            gpu_models=shape.gpu_models,
            labels=shape.labels,
        ),
        "queue": spec.queue,
        "priority": spec.priority,
        "time_limit_ms": spec.time_limit_ms,
        "grace_ms": spec.grace_ms,
        "retries": spec.retries,
        "budget": None if spec.budget is None else money(spec.budget),
        "begin_at": instant_or_none(spec.begin_at),
        "inputs": spec.inputs,
        "outputs": spec.outputs,
        "command": spec.command,
        "workdir": spec.workdir,
    }


def job_of(job: views.JobView, attempts: tuple[wire.Attempt, ...] = (), seq: int = 0) -> wire.JobView:
    return wire.JobView(
        job=job.job,
        label=job.name,
        account=job.account,
        state=job.state,  # pyright: ignore[reportArgumentType] (a state of the life cycle)
        cost=money(job.cost),
        attempt=job.attempt,
        run_ms=job.run_ms,
        cpu_ms=job.cpu_ms,
        peak_memory_mib=job.peak_memory_mib,
        reason=job.reason,
        array_job=job.array_job or None,
        array_index=job.array_index if job.array_job else None,
        waits_for=tuple(wire.Edge(job=number, when=when) for number, when in job.waits_for),
        submitted_at=instant_or_none(job.submitted_at),
        queued_at=instant_or_none(job.queued_at),
        placed_at=instant_or_none(job.placed_at),
        started_at=instant_or_none(job.began_at),
        ended_at=instant_or_none(job.ended_at),
        exit_code=job.exit_code,
        signal=job.signal or None,
        token=job.token,
        attempts=attempts,
        seq=seq,
        **_spec_fields(job.spec),
    )


def array_of(array: views.ArrayView, seq: int) -> wire.JobView:
    return wire.JobView(
        job=array.job,
        label=str(array.job),
        account=array.account,
        state=array.state,  # pyright: ignore[reportArgumentType] (one of a job's)
        cost=money(array.cost),
        size=array.size,
        throttle=array.throttle,
        tasks=array.tasks,
        submitted_at=instant_or_none(array.submitted_at),
        ended_at=instant_or_none(array.ended_at),
        seq=seq,
        **_spec_fields(array.spec),
    )


def attempt_of(attempt: views.AttemptView) -> wire.Attempt:
    return wire.Attempt(
        attempt=attempt.attempt,
        state=attempt.state,
        members=tuple(wire.Member(node=member.node, gpus=member.gpus) for member in attempt.placement),
        run_ms=attempt.run_ms,
        cpu_ms=attempt.cpu_ms,
        peak_memory_mib=attempt.peak_memory_mib,
        cost=money(attempt.cost),
        placed_at=instant_or_none(attempt.placed_at),
        started_at=instant_or_none(attempt.began_at),
        ended_at=instant_or_none(attempt.ended_at),
        exit_code=attempt.exit_code,
        signal=attempt.signal or None,
        message=attempt.message,
    )


def view_of(detail: views.JobDetail) -> wire.JobView:
    if isinstance(detail.job, views.ArrayView):
        return array_of(detail.job, detail.seq)
    return job_of(detail.job, tuple(attempt_of(attempt) for attempt in detail.attempts), detail.seq)


def receipt_of(found: views.JobReceipt) -> wire.Receipt:
    return wire.Receipt(
        job=found.job,
        account=found.account,
        state=found.state,  # pyright: ignore[reportArgumentType] (a state of the life cycle)
        final=found.state in _TERMINAL,
        cost=money(found.money),
        receipts=tuple(_attempt_receipt(receipt) for receipt in found.receipts),
        seq=found.seq,
    )


def _attempt_receipt(receipt: views.Receipt) -> wire.AttemptReceipt:
    return wire.AttemptReceipt(
        attempt=receipt.attempt,
        hold=receipt.hold,
        settled_at=instant_or_none(receipt.at) or "",
        run_ms=receipt.run_ms,
        book=receipt.book,
        resources=tuple(
            wire.ResourceLine(
                unit=line.unit,
                stock=format_amount(line.stock, line.unit),
                rate=money(line.rate_nano),
                cost=money(line.money),
            )
            for line in receipt.resources
        ),
        cost=money(receipt.money),
        charges=tuple(
            wire.ChargeLine(
                account=line.account,
                unit=line.unit,
                resources=line.resources,
                listed=format_amount(line.listed, line.unit),
                amount=format_amount(line.amount, line.unit),
                refunded=format_amount(line.refunded, line.unit),
            )
            for line in receipt.charges
        ),
        refund_cause=receipt.refund_cause,
    )
