"""Life cycles as tables: what states a token, grant, hold, job and node have and what moves them.

Diagrams in the documentation are drawn from these tables, and every state change in the core goes through `step`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mintyard.domain.errors import IllegalTransition


class LifeCycle(msgspec.Struct, frozen=True):
    """`moves` maps (state, trigger) to the next state; a state that nothing leaves is terminal."""

    what: str
    initial: str
    moves: dict[tuple[str, str], str]

    def step(self, state: str, trigger: str) -> str:
        """The next state, or `IllegalTransition`."""
        try:
            return self.moves[state, trigger]
        except KeyError:
            raise IllegalTransition(what=self.what, source=state, target=trigger) from None

    def allows(self, state: str, trigger: str) -> bool:
        return (state, trigger) in self.moves

    def sources(self, trigger: str) -> list[str]:
        """The states from which `trigger` is possible."""
        return sorted({source for source, by in self.moves if by == trigger})

    @property
    def states(self) -> list[str]:
        return list(dict.fromkeys([self.initial, *(s for s, _ in self.moves), *self.moves.values()]))

    @property
    def terminal(self) -> list[str]:
        return [state for state in self.states if not any(source == state for source, _ in self.moves)]


ACCOUNT: Final = LifeCycle(
    "account",
    "active",
    {
        ("active", "suspend"): "suspended",
        ("suspended", "resume"): "active",
        ("active", "close"): "closed",
        ("suspended", "close"): "closed",
    },
)

TOKEN: Final = LifeCycle(
    "token",
    "active",
    {
        ("active", "suspend"): "suspended",
        ("suspended", "resume"): "active",
        ("active", "revoke"): "revoked",
        ("suspended", "revoke"): "revoked",
        ("active", "expire"): "expired",
        ("suspended", "expire"): "expired",
    },
)

GRANT: Final = LifeCycle(
    "grant",
    "active",
    {
        ("active", "adjust"): "active",
        ("active", "expire"): "expired",
        ("active", "end"): "ended",
    },
)

HOLD: Final = LifeCycle(
    "hold",
    "held",
    {
        ("held", "extend"): "held",
        ("held", "draw"): "held",
        ("held", "settle"): "settled",
        ("held", "void"): "voided",
        ("held", "expire"): "expired",
    },
)

JOB: Final = LifeCycle(
    "job",
    "submitted",
    {
        ("submitted", "block"): "blocked",
        ("submitted", "hold"): "held",
        ("submitted", "queue"): "pending",
        ("blocked", "ready"): "pending",
        ("blocked", "skip"): "skipped",
        ("blocked", "cancel"): "cancelled",
        ("blocked", "hold"): "held",
        ("held", "release"): "pending",
        ("held", "block"): "blocked",
        ("held", "cancel"): "cancelled",
        ("held", "skip"): "skipped",
        ("pending", "hold"): "held",
        ("pending", "place"): "starting",
        ("pending", "cancel"): "cancelled",
        ("starting", "start"): "running",
        ("starting", "stop"): "stopping",
        ("starting", "requeue"): "pending",
        ("starting", "park"): "held",
        ("starting", "succeed"): "succeeded",
        ("starting", "fail"): "failed",
        ("starting", "time_out"): "timed_out",
        ("starting", "cancel"): "cancelled",
        ("running", "stop"): "stopping",
        ("running", "requeue"): "pending",
        ("running", "park"): "held",
        ("running", "succeed"): "succeeded",
        ("running", "fail"): "failed",
        ("running", "time_out"): "timed_out",
        ("running", "cancel"): "cancelled",
        ("stopping", "stop"): "stopping",
        ("stopping", "requeue"): "pending",
        ("stopping", "park"): "held",
        ("stopping", "succeed"): "succeeded",
        ("stopping", "fail"): "failed",
        ("stopping", "time_out"): "timed_out",
        ("stopping", "cancel"): "cancelled",
    },
)

NODE: Final = LifeCycle(
    "node",
    "ready",
    {
        ("ready", "cordon"): "cordoned",
        ("cordoned", "uncordon"): "ready",
        ("ready", "drain"): "draining",
        ("cordoned", "drain"): "draining",
        ("draining", "uncordon"): "ready",
        ("ready", "lose"): "lost",
        ("cordoned", "lose"): "lost_cordoned",
        ("draining", "lose"): "lost_cordoned",
        ("lost", "see"): "ready",
        ("lost_cordoned", "see"): "cordoned",
        ("lost", "cordon"): "lost_cordoned",
        ("lost", "drain"): "lost_cordoned",
        ("lost_cordoned", "uncordon"): "lost",
        ("lost", "remove"): "removed",
        ("lost_cordoned", "remove"): "removed",
        ("cordoned", "remove"): "removed",
        ("draining", "remove"): "removed",
    },
)

ALL: Final = (ACCOUNT, TOKEN, GRANT, HOLD, JOB, NODE)
LIVE_JOB_STATES: Final = frozenset({"starting", "running", "stopping"})
"""States in which an attempt may run and its resources are bound."""


def joint_end(bad: str, final: str) -> str:
    """How the tasks of an array ended that did not succeed, with one more that ended as `final`: "" while there are none, their
    end when it is the same for all, else failed."""
    if final == "succeeded":
        return bad
    return final if bad in ("", final) else "failed"
