"""A copy needs the Kafka listeners of both clusters and no other port: gRPC services are for those inside a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from copying.following import PREFIX, settings_of, write
from copying.world import is_copied, make_topic
from hapax.client import Admin, OffsetAndMetadata
from hapax.copy.copier import Copier
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from hapax.runtime.network import TcpNetwork
from integration.waiting import until

PARTITIONS = 4


async def two_copiers(at: str, topic: str, called: list[str]) -> int:
    """The number of records that both have copied; ends early once something is `called`."""
    running = asyncio.gather(*(
        Copier(settings_of(at, topic, groups="group-.*", instance=each)).run() for each in ("a", "b")))

    async def ended() -> bool:
        return bool(called) or running.done()

    await until(ended, "the end of both processes")
    assert called == []
    return sum(each.records for results in await running for each in results)


async def test_a_copy_calls_nothing_but_kafka_listeners(
    both: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes begin, share the partitions, go on where they were, and copy positions of groups."""
    at, group = {"bootstrap.servers": both.bootstrap}, f"group-{topic}"
    source, share = (TopicPartition(each, PartitionIndex(0)) for each in (topic, PREFIX + topic))
    called: list[str] = []

    def channel(self: TcpNetwork, address: str, *others: Any) -> Any:
        called.append(address)
        raise AssertionError(address)

    await make_topic(both.bootstrap, topic, PARTITIONS)
    for first in (0, 10):
        for partition in range(PARTITIONS):
            await write(both.bootstrap, topic, 10, partition, first=first)
        async with Admin(at) as admin:
            await admin.alter_group_offsets(group, {source: OffsetAndMetadata(first + 5)})
        with monkeypatch.context() as patch:
            patch.setattr(TcpNetwork, "public_channel", channel)
            assert await two_copiers(both.bootstrap, topic, called) == 10 * PARTITIONS
    assert await is_copied(both.bootstrap, both.bootstrap, topic, share.topic)
    async with Admin(at) as admin:
        assert (await admin.committed_offsets(group))[share].offset > 0
