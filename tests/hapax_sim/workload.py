"""Clients of the simulated cluster: each a process that may be killed, and goes on as a real program would."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from hapax.client import (
    AbortableError,
    Admin,
    Consumer,
    HapaxError,
    NewTopic,
    Producer,
    RetriableError,
    TopicPartition,
)
from hapax_sim.cluster import SimCluster
from hapax_sim.history import History, Outcome, Seen, Sent, Transaction
from hapax_sim.loop import SimProcess

MIXED, PLAIN, COPIES = "mixed", "plain", "copies"
PARTITIONS = {MIXED: 3, PLAIN: 2, COPIES: 2}
GROUP = "copier"


class Workload:
    """Two transactional writers, one idempotent writer, and one that copies records in transactions."""

    def __init__(self, cluster: SimCluster, seed: int, pause_s: tuple[float, float] = (0.0, 0.2)) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.history = History()
        self.stopping = False
        self.pause_s = pause_s
        self.crashes = 0
        self._rng = random.Random(seed)
        self._numbers: dict[str, int] = {}
        self._roles: dict[str, Callable[[str, SimProcess, random.Random], Awaitable[None]]] = {
            "writer-0": self._write_transactions,
            "writer-1": self._write_transactions,
            "plain-0": self._write_plainly,
            "copier-0": self._copy,
        }
        self.processes: dict[str, SimProcess] = {}
        self._done: dict[str, bool] = dict.fromkeys(self._roles, False)

    def settings(self, **more: str) -> dict[str, str]:
        nodes = self.cluster.nodes.values()
        servers = ",".join(f"sim:{9000 + n.number}" for n in nodes if n.role == "broker")
        return {
            "bootstrap.servers": servers,
            "request.timeout.ms": "3000",
        } | {name.replace("__", "."): value for name, value in more.items()}

    def writing(self, **more: str) -> dict[str, str]:
        """Settings of a producer: limits that a simulated minute can hold."""
        limits = {"max.block.ms": "20000", "delivery.timeout.ms": "20000", "transaction.timeout.ms": "10000"}
        return {**self.settings(**more), **limits}

    # --- life of the client processes

    async def create_topics(self) -> None:
        process = SimProcess("admin")

        async def create() -> None:
            async with Admin(self.settings(), ports=self.cluster.ports(process, self._rng)) as admin:
                await admin.create_topics([NewTopic(name, count) for name, count in PARTITIONS.items()])

        await self.loop.spawn(process, create(), "create topics")

    def start(self) -> None:
        for name in self._roles:
            self._start(name)

    def crash(self, name: str) -> None:
        """SIGKILL of a client; another life follows."""
        process = self.processes[name]
        if process.alive and not self._done[name]:
            self.crashes += 1
            self.loop.crash(process)
            self._start(name)

    def finished(self) -> bool:
        return all(self._done.values())

    def _start(self, name: str) -> None:
        self.processes[name] = process = SimProcess(name)
        rng = random.Random(self._rng.random())

        async def live() -> None:
            while not (self.stopping and self._roles[name] is not self._copy) and not self._done[name]:
                try:
                    await self._roles[name](name, process, rng)
                except HapaxError as error:
                    self.loop.trace(f"{name} starts over: {type(error).__name__} {error}")
                    await asyncio.sleep(rng.uniform(0.05, 0.5))
            self._done[name] = True

        self.loop.spawn(process, live(), name)

    def _next(self, topic: str, writer: str, rng: random.Random) -> Sent:
        number = self._numbers.get(writer, 0)
        self._numbers[writer] = number + 1
        return Sent(topic, rng.randrange(PARTITIONS[topic]), writer, number)

    async def _pause(self, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(*self.pause_s))

    # --- what they do

    async def _write_transactions(self, name: str, process: SimProcess, rng: random.Random) -> None:
        settings = self.writing(transactional__id=name)
        async with Producer(settings, ports=self.cluster.ports(process, rng)) as producer:
            while not self.stopping:
                transaction = Transaction(name)
                self.history.transactions.append(transaction)
                producer.begin()
                try:
                    for _ in range(rng.randrange(1, 8)):
                        sent = self._next(MIXED, name, rng)
                        transaction.records.append(sent)
                        await producer.send(sent.topic, sent.value, partition=sent.partition)
                        if rng.random() < 0.1:
                            await self._pause(rng)
                    if rng.random() < 0.15:
                        await producer.abort()
                        transaction.outcome = Outcome.ABORTED
                    else:
                        transaction.outcome = Outcome.UNKNOWN
                        await self._commit(producer)
                        transaction.outcome = Outcome.COMMITTED
                except AbortableError:
                    await producer.abort()
                    transaction.outcome = Outcome.ABORTED
                self.loop.trace(f"{name} {transaction.outcome.value} {len(transaction.records)}")
                await self._pause(rng)

    async def _commit(self, producer: Producer) -> None:
        while True:
            try:
                await producer.commit()
                return
            except RetriableError as error:
                self.loop.trace(f"commit again: {error}")

    async def _write_plainly(self, name: str, process: SimProcess, rng: random.Random) -> None:
        async with Producer(self.writing(), ports=self.cluster.ports(process, rng)) as producer:
            while not self.stopping:
                batch = [self._next(PLAIN, name, rng) for _ in range(rng.randrange(1, 10))]
                self.history.attempted += batch
                waiting = [await producer.send(s.topic, s.value, partition=s.partition) for s in batch]
                for sent, delivery in zip(batch, waiting, strict=True):
                    await delivery
                    self.history.acknowledged.append(sent)
                self.loop.trace(f"{name} wrote {len(batch)}")
                await self._pause(rng)

    async def _copy(self, name: str, process: SimProcess, rng: random.Random) -> None:
        """Consume-process-produce from PLAIN to COPIES; when all stop, it goes on to the end of its input."""
        ports = self.cluster.ports(process, rng)
        reading = self.settings(
            group__id=GROUP, isolation__level="read_committed", auto__offset__reset="earliest",
            enable__auto__commit="false",
        )  # fmt: skip
        async with (
            Producer(self.writing(transactional__id=name), ports=ports) as producer,
            Consumer(reading, ports=ports) as consumer,
        ):
            partitions = [TopicPartition(PLAIN, p) for p in range(PARTITIONS[PLAIN])]  # type: ignore[arg-type]
            consumer.assign(partitions)
            while True:
                ending = self.stopping and all(self._done[n] for n in self._done if n != name)
                ends = await consumer.end_offsets(partitions) if ending else {}
                records = await consumer.poll(timeout_ms=200, max_records=20)
                if not records:
                    if ending and all([await consumer.position(p) >= ends[p] for p in partitions]):
                        self._done[name] = True
                        return
                    continue
                transaction = Transaction(name)
                self.history.transactions.append(transaction)
                producer.begin()
                for record in records:
                    assert record.value is not None
                    writer, _, number = record.value.decode().partition(":")
                    sent = Sent(COPIES, record.partition, writer, int(number))
                    transaction.records.append(sent)
                    await producer.send(sent.topic, sent.value, partition=sent.partition)
                positions = {p: await consumer.position(p) for p in partitions}
                await producer.send_offsets(positions, GROUP)
                transaction.outcome = Outcome.UNKNOWN
                await self._commit(producer)
                transaction.outcome = Outcome.COMMITTED
                self.loop.trace(f"{name} copied {len(records)}")

    # --- the end

    async def read_everything(self, *, committed: bool) -> Seen:
        """What a fresh reader sees, every partition from its beginning to its end."""
        process = SimProcess("reader")
        level = "read_committed" if committed else "read_uncommitted"
        settings = self.settings(isolation__level=level, auto__offset__reset="earliest", enable__auto__commit="false")

        async def read() -> Seen:
            seen: Seen = {(topic, p): [] for topic, count in PARTITIONS.items() for p in range(count)}
            async with Consumer(settings, ports=self.cluster.ports(process, self._rng)) as consumer:
                partitions = [TopicPartition(*where) for where in seen]  # type: ignore[arg-type]
                ends = await consumer.end_offsets(partitions)
                consumer.assign(partitions)
                while True:
                    records = await consumer.poll(timeout_ms=200, max_records=10_000)
                    for record in records:
                        assert record.value is not None
                        seen[record.topic, record.partition].append(record.value)
                    if not records and all([await consumer.position(p) >= ends[p] for p in partitions]):
                        return seen

        result: Seen = await self.loop.spawn(process, read(), "read everything")
        return result

    async def undecided(self) -> list[str]:
        """Partitions whose last stable offset has not reached the high watermark."""
        process = SimProcess("ends")
        partitions = [TopicPartition(t, p) for t, count in PARTITIONS.items() for p in range(count)]  # type: ignore[arg-type]

        async def ends(level: str) -> dict[TopicPartition, int]:
            settings = self.settings(isolation__level=level, enable__auto__commit="false")
            async with Consumer(settings, ports=self.cluster.ports(process, self._rng)) as consumer:
                return await consumer.end_offsets(partitions)

        stable = await self.loop.spawn(process, ends("read_committed"), "ends")
        last = await self.loop.spawn(process, ends("read_uncommitted"), "ends")
        return [f"{p.topic}-{p.partition}: {stable[p]} < {last[p]}" for p in partitions if stable[p] != last[p]]
