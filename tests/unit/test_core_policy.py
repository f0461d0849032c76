"""The policy of a tick: chooses the nodes, is part of the record, and old records without one still decode."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.core_world import World

from mintyard.domain import hub
from mintyard.domain.commands import Command, TakeReports, Tick
from mintyard.domain.events import JobPlaced
from mintyard.domain.jobs.reports import NodeSeen
from mintyard.domain.jobs.spec import JobSpec, Shape
from mintyard.domain.scheduling.scoring import Policy

SMALL = JobSpec("small", Shape(cpus_milli=1_000, memory_mib=1_024))


def two_nodes() -> World:
    """A small node and one twice its size, the smaller one first."""
    world = World(nodes=False)
    world.do(TakeReports("local", (NodeSeen("a", 8_000, 16_384), NodeSeen("b", 16_000, 32_768))))
    return world


@pytest.mark.parametrize(
    ("policy", "node"), [(Policy.BEST_FIT, 0), (Policy.LEAST_LOADED, 1)], ids=["packs", "spreads"]
)
def test_policy_chooses_the_node(policy: Policy, node: int) -> None:
    world = two_nodes()
    world.submit(SMALL)
    world.do(Tick(policy=policy))
    placed = [event for event in world.events if isinstance(event, JobPlaced)]
    assert [event.placement for event in placed] == [((node, 0),)]


@pytest.mark.parametrize("policy", list(Policy))
def test_every_policy_places(policy: Policy) -> None:
    world = two_nodes()
    world.submit(SMALL)
    hub.begin(world.state, world.state.seq + 1, world.now)
    events, reply = hub.execute(world.state, Tick(policy=policy), world.now)
    assert reply.ref == len(events) == 1


def test_policy_is_recorded() -> None:
    decoder = msgspec.msgpack.Decoder(Command)
    for policy in Policy:
        assert decoder.decode(msgspec.msgpack.encode(Tick(7, policy))) == Tick(7, policy)
    assert decoder.decode(msgspec.msgpack.encode([23, 7])) == Tick(7, Policy.STRANDED)
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.msgpack.encode([23, 7, "luck"]))
