"""Carries batches to their leaders: one Produce request after another on each node's connection.

This module keeps the order. Requests to a node leave in the order in which the batches were handed over, even while the
connection is still being opened. A request holds at most one batch of each partition.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from hapax.client.cluster import ClusterClient
from hapax.client.errors import AuthenticationError
from hapax.client.records import stamp
from hapax.core.errors import ErrorCode
from hapax.core.partition.values import Condition
from hapax.core.producer.error_kinds import ErrorKind
from hapax.core.producer.partition_queue import Batch
from hapax.core.types import NO_OFFSET, Offset, TimestampMs
from hapax.runtime import supervision
from hapax.runtime.ports import FrameLimits
from hapax.wire.conditions import CONDITION_TAG, encode_conditions
from hapax.wire.conditions import FEATURE as CONDITIONS
from hapax.wire.messages import ProduceRequest
from hapax.wire.peer import Peer, PeerError, PeerUnsupported
from hapax.wire.write_pass import WRITE_PASS_TAG

_NO_TOPIC_IDS = 12
"""The last version of Produce that names topics by name. Version 13 names them by id."""
_SEND_BUFFER_BYTES = FrameLimits().write_high_water
"""With acks=0: a connection with this many unsent bytes takes no more requests, so that the bytes it holds stay within
buffer.memory."""
_FLEXIBLE = 9
"""The first version with tagged fields."""
_NO_CONDITIONS = "conditional appends need a Hapax broker of this version or later"
_VERSION_1 = 11
"""From the next version on, a Produce request of a transaction adds its partitions by itself (transactions version
2)."""


class Outcomes(Protocol):
    """The producer machine's events, to which the sender reports."""

    def together(self) -> contextlib.AbstractContextManager[None]: ...
    def delivered(self, batch: Batch, offset: Offset, timestamp: TimestampMs) -> None: ...
    def refused(self, batch: Batch, code: int, reason: str) -> ErrorKind: ...
    def lost(self, batch: Batch, reason: str) -> None: ...
    def unsent(self, batch: Batch, reason: str) -> None: ...


class Payload(Protocol):
    """The type that `Batch.content` must have."""

    data: bytearray | memoryview
    condition: Condition | None


