"""The producer, asyncio face: records in, delivery reports out, transactions in between.

It owns no rules of its own. Records are collected (accumulator.py); what may be sent, resent or given up is decided
by the machine (hapax.core.client_producer); `_pump` carries out what the machine says, after every event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from hapax.client.accumulator import RECORD_OVERHEAD, Accumulator, OpenBatch
from hapax.client.cluster import Cluster
from hapax.client.coordination import ConsumerGroup, Coordination, Offsets
from hapax.client.environment import ClientPorts, RealPorts
from hapax.client.errors import AbortableError, FatalError, HapaxError, RetriableError, WrongState, from_trouble
from hapax.client.partitioner import Sticky, partition_of
from hapax.client.records import DeliveryReport, Header
from hapax.client.sender import Sender
from hapax.client.settings import COMPRESSION, Settings, producer_options
from hapax.client.tokens import CommitToken, TokenOutcome, end_with_token
from hapax.core.client_producer import ClientProducer, ProducerOptions
from hapax.core.client_producer_partition import NOBODY, Batch, Identity, advance
from hapax.core.client_producer_state import (
    Delivered,
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
from hapax.core.client_producer_verdicts import Verdict
from hapax.core.errors import ErrorCode
from hapax.core.types import (
    Millis,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from hapax.core.types import Sequence as SequenceNumber

log = logging.getLogger("hapax.client")


@dataclass(frozen=True)
class StartFrom:
    """An identity to go on under instead of asking for a new one: from a lease, or saved by a former run.

    `next_sequences`: per partition the sequence of the next record; partitions not named begin at 0.
    `leased`: the generation belongs to a lease, so the producer never raises it by itself.
    """

    producer_id: int
    generation: int
    next_sequences: Mapping[TopicPartition, int] = field(default_factory=dict)
    leased: bool = False


class Committed(NamedTuple):
    """`already`: this token, or a newer one, had been committed before; what was written now is aborted.
    `records`: the number of records kept with the token, -1 without one."""

    already: bool = False
    records: int = -1


class Producer:
    """Writes records. Settings under Kafka's names, see `hapax.client.settings.SETTINGS`.

    Use as `async with Producer({...}) as producer`, or `start()` and `close()`.
    Errors: see `hapax.client.errors`.
    """

    def __init__(
        self, settings: Settings, *, ports: ClientPorts | None = None, start_from: StartFrom | None = None
    ) -> None:
        self._options = options = producer_options(settings)
        self._ports = ports or RealPorts()
        self._cluster = Cluster(options, self._ports, auto_create=True)
        self._id: str | None = options["transactional.id"]
        if start_from is not None and (self._id is not None or not options["enable.idempotence"]):
            raise FatalError("start_from needs enable.idempotence=true and no transactional.id")
        identity, sequences = NOBODY, {}
        if start_from is not None:
            identity = Identity(ProducerId(start_from.producer_id), ProducerEpoch(start_from.generation))
            sequences = {p: SequenceNumber(s) for p, s in start_from.next_sequences.items()}
        self._machine = ClientProducer(
            ProducerOptions(
                idempotent=options["enable.idempotence"],
                transactional=self._id is not None,
                leased=start_from is not None and start_from.leased,
                window=options["max.in.flight.requests.per.connection"],
                retries=options["retries"],
                retry_backoff_ms=options["retry.backoff.ms"],
            ),
            identity,
            sequences,
        )
        self._accumulator = Accumulator(
            batch_size=options["batch.size"],
            compression=COMPRESSION[options["compression.type"]],
            memory=options["buffer.memory"],
        )
        self._sender = Sender(self._cluster, _Outcomes(self), transactional_id=self._id)
        self._coordination = Coordination(self._cluster, self._machine, self._id)
        self._sticky = Sticky(self._ports.random)
        self._linger_ms: int = options["linger.ms"]
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: asyncio.Future[None] | None = None
        self._outcome: asyncio.Future[Committed] | None = None
        self._token: CommitToken | None = None
        self._committed = Committed()
        self._flushers: list[asyncio.Future[None]] = []
        self._failure: HapaxError | None = None
        self._pumping = self._pump_again = False
        self._dispatch_timer: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._started = self._closed = False

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connects; an idempotent producer gets its producer id, a transactional one fences its former instances
        and finishes what they left open. Raises RetriableError, FencedError, FatalError."""
        if self._started:
            raise WrongState("the producer was started before; make a new one")
        self._started = True
        self._cluster.on_change = self._wake
        try:
            await self._cluster.start()
            if self._machine.state is State.UNINITIALIZED:
                self._ready = asyncio.get_running_loop().create_future()
                self._machine.initialize()
                self._pump()
                await self._at_most(self._ready, "initialising the producer")
        except BaseException:
            await self._stop()
            raise
        return self

    async def close(self) -> None:
        """Sends what is left (an open transaction is aborted), then disconnects. Never raises for failed records:
        their futures, or `flush()`, tell."""
        if self._closed or not self._started:
            return
        try:
            if self._machine.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                await self.abort()
            await self.flush()
        except HapaxError as error:
            log.warning("closing with a failure: %s", error)
        await self._stop()

    async def _stop(self) -> None:
        self._closed = True
        for timer in (self._timer, self._dispatch_timer):
            if timer is not None:
                timer.cancel()
        self._sender.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- records ----------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> asyncio.Future[DeliveryReport]:
        """Hands a record over; the future tells where it went, or raises.

        Waits only for the topic's metadata and for room in buffer.memory, at most max.block.ms each. Without
        `partition` the key picks it as in Kafka (murmur2); without a key batches go round.
        """
        known = self._cluster.topics.get(topic)
        if known is None:
            known = await self._cluster.topic(topic, self._options["max.block.ms"])
        if partition is None:
            available = known.available() if key is None else []
            if key is None:
                partition = self._sticky.partition(topic, available)
            else:
                partition = partition_of(key, len(known.partitions))
        elif partition not in known.partitions:
            await self._cluster.refreshed(self._options["request.timeout.ms"])
            if partition not in self._cluster.topics.get(topic, known).partitions:
                raise FatalError(f"topic {topic!r} has no partition {partition}")
        size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        for name, content in headers:
            size += 10 + len(name) + len(content or b"")
        if size > self._options["max.request.size"]:
            raise FatalError(
                f"a record of {size} bytes is larger than max.request.size={self._options['max.request.size']}",
                code=ErrorCode.MESSAGE_TOO_LARGE,
            )
        if not self._accumulator.has_room(size):
            await self._room(size)
        self._check_open()
        if self._id is not None and self._machine.state is not State.IN_TRANSACTION:
            raise self._error()
        where = TopicPartition(topic, PartitionIndex(partition))
        delivery: asyncio.Future[DeliveryReport] = asyncio.get_running_loop().create_future()
        clock = self._ports.clock
        stamp = clock.now_ms() if timestamp_ms is None else timestamp_ms
        pushed_out = self._accumulator.append(
            where, stamp, key, value, headers, delivery, size, self._cluster.now()
        )
        if pushed_out is not None:
            self._enqueue(where, pushed_out)
        self._dispatch_soon(self._accumulator.open[where])
        return delivery

    async def send_and_wait(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, **how: Any
    ) -> DeliveryReport:
        """`send`, and waits for the delivery. Arguments as for `send`."""
        return await (await self.send(topic, value, key, **how))

    async def flush(self) -> None:
        """Sends everything now and waits for it. Raises the first failure since the last flush."""
        self._close_all()
        self._pump()
        if self._machine.pending:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushers.append(done)
            await done
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # --- transactions -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins a transaction. Raises WrongState, FencedError, FatalError."""
        self._check_open()
        with _worded(self):
            self._machine.begin()
        self._failure = None

    async def commit(self, token: CommitToken | None = None) -> Committed:
        """Sends what is left, then makes all of the transaction visible at once.

        With `token` (Hapax only) the commit is idempotent: a token that is not newer than the last one of its scope
        is answered `already`, and what was written now is aborted. Raises AbortableError (abort, then begin again),
        RetriableError where the outcome is not known in time (call `commit()` again), FencedError, FatalError.
        """
        if self._outcome is None:
            self._check_open()
            with _worded(self):
                if self._machine.state is State.IN_TRANSACTION:
                    self._close_all()
                self._machine.commit()
            self._token = token
            self._committed = Committed()
            self._outcome = asyncio.get_running_loop().create_future()
            self._pump()
        return await self._end("committing")

    async def abort(self) -> None:
        """Makes nothing of the transaction visible. Raises like `commit`."""
        if self._outcome is not None and self._machine.state is State.COMMITTING_TRANSACTION:
            raise WrongState("a commit is under way and its outcome is not known: call commit() again")
        if self._outcome is None or self._outcome.done():
            self._check_open()
            with _worded(self):
                self._machine.abort()
            for batch in self._accumulator.drop_open():
                self._settle(batch, AbortableError("the transaction was aborted before the record was sent"))
            self._token = None
            self._outcome = asyncio.get_running_loop().create_future()
            self._pump()
        await self._end("aborting")
        self._failure = None

    async def send_offsets(self, offsets: Offsets, group: str | ConsumerGroup) -> None:
        """Commits reading positions as part of the transaction. Raises like `commit`."""
        self._check_open()
        with _worded(self):
            self._machine.offsets_sent()
        membership = ConsumerGroup(group) if isinstance(group, str) else group
        accepted = await self._at_most(
            asyncio.ensure_future(self._coordination.send_offsets(offsets, membership)), "sending offsets", cancel=True
        )
        self._pump()
        if not accepted:
            raise self._error()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`async with producer.transaction(): ...` commits at the end, aborts where the block raises."""
        self.begin()
        try:
            yield self
        except BaseException:
            if self._machine.state is not State.FATAL_ERROR:
                await self.abort()
            raise
        try:
            await self.commit()
        except AbortableError:
            await self.abort()
            raise

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def identity(self) -> StartFrom:
        """Producer id, generation and next sequences, to be saved; complete after `flush()`."""
        machine = self._machine
        return StartFrom(
            machine.identity.producer_id, machine.identity.epoch, machine.next_sequences(), machine.options.leased
        )

    # --- carrying out -----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._closed:
            self._pump()

    def _pump(self) -> None:
        """Carries out what the machine says until it says nothing more."""
        if self._pumping:
            self._pump_again = True
            return
        self._pumping = True
        try:
            while True:
                self._pump_again = False
                if self._accumulator.open:
                    self._close_due()
                effects = self._machine.poll(Millis(self._cluster.now()))
                to_send: list[Batch] = []
                for effect in effects:
                    if isinstance(effect, SendBatch):
                        to_send.append(effect.batch)
                    elif isinstance(effect, Delivered):
                        self._report(effect)
                    elif isinstance(effect, Failed):
                        self._fail(effect)
                    elif isinstance(effect, Ended):
                        self._ended()
                    elif isinstance(effect, RequestProducerId):
                        self._spawn(self._initialize(effect.current))
                    elif isinstance(effect, RequestAddPartitions):
                        self._spawn(self._add_partitions(effect.partitions))
                    elif isinstance(effect, RequestEndTransaction):
                        self._spawn(self._end_transaction(effect.commit))
                if to_send:
                    self._sender.send(to_send)
                if not effects and not self._pump_again:
                    break
        finally:
            self._pumping = False
        self._tell()

    def _tell(self) -> None:
        """Wakes whoever waits for a state that has come, or cannot come any more."""
        machine = self._machine
        if machine.trouble is not None and machine.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            for waiting in (self._outcome, self._ready):
                if waiting is not None and not waiting.done():
                    waiting.set_exception(from_trouble(machine.trouble))
                    waiting.exception()
            if self._accumulator.open:
                for batch in self._accumulator.drop_open():
                    self._settle(batch, from_trouble(machine.trouble))
        if self._flushers and not machine.pending and not self._accumulator.open:
            flushers, self._flushers = self._flushers, []
            for waiting in flushers:
                if not waiting.done():
                    waiting.set_result(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            trouble = Trouble(Verdict.FATAL, ErrorCode.UNKNOWN_SERVER_ERROR, f"the client failed: {error!r}")
            log.error("the producer failed", exc_info=error)
            self._machine.fail(trouble)
        if not self._closed:
            self._pump()

    async def _initialize(self, current: Identity) -> None:
        result = await self._coordination.initialize(current, self._options["transaction.timeout.ms"])
        if result is None:
            return
        identity, version = result
        self._sender.transaction_version = version
        self._machine.initialized(identity, version)
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def _add_partitions(self, partitions: tuple[TopicPartition, ...]) -> None:
        if await self._coordination.add_partitions(partitions):
            self._machine.partitions_added()

    async def _end_transaction(self, commit: bool) -> None:
        if commit and self._token is not None:
            assert self._id is not None
            told = await end_with_token(self._cluster, self._id, self._machine, self._token)
            if told is not None:
                self._committed = Committed(told.outcome is TokenOutcome.ALREADY_COMMITTED, told.records)
                self._machine.ended(told.identity)
            return
        accepted, identity = await self._coordination.end(commit)
        if accepted:
            self._machine.ended(identity)

    def _ended(self) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None and not outcome.done():
            outcome.set_result(self._committed)

    async def _end(self, what: str) -> Committed:
        outcome = self._outcome
        if outcome is None:
            return self._committed
        try:
            committed: Committed = await self._at_most(outcome, what)
            return committed
        finally:
            if outcome.done() and self._outcome is outcome:
                self._outcome = None

    async def _at_most(self, waiting: asyncio.Future[Any], what: str, *, cancel: bool = False) -> Any:
        timeout = self._options["max.block.ms"]
        await asyncio.wait([waiting], timeout=timeout / 1000)
        if waiting.done():
            return waiting.result()
        if cancel:
            waiting.cancel()
        raise RetriableError(f"{what}: no outcome within max.block.ms={timeout}", code=ErrorCode.REQUEST_TIMED_OUT)

    async def _room(self, size: int) -> None:
        self._close_all()
        self._pump()
        timeout = self._options["max.block.ms"]
        try:
            async with asyncio.timeout(timeout / 1000):
                await self._accumulator.room(size)
        except TimeoutError:
            raise RetriableError(f"no room in buffer.memory within max.block.ms={timeout}") from None

    def _check_open(self) -> None:
        if self._closed or not self._started:
            raise WrongState("the producer is closed" if self._closed else "the producer is not started")
        if self._machine.state is State.FATAL_ERROR:
            raise self._error()

    def _error(self) -> HapaxError:
        trouble = self._machine.trouble
        if trouble is None:
            return WrongState(f"not possible in state {self._machine.state.name}")
        return from_trouble(trouble)

    # --- batches ----------------------------------------------------------------------------------------------

    def _dispatch_soon(self, batch: OpenBatch) -> None:
        if self._dispatch_timer is not None and not (batch.full and self._linger_ms):
            return
        loop = asyncio.get_running_loop()
        if self._linger_ms and not batch.full:
            self._dispatch_timer = loop.call_later(self._linger_ms / 1000, self._dispatch)
            return
        if self._dispatch_timer is not None:
            self._dispatch_timer.cancel()
        self._dispatch_timer = loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_timer = None
        self._pump()
        if self._linger_ms and self._accumulator.open and self._dispatch_timer is None:
            oldest = min(batch.created_ms for batch in self._accumulator.open.values())
            left = max(1, oldest + self._linger_ms - self._cluster.now())
            self._dispatch_timer = asyncio.get_running_loop().call_later(left / 1000, self._dispatch)

    def _close_due(self) -> None:
        now = self._cluster.now()
        for partition, batch in list(self._accumulator.open.items()):
            due = batch.full or now - batch.created_ms >= self._linger_ms
            if due and self._machine.wants(partition):
                self._enqueue(partition, self._accumulator.close(partition))

    def _close_all(self) -> None:
        for partition in list(self._accumulator.open):
            self._enqueue(partition, self._accumulator.close(partition))

    def _enqueue(self, partition: TopicPartition, content: OpenBatch) -> None:
        topic = self._cluster.topics.get(partition.topic)
        if topic is not None:
            self._sticky.batch_closed(partition.topic, partition.partition, topic.available())
        deadline = Millis(content.created_ms + self._options["delivery.timeout.ms"])
        batch = Batch(partition, len(content.deliveries), deadline, content)
        try:
            self._machine.enqueue(batch)
        except IllegalTransition as error:
            self._settle(content, self._error() if self._machine.trouble else WrongState(str(error)))
            return
        self._wake_at(deadline)

    def _wake_at(self, at: int) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        delay = max(0, at - self._cluster.now()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        wake = self._machine.expire(Millis(self._cluster.now()))
        self._pump()
        if wake is not None:
            self._wake_at(wake)

    def _retry_soon(self) -> None:
        self._wake_at(self._cluster.now() + self._machine.options.retry_backoff_ms + 1)

    def _report(self, effect: Delivered) -> None:
        batch, offset = effect.batch, effect.offset
        content: OpenBatch = batch.content  # type: ignore[assignment]
        self._accumulator.free(content.bytes)
        sequence = batch.sequence
        topic, partition = batch.partition
        for i, delivery in enumerate(content.deliveries):
            if not delivery.done():
                delivery.set_result(
                    DeliveryReport(
                        topic,
                        partition,
                        offset + i if offset >= 0 else -1,
                        effect.timestamp if effect.timestamp >= 0 else content.timestamps[i],
                        batch.identity.producer_id,
                        batch.identity.epoch,
                        advance(sequence, i) if sequence >= 0 else -1,
                    )
                )

    def _fail(self, effect: Failed) -> None:
        content: OpenBatch = effect.batch.content  # type: ignore[assignment]
        self._settle(
            content,
            from_trouble(effect.trouble, maybe_written=effect.maybe_written, transactional=self._id is not None),
        )

    def _settle(self, content: OpenBatch, error: HapaxError) -> None:
        self._accumulator.free(content.bytes)
        if self._failure is None:
            self._failure = error
        for delivery in content.deliveries:
            if not delivery.done():
                delivery.set_exception(error)
                delivery.exception()  # whoever does not look at it is told by flush() or commit()


class _Outcomes:
    """What becomes of batches: told to the machine, then carried out."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def delivered(self, batch: Batch, offset: Offset, timestamp: TimestampMs) -> None:
        self._producer._machine.delivered(batch, offset, timestamp)
        self._producer._pump()

    def refused(self, batch: Batch, code: int, reason: str) -> Verdict:
        producer = self._producer
        verdict = producer._machine.refused(batch, code, reason, Millis(producer._cluster.now()))
        producer._retry_soon()
        producer._pump()
        return verdict

    def lost(self, batch: Batch, reason: str) -> None:
        producer = self._producer
        producer._machine.lost(batch, reason, Millis(producer._cluster.now()))
        if not producer._closed:
            producer._retry_soon()
            producer._pump()

    def unsent(self, batch: Batch, reason: str) -> None:
        producer = self._producer
        producer._machine.unsent(batch, reason, Millis(producer._cluster.now()))
        if not producer._closed:
            producer._retry_soon()
            producer._pump()


class _worded:
    """Turns the machine's IllegalTransition into the client's error."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, IllegalTransition):
            if self._producer._machine.trouble is not None:
                raise self._producer._error() from error
            raise WrongState(str(error)) from error
