"""The programs that use the simulated cluster. Each `run` is one life of one process. It ends with an error, with a
crash, or when the workload stops. The next life continues as a real program would, from what the log contains."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from hapax.client import (
    AbortableError,
    CommitToken,
    Consumer,
    HapaxError,
    Leases,
    MultiWriter,
    Producer,
    Record,
    RetriableError,
    TopicPartition,
    Winner,
)
from hapax.client.environment import ClientPorts
from hapax_sim.recorder import Attempt, Recorder, Running

APPENDS, PLAIN, COPIES, BATCHES, LINES = "appends", "plain", "copies", "batches", "lines"
PARTITIONS: Final = {APPENDS: 4, PLAIN: 2, COPIES: 2, BATCHES: 2, LINES: 2}


class Life(Protocol):
    """What one life of a client works with."""

    name: str
    process: str
    """The name and the number of the life: a process of the history."""
    rng: random.Random
    recorder: Recorder
    ports: ClientPorts

    def settings(self, **more: str) -> dict[str, str]: ...
    def writing(self, **more: str) -> dict[str, str]: ...

    most_polled: int
    """Maximum number of records that one poll of an appender returns."""
    spread_every_s: float
    """A spreader's interval between transactions."""

    def stopping(self) -> bool: ...
    def others_done(self) -> bool: ...
    def crash(self, name: str) -> None: ...
    async def pause(self) -> None: ...


Program = Callable[[Life], Awaitable[None]]


def key_of(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, p) for p in range(PARTITIONS[topic])]  # type: ignore[arg-type]


def polled(records: list[Record]) -> list[object]:
    """A poll's completed micro-operation."""
    found: dict[str, list[list[object]]] = {}
    for record in records:
        value = record.value.decode() if record.value is not None else None
        found.setdefault(key_of(record.topic, record.partition), []).append([record.offset, value])
    return ["poll", found]


class Sends:
    """The sends of one operation: records values, and fills in their offsets."""

    def __init__(self, life: Life, producer: Producer) -> None:
        self._life, self._producer = life, producer
        self._number = 0
        self._waiting: list[tuple[list[object], asyncio.Future[object]]] = []

    async def send(self, topic: str, partition: int, value: str) -> list[object]:
        micro: list[object] = ["send", key_of(topic, partition), [None, value]]
        future = await self._producer.send(topic, value.encode(), partition=partition)
        self._waiting.append((micro, future))  # type: ignore[arg-type]
        return micro

    def fill_in(self) -> None:
        """Fills in the offsets of acknowledged records."""
        for micro, future in self._waiting:
            if future.done() and not future.cancelled() and future.exception() is None:
                offset = future.result().offset  # type: ignore[attr-defined]
                micro[2] = [offset if offset >= 0 else None, micro[2][1]]  # type: ignore[index]

    def certainly_unwritten(self) -> list[list[object]]:
        """Those that failed, and of which the client says that they are not in the log."""
        def says_so(future: asyncio.Future[object]) -> bool:
            error = future.exception() if future.done() and not future.cancelled() else None
            return isinstance(error, HapaxError) and not error.maybe_written

        return [micro for micro, future in self._waiting if says_so(future)]


async def commit(life: Life, producer: Producer, running: Running, token: CommitToken | None = None) -> bool:
    """Repeats the commit until it is answered. Returns whether the token had been committed before. Raises
    AbortableError and worse."""
    while True:
        running.decided = True
        try:
            return (await producer.commit(token)).already
        except RetriableError:
            life.recorder.counts["commit asked again"] += 1
        except AbortableError:
            running.decided = False
            raise


async def transact(
    life: Life, producer: Producer, running: Running, micros: list[list[object]],
    write: Callable[[Sends], Awaitable[None]], given_up: float,
) -> bool:
    """Runs one transaction, recorded as `running`: the sends of `write`, which it notes in `micros`, then a commit or,
    with the probability `given_up`, a deliberate abort. Returns whether it was committed."""
    sends = Sends(life, producer)
    producer.begin()
    _identity(life, producer)
    try:
        await write(sends)
        if life.rng.random() < given_up:
            await producer.abort()
            raise _Deliberate
        await commit(life, producer, running)
    except (AbortableError, RetriableError, _Deliberate) as error:
        if not isinstance(error, _Deliberate):
            await producer.abort()
        life.recorder.end(running, "fail", micros)
        return False
    sends.fill_in()
    life.recorder.end(running, "ok", micros)
    return True


