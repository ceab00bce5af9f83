"""Elections that may have lost records are told, whatever became of the store's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.codec.metadata import PartitionRecord
from hapax.controller.unclean import UncleanElections
from hapax.core.types import LeaderEpoch, NodeId, PartitionIndex, RegistrationEpoch, TopicId
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.cluster import PartitionView
from hapax.runtime.ports import Compare, Delete, MetadataUnavailable, Put, TxnResult
from unit.control_world import ControlWorld, run
from unit.controller.test_failover import FEW, records

BEFORE = PartitionRecord(NodeId(-1), LeaderEpoch(6), RegistrationEpoch(-1), (NodeId(0), NodeId(1)), (NodeId(0),))
HERE = PartitionView(TopicId(bytes(16)), PartitionIndex(0), BEFORE, 1)
WRITTEN = replace(
    HERE, record=replace(BEFORE, leader=NodeId(1), leader_epoch=LeaderEpoch(7), unclean_epoch=LeaderEpoch(7),
                         unclean_ms=1000))


def after(partition: PartitionView | None, planned: PartitionView = WRITTEN) -> list[PartitionView]:
    """What is told of a planned election once the image shows this."""
    told: list[PartitionView] = []
    shown: list[PartitionView | None] = [HERE]
    view: Any = SimpleNamespace(partition=lambda *_: shown[0])
    elections = UncleanElections(view, told.append)
    elections.planned(planned)
    elections.changed(HERE.id)
    assert told == []
    shown[0] = partition
    for _ in range(2):
        elections.changed(HERE.id)
    return told


def test_an_election_is_told_once_when_the_image_shows_it() -> None:
    assert after(WRITTEN) == [WRITTEN]
    later = replace(WRITTEN.record, leader=NodeId(0), leader_epoch=LeaderEpoch(9), isr=(NodeId(0), NodeId(1)))
    assert after(replace(WRITTEN, record=later)) == [WRITTEN], "its mark stands in the record"


@pytest.mark.parametrize("change", [
    {"leader": NodeId(0), "leader_epoch": LeaderEpoch(7)},
    {"leader": NodeId(1), "leader_epoch": LeaderEpoch(7), "unclean_epoch": LeaderEpoch(7), "unclean_ms": 1001},
])
def test_an_election_that_was_not_written_is_not_told(change: dict[str, Any]) -> None:
    assert after(replace(HERE, record=replace(BEFORE, **change))) == []


def test_a_deleted_partition_is_forgotten() -> None:
    assert after(None) == []


@pytest.mark.parametrize("on_request", [False, True])
def test_an_unclean_election_whose_answer_was_lost_is_told_once(on_request: bool) -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        _, controller = await world.controller(**FEW, unclean_leader_election_enable=not on_request)
        brokers = [await world.broker(n, listens=True) for n in range(3)]
        await world.coordinator(100)
        await world.ready(view)
        await world.create(controller, factor=2, t=1)
        store = controller._ports.metadata
        txn, lost = store.txn, []

        async def loses_the_answer(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
            result = await txn(compares, writes)
            if not lost and any(isinstance(write, Put) and b'"unclean' in write.value for write in writes):
                lost.append(writes)
                raise MetadataUnavailable("the answer is lost")
            return result

        store.txn = loses_the_answer  # type: ignore[method-assign]
        (record,) = records(view)
        first, second = record.replicas
        world.kill(brokers[second].process)
        await view.wait_for(lambda v: records(v)[0].isr == (first,), 60)
        world.kill(brokers[first].process)
        await view.wait_for(lambda v: records(v)[0].leader == -1, 60)
        await world.broker(second, listens=True)
        if on_request:
            request = pb.ElectLeadersRequest(partitions=[pb.PartitionOfTopic(topic="t", partition=0)], unclean=True)
            await world.call(controller, "ElectLeaders", request, pb.ElectLeadersResponse)
        await view.wait_for(lambda v: records(v)[0].leader == second, 60)
        await asyncio.sleep(5)
        assert len(lost) == 1 and controller._unclean.value == 1

    run(scenario)
