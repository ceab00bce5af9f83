"""Records that wait to be sent: one open batch for each partition, and the memory that all batches take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from hapax.client.records import DeliveryReport, Header
from hapax.codec.records import RecordBatchBuilder
from hapax.core.partition.values import Condition
from hapax.core.types import TopicPartition

RECORD_OVERHEAD = 70
"""Upper bound, in bytes, of a record's size beyond its key, value and headers, with its share of an otherwise empty
batch's header."""


class OpenBatch:
    """A batch being filled; once closed, the content of a `Batch` of the producer machine."""

    __slots__ = ("builder", "bytes", "condition", "created_ms", "data", "deliveries", "full", "records", "timestamps")

    def __init__(self, builder: RecordBatchBuilder, created_ms: int) -> None:
        self.builder = builder
        self.created_ms = created_ms
        self.records = 0
        self.bytes = 0
        """Before compression: the bytes that it takes of buffer.memory."""
        self.full = False
        self.data: bytearray | memoryview = bytearray()
        self.deliveries: list[asyncio.Future[DeliveryReport] | None] = []
        """One for each record; None where it is sent without a report. For a batch that was handed over whole: none, or
        one for its first record."""
        self.timestamps: list[int] = []
        self.condition: Condition | None = None
        """Under which the leader appends it."""

    def close(self) -> None:
        self.data = self.builder.build()


class Accumulator:
    def __init__(self, *, batch_size: int, compression: int, memory: int) -> None:
        self.open: dict[TopicPartition, OpenBatch] = {}
        self._batch_size = batch_size
        self._compression = compression
        self._free = memory
        self._promised = 0
        """The part of the free bytes that was granted to waiters that have not run yet."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def has_room(self, size: int) -> bool:
        return self._free - self._promised >= size and not self._waiting

    async def room(self, size: int) -> None:
        """Waits until `size` bytes are free, first come, first served. Take them before the next await. Cancelling the
        wait gives the place up, even just after the bytes were granted. Raises the error that `close_waiting` was
        given."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, waiting)
        self._waiting.append(entry)
        try:
            await waiting
        except BaseException:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._promised -= size
            self._wake()
            raise
        self._promised -= size

    def close_waiting(self, error: Exception) -> None:
        """Nothing more will be sent: all callers that wait for room get `error`."""
        while self._waiting:
            _, waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(error)

    @property
    def room_left(self) -> int:
        """Bytes of buffer.memory."""
        return self._free

    def free(self, size: int) -> None:
        self._free += size
        self._wake()

    def append(
        self,
        partition: TopicPartition,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        delivery: asyncio.Future[DeliveryReport] | None,
        size: int,
        now_ms: int,
    ) -> OpenBatch | None:
        """Adds a record. Returns the partition's previous batch, closed, if it was full."""
        batch = self.open.get(partition)
        pushed_out = None
        if batch is not None and not batch.builder.append(timestamp_ms, key, value, headers):
            pushed_out = self.close(partition)
            batch = None
        if batch is None:
            builder = RecordBatchBuilder(compression=self._compression, limit=self._batch_size)
            builder.append(timestamp_ms, key, value, headers)  # raises TypeError for what is not bytes
            batch = self.open[partition] = OpenBatch(builder, now_ms)
        batch.records += 1
        batch.deliveries.append(delivery)
        batch.timestamps.append(timestamp_ms)
        batch.bytes += size
        batch.full = batch.bytes >= self._batch_size
        self._free -= size
        return pushed_out

    def conditional(
        self, records: Sequence[tuple[bytes | None, bytes | None, Sequence[Header]]], timestamp_ms: int, size: int,
        condition: Condition, now_ms: int,
    ) -> OpenBatch:
        """Makes a closed batch of these records (key, value, headers), all of one time, however large."""
        batch = OpenBatch(RecordBatchBuilder(compression=self._compression), now_ms)
        loop = asyncio.get_running_loop()
        for key, value, headers in records:
            batch.builder.append(timestamp_ms, key, value, headers)
            batch.deliveries.append(loop.create_future())
            batch.timestamps.append(timestamp_ms)
        batch.records, batch.bytes, batch.condition = len(records), size, condition
        batch.close()
        self._free -= size
        return batch

    def whole(self, data: bytearray | memoryview, records: int, now_ms: int) -> OpenBatch:
        """Makes a closed batch of one that was built elsewhere."""
        batch = OpenBatch(RecordBatchBuilder(), now_ms)
        batch.data, batch.records, batch.bytes = data, records, len(data)
        self._free -= batch.bytes
        return batch

    def close(self, partition: TopicPartition) -> OpenBatch:
        batch = self.open.pop(partition)
        batch.close()
        return batch

    def drop_open(self) -> Iterator[OpenBatch]:
        """Removes the open batches without sending them."""
        while self.open:
            yield self.open.popitem()[1]

    def _wake(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free - self._promised:
            size, waiting = self._waiting.popleft()
            if not waiting.done():
                self._promised += size
                waiting.set_result(None)