class _Deliberate(Exception):
    """The program changed its mind."""


def _identity(life: Life, producer: Producer) -> None:
    identity = producer.identity
    life.recorder.identities.append((identity.producer_id, identity.generation, life.process))


# --- list-append: each process is one producer and one consumer -------------------------------------------------------


async def append(life: Life) -> None:
    """Transactions that send to and poll the same few partitions. Positions are committed with them."""
    rng, recorder, process = life.rng, life.recorder, life.process
    reading = life.settings(
        group__id=f"group-of-{life.name}", isolation__level="read_committed", auto__offset__reset="earliest",
        enable__auto__commit="false",
    )  # fmt: skip
    async with (
        Producer(life.writing(transactional__id=life.name), ports=life.ports) as producer,
        Consumer(reading, ports=life.ports) as consumer,
    ):
        where = partitions_of(APPENDS)
        consumer.assign(where)
        recorder.note(process, "assign", [key_of(*p) for p in where])
        number = 0
        while not life.stopping():
            begun = {p: await consumer.position(p) for p in where}
            plan = [rng.random() < 0.3 for _ in range(rng.randrange(1, 7))]
            running = recorder.invoke(process, "txn", [["poll"] if poll else ["send"] for poll in plan])
            micros: list[list[object]] = []
            running.value = micros

            async def write(
                sends: Sends, plan: list[bool] = plan, micros: list[list[object]] = micros
            ) -> None:
                nonlocal number
                for poll in plan:
                    if poll:
                        micros.append(
                            polled(await consumer.poll(timeout_ms=rng.choice((0, 20)), max_records=life.most_polled))
                        )
                        continue
                    number += 1
                    partition = rng.randrange(PARTITIONS[APPENDS])
                    micros.append(await sends.send(APPENDS, partition, f"{process}.{number}"))
                    if rng.random() < 0.05:
                        await life.pause()
                if any(micro[0] == "poll" and micro[1] for micro in micros):
                    await producer.send_offsets({p: await consumer.position(p) for p in where}, f"group-of-{life.name}")

            if not await transact(life, producer, running, micros, write, given_up=0.12):
                for partition, position in begun.items():
                    consumer.seek(partition, position)
            await life.pause()


async def spread(life: Life) -> None:
    """Short transactions over several partitions that the appenders read, at a fixed rate. Transactions that a fault
    delayed are made up for."""
    rng, recorder, process = life.rng, life.recorder, life.process
    loop = asyncio.get_running_loop()
    async with Producer(life.writing(transactional__id=life.name), ports=life.ports) as producer:
        number = 0
        due = loop.time() + rng.uniform(0, life.spread_every_s)
        while not life.stopping():
            await asyncio.sleep(max(0.0, due - loop.time()))
            micros: list[list[object]] = []
            running = recorder.invoke(process, "txn", micros)

            async def write(sends: Sends, micros: list[list[object]] = micros) -> None:
                nonlocal number
                for partition in rng.sample(range(PARTITIONS[APPENDS]), rng.randrange(1, 4)):
                    number += 1
                    micros.append(await sends.send(APPENDS, partition, f"{process}.{number}"))

            await transact(life, producer, running, micros, write, given_up=0.05)
            due += life.spread_every_s


# --- idempotent, outside of transactions ------------------------------------------------------------------------------


