"""Two copies (`hapax copy`) of one topic, which transactional and idempotent programs write: each copy goes to another
name in the same cluster.

One copy has one process, so that it keeps the source's transactions whole, and it copies the positions of a group. The
other copy is shared by two processes. They are killed, stopped, frozen, cut off, and started twice. In the end each
copy must equal its source, partition by partition."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hapax.client import AbortableError, Admin, Consumer, HapaxError, Producer, RetriableError, TopicPartition
from hapax.client.readings import Chunk
from hapax.codec.records import decode_batch
from hapax.copy.copier import Copier
from hapax.copy.settings import CopySettings
from hapax.core.types import PartitionIndex
from hapax_sim.clients import Life, Program
from hapax_sim.parts.part import PartTopic, a_few_of_each

SOURCE: Final = "mirrored"
PARTITIONS: Final = 3
_WHOLE, _SHARED = "whole", "shared"
_INSTANCES: Final[Mapping[str, int]] = {_WHOLE: 1, _SHARED: 2}
_GROUP: Final = "followers"
_LOOKS_EVERY_S: Final = 1.0
_CAUGHT_UP_WITHIN_S: Final = 150.0
"""After the programs have ended: transactions' time-outs, sessions, and a partition's 30 s in trouble."""
_DIVIDES: Final = ("several steps", "is damaged")
"""What the copier says when it may divide a transaction (docs/copy.md)."""


class _Copied(NamedTuple):
    offset: int
    value: str
    transaction: tuple[int, int]
    """Producer id and epoch."""


class _Divided(logging.Handler):
    """Whether a copier has said that a transaction may be divided."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said = False

    def emit(self, record: logging.LogRecord) -> None:
        self.said |= any(words in record.getMessage() for words in _DIVIDES)


