"""Sends Arrow batches of rows through a producer: chooses each row's topic and partition, and builds record batches."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hapax.client import HapaxError, MultiWriter, Producer
from hapax.client.settings import COMPRESSION, SETTINGS
from hapax.codec.batch import HEADER_SIZE, assemble_batch
from hapax.codec.compression import compress
from hapax_spark.arrow import OutputColumns, SchemaError
from hapax_spark.encoding import Numbers, Rows, batches, encode_headers, partitions_of
from hapax_spark.options import OptionError, Options

BATCH_SIZE: Final = 262_144
"""Bytes at which a batch is full, unless the option `batch.size` is set. It is large because a task has many rows."""

_LARGEST: Final = ("max.request.size", "buffer.memory")
"""Settings that limit the size of a batch."""


class RowSender:
    """Sends the rows of one task attempt."""

    def __init__(
        self, client: MultiWriter, producer: Callable[[], Awaitable[Producer | None]],
        columns: OutputColumns, options: Options,
    ) -> None:
        """`client` knows the topics. `producer` is called when a batch of records is ready to be sent; None: the
        records are not needed."""
        self._client = client
        self._producer = producer
        self._finding = asyncio.Lock()
        self._columns = columns
        self._topic = options.topic
        largest = min(int(options.client.get(name, str(SETTINGS[name].default))) for name in _LARGEST)
        self._limit = min(int(options.client.get("batch.size", BATCH_SIZE)), largest - HEADER_SIZE)
        self._compression = COMPRESSION[options.client.get("compression.type", "none").lower()]
        self._partitions: dict[str, int] = {}
        """Topic -> its number of partitions."""
        self._turns: dict[str, int] = {}
        """Topic -> number of batches without keys so far; these go to the partitions in turn."""

    def first_partition(self) -> tuple[str, int] | None:
        """(topic, partition) of the first batch, if that is known before there are rows: rows without keys go to one
        topic, whose partitions an earlier task has asked for."""
        columns, topic = self._columns, self._topic
        if topic is None or columns.key is not None or columns.partition is not None:
            return None
        try:
            available = self._client.available_partitions(topic)
        except KeyError:
            return None
        turn = self._turns.setdefault(topic, random.randrange(1 << 16))
        return (topic, available[turn % len(available)]) if available else None

    async def look_up(self) -> None:
        """Asks for the option's topic, so that its metadata is there when the first row is."""
        if self._topic is not None:
            with contextlib.suppress(HapaxError, OptionError):  # a task that has rows asks again
                await self._find(self._topic)

    async def _find(self, topic: str) -> None:
        """Raises OptionError, HapaxError."""
        async with self._finding:
            if topic in self._partitions:
                return
            if not await self._client.existing_topics([topic]):
                raise OptionError(f"Topic {topic!r} does not exist. Create it, or fix the option or column 'topic'")
            self._partitions[topic] = await self._client.partitions_of(topic)

    async def send(self, batch: pa.RecordBatch) -> None:
        """Raises SchemaError for a row that has nowhere to go, HapaxError."""
        if not batch.num_rows:
            return
        rows = _rows(batch, self._columns)
        given = None if self._columns.partition is None else batch.column(self._columns.partition)
        for topic, places in self._by_topic(batch):
            await self._find(topic)
            of_topic = rows if places is None else rows.take(places)
            wanted = given if given is None or places is None else given.take(pa.array(places))
            for partition, part in self._by_partition(of_topic, wanted, topic):
                for built in batches(part, self._limit):
                    data = compress(self._compression, built.data)
                    assembled = assemble_batch(
                        data, record_count=built.records, attributes=self._compression,
                        base_timestamp=built.base_timestamp, max_timestamp=built.max_timestamp)
                    producer = await self._producer()
                    if producer is None:
                        return
                    chosen = self._next(topic) if partition is None else partition
                    await producer.send_batch(topic, chosen, assembled, built.records)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Numbers | None]]:
        """Topics and the rows of each; None: all."""
        if self._topic is not None:
            yield self._topic, None
            return
        assert self._columns.topic is not None
        column = batch.column(self._columns.topic)
        if column.null_count:
            raise SchemaError("A row has a null topic. Filter such rows, or set the option 'topic'")
        coded = column.dictionary_encode()
        codes = np.asarray(coded.indices)
        for code, topic in enumerate(coded.dictionary.to_pylist()):
            yield topic, np.flatnonzero(codes == code)

    def _by_partition(
        self, rows: Rows, given: pa.Array | None, topic: str
    ) -> Iterator[tuple[int | None, Rows]]:
        """Partitions and the rows of each, in order; None: whichever is next."""
        partitions = self._partitions[topic]
        if given is None and rows.keys.null_count == len(rows.keys):
            yield None, rows
            return
        chosen = np.full(len(rows.timestamps), -1, np.int64)
        keyed = np.asarray(rows.keys.is_valid())
        if keyed.all():
            chosen = partitions_of(rows.keys, partitions)
        elif keyed.any():
            chosen[keyed] = partitions_of(rows.keys.drop_null(), partitions)
        if given is not None:
            named = np.asarray(given.is_valid())
            chosen[named] = numbers = np.asarray(given.drop_null(), np.int64)
            outside = numbers[(numbers < 0) | (numbers >= partitions)]
            if len(outside):
                raise SchemaError(
                    f"A row names partition {outside[0]} of topic {topic!r}, which has 0 to {partitions - 1}. Fix "
                    "the column 'partition', or add partitions to the topic"
                )
        for partition in np.unique(chosen):
            part = rows.take(np.flatnonzero(chosen == partition))
            yield (None if partition < 0 else int(partition)), part

    def _next(self, topic: str) -> int:
        turn = self._turns.get(topic, random.randrange(1 << 16))
        self._turns[topic] = turn + 1
        available = self._client.available_partitions(topic)
        return available[turn % len(available)]


def _rows(batch: pa.RecordBatch, columns: OutputColumns) -> Rows:
    count = batch.num_rows
    now = time.time_ns() // 1_000_000
    times: Any = np.full(count, now, np.int64)
    if columns.timestamp is not None:
        in_ms = batch.column(columns.timestamp).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        times = np.asarray(pc.fill_null(in_ms, now), np.int64)
    headers = None if columns.headers is None else encode_headers(batch.column(columns.headers))
    keys = pa.nulls(count, pa.binary()) if columns.key is None else _binary(batch.column(columns.key))
    return Rows(keys, _binary(batch.column(columns.value)), times, headers)


def _binary(array: pa.Array) -> pa.Array:
    return array if array.type == pa.binary() else array.cast(pa.binary())
