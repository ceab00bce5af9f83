"""What the tenants do meanwhile: one writes transactions, the other single records; and the count at the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from hapax.client import Consumer, Producer

PER_TRANSACTION: Final = 20
PER_FLUSH: Final = 20
SIZE: Final = 500
"""Bytes of each record."""
_PAUSE_S: Final = 0.02
_IDLE_MS: Final = 5_000

Settings = Mapping[str, str]


class Count(NamedTuple):
    """Records whose writing was acknowledged, and how they were read back."""

    written: int
    lost: int
    duplicated: int

    @property
    def sound(self) -> bool:
        return self.written > 0 and not self.lost and not self.duplicated


class Writer:
    """Writes numbered records until the block ends. An error of its producer is an error of the demo."""

    def __init__(self, settings: Settings, topic: str, transactional_id: str = "") -> None:
        self.topic = topic
        self.acknowledged = 0
        """All records below this number are stored."""
        self._settings = dict(settings)
        if transactional_id:
            self._settings["transactional.id"] = transactional_id
        self._transactional = bool(transactional_id)
        self._stop = asyncio.Event()
        self._wanted = 0
        self._reached = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self._write())
        try:
            yield
        finally:
            self._stop.set()
            await task

    async def _write(self) -> None:
        async with Producer(self._settings) as producer:
            while not self._stop.is_set():
                if self._transactional:
                    async with producer.transaction():
                        await self._send(producer, PER_TRANSACTION)
                    self._stored(PER_TRANSACTION)
                else:
                    await self._send(producer, PER_FLUSH)
                    await producer.flush()
                    self._stored(PER_FLUSH)
                await asyncio.sleep(_PAUSE_S)

    async def _send(self, producer: Producer, count: int) -> None:
        for number in range(self.acknowledged, self.acknowledged + count):
            await producer.send(self.topic, b"%d" % number + bytes(SIZE))

    def _stored(self, count: int) -> None:
        self.acknowledged += count
        if self.acknowledged >= self._wanted:
            self._reached.set()

    async def pace(self, seconds: float) -> float:
        """Records in a second, measured now."""
        before, began = self.acknowledged, time.monotonic()
        await asyncio.sleep(seconds)
        return (self.acknowledged - before) / (time.monotonic() - began)

    async def goes_on(self, timeout: float = 60.0) -> bool:
        """Whether records that are sent from now on are stored within this time."""
        self._reached.clear()
        self._wanted = self.acknowledged + 3 * PER_TRANSACTION
        try:
            async with asyncio.timeout(timeout):
                await self._reached.wait()
        except TimeoutError:
            return False
        return True


async def counted(settings: Settings, writer: Writer) -> Count:
    """Reads the topic to its end."""
    seen: Counter[int] = Counter()
    async with Consumer({
        **settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed",
    }) as consumer:
        partitions = await consumer.partitions(writer.topic)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            records = await consumer.poll(timeout_ms=_IDLE_MS)
            if not records:
                break
            seen.update(int((record.value or b"").partition(b"\0")[0]) for record in records)
    written = writer.acknowledged
    return Count(written, sum(number not in seen for number in range(written)), sum(seen.values()) - len(seen))
