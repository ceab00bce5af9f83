"""Reading a log by a client that has a quota: an answer that the quota left empty is not the end of the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

from conftest import end_clusters, start_cluster
from hapax.backup.cluster import BackedUpCluster
from hapax.client import Producer, TopicPartition
from hapax.client.admin import NewTopic
from hapax.core.types import PartitionIndex
from integration.scraping import scraped, total
from integration.waiting import wait_until


async def test_a_throttled_reader_gets_every_record(tmp_path: Path) -> None:
    where = TopicPartition("t", PartitionIndex(0))
    cluster = start_cluster(tmp_path, settings=["quota.window.num=2"])

    async def offsets(reader: BackedUpCluster) -> list[int]:
        return [header.base_offset async for _, header in reader.batches(where, topic.topic_id, 0, 2)]

    try:
        settings = {"bootstrap.servers": cluster.bootstrap}
        async with BackedUpCluster(settings) as one, BackedUpCluster(settings) as other:
            await one.create_topics([NewTopic("t", 1)])
            async with Producer({**settings, "linger.ms": 0}) as producer:
                for _ in range(2):
                    await producer.send_and_wait("t", bytes(300_000), partition=0)
            await one.alter_quotas({"client-id": None}, {"consumer_byte_rate": 200_000.0})
            await asyncio.to_thread(
                wait_until, lambda: total(scraped(cluster, "broker-0"), "hapax_quota_entities") > 0, "quota")
            (topic,) = await other.list_topics(["t"])
            # The first one uses up the quota that both have together.
            assert [await offsets(one), await offsets(other)] == [[0, 1], [0, 1]]
        assert total(scraped(cluster, "broker-0"), "hapax_throttled_total") >= 2
    finally:
        end_clusters([cluster])
