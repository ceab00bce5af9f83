"""Carries batches to their leaders: one Produce request after the other on each node's connection.

Order is the point. Requests to a node leave in the order in which batches were handed over, also while its
connection is still being opened; a request holds at most one batch of a partition.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from hapax.client.cluster import Cluster
from hapax.client.records import stamp
from hapax.core.client_producer_partition import Batch
from hapax.core.client_producer_verdicts import Verdict
from hapax.core.errors import ErrorCode
from hapax.core.types import NO_OFFSET, Offset, TimestampMs
from hapax.kafka.messages import ProduceRequest
from hapax.kafka.peer import Peer, PeerError, PeerUnsupported
from hapax.runtime import supervision

_NO_TOPIC_IDS = 12
"""Produce names topics by id from version 13 on."""
_VERSION_1 = 11
"""Above it, a Produce of a transaction adds its partitions by itself (transactions version 2)."""


class Outcomes(Protocol):
    """What the sender reports to: the producer machine's events."""

    def delivered(self, batch: Batch, offset: Offset, timestamp: TimestampMs) -> None: ...
    def refused(self, batch: Batch, code: int, reason: str) -> Verdict: ...
    def lost(self, batch: Batch, reason: str) -> None: ...
    def unsent(self, batch: Batch, reason: str) -> None: ...


class Payload(Protocol):
    """What `Batch.content` must be."""

    data: bytearray


class Sender:
    def __init__(self, cluster: Cluster, outcomes: Outcomes, *, transactional_id: str | None) -> None:
        self._cluster = cluster
        self._outcomes = outcomes
        self._transactional_id = transactional_id
        self.transaction_version = 2
        self._acks: int = cluster.options["acks"]
        self._timeout_ms: int = cluster.options["request.timeout.ms"]
        self._max_bytes: int = cluster.options["max.request.size"]
        self._waiting: dict[int, deque[list[Batch]]] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}

    def send(self, batches: Iterable[Batch]) -> None:
        """Sends now, or as soon as the leader's connection is open. Every batch gets exactly one outcome."""
        for node_id, requests in self._requests(batches).items():
            peer = self._cluster.open_peer(node_id) if node_id not in self._opening else None
            if peer is None:
                self._waiting.setdefault(node_id, deque()).extend(requests)
                if node_id not in self._opening:
                    self._opening[node_id] = supervision.once(self._open(node_id), "client-open", node_id)
                continue
            for request in requests:
                self._submit(peer, request)

    def close(self) -> None:
        for task in self._opening.values():
            task.cancel()

    def _requests(self, batches: Iterable[Batch]) -> dict[int, list[list[Batch]]]:
        """Per node the requests to send; the nth batch of a partition is in the nth request or a later one."""
        found: dict[int, list[list[Batch]]] = {}
        sizes: dict[tuple[int, int], int] = {}
        last: dict[tuple[int, Any], int] = {}
        for batch in batches:
            leader = self._cluster.leader(batch.partition)
            if leader is None or leader.node_id < 0:
                self._outcomes.unsent(batch, f"{batch.partition.topic}-{batch.partition.partition} has no leader")
                continue
            node_id = leader.node_id
            requests = found.setdefault(node_id, [])
            size = len(_data(batch))
            place = last.get((node_id, batch.partition), -1) + 1
            while place < len(requests) and sizes[node_id, place] + size > self._max_bytes:
                place += 1
            if place == len(requests):
                requests.append([])
                sizes[node_id, place] = 0
            requests[place].append(batch)
            sizes[node_id, place] += size
            last[node_id, batch.partition] = place
        return found

    async def _open(self, node_id: int) -> None:
        reason = ""
        peer: Peer | None = None
        try:
            peer = await self._cluster.peer(node_id)
        except PeerError as error:
            reason = str(error)
        finally:
            del self._opening[node_id]
        for request in self._waiting.pop(node_id, ()):
            if peer is not None:
                self._submit(peer, request)
            else:
                for batch in request:
                    self._outcomes.unsent(batch, reason)

    def _submit(self, peer: Peer, batches: list[Batch]) -> None:
        try:
            message, version, by_id = self._encode(peer, batches)
            answer = peer.submit(message, version=version)
        except PeerUnsupported as error:
            for batch in batches:
                self._outcomes.refused(batch, ErrorCode.UNSUPPORTED_VERSION, str(error))
            return
        except PeerError as error:
            self._cluster.refresh_soon()
            for batch in batches:
                self._outcomes.unsent(batch, str(error))
            return
        if self._acks == 0:
            for batch in batches:
                self._outcomes.delivered(batch, NO_OFFSET, TimestampMs(-1))
            return
        answer.add_done_callback(lambda done: self._answered(done, batches, by_id))

    def _encode(self, peer: Peer, batches: list[Batch]) -> tuple[Any, int, dict[Any, str]]:
        topics: dict[str, list[Batch]] = {}
        for batch in batches:
            topics.setdefault(batch.partition.topic, []).append(batch)
        transactional = self._transactional_id is not None
        ids = {name: self._cluster.topics[name].topic_id for name in topics}
        at_most = _NO_TOPIC_IDS if any(i.int == 0 for i in ids.values()) else None
        if transactional and self.transaction_version < 2:
            at_most = _VERSION_1
        version = peer.capabilities.pick(ProduceRequest, at_most=at_most)
        message = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=name,
                    topic_id=ids[name],
                    partition_data=[
                        ProduceRequest.TopicProduceData.PartitionProduceData(
                            index=batch.partition.partition,
                            records=stamp(_data(batch), batch.identity, batch.sequence, transactional),
                        )
                        for batch in of_topic
                    ],
                )
                for name, of_topic in topics.items()
            ],
        )
        return message, version, {topic_id: name for name, topic_id in ids.items()} if version > _NO_TOPIC_IDS else {}

    def _answered(self, done: asyncio.Future[Any], batches: list[Batch], by_id: dict[Any, str]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._cluster.refresh_soon()
            for batch in batches:
                self._outcomes.lost(batch, str(error))
            return
        answers = {}
        for topic in done.result().responses:
            name = by_id.get(topic.topic_id, topic.name)
            for partition in topic.partition_responses:
                answers[name, partition.index] = partition
        for batch in batches:
            answer = answers.get((batch.partition.topic, batch.partition.partition))
            if answer is None:
                self._outcomes.lost(batch, "the answer leaves the partition out")
            elif answer.error_code == 0:
                self._outcomes.delivered(batch, Offset(answer.base_offset), TimestampMs(answer.log_append_time_ms))
            else:
                reason = answer.error_message or ""
                if self._outcomes.refused(batch, answer.error_code, reason) is Verdict.RETRY:
                    self._cluster.refresh_soon()


def _data(batch: Batch) -> bytearray:
    payload: Payload = batch.content  # type: ignore[assignment]
    return payload.data
