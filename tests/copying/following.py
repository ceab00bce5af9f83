"""Copiers within the test's own process, which start in a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from hapax.client import Admin, Producer
from hapax.copy.copier import Copier, PartitionResult
from hapax.copy.settings import CopySettings
from hapax.core.types import PartitionIndex, TopicPartition
from integration.waiting import until

PREFIX = "c."


def settings_of(bootstrap: str, topics: str, **others: object) -> CopySettings:
    """A copy within one cluster."""
    side = {"bootstrap.servers": bootstrap}
    given = {
        "source": side, "target": side, "name": topics.replace("*", "x"), "prefix": PREFIX, "discover_ms": 200,
        "groups_ms": 200, **others}
    return CopySettings(topics=topics, **given)  # type: ignore[arg-type]


async def copy_once(bootstrap: str, topics: str, **others: object) -> dict[str, PartitionResult]:
    """By `topic-partition`."""
    found = await Copier(settings_of(bootstrap, topics, **others)).run()
    return {f"{each.topic}-{each.partition}": each for each in found}


@asynccontextmanager
async def following(bootstrap: str, topics: str, **others: object) -> AsyncIterator[Copier]:
    """A copy that follows, until the block ends."""
    copier = Copier(settings_of(bootstrap, topics, follow=True, **others))
    running = asyncio.create_task(copier.run())
    try:
        yield copier
    finally:
        copier.stop()
        await running


async def write(bootstrap: str, topic: str, count: int, partition: int = 0, *, first: int = 0) -> None:
    async with Producer({"bootstrap.servers": bootstrap}) as producer:
        for i in range(first, first + count):
            await producer.send(topic, f"{topic}:{i}:1:0".encode(), partition=partition)


async def copied(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    """Waits until the log of the copy's partition is at least this long, in offsets."""
    where = TopicPartition(f"{PREFIX}{topic}", PartitionIndex(partition))
    async with Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": 5000}) as admin:

        async def happened() -> bool:
            if where.topic not in {each.name for each in await admin.list_topics()}:
                return False
            if partition >= len((await admin.describe_topic(where.topic)).partitions):
                return False
            return (await admin.partition_offsets([where]))[where].last_stable >= count

        await until(happened, f"copy of {count} offsets of {topic}-{partition}")


def troubles(copier: Copier) -> Mapping[str, float]:
    """Partitions in trouble, by kind."""
    begin = "hapax_copy_partitions_in_trouble{"
    return {
        name.removeprefix(begin).split('"')[1]: value
        for name, value in copier.metrics.metrics.values().items() if name.startswith(begin) and value}


async def in_trouble(copier: Copier, kind: str) -> None:
    async def happened() -> bool:
        return kind in troubles(copier)

    await until(happened, f"trouble {kind}, only {dict(troubles(copier))}")
