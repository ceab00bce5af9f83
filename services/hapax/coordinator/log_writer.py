"""Appends to the shards' logs: few Produce requests for many shards, each shard's records in order and none twice.

Three rules make it safe:

* A log has **one request in flight**. Records that come meanwhile wait and leave as one batch (group commit). So no
  record overtakes another, and a refusal never leaves a gap that later records have already passed.
* A request with an **unknown outcome** (time-out, lost connection, any error that a leader may also answer after an
  append) is never sent again. The log is given up (`lost`): the shard fences its partition with a higher epoch, which
  shuts out requests of the old epoch that are still on their way, and loads the partition again. So a record is never
  doubled, never reordered, and never acted upon unless it is in the log.
* A leader that knows a higher epoch answers TRANSACTION_COORDINATOR_FENCED: the shard has another owner (`fenced`).

Requests to one broker share a connection, with at most `MAX_IN_FLIGHT` of them in flight. Logs of the same shard epoch
share a request, which carries one epoch for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hapax.codec.control import encode_control
from hapax.codec.internal_records import KeyValue, encode_batch
from hapax.coordinator.metrics import Counters
from hapax.core.control import Control, ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NO_SHARD_EPOCH, NodeId, PartitionIndex, RegistrationEpoch, ShardEpoch, TopicId
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.runtime.ports import Clock, Network, Task
from hapax.wire.internal_writes import (
    LIST_OFFSETS_VERSION,
    PRODUCE_VERSION,
    InternalBatch,
    encode_list_ends,
    encode_produce,
    proof,
)
from hapax.wire.messages import ListOffsetsRequest, ProduceRequest
from hapax.wire.nodes import connect_to
from hapax.wire.peer import Peer, PeerError

log = telemetry.logger("log-writer")

MAX_IN_FLIGHT: Final = 4
MAX_BATCH_BYTES: Final = 512 * 1024
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024

_REFUSALS: Final = frozenset({
    ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE,
})
"""Errors of the batch itself. The leader answers them before it appends anything, so the batch is certainly not stored.
"""


@dataclass(slots=True)
class Unit:
    """Records that are stored together or not at all. Exactly one of the callbacks is called, in log order. If the log
    is given up before, the log's `lost` or `fenced` is called instead."""

    records: Sequence[KeyValue]
    """Empty for a control batch."""
    stored: Callable[[int], None]
    """Called when the records are durable, with the offset of the first record. -1: the leader had them before (a
    repeated marker)."""
    refused: Callable[[ErrorCode, str], None]
    """Called when the records are certainly not stored."""
    producer_id: int = -1
    producer_epoch: int = -1
    control: Control | None = None
    size: int = 0
    timestamp_ms: int = -1
    """Of its batch in the log. Set when the batch is sent."""


