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
from hapax.core.types import NodeId, PartitionIndex, RegistrationEpoch
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Clock, Network, Randomness, Task
from hapax.wire.internal_writes import PRODUCE_VERSION, InternalBatch, encode_produce, proof
from hapax.wire.messages import ProduceRequest
from hapax.wire.metrics import EVENTS, EVENTS_DROPPED
from hapax.wire.peer import Peer, PeerError

log = telemetry.logger("events")

MAX_QUEUED: Final = 1000
_BATCH: Final = 100
_TIMEOUT_MS: Final = 5_000
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0


def encode_event(kind: str, at_ms: int, node_id: NodeId, fields: Mapping[str, object]) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    value = {"v": 1, "event": kind, "at_ms": at_ms, "node_id": node_id, **fields}
    return kind.encode(), json.dumps(value, separators=(",", ":"), default=str).encode()


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
        self._peer: Peer | None = None

    def record(self, kind: str, **fields: object) -> None:
        record = encode_event(kind, self._clock.now_ms(), self._node_id, fields)
        log.info(kind, **fields)
        self._counted.labels(kind).value += 1
        if len(self._queue) >= MAX_QUEUED:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(record)
        if self._writer is None:
            self._writer = supervision.keep(self._write, "events", self._random)
            self._writer.add_done_callback(self._ended)

    async def close(self) -> None:
        """Waits up to 0.5 s for queued events to be written."""
        writer = self._writer
        if writer is not None:
            await asyncio.wait([writer], timeout=0.5)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        if self._peer is not None:
            self._peer.close("the node stops")

    def _ended(self, writer: Task) -> None:
        self._writer = None

    async def _write(self) -> None:
        delay = _RETRY_FIRST_S
        while self._queue:
            batch = list(self._queue)[:_BATCH]
            dropped = self.dropped
            failure = await self._send(batch)
            if not failure:
                for _ in range(max(0, len(batch) - (self.dropped - dropped))):
                    self._queue.popleft()
                delay = _RETRY_FIRST_S
                continue
            log.debug("events not written yet", reason=failure)
            await asyncio.sleep(delay * (0.5 + self._random.random()))
            delay = min(2 * delay, _RETRY_MAX_S)

    async def _send(self, records: list[tuple[bytes, bytes]]) -> str:
        """Returns "" once the records are durable, otherwise the reason. A lost answer may store records twice."""
        topic = self._view.topic(EVENTS_TOPIC)
        leader = None if topic is None else self._view.leader_of(topic.topic_id, 0)
        if topic is None or leader is None:
            return "the events topic has no leader"
        batch = InternalBatch(topic.topic_id, PartitionIndex(0), encode_batch(records, self._clock.now_ms()))
        body = encode_produce([batch], _TIMEOUT_MS, self._proof)
        address = f"{leader.host}:{leader.port}"
        try:
            if self._peer is None or self._peer.closed or self._peer.address != address:
                if self._peer is not None:
                    self._peer.close("the leader has changed")
                self._peer = await Peer.connect(
                    self._network, leader.host, leader.port, client_id=f"hapax-{self._node_id}-events",
                    request_timeout_ms=_TIMEOUT_MS,
                )
            response: Any = await self._peer.submit_raw(ProduceRequest, PRODUCE_VERSION, body)
        except PeerError as error:
            return str(error)
        answer = response.responses[0].partition_responses[0]
        return f"error {answer.error_code} {answer.error_message or ''}" if answer.error_code else ""
