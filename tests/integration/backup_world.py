"""What backups are taken of: programs that write in transactions while a backup is taken, and the judgement of what a
restored cluster holds."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from typer.testing import CliRunner, Result

from hapax.backup.restoring import Restorer
from hapax.backup.store import Store
from hapax.cli.main import application
from hapax.client import Admin, Consumer, Producer, TopicPartition
from hapax.client.admin import NewTopic
from hapax.codec.batch import read_header
from hapax.codec.control import decode_control
from hapax.codec.records import decode_batch
from hapax.core.backup.manifest import Manifest
from hapax.core.batch import CONTROL, TRANSACTIONAL
from hapax.core.control import Marker
from hapax.core.types import PartitionIndex

PARTITIONS = 3
INPUT, SUMS, PLAIN = "input", "sums", "plain"
GROUP = "summing"
WHOLE = ("left", "right", INPUT)
Log = dict[tuple[str, int], dict[int, tuple[Any, ...]]]


def hapax(*words: str, ok: bool = True) -> Result:
    done = CliRunner().invoke(application([words[0]]), words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code == 0) is ok, done.output
    return done


async def read(bootstrap: str, topics: Iterable[str]) -> Log:
    """All committed records: (topic, partition) -> offset -> (key, value, headers, timestamp)."""
    found: Log = {}
    async with Consumer({"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}) as consumer:
        partitions = [each for topic in topics for each in await consumer.partitions(topic)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        for each in partitions:
            found[each] = {}
        while any([await consumer.position(each) < end for each, end in ends.items()]):
            for r in await consumer.poll(100):
                found[r.topic, r.partition][r.offset] = (r.key, r.value, r.headers, r.timestamp_ms)
    return found


@dataclass
class Writers:
    """Producers of transactions over two topics, of plain records, and a program that sums what it reads, exactly once.
    Every record says which transaction it belongs to, and how many records that has."""

    bootstrap: str
    seed: int = 1
    committed: dict[str, int] = field(default_factory=dict)
    """Transaction -> its number of records, once its commit was answered."""
    sent: list[bytes] = field(default_factory=list)
    """Acknowledged plain records."""
    _ending: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def create(self) -> None:
        async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            await admin.create_topics([
                NewTopic(name, PARTITIONS, -1, {"retention.ms": "-1"} if name == PLAIN else {})
                for name in (INPUT, "left", "right", SUMS, PLAIN)])

    def start(self, feeders: int = 3) -> None:
        self._tasks = [asyncio.create_task(self._feed(f"feeder-{n}", n)) for n in range(feeders)]
        self._tasks += [asyncio.create_task(self._sum(n)) for n in range(PARTITIONS)]
        self._tasks.append(asyncio.create_task(self._write_plainly()))

    async def stop(self) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)

    async def until(self, transactions: int) -> None:
        """Returns when at least this many transactions have committed."""
        while len(self.committed) < transactions:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.01)

    async def _feed(self, name: str, number: int) -> None:
        chance = random.Random(self.seed * 100 + number)
        async with Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name}) as producer:
            serial = 0
            while not self._ending:
                serial += 1
                count = chance.randrange(1, 6)
                whole = {"txn": f"{name}-{serial}", "of": count}
                producer.begin()
                for place in range(count):
                    topic = chance.choice(("left", "right", INPUT))
                    await producer.send(
                        topic, json.dumps({**whole, "place": place}).encode(), f"k{place}".encode(),
                        partition=chance.randrange(PARTITIONS), headers=[("of", b"%d" % count)])
                    if chance.random() < 0.3:
                        await producer.flush()
                if chance.random() < 0.2:
                    await producer.abort()
                    continue
                await producer.commit()
                self.committed[f"{name}-{serial}"] = count

    async def _sum(self, partition: int) -> None:
        """Each of its transactions says from which input offset to which it has read."""
        where = TopicPartition(INPUT, PartitionIndex(partition))
        settings = {
            "bootstrap.servers": self.bootstrap, "group.id": GROUP, "isolation.level": "read_committed",
            "auto.offset.reset": "earliest", "enable.auto.commit": False}
        async with Consumer(settings) as consumer, Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": f"summing-{partition}"}) as producer:
            consumer.assign([where])
            while not self._ending:
                records = await consumer.poll(50, max_records=10)
                if not records:
                    continue
                producer.begin()
                read = {"partition": partition, "offsets": [each.offset for each in records]}
                await producer.send(SUMS, json.dumps(read).encode(), partition=partition)
                await producer.send_offsets({where: records[-1].offset + 1}, GROUP)
                await producer.commit()

    async def _write_plainly(self) -> None:
        async with Producer({"bootstrap.servers": self.bootstrap}) as producer:
            number = 0
            while not self._ending:
                number += 1
                value = b"%d" % number
                await producer.send_and_wait(PLAIN, value, partition=number % PARTITIONS)
                self.sent.append(value)


async def offsets_of(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        return {name: each.offset for name, each in (await admin.group_offsets(group)).items()}


async def judge(source: Log, restored: Log, bootstrap: str, *, surely: dict[str, int], plain: list[bytes]) -> int:
    """`judge_records`, and what had committed before the backup began is there. Returns the number of transactions."""
    committed = await offsets_of(bootstrap, GROUP)
    there = {json.loads(record[1])["txn"] for name, records in restored.items() if name[0] in WHOLE
             for record in records.values()}
    assert set(surely) <= there
    values = {record[1] for name, records in restored.items() if name[0] == PLAIN for record in records.values()}
    assert set(plain) <= values
    return judge_records(source, restored, committed)


def judge_records(source: Log, restored: Log, committed: dict[TopicPartition, int]) -> int:
    """Every restored record is the source's at its offset. Each transaction is there whole or not at all. Those of a
    producer are a beginning of what it committed. The sums are those of the input, each record counted once, and the
    group's offsets say so. Returns the number of transactions."""
    whole: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = {}
    for name, records in restored.items():
        for offset, record in records.items():
            assert source[name][offset] == record, f"{name} offset {offset}"
            if name[0] in WHOLE:
                said = json.loads(record[1])
                whole[said["txn"]] += 1
                sizes[said["txn"]] = said["of"]
    assert {txn: (count, sizes[txn]) for txn, count in whole.items() if count != sizes[txn]} == {}
    last: dict[str, int] = defaultdict(int)
    for txn in whole:
        feeder, _, serial = txn.rpartition("-")
        last[feeder] = max(last[feeder], int(serial))
    for name, records in source.items():
        for record in records.values() if name[0] in WHOLE else ():
            txn = json.loads(record[1])["txn"]
            feeder, _, serial = txn.rpartition("-")
            assert (int(serial) <= last[feeder]) == (txn in whole), f"{txn}, and the last one is {last[feeder]}"
    for partition in range(PARTITIONS):
        counted = [
            offset for record in restored[SUMS, partition].values() for offset in json.loads(record[1])["offsets"]]
        there = sorted(restored[INPUT, partition])
        upto = committed.get(TopicPartition(INPUT, PartitionIndex(partition)), 0)
        assert counted == [offset for offset in there if offset < upto], f"partition {partition} up to {upto}"
    return len(whole)


