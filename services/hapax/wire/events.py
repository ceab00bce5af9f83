"""Noteworthy events, as JSON records of the internal topic `__hapax_events`.

Recording never waits and never fails: a background task writes the events from a bounded queue. While the topic cannot
be written and the queue is full, the oldest events are dropped and counted. Events serve the analysis of incidents; no
decision depends on them.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from hapax.codec.internal_records import encode_batch
from hapax.codec.metadata import EVENTS_TOPIC
from hapax.core.errors import ErrorCode
from hapax.core.types import NodeId, PartitionIndex, RegistrationEpoch
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Clock, Network, Randomness, Task
from hapax.wire.internal_writes import PRODUCE_VERSION, InternalBatch, encode_produce, proof
from hapax.wire.messages import ProduceRequest
from hapax.wire.metrics import EVENTS, EVENTS_DROPPED
from hapax.wire.nodes import connect_to
from hapax.wire.peer import Peer, PeerError

log = telemetry.logger("events")

MAX_QUEUED: Final = 1000
_BATCH: Final = 100
_BATCH_BYTES: Final = 256 << 10
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_TIMEOUT_MS: Final = 5_000
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0


def encode_event(kind: str, at_ms: int, node_id: NodeId, fields: Mapping[str, object]) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    value = {"v": 1, "event": kind, "at_ms": at_ms, "node_id": node_id, **fields}
    return kind.encode(), json.dumps(value, separators=(",", ":"), default=str).encode()


class _Refused(Exception):
    """The topic does not take the records now."""


class _TooLarge(_Refused):
    """It never takes so large a batch."""


class EventLog:
    """`events.record("producer_fenced", transactional_id=...)`. Records have the kind as key, and as value a JSON
    object with `v`, `event`, `at_ms`, `node_id` and the event's own fields."""

    def __init__(
        self, network: Network, clock: Clock, view: ClusterView, random: Randomness, node_id: NodeId,
        registration: RegistrationEpoch, session: bytes, metrics: telemetry.Metrics | None = None,
    ) -> None:
        metrics = metrics or telemetry.Metrics()
        self.dropped = 0
        self._counted = metrics.counters(EVENTS)
        metrics.observe(EVENTS_DROPPED, lambda: self.dropped)
        self._network = network
        self._clock = clock
        self._view = view
        self._random = random
        self._node_id = node_id
        self._proof = proof(registration, session)
        self._queue: deque[tuple[bytes, bytes]] = deque()
        self._writer: Task | None = None
        self._closed = False
        self._peer: Peer | None = None

    def record(self, kind: str, **fields: object) -> None:
        record = encode_event(kind, self._clock.now_ms(), self._node_id, fields)
        log.info(kind, **fields)
        self._counted.labels(kind).value += 1
        if self._closed:
            return
        if len(self._queue) >= MAX_QUEUED:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(record)
        if self._writer is None or self._writer.done():
            self._writer = supervision.keep(self._write, "events", self._random)

    async def close(self) -> None:
        """Waits up to 0.5 s for queued events to be written. Later events are only logged."""
        self._closed = True
        writer = self._writer
        if writer is not None:
            await asyncio.wait([writer], timeout=0.5)
            await supervision.end(writer)
        if self._peer is not None:
            self._peer.close("the node stops")

    async def _write(self) -> None:
        delay, most = _RETRY_FIRST_S, _BATCH
        while self._queue:
            batch = self._next_batch(most)
            dropped = self.dropped
            try:
                await self._send(batch)
            except _TooLarge:
                most = max(1, len(batch) // 2)
                if len(batch) == 1 and self.dropped == dropped:  # the topic never takes it: the others go on
                    self._queue.popleft()
                    self.dropped += 1
                    log.warning("an event was dropped: its record is too large for the topic", bytes=len(batch[0][1]))
            except (PeerError, _Refused) as failure:
                log.debug("events not written yet", reason=failure)
                await asyncio.sleep(delay * (0.5 + self._random.random()))
                delay = min(2 * delay, _RETRY_MAX_S)
            else:
                for _ in range(max(0, len(batch) - (self.dropped - dropped))):
                    self._queue.popleft()
                delay, most = _RETRY_FIRST_S, _BATCH

    def _next_batch(self, most: int) -> list[tuple[bytes, bytes]]:
        """The oldest records: at most this many, and `_BATCH_BYTES` unless the first one alone is larger."""
        batch: list[tuple[bytes, bytes]] = []
        size = 0
        for record in self._queue:
            size += len(record[1])
            if batch and (len(batch) == most or size > _BATCH_BYTES):
                break
            batch.append(record)
        return batch

    async def _send(self, records: list[tuple[bytes, bytes]]) -> None:
        """Returns once the records are durable. A lost answer may store records twice. Raises PeerError,
        _Refused."""
        topic = self._view.topic(EVENTS_TOPIC)
        leader = None if topic is None else self._view.leader_of(topic.topic_id, 0)
        if topic is None or leader is None:
            raise _Refused("the events topic has no leader")
        batch = InternalBatch(topic.topic_id, PartitionIndex(0), encode_batch(records, self._clock.now_ms()))
        body = encode_produce([batch], _TIMEOUT_MS, self._proof)
        address = f"{leader.host}:{leader.port}"
        if self._peer is None or self._peer.closed or self._peer.address != address:
            if self._peer is not None:
                self._peer.close("the leader has changed")
            self._peer = await connect_to(
                self._network, leader, client_id=f"hapax-{self._node_id}-events",
                request_timeout_ms=_TIMEOUT_MS,
            )
        response: Any = await self._peer.submit_raw(ProduceRequest, PRODUCE_VERSION, body)
        answer = response.responses[0].partition_responses[0]
        if answer.error_code:
            refused = _TooLarge if answer.error_code in _TOO_LARGE else _Refused
            raise refused(f"error {answer.error_code} {answer.error_message or ''}")
