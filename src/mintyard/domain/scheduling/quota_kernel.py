"""Compiled kernels of quota: what a lane may still start, and starting it. Definitions: `quota`; plain reference: the tests."""

# Numba has no types.
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

_RESOURCES: Final = 4


@njit(cache=True)
def available(tables: Any, queue: int, resource: int) -> int:
    """What a queue may start of a resource: what is left of its own and what it may borrow. Negative when it is over."""
    room = 0
    most = 1 << 60
    while True:
        own, used = tables.own[queue, resource], tables.usage[queue, resource]
        above = tables.parent[queue]
        if above < 0:
            return room + min(most, tables.total[queue, resource] - used)
        left = max(0, own - used)
        room += left
        most = min(most - left, tables.most[queue, resource] - max(0, used - own))
        queue = above


@njit(cache=True)
def room(tables: Any, lane: int, resource: int) -> int:
    """What of a resource a lane may start: the least of its queue's and its account's limits."""
    least = 1 << 60
    queue = tables.queue_of[lane]
    if queue >= 0:
        if not tables.starts[queue] or tables.shut[queue, resource]:
            return 0
        least = available(tables, queue, resource)
    for at in range(tables.first_cap[lane], tables.first_cap[lane + 1]):
        cap = tables.caps[at]
        if tables.cap_shut[cap, resource]:
            return 0
        least = min(least, tables.cap_left[cap, resource])
    return least


@njit(cache=True)
def rooms(tables: Any) -> Any:
    """`room` of every lane, int64 `[lanes, 4]`."""
    lanes = tables.queue_of.shape[0]
    found = np.empty((lanes, _RESOURCES), np.int64)
    for lane in range(lanes):
        for resource in range(_RESOURCES):
            found[lane, resource] = room(tables, lane, resource)
    return found


@njit(cache=True)
def fits(tables: Any, lane: int, need: Any) -> bool:
    """Whether a lane may start `need`, int64 `[4]`. What is not asked for is not looked at."""
    fit = True
    for resource in range(_RESOURCES):
        fit &= need[resource] == 0 or room(tables, lane, resource) >= need[resource]
    return fit


@njit(cache=True)
def use(tables: Any, queue: int, resource: int, amount: int) -> None:
    """Count `amount` more at a queue, and at those above it what goes beyond the own quota."""
    while amount > 0 and queue >= 0:
        left = max(0, tables.own[queue, resource] - tables.usage[queue, resource])
        tables.usage[queue, resource] += amount
        amount -= left
        queue = tables.parent[queue]


@njit(cache=True)
def take(tables: Any, lane: int, need: Any) -> None:
    """Start `need` in a lane."""
    queue = tables.queue_of[lane]
    for resource in range(_RESOURCES):
        if need[resource] == 0:
            continue
        use(tables, queue, resource, need[resource])
        for at in range(tables.first_cap[lane], tables.first_cap[lane + 1]):
            tables.cap_left[tables.caps[at], resource] -= need[resource]


@njit(cache=True)
def short_cap(tables: Any, lane: int, need: Any) -> int:
    """The first account limit under which `need` does not fit, -1 for none."""
    for at in range(tables.first_cap[lane], tables.first_cap[lane + 1]):
        cap = tables.caps[at]
        for resource in range(_RESOURCES):
            if need[resource] > 0 and (
                tables.cap_shut[cap, resource] or tables.cap_left[cap, resource] < need[resource]
            ):
                return cap
    return -1


@njit(cache=True)
def is_shut(tables: Any, queue: int, need: Any) -> bool:
    """Whether a queue is shut for something that is needed."""
    shut = False
    for resource in range(_RESOURCES):
        shut |= need[resource] > 0 and tables.shut[queue, resource] != 0
    return shut


@njit(cache=True)
def never_fits(tables: Any, lane: int, need: Any) -> bool:
    """Whether a lane could not start `need` even if nothing else ran."""
    never = False
    queue = tables.queue_of[lane]
    for resource in range(_RESOURCES):
        if need[resource] == 0:
            continue
        if queue >= 0:
            never |= need[resource] > tables.ever[queue, resource]
        for at in range(tables.first_cap[lane], tables.first_cap[lane + 1]):
            never |= need[resource] > tables.cap_ever[tables.caps[at], resource]
    return never


@njit(cache=True)
def set_aside(tables: Any, lane: int, need: Any) -> None:
    """Somebody who has waited long does not fit: where it is short, nobody behind it starts, and what it needs of its queue's
    nominal quota is not lent to others meanwhile. Who is short under its account's limit bars only others under that."""
    cap = short_cap(tables, lane, need)
    queue = tables.queue_of[lane]
    if cap < 0 and queue >= 0 and is_shut(tables, queue, need):
        return  # somebody before it waits for the same
    for resource in range(_RESOURCES):
        wanted = need[resource]
        if wanted == 0:
            continue
        if cap >= 0:
            if tables.cap_left[cap, resource] < wanted:
                tables.cap_shut[cap, resource] = 1
        elif queue >= 0:
            if available(tables, queue, resource) < wanted:
                tables.shut[queue, resource] = 1
            nominal = tables.total[queue, resource] - tables.usage[queue, resource]
            use(tables, queue, resource, min(wanted, max(0, nominal)))


@njit(cache=True)
def blocked_by(
    tables: Any,
    free: Any,
    needs: Any,
    count: int,
    flags: Any,
    ready: int,
    lanes: Any,
    classes: Any,
    groups: Any,
    remaining: Any,
    since: Any,
    before: int,
) -> Any:
    """By slot of the queue, what keeps a job that waits since `before` (ns) or longer from starting: the row of an account limit,
    or behind those the row of a queue; -1 for nothing. `free` are `rooms`, `needs` by class."""
    found = np.full(count, -1, np.int32)
    caps = tables.cap_left.shape[0]
    for slot in range(count):
        if flags[slot] != ready or since[slot] > before:
            continue
        if groups[slot] >= 0 and remaining[groups[slot]] <= 0:
            continue
        lane, need = lanes[slot], needs[classes[slot]]
        short = False
        for resource in range(_RESOURCES):
            short |= need[resource] > 0 and need[resource] > free[lane, resource]
        if not short or never_fits(tables, lane, need):
            continue
        cap = short_cap(tables, lane, need)
        queue = tables.queue_of[lane]
        if cap >= 0:
            found[slot] = cap
        elif queue >= 0 and tables.starts[queue]:
            found[slot] = caps + queue
    return found
