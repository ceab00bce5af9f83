"""`hapax copy` from Apache Kafka to Hapax, and (in `make copy-test`) from Hapax to Apache Kafka."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from clients.kafka_from_maven import KafkaFromMaven
from copying.following import copy_once, write
from copying.world import CopyProcess, Writer, is_copied, log_of, make_topic, read_all, torn
from hapax.client import Admin
from hapax.local.cluster import LocalCluster

pytestmark = pytest.mark.timeout(280)


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


async def test_a_damaged_batch_of_the_source(both: LocalCluster, kafka: KafkaFromMaven, topic: str) -> None:
    """Kafka's broker serves the bytes of its file as they are. What is before the damage is copied."""
    sides = {
        "source": {"bootstrap.servers": kafka.bootstrap}, "target": {"bootstrap.servers": both.bootstrap}, "prefix": ""}
    await make_topic(kafka.bootstrap, topic)
    for first in (0, 10, 20):
        await write(kafka.bootstrap, topic, 10, first=first)
    file = log_of(kafka, topic)
    content = file.read_bytes()
    at = content.index(f"{topic}:15:1:0".encode())
    with file.open("r+b") as log:
        log.seek(at)
        log.write(b"X")
    stopped = (await copy_once("", topic, **sides))[f"{topic}-0"]
    assert "is damaged (CRC-32C does not match)" in stopped.trouble
    assert stopped.records >= 10
    assert (stopped.records, stopped.position) == (stopped.position, stopped.records)
    went_on = (await copy_once("", topic, skip_lost=True, **sides))[f"{topic}-0"]
    assert went_on.trouble == ""
    assert stopped.records + went_on.records + went_on.lost == 30
    values = [each.value for each in (await read_all(both.bootstrap, topic))[0]]
    assert len(values) == len(set(values)) == 30 - went_on.lost
    assert f"{topic}:15:1:0".encode() not in values
