"""The native client against Hapax: everything it promises against Kafka, and Hapax's own calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from clients.native_suite import Cluster, NativeSuite, on, unique, values  # noqa: F401 - `on` is a fixture
from conftest import end_cluster, start_cluster
from hapax.client import (
    AbortableError,
    Admin,
    CommitToken,
    Conflict,
    FatalError,
    FencedError,
    HapaxError,
    Lease,
    Leases,
    MultiWriter,
    Producer,
    Progress,
    RetriableError,
    TokenConflictError,
    TopicPartition,
    Winner,
    WrongState,
)
from hapax.core.types import PartitionIndex
from hapax.local.cluster import LocalCluster


class Hapax:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap

    def crash(self) -> None:
        """SIGKILL to the broker, then up again."""
        self.cluster.kill("broker-0")
        self.cluster.start("broker-0")

    def crash_coordinator(self) -> None:
        self.cluster.kill("coordinator-0")
        self.cluster.start("coordinator-0")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hapax]:
    cluster = start_cluster(tmp_path_factory.mktemp("client-cluster"))
    yield Hapax(cluster)
    end_cluster(cluster)


def both(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]  # type: ignore[arg-type]


class TestOnHapax(NativeSuite):
    async def abort_from_outside(self, on: Cluster, admin: Admin, name: str, partition: TopicPartition) -> None:  # noqa: F811
        """A marker on one partition would tear a live transaction apart: its producer has to be fenced instead."""
        with pytest.raises(HapaxError, match="INVALID_TXN_STATE"):
            await admin.abort_transaction(name, partition)
        async with on.producer(transactional_id=name):
            pass

    async def test_a_position_is_committed_in_the_topic_that_it_is_one_in(self, on: Cluster) -> None:  # noqa: F811
        """The consumer has not heard that the topic was deleted and made again."""
        topic, group = await on.topic(), unique("g")
        partition = TopicPartition(topic, PartitionIndex(0))
        heard = asyncio.Event()
        async with (
            on.consumer(group_id=group, enable_auto_commit=False, default_api_timeout_ms=1000) as consumer,
            on.producer() as producer, Admin(on.settings) as admin,
        ):
            await producer.send_and_wait(topic, b"old")
            consumer.assign([partition])
            while not await consumer.poll(1000):
                pass
            ask = consumer._cluster._ask

            async def asked_late() -> None:
                await heard.wait()
                await ask()

            consumer._cluster._ask = asked_late  # type: ignore[method-assign]
            await admin.delete_topics([topic])
            await admin.create_topics([topic])
            async with on.producer() as successor:
                for _ in range(3):
                    await successor.send_and_wait(topic, b"new")
            with pytest.raises(RetriableError, match="UNKNOWN_TOPIC_ID"):
                await consumer.commit()
            heard.set()
            await consumer._cluster.refreshed(10_000)
            await consumer.commit()
            assert await consumer.committed([partition]) == {}, "its group would never read the first new record"

    async def test_a_fenced_producer_is_told_by_whom_when_and_from_where(self, on: Cluster) -> None:  # noqa: F811
        topic, name = await on.topic(), unique("x")
        async with on.producer(transactional_id=name) as zombie:
            zombie.begin()
            await zombie.send_and_wait(topic, b"x")
            async with on.producer(transactional_id=name, client_id="successor"):
                with pytest.raises((AbortableError, FencedError)) as refused:
                    await zombie.send_and_wait(topic, b"y")
                assert re.search(
                    r"epoch 0 was fenced by epoch \d+ at offset \d+; .* was initialised again at \S+ by successor from",
                    str(refused.value)), "its partition, too, says who"
                with pytest.raises(FencedError) as fenced:
                    await zombie.abort()
        assert fenced.value.by == "successor"
        assert fenced.value.when_ms is not None and fenced.value.when_ms > 1_700_000_000_000
        assert fenced.value.where is not None and fenced.value.where.startswith("127.0.0.1:")


    async def test_a_transaction_past_its_limit_is_aborted_and_its_producer_told_so(self, on: Cluster) -> None:  # noqa: F811
        topic = await on.topic()
        partition = both(topic)[0]
        async with (
            on.producer(transactional_id=unique("x"), transaction_timeout_ms=1000) as producer,
            on.consumer(isolation_level="read_committed") as consumer,
        ):
            consumer.assign([partition])
            producer.begin()
            await producer.send_and_wait(topic, b"slow")
            loop = asyncio.get_running_loop()
            began = loop.time()
            async with asyncio.timeout(10):
                while (await consumer.end_offsets([partition]))[partition] == 0:
                    await consumer.poll(50)
            assert loop.time() - began < 3, "within a second of the limit, and some for a busy machine"
            with pytest.raises(FencedError, match="allow more time"):
                await producer.commit()
        assert await on.read(topic) == []

    async def test_a_delivery_timeout_passes_while_the_broker_is_down(self, on: Cluster, target: Hapax) -> None:  # noqa: F811
        topic = await on.topic()
        async with (
            on.producer(delivery_timeout_ms=1500) as plain,
            on.producer(delivery_timeout_ms=1500, transactional_id=unique("x")) as transactional,
        ):
            await plain.send_and_wait(topic, b"1")
            transactional.begin()
            await transactional.send_and_wait(topic, b"no")
            target.cluster.kill("broker-0")
            with pytest.raises(RetriableError) as told:
                await plain.send_and_wait(topic, b"lost")
            assert "delivery.timeout.ms" in str(told.value)
            with pytest.raises(AbortableError, match=r"delivery\.timeout\.ms"):
                await transactional.send_and_wait(topic, b"no")
            await asyncio.to_thread(target.cluster.start, "broker-0")
            await plain.send_and_wait(topic, b"2")
            await transactional.abort()
            async with transactional.transaction():
                await transactional.send(topic, b"3")
        assert values(await on.read(topic)) == [b"1", b"2", b"3"]


class TestLeases:
    async def test_a_lease_counts_progress_and_a_takeover_fences(self, on: Cluster) -> None:  # noqa: F811
        topic, name = await on.topic(2), unique("lease")
        async with Leases(on.settings) as leases:
            first = await leases.take(name, both(topic), holder="first")
            assert set(first.progress.values()) == {0} and first.former_holder is None
            zombie = await Producer(on.settings, start_from=first.start_from()).start()
            for i in range(10):
                await zombie.send(topic, b"%d" % i, partition=i % 2)
            await zombie.flush()
            second = await leases.take(name, both(topic), holder="second")
            assert (second.generation, second.former_holder) == (first.generation + 1, "first")
            assert second.progress == dict.fromkeys(both(topic), 5)
            with pytest.raises(FencedError):
                await zombie.send_and_wait(topic, b"zombie", partition=0)
            with pytest.raises(FencedError):
                await zombie.send(topic, b"zombie")
            await zombie.close()
            with pytest.raises(FencedError) as told:
                await leases.renew(first)
            assert (told.value.by, told.value.when_ms is not None) == ("second", True)
            async with Producer(on.settings, start_from=second.start_from()) as producer:
                report = await producer.send_and_wait(topic, b"10", partition=0)
            assert (report.producer_id, report.generation, report.sequence) == (first.producer_id, 1, 0)
            progress = await leases.progress(name)
            assert progress[both(topic)[0]] == Progress(6, 1, 0, report.offset)
            assert progress[both(topic)[1]].records == 5
            assert sorted(r.value or b"" for r in await on.read(topic)) == sorted(b"%d" % i for i in range(11))

    async def test_a_holder_resumes_under_what_it_saved(self, on: Cluster) -> None:  # noqa: F811
        topic, name = await on.topic(), unique("lease")
        partitions = both(topic)[:1]
        async with Leases(on.settings) as leases:
            lease = await leases.take(name, partitions)
            async with Producer(on.settings, start_from=lease.start_from()) as producer:
                await producer.send_and_wait(topic, b"1")
            resumed = await leases.take(name, partitions, resume=(lease.producer_id, lease.generation))
            assert (resumed.generation, resumed.next_sequences[partitions[0]]) == (lease.generation, 1)
            async with Producer(on.settings, start_from=resumed.start_from()) as producer:
                await producer.send_and_wait(topic, b"2")
            await leases.take(name, partitions)
            with pytest.raises(FencedError):
                await leases.take(name, partitions, resume=(lease.producer_id, lease.generation))
        assert values(await on.read(topic)) == [b"1", b"2"]

    async def test_leases_are_listed_renewed_and_released(self, on: Cluster) -> None:  # noqa: F811
        topic, name = await on.topic(), unique("lease")
        async with Leases(on.settings) as leases:
            lease: Lease = await leases.take(name, both(topic)[:1], holder="me", expire_ms=10_000)
            renewed = await leases.renew(lease, expire_ms=500_000)
            assert renewed.expires_at_ms > lease.expires_at_ms
            (found,) = await leases.list(name)
            assert (found.holder, found.partitions) == ("me", tuple(both(topic)[:1]))
            await leases.release(renewed)

    async def test_a_loader_that_dies_goes_on_at_the_right_line(self, on: Cluster) -> None:  # noqa: F811
        """Lines go to partitions by number; each instance stops without a word and the next asks for progress."""
        topic, name = await on.topic(2), unique("loader")
        lines = [b"line %d" % i for i in range(300)]
        async with Leases(on.settings) as leases:
            for stop_after in (90, 170, None):
                lease = await leases.take(name, both(topic))
                producer = await Producer({**on.settings, "batch.size": 200}, start_from=lease.start_from()).start()
                seen = dict.fromkeys(both(topic), 0)
                for i, line in enumerate(lines):
                    partition = both(topic)[i % 2]
                    seen[partition] += 1
                    if seen[partition] > lease.progress[partition]:
                        await producer.send(topic, line, partition=partition.partition)
                    if i == stop_after:
                        await producer._engine.stop()
                        break
                else:
                    await producer.close()
        records = await on.read(topic)
        for p in range(2):
            assert [r.value for r in records if r.partition == p] == lines[p::2]


class TestTokens:
    async def test_a_token_commits_once(self, on: Cluster) -> None:  # noqa: F811
        topic = await on.topic()
        async with on.producer(transactional_id=unique("x")) as producer:
            told = []
            for value in (0, 1, 1, 0, 2):
                producer.begin()
                await producer.send(topic, b"%d" % value)
                told.append((await producer.commit(CommitToken("query", value, 1))).already)
        assert told == [False, False, True, True, False]
        assert values(await on.read(topic)) == [b"0", b"1", b"2"]

    async def test_an_empty_commit_keeps_its_token(self, on: Cluster) -> None:  # noqa: F811
        async with on.producer(transactional_id=unique("x")) as producer:
            for expected in (False, True):
                producer.begin()
                assert (await producer.commit(CommitToken("query", 0))).already is expected

    async def test_a_replay_with_another_count_and_an_unknown_history_fail_loudly(self, on: Cluster) -> None:  # noqa: F811
        topic = await on.topic()
        async with on.producer(transactional_id=unique("x")) as producer:
            producer.begin()
            await producer.send(topic, b"first")
            with pytest.raises(TokenConflictError, match="no history") as refused:
                await producer.commit(CommitToken("query", 3, 1))
            assert (refused.value.conflict, refused.value.newest) == (Conflict.UNKNOWN_HISTORY, None)
            await producer.abort()
            producer.begin()
            await producer.send(topic, b"second")
            await producer.commit(CommitToken("query", 3, 1, allow_unknown_history=True))
            producer.begin()
            await producer.send(topic, b"third")
            with pytest.raises(TokenConflictError, match="committed with 1 records, this replay has 2") as refused:
                await producer.commit(CommitToken("query", 3, 2))
            assert refused.value.conflict is Conflict.OTHER_COUNT
            assert refused.value.newest is not None and refused.value.newest.value == 3
            await producer.abort()
            producer.begin()
            await producer.send(topic, b"fourth")
            assert (await producer.commit(CommitToken("query", 3, 2, allow_other_count=True))).already
        assert values(await on.read(topic)) == [b"second"]


class TestMultiWriter:
    async def write(self, transactions: MultiWriter, token: CommitToken, member: str, topic: str, n: int) -> Winner:
        joined = await transactions.join(token, member)
        async with transactions.writer(joined) as writer:
            for i in range(n):
                await writer.send(topic, f"{token.value}-{member}-{i}".encode(), partition=i % 2)
            return await writer.finish()

    async def test_winners_become_visible_together_and_losers_never(self, on: Cluster) -> None:  # noqa: F811
        topic = await on.topic(2)
        async with MultiWriter(on.settings, unique("mw")) as transactions:
            for value in range(3):
                token = CommitToken("job", value, 8)
                a, b, _ = await asyncio.gather(
                    *(self.write(transactions, token, member, topic, 4) for member in ("a", "b", "speculative"))
                )
                assert a.records == 4
                assert len(await on.read(topic)) == 8 * value
                assert not (await transactions.commit(token, [a, b])).already
                again = await transactions.commit(token, [a, b])
                assert (again.already, again.records) == (True, 8)
                late = await transactions.join(token, "late")
                assert (late.already_committed, late.committed_records) == (True, 8)
                with pytest.raises(WrongState, match="nothing to write"):
                    transactions.writer(late)
            assert await transactions.committed_token("job") == CommitToken("job", 2, 8)
            assert await transactions.committed_token("other") is None
        expected = [f"{v}-{m}-{i}".encode() for v in range(3) for m in "ab" for i in range(4)]
        # A commit is answered once it is decided; what it decided is shown once its markers are stored.
        assert sorted(r.value or b"" for r in await on.read(topic, at_least=24)) == sorted(expected)

    async def test_a_missing_record_fails_the_commit_and_an_abort_undoes_all(self, on: Cluster) -> None:  # noqa: F811
        topic = await on.topic(2)
        async with MultiWriter(on.settings, unique("mw")) as transactions:
            token = CommitToken("job", 0, 4)
            winner = await self.write(transactions, token, "a", topic, 4)
            lying = winner._replace(last_sequences=((topic, 0, 1), (topic, 1, 7)))
            with pytest.raises((FatalError, AbortableError)):
                await transactions.commit(token, [lying])
            await transactions.abort(token)
            await transactions.abort(token)
            assert await on.read(topic) == []
            winner = await self.write(transactions, token, "second", topic, 4)
            await transactions.commit(token, [winner])
            assert len(await on.read(topic)) == 4

    async def test_the_coordinator_dies_between_writing_and_commit(self, on: Cluster, target: Hapax) -> None:  # noqa: F811
        topic = await on.topic(2)
        async with MultiWriter(on.settings, unique("mw")) as transactions:
            for value in range(4):
                token = CommitToken("job", value, 8)
                winners = [await self.write(transactions, token, member, topic, 4) for member in ("a", "b")]
                crash = asyncio.ensure_future(asyncio.to_thread(target.crash_coordinator))
                await transactions.commit(token, winners)
                await crash
        # What is decided is shown once its markers are stored, which the coordinator's successor may still be at.
        assert len(await on.read(topic, at_least=32)) == 32

    async def test_a_writer_neither_commits_nor_aborts(self, on: Cluster) -> None:  # noqa: F811
        async with MultiWriter(on.settings, unique("mw")) as transactions:
            token = CommitToken("job", 0)
            joined = await transactions.join(token, "a")
            async with transactions.writer(joined) as writer:
                with pytest.raises(WrongState, match="does not decide"):
                    await writer.commit()
                with pytest.raises(WrongState, match="does not decide"):
                    await writer.abort()
            await transactions.abort(token)


async def test_coordinator_kills_among_transactions_lose_and_double_nothing(on: Cluster, target: Hapax) -> None:  # noqa: F811
    topic, group = await on.topic(2), unique("g")
    source = both(topic)[0]
    crash: asyncio.Future[None] | None = None
    done = crashes = 0
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
            if (crash is None or crash.done()) and done >= 20 * (crashes + 1):
                crashes += 1
                crash = asyncio.ensure_future(asyncio.to_thread(target.crash_coordinator))
        assert crash is not None
        await crash
    found = values(await on.read(topic))
    assert sorted(v or b"" for v in found) == sorted(b"%d-%d" % (i, j) for i in range(60) for j in range(3))
    async with on.consumer(group_id=group) as consumer:
        assert (await consumer.committed([source]))[source].offset == 60
