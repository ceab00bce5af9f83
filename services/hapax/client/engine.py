"""Runs a producer: carries out the machine's effects, and passes events to the machine.

Every event ends in `pump`, which carries out the machine's effects until there are none. One timer wakes the machine
for deadlines and pauses; another one closes batches after linger.ms.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hapax.client.accumulator import Accumulator, OpenBatch
from hapax.client.cluster import ClusterClient
from hapax.client.coordination import Coordination
from hapax.client.errors import ConditionFailedError, HapaxError, WrongState, from_trouble
from hapax.client.metrics import BUFFERED_BYTES, ProducerCounts
from hapax.client.partitioner import Sticky
from hapax.client.records import DeliveryReport, Header
from hapax.client.sender import Sender
from hapax.client.settings import COMPRESSION
from hapax.client.tokens import CommitToken, TokenConflictError, TokenOutcome, end_with_token
from hapax.core.errors import ErrorCode, error_name
from hapax.core.partition.values import Condition
from hapax.core.producer.error_kinds import ErrorKind
from hapax.core.producer.machine import ClientProducer
from hapax.core.producer.partition_queue import Batch, Identity, advance
from hapax.core.producer.states import (
    Delivered,
    Effect,
    Ended,
    Failed,
    IllegalTransition,
    RequestAddPartitions,
    RequestEndTransaction,
    RequestProducerId,
    SendBatch,
    State,
    Trouble,
)
from hapax.core.types import Millis, Offset, TimestampMs, TopicPartition
from hapax.runtime import supervision
from hapax.runtime.metrics import Metrics

log = logging.getLogger("hapax.client")


class Committed(NamedTuple):
    """`already`: this token or a newer one was committed before, and the records written now are aborted. `records`:
    the number of records stored with the token; -1 without a token."""

    already: bool = False
    records: int = -1


class Engine:
    def __init__(
        self, cluster: ClusterClient, machine: ClientProducer, transactional_id: str | None, *,
        owns_cluster: bool = True,
    ) -> None:
        """`owns_cluster`: whether closing the engine also closes the cluster client."""
        options = cluster.options
        self.cluster = cluster
        self._owns_cluster = owns_cluster
        self.machine = machine
        self.sticky = Sticky(cluster.ports.random)
        self.accumulator = Accumulator(
            batch_size=options["batch.size"],
            compression=COMPRESSION[options["compression.type"]],
            memory=options["buffer.memory"],
        )
        self.sender = Sender(cluster, self, transactional_id=transactional_id)
        self.coordination = Coordination(cluster, machine, transactional_id)
        self.ready: asyncio.Future[None] | None = None
        """Resolves when the producer is initialised; None if no caller waits for it."""
        self.outcome: asyncio.Future[Committed] | None = None
        """Resolves when the transaction that is being ended has ended. Kept until a caller has learnt it or the next
        transaction begins, because the caller that waited may have been cancelled or may have run out of time."""
        self.committing = False
        """Whether `outcome` is a commit's, or else an abort's."""
        self.token: CommitToken | None = None
        """The token of the running commit."""
        self.conflict: TokenConflictError | None = None
        """Why the token of the open transaction's commit was refused."""
        self.metrics = Metrics()
        self.counts = ProducerCounts(self.metrics)
        self.metrics.observe(BUFFERED_BYTES, lambda: options["buffer.memory"] - self.accumulator.room_left)
        self.failure: HapaxError | None = None
        """The first failed delivery that no call has raised yet."""
        self.unreported: HapaxError | None = None
        """As `failure`, of records whose failure no future tells."""
        self.closed = False
        self._id = transactional_id
        self._linger_ms: int = options["linger.ms"]
        self._delivery_ms: int = options["delivery.timeout.ms"]
        self._committed = Committed()
        self._tasks: dict[asyncio.Task[None], None] = {}  # ordered, so that the simulator repeats histories exactly
        self._enqueued = 0
        self._unsettled: OrderedDict[Batch, int] = OrderedDict()
        """Each with its number, in the order in which they were enqueued."""
        self._flushers: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Each with the number of the last batch that it waits for."""
        self._pumping = self._again = False
        self._in_bulk = False
        """Whole batches of several partitions were handed over at once."""
        self._dispatching: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    async def stop(self) -> None:
        self.closed = True
        for timer in (self._timer, self._dispatching):
            if timer is not None:
                timer.cancel()
        self.sender.close()
        for task in list(self._tasks):
            task.cancel()
        self._settle_all("the producer is closed")
        if self.leaders_moved in self.cluster.listeners:
            self.cluster.listeners.remove(self.leaders_moved)
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            if self._owns_cluster:
                await self.cluster.close()

    def error(self) -> HapaxError:
        """The reason why the machine refuses a call."""
        if self.conflict is not None and self.machine.state is State.ABORTABLE_ERROR:
            return self.conflict
        trouble = self.machine.trouble
        if trouble is None:
            return WrongState(f"not possible in state {self.machine.state.name}")
        return from_trouble(trouble)

    def _settle_all(self, why: str) -> None:
        """No more effects are carried out, so everything that callers wait for ends with an error now."""
        self.accumulator.close_waiting(WrongState(why))
        self.machine.stop()
        for effect in self.machine.poll(Millis(self.cluster.now())):
            if isinstance(effect, Failed):
                self.settle(_content(effect.batch), WrongState(why, maybe_written=effect.maybe_written))
            elif isinstance(effect, Delivered):
                self._report(effect)
        self.drop_open(WrongState(why))
        for waiting in (self.outcome, self.ready):
            if waiting is not None and not waiting.done():
                waiting.set_exception(WrongState(why))
                waiting.exception()
        self._unsettled.clear()
        self._wake_flushers()

    # --- carrying out -----------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Carries out the machine's effects until there are none. May be called recursively."""
        if self._pumping or self.closed:
            self._again = True
            return
        self._pumping = True
        try:
            while True:
                self._again = False
                if self.accumulator.open:
                    self._close_due()
                effects = self.machine.poll(Millis(self.cluster.now()))
                to_send: list[Batch] = []
                for effect in effects:
                    if isinstance(effect, SendBatch):
                        to_send.append(effect.batch)
                        if effect.batch.attempts > 1:
                            self.counts.retries.value += effect.batch.records
                    else:
                        self._carry_out(effect)
                if to_send:
                    self.sender.send(to_send)
                if not effects and not self._again:
                    break
        except Exception as error:
            # Batches to send may never get an outcome, so a defect of the client must reach all waiting callers.
            log.error("the producer failed", exc_info=error)
            why = f"the client failed: {error!r}"
            self.machine.fail(Trouble(ErrorKind.FATAL, ErrorCode.UNKNOWN_SERVER_ERROR, why))
            self._settle_all(why)
        finally:
            self._pumping = False
        self._tell()

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Delivered):
            self._report(effect)
            self._unsettled.pop(effect.batch, None)
        elif isinstance(effect, Failed):
            if not effect.batch.in_flight:
                self._unsettled.pop(effect.batch, None)
            doubt = effect.maybe_written
            if effect.trouble.code == ErrorCode.OPERATION_NOT_ATTEMPTED and self.machine.options.idempotent:
                doubt = False  # the leader looks for a former attempt before it looks at the condition (rule 21)
            error = from_trouble(effect.trouble, maybe_written=doubt, transactional=self._id is not None)
            self.settle(_content(effect.batch), error)
        elif isinstance(effect, Ended):
            if self.outcome is not None and not self.outcome.done():
                self.outcome.set_result(self._committed)
        elif isinstance(effect, RequestProducerId):
            self._spawn(self._initialize(effect.current))
        elif isinstance(effect, RequestAddPartitions):
            self._spawn(self._add_partitions(effect.partitions))
        elif isinstance(effect, RequestEndTransaction):
            self._spawn(self._end_transaction(effect.commit))

    def _tell(self) -> None:
        """Wakes the callers that wait for a state which has been reached or can no longer be reached."""
        machine = self.machine
        if machine.trouble is not None and machine.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            for waiting in (self.outcome, self.ready):
                if waiting is not None and not waiting.done():
                    waiting.set_exception(self.error())
                    waiting.exception()
            self.drop_open(self.error())
        self._wake_flushers()

    def _wake_flushers(self) -> None:
        first = next(iter(self._unsettled.values()), math.inf)
        while self._flushers and self._flushers[0][0] < first:
            _, done = self._flushers.popleft()
            if not done.done():
                done.set_result(None)

    async def flushed(self) -> None:
        """Waits until everything enqueued so far is settled. What is enqueued later does not matter."""
        if self._unsettled:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushers.append((self._enqueued, done))
            await done

    def end(self, *, commit: bool) -> bool:
        """Call after the machine's `commit` or `abort`. Returns whether the transaction has ended already, because
        there was nothing to decide. Otherwise `outcome` tells."""
        if self.outcome is not None and not self.outcome.done():  # of a commit that has failed just now
            self.outcome.set_exception(self.error())
            self.outcome.exception()
        self.committing = commit
        self.outcome = outcome = asyncio.get_running_loop().create_future()
        self.pump()
        if outcome.done() and outcome.exception() is None:
            self.outcome = None
            return True
        return False

    # --- the coordinators -------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = supervision.once(work, "client-producer")
        self._tasks[task] = None
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            # A defect of the client must reach the waiting callers instead of being lost with its task.
            log.error("the producer failed", exc_info=error)
            self.machine.fail(Trouble(ErrorKind.FATAL, ErrorCode.UNKNOWN_SERVER_ERROR, f"the client failed: {error!r}"))
        self.pump()

    async def _initialize(self, current: Identity) -> None:
        timeout = self.cluster.options["transaction.timeout.ms"]
        result = await self.coordination.initialize(current, timeout)
        if result is None:
            return
        self.sender.transaction_version = result.version
        self.machine.initialized(*result)
        if self.ready is not None and not self.ready.done():
            self.ready.set_result(None)

    async def _add_partitions(self, partitions: tuple[TopicPartition, ...]) -> None:
        if await self.coordination.add_partitions(partitions):
            self.machine.partitions_added()

    async def _end_transaction(self, commit: bool) -> None:
        self._committed = Committed()
        if commit and self.token is not None:
            assert self._id is not None
            told = await end_with_token(self.cluster, self._id, self.machine, self.token)
            if isinstance(told, TokenConflictError):
                self.conflict = told
            elif told is not None:
                self._committed = Committed(told.outcome is TokenOutcome.ALREADY_COMMITTED, told.records)
                self.machine.ended(told.identity)
            return
        accepted, identity = await self.coordination.end(commit)
        if accepted:
            self.machine.ended(identity)

    # --- records and batches ----------------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        size: int,
        *,
        reported: bool = True,
    ) -> asyncio.Future[DeliveryReport] | None:
        """Adds a record to its partition's batch, which is sent when it is full or after linger.ms."""
        delivery: asyncio.Future[DeliveryReport] | None = None
        if reported:
            delivery = asyncio.get_running_loop().create_future()
        now = self.cluster.now()
        pushed_out = self.accumulator.append(partition, timestamp_ms, key, value, headers, delivery, size, now)
        if pushed_out is not None:
            self._enqueue(partition, pushed_out)
        self._dispatch_soon(self.accumulator.open[partition])
        return delivery

    def append_batch(self, partition: TopicPartition, data: bytearray, records: int) -> None:
        """Adds a batch that the caller has built, after the records that wait for its partition."""
        self._append_whole(partition, self.accumulator.whole(data, records, self.cluster.now()))
        self.pump()

    def append_batches(
        self, batches: Iterable[tuple[TopicPartition, bytearray | memoryview, int]]
    ) -> list[asyncio.Future[DeliveryReport]]:
        """Adds batches that the caller has built, so that one request can carry those of several partitions. Returns
        for each the report of its first record."""
        loop, now, found = asyncio.get_running_loop(), self.cluster.now(), []
        self._in_bulk = True
        for partition, data, records in batches:
            content = self.accumulator.whole(data, records, now)
            delivery: asyncio.Future[DeliveryReport] = loop.create_future()
            content.deliveries.append(delivery)
            content.timestamps.append(-1)
            found.append(delivery)
            self._append_whole(partition, content)
        self.pump()
        return found

    def _append_whole(self, partition: TopicPartition, content: OpenBatch) -> None:
        if partition in self.accumulator.open:
            self._enqueue(partition, self.accumulator.close(partition))
        self._enqueue(partition, content)

    def append_conditional(
        self, partition: TopicPartition, records: Sequence[tuple[bytes | None, bytes | None, Sequence[Header]]],
        timestamp_ms: int, size: int, condition: Condition,
    ) -> list[asyncio.Future[DeliveryReport]]:
        """Adds one batch of these records, after those that wait for its partition."""
        if partition in self.accumulator.open:
            self._enqueue(partition, self.accumulator.close(partition))
        batch = self.accumulator.conditional(records, timestamp_ms, size, condition, self.cluster.now())
        self._enqueue(partition, batch)
        self.pump()
        return [delivery for delivery in batch.deliveries if delivery is not None]

    def close_all(self) -> None:
        """Closes every open batch, so that it is sent now."""
        for partition in list(self.accumulator.open):
            self._enqueue(partition, self.accumulator.close(partition))

    def drop_open(self, error: HapaxError) -> None:
        """Drops every open batch without sending it."""
        for batch in self.accumulator.drop_open():
            self.settle(batch, error)

    def forget_failure(self) -> None:
        self.failure = self.unreported = None

    def settle(self, content: OpenBatch, error: HapaxError) -> None:
        """Fails all records of a batch."""
        self.accumulator.free(content.bytes)
        self.counts.errors.value += content.records
        if self.failure is None or isinstance(self.failure, ConditionFailedError):  # that one's caller waits for it
            self.failure = error
        if self.unreported is None and (not content.deliveries or None in content.deliveries):
            self.unreported = error
        for delivery in content.deliveries:
            if delivery is not None and not delivery.done():
                delivery.set_exception(error)
                delivery.exception()  # marks the error as retrieved, because flush() or commit() also raises it

    def _report(self, effect: Delivered) -> None:
        batch, offset = effect.batch, effect.offset
        content = _content(batch)
        self.accumulator.free(content.bytes)
        self.counts.records.value += batch.records
        self.counts.batches.value += 1
        topic, partition = batch.partition
        producer_id, epoch = batch.identity
        for i, delivery in enumerate(content.deliveries):
            if delivery is not None and not delivery.done():
                delivery.set_result(
                    DeliveryReport(
                        topic,
                        partition,
                        offset + i if offset >= 0 else -1,
                        effect.timestamp if effect.timestamp >= 0 else content.timestamps[i],
                        producer_id,
                        epoch,
                        advance(batch.sequence, i) if batch.sequence >= 0 else -1,
                    )
                )

    def _dispatch_soon(self, batch: OpenBatch) -> None:
        if self._dispatching is not None and not (batch.full and self._linger_ms):
            return
        loop = asyncio.get_running_loop()
        if self._linger_ms and not batch.full:
            self._dispatching = loop.call_later(self._linger_ms / 1000, self._dispatch)
            return
        if self._dispatching is not None:
            self._dispatching.cancel()
        self._dispatching = loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatching = None
        self.pump()
        if self._linger_ms and self.accumulator.open and self._dispatching is None:
            oldest = min(batch.created_ms for batch in self.accumulator.open.values())
            left = max(1, oldest + self._linger_ms - self.cluster.now())
            self._dispatching = asyncio.get_running_loop().call_later(left / 1000, self._dispatch)

    def _close_due(self) -> None:
        now = self.cluster.now()
        for partition, batch in list(self.accumulator.open.items()):
            due = batch.full or now - batch.created_ms >= self._linger_ms
            if due and self.machine.wants(partition):
                self._enqueue(partition, self.accumulator.close(partition))

    def _enqueue(self, partition: TopicPartition, content: OpenBatch) -> None:
        topic = self.cluster.topics.get(partition.topic)
        if topic is not None:
            self.sticky.batch_closed(partition.topic, partition.partition, topic.available())
        deadline = Millis(content.created_ms + self._delivery_ms)
        batch = Batch(partition, content.records, deadline, content)
        try:
            self.machine.enqueue(batch)
        except IllegalTransition as error:
            self.settle(content, self.error() if self.machine.trouble else WrongState(str(error)))
            return
        self._enqueued += 1
        self._unsettled[batch] = self._enqueued
        self._wake_at(deadline)

    # --- time -------------------------------------------------------------------------------------------------

    def _wake_at(self, at: int) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        delay = max(0, at - self.cluster.now()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        wake = self.machine.expire(Millis(self.cluster.now()))
        self.pump()
        if wake is not None:
            self._wake_at(wake)

    def leaders_moved(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.machine.leader_moved(partition)
        self.pump()

    # --- outcomes of batches, reported by the sender ----------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """For `append_batches`: carries out the machine's effects after all outcomes of one answer. Then what follows
        them leaves in one request, as they did."""
        if self._pumping or not self._in_bulk:
            yield
            return
        self._pumping = True
        try:
            yield
        finally:
            self._pumping = False
            self.pump()

    def delivered(self, batch: Batch, offset: Offset, timestamp: TimestampMs) -> None:
        self.machine.delivered(batch, offset, timestamp)
        self._answered(batch)
        self.pump()

    def refused(self, batch: Batch, code: int, reason: str) -> ErrorKind:
        self.counts.refused.labels(error_name(code)).value += 1
        kind = self.machine.refused(batch, code, reason, Millis(self.cluster.now()))
        self._attempt_failed(batch)
        return kind

    def lost(self, batch: Batch, reason: str) -> None:
        self.counts.lost.value += 1
        self.machine.lost(batch, reason, Millis(self.cluster.now()))
        self._attempt_failed(batch)

    def unsent(self, batch: Batch, reason: str) -> None:
        self.machine.unsent(batch, reason, Millis(self.cluster.now()))
        self._attempt_failed(batch)

    def _answered(self, batch: Batch) -> None:
        """The batch is not in flight any more. It is settled now if its owner has been told that its time is over."""
        if batch.reported:
            self._unsettled.pop(batch, None)

    def _attempt_failed(self, batch: Batch) -> None:
        self._answered(batch)
        if not self.closed:
            pause = self.machine.options.pause_ms(batch.attempts) * self.cluster.ports.random.uniform(1.0, 1.2)
            self._wake_at(self.cluster.now() + math.ceil(pause))
            self.pump()


def _content(batch: Batch) -> OpenBatch:
    content: OpenBatch = batch.content  # type: ignore[assignment]
    return content
