"""A client that writes invalid records: batches with a valid header and checksum around garbage and around compressed
zeros, to a compacted topic of its own. No other client may be affected."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Final

from hapax.client import Consumer, HapaxError, Producer, TopicPartition
from hapax.codec.batch import assemble_batch
from hapax.codec.records import Compression
from hapax_sim.clients import Life, Program
from hapax_sim.parts.part import PartTopic

_TOPIC: Final = "garbage"
_WHERE: Final = TopicPartition(_TOPIC, 0)  # type: ignore[arg-type]
_ZEROS: Final = 4 << 20


class Hostile:
    topics: Mapping[str, PartTopic] = {
        _TOPIC: PartTopic(1, {"cleanup.policy": "compact", "segment.bytes": "3000", "delete.retention.ms": "1000"})
    }

    def programs(self) -> dict[str, Program]:
        return {"hostile-0": self.write}

    async def write(self, life: Life) -> None:
        rng = life.rng
        reading = life.settings(enable__auto__commit="false", default__api__timeout__ms="5000")
        async with (
            Producer(life.writing(), ports=life.ports) as producer,
            Consumer(reading, ports=life.ports) as consumer,
        ):
            while not life.stopping():
                now = life.ports.clock.now_ms()
                compression = rng.choice(tuple(Compression))
                garbage = bytes(rng.randrange(256) for _ in range(rng.randrange(30, 400)))
                if compression is Compression.GZIP:
                    garbage = gzip.compress(bytes(_ZEROS) if rng.random() < 0.2 else garbage, mtime=0)
                count = rng.randrange(1, 4)
                batch = assemble_batch(
                    garbage, record_count=count, attributes=int(compression), base_timestamp=now, max_timestamp=now)
                try:
                    await producer.send_batch(_TOPIC, 0, batch, count)
                    await producer.flush()
                    await consumer.offsets_for_times({_WHERE: now - rng.randrange(5_000)})
                except HapaxError:
                    life.recorder.counts["hostile refused"] += 1
                await life.pause()

    async def finish(self, life: Life) -> None: ...

    def judge(self) -> list[str]:
        return []
