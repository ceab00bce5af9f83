"""A compacted topic under writers that delete and readers that remember every key.

Any reading from the beginning to the end, whenever it begins, must end with the newest value of each key, unless it
took longer than the retention of tombstones. A lookup by time must not pass a record that is certainly there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from hapax.client import Consumer, Producer, TopicPartition
from hapax_checker.keys import Current, KeyWrite, Reading, by_time, newest_of_each_key
from hapax_sim.clients import Life, Program
from hapax_sim.parts.part import PartTopic, a_few_of_each

KEYS: Final = "keys"
_TOMBSTONES_STAY_S: Final = 10.0
_KEYS: Final = 36
"""Of each writer. The first keys are written every second, the last ones every 15 s, which is longer than the retention
of tombstones.
"""
_MOST_LEFT: Final = 700
"""Maximum number of records left after compaction has finished: each key once, as many again below the ratio at which
compaction starts, and the content of two segments."""
_COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_WHERE: Final = TopicPartition(KEYS, 0)  # type: ignore[arg-type]


class _Read(NamedTuple):
    offset: int
    timestamp: int
    key: str
    value: str | None


class Keys:
    topics: Mapping[str, PartTopic] = {
        KEYS: PartTopic(1, {
            "cleanup.policy": "compact", "segment.bytes": "3000",
            "delete.retention.ms": str(int(_TOMBSTONES_STAY_S * 1000)),
        })
    }  # fmt: skip

    def __init__(self) -> None:
        self.writes: list[KeyWrite] = []
        """In the order in which they were sent. Each key has one writer."""
        self.issued: dict[str, int] = {}
        """Key -> the number of the newest write that has begun."""
        self.found: list[str] = []

    def programs(self) -> dict[str, Program]:
        return {"keeper-0": self.write, "keeper-1": self.write, "scanner-0": self.scan}

    # --- writers

    async def write(self, life: Life) -> None:
        rng = life.rng
        mine = life.name.rpartition("-")[2]
        plainly = life.writing() | {"linger.ms": "5"}
        compressing = plainly | {"compression.type": rng.choice(_COMPRESSIONS)}
        async with Producer(plainly, ports=life.ports) as plain, Producer(compressing, ports=life.ports) as other:
            while not life.stopping():
                producer = rng.choice((plain, other))  # a key may be compressed in one batch and its deletion not
                waiting: list[tuple[int, asyncio.Future[object]]] = []
                try:
                    for _ in range(rng.randrange(1, 8)):
                        key = f"{mine}.{int(_KEYS * rng.random() ** 3)}"
                        number = len(self.writes)
                        value = None if rng.random() < 0.35 else f"{number}." + "x" * rng.randrange(30)
                        now = life.ports.clock.now_ms()
                        # Clients set a record's time to the time of its event, which may be long ago.
                        when = now - rng.randrange(1, 90_000) if rng.random() < 0.3 else now
                        self.writes.append(KeyWrite(key, value, when))
                        self.issued[key] = number
                        content = None if value is None else value.encode()
                        sent = await producer.send(KEYS, content, key.encode(), partition=0, timestamp_ms=when)
                        waiting.append((number, sent))  # type: ignore[arg-type]
                    for _, sent_one in waiting:
                        await sent_one
                finally:
                    for number, sent_one in waiting:
                        if sent_one.done() and not sent_one.cancelled() and sent_one.exception() is None:
                            offset = sent_one.result().offset  # type: ignore[attr-defined]
                            self.writes[number] = self.writes[number]._replace(offset=offset)
                await life.pause()

    # --- readers

    async def scan(self, life: Life) -> None:
        while not life.stopping():
            async with Consumer(self._reading(life), ports=life.ports) as consumer:
                for _ in range(5):
                    await self._look_up(life, consumer, await self._once(life, consumer))
                    await life.pause()

    @staticmethod
    def _reading(life: Life) -> dict[str, str]:
        return life.settings(
            auto__offset__reset="earliest", enable__auto__commit="false", max__partition__fetch__bytes="1500")

    async def _once(self, life: Life, consumer: Consumer) -> list[_Read]:
        """Reads from the beginning to the end that the log had at the start of the reading."""
        loop = asyncio.get_running_loop()
        known = len(self.writes)
        end = (await consumer.end_offsets([_WHERE]))[_WHERE]
        consumer.assign([_WHERE])
        began = loop.time()
        consumer.seek(_WHERE, (await consumer.beginning_offsets([_WHERE]))[_WHERE])
        read: list[_Read] = []
        slowly = not life.stopping() and life.rng.random() < 0.5
        while await consumer.position(_WHERE) < end:
            if slowly:  # so that compaction runs in the middle of the reading
                await asyncio.sleep(life.rng.uniform(0, 0.5))
            for record in await consumer.poll(timeout_ms=200, max_records=20 if slowly else 1000):
                assert record.key is not None
                value = None if record.value is None else record.value.decode()
                read.append(_Read(record.offset, record.timestamp_ms, record.key.decode(), value))
        read = [one for one in read if one.offset < end]
        took = loop.time() - began
        life.recorder.counts["scan of keys"] += 1
        life.recorder.loop.trace(f"{life.process} read {len(read)} keys below {end} in {took:.3f} s")
        reading = Reading(end, took < _TOMBSTONES_STAY_S, [(one.offset, one.key, one.value) for one in read])
        self.found += newest_of_each_key(self.writes, reading, known)
        return read

    async def _look_up(self, life: Life, consumer: Consumer, read: list[_Read]) -> None:
        """Asks at which offset a time begins, while compaction runs."""
        if not read:
            return
        chosen = life.rng.choice(read).timestamp + life.rng.choice((-1, 0, 1))
        answer = (await consumer.offsets_for_times({_WHERE: chosen}))[_WHERE]
        newest = {key: self.writes[number].value for key, number in self.issued.items()}
        there = [Current(one.offset, one.timestamp) for one in read if one.value and newest.get(one.key) == one.value]
        self.found += by_time(there, chosen, None if answer is None else answer[0])
        life.recorder.counts["lookup by time"] += 1

    # --- the end

    async def finish(self, life: Life) -> None:
        """Returns when compaction has finished its work, whichever broker leads."""
        loop = asyncio.get_running_loop()
        async with Consumer(self._reading(life), ports=life.ports) as consumer:
            limit = loop.time() + 90
            while True:
                read = await self._once(life, consumer)
                for _ in range(20):
                    await self._look_up(life, consumer, read)
                if len(read) <= _MOST_LEFT:
                    return
                if loop.time() > limit:
                    self.found.append(f"never-compacted: {KEYS} has {len(read)} records of {len(self.issued)} keys")
                    return
                await asyncio.sleep(5)

    def judge(self) -> list[str]:
        return a_few_of_each(self.found)
