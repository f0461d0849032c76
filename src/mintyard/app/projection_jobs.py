"""Jobs, arrays and attempts as rows, with each settled attempt's receipt. Environment and scripts of jobs may not enter."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from mintyard.app.projection import Handler, Projection
from mintyard.app.projection_receipts import pairs, receipt_of, refunded
from mintyard.app.read_model.rows import ArrayRow, AttemptRow, JobRow, MandateRow, SpecRow
from mintyard.app.read_model.views import HoldLine, MemberView, Receipt, SpecSummary
from mintyard.domain import events as e
from mintyard.domain.jobs.spec import JobSpec, Shape
from mintyard.domain.lifecycle import JOB, LIVE_JOB_STATES
from mintyard.wire.launch import decode_launch

_MAX_COMMAND_CHARS: Final = 500
_json = msgspec.json.Encoder(order="deterministic")
_receipt_decoder = msgspec.json.Decoder(Receipt)
_boots_decoder = msgspec.json.Decoder(dict[str, int])
_placement_decoder = msgspec.json.Decoder(tuple[MemberView, ...])


@lru_cache(maxsize=8_192)
def _members(placement: str) -> tuple[MemberView, ...]:
    """What a placement's text says; there are not many more of them than nodes."""
    return _placement_decoder.decode(placement)


# --- specs and mandates ---------------------------------------------------------------------------------------------


def summary(spec: JobSpec) -> SpecSummary:
    """What is shown of a spec. A payload that isn't a launch (another engine's) shows no command."""
    command = workdir = ""
    try:
        launch = decode_launch(spec.payload) if spec.payload else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        launch = None
    if launch is not None:
        lines = (line.strip() for line in launch.script.splitlines() if line.strip())
        command = " ".join(launch.argv) if launch.argv else next((s for s in lines if s[0] != "#"), "")
        workdir = launch.workdir
    return SpecSummary(
        spec.name,
        spec.shape,
        spec.time_limit_ms,
        spec.priority,
        spec.queue,
        spec.retries,
        spec.grace_ms,
        spec.budget,
        spec.begin_at,
        spec.inputs,
        spec.outputs,
        command[:_MAX_COMMAND_CHARS],
        workdir,
    )


def spec_interned(p: Projection, event: e.SpecInterned) -> None:
    p.shelves.specs.put(SpecRow(event.spec, _json.encode(summary(event.content)).decode()))


def mandate_interned(p: Projection, event: e.MandateInterned) -> None:
    token = event.blocks[0].block if event.blocks else ""
    p.shelves.mandates.put(MandateRow(event.mandate, event.account, token))


# --- jobs -----------------------------------------------------------------------------------------------------------


def job_admitted(p: Projection, event: e.JobAdmitted) -> None:
    mandate = p.shelves.mandates.get(event.mandate)
    name = p.spec(event.spec).name
    waits = [event.waits_for[at : at + 2] for at in range(0, len(event.waits_for), 2)]
    p.shelves.jobs.put(
        JobRow(
            event.job,
            mandate.account,
            mandate.token,
            name,
            event.state,
            event.spec,
            event.array_job,
            event.array_index,
            _json.encode(waits).decode(),
            p.now,
            p.now if event.state == "pending" else 0,
        )
    )
    if event.array_job and event.job == event.array_job + 1:
        p.shelves.arrays.put(
            ArrayRow(
                event.array_job,
                mandate.account,
                name,
                event.spec,
                event.array_size,
                event.array_throttle,
                p.now,
            )
        )


def job_moved(p: Projection, event: e.JobMoved) -> None:
    job = p.shelves.jobs.change(event.job)
    job.state = JOB.step(job.state, event.trigger)
    job.reason = event.reason
    if job.state == "pending":
        job.queued_at = p.now
    elif job.state == "stopping":
        p.shelves.attempts.change((job.id, job.attempt)).state = "stopping"


def job_updated(p: Projection, event: e.JobUpdated) -> None:
    p.shelves.jobs.change(event.job).spec = event.spec


def job_placed(p: Projection, event: e.JobPlaced) -> None:
    job = p.shelves.jobs.change(event.job)
    job.state = JOB.step(job.state, "place")
    job.attempt, job.placed_at, job.reason = event.attempt, p.now, ""
    members = [MemberView(p.places.names[node], _devices(mask)) for node, mask in event.placement]
    p.shelves.attempts.put(
        AttemptRow(
            job.id, event.attempt, job.account, "starting", _json.encode(members).decode(), "{}", p.now
        )
    )
    _bind(p, members, p.spec(job.spec).shape, 1)


def _devices(mask: int) -> tuple[int, ...]:
    return tuple(slot for slot in range(mask.bit_length()) if mask >> slot & 1)