async def write_plainly(life: Life) -> None:
    rng, recorder, process = life.rng, life.recorder, life.process
    async with Producer(life.writing(), ports=life.ports) as producer:
        number = 0
        while not life.stopping():
            sends = Sends(life, producer)
            micros: list[list[object]] = []
            running = recorder.invoke(process, "send", micros)
            futures = []
            try:
                for _ in range(rng.randrange(1, 10)):
                    number += 1
                    micros.append(await sends.send(PLAIN, rng.randrange(PARTITIONS[PLAIN]), f"{process}.{number}"))
                    futures.append(sends._waiting[-1][1])
                for future in futures:
                    await future
            except HapaxError:
                await asyncio.wait(futures) if futures else None
                sends.fill_in()
                acknowledged = [m for m in micros if m[2][0] is not None]  # type: ignore[index]
                unwritten = sends.certainly_unwritten()
                doubtful = [m for m in micros if m[2][0] is None and m not in unwritten]  # type: ignore[index]
                recorder.end(running, "ok", acknowledged)
                recorder.end(recorder.invoke(process, "send", unwritten), "fail")
                recorder.end(recorder.invoke(process, "send", doubtful), "info")
                raise
            sends.fill_in()
            recorder.end(running, "ok", micros)
            _identity(life, producer)
            await life.pause()


# --- consume, process, produce ----------------------------------------------------------------------------------------


async def copy(life: Life) -> None:
    """Copies PLAIN to COPIES, with the positions in the transaction. When all others have stopped, it continues to the
    end of its input. Two instances may run at once: the newer one fences the older one."""
    recorder, process = life.recorder, life.process
    reading = life.settings(
        group__id="copiers", isolation__level="read_committed", auto__offset__reset="earliest",
        enable__auto__commit="false",
    )  # fmt: skip
    where = partitions_of(PLAIN)
    async with (
        Producer(life.writing(transactional__id=life.name), ports=life.ports) as producer,
        Consumer(reading, ports=life.ports) as consumer,
    ):
        consumer.assign(where)
        recorder.note(process, "assign", [key_of(*p) for p in where])
        attempt = 0
        while True:
            ending = life.stopping() and life.others_done()
            ends = await consumer.end_offsets(where) if ending else {}
            begun = {p: await consumer.position(p) for p in where}
            records = await consumer.poll(timeout_ms=200, max_records=20)
            if not records:
                if ending and all([await consumer.position(p) >= ends[p] for p in where]):
                    return
                continue
            attempt += 1
            sends = Sends(life, producer)
            micros = [polled(records)]
            running = recorder.invoke(process, "txn", micros)
            try:
                producer.begin()
                _identity(life, producer)
                for record in records:
                    assert record.value is not None
                    value = f"{record.value.decode()}@{process}.{attempt}"
                    micros.append(await sends.send(COPIES, record.partition, value))
                await producer.send_offsets({p: await consumer.position(p) for p in where}, "copiers")
                await commit(life, producer, running)
                sends.fill_in()
                recorder.end(running, "ok", micros)
            except (AbortableError, RetriableError):
                await producer.abort()
                recorder.end(running, "fail", micros)
                for partition, position in begun.items():
                    consumer.seek(partition, position)


# --- several writers, one commit, a token: a replaying engine ---------------------------------------------------------