class ShardLog:
    """One shard's partition of an internal topic, under one epoch. Made by `LogWriter.open`."""

    def __init__(
        self, writer: LogWriter, topic_id: TopicId, partition: PartitionIndex, epoch: ShardEpoch,
        lost: Callable[[str], None], fenced: Callable[[str], None],
    ) -> None:
        self.topic_id: Final = topic_id
        self.partition: Final = partition
        self.epoch: Final = epoch
        self.closed = False
        self.next_offset = 0
        """The end of the log after this writer's last append."""
        self._writer = writer
        self._lost = lost
        self._fenced = fenced
        self._queue: deque[Unit] = deque()
        self._sent: list[Unit] = []
        self._confirm_next: list[asyncio.Future[None]] = []
        self._confirm_sent: list[asyncio.Future[None]] = []

    def append(self, unit: Unit) -> None:
        """Sends the unit with the next request. The callbacks are called later, never from within this call."""
        if self.closed:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the shard is being loaded again")
        unit.size = 64 + sum(len(key) + len(value or b"") + 16 for key, value in unit.records)
        self._queue.append(unit)
        if not self._sent:
            self._writer.wake(self)

    def fence(self, node_id: NodeId, stored: Callable[[int], None]) -> None:
        """Appends the fence record of this log's epoch."""
        def refused(code: ErrorCode, reason: str) -> None:
            self.give_up(f"the fence was refused: {code.name} {reason}")

        self.append(Unit((), stored, refused, control=ShardFence(self.epoch, node_id)))

    async def confirm(self) -> None:
        """Returns once the partition's leader has confirmed, after this call, that no other owner has taken over.

        An append that is sent after the call and committed confirms it. Where no append waits to be sent, the leader is
        asked for the end of its log. A take-over begins with a fence record, so an unchanged end means that there was
        no take-over. The leader answers once it is certain that it led after the question came (rule 23). Where the end
        has moved for another reason (the leader writes a record to expire producers), a fence record of this epoch
        gives the answer. Raises Refusal where the shard was lost meanwhile, or the leader cannot say whether it leads.
        """
        if self.closed:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._confirm_next.append(waiter)
        if not self._sent:
            self._writer.wake(self)
        await waiter

    def close(self) -> None:
        """From now on nothing is sent and no callback is called. Records in flight may still be stored."""
        self.closed = True
        self._queue.clear()
        self._sent = []
        _refuse([*self._confirm_next, *self._confirm_sent], "the shard has moved")
        self._confirm_next, self._confirm_sent = [], []

    def give_up(self, reason: str) -> None:
        """Gives the log up: the outcome of the request in flight is unknown, or the leader cannot be reached."""
        if not self.closed:
            self.close()
            self._lost(reason)

    # --- called by the link ---------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self._queue and not self._confirm_next

    @property
    def only_confirms(self) -> bool:
        return not self._queue

    def take_batch(self, now_ms: int) -> bytearray:
        """Takes the next batch. Its units are in flight from now on."""
        queue = self._queue
        first = queue.popleft()
        self._sent = [first]
        self._confirm_sent, self._confirm_next = self._confirm_next, []
        first.timestamp_ms = now_ms
        if first.control is not None:
            return encode_control(first.control, now_ms)
        records = list(first.records)
        size = first.size
        while queue:
            following = queue[0]
            size += following.size
            if (
                following.control is not None or size > MAX_BATCH_BYTES
                or following.producer_id != first.producer_id or following.producer_epoch != first.producer_epoch
            ):
                break
            following.timestamp_ms = now_ms
            self._sent.append(queue.popleft())
            records += following.records
        return encode_batch(
            records, now_ms, producer_id=first.producer_id, producer_epoch=first.producer_epoch
        )

    def take_confirms(self) -> None:
        self._confirm_sent, self._confirm_next = self._confirm_next, []
        self._sent = [_CONFIRMING]

    def answered(self, code: int, base_offset: int, reason: str) -> None:
        """The leader's answer to the batch in flight."""
        if self.closed:
            return
        if code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            self.close()
            self._fenced(reason)
            return
        sent, self._sent = self._sent, []
        confirms, self._confirm_sent = self._confirm_sent, []
        if code == ErrorCode.NONE:
            offset = base_offset
            if base_offset < self.next_offset:
                offset = -1
                self._confirm_next += confirms  # nothing was appended: the leader answered from memory
            else:
                _resolve(confirms)
                count = sum(len(unit.records) or 1 for unit in sent)
                self.next_offset = base_offset + count
                counters = self._writer.counters
                counters.log_batches.value += 1
                counters.log_records.value += count
            for unit in sent:
                unit.stored(offset)
                offset += len(unit.records) if offset >= 0 else 0
                if self.closed:
                    return
        elif code in _REFUSALS:
            self._confirm_next += confirms  # a leader that was replaced refuses from memory, too
            for unit in sent:
                unit.refused(ErrorCode(code), reason)
                if self.closed:
                    return
        else:
            self._sent, self._confirm_sent = sent, confirms
            self.give_up(f"append answered {ErrorCode(code).name} {reason}")
            return
        if not self.idle:
            self._writer.wake(self)

    def end_answered(self, code: int, end_offset: int) -> None:
        """The leader's answer to the question where its log ends."""
        if self.closed:
            return
        confirms, self._confirm_sent = self._confirm_sent, []
        self._sent = []
        if code == ErrorCode.NONE and end_offset == self.next_offset:
            _resolve(confirms)
        elif code == ErrorCode.NONE:
            self.fence(self._writer.node_id, lambda offset: _resolve(confirms))
            self._confirm_next += confirms
        elif code == ErrorCode.OFFSET_NOT_AVAILABLE:
            _refuse(confirms, "the leader of the shard's partition cannot say whether it still leads")
        else:
            self._confirm_next += confirms
            self.give_up(f"the leader could not say where its log ends: {ErrorCode(code).name}")
            return
        if not self.idle:
            self._writer.wake(self)


