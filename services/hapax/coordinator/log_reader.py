"""Reads a shard's log from its start through the fence of the shard's new owner.

Shards that load at the same time share connections. The last one to finish closes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import UUID

from hapax.codec.batch import check_batch, iterate_batches
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode
from hapax.core.types import NodeId, PartitionIndex, RegistrationEpoch, TopicId
from hapax.runtime import supervision
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.runtime.ports import Network
from hapax.wire.internal_writes import proof
from hapax.wire.messages import FetchRequest, set_unknown_tag
from hapax.wire.nodes import connect_to
from hapax.wire.peer import INTERNAL_WRITE_TAG, Peer, PeerError

FETCH_BYTES: Final = 4 * 1024 * 1024
FETCH_WAIT_MS: Final = 500
FETCH_VERSION: Final = 13


class LogUnreadable(Exception):
    """The log cannot be read now: its leader is away, has moved or sent an invalid answer. Try again."""


class LogReader:
    def __init__(self, network: Network, view: ClusterView, node_id: NodeId, request_timeout_ms: int = 30_000) -> None:
        self._network = network
        self._view = view
        self._node_id = node_id
        self._client_id = f"hapax-{node_id}-load"
        self._request_timeout_ms = request_timeout_ms
        self._peers: dict[tuple[NodeId, RegistrationEpoch], asyncio.Future[Peer]] = {}
        self._users: dict[tuple[NodeId, RegistrationEpoch], int] = {}

    async def read(
        self, topic_id: TopicId, partition: PartitionIndex, through: int
    ) -> AsyncIterator[tuple[bytes, int, BatchHeader]]:
        """Yields every batch from the start of the log to the one that holds offset `through`: (buffer, position,
        header).

        Raises LogUnreadable.
        """
        leader = self._view.leader_of(topic_id, partition)
        if leader is None:
            raise LogUnreadable("the partition has no leader")
        key = (leader.node_id, leader.registration)
        self._users[key] = self._users.get(key, 0) + 1
        try:
            peer = await self._peer(leader)
            offset = 0
            while offset <= through:
                asked = offset
                data, start = await self._fetch(peer, topic_id, partition, asked)
                if start is not None:
                    offset = start
                    continue
                for position, header in iterate_batches(data):
                    if header.next_offset <= offset:
                        continue
                    check_batch(data, header, position)
                    yield data, position, header
                    offset = header.next_offset
                if data and offset <= asked:
                    raise LogUnreadable(f"the answer at offset {asked} holds no complete batch")
        except PeerError as error:
            self._peers.pop(key, None)
            raise LogUnreadable(str(error)) from error
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                opened = self._peers.pop(key, None)
                if opened is not None and opened.done() and opened.exception() is None:
                    opened.result().close("the load is done")

    async def _peer(self, leader: NodeView) -> Peer:
        key = (leader.node_id, leader.registration)
        opened = self._peers.get(key)
        if opened is None:
            opened = self._peers[key] = supervision.once(connect_to(
                self._network, leader, client_id=self._client_id,
                request_timeout_ms=self._request_timeout_ms,
            ), "log-reader-connect", expected=(PeerError,))
        return await asyncio.shield(opened)

    async def _fetch(
        self, peer: Peer, topic_id: TopicId, partition: PartitionIndex, offset: int
    ) -> tuple[bytes, int | None]:
        """Returns record bytes, or the start offset of the log where `offset` is before it."""
        topic = FetchRequest.FetchTopic
        request = FetchRequest(
            replica_id=-1, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, isolation_level=0,
            session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
            topics=[topic(topic_id=UUID(bytes=topic_id), partitions=[topic.FetchPartition(
                partition=partition, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
                log_start_offset=-1, partition_max_bytes=FETCH_BYTES,
            )])],
        )
        if (me := self._view.node(self._node_id)) is not None:
            set_unknown_tag(request, INTERNAL_WRITE_TAG, proof(me.registration, me.session))
        response: Any = await peer.call(request, version=FETCH_VERSION)
        if response.error_code or not response.responses:
            raise LogUnreadable(f"Fetch answered {ErrorCode(response.error_code).name}")
        answer = response.responses[0].partitions[0]
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and answer.log_start_offset > offset:
            return b"", answer.log_start_offset
        if answer.error_code:
            raise LogUnreadable(f"Fetch of offset {offset} answered {ErrorCode(answer.error_code).name}")
        return bytes(answer.records or b""), None
