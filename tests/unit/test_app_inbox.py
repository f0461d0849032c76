"""The writer's inbox: the hub's own commands first, each kind in order of arrival."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mintyard.app.inbox import Inbox


@given(st.lists(st.one_of(st.tuples(st.booleans(), st.integers(1, 4)), st.none())))
def test_own_commands_first_and_nothing_lost(steps: list[tuple[bool, int] | None]) -> None:
    inbox: Inbox[tuple[bool, int]] = Inbox()
    waiting: list[tuple[bool, int]] = []
    number = 0
    for step in steps:
        if step is None:
            if waiting:
                taken = inbox.popleft()
                assert taken == min(waiting, key=lambda item: (not item[0], item[1]))
                waiting.remove(taken)
        else:
            ours, count = step
            items = [(ours, number + at) for at in range(count)]
            number += count
            inbox.extend(items, ours=ours)
            waiting += items
        assert len(inbox) == len(waiting)
        assert bool(inbox) == bool(waiting)
    assert inbox.drain() == sorted(waiting, key=lambda item: (not item[0], item[1]))
    assert not inbox
