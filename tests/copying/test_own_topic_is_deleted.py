"""The topic of positions is deleted under a copy that does not follow, on a target that creates no topic by itself: the
copy creates it again, and each record is there once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import end_cluster, start_cluster
from copying.following import PREFIX, copy_once, write
from copying.world import make_topic, read_all
from hapax.client import Admin, Consumer
from hapax.copy import copier as module
from hapax.copy.saved import SavedPositions
from hapax.copy.writer import Writer
from hapax.local.cluster import LocalCluster

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("strict"), brokers=1, settings=[
        "auto.create.topics.enable=false", "group.initial.rebalance.delay.ms=0"])
    yield cluster
    end_cluster(cluster)


@pytest.mark.parametrize("before", [1, 2])
async def test_a_copy_that_does_not_follow_makes_the_topic_again(
    strict: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """`before`: the transaction before which it is deleted. The first one has positions alone."""
    own, calls, write_once = f"hapax-copy.{topic}.positions", 0, Writer.write

    async def write_after_deletion(self: Writer, *given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == before:
            async with Admin({"bootstrap.servers": strict.bootstrap}) as admin:
                await admin.delete_topics([own])
        await write_once(self, *given)

    monkeypatch.setattr(Writer, "write", write_after_deletion)
    monkeypatch.setattr(module, "_WRITER_SETTINGS", {**module._WRITER_SETTINGS, "delivery.timeout.ms": 5_000,
                                                     "request.timeout.ms": 2_000})
    await make_topic(strict.bootstrap, topic, 2)
    for partition in (0, 1):
        await write(strict.bootstrap, topic, 3, partition)
    async with asyncio.timeout(90):
        found = await copy_once(strict.bootstrap, topic)
    assert [(each.records, each.trouble) for each in found.values()] == [(3, ""), (3, "")]
    assert sum(map(len, (await read_all(strict.bootstrap, PREFIX + topic)).values())) == 6
    async with Admin({"bootstrap.servers": strict.bootstrap}) as admin, Consumer(
        {"bootstrap.servers": strict.bootstrap, "isolation.level": "read_committed"}
    ) as reader:
        saved = (await SavedPositions(own, admin, reader).read()).positions
    assert sorted(each.offset for each in saved.values()) == [3, 3]
