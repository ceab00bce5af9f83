"""The native client as Spark's workers need it: blocking, one loop for the life of one task or driver call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa
import uvloop

from hapax.client import (
    Admin,
    Committed,
    CommitToken,
    Consumer,
    HapaxError,
    Joined,
    MultiWriter,
    Producer,
    RetriableError,
    TopicPartition,
    Winner,
    Writer,
    blocking,
)
from hapax.client.admin import TopicInfo
from hapax.client.fetcher import Chunk
from hapax.client.raw_fetch import RawFetch
from hapax.client.settings import SETTINGS
from hapax.core.errors import ErrorCode
from hapax.runtime import supervision
from hapax_spark.arrow import OutputColumns
from hapax_spark.decoding import batches_to_arrow
from hapax_spark.errors import CheckpointError, lost
from hapax_spark.options import Options
from hapax_spark.sending import RowSender

log = logging.getLogger("hapax.spark")

T = TypeVar("T")

Where = tuple[str, int]
"""(topic, partition)"""


def _transactional_id(options: Options, scope: str) -> str:
    return options.transactional_id or f"{options.transactional_prefix}{scope}"


@dataclass(frozen=True)
class Token:
    """Names one micro-batch, or one batch write: the unit that takes effect once."""

    transactional_id: str
    scope: str
    value: int
    allow_unknown_history: bool = False

    @staticmethod
    def for_query(options: Options, query_id: str, batch_id: int) -> Token:
        """A query keeps its id in its checkpoint, so a restarted driver goes on in the same scope."""
        scope = options.scope or query_id
        return Token(_transactional_id(options, scope), scope, batch_id, options.allow_unknown_history)

    @staticmethod
    def for_write(options: Options, write_id: str) -> Token:
        """A batch write is a scope of its own with one commit."""
        scope = options.scope or write_id
        return Token(_transactional_id(options, scope), scope, 0, options.allow_unknown_history)

    def commit_token(self, records: int = 0, allow_other_count: bool = False) -> CommitToken:
        return CommitToken(self.scope, self.value, records, allow_other_count, self.allow_unknown_history)


_FETCH_BYTES = "2097152"
"""A task reads one partition: larger answers than a consumer of many asks for."""
_PAUSE_S = 0.2
"""Between two questions for what ought to be there soon."""
_GONE_AFTER_S = 2.0
"""How long an answer about offsets may take before it is asked whether the topics are there at all."""
_NO_SUCH_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_STEPS_TO_A_REQUEST = 3
"""Of the loop, from the beginning of a fetch to its bytes in the connection, where that is open."""


class TransactionLostError(RuntimeError):
    """The batch's transaction ended before the driver could commit it. Nothing of the batch is visible."""

    def __init__(self, token: Token, timeout_ms: int, reason: str) -> None:
        super().__init__(
            f"the transaction of batch {token.value} ({token.transactional_id}) ended before it could be committed: "
            f"{reason.rstrip('.')}. Nothing of the batch is visible and it may be replayed. If it had been silent for "
            f"longer than transaction.timeout.ms={timeout_ms}, raise that option or lower maxOffsetsPerTrigger"
        )


class TopicGoneError(LookupError):
    """Topics were deleted while their offsets were asked for."""

    def __init__(self, topics: Iterable[str]) -> None:
        names = ", ".join(repr(name) for name in sorted(topics))
        super().__init__(f"Topic {names} was deleted while the query asked for its offsets. Leave it out of the query")


_LOST = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
"""Codes by which brokers and coordinator refuse a writer whose transaction is over."""


