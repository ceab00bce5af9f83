"""One Fetch for one partition, with the undecoded answer: to inspect a log without following it."""

from __future__ import annotations

from typing import Any, NamedTuple

from hapax.client.cluster import ClusterClient
from hapax.client.errors import FatalError, from_code
from hapax.client.metadata import Leader
from hapax.client.node_fetches import NAMES
from hapax.client.read_replicas import AVOIDED_MS, REFUSED_MS, ReadReplicas
from hapax.core.errors import ErrorCode
from hapax.core.types import TopicPartition
from hapax.wire import messages
from hapax.wire.peer import PeerError

_REDIRECTIONS = 4
"""Most requests of one attempt: the leader names a replica, which refuses, and the leader is asked again."""


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
    topic_id: str = "", replicas: ReadReplicas | None = None,
) -> RawFetch:
    """The batches from `offset` on. Empty at the end of the log. `topic_id`: only this topic may be read, and not
    another one of its name (code UNKNOWN_TOPIC_ID). `replicas`: where to read; None: from the leader. Raises
    HapaxError."""
    name = f"{partition.topic}-{partition.partition}"
    where = ReadReplicas("", 0) if replicas is None else replicas
    await cluster.topic(partition.topic, timeout_ms)

    async def attempt() -> RawFetch | None:
        for _ in range(_REDIRECTIONS):
            found = await _topic_id(cluster, partition.topic, topic_id)
            leader = cluster.leader(partition)
            if leader is None or leader.node_id < 0:
                cluster.refresh_soon()
                raise from_code(ErrorCode.LEADER_NOT_AVAILABLE, name)
            node_id = where.node(partition, leader, cluster.nodes, cluster.now())
            copied = node_id != leader.node_id
            try:
                response = await ask(node_id, leader, found)
            except PeerError:
                if copied and where.leave(partition, cluster.now(), AVOIDED_MS):
                    continue
                raise
            answer: Any = response.responses[0].partitions[0] if response.responses else None
            code = response.error_code or (0 if answer is None else answer.error_code)
            if copied and (code or answer is None or not answer.records):
                # Only the leader can say what is in the log, and where it ends.
                where.leave(partition, cluster.now(), AVOIDED_MS if code == ErrorCode.CORRUPT_MESSAGE else REFUSED_MS)
                continue
            if code == ErrorCode.CORRUPT_MESSAGE:  # no other replica has the batch, so a retry would not help
                raise FatalError(f"CORRUPT_MESSAGE: {name} is damaged at offset {offset}", code=code)
            if code or answer is None:
                cluster.refresh_soon()
                raise from_code(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"reading {name} at offset {offset}")
            if answer.preferred_read_replica >= 0 and not answer.records:
                if where.prefer(partition, answer.preferred_read_replica, leader, cluster.now()):
                    continue
                break
            end = answer.last_stable_offset if committed else answer.high_watermark
            if response.throttle_time_ms and not answer.records and offset < end:
                return None  # the client's quota has left the answer empty: it says nothing of where the log ends
            aborted = tuple((each.producer_id, each.first_offset) for each in answer.aborted_transactions or ())
            return RawFetch(
                bytes(answer.records or b""), aborted, answer.high_watermark, answer.last_stable_offset,
                answer.log_start_offset)
        raise from_code(ErrorCode.REPLICA_NOT_AVAILABLE, f"reading {name} at offset {offset}")

    async def ask(node_id: int, leader: Leader, found: Any) -> Any:
        peer = await cluster.peer(node_id)
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
            rack_id=where.rack((partition,), cluster.now()),
        )
        version = peer.capabilities.pick(Message, at_most=NAMES if found.int == 0 else None, at_least=4)
        return await peer.call(message, version=version, timeout_ms=cluster.options["request.timeout.ms"])

    while (found := await cluster.within(timeout_ms, f"reading {name}", attempt)) is None:
        pass  # the connection's next request waits as long as the quota demands
    return found


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
