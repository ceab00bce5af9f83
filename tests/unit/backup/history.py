"""A cluster's logs in memory, whose transactions go on while they are read: between any two answers, a few steps."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from hapax.backup import manifests
from hapax.backup.cluster import LogStartMoved
from hapax.backup.restoring import Restorer
from hapax.backup.store import FolderStore
from hapax.backup.taking import BackupTaker, Taken
from hapax.client.admin import TopicInfo, TopicPartitionInfo
from hapax.client.errors import from_code
from hapax.client.offsets import PartitionOffsets
from hapax.codec.batch import patch_prefix, read_header
from hapax.codec.control import decode_control, encode_control
from hapax.codec.internal_records import encode_batch
from hapax.codec.offsets_log import encode_key, encode_value
from hapax.codec.records import decode_batch, encode_records
from hapax.codec.transaction_log import decode_value, encode_record
from hapax.core.backup.manifest import Manifest
from hapax.core.batch import CONTROL, TRANSACTIONAL, BatchHeader
from hapax.core.control import Marker, ProducerFence
from hapax.core.errors import ErrorCode
from hapax.core.group.offsets import CommittedOffset, OffsetRecord
from hapax.core.transaction.record import CommittedToken, Transaction, TransactionPartition
from hapax.core.transaction.states import State
from hapax.core.types import (
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Serial,
    TimestampMs,
    TopicId,
    TopicPartition,
)

SHARDS, PARTITIONS = 3, 3
TOPICS = {"a": UUID(int=1), "b": UUID(int=2), "__transaction_state": UUID(int=3), "__consumer_offsets": UUID(int=4)}
DATA = [TopicPartition(topic, PartitionIndex(index)) for topic in ("a", "b") for index in range(PARTITIONS)]


class Described(NamedTuple):
    serial: int
    state: str


class NoLeases:
    async def list(self) -> list[Any]:
        return []


@dataclass
class Producer:
    name: str
    producer_id: int
    epoch: int = 0
    serial: int = 0
    state: State = State.EMPTY
    plan: list[TopicPartition] = field(default_factory=list)
    total: int = 0
    written: list[TopicPartition] = field(default_factory=list)
    reads: dict[str, Any] | None = None
    unmarked: list[TopicPartition] = field(default_factory=list)
    tokens: int = 0


class History:
    """`step` does one thing that some process does. Each log is a list of batches."""

    def __init__(self, seed: int, producers: int = 5) -> None:
        self.chance = random.Random(seed)
        self.now = 1_700_000_000_000
        self.logs: dict[TopicPartition, list[bytes]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.topics = dict(TOPICS)
        self.producers = [Producer(f"t{n}", n) for n in range(producers)]
        self.committed: dict[tuple[str, TopicPartition], int] = {}
        self.cluster_id = "model"
        self.steps_between = 3
        self.busy = 0.15
        """Steps for each batch that is read."""
        self.on_read: Callable[[TopicPartition], None] = lambda name: None

    # --- what processes do

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step(self.chance.choice(self.producers))

    def step(self, producer: Producer) -> None:
        self.now += 1
        if producer.state is State.EMPTY:
            self._begin(producer)
        elif producer.state is State.ONGOING and producer.plan:
            where = producer.plan.pop()
            said = {"txn": f"{producer.name}-{producer.serial}", "of": producer.total, "reads": producer.reads}
            self.append_data(where, producer, json.dumps(said).encode())
        elif producer.state is State.ONGOING:
            self._decide(producer)
        elif producer.unmarked:
            where = producer.unmarked.pop(self.chance.randrange(len(producer.unmarked)))
            marker = Marker(
                ProducerId(producer.producer_id), ProducerEpoch(producer.epoch),
                producer.state is State.PREPARE_COMMIT, 1, Serial(producer.serial))
            self.append(where, bytes(encode_control(marker, self.now)))
        else:
            if self.chance.random() < 0.7:  # else the completion is postponed, and then implied by the next record
                done = State.COMPLETE_COMMIT if producer.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
                self._record(producer, done)
            producer.state, producer.epoch = State.EMPTY, producer.epoch + 1

    def _begin(self, producer: Producer) -> None:
        producer.serial += 1
        producer.state, producer.reads, producer.written = State.ONGOING, None, []
        producer.plan = [self.chance.choice(DATA) for _ in range(self.chance.randrange(1, 4))]
        if self.chance.random() < 0.5:
            where = self.chance.choice(DATA)
            begin = self.committed.get((producer.name, where), 0)
            found = [offset for offset in self.visible(where) if offset >= begin]
            if found:
                producer.reads = {"topic": where.topic, "partition": where.partition, "offsets": found}
        producer.total = len(producer.plan)
        self._record(producer, State.ONGOING)

    def _decide(self, producer: Producer) -> None:
        if producer.reads is not None:
            where = TopicPartition(producer.reads["topic"], PartitionIndex(producer.reads["partition"]))
            value = CommittedOffset(Offset(producer.reads["offsets"][-1] + 1), -1, "", TimestampMs(self.now))
            record = OffsetRecord(producer.name, where, value)
            at = self._place("__consumer_offsets", producer)
            self.append(at, bytes(encode_batch(
                [(encode_key(record), encode_value(record))], self.now, producer_id=producer.producer_id,
                producer_epoch=producer.epoch)))
            producer.written.append(at)
        commits = self.chance.random() < 0.8
        producer.state = State.PREPARE_COMMIT if commits else State.PREPARE_ABORT
        if commits:
            producer.tokens = producer.serial
            if producer.reads is not None:
                self.committed[producer.name, where] = producer.reads["offsets"][-1] + 1
        producer.unmarked = list(dict.fromkeys(producer.written))
        self._record(producer, producer.state)

    def _record(self, producer: Producer, state: State) -> None:
        partitions = tuple(
            TransactionPartition(name.topic, TopicId(TOPICS[name.topic].bytes), name.partition)
            for name in dict.fromkeys(producer.written))
        token = CommittedToken("s", producer.tokens, 1, Serial(producer.tokens), TimestampMs(self.now))
        transaction = Transaction(
            transactional_id=producer.name, state=state, producer_id=ProducerId(producer.producer_id),
            producer_epoch=ProducerEpoch(producer.epoch), serial=Serial(producer.serial),
            partitions=partitions if state is not State.ONGOING else (), last_update_ms=TimestampMs(self.now),
            start_ms=TimestampMs(self.now), tokens=(token,) if producer.tokens else ())
        self.append(
            self._place("__transaction_state", producer), bytes(encode_batch(encode_record(transaction), self.now)))

    def _place(self, topic: str, producer: Producer) -> TopicPartition:
        return TopicPartition(topic, PartitionIndex(producer.producer_id % SHARDS))

    def append_data(self, where: TopicPartition, producer: Producer, value: bytes) -> None:
        self.append(where, bytes(encode_records(
            [(self.now, None, value, ())], producer_id=producer.producer_id, producer_epoch=producer.epoch,
            base_sequence=0, transactional=True)))
        producer.written.append(where)

    def append(self, where: TopicPartition, batch: bytes) -> None:
        data = bytearray(batch)
        patch_prefix(data, self.end(where), 0)
        self.logs.setdefault(where, []).append(bytes(data))

    # --- what readers see

    def end(self, where: TopicPartition) -> int:
        log = self.logs.get(where)
        return self.starts.get(where, 0) if not log else read_header(log[-1]).next_offset

    def visible(self, where: TopicPartition) -> list[int]:
        """Offsets of the committed records below the last stable offset."""
        return list(committed_records(self.logs.get(where, [])))

    # --- `BackedUpCluster`

    def _infos(self, topics: list[str]) -> list[TopicInfo]:
        counts = {"a": PARTITIONS, "b": PARTITIONS}
        return [TopicInfo(name, str(self.topics[name]), tuple(
            TopicPartitionInfo(index, 0, 0, (0,)) for index in range(counts.get(name, SHARDS))))
            for name in topics if name in self.topics]

    def delete(self, topic: str) -> None:
        del self.topics[topic]
        for where in DATA:
            if where.topic == topic:
                self.logs.pop(where, None)
                self.starts.pop(where, None)

    async def topics_by_kind(self) -> tuple[list[TopicInfo], list[TopicInfo]]:
        return self._infos(["a", "b"]), self._infos(["__transaction_state", "__consumer_offsets"])

    async def partition_offsets(self, names: list[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        found = {}
        if any(name.topic not in self.topics for name in names):
            raise from_code(ErrorCode.LEADER_NOT_AVAILABLE, "a deleted topic")
        for name in self.chance.sample(names, len(names)):
            found[name] = PartitionOffsets(self.starts.get(name, 0), self.end(name), self.end(name))
            self.run(self.steps_between)
        return found

    async def batches(
        self, name: TopicPartition, topic_id: str, start: int, end: int
    ) -> AsyncIterator[tuple[memoryview, BatchHeader]]:
        self.on_read(name)
        if topic_id != str(self.topics.get(name.topic)):
            raise from_code(ErrorCode.UNKNOWN_TOPIC_ID, name.topic)
        for batch in [*self.logs.get(name, []), b""]:
            if start < min(end, self.starts.get(name, 0)):
                raise LogStartMoved(self.starts[name])
            if not batch:
                return
            header = read_header(batch)
            if start < header.next_offset and header.base_offset < end:
                yield memoryview(batch), header
                start = header.next_offset
                self.run(self.chance.random() < self.busy)

    async def describe(self, name: str) -> Described:
        (producer,) = [each for each in self.producers if each.name == name]
        while producer.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            self.step(producer)
        return Described(producer.serial, producer.state.kafka_name)

    async def topic_config(self, name: str) -> dict[str, Any]:
        if name not in self.topics:
            raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        return {}

    async def note_backup(self, backup: str, *, restored: bool) -> str:
        return ""

    async def list_acls(self) -> list[Any]:
        return []

    async def list_quotas(self) -> dict[Any, Any]:
        return {}

    async def configured_groups(self) -> list[str]:
        return []

    async def users(self) -> tuple[tuple[str, str], ...]:
        return ()

    # --- backups

    def taker(self, store: Any) -> BackupTaker:
        return BackupTaker(
            self, NoLeases(), store, now_ms=lambda: self.now,  # type: ignore[arg-type]
            randbytes=lambda count: self.chance.randbytes(count))

    async def backup(self, store: Any, keep: int = 0) -> Taken:
        return await self.taker(store).take(keep)


def after_each_upload(taker: BackupTaker, work: Callable[[int], Awaitable[None]]) -> list[str]:
    """`work` is called with the number of objects so far. Returns the names of the objects, as they come."""
    upload, names = taker.upload, list[str]()

    async def uploading(name: str, content: bytes) -> None:
        await upload(name, content)
        names.append(name)
        await work(len(names))

    taker.upload = uploading  # type: ignore[method-assign]
    return names


def committed_records(log: list[bytes]) -> dict[int, bytes]:
    """Offset -> value, below the last stable offset."""
    found: dict[int, bytes] = {}
    pending: dict[int, dict[int, bytes]] = {}
    for batch in log:
        header = read_header(batch)
        if header.attributes & CONTROL:
            control = decode_control(batch, header)
            if isinstance(control, Marker):
                decided = pending.pop(control.producer_id, {})
                found |= decided if control.commit else {}
        else:
            into = pending.setdefault(header.producer_id, {}) if header.attributes & TRANSACTIONAL else found
            into |= {r.offset: r.value or b"" for r in decode_batch(batch, 0, header.size)}
    stable = min((min(each) for each in pending.values() if each), default=1 << 60)
    return dict(sorted((offset, value) for offset, value in found.items() if offset < stable))


def still_open(log: list[bytes]) -> set[int]:
    """Producer ids of transactions without a marker."""
    opened: set[int] = set()
    for batch in log:
        header = read_header(batch)
        if header.attributes & CONTROL:
            opened.discard(header.producer_id)
        elif header.attributes & TRANSACTIONAL:
            opened.add(header.producer_id)
    return opened


def restored(store: FolderStore, manifest: Manifest) -> tuple[dict[TopicPartition, dict[int, bytes]], Restorer]:
    """What a restore would write to clients' partitions."""
    restorer = Restorer(None, store, manifest)  # type: ignore[arg-type]
    found = {}
    for part in manifest.partitions:
        if not part.topic.startswith("__"):
            batches = list(restorer._restored(part, part.start))
            assert not any(isinstance(decode_control(each, read_header(each)), ProducerFence)
                           for each in batches if read_header(each).attributes & CONTROL)
            found[part.name] = committed_records(batches)
            assert not still_open(batches)
    return found, restorer


