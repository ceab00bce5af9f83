"""How the markers of one transaction are divided among destinations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from hapax.coordinator import markers
from hapax.coordinator.markers import MarkerSender
from hapax.core.errors import ErrorCode
from hapax.core.transaction.record import TransactionPartition
from hapax.core.transaction.requests import Marker, MarkerResult, SendMarkers
from hapax.core.types import NodeId, PartitionIndex, ProducerEpoch, ProducerId, Serial, ShardEpoch, ShardId, TopicId
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, common_pb2

TOPIC = TopicId(bytes(range(16)))


class Leader(NamedTuple):
    hot_address: str


class View:
    """Partitions 0 to 9 are led by a, 10 to 19 by b; no broker leads any other."""

    def is_deleted(self, topic_id: TopicId) -> bool:
        return False

    def leader_of(self, topic_id: TopicId, partition: PartitionIndex) -> Leader | None:
        return Leader("ab"[partition // 10]) if partition < 20 else None


class Brokers:
    """Take every marker. `calls`: for each, the address and the partitions of its markers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[list[int]]]] = []

    def rpc_channel(self, address: str) -> Any:
        brokers = self

        class Channel:
            async def call(self, method: str, payload: bytes, timeout: float) -> bytes:
                request = broker_pb2.WriteMarkersRequest.FromString(payload)
                brokers.calls.append((address, [[p.partition for p in each.partitions] for each in request.markers]))
                return broker_pb2.WriteMarkersResponse(results=[
                    broker_pb2.MarkerResult(partitions=[
                        common_pb2.PartitionError(topic_id=p.topic_id, partition=p.partition)
                        for p in each.partitions])
                    for each in request.markers
                ]).SerializeToString()

        return Channel()


class Owner:
    shard = ShardId(3)
    epoch = ShardEpoch(5)
    serving = True

    def __init__(self) -> None:
        self.answers: asyncio.Queue[tuple[SendMarkers, Sequence[MarkerResult]]] = asyncio.Queue()

    def markers_answered(self, sent: SendMarkers, epoch: ShardEpoch, results: Sequence[MarkerResult]) -> None:
        self.answers.put_nowait((sent, results))


def sent(*partitions: int, producers: int = 1) -> SendMarkers:
    written = tuple([TransactionPartition("t", TOPIC, PartitionIndex(index)) for index in partitions])
    return SendMarkers("id", Serial(1), 1, tuple([
        Marker(ProducerId(number), ProducerEpoch(0), True, written) for number in range(producers)]))


async def answers(whole: SendMarkers, count: int) -> tuple[list[tuple[str, list[list[int]]]], dict[int, ErrorCode]]:
    """The brokers' calls, and the answer for each partition of the first producer, which come in `count` answers."""
    brokers, owner = Brokers(), Owner()

    async def local(request: Any) -> Any:
        raise AssertionError("no markers for offsets")

    sender = MarkerSender(
        brokers, View(), NodeId(100), local, on_fault=lambda error: None)  # type: ignore[arg-type]
    sender.send(owner, whole)
    assert owner.answers.empty(), "never from within"
    found: dict[int, ErrorCode] = {}
    for _ in range(count):
        part, results = await owner.answers.get()
        assert (part.transactional_id, part.serial) == (whole.transactional_id, whole.serial)
        for result in results:
            if result.producer_id == 0:
                assert result.partition.partition not in found
                found[result.partition.partition] = result.error
    await sender.close()
    assert owner.answers.empty()
    return sorted(brokers.calls), found


async def test_partitions_of_one_leader_are_one_call() -> None:
    calls, found = await answers(sent(0, 3, 5), 1)
    assert calls == [("a", [[0, 3, 5]])]
    assert found == {0: ErrorCode.NONE, 3: ErrorCode.NONE, 5: ErrorCode.NONE}


async def test_each_leader_gets_the_markers_of_its_partitions() -> None:
    calls, found = await answers(sent(0, 12, 3, 11), 2)
    assert calls == [("a", [[0, 3]]), ("b", [[12, 11]])]
    assert set(found.values()) == {ErrorCode.NONE} and set(found) == {0, 3, 11, 12}


async def test_a_partition_without_a_leader_is_answered_and_the_others_are_sent() -> None:
    calls, found = await answers(sent(0, 25), 2)
    assert calls == [("a", [[0]])]
    assert found == {0: ErrorCode.NONE, 25: ErrorCode.LEADER_NOT_AVAILABLE}
    calls, found = await answers(sent(25), 1)
    assert not calls and found == {25: ErrorCode.LEADER_NOT_AVAILABLE}


async def test_more_than_a_call_takes_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "MAX_MARKERS_PER_CALL", 2)
    calls, found = await answers(sent(0, 1, 2), 2)
    assert calls == [("a", [[0, 1]]), ("a", [[2]])] and set(found) == {0, 1, 2}


async def test_markers_of_several_writers_for_a_partition_stay_together() -> None:
    calls, found = await answers(sent(0, 12, producers=3), 2)
    assert calls == [("a", [[0]] * 3), ("b", [[12]] * 3)] and set(found) == {0, 12}
