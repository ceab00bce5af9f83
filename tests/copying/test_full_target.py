"""A target whose disk is full is waited for, which the log says. With room, the copy goes on, each record once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from conftest import end_cluster, start_cluster
from copying.following import PREFIX, copy_once, following, write
from copying.world import is_copied, make_topic
from faults.preload import NoCompiler, Rules
from hapax.client import Consumer
from hapax.client.readings import Chunk
from hapax.copy import writer
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from integration.waiting import until

_REFUSED, _SILENT = "KAFKA_STORAGE_ERROR", "room on its disks"
FULL = "COPY_TEST_SECONDS" in os.environ
pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rules]:
    rules = Rules(tmp_path_factory.mktemp("faults") / "rules")
    try:
        with rules.preloaded():
            yield rules
    except NoCompiler as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def target(rules: Rules, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(
        tmp_path_factory.mktemp("target"), brokers=1, settings=["group.initial.rebalance.delay.ms=0"])
    yield cluster
    end_cluster(cluster)


@pytest.mark.parametrize(("full", "says"), [
    ("/{data}-0/", _REFUSED),
    *([("/hapax-copy.{name}.positions-0/", _REFUSED), ("/broker-0/", _SILENT)] if FULL else []),
])
async def test_a_target_that_is_full(
    both: LocalCluster, target: LocalCluster, rules: Rules, topic: str, full: str, says: str,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition of the data, the copy's own topic, or the whole disk. The copier also starts meanwhile."""
    monkeypatch.setattr(writer, "_SAY_EVERY_MS", 500)
    caplog.set_level(logging.WARNING, "hapax.copy")
    sides = {"source": {"bootstrap.servers": both.bootstrap}, "target": {"bootstrap.servers": target.bootstrap}}
    await make_topic(both.bootstrap, topic)
    await write(both.bootstrap, topic, 10)
    await copy_once("", topic, **sides)

    async def told() -> bool:
        return says in caplog.text

    try:
        rules.add("write", "ENOSPC", full.format(data=PREFIX + topic, name=topic))
        await write(both.bootstrap, topic, 500, first=10)
        async with following("", topic, **sides):
            await until(told, "the log to say why")
            assert await visible(target.bootstrap, PREFIX + topic) == 10, "nothing half done"
            rules.clear()
            await until(
                lambda: is_copied(both.bootstrap, target.bootstrap, topic, PREFIX + topic), "the rest of the copy")
    finally:
        rules.clear()
    found = (await copy_once("", topic, **sides))[f"{topic}-0"]
    assert (found.records, found.position, found.trouble) == (0, 510, "")


async def visible(bootstrap: str, topic: str) -> int:
    """Records that a committed reader finds now, also while a transaction is open."""
    where, count, offset = TopicPartition(topic, PartitionIndex(0)), 0, 0
    async with Consumer({"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}) as reader:
        while (fetched := await reader.fetch(where, offset)).data:
            for header, _, shown in Chunk(fetched.data, fetched.aborted, True).batches():
                count, offset = count + header.record_count * shown, header.next_offset
    return count
