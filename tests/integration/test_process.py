"""`hapax.client.process` on a real cluster: nothing is lost or doubled, whatever ends a transaction."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import pytest

from conftest import end_cluster, start_cluster
from hapax.client import (
    Admin,
    Consumer,
    FatalError,
    FencedError,
    NewRecord,
    NewTopic,
    Processor,
    Producer,
    Record,
    SettingsError,
    blocking,
)
from hapax.local.cluster import LocalCluster
from integration.test_groups import FAST
from integration.waiting import until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two coordinators, of which one may be killed."""
    cluster = start_cluster(tmp_path_factory.mktemp("process"), coordinators=2, settings=FAST)
    yield cluster
    end_cluster(cluster)


@pytest.fixture
def bootstrap(shared: LocalCluster) -> str:
    return shared.bootstrap


class World:
    """Topics of one test, and what is in them."""

    def __init__(self, bootstrap: str) -> None:
        self.settings: dict[str, object] = {"bootstrap.servers": bootstrap}
        self.name = uuid.uuid4().hex[:10]
        self.source, self.target, self.dead = (f"{each}-{self.name}" for each in ("in", "out", "dead"))
        self.sent = 0
        self.partitions = 2
        self.producer = Producer(self.settings)
        self.watcher = Consumer({**self.settings, "group.id": self.name, "enable.auto.commit": False})
        """Looks at the group's positions, and is none of its members."""

    async def __aenter__(self) -> Self:
        await self.producer.start()
        await self.watcher.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.producer.close()
        await self.watcher.close()

    async def prepare(self, count: int = 0, *, partitions: int = 2, **configs: str) -> World:
        self.partitions = partitions
        async with Admin(self.settings) as admin:
            await admin.create_topics([
                NewTopic(self.source, partitions), NewTopic(self.target, 2, config=configs), NewTopic(self.dead, 1)])
        await self.send(count)
        return self

    async def send(self, count: int) -> None:
        for _ in range(count):
            await self.producer.send(self.source, b"%d" % self.sent, partition=self.sent % self.partitions)
            self.sent += 1
        await self.producer.flush()

    def processor(self, function: Callable[[Record], object] | None = None, **options: object) -> Processor:
        settings = {**self.settings, **options.pop("settings", {})}  # type: ignore[dict-item]
        arguments = {"batch_records": 20, "group": self.name, **options}
        return Processor(self.source, function or self.copied, settings=settings, **arguments)  # type: ignore[arg-type]

    def copied(self, record: Record) -> NewRecord:
        return NewRecord(self.target, record.value, record.key)

    @asynccontextmanager
    async def running(self, *processors: Processor) -> AsyncIterator[list[asyncio.Task[None]]]:
        """Ends with the block, or with the first processor that fails."""
        tasks = [asyncio.create_task(each.run()) for each in processors]
        try:
            yield tasks
        finally:
            for each in processors:
                each.stop()
            await asyncio.gather(*tasks)

    async def done(self, *tasks: asyncio.Task[None]) -> None:
        """Waits until the group has committed everything."""

        async def all_committed() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            partitions = await self.watcher.partitions(self.source)
            committed = await self.watcher.committed(partitions)
            ends = await self.watcher.end_offsets(partitions)
            return all(ends[p] == 0 or (p in committed and committed[p].offset == ends[p]) for p in partitions)

        await until(all_committed, "commit of everything")

    async def read(self, topic: str) -> list[Record]:
        """Everything committed in a topic."""
        settings = {**self.settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        async with Consumer(settings) as consumer:
            partitions = await consumer.partitions(topic)
            consumer.assign(partitions)
            found: list[Record] = []

            async def all_read() -> bool:
                """The markers of a commit follow its answer."""
                found.extend(await consumer.poll(50))
                ends = await raw.end_offsets(partitions)
                return all([await consumer.position(p) >= ends[p] for p in partitions])

            async with Consumer(self.settings) as raw:
                await until(all_read, "end of all transactions")
            return found

    async def check(self) -> None:
        """Each record was processed exactly once."""
        found = Counter(int(each.value or b"") for each in await self.read(self.target))
        assert found == Counter(range(self.sent))


@pytest.fixture
async def world(bootstrap: str) -> AsyncIterator[World]:
    async with World(bootstrap) as made:
        yield made


async def test_copies_each_record_once(world: World) -> None:
    await world.prepare(300)
    processor = world.processor()
    async with world.running(processor) as tasks:
        await world.done(*tasks)
    await world.check()
    values = processor.metrics.values()
    assert values["hapax_client_processed_records_total"] == values["hapax_client_processed_results_total"] == 300
    assert values['hapax_client_process_transactions_total{outcome="committed"}'] >= 15


async def test_functions_of_all_kinds(world: World) -> None:
    await world.prepare(20)

    async def awaited(record: Record) -> NewRecord:
        await asyncio.sleep(0)
        return world.copied(record)

    def generated(record: Record) -> Iterator[NewRecord]:
        yield world.copied(record)

    async def generated_later(record: Record) -> AsyncIterator[NewRecord]:
        yield world.copied(record)

    def listed(records: list[Record]) -> list[NewRecord]:
        return [world.copied(each) for each in records]

    for function in (awaited, generated, generated_later, listed):
        processor = world.processor(function, whole_batches=function is listed)  # type: ignore[arg-type]
        async with world.running(processor) as tasks:
            await world.done(*tasks)
        await world.send(20)
    found = Counter(int(each.value or b"") for each in await world.read(world.target))
    assert found == Counter(range(80))


def test_the_blocking_interface_calls_on_the_own_thread(bootstrap: str) -> None:
    async def prepared() -> World:
        async with World(bootstrap) as made:
            return await made.prepare(100)

    world, threads = asyncio.run(prepared()), set()

    def function(record: Record) -> NewRecord:
        threads.add(threading.current_thread())
        if record.value == b"99":
            processor.stop()
        return world.copied(record)

    processor = blocking.Processor(world.source, function, settings=world.settings, group=world.name)
    processor.run()
    assert threads == {threading.current_thread()}
    assert processor.metrics.values()["hapax_client_processed_records_total"] == 100
    asyncio.run(world.check())
    with pytest.raises(SettingsError, match="not a coroutine function"):
        blocking.Processor(world.source, world.prepare, settings=world.settings, group=world.name)


async def test_poison_becomes_dead_letters_and_the_rest_goes_on(world: World) -> None:
    await world.prepare(60)
    tried: Counter[int] = Counter()

    def function(record: Record) -> NewRecord:
        number = int(record.value or b"")
        tried[number] += 1
        if number == 7:
            raise ValueError("a seven")
        if number == 11 or (number == 13 and tried[13] < 2):
            raise OSError("not now")
        return world.copied(record)

    processor = world.processor(
        function, dead_letters=world.dead, poison=ValueError, attempts=3, settings={"retry.backoff.ms": 1})
    async with world.running(processor) as tasks:
        await world.done(*tasks)
    assert tried[7] == 1 and tried[11] == 3 and tried[13] == 2
    found = Counter(int(each.value or b"") for each in await world.read(world.target))
    assert found == Counter(set(range(60)) - {7, 11})
    dead = {int(each.value or b""): dict(each.headers) for each in await world.read(world.dead)}
    assert set(dead) == {7, 11}
    assert dead[7]["hapax.dead.error"] == b"builtins.ValueError" and dead[7]["hapax.dead.message"] == b"a seven"
    assert dead[7]["hapax.dead.topic"] == world.source.encode() and dead[11]["hapax.dead.attempts"] == b"3"
    assert processor.metrics.values()["hapax_client_dead_letters_total"] == 2


async def test_a_result_that_the_topic_refuses_becomes_a_dead_letter(world: World) -> None:
    await world.prepare(40, **{"max.message.bytes": "20000"})

    def function(record: Record) -> NewRecord:
        return world.copied(record)._replace(value=b"x" * 30_000 if record.value == b"17" else record.value)

    processor = world.processor(function, dead_letters=world.dead, attempts=2, settings={"retry.backoff.ms": 1})
    async with world.running(processor) as tasks:
        await world.done(*tasks)
    found = Counter(int(each.value or b"") for each in await world.read(world.target))
    assert found == Counter(set(range(40)) - {17})
    (dead,) = await world.read(world.dead)
    assert dead.value == b"17" and b"MESSAGE_TOO_LARGE" in (dict(dead.headers)["hapax.dead.message"] or b"")


async def test_a_stop_does_not_wait_for_a_function_that_hangs(world: World) -> None:
    await world.prepare(10)
    called = asyncio.Event()

    async def hangs(record: Record) -> None:
        called.set()
        await asyncio.get_running_loop().create_future()

    processor = world.processor(hangs, stop_timeout_ms=100)
    running = asyncio.create_task(processor.run())
    await called.wait()
    processor.stop()
    await asyncio.wait_for(running, 30)
    processor = world.processor()
    async with world.running(processor) as tasks:
        await world.done(*tasks)
    await world.check()


async def test_what_cannot_work_is_said_at_once(world: World) -> None:
    await world.prepare(10)
    with pytest.raises(FatalError, match=r"dead letters, 'nowhere', does not exist\. Create it"):
        await world.processor(dead_letters="nowhere").run()
    with pytest.raises(SettingsError, match="poison needs dead_letters"):
        world.processor(poison=ValueError)
    with pytest.raises(SettingsError, match="isolation"):
        world.processor(settings={"isolation.level": "read_uncommitted"})

    def function(record: Record) -> NewRecord:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await world.processor(function, attempts=1).run()
    assert await world.read(world.target) == []


async def test_a_transaction_that_takes_too_long_is_processed_again(world: World) -> None:
    """The cluster has aborted it, and fences the producer."""
    await world.prepare(30)
    processor = world.processor(settings={"transaction.timeout.ms": 300})
    delayed, send_offsets = [], processor.producer.send_offsets

    async def late(*arguments: object) -> None:
        if not delayed:
            delayed.append(1)

            async def nothing_is_open() -> bool:
                async with Admin(world.settings) as admin:
                    transactions = await admin.list_transactions()
                name = processor.producer._id
                return all(each.state != "Ongoing" for each in transactions if each.transactional_id == name)

            await until(nothing_is_open, "time-out")
        await send_offsets(*arguments)  # type: ignore[arg-type]

    processor.producer.send_offsets = late  # type: ignore[method-assign, assignment]
    async with world.running(processor) as tasks:
        await world.done(*tasks)
    assert delayed
    await world.check()


async def test_a_second_processor_with_the_same_id_fences_the_first(world: World) -> None:
    await world.prepare(10)
    settings = {"transactional.id": f"id-{world.name}"}
    first, second = world.processor(settings=settings), world.processor(settings=settings)
    running = asyncio.create_task(first.run())
    await world.done(running)
    async with world.running(second) as tasks:
        await world.send(200)
        await world.done(*tasks)
        await world.send(200)
        with pytest.raises(FencedError):
            await asyncio.wait_for(running, 60)
        await world.done(*tasks)
    await world.check()


async def test_an_id_that_has_expired_while_nothing_came_is_initialised_again(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path, settings=[
        *FAST, "transactional.id.expiration.ms=500", "transaction.remove.expired.transaction.cleanup.interval.ms=100"])
    try:
        async with World(cluster.bootstrap) as world, Admin(world.settings) as admin:

            async def has_expired() -> bool:
                return not await admin.list_transactions()

            await world.prepare(20)
            processor = world.processor()
            async with world.running(processor) as tasks:
                for _ in range(2):
                    await world.done(*tasks)
                    await until(has_expired, "expiry")
                    await world.send(20)
                await world.done(*tasks)
            await world.check()
    finally:
        end_cluster(cluster)


async def test_an_aborted_first_batch_is_not_skipped_by_a_start_at_the_end(world: World) -> None:
    """Without a committed offset, `latest` means the end of the log, beyond what was read."""
    await world.prepare(0, partitions=1)
    processor = world.processor(settings={"auto.offset.reset": "latest"})
    send_offsets, refused = processor.producer.send_offsets, []

    async def refuses_first(offsets: object, group: object) -> None:
        if not refused:
            refused.append(1)
            group = group._replace(assigned=frozenset())  # type: ignore[attr-defined]
        await send_offsets(offsets, group)  # type: ignore[arg-type]

    processor.producer.send_offsets = refuses_first  # type: ignore[method-assign]
    async with world.running(processor) as tasks:

        async def positioned() -> bool:
            return bool(processor.consumer.positions())

        await until(positioned, "position")
        await world.send(20)
        await world.done(*tasks)
    assert refused
    await world.check()


async def test_what_a_new_group_has_read_is_not_skipped_by_a_restart_at_the_end(world: World) -> None:
    await world.prepare(0, partitions=1)
    settings = {"auto.offset.reset": "latest"}
    processor = world.processor(settings=settings, batch_ms=60_000, batch_records=1000)
    async with world.running(processor):

        async def positioned() -> bool:
            return bool(processor.consumer.positions())

        await until(positioned, "position")
        await world.send(20)

        async def read() -> bool:
            return sum(processor.consumer.positions().values()) == 20

        await until(read, "record")
    processor = world.processor(settings=settings)
    async with world.running(processor) as tasks:
        await world.done(*tasks)
    await world.check()


async def test_a_topic_that_is_made_again_is_read_from_its_beginning(world: World) -> None:
    await world.prepare(50)
    processor = world.processor()
    async with world.running(processor) as tasks:
        await world.done(*tasks)
        async with Admin(world.settings) as admin:
            await admin.delete_topics([world.source])
            await admin.create_topics([NewTopic(world.source, 2)], exist_ok=True)
        await world.send(30)

        async def all_processed() -> bool:
            assert not tasks[0].done(), tasks[0].result()
            return processor.metrics.values()["hapax_client_processed_records_total"] == 80

        await until(all_processed, "record of the new topic")
        await world.done(*tasks)
    await world.check()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_rebalances_amid_transactions_lose_and_double_nothing(
    world: World, shared: LocalCluster, protocol: str
) -> None:
    """Processors come and go, some by force, and a coordinator is killed."""
    await world.prepare(200, partitions=4)
    settings: dict[str, object] = {"group.protocol": protocol, "retry.backoff.ms": 10}
    if protocol == "classic":
        settings |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
    running: list[tuple[Processor, asyncio.Task[None]]] = []

    async def slow(record: Record) -> NewRecord:
        await asyncio.sleep(0.001)  # so that rebalances come in the middle of a batch
        return world.copied(record)

    def start() -> Processor:
        processor = world.processor(slow, settings=settings)
        running.append((processor, asyncio.create_task(processor.run())))
        return processor

    async def worked(processor: Processor) -> None:
        async def committed() -> bool:
            for _, task in running:
                if task.done():
                    task.result()
            await world.send(20)
            return processor.metrics.values()["hapax_client_processed_records_total"] > 0

        await until(committed, "transaction")

    try:
        await worked(start())
        for number in range(2):
            await worked(start())
            if number == 1:
                await asyncio.to_thread(shared.kill, "coordinator-0")
                await asyncio.to_thread(shared.start, "coordinator-0")
            processor, task = running.pop(0)
            if number == 0:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            else:
                processor.stop()
                await task
        await world.done(*(task for _, task in running))
    finally:
        for processor, _ in running:
            processor.stop()
        await asyncio.gather(*(task for _, task in running))
    await world.check()


_PROGRAM = """
import signal, sys
from hapax.client import NewRecord
from hapax.client.blocking import process

bootstrap, source, target, group = sys.argv[1:]
print("started", flush=True)
process(
    source, lambda record: NewRecord(target, record.value, record.key), group=group, batch_records=20, batch_ms=5,
    settings={"bootstrap.servers": bootstrap, "transactional.id": group, "group.instance.id": "the only one",
              "group.protocol": "classic"},
    stop_on=[signal.SIGTERM])
print("stopped", flush=True)
"""
"""A static member of the classic protocol gets its partitions back at once."""


async def test_a_program_that_is_killed_loses_and_doubles_nothing(
    world: World, bootstrap: str, tmp_path: Path
) -> None:
    await world.prepare(100)
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(script), bootstrap, world.source, world.target, world.name],
            stdout=subprocess.PIPE, text=True)

    async def committed() -> int:
        found = await world.watcher.committed(await world.watcher.partitions(world.source))
        return sum(each.offset for each in found.values())

    chance = random.Random(22)
    for _ in range(2):
        before = await committed()
        program = start()
        try:

            async def went_on() -> bool:
                await world.send(chance.randrange(30, 60))
                return await committed() > before  # noqa: B023

            await until(went_on, "commit")
        finally:
            program.kill()
            program.wait()
            assert program.stdout is not None
            program.stdout.close()
    program = start()
    try:
        await world.send(10)  # the programs before it may have processed everything
        await world.done()
        program.send_signal(signal.SIGTERM)
        said, _ = await asyncio.to_thread(program.communicate, None, 60)
    finally:
        program.kill()
        program.wait()
    assert said == "started\nstopped\n" and program.returncode == 0
    await world.check()
