"""How queues and limits on accounts stand, from a state (for the planner)."""

from __future__ import annotations

import numpy as np

from mintyard.app.questions import Queues
from mintyard.domain.ids import is_within
from mintyard.domain.scheduling.queue_kernel import PRESENT
from mintyard.domain.scheduling.quota_report import limit_standings, queue_standings
from mintyard.domain.state import State


def list_queues(state: State, within: str) -> Queues:
    """All queues, which are the platform's, and the limits on accounts within `within`."""
    quotas, queue = state.quotas, state.queue
    present = queue.column("flags")[: queue.count] & PRESENT != 0
    by_lane = np.bincount(queue.column("lanes")[: queue.count][present], minlength=len(quotas.lanes)).tolist()
    waiting = dict.fromkeys(quotas.queues, 0)
    for lane, jobs in zip(quotas.lanes, by_lane, strict=True):
        for level in quotas.path(lane.queue):
            waiting[level.name] += jobs
    limits = (one for one in limit_standings(quotas) if is_within(one.account, within))
    return Queues(tuple(queue_standings(quotas, waiting)), tuple(limits), state.seq)
