"""Conditional appends (rule 21) of the native client and of others, on a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable

import pytest

from hapax.client import (
    AbortableError,
    Admin,
    ConditionFailedError,
    Consumer,
    FatalError,
    NewTopic,
    Producer,
    TopicPartition,
    blocking,
)
from hapax.local.cluster import LocalCluster

pytestmark = pytest.mark.timeout(180)


async def new_topic(bootstrap: str) -> str:
    name = f"t-{uuid.uuid4().hex[:10]}"
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topics([NewTopic(name, 1)])
    return name


async def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> tuple[list[bytes | None], int]:
    """What is in the topic, and the position after it."""
    settings = {
        "bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "isolation.level": isolation}
    async with Consumer(settings) as consumer:
        (partition,) = await consumer.partitions(topic)
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        found: list[bytes | None] = []
        while await consumer.position(partition) < end:
            found += [each.value for each in await consumer.poll(500)]
        return found, await consumer.position(partition)


async def test_only_the_first_of_two_that_decided_by_the_same_state_appends(cluster: LocalCluster) -> None:
    topic = await new_topic(cluster.bootstrap)
    async with Producer({"bootstrap.servers": cluster.bootstrap}) as one, \
            Producer({"bootstrap.servers": cluster.bootstrap}) as other:
        reports = await one.append(topic, [(b"k", b"a"), (b"k", b"b")], expected=0, scope=b"account-1")
        assert [each.offset for each in reports] == [0, 1]
        with pytest.raises(ConditionFailedError, match="since offset 0: read up to offset 2") as failed:
            await other.append(topic, [(b"k", b"c")], expected=0, scope=b"account-1")
        assert failed.value.position == 2 and not failed.value.maybe_written
        await other.append(topic, [(b"k", b"d")], expected=0, scope=b"account-2")
        await other.append(topic, [(b"k", b"e")], expected=2, scope=b"account-1")
        with pytest.raises(ConditionFailedError):
            await one.append(topic, [(b"k", b"f")], expected=3, scope=b"")
        await one.append(topic, [(b"k", b"g")], expected=None, scope=b"account-2")
        await one.flush()  # what was refused has been told already
        await one.send_and_wait(topic, b"plain", b"k")
        with pytest.raises(ConditionFailedError):
            await other.append(topic, [(b"k", b"h")], expected=5, scope=b"account-1")
        await other.append(topic, [(b"k", b"i")], expected=6, scope=b"account-1")
    assert (await values(cluster.bootstrap, topic))[0] == [b"a", b"b", b"d", b"e", b"g", b"plain", b"i"]


async def test_what_cannot_be_appended_is_said(cluster: LocalCluster) -> None:
    topic = await new_topic(cluster.bootstrap)
    async with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        with pytest.raises(FatalError, match="at least one record"):
            await producer.append(topic, [], expected=0, scope=b"x")
        with pytest.raises(FatalError, match="a key that determines it"):
            await producer.append(topic, [(None, b"")], expected=0, scope=b"x")
        with pytest.raises(FatalError, match=r"max\.request\.size"):
            await producer.append(topic, [(b"k", bytes(600_000))] * 2, expected=0, scope=b"x")
        with pytest.raises(ConditionFailedError, match="beyond the end of the log: read up to offset 0"):
            await producer.append(topic, [(b"k", b"v")], expected=7, scope=b"x")
    async with Producer({"bootstrap.servers": cluster.bootstrap, "acks": 0}) as producer:
        with pytest.raises(FatalError, match="acks=all"):
            await producer.append(topic, [(b"k", b"v")], expected=0, scope=b"x")


async def test_a_transaction_with_a_condition_that_fails_is_aborted(cluster: LocalCluster) -> None:
    topic = await new_topic(cluster.bootstrap)
    settings = {"bootstrap.servers": cluster.bootstrap}
    async with Producer({**settings, "transactional.id": topic}) as producer, Producer(settings) as other:
        async with producer.transaction():
            await producer.append(topic, [(b"k", b"a")], expected=0, scope=b"x")
            with pytest.raises(ConditionFailedError):
                await other.append(topic, [(b"k", b"?")], expected=0, scope=b"x")
        _, position = await values(cluster.bootstrap, topic)
        await other.append(topic, [(b"k", b"b")], expected=position, scope=b"x")
        with pytest.raises(AbortableError):
            async with producer.transaction():
                await producer.send(topic, b"not visible", b"k")
                with contextlib.suppress(ConditionFailedError):
                    await producer.append(topic, [(b"k", b"c")], expected=position, scope=b"x")
        with pytest.raises(ConditionFailedError):
            async with producer.transaction():
                await producer.append(topic, [(b"k", b"c")], expected=position, scope=b"x")
        _, position = await values(cluster.bootstrap, topic, "read_uncommitted")
        async with producer.transaction():
            await producer.append(topic, [(b"k", b"d")], expected=position, scope=b"x")
    found, _ = await values(cluster.bootstrap, topic)
    assert found == [b"a", b"b", b"d"]


async def test_a_restarted_leader_refuses_what_it_does_not_know(cluster_factory: Callable[..., LocalCluster]) -> None:
    """And who reads to the end succeeds. A counter in each of three scopes, whose writers decide by what they read."""
    cluster = cluster_factory()
    topic = await new_topic(cluster.bootstrap)
    settings = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}
    partition = TopicPartition(topic, 0)  # type: ignore[arg-type]
    steps = 12

    async def count(scope: bytes) -> int:
        """Returns the number of conflicts."""
        state, conflicts, done = 0, 0, 0
        async with Producer({"bootstrap.servers": cluster.bootstrap}) as producer, Consumer(settings) as consumer:
            consumer.assign([partition])
            while done < steps:
                for record in await consumer.poll(20):
                    state += record.key == scope
                try:
                    position = await consumer.position(partition)
                    await producer.append(topic, [(scope, b"%d" % state)], expected=position, scope=scope)
                    done += 1
                except ConditionFailedError:
                    conflicts += 1
                if done == steps // 2 and restarted is None:
                    begin_restart()
        return conflicts

    restarted: asyncio.Task[None] | None = None

    def begin_restart() -> None:
        nonlocal restarted

        async def restart() -> None:
            await asyncio.to_thread(cluster.kill, "broker-0")
            await asyncio.to_thread(cluster.start, "broker-0")

        restarted = asyncio.create_task(restart())

    conflicts = await asyncio.gather(*(count(scope) for scope in (b"a", b"a", b"b", b"c")))
    assert restarted is not None
    await restarted
    async with Consumer(settings) as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        found: dict[bytes | None, list[bytes | None]] = {}
        while await consumer.position(partition) < end:
            for record in await consumer.poll(500):
                found.setdefault(record.key, []).append(record.value)
    counted = {scope: [b"%d" % number for number in range(writers * steps)]
               for scope, writers in ((b"a", 2), (b"b", 1), (b"c", 1))}
    assert found == counted
    assert sum(conflicts[:2]) > 0


async def test_appends_at_once_of_one_producer_are_refused_one_by_one(cluster: LocalCluster) -> None:
    """Each refusal leaves a hole in the sequence of what is in flight behind it."""
    topic = await new_topic(cluster.bootstrap)
    async with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        await producer.append(topic, [(b"k", b"first")], expected=0, scope=b"taken")
        for turn in range(2):
            told = await asyncio.gather(*(
                producer.append(
                    topic, [(b"k", b"%d" % number)], expected=None if number % 3 else 0,
                    scope=b"free" if number % 3 else b"taken")
                for number in range(30 * turn, 30 * turn + 30)), return_exceptions=True)
            for number, each in enumerate(told):
                assert isinstance(each, list if number % 3 else ConditionFailedError), (number, each)
        await producer.flush()
    found, _ = await values(cluster.bootstrap, topic)
    assert found == [b"first", *(b"%d" % number for number in range(60) if number % 3)]


async def test_a_condition_that_fails_hides_no_record_that_was_lost(cluster: LocalCluster) -> None:
    topic = f"t-{uuid.uuid4().hex[:10]}"
    async with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        await admin.create_topics([NewTopic(topic, 1, config={"max.message.bytes": "2000"})])
    async with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        await producer.send(topic, bytes(3000), b"k")
        with pytest.raises(ConditionFailedError):
            await producer.append(topic, [(b"k", b"")], expected=7, scope=b"x")
        with pytest.raises(FatalError, match="MESSAGE_TOO_LARGE"):
            await producer.flush()
        await producer.flush()


def test_the_blocking_interface(cluster: LocalCluster) -> None:
    topic = asyncio.run(new_topic(cluster.bootstrap))
    with blocking.Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        (report,) = producer.append(topic, [(b"k", b"a")], expected=0, scope=b"x")
        with pytest.raises(ConditionFailedError):
            producer.append(topic, [(b"k", b"b")], expected=report.offset, scope=b"x")
