"""Many placements at once: the fold of a round's `JobPlaced` events as a sum."""

from __future__ import annotations

from collections.abc import Sequence

from mintyard.domain.events import JobPlaced
from mintyard.domain.lifecycle import JOB
from mintyard.domain.state import Job, State


def place_jobs(state: State, events: Sequence[JobPlaced]) -> None:
    """As `folding.job_placed` for one after the other."""
    jobs, now, step = state.jobs, state.now, JOB.step
    placed: list[Job] = []
    for event in events:
        job = jobs[event.job]
        job.state = step(job.state, "place")
        job.attempt = event.attempt
        job.placement = event.placement
        job.placed_at = now
        job.boots = None
        job.reason = ""
        placed.append(job)
    state.queue.discard_many([event.job for event in events])
    state.occupy(placed)
