"""Quota once more, from events alone and by the plainest recursion: the oracle for what each start was allowed.

The formulas are Kueue's as they are written down (available quota, hierarchical cohorts); no code of the core's is used.
"""

from __future__ import annotations

from collections import Counter

from mintyard.domain.errors import InvariantBroken
from mintyard.domain.events import (
    AccountLimited,
    AnyEvent,
    JobAdmitted,
    JobEnded,
    JobPlaced,
    JobRequeued,
    JobUpdated,
    MandateInterned,
    QueueRemoved,
    QueueSet,
    SpecInterned,
)
from mintyard.domain.jobs.spec import JobSpec, Shape
from mintyard.domain.scheduling.quota import Limits, QueueSpec

RESOURCES = ("gpus_milli", "cpus_milli", "memory_mib", "jobs")


def amount_of(shape: Shape, resource: str) -> int:
    """What a job of this shape counts, all members together."""
    if resource == "jobs":
        return 1
    return int(getattr(shape, resource)) * shape.members


class Tree:
    """Queues, and what runs in each (`used`, by queue and resource)."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueSpec] = {}
        self.used: Counter[tuple[str, str]] = Counter()

    def children(self, name: str) -> list[str]:
        return [one.name for one in self.queues.values() if one.parent == name]

    def root(self, name: str) -> str:
        while self.queues[name].parent:
            name = self.queues[name].parent
        return name

    def is_limited(self, name: str, resource: str) -> bool:
        """Whether any queue of its tree has a nominal quota of the resource."""
        return self._said(self.root(name), resource)

    def _said(self, name: str, resource: str) -> bool:
        own = getattr(self.queues[name].nominal, resource) is not None
        return own or any(self._said(child, resource) for child in self.children(name))

    def subtree(self, name: str, resource: str) -> int:
        own: int = getattr(self.queues[name].nominal, resource) or 0
        return own + sum(
            self.subtree(child, resource) - self.local(child, resource) for child in self.children(name)
        )

    def local(self, name: str, resource: str) -> int:
        lending = getattr(self.queues[name].lending, resource)
        return 0 if lending is None else max(0, self.subtree(name, resource) - lending)

    def usage(self, name: str, resource: str) -> int:
        return self.used[name, resource] + sum(
            max(0, self.usage(child, resource) - self.local(child, resource)) for child in self.children(name)
        )

    def available(self, name: str, resource: str) -> int:
        spec = self.queues[name]
        if not spec.parent:
            return self.subtree(name, resource) - self.usage(name, resource)
        local, usage = self.local(name, resource), self.usage(name, resource)
        above = self.available(spec.parent, resource)
        borrowing = getattr(spec.borrowing, resource)
        if borrowing is not None:
            stored = self.subtree(name, resource) - local
            above = min(above, stored - max(0, usage - local) + borrowing)
        return max(0, local - usage) + above

    def starts(self, name: str) -> bool:
        spec = self.queues[name]
        return spec.starts and (not spec.parent or self.starts(spec.parent))


class QuotaShadow:
    """Takes all events in order; `InvariantBroken` at a start beyond what queue or account allow."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.limits: dict[str, Limits] = {}
        self.specs: dict[int, JobSpec] = {}
        self.mandates: dict[int, str] = {}
        self.jobs: dict[int, tuple[JobSpec, str]] = {}
        self.running: dict[int, tuple[JobSpec, str]] = {}

    def see(self, event: AnyEvent) -> None:
        match event:
            case SpecInterned():
                self.specs[event.spec] = event.content
            case MandateInterned():
                self.mandates[event.mandate] = event.account
            case JobAdmitted():
                self.jobs[event.job] = (self.specs[event.spec], self.mandates[event.mandate])
            case JobUpdated():
                self.jobs[event.job] = (self.specs[event.spec], self.jobs[event.job][1])
            case QueueSet():
                self.tree.queues[event.queue.name] = event.queue
            case QueueRemoved():
                del self.tree.queues[event.queue]
            case AccountLimited():
                self.limits[event.account] = event.limits
            case JobPlaced():
                self._place(event.job)
            case JobEnded() | JobRequeued():
                if event.job in self.running:
                    self._count(self.running.pop(event.job)[0], -1)
            case _:
                pass

    def _place(self, number: int) -> None:
        content, account = self.jobs[number]
        queue = content.queue
        for resource in RESOURCES:
            asked = amount_of(content.shape, resource)
            if not asked:
                continue
            if queue in self.tree.queues:
                if not self.tree.starts(queue):
                    raise InvariantBroken(why=f"job {number} starts from queue {queue}, which is stopped")
                if self.tree.is_limited(queue, resource) and self.tree.available(queue, resource) < asked:
                    raise InvariantBroken(why=f"job {number} starts beyond the {resource} of queue {queue}")
            for above, limits in self.limits.items():
                most = getattr(limits, resource)
                if most is not None and self._is_below(account, above):
                    used = sum(
                        amount_of(one.shape, resource)
                        for one, whose in self.running.values()
                        if self._is_below(whose, above)
                    )
                    if used + asked > most:
                        raise InvariantBroken(
                            why=f"job {number} starts beyond the {resource} of account {above}"
                        )
        self.running[number] = (content, account)
        self._count(content, 1)

    def _count(self, content: JobSpec, sign: int) -> None:
        for resource in RESOURCES:
            self.tree.used[content.queue, resource] += sign * amount_of(content.shape, resource)

    @staticmethod
    def _is_below(account: str, above: str) -> bool:
        return above == "/" or (account + "/").startswith(above + "/")
