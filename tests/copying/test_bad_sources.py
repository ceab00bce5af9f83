"""A source, an Apache Kafka, that has lost records, or holds ones of a format from before 2017: it is told, and nothing
is half done."""

from __future__ import annotations

import os
import struct
import zlib

import pytest

from clients.kafka_from_maven import KafkaFromMaven
from copying.following import PREFIX, copied, copy_once, following, in_trouble, write
from copying.world import is_copied, log_of, make_topic, read_all
from hapax.client import Admin
from hapax.local.cluster import LocalCluster

pytestmark = [
    pytest.mark.timeout(280),
    pytest.mark.skipif("COPY_TEST_SECONDS" not in os.environ, reason="part of make copy-test")]


def between(kafka: KafkaFromMaven, both: LocalCluster) -> dict[str, dict[str, str]]:
    return {"source": {"bootstrap.servers": kafka.bootstrap}, "target": {"bootstrap.servers": both.bootstrap}}


async def values_of(both: LocalCluster, topic: str) -> list[str]:
    return [(each.value or b"").decode() for each in (await read_all(both.bootstrap, PREFIX + topic))[0]]


@pytest.mark.parametrize(("since", "says"), [
    (0, "ends at offset 10, and records up to 20 were copied: it has lost 10 offsets"),
    (15, "the source has lost them and written others"),
])  # fmt: skip
async def test_a_source_that_was_truncated(
    both: LocalCluster, kafka: KafkaFromMaven, topic: str, since: int, says: str
) -> None:
    """As an unclean election does it. `since`: records that it has written afterwards, at the same offsets."""
    lost, sound, sides = f"{topic}.lost", f"{topic}.sound", between(kafka, both)
    for name in (lost, sound):
        await make_topic(kafka.bootstrap, name)
    await write(kafka.bootstrap, lost, 10)
    kept = log_of(kafka, lost).stat().st_size
    await write(kafka.bootstrap, lost, 10, first=10)
    await write(kafka.bootstrap, sound, 5)
    before = [f"{lost}:{i}:1:0" for i in range(20)]
    async with following("", f"{topic}.*", **sides) as copier:
        await copied(both.bootstrap, lost, 20)
        await copied(both.bootstrap, sound, 5)
        kafka.kill()
        with log_of(kafka, lost).open("r+b") as log:
            log.truncate(kept)
        kafka.start()
        await write(kafka.bootstrap, lost, since, first=100)
        await in_trouble(copier, "truncated")
        await write(kafka.bootstrap, sound, 5, first=5)
        await copied(both.bootstrap, sound, 11)
    found = await copy_once("", f"{topic}.*", **sides)
    assert says in found[f"{lost}-0"].trouble
    assert "To continue with what the source holds now, delete the topic in the target" in found[f"{lost}-0"].trouble
    assert found[f"{sound}-0"].trouble == ""
    assert await values_of(both, lost) == before
    assert await is_copied(kafka.bootstrap, both.bootstrap, sound, PREFIX + sound)
    async with Admin(sides["target"]) as admin:
        await admin.delete_topics([PREFIX + lost])
    found = await copy_once("", f"{topic}.*", **sides)
    assert (found[f"{lost}-0"].records, found[f"{lost}-0"].trouble) == (10 + since, "")
    assert await is_copied(kafka.bootstrap, both.bootstrap, lost, PREFIX + lost)


@pytest.mark.parametrize("magic", [0, 1])
async def test_records_of_an_old_format(both: LocalCluster, kafka: KafkaFromMaven, topic: str, magic: int) -> None:
    """What is before them is copied, and the rest once they are of the present format."""
    old, sound, sides = f"{topic}.old", f"{topic}.sound", between(kafka, both)
    for name in (old, sound):
        await make_topic(kafka.bootstrap, name)
        await write(kafka.bootstrap, name, 10)
    file = log_of(kafka, old)
    begin = file.stat().st_size
    await write(kafka.bootstrap, old, 1, first=10)
    batch = file.read_bytes()[begin:]
    await write(kafka.bootstrap, old, 9, first=11)
    with file.open("r+b") as log:
        log.seek(begin)
        log.write(message(10, magic, len(batch)))
    for _ in range(2):
        found = await copy_once("", f"{topic}.*", **sides)
        assert "from offset 10 on, the source holds message format 0 or 1" in found[f"{old}-0"].trouble
        assert (found[f"{old}-0"].position, found[f"{sound}-0"].trouble) == (10, "")
    assert await values_of(both, old) == [f"{old}:{i}:1:0" for i in range(10)]
    with file.open("r+b") as log:
        log.seek(begin)
        log.write(batch)
    found = await copy_once("", f"{topic}.*", **sides)
    assert (found[f"{old}-0"].records, found[f"{old}-0"].trouble) == (10, "")
    assert await is_copied(kafka.bootstrap, both.bootstrap, old, PREFIX + old)


def message(offset: int, magic: int, size: int) -> bytes:
    """One message of this size in bytes, as brokers kept them before Kafka 0.11 (0.10 for magic 0)."""
    head = struct.pack(">bb", magic, 0) + (struct.pack(">q", 1) if magic else b"")
    value = b"v" * (size - 12 - 4 - len(head) - 8)
    body = head + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body
