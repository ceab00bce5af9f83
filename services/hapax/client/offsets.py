"""The first and last offsets of partitions, and offsets for times: ListOffsets, for consumers and administration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hapax.client.cluster import ClusterClient
from hapax.client.connected import Connected
from hapax.client.errors import NotHapaxError, RetriableError, from_code
from hapax.client.leaders import by_node
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime.ports import RpcError
from hapax.wire import messages

EARLIEST: Final = -2
LATEST: Final = -1
_PARTITIONS: Final = "/hapax.v1.Partitions/"


class PartitionOffsets(NamedTuple):
    first: int
    last_stable: int
    """The offset up to which a read_committed consumer reads."""
    high_watermark: int


class Count(NamedTuple):
    """The number of records from an offset on that a read_committed consumer receives."""

    records: int
    counted_to: int
    """Records below this offset were counted. It is below the last stable offset if the limit of bytes was reached."""
    read_bytes: int


class OffsetAdmin(Connected):
    """The part of `Admin` that looks up offsets."""

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, committed: bool = False
    ) -> dict[TopicPartition, tuple[int, int]]:
        """(offset, timestamp) at EARLIEST, at LATEST (with `committed`: the last stable offset), or of the first record
        at or after a time in ms since 1970 (offset -1 if there is none)."""
        return await list_offsets(self._cluster, self._timeout, times, committed)

    async def partition_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        """The offsets of each partition; from a Hapax broker, all at the same moment. Raises HapaxError."""
        wanted = list(partitions)
        try:
            return await self._described_offsets(wanted)
        except NotHapaxError:  # or an older version, which does not have this call
            pass
        return await self.listed_offsets(wanted)

    async def listed_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionOffsets]:
        """As `partition_offsets`, by the Kafka protocol alone: also of a Hapax cluster whose nodes' calls over gRPC
        cannot be reached from here. `timeout_ms`: instead of default.api.timeout.ms. Raises HapaxError."""
        wanted, limit = list(partitions), self._timeout if timeout_ms is None else timeout_ms
        first, stable, high = await asyncio.gather(
            list_offsets(self._cluster, limit, dict.fromkeys(wanted, EARLIEST), committed=False),
            list_offsets(self._cluster, limit, dict.fromkeys(wanted, LATEST), committed=True),
            list_offsets(self._cluster, limit, dict.fromkeys(wanted, LATEST), committed=False))
        return {each: PartitionOffsets(first[each][0], stable[each][0], high[each][0]) for each in wanted}

    async def _described_offsets(self, wanted: list[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        """One call to each leader. Raises HapaxError; NotHapaxError if a leader does not have this call."""
        cluster = self._cluster
        for topic in dict.fromkeys(each.topic for each in wanted):
            await cluster.topic(topic, self._timeout)

        async def attempt() -> dict[TopicPartition, PartitionOffsets]:
            answers = await asyncio.gather(*(
                self._of_leader(node, partitions) for node, partitions in by_node(cluster, wanted).items()))
            return {partition: found for answer in answers for partition, (found, _) in answer.items()}

        return await cluster.within(self._timeout, "looking offsets up", attempt)

    async def count_records(
        self, starts: Mapping[TopicPartition, int], max_bytes: int
    ) -> dict[TopicPartition, tuple[PartitionOffsets, Count]]:
        """The offsets of partitions, and the number of records from an offset on that a read_committed consumer will
        receive. The brokers count them by reading about `max_bytes` of their logs; cached counts need no reading.
        Partitions that do not exist are left out. Raises HapaxError; NotHapaxError if a broker does not have this
        call."""
        cluster = self._cluster
        fresh = False

        async def attempt() -> dict[TopicPartition, tuple[PartitionOffsets, Count]]:
            nonlocal fresh
            topics = await cluster.topics_of(starts, fresh=fresh)
            fresh = True  # after a failure, because the topic may have been deleted
            groups = by_node(cluster, (
                each for each in starts if each.topic in topics and each.partition in topics[each.topic].partitions))
            share = max(max_bytes // max(len(groups), 1), min(max_bytes, 1))  # 0 only if nothing is counted
            answers = await asyncio.gather(*(
                self._of_leader(node, partitions, [starts[each] for each in partitions], share)
                for node, partitions in groups.items()))
            return {partition: found for answer in answers for partition, found in answer.items()}

        return await cluster.within(self._timeout, "counting records", attempt)

    async def _of_leader(
        self, node: int, partitions: list[TopicPartition], count_from: Sequence[int] = (), max_bytes: int = 0
    ) -> dict[TopicPartition, tuple[PartitionOffsets, Count]]:
        from hapax.rpc.gen.hapax.v1 import partitions_pb2 as pb

        cluster = self._cluster
        address = await cluster.rpc_address(node)
        if address is None:
            cluster.refresh_soon()
            raise RetriableError(f"node {node} is not alive", code=ErrorCode.LEADER_NOT_AVAILABLE)
        request = pb.DescribeOffsetsRequest(count_from=count_from, count_max_bytes=max_bytes)
        for each in partitions:
            topic = cluster.topics.get(each.topic)
            if topic is None:
                raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, each.topic, "deleted meanwhile")
            request.partitions.add(topic_id=topic.topic_id.bytes, partition=each.partition)
        try:
            payload = await cluster.channel(address).call(
                _PARTITIONS + "DescribeOffsets", request.SerializeToString(),
                self._options["request.timeout.ms"] / 1000)
        except RpcError as error:
            cluster.refresh_soon()
            if error.status == "UNIMPLEMENTED":
                raise NotHapaxError(f"node {node} does not know DescribeOffsets") from None
            raise
        found = {}
        answers = pb.DescribeOffsetsResponse.FromString(payload).partitions
        for partition, answer in zip(partitions, answers, strict=True):
            if answer.error:
                cluster.refresh_soon()
                raise from_code(answer.error, f"offsets of {partition.topic}-{partition.partition}", answer.reason)
            offsets = PartitionOffsets(answer.log_start_offset, answer.last_stable_offset, answer.high_watermark)
            found[partition] = offsets, Count(answer.readable, answer.counted_to, answer.counted_bytes)
        return found


async def list_offsets(
    cluster: ClusterClient, timeout_ms: int, times: Mapping[TopicPartition, int], committed: bool
) -> dict[TopicPartition, tuple[int, int]]:
    """Partition -> (offset, timestamp). Raises HapaxError."""
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
    cluster: ClusterClient, node: int, times: Mapping[TopicPartition, int], committed: bool
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
