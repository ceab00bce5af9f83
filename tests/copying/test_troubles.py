"""What is wrong with a source or a target is said, stops its partition alone, and leaves nothing half done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from copying.following import PREFIX, copied, copy_once, following, in_trouble, settings_of, troubles, write
from copying.world import delete_records, is_copied, make_topic, read_all
from hapax.client import Admin, FatalError, OffsetAndMetadata, Producer
from hapax.client.errors import SettingsError
from hapax.client.offsets import PartitionOffsets
from hapax.copy import copier as module
from hapax.copy.copier import Copier
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from integration.waiting import until


async def test_records_that_the_source_removed(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 10)
    await copy_once(both.bootstrap, topic)
    await write(both.bootstrap, topic, 20, first=10)
    delete_records(both.bootstrap, topic, 0, 25)
    stopped = (await copy_once(both.bootstrap, topic))[f"{topic}-0"]
    assert "15 offsets were removed before they were copied" in stopped.trouble
    assert (stopped.records, stopped.lost) == (0, 0)
    went_on = (await copy_once(both.bootstrap, topic, skip_lost=True))[f"{topic}-0"]
    assert (went_on.records, went_on.lost, went_on.trouble) == (5, 15, "")
    values = [each.value for each in (await read_all(both.bootstrap, PREFIX + topic))[0]]
    assert values == [f"{topic}:{i}:1:0".encode() for i in (*range(10), *range(25, 30))]


async def test_a_topic_that_was_made_again_stops_alone(both: LocalCluster, topic: str) -> None:
    again, other = f"{topic}.again", f"{topic}.other"
    for name in (again, other):
        await make_topic(both.bootstrap, name)
        await write(both.bootstrap, name, 10)
    async with Admin({"bootstrap.servers": both.bootstrap}) as admin:
        async with following(both.bootstrap, f"{topic}.*") as copier:
            await copied(both.bootstrap, again, 10)
            await copied(both.bootstrap, other, 10)
            await admin.delete_topics([again])
            await in_trouble(copier, "gone")
            await write(both.bootstrap, other, 10, first=10)
            await copied(both.bootstrap, other, 20)
        await make_topic(both.bootstrap, again)
        await write(both.bootstrap, again, 5, first=100)
        found = await copy_once(both.bootstrap, f"{topic}.*")
        assert "was deleted and made again in the source" in found[f"{again}-0"].trouble
        assert found[f"{other}-0"].trouble == ""
        assert len((await read_all(both.bootstrap, PREFIX + again))[0]) == 10
        await admin.delete_topics([PREFIX + again])
        found = await copy_once(both.bootstrap, f"{topic}.*")
        assert found[f"{again}-0"].trouble == ""
        assert await is_copied(both.bootstrap, both.bootstrap, again, PREFIX + again)


@pytest.mark.parametrize(("offset", "metadata", "says"), [
    (50, '{"v":1,"cluster":"","topic":"T","id":"","epoch":-1}', "it has lost 40 offsets that the target holds"),
    (10, '{"v":1,"cluster":"other","topic":"T","id":"","epoch":-1}', "has read from cluster other so far"),
    (10, '{"v":1,"cluster":"","topic":"else","id":"","epoch":-1}', "from topic 'else' so far"),
    (10, "", "has a committed offset, but it is not of hapax copy"),
])  # fmt: skip
async def test_positions_that_do_not_fit_the_source(
    both: LocalCluster, topic: str, offset: int, metadata: str, says: str
) -> None:
    await make_topic(both.bootstrap, topic)
    await make_topic(both.bootstrap, PREFIX + topic)
    await write(both.bootstrap, topic, 10)
    share = TopicPartition(PREFIX + topic, PartitionIndex(0))
    async with Admin({"bootstrap.servers": both.bootstrap}) as admin:
        await admin.alter_group_offsets(
            f"hapax-copy.{topic}", {share: OffsetAndMetadata(offset, metadata.replace("T", topic))})
    assert says in (await copy_once(both.bootstrap, topic))[f"{topic}-0"].trouble
    assert await read_all(both.bootstrap, PREFIX + topic) == {0: []}


async def test_a_target_that_others_have_filled(both: LocalCluster, topic: str) -> None:
    for name in (topic, PREFIX + topic):
        await make_topic(both.bootstrap, name)
        await write(both.bootstrap, name, 3)
    found = await copy_once(both.bootstrap, topic)
    assert "already holds offsets up to 3" in found[f"{topic}-0"].trouble
    found = await copy_once(both.bootstrap, topic, into_existing=True)
    assert (found[f"{topic}-0"].records, found[f"{topic}-0"].trouble) == (3, "")
    found = await copy_once(both.bootstrap, topic)
    assert (found[f"{topic}-0"].records, found[f"{topic}-0"].trouble) == (0, "")


async def test_a_batch_that_the_target_refuses_stops_its_partition_alone(both: LocalCluster, topic: str) -> None:
    large, small = f"{topic}.large", f"{topic}.small"
    for name in (large, small):
        await make_topic(both.bootstrap, name)
        await make_topic(both.bootstrap, PREFIX + name, 1, {"max.message.bytes": "1000"})
    await write(both.bootstrap, small, 5)
    await write(both.bootstrap, large, 500)
    async with following(both.bootstrap, f"{topic}.*") as copier:
        await in_trouble(copier, "target-refuses")
        await copied(both.bootstrap, small, 5)
        assert troubles(copier) == {"target-refuses": 1}
    assert await read_all(both.bootstrap, PREFIX + large) == {0: []}


@pytest.mark.parametrize("by_key", [False, True])
async def test_batches_that_are_put_together_fit_the_target(both: LocalCluster, topic: str, by_key: bool) -> None:
    """Each batch of the source is smaller than the topic's limit."""
    await make_topic(both.bootstrap, topic, 1, {"max.message.bytes": "2000"})
    async with Producer({"bootstrap.servers": both.bootstrap, "batch.size": 1}) as producer:
        for number in range(100):
            await producer.send(topic, b"x" * 100, str(number).encode(), partition=0)
    found = (await copy_once(both.bootstrap, topic, by_key=by_key))[f"{topic}-0"]
    assert (found.records, found.trouble) == (100, "")


