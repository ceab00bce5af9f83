"""The offsets of the copy's group have expired, or were deleted: nothing is copied twice."""

from __future__ import annotations

import asyncio

import pytest

from copying.following import PREFIX, copied, copy_once, following, write
from copying.world import make_topic, read_all
from hapax.client import Admin, Consumer, Producer
from hapax.copy.saved import SavedPositions
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from integration.waiting import until


@pytest.mark.parametrize("how", [{}, {"into_existing": True}, {"by_key": True}, {"groups": "none"}])
async def test_a_copy_goes_on_without_its_group_s_offsets(
    both: LocalCluster, topic: str, how: dict[str, object]
) -> None:
    """Also where nothing new was written, and where the target holds others' records."""
    await make_topic(both.bootstrap, topic, 2)
    if how:
        await make_topic(both.bootstrap, PREFIX + topic, 2)
    others = 2 if "into_existing" in how else 0
    await write(both.bootstrap, PREFIX + topic, others) if others else None
    for partition in (0, 1):
        await write(both.bootstrap, topic, 3, partition)
    for more in (3, 0, 5):
        await write(both.bootstrap, topic, more - 3 if more > 3 else 0)
        found = await copy_once(both.bootstrap, topic, **how)
        assert [each.trouble for each in found.values()] == ["", ""]
        assert sum(each.records for each in found.values()) == {3: 6, 0: 0, 5: 2}[more]
        await delete_positions(both.bootstrap, topic)
    values = [each.value for found in (await read_all(both.bootstrap, PREFIX + topic)).values() for each in found]
    assert len(values) == 8 + others


async def test_two_processes_end_where_positions_were_put_back(both: LocalCluster, topic: str) -> None:
    """Each learns from the group's offsets that the other one's partitions are copied."""
    await make_topic(both.bootstrap, topic, 2)
    await write(both.bootstrap, topic, 3)
    await copy_once(both.bootstrap, topic)
    await delete_positions(both.bootstrap, topic)
    async with following(both.bootstrap, topic, instance="b"):
        found = await copy_once(both.bootstrap, topic, instance="a")
    assert [each.trouble for each in found.values()] == ["", ""]
    assert len((await read_all(both.bootstrap, PREFIX + topic))[0]) == 3


@pytest.mark.parametrize("by_key", [False, True])
async def test_a_position_of_a_topic_that_is_gone_counts_no_more(
    both: LocalCluster, topic: str, by_key: bool
) -> None:
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 3)
    await copy_once(both.bootstrap, topic, by_key=by_key)
    async with Admin({"bootstrap.servers": both.bootstrap}) as admin:
        await admin.delete_topics([PREFIX + topic, *([f"hapax-copy.{topic}.{topic}"] if by_key else [])])
        assert await admin.committed_offsets(f"hapax-copy.{topic}") == {}, "they go with the topic"
    found = (await copy_once(both.bootstrap, topic, by_key=by_key))[f"{topic}-0"]
    assert (found.records, found.trouble) == (3, "")


async def test_a_record_that_is_no_position(both: LocalCluster, topic: str) -> None:
    """Of a later version, for example: it is not taken for none."""
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 3)
    await copy_once(both.bootstrap, topic)
    await delete_positions(both.bootstrap, topic)
    async with Producer({"bootstrap.servers": both.bootstrap}) as producer:
        await producer.send_and_wait(
            f"hapax-copy.{topic}.positions", b"later", f"{PREFIX}{topic}/0".encode(), partition=0)
    found = (await copy_once(both.bootstrap, topic, into_existing=True))[f"{topic}-0"]
    assert f"topic 'hapax-copy.{topic}.positions' on the target has a position for it" in found.trouble
    assert "is not of hapax copy: 'later'" in found.trouble
    assert len((await read_all(both.bootstrap, PREFIX + topic))[0]) == 3


async def test_the_topic_of_positions_is_deleted_meanwhile(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 3)
    async with following(both.bootstrap, topic), Admin({"bootstrap.servers": both.bootstrap}) as admin:
        await copied(both.bootstrap, topic, 3)
        await admin.delete_topics([f"hapax-copy.{topic}.positions"])
        await write(both.bootstrap, topic, 3, first=3)
        await copied(both.bootstrap, topic, 7)
        async with Consumer({"bootstrap.servers": both.bootstrap, "isolation.level": "read_committed"}) as reader:
            found = (await SavedPositions(f"hapax-copy.{topic}.positions", admin, reader).read()).positions
    assert found[TopicPartition(PREFIX + topic, PartitionIndex(0))].offset == 6
    assert len((await read_all(both.bootstrap, PREFIX + topic))[0]) == 6


async def test_the_topic_of_positions_refuses_them(both: LocalCluster, topic: str) -> None:
    """The copy would begin over and over, and never end."""
    own = f"hapax-copy.{topic}.positions"
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 3)
    await make_topic(both.bootstrap, own, 1, {"cleanup.policy": "compact", "max.message.bytes": "100"})
    async with asyncio.timeout(60):
        found = (await copy_once(both.bootstrap, topic))[f"{topic}-0"]
    assert found.records == 0 and f"{own}-0 on the target" in found.trouble
    assert await read_all(both.bootstrap, PREFIX + topic) == {0: []}


@pytest.mark.parametrize("how", [{"into_existing": True}, {"by_key": True}, {}])
async def test_positions_are_saved_again_in_a_topic_that_was_made_again(
    both: LocalCluster, topic: str, how: dict[str, object]
) -> None:
    """Also those of partitions to which nothing is written any more."""
    await make_topic(both.bootstrap, topic, 2)
    for partition in (0, 1):
        await write(both.bootstrap, topic, 3, partition)
    await copy_once(both.bootstrap, topic, **how)
    async with Admin({"bootstrap.servers": both.bootstrap}) as admin:
        await admin.delete_topics([f"hapax-copy.{topic}.positions"])
    await write(both.bootstrap, topic, 1, first=3)
    await copy_once(both.bootstrap, topic, **how)
    await delete_positions(both.bootstrap, topic)
    found = await copy_once(both.bootstrap, topic, **how)
    assert [(each.records, each.trouble) for each in found.values()] == [(0, ""), (0, "")]
    assert sum(map(len, (await read_all(both.bootstrap, PREFIX + topic)).values())) == 7


async def test_a_following_copy_saves_all_its_positions_again(both: LocalCluster, topic: str) -> None:
    """Nothing is written to the second partition, and nobody else begins to copy."""
    own = f"hapax-copy.{topic}.positions"
    await make_topic(both.bootstrap, topic, 2)
    for partition in (0, 1):
        await write(both.bootstrap, topic, 3, partition)
    async with following(both.bootstrap, topic), Admin({"bootstrap.servers": both.bootstrap}) as admin, Consumer(
        {"bootstrap.servers": both.bootstrap, "isolation.level": "read_committed"}
    ) as reader:
        saved = SavedPositions(own, admin, reader)
        for partition in (0, 1):
            await copied(both.bootstrap, topic, 3, partition)
        await admin.delete_topics([own])

        async def are_there() -> bool:
            return await is_there(admin, own) and len((await saved.read()).positions) == 2

        await until(are_there, "both positions")


async def is_there(admin: Admin, topic: str) -> bool:
    return bool(await admin.list_topics([topic]))


async def delete_positions(bootstrap: str, topic: str) -> None:
    group = f"hapax-copy.{topic}"
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        found = list(await admin.committed_offsets(group))
        assert found
        await admin.delete_group_offsets(group, found)