class Engine:
    """Batches under rising tokens, as Spark runs them. Only `next_token` survives a crash. A batch is replayed until a
    commit is answered."""

    def __init__(self) -> None:
        self.next_token = 0
        self.tries = 0

    async def run(self, life: Life) -> None:
        settings = life.writing()
        async with MultiWriter(settings, life.name, ports=life.ports) as transactions:
            while not life.stopping():
                token = self.next_token
                await self._batch(life, transactions, token)
                if life.rng.random() < 0.9:  # now and then the checkpoint lags behind the commit
                    self.next_token = token + 1
                await life.pause()

    async def _batch(self, life: Life, transactions: MultiWriter, token: int) -> None:
        self.tries += 1
        writers = self._writers_of(token)
        records = 2 * writers
        commit_token = CommitToken(life.name, token, records)
        attempt = Attempt(life.name, token, "failed")
        life.recorder.attempts.append(attempt)
        winners = await self._write_all(life, transactions, commit_token, writers, attempt)
        if winners is None:
            attempt.outcome = "already"
            return
        attempt.outcome = "unknown"
        while True:
            try:
                committed = await transactions.commit(commit_token, winners)
                break
            except RetriableError:
                life.recorder.counts["commit asked again"] += 1
        # `already` may be about this very attempt, whose first answer was lost.
        if not committed.already:
            attempt.outcome = "committed"
        if committed.records not in (0, records):
            life.recorder.complaints.append(f"token {token} was committed with {committed.records} records")
        life.recorder.counts["token committed"] += 1
        life.recorder.loop.trace(f"{life.process} token {token} {attempt.outcome} {attempt.values}")

    def _writers_of(self, token: int) -> int:
        """The same for each replay of a token."""
        return 1 + token % 3

    async def _write_all(
        self, life: Life, transactions: MultiWriter, token: CommitToken, writers: int, batch: Attempt
    ) -> list[Winner] | None:
        """None: the token is committed."""
        winners = []
        for number in range(writers):
            written = await self._write(life, transactions, token, number, batch)
            if written is None:
                return None
            winners.append(written)
        return winners

    async def _write(
        self, life: Life, transactions: MultiWriter, token: CommitToken, number: int, batch: Attempt
    ) -> Winner | None:
        """One task. Sometimes its first attempt is abandoned half-way, and that attempt's records must not be seen."""
        attempts = 2 if life.rng.random() < 0.2 else 1
        for attempt in range(attempts):
            # Half of the members name their first partition. Some of those write to another one first.
            planned = life.rng.randrange(2 * PARTITIONS[BATCHES])
            first = (BATCHES, planned) if planned < PARTITIONS[BATCHES] else None
            joined = await transactions.join(
                token, f"{self.tries}.{number}.{attempt}", timeout_ms=10_000, first=first)
            if joined.already_committed:
                return None
            wins = attempt == attempts - 1
            loser = Attempt(life.name, token.value, "failed")
            if not wins:
                life.recorder.attempts.append(loser)
            values = batch.values if wins else loser.values
            async with transactions.writer(joined) as writer:
                for i in range(2):
                    value = f"{life.name}.{token.value}.{self.tries}.{number}.{attempt}.{i}"
                    values.append(value)
                    partition = life.rng.randrange(PARTITIONS[BATCHES])
                    if i == 0 and first is not None and life.rng.random() < 0.8:
                        partition = planned
                    delivery = await writer.send(BATCHES, value.encode(), partition=partition)
                    if wins:
                        await delivery
                if wins:
                    return await writer.finish()
        raise AssertionError("the last attempt wins")


# --- a leased identity that resumes from the log's own count ----------------------------------------------------------


async def load(life: Life) -> None:
    """A second instance takes the lease over."""
    await load_into(life, partitions_of(LINES), "loader", 60_000, life.recorder.lines_acknowledged)


async def load_into(
    life: Life, where: list[TopicPartition], name: str, expire_ms: int, known: dict[int, int]
) -> None:
    """Writes the lines of an endless file: line n of a partition is its record n. The log tells which lines are there
    already. `known`: partition -> number of acknowledged lines."""
    rng, process = life.rng, life.process
    async with Leases(life.settings(), ports=life.ports) as leases:
        lease = await leases.take(name, where, expire_ms=expire_ms, holder=process)
        life.recorder.identities.append((lease.producer_id, lease.generation, process))
        lines = {p: lease.progress[p] for p in where}
        async with Producer(life.writing(), ports=life.ports, start_from=lease.start_from()) as producer:
            renewed = 0
            while not life.stopping():
                waiting = []
                for _ in range(rng.randrange(1, 6)):
                    p = rng.choice(where)
                    waiting.append(await producer.send(p.topic, f"line-{lines[p]}".encode(), partition=p.partition))
                    lines[p] += 1
                for delivery in waiting:
                    await delivery
                for p, count in lines.items():
                    known[p.partition] = max(known.get(p.partition, 0), count)
                life.recorder.loop.trace(f"{process} wrote up to {sorted(lines.values())}")
                renewed += 1
                if renewed % 20 == 0:
                    lease = await leases.renew(lease, expire_ms)
                await life.pause()
