"""Fetch requests to the nodes of a cluster, each within the node's fetch session."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hapax.client.fetch_session import Asked, Ends, FetchSession, SessionRequest
from hapax.client.settings import Options
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime import supervision
from hapax.wire import messages
from hapax.wire.peer import Peer, PeerError, PeerUnsupported

NAMES: Final = 12
"""The last version of Fetch that names topics by name. Version 13 names them by id."""
_CLOSE_MS: Final = 1_000
"""How long `close` waits for nodes to confirm that their sessions have ended. They would evict them in time."""


class NodeFetch(NamedTuple):
    """What one request asks."""

    wanted: dict[TopicPartition, tuple[int, int]]
    """Each partition's offset and leader epoch."""
    ids: Mapping[str, Any]
    """Topic name -> uuid.UUID, all zeros if the cluster does not know it."""
    max_wait_ms: int
    rack: str


class Answer(NamedTuple):
    error_code: int
    """Of the whole request."""
    partitions: list[tuple[TopicPartition, Any]]
    """Those that the answer names, with what it says (`FetchResponse...PartitionData`)."""


class _Node(NamedTuple):
    session: FetchSession
    peer: Peer


class NodeFetches:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._nodes: dict[int, _Node] = {}
        self._closing: dict[asyncio.Task[Any], None] = {}

    async def fetch(self, node_id: int, peer: Peer, fetch: NodeFetch) -> Answer:
        """One request at a time to each node. Raises PeerError, PeerUnsupported."""
        at_most = NAMES if any(topic_id.int == 0 for topic_id in fetch.ids.values()) else None
        version = peer.capabilities.pick(messages.FetchRequest, at_most=at_most, at_least=4)
        by_id = version > NAMES
        session = self._session(node_id, peer)
        limit = self._options["max.partition.fetch.bytes"]
        wanted = {
            partition: Asked(offset, epoch, limit, fetch.ids[partition.topic] if by_id else None)
            for partition, (offset, epoch) in fetch.wanted.items()}
        while True:
            request = session.request(wanted, by_id=by_id)
            message = self._message(request, fetch.max_wait_ms, fetch.rack)
            # If this fails or is cancelled, the session's next request is full, because this one has no answer.
            response = await peer.call(
                message, version=version, timeout_ms=fetch.max_wait_ms + self._options["request.timeout.ms"])
            if response.error_code == 0:
                break
            if not session.refused(response.error_code):
                return Answer(response.error_code, [])
        names = {topic_id: name for name, topic_id in fetch.ids.items()} if by_id else {}
        partitions = [
            (TopicPartition(names.get(topic.topic_id, topic.topic), PartitionIndex(each.partition_index)), each)
            for topic in response.responses for each in topic.partitions]
        session.answered(response.session_id, {
            partition: None if each.error_code else Ends(each.high_watermark, each.last_stable_offset)
            for partition, each in partitions})
        return Answer(0, partitions)

    def ends(self, node_id: int, partition: TopicPartition) -> Ends | None:
        """Of a partition that the last answer may not have named, because nothing of it had changed."""
        node = self._nodes.get(node_id)
        return None if node is None else node.session.ends(partition)

    def nodes(self) -> list[int]:
        """Those with which there may be a session."""
        return list(self._nodes)

    def end(self, node_id: int) -> None:
        """Ends the session with a node from which nothing is read any more."""
        session, peer = self._nodes.pop(node_id)
        request = session.close()
        if request is not None and not peer.closed:
            closing = supervision.once(
                self._send_last(peer, request), "client-fetch-session-end", node_id,
                expected=(PeerError, PeerUnsupported))
            self._closing[closing] = None
            closing.add_done_callback(lambda done: self._closing.pop(done, None))

    async def close(self) -> None:
        """Ends all sessions, while no request is open."""
        for node_id in self.nodes():
            self.end(node_id)
        if self._closing:
            await asyncio.wait(list(self._closing), timeout=_CLOSE_MS / 1000)
        await supervision.end(*self._closing)

    async def _send_last(self, peer: Peer, request: SessionRequest) -> None:
        await peer.call(self._message(request, 0, ""), version=peer.capabilities.pick(messages.FetchRequest))

    def _session(self, node_id: int, peer: Peer) -> FetchSession:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _Node(FetchSession(), peer)
        elif node.peer is not peer:
            node.session.lost()
            self._nodes[node_id] = node._replace(peer=peer)
        return node.session

    def _message(self, request: SessionRequest, max_wait_ms: int, rack: str) -> Any:
        Message = messages.FetchRequest
        options = self._options
        topics: dict[str, Any] = {}
        for (name, index), asked in request.named.items():
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = Message.FetchTopic(topic=name, topic_id=asked.topic_id, partitions=[])
            topic.partitions.append(Message.FetchTopic.FetchPartition(
                partition=index, current_leader_epoch=asked.leader_epoch, fetch_offset=asked.offset,
                last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=asked.max_bytes))
        forgotten: dict[tuple[str, Any], list[int]] = {}
        for (name, index), asked in request.forgotten.items():
            forgotten.setdefault((name, asked.topic_id), []).append(index)
        return Message(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=options["fetch.min.bytes"],
            max_bytes=options["fetch.max.bytes"],
            isolation_level=int(options["isolation.level"] == "read_committed"),
            session_id=request.session_id,
            session_epoch=request.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[
                Message.ForgottenTopic(topic=name, topic_id=topic_id, partitions=indexes)
                for (name, topic_id), indexes in forgotten.items()],
            rack_id=rack,
        )
