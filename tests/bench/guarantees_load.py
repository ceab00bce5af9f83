"""The load of `bench.guarantees`: one librdkafka producer with the settings of a guarantee, and one committed reader.

The same program runs against every cluster. It measures two things apart from each other, because a queue in front of
a busy server would hide what a single write takes:

- `flow`: records are sent as fast as the producer takes them, or transactions back to back, and nothing is read.
- `one_at_a_time`: one record, or one transaction, is sent. The next one follows when the reader has it.
"""

from __future__ import annotations

import contextlib
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS: Final = 4
VALUE_BYTES: Final = 1_000
WAIT_S: Final = 60.0
WARM_UP_OPERATIONS: Final = 3
LEAST_OPERATIONS: Final = 5
MOST_BYTES: Final = 256_000_000
"""A flow ends with this many bytes, or the disk's cache would decide what it measures."""
_NO_LEADER_YET: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)
_NUMBER: Final = struct.Struct(">q")
_FILLER: Final = b"x" * (VALUE_BYTES - _NUMBER.size)
_Expected: TypeAlias = "queue.SimpleQueue[tuple[int, int] | None]"
_Seen: TypeAlias = "queue.SimpleQueue[float | Exception]"


@dataclass(frozen=True, slots=True)
class Row:
    """A guarantee: a row of the table."""

    name: str
    label: str
    settings: Mapping[str, object]
    """The producer's."""
    records: int = 0
    """Of each transaction; 0: no transactions."""

    @property
    def acknowledged(self) -> bool:
        return self.settings.get("acks") != 0


def _transactions(records: int) -> Row:
    label = "1 record" if records == 1 else f"{records:,} records"
    return Row(f"transaction_{records}", f"transaction of {label}", {"enable.idempotence": True}, records)


ROWS: Final = (
    Row("acks_0", "`acks=0`", {"acks": 0, "enable.idempotence": False}),
    Row("acks_1", "`acks=1`", {"acks": 1, "enable.idempotence": False}),
    Row("acks_all", "`acks=all`", {"acks": "all", "enable.idempotence": False}),
    Row("idempotent", "`acks=all`, idempotent", {"acks": "all", "enable.idempotence": True}),
    *(_transactions(records) for records in (1, 10, 100, 1_000, 10_000)),
)


@dataclass(frozen=True, slots=True)
class Flow:
    """What the producer did at full speed."""

    records: int
    seconds: float
    """Until all records were acknowledged; without acknowledgements, until a reader can read them."""
    transactions: int
    generator: float
    """Share of this time in which the thread that calls the producer was on a processor, 0 to 1."""
    lost: int
    """Records that the producer reported as sent, and the log does not have. Only without acknowledgements."""


@dataclass(slots=True)
class Times:
    """One entry for each record, or each transaction."""

    latency_ms: list[float] = field(default_factory=list)
    """From the (first) record's send to its acknowledgement, or to the commit's answer. Empty with acks=0."""
    delay_ms: list[float] = field(default_factory=list)
    """From the send, or the call of commit, until a read_committed reader has (all of) it."""


class LoadError(Exception):
    """The cluster did not do what every guarantee promises where nothing fails."""


