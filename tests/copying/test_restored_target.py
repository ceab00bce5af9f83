"""The target was restored from a backup into another cluster, and the copy is to go on there: nothing is there twice.

The topics of a restored cluster have new ids, as those that were deleted and made again. But they hold the records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from copying.following import PREFIX, copy_once, write
from copying.world import make_topic, read_all
from hapax.local.cluster import LocalCluster
from integration.backup_world import hapax

PARTITIONS, RECORDS = 2, 5
HOW: dict[str, dict[str, object]] = {"plain": {}, "by-key": {"by_key": True}, "behind": {"into_existing": True}}


async def test_no_copy_begins_again_in_a_restored_target(
    cluster_factory: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    source, target = (cluster_factory(settings=["group.initial.rebalance.delay.ms=0"]).bootstrap for _ in range(2))
    for topic, how in HOW.items():
        await make_topic(source, topic, PARTITIONS)
        for partition in range(PARTITIONS):
            await write(source, topic, RECORDS, partition)
        copied = await copy_once(source, topic, **how)
        assert sum(each.records for each in copied.values()) == PARTITIONS * RECORDS
    place = str(tmp_path / "backup")
    await asyncio.to_thread(hapax, "backup", place, "--bootstrap", source)
    await asyncio.to_thread(hapax, "restore", place, "--to", target)
    for topic, how in HOW.items():
        await write(source, topic, 1)  # else nothing is left to do
        found = await copy_once(source, topic, target={"bootstrap.servers": target}, **how)
        assert [each.records for each in found.values()] == [0, 0]
        assert all("already holds offsets" in each.trouble for each in found.values()), (topic, found)
        assert sum(map(len, (await read_all(target, PREFIX + topic)).values())) == PARTITIONS * RECORDS
