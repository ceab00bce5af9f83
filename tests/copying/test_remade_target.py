"""The topic of the target is deleted while a copy follows, so that it is copied again."""

from __future__ import annotations

import pytest

from copying.following import PREFIX, copied, following, in_trouble, troubles, write
from copying.world import is_copied, make_topic
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