class Copying:
    topics: Mapping[str, PartTopic] = {SOURCE: PartTopic(PARTITIONS)}

    def __init__(self) -> None:
        self.committed: set[str] = set()
        """Values whose transaction or send was confirmed."""
        self.aborted: set[str] = set()
        self.positions: dict[int, set[int]] = {p: {0} for p in range(PARTITIONS)}
        """Partition -> offsets that the group has committed, or has tried to."""
        self.writing: dict[str, bool] = {}
        self.over = dict.fromkeys(_INSTANCES, False)
        self.seen: set[str] = set()
        """What is readable in the source."""
        self.transactions: dict[str, set[tuple[int, int]]] = {}
        """Transaction of the source -> those of the copy that have its records."""
        self.divided = _Divided()
        self.found: list[str] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        log = logging.getLogger("hapax.copy")
        log.addHandler(self.divided)
        try:
            yield
        finally:
            log.removeHandler(self.divided)

    def programs(self) -> dict[str, Program]:
        writers: dict[str, Program] = {f"transactor-{n}": self.transact for n in range(2)}
        return {**writers, "sender-0": self.send, "follower-0": self.follow, "overseer-0": self.oversee,
                **dict.fromkeys(self._copiers(), self.copy)}

    @property
    def lasting(self) -> list[str]:
        return [*self._copiers(), "overseer-0"]

    @staticmethod
    def _copiers() -> list[str]:
        return [f"copier-{copy}-{number}" for copy, count in _INSTANCES.items() for number in range(count)]

    # --- the source's programs

    async def transact(self, life: Life) -> None:
        """Each value begins with its transaction's name."""
        number = 0
        with self._noted(life):
            async with Producer(life.writing(transactional__id=life.name), ports=life.ports) as producer:
                while not life.stopping():
                    number += 1
                    await self._transaction(life, producer, f"{life.process}.{number}")
                    await life.pause()

    async def _transaction(self, life: Life, producer: Producer, name: str) -> None:
        rng, counts = life.rng, life.recorder.counts
        values: list[str] = []
        producer.begin()
        identity = producer.identity
        life.recorder.identities.append((identity.producer_id, identity.generation, life.process))
        try:
            for number in range(rng.randrange(1, 6)):
                values.append(f"{name}:{number}")
                await producer.send(SOURCE, values[-1].encode(), partition=rng.randrange(PARTITIONS))
                if rng.random() < 0.1:
                    await life.pause()
            if rng.random() < 0.15:
                raise AbortableError("the program changed its mind")
            await self._commit(life, producer)
        except (AbortableError, RetriableError):
            await producer.abort()
            self.aborted.update(values)
            counts["txn fail"] += 1
        else:
            self.committed.update(values)
            counts["txn ok"] += 1

    @staticmethod
    async def _commit(life: Life, producer: Producer) -> None:
        while True:
            try:
                await producer.commit()
                return
            except RetriableError:
                life.recorder.counts["commit asked again"] += 1

    async def send(self, life: Life) -> None:
        """Idempotent, outside of transactions."""
        number = 0
        with self._noted(life):
            async with Producer(life.writing(), ports=life.ports) as producer:
                while not life.stopping():
                    sent = []
                    for _ in range(life.rng.randrange(1, 6)):
                        number += 1
                        value = f"{life.process}.{number}:"
                        sent.append((value, await producer.send(
                            SOURCE, value.encode(), partition=life.rng.randrange(PARTITIONS))))
                    for value, delivery in sent:
                        await delivery
                        self.committed.add(value)
                    await life.pause()

    @contextlib.contextmanager
    def _noted(self, life: Life) -> Iterator[None]:
        self.writing[life.name] = True
        try:
            yield
        finally:
            self.writing[life.name] = False

    async def follow(self, life: Life) -> None:
        """Commits its positions without being a member, so its group is free for the copy to commit to as well."""
        reading = life.settings(
            group__id=_GROUP, isolation__level="read_committed", auto__offset__reset="earliest",
            enable__auto__commit="false",
        )  # fmt: skip
        where = _partitions(SOURCE)
        async with Consumer(reading, ports=life.ports) as consumer:
            consumer.assign(where)
            while not life.stopping():
                await consumer.poll(timeout_ms=200, max_records=20)
                positions = {each: await consumer.position(each) for each in where}
                for each, position in positions.items():
                    self.positions[each.partition].add(position)
                with contextlib.suppress(RetriableError):
                    await consumer.commit(positions)
                await life.pause()

    # --- the copies

    async def copy(self, life: Life) -> None:
        """One process of a copy, until it is stopped."""
        _, name, instance = life.name.split("-")
        copier = Copier(CopySettings(
            life.settings(), life.settings(), SOURCE, name=name, instance=instance, prefix=f"{name}.", follow=True,
            groups=_GROUP if name == _WHOLE else "", discover_ms=5_000, groups_ms=2_000), ports=life.ports)
        stops_at = life.recorder.loop.time() + life.rng.expovariate(1 / 30)
        running = asyncio.ensure_future(copier.run())
        try:
            while not running.done() and not self.over[name]:
                if life.recorder.loop.time() > stops_at and not life.stopping():
                    break
                await asyncio.wait([running], timeout=_LOOKS_EVERY_S)
            copier.stop()
            await running
        finally:
            running.cancel()
            life.recorder.counts["transactions of copies"] += int(copier.metrics.transactions.value)
        if not self.over[name]:
            raise _Stopped("it was told to end, and starts again")

    async def oversee(self, life: Life) -> None:
        """Stops each copy once it has reached the end of what was written."""
        async with Admin(life.settings(default__api__timeout__ms="10000"), ports=life.ports) as admin:
            since = None
            while not all(self.over.values()):
                if life.stopping() and not any(self.writing.values()):
                    since = since or life.recorder.loop.time()
                    for copy in [each for each, over in self.over.items() if not over]:
                        behind = await self._behind(admin, copy)
                        late = life.recorder.loop.time() > since + _CAUGHT_UP_WITHIN_S
                        if late:
                            self.found.append(f"late: copy {copy} is behind: {behind}")
                        self.over[copy] = late or not behind
                await asyncio.sleep(_LOOKS_EVERY_S)

    @staticmethod
    async def _behind(admin: Admin, copy: str) -> str:
        """Empty: the copy's positions have reached the end of each partition, and no transaction is open there."""
        ends = await admin.partition_offsets(_partitions(SOURCE))
        positions = await admin.committed_offsets(f"hapax-copy.{copy}")
        behind = []
        for source, target in zip(_partitions(SOURCE), _partitions(f"{copy}.{SOURCE}"), strict=True):
            position = positions[target].offset if target in positions else -1
            if not position == ends[source].last_stable == ends[source].high_watermark:
                behind.append(f"{position} of {ends[source]} in {source.partition}")
        return ", ".join(behind)

    # --- the end

    async def finish(self, life: Life) -> None:
        settings = life.settings(group__id=_GROUP, isolation__level="read_committed", enable__auto__commit="false")
        async with Consumer(settings, ports=life.ports) as consumer:
            for partition in range(PARTITIONS):
                source = await self._read(consumer, SOURCE, partition)
                self._judge_source([each.value for each in source])
                for copy in _INSTANCES:
                    copied = await self._read(consumer, f"{copy}.{SOURCE}", partition)
                    self._compare(f"{copy}.{SOURCE}-{partition}", [each.value for each in source],
                                  [each.value for each in copied])
                    if copy == _WHOLE:
                        self._note_transactions(copied)
                        await self._judge_position(life, consumer, partition, source, copied)
                life.recorder.counts["records copied"] += len(source)
            self._judge_source_whole()

    @staticmethod
    async def _read(consumer: Consumer, topic: str, partition: int) -> list[_Copied]:
        where = TopicPartition(topic, PartitionIndex(partition))
        end = (await consumer.end_offsets([where]))[where]
        found, offset = [], 0
        while offset < end:
            fetched = await consumer.fetch(where, offset)
            for header, position, visible in Chunk(fetched.data, fetched.aborted, True).batches():
                if visible:
                    found += [
                        _Copied(record.offset, (record.value or b"").decode(),
                                (header.producer_id, header.producer_epoch))
                        for record in decode_batch(fetched.data, position, header.size) if record.offset >= offset]
                offset = header.next_offset
        return found

    def _judge_source(self, values: list[str]) -> None:
        self.seen.update(values)
        self.found += [f"aborted-in-source: {each}" for each in values if each in self.aborted]

    def _judge_source_whole(self) -> None:
        self.found += [f"lost-in-source: {each}" for each in sorted(self.committed - self.seen)]

    def _compare(self, name: str, values: list[str], copied: list[str]) -> None:
        """Each committed record of the source once, in its order, and nothing else."""
        if values == copied:
            return
        lost, strange = set(values) - set(copied), sorted(set(copied) - set(values))
        pairs = enumerate(zip(values, copied, strict=False))
        at = next((i for i, (value, copy) in pairs if value != copy), min(len(values), len(copied)))
        self.found.append(
            f"copied-wrongly: {name} has {len(copied) - len(set(copied))} values twice, lacks {len(lost)}, has"
            f" {len(strange)} strangers ({strange[:2]}), and differs from {at} on: {copied[at:at + 2]} where"
            f" {values[at:at + 2]} belong")

    def _note_transactions(self, copied: list[_Copied]) -> None:
        for each in copied:
            name, _, number = each.value.partition(":")
            if number:  # of a transaction
                self.transactions.setdefault(name, set()).add(each.transaction)

    async def _judge_position(
        self, life: Life, consumer: Consumer, partition: int, source: list[_Copied], copied: list[_Copied]
    ) -> None:
        """The group continues in the copy with the record with which it continued, at some time, in the source."""
        where = TopicPartition(f"{_WHOLE}.{SOURCE}", PartitionIndex(partition))
        committed = await consumer.committed([where])
        if where not in committed:
            return
        life.recorder.counts["positions of groups copied"] += 1
        offset = committed[where].offset
        if _next(copied, offset) not in {_next(source, each) for each in self.positions[partition]}:
            self.found.append(
                f"position: {_GROUP} would continue in {where.topic}-{partition} at {offset} with"
                f" {_next(copied, offset)!r}, where it never was in the source")

    def judge(self) -> list[str]:
        if not self.divided.said:
            self.found += [
                f"divided: {name} is in {len(copies)} transactions of copy {_WHOLE}"
                for name, copies in sorted(self.transactions.items()) if len(copies) > 1]
        return a_few_of_each(self.found)


class _Stopped(HapaxError):
    """A process that ended as it was told to, and is started again."""


def _partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, PartitionIndex(p)) for p in range(PARTITIONS)]


def _next(records: list[_Copied], offset: int) -> str:
    """The value of the first record from this offset on. Empty: there is none."""
    return next((each.value for each in records if each.offset >= offset), "")
