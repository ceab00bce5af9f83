"""The question to partition leaders whether they hold the winners' records: how it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from hapax.coordinator.peers import WinnersOfPartitions
from hapax.core.errors import Refusal
from hapax.core.transaction.record import TransactionPartition
from hapax.core.transaction.requests import CheckWinners, WinnerCheck
from hapax.core.types import PartitionIndex, ProducerEpoch, ProducerId, Serial, TopicId
from hapax.core.types import Sequence as SequenceNumber
from hapax.rpc.gen.hapax.v1 import partitions_pb2
from hapax.runtime.ports import RpcError

HOT, RPC = "frames://broker:1", "broker:2"
CHECK = WinnerCheck(
    TransactionPartition("t", TopicId(UUID(int=7).bytes), PartitionIndex(3)),
    ProducerId(5), ProducerEpoch(1), SequenceNumber(9),
)  # fmt: skip


def holding() -> bytes:
    described = partitions_pb2.PartitionProducers(
        partition=partitions_pb2.PartitionOfTopicId(topic_id=UUID(int=7).bytes, partition=3))
    described.producers.add(producer_id=5, producer_epoch=1, last_sequence=9, txn_first_offset=0)
    return partitions_pb2.DescribeProducersResponse(partitions=[described]).SerializeToString()


class Leader:
    """Both listeners of a broker."""

    def __init__(self, hot: Callable[[], bytes], hot_address: str = HOT) -> None:
        self.asked: list[str] = []
        self._answers = {hot_address: hot, RPC: holding}
        node = SimpleNamespace(hot_address=hot_address, rpc_address=RPC)

        async def wait_for(*_: object) -> object:
            return node

        network = SimpleNamespace(rpc_channel=self._channel)
        self.winners = WinnersOfPartitions(cast(Any, network), cast(Any, SimpleNamespace(wait_for=wait_for)))

    def _channel(self, address: str) -> object:
        async def call(method: str, request: bytes, timeout: float) -> bytes:
            self.asked.append(address)
            return self._answers[address]()

        return SimpleNamespace(call=call)

    def missing(self) -> tuple[WinnerCheck, ...]:
        return asyncio.run(self.winners.missing(CheckWinners(Serial(1), (CHECK,))))


def failing(status: str) -> Callable[[], bytes]:
    def answer() -> bytes:
        raise RpcError(cast(Any, status), "")

    return answer


def test_the_leader_is_asked_by_frames() -> None:
    leader = Leader(holding)
    assert leader.missing() == () and leader.asked == [HOT]


def test_a_leader_of_an_earlier_version_is_asked_by_grpc() -> None:
    """Its frames do not take the call, so commits would wait for the end of the upgrade."""
    leader = Leader(failing("UNIMPLEMENTED"))
    assert leader.missing() == () and leader.asked == [HOT, RPC]


@pytest.mark.parametrize("status", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL"])
def test_another_failure_refuses_the_commit(status: str) -> None:
    leader = Leader(failing(status))
    with pytest.raises(Refusal, match="the winners cannot be checked"):
        leader.missing()
    assert leader.asked == [HOT]


def test_a_leader_without_frames_is_asked_once() -> None:
    leader = Leader(failing("UNIMPLEMENTED"), hot_address=RPC)
    leader._answers[RPC] = failing("UNIMPLEMENTED")
    with pytest.raises(Refusal):
        leader.missing()
    assert leader.asked == [RPC]