def judge(history: History, store: FolderStore, manifest: Manifest, *, through: dict[str, int] | None = None) -> int:
    """Raises AssertionError unless every transaction is whole or absent, with all that it depends on. `through`: the
    transactions that have to be there, because they were complete when the backup began. Returns their number."""
    found, restorer = restored(store, manifest)
    there: dict[str, int] = {}
    sizes: dict[str, int] = {}
    reads: dict[tuple[str, str, int], list[int]] = {}
    seen: set[str] = set()
    for name, records in found.items():
        source = committed_records(history.logs.get(name, []))
        for offset, value in records.items():
            assert source.get(offset, value) == value
            said = json.loads(value)
            txn = said["txn"]
            there[txn] = there.get(txn, 0) + 1
            sizes[txn] = said["of"]
            if said["reads"] is not None and txn not in seen:
                key = txn.partition("-")[0], said["reads"]["topic"], said["reads"]["partition"]
                reads.setdefault(key, []).extend(said["reads"]["offsets"])
            seen.add(txn)
    assert {txn: count for txn, count in there.items() if count != sizes[txn]} == {}
    last = {p.name: max((int(t.partition("-")[2]) for t in there if t.partition("-")[0] == p.name), default=0)
            for p in history.producers}
    for name, records in history.logs.items():
        if name in DATA:
            for value in committed_records(records).values():
                txn = json.loads(value)["txn"]
                owner, _, serial = txn.partition("-")
                assert (int(serial) <= last[owner]) == (txn in there), (txn, last[owner])
    assert all(last[name] >= serial for name, serial in (through or {}).items()), (last, through)
    offsets = {}
    for part in manifest.parts_of("__consumer_offsets"):
        offsets |= {key: value.offset for key, value in restorer._committed_offsets(part).items()}
    for (group, topic, index), consumed in reads.items():
        where = TopicPartition(topic, PartitionIndex(index))
        upto = offsets[group, where]
        assert sorted(consumed) == [offset for offset in found[where] if offset < upto], (group, where, upto)
    assert {(g, where.topic, where.partition) for g, where in offsets} == set(reads)
    tokens = {}
    for part in manifest.parts_of("__transaction_state"):
        for name, value in restorer._last_transactions(part).items():
            record = decode_value(name, value)
            assert isinstance(record, Transaction)
            tokens[name] = record.tokens[0].value if record.tokens else 0
    assert {name: value for name, value in tokens.items() if value != last[name]} == {}
    return len(there)


def newest(store: FolderStore) -> Manifest:
    return manifests.read(store, manifests.listed(store)[-1])


def folder_store(folder: Path) -> FolderStore:
    return FolderStore(folder)