class Sender:
    def __init__(self, cluster: ClusterClient, outcomes: Outcomes, *, transactional_id: str | None) -> None:
        self._cluster = cluster
        self._outcomes = outcomes
        self._transactional_id = transactional_id
        self.transaction_version = 2
        self.write_passes: dict[tuple[str, int], bytes] = {}
        """(topic, partition) -> what goes with its batches, so that their leader need not ask the coordinator."""
        self._acks: int = cluster.options["acks"]
        self._timeout_ms: int = cluster.options["request.timeout.ms"]
        self._max_bytes: int = cluster.options["max.request.size"]
        self._waiting: dict[int, deque[list[Batch]]] = {}
        """By node, in the order in which they were handed over."""
        self._carried: dict[int, asyncio.Task[None] | None] = {}
        """Nodes whose waiting requests are being sent: by a task, or (None) within a call of `send`."""

    def send(self, batches: Iterable[Batch]) -> None:
        """Sends now, or as soon as the leader's connection is open. Every batch gets exactly one outcome."""
        for node_id, requests in self._requests(batches).items():
            self._waiting.setdefault(node_id, deque()).extend(requests)
            if node_id in self._carried:
                continue  # called by an outcome within this class: the new batch stays behind the waiting ones
            peer = self._cluster.open_peer(node_id)
            if peer is None or not self._hand_over(node_id, peer):
                self._carried[node_id] = supervision.once(self._carry(node_id), "client-send", node_id)

    def close(self) -> None:
        for task in self._carried.values():
            if task is not None:
                task.cancel()
        for node_id in list(self._waiting):
            self._give_back(node_id, "the producer is closed")

    def _give_back(self, node_id: int, reason: str) -> None:
        """The requests that wait for the node did not leave."""
        for request in self._waiting.pop(node_id, ()):
            for batch in request:
                self._outcomes.unsent(batch, reason)

    def _requests(self, batches: Iterable[Batch]) -> dict[int, list[list[Batch]]]:
        """The requests to send to each node. The nth batch of a partition is in the nth request or a later one."""
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

    async def _carry(self, node_id: int) -> None:
        """Sends the node's waiting requests once its connection is open, as the send buffer has room for them."""
        reason = "the producer is closed"
        try:
            while self._waiting.get(node_id):
                peer = await self._cluster.peer(node_id)
                if not self._hand_over(node_id, peer):
                    with contextlib.suppress(PeerError):  # on an error, another connection is opened
                        await peer.drained()
        except PeerError as error:
            reason = str(error)
        except AuthenticationError as error:
            reason = error.message
            for request in self._waiting.pop(node_id, ()):
                for batch in request:
                    self._outcomes.refused(batch, error.code, reason)
        except Exception as error:
            reason = f"the client failed: {error!r}"
            raise
        finally:
            self._carried.pop(node_id, None)  # first: a batch that an outcome sends needs a new carrier
            self._give_back(node_id, reason)

    def _hand_over(self, node_id: int, peer: Peer) -> bool:
        """Submits the node's waiting requests in order. False: the connection's send buffer is full. That counts only
        with acks=0, because otherwise the machine's window bounds the unanswered requests."""
        waiting = self._waiting[node_id]
        carrier = self._carried.get(node_id)
        self._carried[node_id] = carrier
        try:
            while waiting:
                if self._acks == 0 and not peer.closed and peer.unsent_bytes() > _SEND_BUFFER_BYTES:
                    return False
                self._submit(peer, waiting.popleft())
            return True
        finally:
            if carrier is None:
                del self._carried[node_id]

    def _submit(self, peer: Peer, batches: list[Batch]) -> None:
        gone = [batch for batch in batches if batch.partition.topic not in self._cluster.topics]
        if gone:  # deleted since the batches were handed over
            batches = [batch for batch in batches if batch not in gone]
            for batch in gone:
                self._outcomes.unsent(batch, f"topic {batch.partition.topic} is not known any more")
            if not batches:
                return
        if not peer.capabilities.features.get(CONDITIONS):
            conditional = [batch for batch in batches if _content(batch).condition is not None]
            if conditional:  # the node would ignore the condition; batches without one are not concerned
                batches = [batch for batch in batches if batch not in conditional]
                for batch in conditional:
                    self._outcomes.refused(batch, ErrorCode.UNSUPPORTED_VERSION, _NO_CONDITIONS)
                if not batches:
                    return
        try:
            message, version, by_id = self._encode(peer, batches)
            tags = self._tags(batches, peer, version)
            answer = peer.submit(message, version=version, tags=tags)
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

    def _tags(self, batches: list[Batch], peer: Peer, version: int) -> dict[int, bytes] | None:
        """Raises PeerUnsupported: the request cannot carry a condition."""
        tags = {}
        if self.write_passes and version > _VERSION_1:
            for batch in batches:  # a request holds one pass
                found = self.write_passes.get((batch.partition.topic, batch.partition.partition))
                if found is not None:
                    tags[WRITE_PASS_TAG] = found
                    break
        conditions = {}
        for place, batch in enumerate(_in_order(batches)):
            if (condition := _content(batch).condition) is not None:
                conditions[place] = condition
        if conditions:
            if version < _FLEXIBLE:
                raise PeerUnsupported(_NO_CONDITIONS)
            tags[CONDITION_TAG] = encode_conditions(conditions)
        return tags or None

    def _encode(self, peer: Peer, batches: list[Batch]) -> tuple[Any, int, dict[Any, str]]:
        topics = _by_topic(batches)
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
        error = PeerError("the answer is not waited for any more") if done.cancelled() else done.exception()
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
        with self._outcomes.together():
            for batch in batches:
                answer = answers.get((batch.partition.topic, batch.partition.partition))
                if answer is None:
                    self._outcomes.lost(batch, "the answer leaves the partition out")
                elif answer.error_code == 0:
                    self.write_passes.pop((batch.partition.topic, batch.partition.partition), None)
                    offset, time = Offset(answer.base_offset), TimestampMs(answer.log_append_time_ms)
                    self._outcomes.delivered(batch, offset, time)
                else:
                    reason = answer.error_message or ""
                    if self._outcomes.refused(batch, answer.error_code, reason) is ErrorKind.RETRY:
                        self._cluster.refresh_soon()


def _by_topic(batches: list[Batch]) -> dict[str, list[Batch]]:
    topics: dict[str, list[Batch]] = {}
    for batch in batches:
        topics.setdefault(batch.partition.topic, []).append(batch)
    return topics


def _in_order(batches: list[Batch]) -> list[Batch]:
    """As they stand in a request."""
    return batches if len(batches) == 1 else [batch for of_topic in _by_topic(batches).values() for batch in of_topic]


def _content(batch: Batch) -> Payload:
    payload: Payload = batch.content  # type: ignore[assignment]
    return payload


def _data(batch: Batch) -> bytearray | memoryview:
    return _content(batch).data
