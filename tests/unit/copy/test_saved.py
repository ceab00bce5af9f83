"""The copy's own topic of positions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hapax.client.coordination import OffsetAndMetadata
from hapax.client.offsets import PartitionOffsets
from hapax.codec.batch import iterate_batches, patch_prefix
from hapax.codec.records import encode_records
from hapax.copy.saved import SavedPositions
from hapax.copy.writer import Batch
from hapax.core.types import PartitionIndex, TopicPartition

OWN = TopicPartition("own", PartitionIndex(0))


def share(number: int) -> TopicPartition:
    return TopicPartition("t", PartitionIndex(number))


async def read(*batches: bytes | bytearray) -> dict[TopicPartition, OffsetAndMetadata]:
    data, offset = bytearray(), 0
    for each in batches:
        copy = bytearray(each)
        patch_prefix(copy, offset, 0)
        data += copy
        offset = [header for _, header in iterate_batches(data)][-1].next_offset

    async def listed(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        assert list(partitions) == [OWN]
        return {OWN: PartitionOffsets(0, offset, offset)}

    async def fetch(partition: TopicPartition, start: int) -> Any:
        return SimpleNamespace(data=bytes(data), aborted=(), last_stable=offset)

    async def list_topics(names: Sequence[str]) -> list[Any]:
        return [SimpleNamespace(topic_id="")]

    target: Any = SimpleNamespace(listed_offsets=listed, list_topics=list_topics)
    reader: Any = SimpleNamespace(fetch=fetch)
    found = await SavedPositions("own", target, reader).read()
    assert found.hidden is None
    return found.positions


def written(positions: dict[TopicPartition, OffsetAndMetadata]) -> list[Batch]:
    nothing: Any = None
    return SavedPositions("own", nothing, nothing).batches(positions, 1)


async def test_the_last_position_of_each_share_counts() -> None:
    old = {share(p): OffsetAndMetadata(p, "old") for p in range(3)}
    new = {share(1): OffsetAndMetadata(10, "ördérs")}
    assert await read(*(data for _, data, _ in (*written(old), *written(new)))) == {**old, **new}


async def test_many_positions_fit_into_batches_of_a_topic_s_default_size() -> None:
    positions = {share(p): OffsetAndMetadata(p, "m" * 4000) for p in range(500)}
    batches = written(positions)
    assert {partition for partition, _, _ in batches} == {OWN}
    assert max(len(data) for _, data, _ in batches) <= 256 << 10
    assert await read(*(data for _, data, _ in batches)) == positions
    assert sum(count for _, _, count in batches) == 500
    assert written({}) == []


async def test_a_topic_that_was_not_made_by_the_copy_is_compacted() -> None:
    """With auto.create.topics.enable, a broker creates a deleted topic again, with cleanup.policy=delete."""
    policies, asked = {"cleanup.policy": "delete"}, list[str]()

    async def list_topics(names: Sequence[str]) -> list[Any]:
        return [SimpleNamespace(topic_id="1")]

    async def topic_config(name: str) -> dict[str, Any]:
        asked.append(name)
        return {key: SimpleNamespace(value=value) for key, value in policies.items()}

    async def alter_topic_config(name: str, changes: dict[str, str]) -> None:
        policies.update(changes)

    nothing: Any = None
    target: Any = SimpleNamespace(
        list_topics=list_topics, topic_config=topic_config, alter_topic_config=alter_topic_config)
    saved = SavedPositions("own", target, nothing)
    for is_new in (True, False):
        await saved.prepare()
        assert saved.is_new is is_new
        saved.is_new = False
    assert policies == {"cleanup.policy": "compact"} and asked == ["own"]


async def test_what_is_no_position_of_a_share_is_left_out_and_what_cannot_be_read_is_told() -> None:
    records = [(1, key, value, ()) for key, value in [
        (None, b"x"), (b"t", b"x"), (b"t/x", b"x"), (b"t/0", b"later"), (b"t/1", b"gone"), (b"t/1", None)]]
    assert await read(encode_records(records)) == {share(0): OffsetAndMetadata(0, "later")}
