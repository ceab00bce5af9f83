"""Where the records of a leader epoch end in the source (OffsetForLeaderEpoch, KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hapax.client.cluster import ClusterClient
from hapax.client.errors import from_code
from hapax.client.leaders import by_node
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.wire import messages


async def epoch_ends(
    cluster: ClusterClient, epochs: Mapping[TopicPartition, int], timeout_ms: int
) -> dict[TopicPartition, int]:
    """Partition -> the offset after the last record of this epoch, or of an older one; -1 where the leader does not
    know. Raises HapaxError."""
    if not epochs:
        return {}

    async def attempt() -> dict[TopicPartition, int]:
        await cluster.topics_of(epochs, fresh=False)
        found = {}
        for node, partitions in by_node(cluster, epochs).items():
            found.update(await _of_node(cluster, node, {each: epochs[each] for each in partitions}))
        return found

    return await cluster.within(timeout_ms, "looking leader epochs up", attempt)


async def _of_node(
    cluster: ClusterClient, node: int, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    Message = messages.OffsetForLeaderEpochRequest
    Topic = Message.OffsetForLeaderTopic
    topics: dict[str, list[Any]] = {}
    for partition, epoch in epochs.items():
        topics.setdefault(partition.topic, []).append(
            Topic.OffsetForLeaderPartition(
                partition=partition.partition, current_leader_epoch=-1, leader_epoch=epoch))
    peer = await cluster.peer(node)
    response = await peer.call(Message(
        replica_id=-1, topics=[Topic(topic=name, partitions=parts) for name, parts in topics.items()]))
    found = {}
    for topic in response.topics:
        for answer in topic.partitions:
            if answer.error_code:
                cluster.refresh_soon()
                raise from_code(answer.error_code, f"leader epochs of {topic.topic}-{answer.partition}")
            # An answer about an older epoch: the log holds no record of the one in question.
            found[TopicPartition(topic.topic, PartitionIndex(answer.partition))] = int(answer.end_offset)
    return found
