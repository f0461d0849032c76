"""Why a job does not run: one closed set of codes, shared by the round, `explain` and everything that shows them."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a job waits, or can't run at all (feature S15)."""

    WAITING_FOR_RESOURCES = "waiting_for_resources"
    """It comes first for what it needs, and not enough of that is free."""
    FRAGMENTED = "fragmented"
    """Enough is free in all, but not on one node."""
    BEHIND_IN_QUEUE = "behind_in_queue"
    """It fits now, but others come before it."""
    RESERVED_FOR_HIGHER_PRIORITY = "reserved_for_higher_priority"
    """It would fit on nodes that are kept for a job that has waited longer."""
    ARRAY_THROTTLE = "array_throttle"
    """As many tasks of its array run as the array allows."""
    QUEUE_QUOTA = "queue_quota"
    """Its queue, or its account, may not have more running now."""
    QUEUE_STOPPED = "queue_stopped"
    """Its queue starts nothing."""
    BEGIN_TIME = "begin_time"
    """Its begin time has not come."""
    HELD = "held"
    """A user or an operator holds it."""
    DEPENDENCY = "dependency"
    """It waits for other jobs."""
    NO_NODES = "no_nodes"
    """The cluster has no node that takes work."""
    INFEASIBLE = "infeasible"
    """No node, or too few, could ever run it, even when nothing else runs."""
