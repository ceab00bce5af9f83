"""The copy's positions once more, in a compacted topic of its own on the target: the group's offsets expire.

Each transaction that commits positions also writes them there. So they are as exact as the group's offsets, and a copy
whose group has lost its offsets goes on with them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from hapax.client.admin import Admin, NewTopic
from hapax.client.consumer import Consumer
from hapax.client.coordination import OffsetAndMetadata
from hapax.client.errors import FatalError
from hapax.codec.records import RecordBatchBuilder
from hapax.copy.own_topic import HiddenError, records_of, worded
from hapax.copy.writer import Batch
from hapax.core.types import PartitionIndex, TopicPartition

log = logging.getLogger("hapax.copy")

_POLICY: Final = {"cleanup.policy": "compact"}
_CONFIG: Final = {**_POLICY, "segment.bytes": str(16 << 20)}
"""Small segments: the last one is not compacted, and all of it is read."""
_BATCH_BYTES: Final = 256 << 10
_PURPOSE: Final = "the copy's positions"
_ATTEMPTS: Final = 20
"""To read what an open transaction hides."""


class Saved(NamedTuple):
    positions: dict[TopicPartition, OffsetAndMetadata]
    """By share."""
    hidden: HiddenError | None
    """Why these are not all, and perhaps not the last ones."""


class SavedPositions:
    def __init__(self, topic: str, target: Admin, reader: Consumer, replication_factor: int = -1) -> None:
        """`reader`: of the target, read_committed. `replication_factor`: as of CopySettings: every transaction needs
        the topic."""
        self.topic = topic
        self._replication_factor = replication_factor
        self._looked_at = ""
        """Id of the topic whose configuration was looked at."""
        self.is_new = False
        """The topic may have been made again since this was last set to False, and lack positions."""
        self._target = target
        self._reader = reader
        self._partition = TopicPartition(self.topic, PartitionIndex(0))

    async def prepare(self) -> None:
        """Creates the topic where it is missing. One that a broker has created (auto.create.topics.enable), or somebody
        else, may delete positions by their age: it becomes a compacted one. Raises HapaxError."""
        found = await self._target.list_topics([self.topic])
        if not found:
            with worded(self.topic, _PURPOSE):
                await self._target.create_topics(
                    [NewTopic(self.topic, 1, self._replication_factor, _CONFIG)], exist_ok=True)
            self.is_new = True
        elif found[0].topic_id != self._looked_at:
            await self._compact()
            self._looked_at = found[0].topic_id
            self.is_new = True

    async def _compact(self) -> None:
        try:
            policy = (await self._target.topic_config(self.topic))["cleanup.policy"].value
            if policy != _POLICY["cleanup.policy"]:
                await self._target.alter_topic_config(self.topic, _POLICY)
                log.warning("topic %r on the target had cleanup.policy=%s, by which positions expire. It has"
                            " cleanup.policy=compact now", self.topic, policy)
        except FatalError as error:
            log.warning("positions expire unless topic %r on the target has cleanup.policy=compact, which could not be"
                        " seen to: %s", self.topic, error)

    async def read(self) -> Saved:
        """Of a record that cannot be read, the metadata are its text. Creates the topic where it is missing. Raises
        HapaxError."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        await self.prepare()
        try:
            with worded(self.topic, _PURPOSE):
                async for key, value in records_of(self._target, self._reader, self._partition, attempts=_ATTEMPTS):
                    topic, _, partition = (key or b"").decode(errors="replace").rpartition("/")
                    if not partition.isdecimal():
                        continue  # no position of a share
                    share = TopicPartition(topic, PartitionIndex(int(partition)))
                    if value is None:
                        found.pop(share, None)
                    else:
                        found[share] = _decoded(value)
        except HiddenError as error:
            return Saved(found, error)
        return Saved(found, None)

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
