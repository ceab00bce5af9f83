"""The native client as Spark's workers need it: blocking, one loop for the life of one task or driver call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

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
    Record,
    RetriableError,
    TopicPartition,
    Winner,
    Writer,
    blocking,
)
from hapax.core.errors import ErrorCode
from hapax_spark.arrow import OutputRow
from hapax_spark.options import OptionError, Options

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


class TransactionLostError(RuntimeError):
    """The batch's transaction ended before the driver could commit it. Nothing of the batch is visible."""

    def __init__(self, token: Token, timeout_ms: int, reason: str) -> None:
        super().__init__(
            f"the transaction of batch {token.value} ({token.transactional_id}) ended before it could be committed: "
            f"{reason.rstrip('.')}. Nothing of the batch is visible and it may be replayed. If it had been silent for "
            f"longer than transaction.timeout.ms={timeout_ms}, raise that option or lower maxOffsetsPerTrigger"
        )


_LOST = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
"""Codes by which brokers and coordinator refuse a writer whose transaction is over."""


class Cluster:
    """Use as `with Cluster(options) as cluster`. Calls raise the client's errors (`hapax.client.errors`)."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.settings = {"bootstrap.servers": options.bootstrap_servers, **options.client}
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
                async with Admin(self.settings) as admin:
                    return (await admin.describe_cluster()).cluster_id

            self._cluster_id = self.run(ask())
        return self._cluster_id

    def _reader(self) -> Consumer:
        if self._consumer is None:

            async def make() -> Consumer:
                settings = {"isolation.level": "read_committed", "auto.offset.reset": "none", **self.settings}
                return Consumer({**settings, "enable.auto.commit": "false"})

            self._consumer = self.start(self.run(make()))
        return self._consumer

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Partition numbers of each topic. Raises OptionError for a topic that does not exist."""
        names = list(topics)

        async def ask() -> dict[str, list[int]]:
            async with Admin(self.settings) as admin:
                found = {topic.name: topic for topic in await admin.list_topics()}
            missing = [name for name in names if name not in found]
            if missing:
                raise OptionError(f"topic {missing[0]!r} does not exist; create it, or mend the option 'subscribe'")
            return {name: sorted(p.partition for p in found[name].partitions) for name in names}

        return self.run(ask())

    def earliest(self, partitions: Sequence[Where]) -> dict[Where, int]:
        return self._offsets(self._reader().beginning_offsets(_named(partitions)))

    def latest(self, partitions: Sequence[Where]) -> dict[Where, int]:
        """The last stable offsets: below them every transaction is decided."""
        return self._offsets(self._reader().end_offsets(_named(partitions)))

    def offsets_for_time(self, partitions: Sequence[Where], timestamp_ms: int) -> dict[Where, int]:
        """The first record at or after a time; the end where there is none."""
        found = self.run(self._reader().offsets_for_times(dict.fromkeys(_named(partitions), timestamp_ms)))
        latest = self.latest(partitions)
        result = {}
        for where in partitions:
            hit = found.get(TopicPartition(*where))  # type: ignore[arg-type]
            result[where] = latest[where] if hit is None else hit[0]
        return result

    def _offsets(self, asking: Coroutine[Any, Any, dict[TopicPartition, int]]) -> dict[Where, int]:
        return {(p.topic, int(p.partition)): offset for p, offset in self.run(asking).items()}

    def committed_records(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        """Committed records with start <= offset < end, in order; `end` is at most the last stable offset."""
        if start >= end:
            return
        consumer = self._reader()
        where = TopicPartition(topic, partition)  # type: ignore[arg-type]

        async def begin() -> None:
            consumer.assign([where])
            consumer.seek(where, start)

        async def read() -> tuple[list[Record], int]:
            records = await consumer.poll(timeout_ms=500, max_records=20_000)
            return records, await consumer.position(where)

        self.run(begin())
        while True:
            records, position = self.run(read())
            if records and records[-1].offset >= end:
                yield from (record for record in records if record.offset < end)
                return
            yield from records
            # The range may end in control batches or aborted records: no record tells, the position does.
            if position >= end:
                return

    # --- writing ---

    def send_plainly(self, rows: Iterator[OutputRow]) -> int:
        """At least once: an idempotent producer without a transaction. Returns the number of records."""

        async def make() -> Producer:
            return Producer({"enable.idempotence": "true", **self.settings})

        producer = self.start(self.run(make()))
        records = self.run(_send_all(producer, rows))
        self.run(producer.flush())
        return records

    def join(self, token: Token, member_key: str) -> Attempt:
        """A place for one task attempt in the transaction of the token."""
        return Attempt(self, token, member_key)

    def commit(self, token: Token, winners: Sequence[Winner], records: int, serial: int) -> Committed:
        """One decision for the whole batch; idempotent. Raises TransactionLostError."""
        named = token.commit_token(records, self.options.allow_other_record_count)
        try:
            return self.run(self._decide(token, lambda t: t.commit(named, winners, serial=serial)))
        except HapaxError as error:
            if error.code in _LOST:
                raise TransactionLostError(token, self.options.transaction_timeout_ms, str(error)) from error
            raise

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

    def __init__(self, cluster: Cluster, token: Token, member_key: str) -> None:
        self._cluster, self._token, self._member_key = cluster, token, member_key
        self._timeout_ms = cluster.options.transaction_timeout_ms
        self._transactions: MultiWriter | None = None
        self._joined: Joined | None = None
        self._writer: Writer | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._keep_open, name="hapax-renewal", daemon=True).start()

    def write(self, rows: Iterator[OutputRow]) -> None:
        """Sends rows; does nothing where the token was committed before. Raises TransactionLostError."""
        with self._losses_named():
            if self._joined is None:
                self._join()
            if self._writer is not None:
                self._cluster.run(_send_all(self._writer, rows))

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
            if error.code in _LOST:
                raise TransactionLostError(self._token, self._timeout_ms, str(error)) from error
            raise

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


async def _send_all(producer: Producer, rows: Iterator[OutputRow]) -> int:
    records = 0
    for row in rows:
        await producer.send(
            row.topic,
            row.value,
            row.key,
            partition=row.partition,
            timestamp_ms=row.timestamp,
            headers=row.headers,
        )
        records += 1
    return records


def _named(partitions: Iterable[Where]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in partitions]  # type: ignore[arg-type]