async def test_topics_are_not_copied_onto_themselves(both: LocalCluster, topic: str) -> None:
    """With `into_existing` that would never end."""
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 3)
    for into_existing in (False, True):
        with pytest.raises(SettingsError, match="--prefix"):
            await copy_once(both.bootstrap, topic, prefix="", into_existing=into_existing)
    assert len((await read_all(both.bootstrap, topic))[0]) == 3


async def test_a_topic_with_the_name_of_the_copy_s_own(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, "positions")
    with pytest.raises(FatalError, match=r"'positions' cannot be copied with --by-key"):
        await copy_once(both.bootstrap, "positions", by_key=True)


async def test_a_topic_for_which_another_copy_s_own_one_would_stand(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, topic)
    await make_topic(both.bootstrap, f"{topic}.positions", 3)
    await write(both.bootstrap, topic, 3)
    await write(both.bootstrap, f"{topic}.positions", 3)
    await copy_once(both.bootstrap, topic, name=f"x.{topic}")
    with pytest.raises(FatalError, match=r"which are another copy's\. Copy it without --by-key, or choose another"):
        await copy_once(both.bootstrap, f"{topic}.positions", name="x", by_key=True)
    async with Admin({"bootstrap.servers": both.bootstrap}) as admin:
        described = await admin.describe_topic(f"hapax-copy.x.{topic}.positions")
    assert len(described.partitions) == 1, "nothing was changed"
    for _ in range(2):
        (found, *_) = (await copy_once(both.bootstrap, f"{topic}.positions", by_key=True)).values()
        assert found.trouble == ""


async def test_two_processes_that_each_have_a_trouble_do_not_wait_for_each_other(
    both: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither knows of the other's, which keeps its position where it is."""
    monkeypatch.setattr(module, "_STANDSTILL_MS", 1000)
    for name in (topic, PREFIX + topic):
        await make_topic(both.bootstrap, name, 2)
        for partition in (0, 1):
            await write(both.bootstrap, name, 5, partition)
    copiers = [Copier(settings_of(both.bootstrap, topic, instance=each)) for each in "ab"]

    async def shared() -> bool:
        return all(len(each._shares.owned) == 1 for each in copiers)

    for copier in copiers:
        source = copier._clients.source

        async def slowly(
            partitions: Iterable[TopicPartition], ask: Any = source.listed_offsets
        ) -> dict[TopicPartition, PartitionOffsets]:
            """Neither finds out before both have one."""
            wanted = list(partitions)
            if len(wanted) == 1:
                await until(shared, "one partition each")
            found: dict[TopicPartition, PartitionOffsets] = await ask(wanted)
            return found

        monkeypatch.setattr(source, "listed_offsets", slowly)
    async with asyncio.timeout(90):
        results = await asyncio.gather(*(each.run() for each in copiers))
    said = {each.partition for found in results for each in found if "already holds offsets" in each.trouble}
    assert said == {0, 1}


async def test_no_topic_matches(both: LocalCluster) -> None:
    with pytest.raises(FatalError, match="no topic that matches 'none'"):
        await copy_once(both.bootstrap, "none")


@pytest.mark.parametrize(("given", "says"), [
    ({"topics": "("}, r"--topics: '\(' is not a valid RE2 regular expression"),
    ({"name": "a/b"}, "--name 'a/b'"),
    ({"instance": ""}, "--instance ''"),
    ({"groups": ".*", "by_key": True}, "--groups with --by-key"),
])  # fmt: skip
def test_settings_are_checked(given: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        settings_of("127.0.0.1:1", **{"topics": "t", "name": "n", **given}).check()  # type: ignore[arg-type]


async def test_a_target_topic_with_too_few_partitions_is_given_more(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, topic, 3)
    await make_topic(both.bootstrap, PREFIX + topic, 1)
    await write(both.bootstrap, topic, 5, 2)
    found = await copy_once(both.bootstrap, topic)
    assert found[f"{topic}-2"].records == 5
    assert await is_copied(both.bootstrap, both.bootstrap, topic, PREFIX + topic)


async def test_open_transactions_are_left_out_at_the_end(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 5)
    async with Producer({"bootstrap.servers": both.bootstrap, "transactional.id": topic}) as producer:
        producer.begin()
        await producer.send_and_wait(topic, b"open", partition=0)
        found = await copy_once(both.bootstrap, topic, open_wait_ms=300)
        assert (found[f"{topic}-0"].records, found[f"{topic}-0"].trouble) == (5, "")
        await producer.commit()
    await until(lambda: _copied_to(both.bootstrap, topic, 1), "the rest")


async def _copied_to(bootstrap: str, topic: str, count: int) -> bool:
    return (await copy_once(bootstrap, topic))[f"{topic}-0"].records == count
