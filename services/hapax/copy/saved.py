"""The copy's positions once more, in a compacted topic of its own on the target: the group's offsets expire.

Each transaction that commits positions also writes them there. So they are as exact as the group's offsets, and a copy
whose group has lost its offsets goes on with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from hapax.client.admin import Admin, NewTopic
from hapax.client.consumer import Consumer
from hapax.client.coordination import OffsetAndMetadata
from hapax.codec.records import RecordBatchBuilder
from hapax.copy.own_topic import records_of
from hapax.copy.writer import Batch
from hapax.core.types import PartitionIndex, TopicPartition

_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
"""Small segments: the last one is not compacted, and all of it is read."""
_BATCH_BYTES: Final = 256 << 10


class SavedPositions:
    def __init__(self, topic: str, target: Admin, reader: Consumer) -> None:
        """`reader`: of the target, read_committed."""
        self.topic = topic
        self._target = target
        self._reader = reader
        self._partition = TopicPartition(self.topic, PartitionIndex(0))

    async def prepare(self) -> None:
        """Creates the topic where it is missing. Raises HapaxError."""
        if not await self._target.list_topics([self.topic]):
            await self._target.create_topics([NewTopic(self.topic, 1, -1, _CONFIG)], exist_ok=True)

    async def read(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """By share. Of a record that cannot be read, the metadata are its text. Raises HapaxError; RetriableError while
        an open transaction hides a part of it."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        async for key, value in records_of(self._target, self._reader, self._partition):
            topic, _, partition = (key or b"").decode(errors="replace").rpartition("/")
            if not partition.isdecimal():
                continue  # no position of a share
            share = TopicPartition(topic, PartitionIndex(int(partition)))
            if value is None:
                found.pop(share, None)
            else:
                found[share] = _decoded(value)
        return found

    def batches(self, positions: Mapping[TopicPartition, OffsetAndMetadata], now_ms: int) -> list[Batch]:
        """What has to be written in the transaction that commits these positions, by share."""
        found: list[Batch] = []
        builder = RecordBatchBuilder(limit=_BATCH_BYTES)
        for share, position in positions.items():
            key = f"{share.topic}/{share.partition}".encode()
            value = json.dumps({"offset": position.offset, "metadata": position.metadata}).encode()
            if not builder.append(now_ms, key, value):
                found.append((self._partition, builder.build(), builder.count))
                builder = RecordBatchBuilder(limit=_BATCH_BYTES)
                builder.append(now_ms, key, value)
        if builder.count:
            found.append((self._partition, builder.build(), builder.count))
        return found


def _decoded(value: bytes) -> OffsetAndMetadata:
    try:
        facts = json.loads(value)
        return OffsetAndMetadata(int(facts["offset"]), str(facts["metadata"]))
    except (KeyError, TypeError, ValueError):
        return OffsetAndMetadata(0, value.decode(errors="replace"))
