"""One Fetch for one partition, with the undecoded answer: to inspect a log without following it."""

from __future__ import annotations

from typing import Any, NamedTuple

from hapax.client.cluster import ClusterClient
from hapax.client.errors import FatalError, from_code
from hapax.core.errors import ErrorCode
from hapax.core.types import TopicPartition
from hapax.wire import messages

_NAMES = 12
"""The last version of Fetch that names topics by name. Version 13 names them by id."""


class RawFetch(NamedTuple):
    data: bytes
    """Batches. The last one may be incomplete."""
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of the transactions that a read_committed reader leaves out."""
    high_watermark: int
    last_stable: int
    first: int
    """Offset at which the log begins."""


async def fetch_raw(
    cluster: ClusterClient, partition: TopicPartition, offset: int, *, committed: bool, max_bytes: int, timeout_ms: int,
    topic_id: str = "",
) -> RawFetch:
    """The batches from `offset` on. Empty at the end of the log. `topic_id`: only this topic may be read, and not
    another one of its name (code UNKNOWN_TOPIC_ID). Raises HapaxError."""
    name = f"{partition.topic}-{partition.partition}"
    await cluster.topic(partition.topic, timeout_ms)

    async def attempt() -> RawFetch:
        found = await _topic_id(cluster, partition.topic, topic_id)
        leader = cluster.leader(partition)
        if leader is None or leader.node_id < 0:
            cluster.refresh_soon()
            raise from_code(ErrorCode.LEADER_NOT_AVAILABLE, name)
        peer = await cluster.peer(leader.node_id)
        Message = messages.FetchRequest
        message = Message(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            isolation_level=int(committed),
            session_id=0,
            session_epoch=-1,
            topics=[Message.FetchTopic(topic=partition.topic, topic_id=found, partitions=[
                Message.FetchTopic.FetchPartition(
                    partition=partition.partition, current_leader_epoch=leader.epoch, fetch_offset=offset,
                    last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=max_bytes)])],
            forgotten_topics_data=[],
            rack_id="",
        )
        version = peer.capabilities.pick(Message, at_most=_NAMES if found.int == 0 else None, at_least=4)
        response = await peer.call(message, version=version, timeout_ms=cluster.options["request.timeout.ms"])
        answer: Any = response.responses[0].partitions[0] if response.responses else None
        code = response.error_code or (0 if answer is None else answer.error_code)
        if code == ErrorCode.CORRUPT_MESSAGE:  # no other replica has the batch, so a retry would not help
            raise FatalError(f"CORRUPT_MESSAGE: {name} is damaged at offset {offset}", code=code)
        if code or answer is None:
            cluster.refresh_soon()
            raise from_code(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"reading {name} at offset {offset}")
        aborted = tuple((each.producer_id, each.first_offset) for each in answer.aborted_transactions or ())
        return RawFetch(
            bytes(answer.records or b""), aborted, answer.high_watermark, answer.last_stable_offset,
            answer.log_start_offset)

    return await cluster.within(timeout_ms, f"reading {name}", attempt)


async def _topic_id(cluster: ClusterClient, name: str, wanted: str) -> Any:
    """uuid.UUID of the topic of this name. Raises FatalError if it is not the `wanted` one (as text; '': any). This is
    checked against a new answer, because the cached metadata may be from before the topic was created again."""
    topic = cluster.topics.get(name)
    if topic is None or (wanted and str(topic.topic_id) != wanted):
        topic = (await cluster.existing([name])).get(name)
    if topic is None:
        raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
    if wanted and str(topic.topic_id) != wanted:
        raise FatalError(
            f"topic {name!r} has the id {topic.topic_id}, not {wanted}", code=ErrorCode.UNKNOWN_TOPIC_ID)
    return topic.topic_id
