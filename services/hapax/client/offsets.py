"""Where partitions begin and end, and which offset belongs to a time: ListOffsets, for consumers and administration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from hapax.client.cluster import Cluster, by_node
from hapax.client.connected import Connected
from hapax.client.errors import from_code
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.kafka import messages

EARLIEST: Final = -2
LATEST: Final = -1


class PartitionOffsets(NamedTuple):
    first: int
    last_stable: int
    """What a read_committed reader reads up to."""
    high_watermark: int


class OffsetAdmin(Connected):
    """The part of `Admin` that looks offsets up."""

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, committed: bool = False
    ) -> dict[TopicPartition, tuple[int, int]]:
        """(offset, timestamp) at EARLIEST, LATEST (with `committed`: the last stable offset), or of the first record at
        or after a time (ms since 1970; then offset -1: there is none)."""
        return await list_offsets(self._cluster, self._timeout, times, committed)

    async def partition_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        wanted = list(partitions)
        first, stable, high = await asyncio.gather(
            self.list_offsets(dict.fromkeys(wanted, EARLIEST)),
            self.list_offsets(dict.fromkeys(wanted, LATEST), committed=True),
            self.list_offsets(dict.fromkeys(wanted, LATEST)))
        return {each: PartitionOffsets(first[each][0], stable[each][0], high[each][0]) for each in wanted}


async def list_offsets(
    cluster: Cluster, timeout_ms: int, times: Mapping[TopicPartition, int], committed: bool
) -> dict[TopicPartition, tuple[int, int]]:
    """By partition (offset, timestamp). Raises HapaxError."""
    if not times:
        return {}
    for topic in dict.fromkeys(p.topic for p in times):
        await cluster.topic(topic, timeout_ms)

    async def attempt() -> dict[TopicPartition, tuple[int, int]]:
        answers = await asyncio.gather(*(
            _from_leader(cluster, node, {p: times[p] for p in partitions}, committed)
            for node, partitions in by_node(cluster, times).items()))
        return {partition: found for answer in answers for partition, found in answer.items()}

    return await cluster.within(timeout_ms, "looking offsets up", attempt)


async def _from_leader(
    cluster: Cluster, node: int, times: Mapping[TopicPartition, int], committed: bool
) -> dict[TopicPartition, tuple[int, int]]:
    peer = await cluster.peer(node)
    Message = messages.ListOffsetsRequest
    topics: dict[str, list[Any]] = {}
    for partition, time in times.items():
        topics.setdefault(partition.topic, []).append(
            Message.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=partition.partition, current_leader_epoch=-1, timestamp=time
            )
        )
    response = await peer.call(
        Message(
            replica_id=-1,
            isolation_level=int(committed),
            timeout_ms=cluster.options["request.timeout.ms"],
            topics=[Message.ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()],
        ),
        version=peer.capabilities.pick(Message, at_least=2 if committed else 1),
    )
    found = {}
    for topic in response.topics:
        for answer in topic.partitions:
            if answer.error_code:
                cluster.refresh_soon()
                raise from_code(answer.error_code, f"offsets of {topic.name}-{answer.partition_index}")
            partition = TopicPartition(topic.name, PartitionIndex(answer.partition_index))
            found[partition] = (answer.offset, answer.timestamp)
    return found
