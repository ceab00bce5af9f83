"""What was copied where is known wholly, or not used: a gap would move a group past records that it has not read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from copying.following import PREFIX, copied, copy_once, following, settings_of, write
from copying.world import make_topic
from hapax.client import Admin, Consumer, OffsetAndMetadata, Producer, RetriableError
from hapax.client import groups as groups_module
from hapax.client.raw_fetch import RawFetch
from hapax.copy.groups import GroupPositions
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster


async def test_a_copy_that_starts_over_forgets_where_records_were(both: LocalCluster, topic: str) -> None:
    """The target's topic was deleted, and the second copy has fewer transactions."""
    group, at = f"group-{topic}", {"bootstrap.servers": both.bootstrap}
    source, share = (TopicPartition(each, PartitionIndex(0)) for each in (topic, PREFIX + topic))
    await make_topic(both.bootstrap, topic)
    for first in (0, 10):
        await write(both.bootstrap, topic, 10, first=first)
        await copy_once(both.bootstrap, topic, groups="group-.*")
    async with Admin(at) as admin:
        await admin.delete_topics([share.topic])
        await admin.alter_group_offsets(group, {source: OffsetAndMetadata(15)})
        found = (await copy_once(both.bootstrap, topic, groups="group-.*"))[f"{topic}-0"]
        assert (found.records, found.trouble) == (20, "")
        assert (await admin.committed_offsets(group))[share].offset == 15


async def test_a_group_that_goes_on_by_itself_is_not_set_back(
    both: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program commits its positions in transactions, without being a member. One is open while the copy looks, and
    another one ends before the copy has written what it has found."""
    group, at, share = f"group-{topic}", {"bootstrap.servers": both.bootstrap}, TopicPartition(topic, PartitionIndex(0))
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 10)
    commit, looked = groups_module.commit_once, 0
    async with Admin(at) as admin, Producer({**at, "transactional.id": topic}) as program:

        async def late(*given: Any) -> None:
            """The first attempt finds the coordinator elsewhere."""
            nonlocal looked
            looked += 1
            if looked == 1:
                await moves_to(8)
                raise RetriableError("not the coordinator", code=ErrorCode.NOT_COORDINATOR)
            await commit(*given)

        async def moves_to(offset: int) -> None:
            async with program.transaction():
                await program.send_offsets({share: OffsetAndMetadata(offset)}, group)

        monkeypatch.setattr(groups_module, "commit_once", late)
        assert await admin.advance_group_offsets(group, {share: OffsetAndMetadata(5)}) == 0
        assert (await admin.committed_offsets(group))[share].offset == 8
        program.begin()
        await program.send_offsets({share: OffsetAndMetadata(10)}, group)
        advancing = asyncio.create_task(admin.advance_group_offsets(group, {share: OffsetAndMetadata(9)}))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.shield(advancing)
        await program.commit()
        assert await advancing == 0
        assert (await admin.committed_offsets(group))[share].offset == 10
        assert await admin.advance_group_offsets(group, {share: OffsetAndMetadata(11)}) == 1


async def test_runs_that_an_open_transaction_hides_are_waited_for(
    both: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process of the copy is about to commit to the same partition of the copy's own topic."""
    at, share = {"bootstrap.servers": both.bootstrap}, TopicPartition(PREFIX + topic, PartitionIndex(0))
    settings = settings_of(both.bootstrap, topic, groups="group-.*")
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 10)
    async with Admin(at) as admin, Consumer({**at, "isolation.level": "read_committed"}) as reader, Producer(
        {**at, "transactional.id": topic}
    ) as other:
        groups, asked = GroupPositions(settings, admin, admin, reader), asyncio.Event()
        own = groups.partition_of(share)
        async with following(both.bootstrap, topic, groups="group-.*"):
            await copied(both.bootstrap, topic, 10)
            other.begin()
            await other.send_and_wait(own.topic, b"", b"other", partition=own.partition)
            await write(both.bootstrap, topic, 10, first=10)
            await copied(both.bootstrap, topic, 20)
        fetch = reader.fetch

        async def told(partition: TopicPartition, offset: int) -> RawFetch:
            found = await fetch(partition, offset)
            if not found.data:
                asked.set()
            return found

        monkeypatch.setattr(reader, "fetch", told)
        loading = asyncio.create_task(groups.load([share]))
        await asked.wait()
        await other.abort()
        assert await loading == {share}
        assert groups.translate(share, 10, 20) == 11
