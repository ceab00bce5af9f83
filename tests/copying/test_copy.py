"""`hapax copy` from Hapax to Hapax: a real process, and both sides as a committed reader finds them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

import pytest

from copying.world import CopyProcess, Writer, is_copied, make_topic, read_all, torn
from hapax.client import Producer
from hapax.local.cluster import LocalCluster

pytestmark = pytest.mark.timeout(280)


@pytest.fixture
def copier(both: LocalCluster, tmp_path: Path, topic: str) -> CopyProcess:
    """Copies from the cluster to itself, under another name."""
    words = ["--from", both.bootstrap, "--to", both.bootstrap, "--topics", topic, "--prefix", "c.",
             "--name", topic]
    return CopyProcess(tmp_path / "copy.log", *words, "--json")


async def test_every_record_is_copied_once(both: LocalCluster, topic: str, copier: CopyProcess) -> None:
    await make_topic(both.bootstrap, topic, 3, {"max.message.bytes": "2000000"})
    now = int(time.time() * 1000)
    for compression in ("none", "gzip", "lz4", "zstd", "snappy"):
        async with Producer({"bootstrap.servers": both.bootstrap, "compression.type": compression}) as producer:
            for i in range(100):
                await producer.send(
                    topic, f"{compression} {i}".encode(), None if i % 3 else f"{i}".encode(), partition=i % 3,
                    timestamp_ms=now + i, headers=(("h", b"x"), ("n", None)))
    assert copier.start().wait() == 0, copier.log()
    assert sum(each["records"] for each in json.loads(copier.printed)) == 500
    found = await read_all(both.bootstrap, f"c.{topic}")
    assert found == await read_all(both.bootstrap, topic)
    assert sum(map(len, found.values())) == 500
    assert copier.start().wait() == 0, copier.log()
    assert sum(each["records"] for each in json.loads(copier.printed)) == 0
    assert await read_all(both.bootstrap, f"c.{topic}") == found


async def test_a_copier_that_is_killed_again_and_again(both: LocalCluster, topic: str, copier: CopyProcess) -> None:
    await make_topic(both.bootstrap, topic, 3)
    writer = Writer(both.bootstrap, [(topic, 3)])
    writing = asyncio.create_task(writer.run())
    chance = random.Random(1)
    for i in range(3):
        copier.start()
        await asyncio.to_thread(copier.says, "assigned", times=i + 1)
        await asyncio.sleep(chance.random() * 0.5)
        copier.kill()
    writer.stop()
    await writing
    assert await asyncio.to_thread(copier.start().wait) == 0, copier.log()
    assert await is_copied(both.bootstrap, both.bootstrap, topic, f"c.{topic}")
    assert await torn(both.bootstrap, [f"c.{topic}"]) == []