_CONFIRMING: Final = Unit((), lambda offset: None, lambda code, reason: None)
"""Occupies a log's place in flight while the leader is asked for the end of the log."""


def _resolve(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _refuse(waiters: list[asyncio.Future[None]], reason: str) -> None:
    """NOT_COORDINATOR makes clients look for the coordinator again. If this node was cut off, they find another one."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(Refusal(ErrorCode.NOT_COORDINATOR, reason))


class LogWriter:
    """Writes all logs of a process. `registration` and `session` prove to the brokers that it is a registered node
    (rule 17)."""

    def __init__(
        self, network: Network, clock: Clock, view: ClusterView, node_id: NodeId,
        registration: RegistrationEpoch, session: bytes, counters: Counters,
        on_fault: Callable[[BaseException], None], request_timeout_ms: int = 30_000,
    ) -> None:
        """`on_fault` is called when a replay failed. That is a bug in this program, so the process must end."""
        self.node_id: Final = node_id
        self.network: Final = network
        self.clock: Final = clock
        self.request_timeout_ms: Final = request_timeout_ms
        self.counters: Final = counters
        self.on_fault: Final = on_fault
        self._view = view
        self._proof = (registration, session)
        self._links: dict[tuple[NodeId, RegistrationEpoch], _Link] = {}
        self._loop = asyncio.get_running_loop()

    def open(
        self, topic_id: TopicId, partition: PartitionIndex, epoch: ShardEpoch, *,
        lost: Callable[[str], None], fenced: Callable[[str], None],
    ) -> ShardLog:
        """Opens a log under an epoch that no other process has. `lost` or `fenced` is called at most once, with the
        reason.
        """
        return ShardLog(self, topic_id, partition, epoch, lost, fenced)

    def proof(self, epoch: ShardEpoch) -> bytes:
        return proof(*self._proof, epoch)

    def name_of(self, topic_id: TopicId) -> str | None:
        topic = self._view.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def wake(self, shard_log: ShardLog) -> None:
        """Called when the log has something to send and nothing in flight."""
        leader = self._view.leader_of(shard_log.topic_id, shard_log.partition)
        if leader is None:
            self._loop.call_soon(shard_log.give_up, "its partition has no leader")
            return
        key = (leader.node_id, leader.registration)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = _Link(self, leader, lambda: self._links.pop(key, None))
        link.want(shard_log)

    async def close(self) -> None:
        for link in list(self._links.values()):
            await link.close()


class _Link:
    """The connection to one registration of a broker, and the logs that wait to be sent over it."""

    def __init__(self, writer: LogWriter, node: NodeView, forget: Callable[[], object]) -> None:
        self._writer = writer
        self._node = node
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._peer: Peer | None = None
        self._connecting: Task | None = None
        self._ready: dict[ShardLog, None] = {}
        self._scheduled = False
        self._in_flight = 0

    def want(self, shard_log: ShardLog) -> None:
        self._ready[shard_log] = None
        self._schedule()

    async def close(self) -> None:
        await supervision.end(self._connecting)
        if self._peer is not None:
            self._peer.close("the coordinator ends")

    def _schedule(self) -> None:
        """Records that are appended in this turn of the event loop are sent together."""
        if not self._scheduled and self._in_flight < MAX_IN_FLIGHT:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if not self._ready:
            return
        if self._peer is None:
            if self._connecting is None:
                self._connecting = supervision.vital(self._connect(), "log-writer-connect", self._writer.on_fault)
            return
        while self._ready and self._in_flight < MAX_IN_FLIGHT and self._peer is not None:
            self._send()

    async def _connect(self) -> None:
        node = self._node
        try:
            peer = await connect_to(
                self._writer.network, node, client_id=f"hapax-{self._writer.node_id}-log",
                request_timeout_ms=self._writer.request_timeout_ms,
            )
        except PeerError as error:
            self._connecting = None
            self._give_up_all(f"no connection to its leader: {error}")
            return
        self._connecting = None
        peer.on_close = self._closed
        self._peer = peer
        self._flush()

    def _closed(self, reason: str) -> None:
        log.info("connection to a log's leader ended", node=self._node.node_id, reason=reason)
        self._peer = None
        self._schedule()
        if not self._ready:
            self._forget()

    def _give_up_all(self, reason: str) -> None:
        ready, self._ready = self._ready, {}
        self._forget()
        for shard_log in ready:
            shard_log.give_up(reason)

    def _send(self) -> None:
        """Sends one request with the batches of all ready logs of one epoch, and one for the logs that only ask for
        their end."""
        now_ms = self._writer.clock.now_ms()
        batches: list[tuple[ShardLog, bytearray]] = []
        asking: list[ShardLog] = []
        size = 0
        for shard_log in list(self._ready):
            if shard_log.closed or shard_log.idle:
                del self._ready[shard_log]
            elif shard_log.only_confirms:
                del self._ready[shard_log]
                asking.append(shard_log)
                shard_log.take_confirms()
            elif not batches or (shard_log.epoch == batches[0][0].epoch and size < MAX_REQUEST_BYTES):
                del self._ready[shard_log]
                batch = shard_log.take_batch(now_ms)
                size += len(batch)
                batches.append((shard_log, batch))
        if batches:
            self._produce(batches)
        if asking:
            self._ask_for_ends(asking)

    def _produce(self, batches: Sequence[tuple[ShardLog, bytearray]]) -> None:
        body = encode_produce(
            [InternalBatch(shard_log.topic_id, shard_log.partition, batch) for shard_log, batch in batches],
            self._writer.request_timeout_ms, self._writer.proof(batches[0][0].epoch),
        )
        logs = {(shard_log.topic_id, shard_log.partition): shard_log for shard_log, _ in batches}

        def answered(response: asyncio.Future[Any]) -> None:
            error = response.exception()
            if error is not None:
                for shard_log in logs.values():
                    shard_log.give_up(f"append without an answer: {error}")
            else:
                for topic in response.result().responses:
                    topic_id = TopicId(topic.topic_id.bytes)
                    for partition in topic.partition_responses:
                        answered_log = logs.pop((topic_id, PartitionIndex(partition.index)))
                        answered_log.answered(
                            partition.error_code, partition.base_offset, partition.error_message or "")
                for shard_log in logs.values():
                    shard_log.give_up("append left out of the answer")

        self._submit(ProduceRequest, PRODUCE_VERSION, body, answered, list(logs.values()))

    def _ask_for_ends(self, logs: Sequence[ShardLog]) -> None:
        """Sends one ListOffsets for the ends of the logs."""
        asked: dict[str, list[PartitionIndex]] = {}
        waiting: dict[tuple[str, PartitionIndex], ShardLog] = {}
        for shard_log in logs:
            name = self._writer.name_of(shard_log.topic_id)
            if name is None:
                shard_log.give_up("its topic is gone")
                continue
            asked.setdefault(name, []).append(shard_log.partition)
            waiting[name, shard_log.partition] = shard_log

        def answered(response: asyncio.Future[Any]) -> None:
            error = response.exception()
            if error is None:
                for topic in response.result().topics:
                    for partition in topic.partitions:
                        shard_log = waiting.pop((topic.name, PartitionIndex(partition.partition_index)))
                        shard_log.end_answered(partition.error_code, partition.offset)
            for shard_log in waiting.values():
                shard_log.give_up(f"no word on where the log ends: {error}")

        body = encode_list_ends(asked, self._writer.proof(NO_SHARD_EPOCH))
        self._submit(ListOffsetsRequest, LIST_OFFSETS_VERSION, [body], answered, list(waiting.values()))

    def _submit(
        self, kind: Any, version: int, body: Sequence[bytes | bytearray],
        answered: Callable[[asyncio.Future[Any]], None], logs: Sequence[ShardLog],
    ) -> None:
        assert self._peer is not None
        try:
            response = self._peer.submit_raw(kind, version, body)
        except PeerError as error:
            for shard_log in logs:
                shard_log.give_up(f"append could not leave: {error}")
            return
        self._in_flight += 1

        def done(response: asyncio.Future[Any]) -> None:
            self._in_flight -= 1
            try:
                answered(response)
            except BaseException as error:
                self._writer.on_fault(error)
                raise
            self._schedule()

        response.add_done_callback(done)