def contents(store: Store, manifest: Manifest) -> tuple[Log, dict[TopicPartition, int]]:
    """What a restore would write, without a cluster: the committed records, and the group's offsets."""
    restorer = Restorer(None, store, manifest)  # type: ignore[arg-type]
    found: Log = {}
    for part in manifest.partitions:
        if part.topic.startswith("__"):
            continue
        records = found[part.name] = {}
        pending: dict[int, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        for batch in restorer._restored(part, part.start):
            header = read_header(batch)
            if header.attributes & CONTROL:
                control = decode_control(batch, header)
                if isinstance(control, Marker):
                    records |= pending.pop(control.producer_id, {}) if control.commit else {}
                    pending.pop(control.producer_id, None)
                continue
            into = pending[header.producer_id] if header.attributes & TRANSACTIONAL else records
            for r in decode_batch(batch, 0, header.size):
                into[r.offset] = (r.key, r.value, r.headers, r.timestamp)
        assert not any(pending.values())
        found[part.name] = dict(sorted(records.items()))
    offsets: dict[TopicPartition, int] = {}
    for part in manifest.parts_of("__consumer_offsets"):
        for (group, name), value in restorer._committed_offsets(part).items():
            ended = manifest.part(name)
            assert ended is not None
            if group == GROUP:
                offsets[name] = min(value.offset, ended.end)
    return found, offsets