class Cluster:
    """Use as `with Cluster(options) as cluster`. Calls raise the client's errors (`hapax.client.errors`)."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.settings = {"bootstrap.servers": options.bootstrap_servers, **options.client}
        # A client that is told another's settings refuses them; Spark's options are for all of them.
        self._admin_settings = {k: v for k, v in self.settings.items() if k in SETTINGS and "a" in SETTINGS[k].users}
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._open: list[Any] = []
        self._consumer: Consumer | None = None
        self._cluster_id: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects. A writer's transaction stays as it is: the driver decides it."""
        try:
            while self._open:
                self.run(self._open.pop().close())
        finally:
            self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def start(self, client: T) -> T:
        """Connects a client, which `close` disconnects."""
        self.run(client.start())  # type: ignore[attr-defined]
        self._open.append(client)
        return client

    # --- reading ---

    @property
    def cluster_id(self) -> str:
        if self._cluster_id is None:

            async def ask() -> str:
                async with Admin(self._admin_settings) as admin:
                    return (await admin.describe_cluster()).cluster_id

            self._cluster_id = self.run(ask())
        return self._cluster_id

    def _reader(self) -> Consumer:
        if self._consumer is None:

            async def make() -> Consumer:
                ours = {"isolation.level": "read_committed", "max.partition.fetch.bytes": _FETCH_BYTES}
                return Consumer({**ours, **self.settings, "enable.auto.commit": "false"})

            self._consumer = self.start(self.run(make()))
        return self._consumer

    def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Those of these topics that exist."""
        return self.run(self._topics(names))

    async def _topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        wanted = set(names)
        async with Admin(self._admin_settings) as admin:
            return {topic.name: topic for topic in await admin.list_topics() if topic.name in wanted}

    def earliest(self, partitions: Sequence[Where]) -> dict[Where, int]:
        return self._offsets(partitions, self._reader().beginning_offsets(_named(partitions)))

    def latest(self, partitions: Sequence[Where]) -> dict[Where, int]:
        """The last stable offsets: below them every transaction is decided."""
        return self._offsets(partitions, self._reader().end_offsets(_named(partitions)))

    def latest_from(self, least: Mapping[Where, int]) -> dict[Where, int]:
        """The last stable offsets as soon as they are so large, or what they are when default.api.timeout.ms is over:
        a new leader may not know at once how far its log is committed."""
        deadline = time.monotonic() + self._patience_s()
        while True:
            latest = self.latest(list(least))
            if all(latest[where] >= offset for where, offset in least.items()) or time.monotonic() > deadline:
                return latest
            self.run(asyncio.sleep(_PAUSE_S))

    def _patience_s(self) -> float:
        return int(self.settings.get("default.api.timeout.ms", 60_000)) / 1000

    def offsets_for_time(self, partitions: Sequence[Where], timestamp_ms: int) -> dict[Where, int]:
        """The first record at or after a time; the end where there is none."""
        asking = self._reader().offsets_for_times(dict.fromkeys(_named(partitions), timestamp_ms))
        found = self._ask_about(partitions, asking)
        latest = self.latest(partitions)
        result = {}
        for where in partitions:
            hit = found.get(TopicPartition(*where))  # type: ignore[arg-type]
            result[where] = latest[where] if hit is None else hit[0]
        return result

    def _offsets(
        self, partitions: Sequence[Where], asking: Coroutine[Any, Any, dict[TopicPartition, int]]
    ) -> dict[Where, int]:
        return {(p.topic, int(p.partition)): offset for p, offset in self._ask_about(partitions, asking).items()}

    def _ask_about(self, partitions: Sequence[Where], asking: Coroutine[Any, Any, T]) -> T:
        """Raises TopicGoneError, soon: the client waits for a topic that is not there, which might be coming."""
        names = {topic for topic, _ in partitions}

        async def watched() -> T:
            answer = supervision.judged(asking)
            try:
                while not (await asyncio.wait([answer], timeout=_GONE_AFTER_S))[0]:
                    with contextlib.suppress(HapaxError):  # while nobody can say, the answer may come
                        if gone := names - set(await self._topics(names)):
                            raise TopicGoneError(gone)
            finally:
                answer.cancel()
            return answer.result()

        return self.run(watched())

    def committed_rows(
        self, topic: str, partition: int, topic_id: str, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Committed records with start <= offset < end, in order; `end` is at most the last stable offset. The next
        answer is on its way while one is decoded. Raises DataLossError, HapaxError."""
        consumer, fail = self._reader(), self.options.fail_on_data_loss
        name = f"{topic}-{partition}"
        position = start
        coming = self._fetch(consumer, topic, partition, topic_id, position) if start < end else None
        quiet_since = time.monotonic()
        try:
            while coming is not None:
                try:
                    answer = self.run(_outcome(coming))
                except HapaxError as error:
                    if error.code in _NO_SUCH_TOPIC:
                        lost(f"Topic {topic!r} was deleted while offsets {position} to {end - 1} of partition "
                             f"{partition} were to be read", "Use a new checkpointLocation", fail)  # fmt: skip
                        return
                    if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
                    first = min(max(self.earliest([(topic, partition)])[topic, partition], position), end)
                    lost(f"Records {position} to {first - 1} of {name} were deleted while the query read them",
                         "Let the topic keep its records longer (retention.ms, retention.bytes)", fail)  # fmt: skip
                    position = first
                    coming = self._fetch(consumer, topic, partition, topic_id, position) if position < end else None
                    continue
                batches = list(Chunk(answer.data, answer.aborted, check_crcs=True).batches())
                if not batches:  # a new leader does not know yet how far its log is committed
                    if time.monotonic() > quiet_since + self._patience_s():
                        lost(f"{name} ends at offset {position}, but the query reads up to {end}: records are not in "
                             "the log any more (was a broker's older copy put back?)",
                             "Use a new checkpointLocation with startingOffsets", fail)  # fmt: skip
                        return
                    self.run(asyncio.sleep(_PAUSE_S))
                else:
                    quiet_since = time.monotonic()
                    position = batches[-1][0].next_offset
                coming = self._fetch(consumer, topic, partition, topic_id, position) if position < end else None
                visible = [
                    (header, at) for header, at, seen in batches
                    if seen and header.last_offset >= start and header.base_offset < end
                ]  # fmt: skip
                if visible:
                    yield batches_to_arrow(
                        answer.data, visible, topic, partition, start, end, self.options.include_headers
                    )
        finally:
            if coming is not None:
                coming.cancel()

    def _fetch(
        self, consumer: Consumer, topic: str, partition: int, topic_id: str, position: int
    ) -> asyncio.Task[RawFetch]:
        return self._begin(consumer.fetch((topic, partition), position, topic_id=topic_id))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work that goes on whenever the loop runs; its first request has left when this returns."""

        async def begin() -> asyncio.Task[T]:
            task = supervision.judged(work)
            for _ in range(_STEPS_TO_A_REQUEST):
                await asyncio.sleep(0)
            return task

        return self.run(begin())

    # --- writing ---

    def send_plainly(self, rows: Iterator[pa.RecordBatch], columns: OutputColumns) -> int:
        """At least once: an idempotent producer without a transaction. Returns the number of records."""

        async def make() -> Producer:
            return Producer({"enable.idempotence": "true", **self.settings})

        producer = self.start(self.run(make()))
        sender = RowSender(producer, columns, self.options, self.exists)
        records = 0
        for batch in rows:
            self.run(sender.send(batch))
            records += batch.num_rows
        self.run(producer.flush())
        return records

    async def exists(self, topic: str) -> bool:
        """A producer that is asked would create it."""
        return topic in await self._topics([topic])

    def join(self, token: Token, member_key: str, columns: OutputColumns) -> Attempt:
        """A place for one task attempt in the transaction of the token."""
        return Attempt(self, token, member_key, columns)

    def commit(self, token: Token, winners: Sequence[Winner], records: int, serial: int) -> Committed:
        """One decision for the whole batch; idempotent. Raises TransactionLostError."""
        named = token.commit_token(records, self.options.allow_other_record_count)
        try:
            return self.run(self._decide(token, lambda t: t.commit(named, winners, serial=serial)))
        except HapaxError as error:
            raise self.named(token, error) from error

    def named(self, token: Token, error: HapaxError) -> Exception:
        """What an error of a transaction means for the batch of the token."""
        if error.code in _LOST:
            return TransactionLostError(token, self.options.transaction_timeout_ms, str(error))
        if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return CheckpointError(
                f"Spark is at batch {token.value}, but the cluster {self.cluster_id!r} knows no commit of the scope "
                f"{token.scope!r}: the checkpoint was written against another cluster, or so long ago that the cluster "
                "forgot. Use the cluster that it belongs to, or a new checkpointLocation; allowUnknownHistory=true goes"
                " on where you know that every batch before was committed"
            )
        return error

    def abort(self, token: Token, serial: int) -> None:
        self.run(self._decide(token, lambda t: t.abort(token.commit_token(), serial=serial)))

    async def _decide(self, token: Token, call: Any) -> Any:
        async with MultiWriter(self.settings, token.transactional_id) as transactions:
            return await call(transactions)


class Attempt:
    """One task attempt's place in its batch's transaction, which it keeps open from here until `leave`.

    It is taken up at the first row, or by the thread that keeps it open where the task computes for a third of the
    time-out before that: the transaction may belong to other tasks, which have long ended.
    """

    def __init__(self, cluster: Cluster, token: Token, member_key: str, columns: OutputColumns) -> None:
        self._cluster, self._token, self._member_key, self._columns = cluster, token, member_key, columns
        self._timeout_ms = cluster.options.transaction_timeout_ms
        self._transactions: MultiWriter | None = None
        self._joined: Joined | None = None
        self._writer: Writer | None = None
        self._sender: RowSender | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._keep_open, name="hapax-renewal", daemon=True).start()

    def write(self, rows: pa.RecordBatch) -> None:
        """Sends rows; does nothing where the token was committed before. Raises TransactionLostError."""
        with self._losses_named():
            if self._joined is None:
                self._join()
            if self._sender is not None:
                self._cluster.run(self._sender.send(rows))

    def _join(self) -> None:
        async def make() -> MultiWriter:
            return MultiWriter(self._cluster.settings, self._token.transactional_id)

        self._transactions = transactions = self._cluster.start(self._cluster.run(make()))
        joining = transactions.join(self._token.commit_token(), self._member_key, timeout_ms=self._timeout_ms)
        self._joined = joined = self._cluster.run(joining)
        if not joined.already_committed:

            async def make_writer() -> Writer:
                return transactions.writer(joined)

            self._writer = self._cluster.start(self._cluster.run(make_writer()))
            self._sender = RowSender(
                self._writer, self._columns, self._cluster.options, self._cluster.exists
            )

    @property
    def serial(self) -> int:
        """Of the transaction in which records were written; 0: none were."""
        return self._joined.serial if self._writer is not None and self._joined is not None else 0

    def finish(self) -> Winner | None:
        """Everything is stored: what the commit has to name; None where nothing was written. The driver has the
        whole time-out from here to commit. Raises TransactionLostError."""
        if self._writer is None:
            return None
        assert self._transactions is not None and self._joined is not None
        with self._losses_named():
            winner = self._cluster.run(self._writer.finish())
            self._ended.set()
            self._cluster.run(self._transactions.renew(self._joined, self._timeout_ms))
        return winner

    def leave(self) -> None:
        """The task ends here, well or not: the transaction is no longer kept open for its sake."""
        self._ended.set()

    @contextlib.contextmanager
    def _losses_named(self) -> Iterator[None]:
        try:
            yield
        except HapaxError as error:
            raise self._cluster.named(self._token, error) from error

    def _keep_open(self) -> None:
        """Pushes the deadline out while the task works, however long it computes between two rows. A thread with
        connections of its own, which are only made where a task takes a third of the time-out."""
        while not self._ended.wait(self._timeout_ms / 3000):
            try:
                with blocking.MultiWriter(self._cluster.settings, self._token.transactional_id) as transactions:
                    # Joining twice under one key gives the same place, whichever thread is first.
                    joined = self._joined or transactions.join(
                        self._token.commit_token(), self._member_key, timeout_ms=self._timeout_ms
                    )
                    if joined.already_committed:
                        return
                    while not self._ended.is_set():
                        transactions.renew(joined, self._timeout_ms)
                        self._ended.wait(self._timeout_ms / 3000)
            except RetriableError as error:
                log.warning("renewing the transaction: %s", error)
            except HapaxError as error:
                log.error("the transaction cannot be kept open: %s", error)  # the task's next write says so too
                return


async def _outcome(task: asyncio.Task[T]) -> T:
    return await task


def _named(partitions: Iterable[Where]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in partitions]  # type: ignore[arg-type]
