"""What the native client promises, as tests against whatever cluster the fixture `target` names.

Inherited by `test_native_against_kafka.py` (Apache Kafka) and `tests/integration/test_client_on_hapax.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import os
import uuid
from collections import Counter
from typing import Protocol

import pytest

from hapax.client import (
    AbortableError,
    Admin,
    Consumer,
    ConsumerGroup,
    DeliveryReport,
    FatalError,
    FencedError,
    HapaxError,
    MembershipLostError,
    NewRecord,
    NewTopic,
    OffsetAndMetadata,
    Processor,
    Producer,
    Record,
    StartFrom,
    TopicPartition,
    WrongState,
    blocking,
)
from hapax.client.coordination import Offsets
from integration.waiting import until


class Target(Protocol):
    @property
    def bootstrap(self) -> str: ...
    def crash(self) -> None:
        """SIGKILL to what stores the records, and up again."""
        ...


def unique(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:10]}"


class Cluster:
    """Shorthand for one test."""

    def __init__(self, target: Target) -> None:
        self.settings: dict[str, object] = {"bootstrap.servers": target.bootstrap}
        self.target = target

    def producer(self, **settings: object) -> Producer:
        return Producer({**self.settings, **{k.replace("_", "."): v for k, v in settings.items()}})

    def consumer(self, **settings: object) -> Consumer:
        defaults = {"auto.offset.reset": "earliest"}
        return Consumer({**self.settings, **defaults, **{k.replace("_", "."): v for k, v in settings.items()}})

    async def topic(self, partitions: int = 1) -> str:
        name = unique("t")
        async with Admin(self.settings) as admin:
            await admin.create_topics([NewTopic(name, partitions, 1)])
        return name

    async def read(
        self, topic: str, isolation: str = "read_committed", *, at_least: int = 0, **settings: object
    ) -> list[Record]:
        """Everything there is, up to the end offsets at the time of asking; at least so many records, since Kafka
        answers a commit before its markers are written."""
        async with self.consumer(isolation_level=isolation, **settings) as consumer:
            partitions = await consumer.partitions(topic)
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            records: list[Record] = []
            async with asyncio.timeout(60):
                while len(records) < at_least or any([await consumer.position(p) < ends[p] for p in partitions]):
                    records += await consumer.poll(1000)
            return records


@pytest.fixture
def on(target: Target) -> Cluster:
    return Cluster(target)


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def count_nodes(settings: dict[str, object]) -> int:
    with blocking.Admin(settings) as admin:
        return len(admin.describe_cluster().nodes)


class NativeSuite:
    epoch_per_transaction = True
    """Transactions version 2."""

    # --- producing and reading --------------------------------------------------------------------------------

    @pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
    async def test_what_is_written_is_read(self, on: Cluster, compression: str) -> None:
        topic, headers = await on.topic(2), (("h", b"x"), ("n", None))
        async with on.producer(compression_type=compression) as producer:
            reports = [
                await producer.send_and_wait(topic, b"v%d" % i, b"k%d" % i, headers=headers, timestamp_ms=7)
                for i in range(3)
            ]
            await producer.send_and_wait(topic, None, None, partition=1)
        records = await on.read(topic)
        assert {(r.partition, r.offset) for r in reports} <= {(r.partition, r.offset) for r in records}
        assert sorted(r.key or b"" for r in records) == [b"", b"k0", b"k1", b"k2"]
        assert all(r.headers == headers and r.timestamp_ms == 7 for r in records if r.key)
        assert all(r.producer_id >= 0 and r.generation == 0 for r in reports)

    async def test_many_partitions_are_read_in_a_fetch_session(self, on: Cluster) -> None:
        topic = await on.topic(20)
        read: list[tuple[int, int]] = []
        async with on.producer() as producer, on.consumer(fetch_max_wait_ms=50) as consumer:
            partitions = await consumer.partitions(topic)
            consumer.assign(partitions)
            epochs = set()
            async with asyncio.timeout(60):
                for number in range(30):
                    for index in range(3):
                        await producer.send_and_wait(topic, b"x", partition=(7 * number + index) % 20)
                    if number == 10:
                        consumer.pause(*partitions[:3])
                    if number == 20:
                        consumer.resume(*partitions[:3])
                        consumer.seek(partitions[5], 0)
                        read = [each for each in read if each[0] != 5]
                    read += [(r.partition, r.offset) for r in await consumer.poll(200)]
                    epochs |= {node.session._epoch for node in consumer._fetcher._nodes._nodes.values()}
                while len(read) < 90:
                    read += [(r.partition, r.offset) for r in await consumer.poll(200)]
        assert len(set(read)) == len(read) == 90
        for index in range(20):
            offsets = [offset for partition, offset in read if partition == index]
            assert offsets == list(range(len(offsets)))
        assert max(epochs) > 10, "it used no session"

    async def test_records_without_reports_are_counted_in_the_offsets_of_the_others(self, on: Cluster) -> None:
        topic = await on.topic(1)
        async with on.producer(linger_ms=5000) as producer:
            await producer.send_unreported(topic, b"1")
            second = await producer.send(topic, b"2")
            await producer.send_unreported(topic, b"3", b"k", timestamp_ms=7, headers=[("h", b"v")])
            last = await producer.send(topic, b"4")
            await producer.flush()
            first, then = (await second).offset, (await last).offset
        assert (first, then) == (1, 3)
        async with on.consumer() as consumer:
            consumer.assign(await consumer.partitions(topic))
            await consumer.seek_to_beginning()
            found = await consumer.poll(5000)
        assert values(found) == [b"1", b"2", b"3", b"4"]
        assert (found[2].key, found[2].timestamp_ms, list(found[2].headers)) == (b"k", 7, [("h", b"v")])

    async def test_a_block_tells_of_a_failed_record_that_nothing_else_tells_of(self, on: Cluster) -> None:
        topic = await on.topic(1)
        async with Admin(on.settings) as admin:
            await admin.alter_topic_config(topic, {"max.message.bytes": "1000"})
        refused = os.urandom(5000)
        with pytest.raises(HapaxError, match="MESSAGE_TOO_LARGE"):
            async with on.producer() as producer:
                await producer.send_unreported(topic, refused)
        with pytest.raises(ZeroDivisionError):
            async with on.producer() as producer:
                await producer.send_unreported(topic, refused)
                raise ZeroDivisionError
        async with on.producer() as producer:
            told = await producer.send(topic, refused)
        with pytest.raises(HapaxError, match="MESSAGE_TOO_LARGE"):
            await told
        async with on.producer() as producer:
            await producer.send_unreported(topic, refused)
            with pytest.raises(HapaxError, match="MESSAGE_TOO_LARGE"):
                await producer.flush()
        async with on.producer(transactional_id=unique("x")) as producer:
            producer.begin()
            await producer.send_unreported(topic, refused)
        assert await on.read(topic) == []

    async def test_keys_go_where_kafkas_own_client_sends_them(self, on: Cluster) -> None:
        topic = await on.topic(7)
        async with on.producer() as producer:
            report = await producer.send_and_wait(topic, b"", b"21")
        assert report.partition == (-973932308 & 0x7FFFFFFF) % 7  # from the tests of Kafka itself

    async def test_many_batches_in_flight_arrive_once_and_in_order(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer(batch_size=200) as producer:
            for i in range(500):
                await producer.send(topic, b"%d" % i)
            await producer.flush()
        assert values(await on.read(topic)) == [b"%d" % i for i in range(500)]

    async def test_records_linger_and_leave_together(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer(linger_ms=100) as producer:
            deliveries = [await producer.send(topic, b"%d" % i) for i in range(5)]
            await asyncio.sleep(0)
            assert not producer.identity.next_sequences, "nothing has left yet"
            reports = await asyncio.gather(*deliveries)
        assert [r.offset for r in reports] == [0, 1, 2, 3, 4]

    async def test_a_full_buffer_makes_the_sender_wait(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer(buffer_memory=3000, linger_ms=5000) as producer:
            for i in range(200):
                await producer.send(topic, b"%d" % i)
        assert values(await on.read(topic)) == [b"%d" % i for i in range(200)]

    async def test_acks_0_is_not_answered_and_still_arrives(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer(acks=0) as producer:
            report = await producer.send_and_wait(topic, b"x")
        assert report.offset == -1
        async with on.consumer() as consumer:
            consumer.assign([TopicPartition(topic, 0)])  # type: ignore[arg-type]
            assert values(await consumer.poll(10_000)) == [b"x"]

    async def test_a_producer_goes_on_from_a_saved_identity(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer() as producer:
            last = await producer.send_and_wait(topic, b"1")
            saved = producer.identity
        async with Producer(on.settings, start_from=saved) as producer:
            report = await producer.send_and_wait(topic, b"2")
        assert (report.producer_id, report.sequence, report.offset) == (last.producer_id, 1, last.offset + 1)
        behind = StartFrom(saved.producer_id, saved.generation, {TopicPartition(topic, 0): last.sequence})  # type: ignore[dict-item]
        async with Producer(on.settings, start_from=behind) as producer:
            again = await producer.send_and_wait(topic, b"1")
        assert again.offset in (last.offset, -1), "the same sequence again is recognised"
        assert values(await on.read(topic)) == [b"1", b"2"]

    async def test_unknown_topics_partitions_and_sizes_are_told_at_once(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer(max_block_ms=3000) as producer:
            with pytest.raises(FatalError, match="no partition 5"):
                await producer.send(topic, b"", partition=5)
            with pytest.raises(FatalError, match=r"max\.request\.size"):
                await producer.send(topic, b"x" * 2_000_000)
            with pytest.raises(FatalError, match="INVALID_TOPIC"):
                await producer.send("a/b", b"")

    # --- positions --------------------------------------------------------------------------------------------

    async def test_positions_seeks_and_offsets_by_time(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer() as producer:
            for i in range(10):
                await producer.send_and_wait(topic, b"%d" % i, timestamp_ms=1000 * i)
        group = unique("g")
        async with on.consumer(group_id=group, enable_auto_commit=False) as consumer:
            (partition,) = await consumer.partitions(topic)
            consumer.assign([partition])
            assert await consumer.position(partition) == 0
            assert values(await consumer.poll(5000, max_records=3)) == [b"0", b"1", b"2"]
            assert await consumer.position(partition) == 3
            await consumer.commit()
            await consumer.commit({partition: OffsetAndMetadata(4, "here")})
            assert await consumer.committed([partition]) == {partition: OffsetAndMetadata(4, "here", -1)}
            consumer.seek(partition, 8)
            assert values(await consumer.poll(5000)) == [b"8", b"9"]
            await consumer.seek_to_beginning()
            assert (await consumer.poll(5000))[0].offset == 0
            assert await consumer.offsets_for_times({partition: 4500}) == {partition: (5, 5000)}
            assert await consumer.offsets_for_times({partition: 10_000_000}) == {partition: None}
            consumer.pause(partition)
            consumer.seek(partition, 0)
            assert await consumer.poll(50) == []
            consumer.resume(partition)
            assert len(await consumer.poll(5000)) == 10
            consumer.seek(partition, 1_000_000)
            assert (await consumer.poll(10_000))[0].offset == 0, "out of range: auto.offset.reset"
        async with on.consumer(group_id=group) as consumer:
            consumer.assign([partition])
            assert await consumer.position(partition) == 4

    async def test_without_a_reset_rule_a_missing_position_is_an_error(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.consumer(auto_offset_reset="none") as consumer:
            (partition,) = await consumer.partitions(topic)
            consumer.assign([partition])
            with pytest.raises(FatalError, match=r"no committed offset and auto\.offset\.reset is none"):
                await consumer.poll(5000)
            consumer.seek(partition, 5)
            with pytest.raises(FatalError, match="OFFSET_OUT_OF_RANGE"):
                await consumer.poll(5000)
            consumer.seek(partition, 0)
            assert await consumer.poll(10) == []

    async def test_a_delivery_report_is_kept_with_a_committed_offset(self, on: Cluster) -> None:
        topic, group = await on.topic(), unique("g")
        async with on.producer() as producer:
            report = await producer.send_and_wait(topic, b"x")
        async with on.consumer(group_id=group, enable_auto_commit=False) as consumer:
            (partition,) = await consumer.partitions(topic)
            await consumer.commit({partition: OffsetAndMetadata(1, report.encode())})
            found = await consumer.committed([partition])
        assert DeliveryReport.decode(topic, 0, found[partition].metadata) == report

    async def test_auto_commit_commits_what_was_read(self, on: Cluster) -> None:
        topic, group = await on.topic(), unique("g")
        async with on.producer() as producer:
            await producer.send_and_wait(topic, b"x")
        async with on.consumer(group_id=group) as consumer:
            (partition,) = await consumer.partitions(topic)
            consumer.assign([partition])
            await consumer.poll(5000)
        async with on.consumer(group_id=group) as consumer:
            assert (await consumer.committed([partition]))[partition].offset == 1

    # --- transactions -----------------------------------------------------------------------------------------

    async def test_committed_and_aborted_transactions(self, on: Cluster) -> None:
        topic = await on.topic(2)
        async with on.producer(transactional_id=unique("x")) as producer:
            generations = []
            for i in range(6):
                producer.begin()
                for j in range(4):
                    await producer.send(topic, b"%d-%d" % (i, j), partition=j % 2)
                await producer.flush()
                generations.append(producer.identity.generation)
                await (producer.abort() if i % 2 else producer.commit())
        assert generations == (sorted(set(generations)) if self.epoch_per_transaction else [generations[0]] * 6)
        committed = values(await on.read(topic, at_least=12))
        assert sorted(committed) == [b"%d-%d" % (i, j) for i in (0, 2, 4) for j in range(4)]  # type: ignore[type-var]
        assert len(await on.read(topic, "read_uncommitted")) == 24

    async def test_an_open_transaction_is_invisible_and_bounds_the_committed_end(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer(transactional_id=unique("x")) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"before")
            producer.begin()
            await producer.send_and_wait(topic, b"open")
            assert values(await on.read(topic, at_least=1)) == [b"before"]
            assert values(await on.read(topic, "read_uncommitted")) == [b"before", b"open"]
            await producer.commit()
        assert values(await on.read(topic, at_least=2)) == [b"before", b"open"]

    async def test_a_block_that_raises_aborts(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer(transactional_id=unique("x")) as producer:
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"no")
                    raise ZeroDivisionError
            async with producer.transaction():
                await producer.send(topic, b"yes")
        assert values(await on.read(topic, at_least=1)) == [b"yes"]

    async def test_offsets_are_committed_and_aborted_with_the_transaction(self, on: Cluster) -> None:
        topic, group = await on.topic(), unique("g")
        partition = TopicPartition(topic, 0)  # type: ignore[arg-type]
        async with on.producer(transactional_id=unique("x")) as producer, on.consumer(group_id=group) as consumer:
            producer.begin()
            await producer.send(topic, b"a")
            await producer.send_offsets({partition: OffsetAndMetadata(5, "five")}, group)
            await producer.commit()
            assert (await consumer.committed([partition]))[partition] == OffsetAndMetadata(5, "five", -1)
            producer.begin()
            await producer.send_offsets({partition: 9}, group)
            await producer.abort()
            assert (await consumer.committed([partition]))[partition].offset == 5
            producer.begin()
            await producer.send_offsets({partition: 7}, group)
            await producer.commit()
            assert (await consumer.committed([partition]))[partition].offset == 7

    # --- groups -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    async def test_a_group_divides_its_partitions_and_refuses_former_members(
        self, on: Cluster, protocol: str
    ) -> None:
        topic, group = await on.topic(4), unique("g")
        async with on.producer() as producer:
            for partition in range(4):
                await producer.send_and_wait(topic, b"%d" % partition, partition=partition)
        settings = {"group_id": group, "group_protocol": protocol, "enable_auto_commit": False}
        first, second = on.consumer(**settings), on.consumer(**settings)
        read: list[bytes | None] = []

        async def poll_until(shares: list[int], *members: Consumer) -> None:
            async with asyncio.timeout(60):
                while sorted(len(member.assignment()) for member in members) != shares:
                    for records in await asyncio.gather(*(member.poll(100) for member in members)):
                        read.extend(values(records))

        async with first, on.producer(transactional_id=unique("x")) as producer:
            first.subscribe([topic])
            await poll_until([4], first)
            async with second:
                second.subscribe(pattern=f"{topic}.*")
                await poll_until([2, 2], first, second)
                assert {*first.assignment(), *second.assignment()} == set(await first.partitions(topic))
                await second.commit({partition: 1 for partition in second.assignment()})
                former, left = second.group_metadata(), second.assignment()
                async with producer.transaction():
                    await producer.send_offsets({partition: 1 for partition in left}, former)
            with pytest.raises(AbortableError):
                async with producer.transaction():
                    await producer.send_offsets({partition: 0 for partition in left}, former)
            await poll_until([4], first)
            assert {each.offset for each in (await first.committed(left)).values()} == {1}
            with pytest.raises(MembershipLostError):
                await first.commit({TopicPartition(topic, 4): 0})  # type: ignore[dict-item]
            while len(set(read)) < 4:
                read += values(await first.poll(1000))
            await first.unsubscribe()
            assert first.assignment() == []

    async def test_the_ready_made_loop_processes_each_record_once(self, on: Cluster) -> None:
        source, target, dead = await on.topic(2), await on.topic(2), await on.topic()
        async with on.producer() as producer:
            for number in range(60):
                await producer.send(source, b"%d" % number, partition=number % 2)
            await producer.flush()
        refused: list[int] = []

        def function(record: Record) -> NewRecord:
            if record.value == b"7":
                raise ValueError
            return NewRecord(target, record.value)

        processor = Processor(
            source, function, settings={**on.settings, "retry.backoff.ms": 10}, group=unique("g"), dead_letters=dead,
            poison=ValueError, batch_records=20)
        send_offsets = processor.producer.send_offsets

        async def refuses_the_second(offsets: Offsets, group: str | ConsumerGroup) -> None:
            refused.append(len(refused))
            if len(refused) == 2:
                assert isinstance(group, ConsumerGroup)
                group = group._replace(assigned=frozenset())
            await send_offsets(offsets, group)

        processor.producer.send_offsets = refuses_the_second  # type: ignore[method-assign]
        running = asyncio.create_task(processor.run())

        async def all_processed() -> bool:
            return running.done() or processor.metrics.values()["hapax_client_processed_records_total"] >= 60

        await until(all_processed, "commit of every record")
        processor.stop()
        await running
        numbers = [int(value or b"") for value in values(await on.read(target, at_least=59))]
        assert sorted(numbers) == sorted(set(range(60)) - {7})
        assert values(await on.read(dead, at_least=1)) == [b"7"]
        assert len(refused) > 3

    async def test_a_zombie_is_fenced_and_told_so(self, on: Cluster) -> None:
        topic, name = await on.topic(), unique("x")
        async with on.producer(transactional_id=name) as zombie:
            zombie.begin()
            await zombie.send_and_wait(topic, b"zombie 1")
            async with on.producer(transactional_id=name) as successor:
                async with successor.transaction():
                    await successor.send(topic, b"successor")
                with pytest.raises(HapaxError) as told:
                    await zombie.send_and_wait(topic, b"zombie 2")
                assert isinstance(told.value, AbortableError | FencedError)
                with pytest.raises((FencedError, AbortableError), match=r"abort\(\) raises FencedError|Stop this"):
                    await zombie.commit()
                with pytest.raises(FencedError):
                    await zombie.abort()
                with pytest.raises(FencedError, match="Stop this instance"):
                    zombie.begin()
        assert values(await on.read(topic, at_least=1)) == [b"successor"]

    async def test_calls_out_of_order_say_what_is_wrong(self, on: Cluster) -> None:
        topic = await on.topic()
        async with on.producer(transactional_id=unique("x")) as producer:
            with pytest.raises(WrongState, match="READY"):
                await producer.send(topic, b"")
            with pytest.raises(WrongState, match="cannot commit"):
                await producer.commit()
            producer.begin()
            with pytest.raises(WrongState, match="cannot begin"):
                producer.begin()
            await producer.commit()

    async def test_transactions_can_be_listed_described_and_aborted_from_outside(self, on: Cluster) -> None:
        topic, name = await on.topic(), unique("x")
        partition = TopicPartition(topic, 0)  # type: ignore[arg-type]
        async with on.producer(transactional_id=name) as producer, Admin(on.settings) as admin:
            producer.begin()
            report = await producer.send_and_wait(topic, b"hangs")
            listed = {t.transactional_id: t for t in await admin.list_transactions()}
            assert (listed[name].producer_id, listed[name].state) == (report.producer_id, "Ongoing")
            (described,) = await admin.describe_transactions([name])
            assert partition in described.partitions and described.producer_epoch == report.generation
            (state,) = [p for p in await admin.describe_producers(partition) if p.producer_id == report.producer_id]
            assert (state.transaction_start_offset, state.last_sequence) == (0, 0)
            await self.abort_from_outside(on, admin, name, partition)
            assert values(await on.read(topic)) == []
            (state,) = [p for p in await admin.describe_producers(partition) if p.producer_id == report.producer_id]
            assert state.transaction_start_offset == -1

    async def abort_from_outside(self, on: Cluster, admin: Admin, name: str, partition: TopicPartition) -> None:
        """Kafka's leaders write a tool's marker whatever the transaction's coordinator knows."""
        await admin.abort_transaction(name, partition)

    # --- administration ---------------------------------------------------------------------------------------

    async def test_topics(self, on: Cluster) -> None:
        topic = await on.topic(2)
        async with Admin(on.settings) as admin:
            with pytest.raises(FatalError, match="TOPIC_ALREADY_EXISTS"):
                await admin.create_topics([NewTopic(topic, 2, 1)])
            await admin.create_topics([NewTopic(topic, 2, 1)], exist_ok=True)
            await admin.create_partitions({topic: 4})

            async def listed() -> list[list[int]]:
                return [[p.partition for p in t.partitions] for t in await admin.list_topics() if t.name == topic]

            async def has_grown() -> bool:  # Kafka's controller answers before its brokers know
                return await listed() == [[0, 1, 2, 3]]

            async def is_gone() -> bool:
                return not await listed()

            await until(has_grown, "four partitions in the list of topics")
            info = await admin.describe_cluster()
            assert info.nodes and info.transaction_version == 2
            await admin.delete_topics([topic])
            await until(is_gone, "the end of the topic in the list of topics")

    def test_the_blocking_face(self, on: Cluster) -> None:
        topic = unique("t")
        with blocking.Admin(on.settings) as admin:
            admin.create_topics([NewTopic(topic, 1, 1)])
        with blocking.Producer({**on.settings, "transactional.id": unique("x")}) as producer:
            with producer.transaction():
                sent = producer.send(topic, b"1")
                producer.send_many(topic, [(None, b"2"), (None, b"3")])
            assert sent.result().offset == 0
            with pytest.raises(ZeroDivisionError), producer.transaction():
                producer.send(topic, b"no")
                raise ZeroDivisionError
        with blocking.Consumer({**on.settings, "isolation.level": "read_committed"}) as consumer:
            consumer.assign(consumer.partitions(topic))
            consumer.seek_to_beginning()
            assert values(consumer.poll(5000)) == [b"1", b"2", b"3"]

    def test_a_forked_child_makes_blocking_clients_of_its_own(self, on: Cluster) -> None:
        with blocking.Admin(on.settings) as admin:
            nodes = len(admin.describe_cluster().nodes)
        pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
        with pool:
            assert pool.submit(count_nodes, on.settings).result(30) == nodes

    # --- crashes ----------------------------------------------------------------------------------------------

    async def test_configurations(self, on: Cluster) -> None:
        topic = await on.topic()
        async with Admin(on.settings) as admin:
            before = await admin.topic_config(topic)
            assert before["retention.ms"][:3] == ("604800000", "default", "604800000")
            assert before["min.insync.replicas"].value == "1", before["min.insync.replicas"]
            assert before["cleanup.policy"].meaning, before["cleanup.policy"]
            await admin.alter_topic_config(topic, {"retention.ms": "60000"})
            for _ in range(400):  # the node that is asked may hear of it a moment later
                if (now := (await admin.topic_config(topic))["retention.ms"]) != before["retention.ms"]:
                    break
                await asyncio.sleep(0.05)
            assert now[:2] == ("60000", "topic"), now
            node = (await admin.describe_cluster()).nodes[0].node_id
            assert (await admin.node_config(node))["node.id"].value == str(node)
        async with Admin({**on.settings, "default.api.timeout.ms": 500, "request.timeout.ms": 500}) as admin:
            with pytest.raises(HapaxError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await admin.topic_config(unique("nowhere"))

    async def test_configurations_of_groups(self, on: Cluster) -> None:
        group, name = unique("configured"), "consumer.session.timeout.ms"
        async with Admin(on.settings) as admin:
            before = (await admin.group_config(group))[name]
            assert before.value == "45000" and before.source in ("default", "node") and before.meaning

            async def becomes(value: str, source: str, *, listed: bool) -> None:
                """The node that is asked may hear of it a moment later; Kafka's tells values earlier than names."""
                for _ in range(400):
                    now = (await admin.group_config(group))[name][:2]
                    is_listed = group in await admin.configured_groups()
                    if (now, is_listed) == ((value, source), listed):
                        break
                    await asyncio.sleep(0.05)
                assert (now, is_listed) == ((value, source), listed)

            await admin.alter_group_config(group, {name: "50000"})
            await becomes("50000", "group", listed=True)
            with pytest.raises(HapaxError, match="INVALID_CONFIG"):
                await admin.alter_group_config(group, {name: "1"})
            await admin.alter_group_config(group, {name: None})
            await becomes("45000", before.source, listed=False)

    async def test_a_crash_in_mid_stream_loses_and_doubles_nothing(self, on: Cluster) -> None:
        topic = await on.topic(2)
        async with on.producer(batch_size=300) as producer:
            deliveries = []
            crash: asyncio.Future[None] | None = None
            for i in range(2000):
                deliveries.append(await producer.send(topic, b"%d" % i, partition=i % 2))
                if i % 50 == 0:
                    await asyncio.sleep(0)
                if i == 700:
                    await deliveries[0]
                    crash = asyncio.ensure_future(asyncio.to_thread(on.target.crash))
            assert crash is not None
            await asyncio.gather(*deliveries)
            await crash
        records = await on.read(topic)
        for partition in range(2):
            got = [r.value for r in records if r.partition == partition]
            assert got == [b"%d" % i for i in range(partition, 2000, 2)]

    async def test_a_crash_among_transactions_loses_and_doubles_nothing(self, on: Cluster) -> None:
        topic, group = await on.topic(2), unique("g")
        source = TopicPartition(topic, 0)  # type: ignore[arg-type]
        crash: asyncio.Future[None] | None = None
        done = 0
        async with on.producer(transactional_id=unique("x")) as producer:
            while done < 60:
                try:
                    producer.begin()
                    for j in range(3):
                        await producer.send(topic, b"%d-%d" % (done, j), partition=j % 2)
                    await producer.send_offsets({source: done + 1}, group)
                    await producer.commit()
                    done += 1
                except AbortableError:
                    await producer.abort()
                if done == 20 and crash is None:
                    crash = asyncio.ensure_future(asyncio.to_thread(on.target.crash))
            assert crash is not None
            await crash
        counts = Counter(values(await on.read(topic, at_least=180)))
        assert counts == Counter(b"%d-%d" % (i, j) for i in range(60) for j in range(3))
        async with on.consumer(group_id=group) as consumer:
            assert (await consumer.committed([source]))[source].offset == 60
