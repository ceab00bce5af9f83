"""`hapax copy` from Apache Kafka to Hapax, and (in `make copy-test`) from Hapax to Apache Kafka."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.kafka_from_maven import KafkaFromMaven
from copying.world import CopyProcess, Writer, is_copied, make_topic, torn
from hapax.client import Admin
from hapax.local.cluster import LocalCluster

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaFromMaven]:
    broker = KafkaFromMaven(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.kill()


@pytest.mark.parametrize("to_kafka", [False, *([True] if "COPY_TEST_SECONDS" in os.environ else [])])
async def test_a_copier_is_killed(
    both: LocalCluster, kafka: KafkaFromMaven, tmp_path: Path, topic: str, to_kafka: bool
) -> None:
    source, target = both.bootstrap, kafka.bootstrap
    if not to_kafka:
        source, target = target, source
    copier = CopyProcess(
        tmp_path / "log", "--from", source, "--to", target, "--topics", topic, "--name", topic, "--json")
    await make_topic(source, topic, 3, {"max.message.bytes": "2000000"})
    writer = Writer(source, [(topic, 3)], topic)
    writing = asyncio.create_task(writer.run())
    for i in range(2):
        copier.start()
        await asyncio.to_thread(copier.says, "assigned", times=i + 1)
        await asyncio.sleep(0.2 + 0.2 * i)
        copier.kill()
    writer.stop()
    await writing
    assert await asyncio.to_thread(copier.start().wait) == 0, copier.log()
    assert await is_copied(source, target, topic)
    assert await torn(target, [topic]) == []
    async with Admin({"bootstrap.servers": target}) as admin:
        assert (await admin.topic_config(topic))["max.message.bytes"].value == "2000000"
