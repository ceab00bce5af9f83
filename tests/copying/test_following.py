"""Copies that keep copying: new topics, new partitions, several processes, and positions of groups."""

from __future__ import annotations

import asyncio

import pytest

from copying.following import PREFIX, copied, copy_once, following, settings_of, write
from copying.world import Writer, is_copied, make_topic, read_all, torn
from hapax.client import Admin, Consumer, FencedError, OffsetAndMetadata
from hapax.copy.copier import Copier
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from integration.waiting import until


async def test_topics_and_partitions_join(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, f"{topic}.a")
    await write(both.bootstrap, f"{topic}.a", 10)
    async with following(both.bootstrap, f"{topic}.*") as copier:
        await copied(both.bootstrap, f"{topic}.a", 10)
        await make_topic(both.bootstrap, f"{topic}.b", 2)
        await write(both.bootstrap, f"{topic}.b", 10, 1)
        await copied(both.bootstrap, f"{topic}.b", 10, 1)
        async with Admin({"bootstrap.servers": both.bootstrap}) as admin:
            await admin.create_partitions({f"{topic}.a": 3})
        await write(both.bootstrap, f"{topic}.a", 10, 2, first=10)
        await copied(both.bootstrap, f"{topic}.a", 10, 2)
        values = copier.metrics.metrics.values()
        assert values["hapax_copy_partitions"] == 5
    for name in "ab":
        assert await is_copied(both.bootstrap, both.bootstrap, f"{topic}.{name}", f"{PREFIX}{topic}.{name}")


async def test_processes_share_the_partitions(both: LocalCluster, topic: str) -> None:
    """Two copy, one of them ends, another one takes the place of the remaining one: all while records are written."""
    await make_topic(both.bootstrap, topic, 4)
    writer = Writer(both.bootstrap, [(topic, 4)], topic)
    writing = asyncio.create_task(writer.run(pause_s=0.005))

    async def owned(copier: Copier, count: int) -> None:
        async def happened() -> bool:
            return copier.metrics.metrics.values()["hapax_copy_partitions"] == count

        await until(happened, f"{count} partitions")

    first = Copier(settings_of(both.bootstrap, topic, follow=True, instance="a"))
    running = asyncio.create_task(first.run())
    await owned(first, 4)
    async with following(both.bootstrap, topic, instance="b") as second:
        await owned(second, 2)
        await owned(first, 2)
    await owned(first, 4)
    async with following(both.bootstrap, topic, instance="a") as twin:
        with pytest.raises(FencedError, match=r"another process of copy .* has started with --instance 'a'"):
            await running
        await owned(twin, 4)
        writer.stop()
        await writing
        await until(
            lambda: is_copied(both.bootstrap, both.bootstrap, topic, f"{PREFIX}{topic}"), "end of the copy")
    assert await is_copied(both.bootstrap, both.bootstrap, topic, f"{PREFIX}{topic}")


async def test_transactions_are_whole_and_the_lag_is_known(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, topic, 3)
    writer = Writer(both.bootstrap, [(topic, 3)], topic)
    async with following(both.bootstrap, topic) as copier:
        await writer.run(40)
        await until(
            lambda: is_copied(both.bootstrap, both.bootstrap, topic, f"{PREFIX}{topic}"), "end of the copy")
        lag = f'hapax_copy_lag_records{{topic="{topic}",partition="0"}}'

        async def at_end() -> bool:
            return copier.metrics.metrics.values()[lag] == 0

        await until(at_end, "lag of 0")
    assert await torn(both.bootstrap, [f"{PREFIX}{topic}"]) == []


async def test_groups_continue_in_the_copy_with_the_same_record(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, topic, 2)
    await Writer(both.bootstrap, [(topic, 2)], topic).run(12)
    source = await read_all(both.bootstrap, topic)
    group, at = f"group-{topic}", {"bootstrap.servers": both.bootstrap}
    side = {**at, "isolation.level": "read_committed"}
    partitions = [TopicPartition(topic, PartitionIndex(p)) for p in range(2)]
    async with Consumer({**side, "group.id": group, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(partitions)
        seen = {0: 0, 1: 0}
        while sum(seen.values()) < 7:
            for record in await consumer.poll(200, 1):
                seen[record.partition] += 1
        await consumer.commit()
    async with following(both.bootstrap, topic, groups="group-.*"), Admin(at) as admin:

        async def there() -> bool:
            found = await admin.committed_offsets(group)
            return all(TopicPartition(PREFIX + topic, each.partition) in found for each in partitions if
                       seen[each.partition])

        await until(there, "positions on the target")
    copy = [TopicPartition(PREFIX + topic, PartitionIndex(p)) for p in range(2)]
    async with Consumer({**side, "group.id": group, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(copy)
        rest: dict[int, list[bytes | None]] = {0: [], 1: []}
        expected = {p: [each.value for each in source[p][seen[p]:]] for p in source}

        async def read() -> bool:
            for record in await consumer.poll(200):
                rest[record.partition].append(record.value)
            return all(len(rest[p]) >= len(expected[p]) for p in expected)

        await until(read, "rest of the records")
        assert rest == expected
        await consumer.commit({each: 1 for each in copy})
    async with Admin(at) as admin:  # a group goes on by itself, and is set back by nobody
        ahead = OffsetAndMetadata(10_000)
        await admin.alter_group_offsets(group, {copy[0]: ahead})
        await copy_once(both.bootstrap, topic, groups="group-.*")
        assert (await admin.committed_offsets(group))[copy[0]].offset == 10_000
