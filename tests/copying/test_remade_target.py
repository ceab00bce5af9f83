"""The topic of the target is deleted while a copy follows, so that it is copied again."""

from __future__ import annotations

import pytest

from copying.following import PREFIX, copied, copy_once, following, in_trouble, troubles, write
from copying.world import is_copied, make_topic, read_all
from hapax.client import Admin
from hapax.copy import shares as module
from hapax.local.cluster import LocalCluster
from integration.waiting import until


async def test_a_topic_that_is_deleted_in_the_target_is_copied_again(both: LocalCluster, topic: str) -> None:
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 10)
    async with following(both.bootstrap, topic), Admin({"bootstrap.servers": both.bootstrap}) as admin:
        await copied(both.bootstrap, topic, 10)
        await admin.delete_topics([PREFIX + topic])
        await until(lambda: is_copied(both.bootstrap, both.bootstrap, topic, PREFIX + topic), "another copy")


async def test_what_was_written_to_a_topic_that_was_made_again_meanwhile_is_told(
    both: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beginning would be missing, and the lag be 0."""
    monkeypatch.setattr(module, "_AGAIN_MS", 300)
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 10)
    async with following(both.bootstrap, topic, discover_ms=3_000) as copier, Admin(
        {"bootstrap.servers": both.bootstrap}
    ) as admin:
        await copied(both.bootstrap, topic, 10)
        await admin.delete_topics([PREFIX + topic])
        await make_topic(both.bootstrap, PREFIX + topic)
        await write(both.bootstrap, topic, 10, first=10)
        await in_trouble(copier, "not-empty")
        await admin.delete_topics([PREFIX + topic])
        await until(lambda: is_copied(both.bootstrap, both.bootstrap, topic, PREFIX + topic), "another copy")
        assert not troubles(copier)


@pytest.mark.parametrize("deleted", ["data", "share"])
async def test_one_of_the_two_topics_of_a_copy_by_key_is_deleted(
    both: LocalCluster, topic: str, deleted: str
) -> None:
    """Both have to go: otherwise records would be missing, or there twice."""
    names = {"data": PREFIX + topic, "share": f"hapax-copy.{topic}.{topic}"}
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 10)
    async with Admin({"bootstrap.servers": both.bootstrap}) as admin:
        async with following(both.bootstrap, topic, by_key=True) as copier:
            await copied(both.bootstrap, topic, 10)
            await admin.delete_topics([names[deleted]])
            await in_trouble(copier, "target-made-again")
        found = (await copy_once(both.bootstrap, topic, by_key=True))[f"{topic}-0"]
        assert found.records == 0 and "end the copy, delete both topics on the target" in found.trouble
        assert len((await read_all(both.bootstrap, names["data"]))[0]) == (10 if deleted == "share" else 0)
        await admin.delete_topics(list(names.values()))
    found = (await copy_once(both.bootstrap, topic, by_key=True))[f"{topic}-0"]
    assert (found.records, found.trouble) == (10, "")
    assert len((await read_all(both.bootstrap, names["data"]))[0]) == 10