class Load:
    """A topic of its own on one cluster, and the load of one guarantee on it."""

    def __init__(self, bootstrap: str, topic: str, row: Row, replicas: int) -> None:
        self._client = {"bootstrap.servers": bootstrap, "log_level": 2}
        self._topic = topic
        self._row = row
        self._replicas = replicas
        self._admin = AdminClient(self._client)
        self._failed: list[KafkaError] = []

    @contextlib.contextmanager
    def with_topic(self) -> Iterator[Load]:
        """The topic exists within the block."""
        new = NewTopic(self._topic, PARTITIONS, self._replicas)
        self._admin.create_topics([new])[self._topic].result(WAIT_S)
        try:
            _until(self._in_sync, f"replicas of {self._topic} in sync")
            yield self
        finally:
            self._admin.delete_topics([self._topic])[self._topic].result(WAIT_S)

    def _in_sync(self) -> bool:
        found = self._admin.list_topics(self._topic, timeout=WAIT_S).topics[self._topic].partitions.values()
        return len(found) == PARTITIONS and all(p.leader >= 0 and len(p.isrs) == self._replicas for p in found)

    # --- at full speed ---

    def flow(self, seconds: float, warm_up: float, cpu: Callable[[], float]) -> tuple[Flow, float]:
        """(what was sent, how much `cpu` rose meanwhile). `cpu`: CPU seconds that the servers have used so far. It is
        taken again when every in-sync replica has all records."""
        with self._producer({"linger.ms": 5, "delivery.report.only.error": True}) as producer:
            earlier = self._send_all(producer, warm_up)
            stored = earlier - self._settled(earlier)[0]
            used, began, thread = cpu(), time.perf_counter(), time.thread_time()
            sent = self._send_all(producer, seconds)
            ended, busy = time.perf_counter(), time.thread_time() - thread
            lost, ready = self._settled(stored + sent)
            used = cpu() - used
        if lost and self._row.acknowledged:
            raise LoadError(
                f"{self._topic}: {lost} of {sent} acknowledged records, or of their markers, are not in the log")
        spent = (ended if self._row.acknowledged else max(ended, ready)) - began
        transactions = sent // self._row.records if self._row.records else 0
        return Flow(sent - lost, spent, transactions, min(1.0, busy / spent), lost), used

    def _send_all(self, producer: Producer, seconds: float) -> int:
        """Sends for `seconds` and waits for the answers. Returns the number of records."""
        end = time.perf_counter() + seconds
        most = MOST_BYTES // VALUE_BYTES
        sent = 0
        if self._row.records:
            while sent < most and time.perf_counter() < end:
                self._transaction(producer, sent)
                sent += self._row.records
            return sent
        while sent < most and time.perf_counter() < end:
            for _ in range(100):
                self._send(producer, sent, sent)
                sent += 1
        self._flush(producer)
        return sent

    def _transaction(self, producer: Producer, number: int) -> float:
        """Returns the time of the call of commit."""
        producer.begin_transaction()
        for each in range(self._row.records):
            self._send(producer, number, number + each)
        called = time.perf_counter()
        producer.commit_transaction(WAIT_S)
        return called

    def _settled(self, records: int) -> tuple[int, float]:
        """(how many of these are missing in the topic, since when it has been so): waits until none is, or for a second
        in which none is added. Each transaction has a marker in every partition that it wrote to."""
        markers = records // self._row.records * min(self._row.records, PARTITIONS) if self._row.records else 0
        with contextlib.closing(self._reader("read_uncommitted")) as reader:
            found, since = -1, time.perf_counter()
            while found < records + markers and time.perf_counter() < since + 1.0:
                now = sum(high for _, high in self._watermarks(reader))
                if now > found:
                    found, since = now, time.perf_counter()
                time.sleep(0.005)
        if found > records + markers:
            raise LoadError(f"{self._topic}: {found - records - markers} records more than were sent")
        return records + markers - found, since

    # --- one at a time ---

    def one_at_a_time(self, seconds: float) -> Times:
        times = Times()
        with self._producer({"linger.ms": 0}) as producer, self._reading() as (expected, seen):
            number = 0
            end = time.perf_counter() + seconds
            while number < WARM_UP_OPERATIONS + LEAST_OPERATIONS or time.perf_counter() < end:
                expected.put((number, max(1, self._row.records)))
                began = time.perf_counter()
                if self._row.records:
                    asked = self._transaction(producer, number)
                    answered = time.perf_counter()
                else:
                    asked, answered = began, self._acknowledged(producer, number)
                found = seen.get(timeout=WAIT_S)
                if isinstance(found, Exception):
                    raise LoadError(f"{self._topic}: the reader failed: {found}") from found
                if number >= WARM_UP_OPERATIONS:
                    if self._row.acknowledged:
                        times.latency_ms.append((answered - began) * 1000)
                    times.delay_ms.append((found - asked) * 1000)
                number += 1
        return times

    def _acknowledged(self, producer: Producer, number: int) -> float:
        """Sends one record. Returns the time of its delivery report."""
        reported: list[float] = []

        def report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._failed.append(error)
            reported.append(time.perf_counter())

        self._send(producer, number, number, report)
        while not reported:
            producer.poll(WAIT_S)
        self._check()
        return reported[0]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tuple[_Expected, _Seen]]:
        """A committed reader in a thread of its own. It takes (number, count) and answers with the time at which it had
        as many records with this number. It waits in librdkafka, and so does the producer: neither holds the other
        up."""
        expected: _Expected = queue.SimpleQueue()
        seen: _Seen = queue.SimpleQueue()
        reader = self._reader("read_committed")
        ends = self._watermarks(reader)
        reader.assign([TopicPartition(self._topic, p, high) for p, (_, high) in enumerate(ends)])

        def read() -> None:
            try:
                while (wanted := expected.get()) is not None:
                    _read(reader, *wanted)
                    seen.put(time.perf_counter())
            except (LoadError, KafkaException) as error:
                seen.put(error)
            finally:
                reader.close()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield expected, seen
        finally:
            expected.put(None)
            thread.join(WAIT_S)

    # --- clients ---

    @contextlib.contextmanager
    def _producer(self, settings: Mapping[str, object]) -> Iterator[Producer]:
        transactional = {"transactional.id": self._topic} if self._row.records else {}
        producer = Producer({
            **self._client, "queue.buffering.max.kbytes": 16_384, "on_delivery": self._delivered,
            **self._row.settings, **transactional, **settings,
        })
        try:
            if self._row.records:
                producer.init_transactions(WAIT_S)
            yield producer
        finally:
            producer.close()

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def _send(
        self, producer: Producer, number: int, position: int,
        report: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:
        """`number`: stands in the record. `position`: decides its partition."""
        value = _NUMBER.pack(number) + _FILLER
        partition = position % PARTITIONS
        while True:
            try:
                if report is None:
                    producer.produce(self._topic, value, partition=partition)
                else:
                    producer.produce(self._topic, value, partition=partition, on_delivery=report)
                return
            except BufferError:
                producer.poll(0.002)

    def _flush(self, producer: Producer) -> None:
        left = producer.flush(WAIT_S)
        self._check()
        if left:
            raise LoadError(f"{self._topic}: {left} records without an answer in {WAIT_S:.0f} s")

    def _check(self) -> None:
        if self._failed:
            raise LoadError(f"{self._topic}: {len(self._failed)} records were not delivered: {self._failed[0]}")

    def _reader(self, isolation: str) -> Consumer:
        return Consumer({
            **self._client, "group.id": self._topic, "enable.auto.commit": False,
            "isolation.level": isolation})

    def _watermarks(self, reader: Consumer) -> list[tuple[int, int]]:
        """(first, end) of each partition, as this reader sees them. A new topic's leader may not lead yet."""
        found: list[tuple[int, int]] = []
        for number in range(PARTITIONS):
            deadline = time.monotonic() + WAIT_S
            while len(found) == number:
                try:
                    ends = reader.get_watermark_offsets(TopicPartition(self._topic, number), WAIT_S)
                except KafkaException as error:
                    if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
                    continue
                if ends is None:
                    raise LoadError(f"{self._topic}-{number}: no answer about its end in {WAIT_S:.0f} s")
                found.append(ends)
        return found


def _read(reader: Consumer, number: int, count: int) -> None:
    """Returns when it has read `count` records, all of them with this number."""
    deadline = time.perf_counter() + WAIT_S
    got = 0
    while got < count:
        for message in reader.consume(count - got, 1.0):
            if message.error() is not None:
                raise LoadError(f"the committed reader: {message.error()}")
            (found,) = _NUMBER.unpack_from(message.value())
            if found != number:
                raise LoadError(f"the committed reader expected a record of {number} and got one of {found}")
            got += 1
        if time.perf_counter() > deadline:
            raise LoadError(f"the committed reader has {got} of {count} records after {WAIT_S:.0f} s")


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise LoadError(f"timed out after {WAIT_S:.0f} s: no {what}")
        time.sleep(0.02)
