"""A broker's rack comes from its machine, and follows what the metadata store says of that machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hapax.broker.read_replicas import serves_as_copy
from hapax.codec.metadata import NodeRecord, RacksRecord
from hapax.core.types import NodeId
from hapax.runtime.ports import Put
from hapax.runtime.settings import RACK_AWARE_SELECTOR
from unit.broker.broker_fixtures import batch
from unit.broker.replicas_world import KEYS, World
from unit.broker.test_read_replicas import ALONE, fetch


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR, **ALONE)
    yield made
    await made.close()


def find(world: World, **machines: str) -> None:
    """What the operator has found."""
    world.model.txn([], [Put(KEYS.racks, RacksRecord("zone", machines).encode())])


def told(world: World, node: int) -> tuple[str, int]:
    """The rack in its registration, and the registration."""
    kv = world.model.get(KEYS.node(NodeId(node)))
    assert kv is not None
    return NodeRecord.decode(kv.value).rack, kv.create_revision


async def test_it_is_in_the_first_registration_where_it_is_known_already(world: World) -> None:
    find(world, m0="a", m1="b")
    world.machines = {1: "m1"}
    await world.start(1)
    kv = world.model.get(KEYS.node(NodeId(1)))
    assert kv is not None and kv.mod_revision == kv.create_revision and told(world, 1)[0] == "b"


async def test_it_is_taken_over_when_it_is_found_and_when_it_changes(world: World) -> None:
    world.machines = {0: "m0"}
    await world.start(0)
    registration = told(world, 0)[1]
    for rack in ("a", "b", ""):
        find(world, m0=rack, m9="z")
        await world.until(lambda: told(world, 0) == (rack, registration))  # noqa: B023
    assert not world.ended


async def test_its_own_setting_has_precedence(world: World) -> None:
    find(world, m0="a")
    world.machines, world.racks = {0: "m0"}, {0: "mine"}
    await world.start(0)
    find(world, m0="b")
    assert world.brokers[0].rack.name == "mine" and told(world, 0)[0] == "mine"


async def test_a_broker_that_does_not_know_its_machine_has_none(world: World) -> None:
    find(world, **{"": "a"})
    await world.start(0)
    assert told(world, 0)[0] == ""


async def test_consumers_are_sent_by_the_racks_that_were_found_last(world: World) -> None:
    world.machines = {0: "m0", 1: "m1"}
    await world.start(0, 1)
    world.make_topic((0, 1))
    await world.until(lambda: world.leads(0))
    await world.until(lambda: world.has(1) and serves_as_copy(world.replica(1)))
    await world.produced(0, batch())
    assert fetch(world, 0, 0, rack="b").preferred_read_replica == -1, "no rack is known"
    find(world, m0="a", m1="b")
    await world.until(lambda: fetch(world, 0, 0, rack="b").preferred_read_replica == 1)
    find(world, m0="b", m1="b")  # the leader itself is there
    await world.until(lambda: fetch(world, 0, 0, rack="b").preferred_read_replica == -1)
