"""A producer whose records compaction has removed, on real processes: a replica made from what is left leads, and knows
it all the same."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from typing import Any

from hapax.client import Leases, Producer, TopicPartition
from hapax.codec.records import encode_records
from hapax.core.types import PartitionIndex
from hapax.local.cluster import LocalCluster
from hapax.wire.messages import ProduceRequest
from hapax.wire.peer import Peer
from integration.test_replication import REPLICATED, all_in_sync, connect, make_topic, partition_of, servers
from integration.waiting import wait_until

Make = Callable[..., LocalCluster]
PARTITION = TopicPartition("t", PartitionIndex(0))


async def write(peer: Peer, sequence: int, epoch: int = 1) -> Any:
    """Three records of one key, by producer 999."""
    topic = ProduceRequest.TopicProduceData
    records = encode_records(
        [(int(time.time() * 1000), b"k", b"once", ())] * 3, producer_id=999, producer_epoch=epoch,
        base_sequence=sequence)
    answer = await peer.call(ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[topic(name="t", partition_data=[
            topic.PartitionProduceData(index=0, records=bytes(records))])],
    ), version=9)
    return answer.responses[0].partition_responses[0]


async def progress(cluster: LocalCluster) -> int:
    async with Leases({"bootstrap.servers": servers(cluster)}) as leases:
        return (await leases.progress(999, [PARTITION]))[PARTITION].records


async def test_a_replica_made_from_a_compacted_log_knows_whom_it_has_no_record_of(cluster_factory: Make) -> None:
    cluster = await asyncio.to_thread(
        cluster_factory, brokers=3, settings=[*REPLICATED, "log.snapshot.interval.bytes=20000"])
    await asyncio.to_thread(
        make_topic, cluster, "t", cleanup_policy="compact", segment_bytes="20000", min_insync_replicas="1")
    await asyncio.to_thread(all_in_sync, cluster, "t")
    leader = (await asyncio.to_thread(partition_of, cluster, "t")).leader
    victim, third = [node for node in range(3) if node != leader]
    async with Producer({"bootstrap.servers": servers(cluster)}) as others:
        await others.send("t", b"first", key=b"k")  # takes the first block of producer ids
        peer = await connect(cluster, leader)
        answers = [await write(peer, 0), await write(peer, 3)]
        assert [answer.error_code for answer in answers] == [0, 0]
        peer.close()
        for _ in range(100):
            await (await others.send("t", b"x" * 1000, key=b"k"))
    folder = cluster.folder.data(f"broker-{leader}") / "t-0"

    def is_compacted() -> bool:
        return not any(b"once" in file.read_bytes() for file in folder.glob("*.log"))

    await asyncio.to_thread(wait_until, is_compacted, "compaction")
    await asyncio.to_thread(cluster.kill, f"broker-{victim}")
    await asyncio.to_thread(wait_until, lambda: len(partition_of(cluster, "t").isrs) == 2, "in-sync set without it")
    shutil.rmtree(cluster.folder.data(f"broker-{victim}") / "t-0")
    await asyncio.to_thread(cluster.start, f"broker-{victim}")
    await asyncio.to_thread(all_in_sync, cluster, "t")
    for node in (third, leader):
        await asyncio.to_thread(cluster.kill, f"broker-{node}")
    await asyncio.to_thread(wait_until, lambda: partition_of(cluster, "t").leader == victim, "the copy to lead")
    assert await progress(cluster) == 6
    successor = await connect(cluster, victim)
    retry = await write(successor, 3)
    assert (retry.error_code, retry.base_offset) == (0, answers[1].base_offset)
    assert (await write(successor, 6, epoch=0)).error_code == 47, "a zombie stays fenced"
    successor.close()
