"""Transactions stay whole while the copier begins to read its partitions one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from copying.following import PREFIX, copied, copy_once, settings_of
from copying.world import make_topic, torn
from hapax.client import Producer
from hapax.client.offsets import PartitionOffsets
from hapax.copy.copier import Copier
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from integration.waiting import until


async def test_a_partition_that_is_not_read_yet_holds_its_transactions_together(
    both: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(both.bootstrap, topic, 2)
    await copy_once(both.bootstrap, topic)  # so that the next one has positions
    side = {"bootstrap.servers": both.bootstrap, "transactional.id": topic}
    async with Producer(side) as producer, producer.transaction():
        for partition in (0, 1):
            await producer.send(topic, f"{topic}:0:2:{partition}".encode(), partition=partition)
    copier = Copier(settings_of(both.bootstrap, topic, follow=True))
    source, asked, second = copier._clients.source, asyncio.Event(), asyncio.Event()
    ask = source.listed_offsets

    async def slowly(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        wanted = list(partitions)
        if TopicPartition(topic, PartitionIndex(1)) in wanted:
            asked.set()
            await second.wait()
        return await ask(wanted)

    monkeypatch.setattr(source, "listed_offsets", slowly)
    running = asyncio.create_task(copier.run())
    rounds = 0

    async def several_rounds() -> bool:
        """Of the loop that copies, while the second partition's position is not known."""
        nonlocal rounds
        rounds += asked.is_set()
        copier._news.set()
        return rounds > 5

    await until(several_rounds, "the second partition")
    assert not copier._reader.readings, "all partitions begin together"
    second.set()
    await copied(both.bootstrap, topic, 2)
    copier.stop()
    await running
    assert await torn(both.bootstrap, [PREFIX + topic]) == []