def _bind(p: Projection, members: list[MemberView] | tuple[MemberView, ...], shape: Shape, sign: int) -> None:
    """Count the members' resources as used at their nodes (+1), or as free again (-1)."""
    for member in members:
        node = p.shelves.nodes.change(member.node)
        node.used_cpus_milli += sign * shape.cpus_milli
        node.used_memory_mib += sign * shape.memory_mib
        node.used_gpus_milli += sign * shape.gpus_milli
    for name in dict.fromkeys(member.node for member in members):
        p.shelves.nodes.change(name).running += sign


# --- attempts -------------------------------------------------------------------------------------------------------


def attempt_began(p: Projection, event: e.AttemptBegan) -> None:
    job = p.shelves.jobs.change(event.job)
    job.state = JOB.step(job.state, "start")
    job.began_at = job.began_at or p.now
    attempt = p.shelves.attempts.change((event.job, event.attempt))
    attempt.state, attempt.began_at = "running", p.now
    attempt.boots = _json.encode({event.boot: 0}).decode()


def usage_counted(p: Projection, event: e.UsageCounted) -> None:
    attempt = p.shelves.attempts.change((event.job, event.attempt))
    boots = _boots_decoder.decode(attempt.boots)
    boots[event.boot] = max(boots.get(event.boot, 0), event.run_ms)
    attempt.boots = _json.encode(boots).decode()
    attempt.run_ms = sum(boots.values())
    p.shelves.jobs.change(event.job).run_ms = attempt.run_ms


def job_requeued(p: Projection, event: e.JobRequeued) -> None:
    job = p.shelves.jobs.change(event.job)
    attempt = _end_attempt(p, job, event.attempt, event.cause, event.run_ms, event.message)
    attempt.cost = event.cost
    job.state = JOB.step(job.state, event.trigger)
    job.reason = event.message if event.trigger == "park" else ""
    job.cost += event.cost
    job.run_ms = event.run_ms
    if event.trigger == "requeue":
        job.queued_at = p.now


def _end_attempt(
    p: Projection, job: JobRow, number: int, state: str, run_ms: int, message: str
) -> AttemptRow:
    attempt = p.shelves.attempts.change((job.id, number))
    attempt.state, attempt.ended_at, attempt.run_ms, attempt.message = state, p.now, run_ms, message
    _bind(p, _members(attempt.placement), p.spec(job.spec).shape, -1)
    return attempt


def job_ended(p: Projection, event: e.JobEnded) -> None:
    job = p.shelves.jobs.change(event.job)
    final = JOB.step(job.state, event.trigger)
    if job.state in LIVE_JOB_STATES:
        attempt = _end_attempt(p, job, event.attempt, final, event.run_ms, event.message)
        attempt.cost = event.cost - job.cost
        for name in ("exit_code", "signal", "cpu_ms", "peak_memory_mib"):
            setattr(attempt, name, getattr(event, name))
            setattr(job, name, getattr(event, name))
        job.run_ms = event.run_ms
        job.cost = event.cost
    job.state, job.ended_at, job.reason = final, p.now, event.message


# --- receipts -------------------------------------------------------------------------------------------------------


def settle_attempt(p: Projection, event: e.HoldClosed, number: int, lines: tuple[HoldLine, ...]) -> None:
    """Write the receipt of the attempt whose hold is settled; it is still bound to its nodes, whose GPU models count."""
    attempt = p.shelves.attempts.change((event.job, event.attempt))
    shape = p.spec(p.shelves.jobs.get(event.job).spec).shape
    names = {member.node for member in _members(attempt.placement)}
    models = sorted({p.shelves.nodes.get(name).gpu_model for name in names})
    attempt.receipt = _json.encode(
        receipt_of(event, lines, shape, number, p.book(number), models, p.now)
    ).decode()


def tell_refund(p: Projection, event: e.Refunded) -> None:
    """Note in the attempt's receipt what was given back, and why."""
    attempt = p.shelves.attempts.change((event.job, event.attempt))
    given: dict[tuple[str, str], int] = {}
    for number, amount in pairs(event.legs):
        grant = p.shelves.grants.get(number)
        key = (grant.account, grant.unit)
        given[key] = given.get(key, 0) + amount
    whole = refunded(_receipt_decoder.decode(attempt.receipt), given, event.cause)
    attempt.receipt = _json.encode(whole).decode()


HANDLERS: Final[dict[type, Handler]] = {
    e.SpecInterned: spec_interned,
    e.MandateInterned: mandate_interned,
    e.JobAdmitted: job_admitted,
    e.JobMoved: job_moved,
    e.JobUpdated: job_updated,
    e.JobPlaced: job_placed,
    e.AttemptBegan: attempt_began,
    e.UsageCounted: usage_counted,
    e.JobRequeued: job_requeued,
    e.JobEnded: job_ended,
}
