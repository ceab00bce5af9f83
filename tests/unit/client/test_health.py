"""What a client can see of a cluster's health."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.client.admin import Admin, ClusterInfo, TopicInfo, TopicPartitionInfo
from hapax.client.errors import RetriableError
from hapax.client.groups import ShardInfo
from hapax.client.health import count, health_checks
from hapax.client.replication import BrokerInfo
from hapax.codec.metadata import OFFSETS_TOPIC, TXN_STATE_TOPIC
from hapax.rpc.gen.hapax.v1 import groups_pb2 as pb
from hapax.runtime.ports import RpcError


class Seen(Admin):
    """An Admin that sees two shards of either kind, of which `shards` have an owner."""

    def __init__(self, *shards: ShardInfo) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1"})
        self.shards = shards

    async def list_topics(self, names: object = None) -> list[TopicInfo]:
        partitions = tuple(TopicPartitionInfo(index, 0, 1, (0,), (0,)) for index in range(2))
        return [TopicInfo(name, "", partitions) for name in ("t", TXN_STATE_TOPIC, OFFSETS_TOPIC)]

    async def list_brokers(self) -> list[BrokerInfo]:
        return [BrokerInfo(0, "", "")]

    async def describe_cluster(self) -> ClusterInfo:
        return ClusterInfo("c", 0, (), 2)

    async def acting_controller(self) -> str:
        return "200"

    async def describe_shards(self, *, partial: bool = False) -> list[ShardInfo]:
        return list(self.shards)


def shard(kind: str, number: int, serving: bool = True) -> ShardInfo:
    return ShardInfo(kind, number, 100, 1, serving, 0, 0)


async def test_shards_without_an_owner_are_counted() -> None:
    every = [shard(kind, number) for kind in ("txn", "group") for number in range(2)]
    assert (await count(Seen(*every))).shards_off == 0
    assert (await count(Seen(*every, every[0]))).shards_off == 0  # it moves, and both owners list it
    counts = await count(Seen(every[0], shard("txn", 1, False)))
    assert counts.shards_off == 3
    assert {each.name: each.status for each in health_checks(counts)}["shards"] == "down"


class Coordinators(Seen):
    """Coordinator 100 owns both shards of transactions, and 101, which owns those of groups, is silent."""

    describe_shards = Admin.describe_shards  # type: ignore[assignment]

    def __init__(self, *alive: int) -> None:
        Admin.__init__(self, {
            "bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": 1, "default.api.timeout.ms": 20})
        self.alive = alive
        self._cluster.rpc_addresses = self._addresses  # type: ignore[method-assign]
        self._cluster.channel = Channel  # type: ignore[assignment, method-assign]

    async def _addresses(self, *, fresh: bool = False) -> Any:
        return {0: "0", **{node: str(node) for node in self.alive}}, None


class Channel:
    def __init__(self, address: str) -> None:
        self.address = address

    async def call(self, *_: Any) -> bytes:
        if self.address == "101":
            raise RpcError("UNAVAILABLE", "silent")
        shards = [pb.ShardState(kind="txn", shard=number, serving=True) for number in range(2)]
        return pb.DescribeShardsResponse(shards=shards).SerializeToString()


async def test_a_silent_coordinator_does_not_hide_what_the_others_say() -> None:
    assert (await count(Coordinators(100, 101))).shards_off == 2
    assert (await count(Coordinators())).shards_off == 4
    with pytest.raises(RetriableError):
        await Coordinators(100, 101).describe_shards()
    with pytest.raises(RetriableError):
        await Coordinators().describe_shards()
