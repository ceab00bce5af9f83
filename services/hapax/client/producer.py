"""The producer with asyncio: takes records, returns delivery reports, and runs transactions.

It has no rules of its own. The machine (hapax.core.producer.machine) decides what is sent, sent again or given up, and
the engine (hapax.client.engine) carries it out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from hapax.client.accumulator import RECORD_OVERHEAD
from hapax.client.cluster import ClusterClient
from hapax.client.coordination import ConsumerGroup, Offsets
from hapax.client.engine import Committed, Engine
from hapax.client.environment import ClientPorts, RealPorts
from hapax.client.errors import (
    AbortableError,
    ConditionFailedError,
    FatalError,
    HapaxError,
    RetriableError,
    WrongState,
    from_code,
)
from hapax.client.metadata import Topic
from hapax.client.partitioner import partition_of
from hapax.client.records import DeliveryReport, Header
from hapax.client.settings import Settings, producer_options
from hapax.client.tokens import CommitToken
from hapax.core.errors import ErrorCode
from hapax.core.partition.scopes import EVERYTHING
from hapax.core.partition.values import Condition
from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import NO_IDENTITY, Identity
from hapax.core.producer.states import IllegalTransition, State
from hapax.core.types import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from hapax.core.types import Sequence as SequenceNumber
from hapax.runtime import supervision
from hapax.runtime.metrics import Metrics
from hapax.wire import messages
from hapax.wire.conditions import scope_of

log = logging.getLogger("hapax.client")

__all__ = ["Committed", "PreparedTransaction", "Producer", "StartFrom"]


class PreparedTransaction(NamedTuple):
    """Names a prepared transaction (KIP-939). Store its text with the system that decides the transaction, in the very
    commit that decides it."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        """As Kafka's clients write it: `4711:3`."""
        return f"{self.producer_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """Raises ValueError."""
        producer_id, _, epoch = text.partition(":")
        return cls(int(producer_id), int(epoch))


@dataclass(frozen=True)
class StartFrom:
    """An identity to continue under, instead of requesting a new one: from a lease, or saved by an earlier run.

    `next_sequences`: for each partition the sequence of the next record. Partitions that are not named begin at 0.
    `leased`: the generation belongs to a lease, so the producer never raises it by itself.
    """

    producer_id: int
    generation: int
    next_sequences: Mapping[TopicPartition, int] = field(default_factory=dict)
    leased: bool = False


class Producer:
    """Writes records. Settings under Kafka's names, see `hapax.client.settings.SETTINGS`.

    Use as `async with Producer({...}) as producer`, or `start()` and `close()`.
    Errors: see `hapax.client.errors`.
    """

    def __init__(
        self, settings: Settings, *, ports: ClientPorts | None = None, start_from: StartFrom | None = None,
        cluster: ClusterClient | None = None,
    ) -> None:
        """`cluster`: a connected one, with a producer's options, which outlives the producer."""
        self._options = options = producer_options(settings)
        self._ports = ports or RealPorts()
        self._id: str | None = options["transactional.id"]
        if start_from is not None and (self._id is not None or not options["enable.idempotence"]):
            raise FatalError("start_from needs enable.idempotence=true and no transactional.id")
        identity, sequences = NO_IDENTITY, {}
        if start_from is not None:
            identity = Identity(ProducerId(start_from.producer_id), ProducerEpoch(start_from.generation))
            sequences = {p: SequenceNumber(s) for p, s in start_from.next_sequences.items()}
        self._machine = ClientProducer(
            ProducerOptions(
                idempotent=options["enable.idempotence"],
                transactional=self._id is not None,
                leased=start_from is not None and start_from.leased,
                two_phase=options["transaction.two.phase.commit.enable"],
                window=options["max.in.flight.requests.per.connection"],
                retries=options["retries"],
                retry_backoff_ms=options["retry.backoff.ms"],
                retry_backoff_max_ms=options["retry.backoff.max.ms"],
            ),
            identity,
            sequences,
        )
        self._owns_cluster = cluster is None
        self._cluster = ClusterClient(options, self._ports, auto_create=True) if cluster is None else cluster
        self._engine = Engine(self._cluster, self._machine, self._id, owns_cluster=self._owns_cluster)
        self._started = False

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connects. An idempotent producer gets its producer id. A transactional one fences its former instances and
        completes the transactions that they left open; with two-phase commit it keeps an open one (`prepared`), for
        `complete`. Raises RetriableError, FencedError, FatalError."""
        if self._started:
            raise WrongState("the producer was started before; make a new one")
        self._started = True
        engine = self._engine
        self._cluster.listeners.append(engine.leaders_moved)
        try:
            if self._owns_cluster:
                await self._cluster.start()
            if self._machine.state is State.UNINITIALIZED:
                engine.ready = asyncio.get_running_loop().create_future()
                self._machine.initialize()
                engine.pump()
                await self._at_most(engine.ready, "initialising the producer")
        except BaseException:
            await engine.stop()
            raise
        return self

    async def close(self) -> None:
        """Sends all waiting records (but aborts an open transaction; a prepared one stays open), then disconnects, even
        if this call is cancelled. Raises, after that, the failure of a record without a delivery report
        (`send_unreported`, `send_batch`) that no `flush()` has raised: nothing else would tell of it. Never raises for
        records with a future, which tells of their failure, or in a transaction, which is not committed then. A `with`
        block that raises keeps its own error."""
        if self._engine.closed or not self._started:
            return
        lost: HapaxError | None = None
        try:
            if self._machine.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                await self.abort()
            self._send_now()
            await self._engine.flushed()
            lost = None if self._id is not None else self._engine.unreported
            self.check()
        except HapaxError as error:
            log.warning("closing with a failure: %s", error)
        finally:
            await self._engine.stop()
        if lost is not None:
            raise lost

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except HapaxError:
            if kind is None:
                raise

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def metrics(self) -> Metrics:
        """What this producer counts, see docs/metrics.md. `metrics.values()` is a dict of numbers by name, and
        `prometheus_client.REGISTRY.register(producer.metrics)` exposes them to Prometheus."""
        return self._engine.metrics

    @property
    def identity(self) -> StartFrom:
        """Producer id, generation and next sequences, to be saved. Complete after `flush()`."""
        machine = self._machine
        return StartFrom(
            machine.identity.producer_id, machine.identity.epoch, machine.next_sequences(), machine.options.leased
        )

    async def _has_expired(self) -> bool:
        """Whether the cluster has forgotten the transactional id (`transactional.id.expiration.ms`). If it has not, and
        refuses this producer, another instance has taken the id. Raises HapaxError."""
        name = self._id
        assert name is not None

        async def attempt() -> bool:
            peer = await self._cluster.coordinator_peer("transaction", name)
            answer = await peer.call(messages.DescribeTransactionsRequest(transactional_ids=[name]))
            code = answer.transaction_states[0].error_code
            if code not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                self._cluster.forget_coordinator("transaction", name)
                raise from_code(code, f"describing transaction {name!r}")
            return bool(code)

        return await self._cluster.within(self._options["max.block.ms"], "describing a transaction", attempt)

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
        """Accepts a record. The future returns its delivery report, or raises.

        Waits only for the topic's metadata and for room in buffer.memory, at most max.block.ms each. Without
        `partition`, the key determines it as in Kafka (murmur2). Without a key, batches rotate over the partitions.
        """
        delivery = await self._accept(True, topic, value, key, partition, timestamp_ms, headers)
        assert delivery is not None
        return delivery

    async def send_unreported(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        """`send` without a delivery report, which costs less. `flush`, `commit` and `close` raise if the record
        failed."""
        await self._accept(False, topic, value, key, partition, timestamp_ms, headers)

    async def send_and_wait(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, **how: Any
    ) -> DeliveryReport:
        """`send`, and then waits for the delivery. Arguments as for `send`."""
        return await (await self.send(topic, value, key, **how))

    async def append(
        self,
        topic: str,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        expected: int | None,
        scope: bytes,
        partition: int | None = None,
        headers: Sequence[Header] = (),
    ) -> list[DeliveryReport]:
        """Appends (key, value) records as one batch, only if no record of the scope was appended at or after the offset
        `expected` (Hapax only). Waits for the outcome: a report of each record, or ConditionFailedError, and then none
        of them was appended.

        Without idempotence (`enable.idempotence=false`, `acks=1`), RetriableError with `maybe_written` where an attempt
        had no answer: then the condition may have failed because of this very append.

        `expected` is the position up to which the program has read the partition, and what it decided by. None: no
        condition, but the records belong to the scope. `scope`: a name for the records that the decision depends on,
        such as an account's; b"": all of the partition. A record that was written without a scope belongs to every
        scope. Without `partition`, the first record's key determines it. `headers` are those of every record.
        """
        if self._options["acks"] == 0:
            raise FatalError("a conditional append has an answer, so it needs acks=all or acks=1")
        if not records:
            raise FatalError("append needs at least one record")
        if partition is None:
            key = records[0][0]
            if key is None:
                raise FatalError("append needs a partition, or a key that determines it")
            partition = partition_of(key, len((await self._topic(topic)).partitions))
        elif partition not in (await self._topic(topic)).partitions:
            await self._check_partition(topic, partition)
        size = sum(RECORD_OVERHEAD + len(key or b"") + len(value or b"") + _size(headers) for key, value in records)
        self._check_size(size)
        await self._admitted(size)
        deliveries = self._engine.append_conditional(
            TopicPartition(topic, PartitionIndex(partition)), [(key, value, headers) for key, value in records],
            self._ports.clock.now_ms(), size,
            Condition(scope_of(scope) if scope else EVERYTHING, -1 if expected is None else expected))
        try:
            return list(await asyncio.gather(*deliveries))
        except ConditionFailedError as error:
            if self._engine.failure is error:  # else another record failed before, and flush() reports it
                self._engine.failure = None
            raise

    async def send_batch(self, topic: str, partition: int, batch: bytearray, records: int) -> None:
        """Accepts a whole record batch (`hapax.codec.batch.assemble_batch`; the producer's identity is filled in).
        Waits as `send` does. `flush` or `commit` report the outcome. For writers that have many records at once."""
        if partition not in (self._cluster.topics.get(topic) or await self._topic(topic)).partitions:
            await self._check_partition(topic, partition)
        self._check_size(len(batch))
        await self._admitted(len(batch))
        self._engine.append_batch(TopicPartition(topic, PartitionIndex(partition)), batch, records)

    async def send_batches(
        self, batches: Sequence[tuple[TopicPartition, bytearray | memoryview, int]]
    ) -> list[asyncio.Future[DeliveryReport]]:
        """As `send_batch`, for many batches, each with its number of records: one request carries batches of several
        partitions. Their topics must be known (`partitions_of`). Returns for each batch the report of its first
        record."""
        await self._admitted(sum(len(data) for _, data, _ in batches))
        return self._engine.append_batches(batches)

    async def partitions_of(self, topic: str) -> int:
        """A topic's number of partitions. Raises HapaxError."""
        return len((await self._topic(topic)).partitions)

    async def existing_topics(self, names: Iterable[str]) -> set[str]:
        """The given topics that exist now. None is created. Raises HapaxError."""
        wanted = list(names)
        timeout = self._options["max.block.ms"]
        return set(await self._cluster.within(timeout, "finding topics", lambda: self._cluster.existing(wanted)))

    def available_partitions(self, topic: str) -> list[int]:
        """The partitions that have a leader, of a topic that was used before."""
        return self._cluster.topics[topic].available()

    async def flush(self) -> None:
        """Sends everything now and waits for the outcomes. Raises the first failure since the last flush."""
        self._send_now()
        await self._engine.flushed()
        self.check()

    def _send_now(self) -> None:
        self._engine.close_all()
        self._engine.pump()

    def check(self) -> None:
        """Raises the first failure since the last flush. Does not wait."""
        failure = self._engine.failure
        self._engine.forget_failure()
        if failure is not None:
            raise failure

    # --- transactions -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins a transaction. Raises WrongState, FencedError, FatalError."""
        self._check_usable()
        self._engine.pump()  # who waits for the last transaction's outcome gets it first
        with self._worded():
            self._machine.begin()
        self._engine.forget_failure()
        self._engine.outcome = self._engine.conflict = None

    async def commit(self, token: CommitToken | None = None) -> Committed:
        """Sends all waiting records, then makes the whole transaction visible at once.

        With `token` (Hapax only) the commit is idempotent: a token that is not newer than the last one of its scope is
        answered `already`, and the records written now are aborted. A token that describes its work (`token.work`) is
        answered so only if the work is the same as the newest commit's, and is refused otherwise. Raises AbortableError
        (abort, then begin again), TokenConflictError (the token is refused: abort), RetriableError if the outcome is
        not known in time (call `commit()` again), FencedError, FatalError.
        """
        engine = self._engine
        if engine.outcome is None or not engine.committing:
            self._check_usable()
            with self._worded():
                if self._machine.state is State.IN_TRANSACTION:
                    engine.close_all()
                self._machine.commit(always=token is not None)
            engine.token = token
            if engine.end(commit=True):
                return Committed()
        return await self._end("committing")

    async def abort(self) -> None:
        """Makes none of the transaction's records visible. Raises like `commit`."""
        engine = self._engine
        if engine.outcome is not None and self._machine.state is State.COMMITTING_TRANSACTION:
            raise WrongState("a commit is under way and its outcome is not known: call commit() again")
        if engine.outcome is None or engine.committing:
            self._check_usable()
            with self._worded():
                self._machine.abort()
            engine.drop_open(AbortableError("the transaction was aborted before the record was sent"))
            if engine.end(commit=False):
                engine.forget_failure()
                return
        await self._end("aborting")
        engine.forget_failure()

    @property
    def prepared(self) -> PreparedTransaction | None:
        """The transaction that is prepared: by this producer, or by a former instance and kept by `start`. None: there
        is none."""
        identity = self._machine.prepared
        return None if identity is None else PreparedTransaction(*identity)

    async def prepare(self) -> PreparedTransaction:
        """Two-phase commit (KIP-939): sends everything and waits until it is stored. From then on the transaction takes
        no more records. Store what is returned with the other system, in the commit that decides this transaction, then
        call `complete` with it. Raises like `commit`."""
        self._check_usable()
        while True:
            await self.flush()
            self._check_usable()
            if self._machine.trouble is not None:
                raise self._engine.error()
            if not self._machine.pending and not self._engine.accumulator.open:
                break  # else another task has sent more meanwhile
        with self._worded():
            return PreparedTransaction(*self._machine.prepare())

    async def complete(self, decided: PreparedTransaction | None) -> bool | None:
        """Ends the prepared transaction as the other system has decided. `decided`: the last transaction that it has
        committed, None: it has committed none. Read it when former instances can commit nothing there any more. Commits
        the prepared transaction if it is that one, and aborts it otherwise. Returns whether it was committed. None:
        nothing is prepared, because a former instance has ended it already. May be repeated after RetriableError.
        Raises like `commit`."""
        self._check_usable()
        if self._engine.outcome is not None:  # of a call that did not wait long enough
            commit = self._engine.committing
        elif self.prepared is not None:
            commit = self.prepared == decided
        elif self._machine.state is State.READY:
            return None
        else:
            raise WrongState("no transaction is prepared: call prepare() first")
        await (self.commit() if commit else self.abort())
        return commit

    async def send_offsets(self, offsets: Offsets, group: str | ConsumerGroup) -> None:
        """Commits read positions as part of the transaction. Raises like `commit`."""
        self._check_usable()
        with self._worded():
            self._machine.offsets_sent()
        membership = ConsumerGroup(group) if isinstance(group, str) else group
        calling = supervision.judged(self._engine.coordination.send_offsets(offsets, membership))
        try:
            accepted = await self._at_most(calling, "sending offsets")
        finally:
            calling.cancel()
            self._engine.pump()
        if not accepted:
            raise self._engine.error()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`async with producer.transaction(): ...` commits at the end, and aborts if the block raises. What the block
        has prepared stays prepared then: the system that decides it may have committed although its call raised."""
        self.begin()
        try:
            yield self
        except BaseException:
            if self._machine.state is not State.FATAL_ERROR and self._machine.prepared is None:
                await self.abort()
            raise
        try:
            await self.commit()
        except AbortableError:
            await self.abort()
            raise

    # --- inner steps ------------------------------------------------------------------------------------------

    async def _end(self, what: str) -> Committed:
        outcome = self._engine.outcome
        assert outcome is not None
        counts = self._engine.counts
        began = counts.stopwatch()
        try:
            committed: Committed = await self._at_most(outcome, what)
            ended = "aborted" if what == "aborting" else "already_committed" if committed.already else "committed"
            counts.ended.labels(ended).value += 1
            counts.end_seconds.labels(ended).observe(counts.stopwatch() - began)
            return committed
        except asyncio.CancelledError:
            outcome = None  # this caller has not learnt it
            raise
        finally:
            if outcome is not None and outcome.done() and self._engine.outcome is outcome:
                self._engine.outcome = None

    async def _at_most(self, waiting: asyncio.Future[Any], what: str) -> Any:
        timeout = self._options["max.block.ms"]
        await asyncio.wait([waiting], timeout=timeout / 1000)
        if waiting.done():
            return waiting.result()
        raise RetriableError(f"{what}: no outcome within max.block.ms={timeout}", code=ErrorCode.REQUEST_TIMED_OUT)

    async def _accept(
        self, reported: bool, topic: str, value: bytes | None, key: bytes | None, partition: int | None,
        timestamp_ms: int | None, headers: Sequence[Header],
    ) -> asyncio.Future[DeliveryReport] | None:
        known = self._cluster.topics.get(topic)
        if known is None:
            known = await self._topic(topic)
        if partition is None:
            if key is None:
                partition = self._engine.sticky.partition(topic, known.available())
            else:
                partition = partition_of(key, len(known.partitions))
        elif partition not in known.partitions:
            await self._check_partition(topic, partition)
        size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        if headers:
            size += _size(headers)
        self._check_size(size)
        if not self._engine.accumulator.has_room(size):
            await self._room(size)
        self._check_admitted()
        if timestamp_ms is None:
            timestamp_ms = self._ports.clock.now_ms()
        where = TopicPartition(topic, PartitionIndex(partition))
        return self._engine.append(where, timestamp_ms, key, value, headers, size, reported=reported)

    async def _topic(self, topic: str) -> Topic:
        return await self._cluster.topic(topic, self._options["max.block.ms"])

    async def _check_partition(self, topic: str, partition: int) -> None:
        await self._cluster.refreshed(self._options["request.timeout.ms"])
        known = self._cluster.topics.get(topic)
        if known is None or partition not in known.partitions:
            raise FatalError(
                f"topic {topic!r} has no partition {partition}", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _check_size(self, size: int) -> None:
        if size > self._options["max.request.size"]:
            raise FatalError(
                f"{size} bytes are more than max.request.size={self._options['max.request.size']}",
                code=ErrorCode.MESSAGE_TOO_LARGE,
            )

    async def _admitted(self, size: int) -> None:
        """Returns once there is room for this many bytes and a record may be sent."""
        if not self._engine.accumulator.has_room(size):
            await self._room(size)
        self._check_admitted()

    def _check_admitted(self) -> None:
        self._check_usable()
        if self._id is not None and self._machine.state is not State.IN_TRANSACTION:
            raise self._engine.error()

    async def _room(self, size: int) -> None:
        self._engine.close_all()
        self._engine.pump()
        timeout = self._options["max.block.ms"]
        try:
            async with asyncio.timeout(timeout / 1000):
                await self._engine.accumulator.room(size)
        except TimeoutError:
            raise RetriableError(f"no room in buffer.memory within max.block.ms={timeout}") from None

    def _check_usable(self) -> None:
        if self._engine.closed or not self._started:
            raise WrongState("the producer is closed" if self._engine.closed else "the producer is not started")
        if self._machine.state is State.FATAL_ERROR:
            raise self._engine.error()

    @contextmanager
    def _worded(self) -> Iterator[None]:
        """Turns the machine's IllegalTransition into the client's error."""
        try:
            yield
        except IllegalTransition as illegal:
            error = WrongState(str(illegal)) if self._machine.trouble is None else self._engine.error()
            raise error from illegal


def _size(headers: Sequence[Header]) -> int:
    """Upper bound in bytes."""
    return sum(10 + len(name) + len(content or b"") for name, content in headers)
