"""Three real brokers: leaders killed under load, zombies, retries, and replicas that are equal in the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from hapax.client import Producer as NativeProducer
from hapax.codec.records import encode_records
from hapax.codec.snapshot import decode_snapshot, encode_replicated_state
from hapax.local.cluster import LocalCluster
from hapax.runtime.network import TcpNetwork
from hapax.wire.messages import OffsetForLeaderEpochRequest, ProduceRequest
from hapax.wire.peer import Peer
from integration.waiting import nothing_is_open, wait_until

Make = Callable[..., LocalCluster]
REPLICATED = [
    "default.replication.factor=3", "min.insync.replicas=2", "transaction.state.log.replication.factor=3",
    "offsets.topic.replication.factor=3", "transaction.state.log.num.partitions=8", "offsets.topic.num.partitions=8",
]
TIMEOUT = 30.0


@pytest.fixture
def three(cluster_factory: Make) -> Iterator[LocalCluster]:
    yield cluster_factory(brokers=3, coordinators=2, settings=REPLICATED)


def make_topic(cluster: LocalCluster, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = NewTopic(name, partitions, 3, config={key.replace("_", "."): value for key, value in config.items()})
    for created in admin.create_topics([wanted]).values():
        created.result(TIMEOUT)


def servers(cluster: LocalCluster) -> str:
    """All brokers: any of them may be dead."""
    return ",".join(f"127.0.0.1:{p.port}" for p in cluster.status().processes if p.role == "broker")


def partition_of(cluster: LocalCluster, topic: str, partition: int = 0) -> Any:
    """Its metadata: `leader`, `replicas`, `isrs`."""
    admin = AdminClient({"bootstrap.servers": servers(cluster), "log_level": 0})
    return admin.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions[partition]


def all_in_sync(cluster: LocalCluster, topic: str, partitions: int = 1) -> None:
    wait_until(
        lambda: all(len(partition_of(cluster, topic, p).isrs) == 3 for p in range(partitions)), "in-sync set of all"
    )


def read(cluster: LocalCluster, topic: str, partitions: int) -> dict[int, list[bytes]]:
    """Everything committed, by partition, once every transaction is decided."""
    wait_until(lambda: nothing_is_open(servers(cluster), topic), "end of all transactions")
    consumer = Consumer({
        "bootstrap.servers": servers(cluster), "group.id": "check", "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0,
    })
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    values: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
    ended: set[int] = set()
    try:
        while len(ended) < partitions:
            message = consumer.poll(TIMEOUT)
            assert message is not None, "no answer"
            if message.error() is None:
                values[message.partition()].append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise KafkaException(message.error())
    finally:
        consumer.close()
    return values


def assert_equal_replicas(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """Of a cluster that was stopped in order: the same bytes, and the same state of the producers."""
    for partition in range(partitions):
        folders = [cluster.folder.data(f"broker-{node}") / f"{topic}-{partition}" for node in range(3)]
        assert len({_log(folder) for folder in folders}) == 1, f"{topic}-{partition}"
        assert len({_state(folder) for folder in folders}) == 1, f"{topic}-{partition}"


def _log(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.glob("*.log")))


def _state(folder: Path) -> bytes:
    newest = sorted(folder.glob("*.snapshot"))[-1]
    return encode_replicated_state(decode_snapshot(newest.read_bytes(), int(newest.stem)))


class Load(threading.Thread):
    """Counts up in one partition until told to end, by a program of its own."""

    def __init__(self, cluster: LocalCluster, topic: str, partitions: int, transactional_id: str = "") -> None:
        super().__init__(daemon=True)
        self.acknowledged: Counter[tuple[int, bytes]] = Counter()
        self.failed: list[object] = []
        self.over = False
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._id = transactional_id

    def run(self) -> None:
        settings = {"transactional.id": self._id} if self._id else {"enable.idempotence": True}
        producer = Producer({
            "bootstrap.servers": servers(self._cluster), "linger.ms": 1, "log_level": 0, "retry.backoff.ms": 20,
            **settings,
        })
        try:
            if self._id:
                producer.init_transactions(TIMEOUT)
            number = 0
            while not self.over:
                number += 1
                self._write(producer, number)
            assert producer.flush(TIMEOUT) == 0
        except Exception as error:  # shown by the test
            self.failed.append(error)

    def _write(self, producer: Producer, number: int) -> None:
        value = f"{self._id}-{number}".encode()
        if not self._id:
            partition = number % self._partitions
            producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            producer.poll(0.002)
            return
        try:
            producer.begin_transaction()
            for partition in range(self._partitions):
                producer.produce(self._topic, value, partition=partition)
            producer.commit_transaction(TIMEOUT)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(TIMEOUT)
            return
        for partition in range(self._partitions):
            self.acknowledged[partition, value] += 1

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged[message.partition(), message.value()] += 1


def test_leaders_die_under_load_and_nothing_is_lost_or_doubled(three: LocalCluster) -> None:
    make_topic(three, "t", 3)
    loads = [Load(three, "t", 3), Load(three, "t", 3, "a"), Load(three, "t", 3, "b")]
    for load in loads:
        load.start()
    for node in (0, 1, 2):
        before = [sum(load.acknowledged.values()) for load in loads]
        three.kill(f"broker-{node}")
        wait_until(
            lambda before=before: all(  # type: ignore[misc]
                sum(load.acknowledged.values()) > count + 20 or load.failed
                for load, count in zip(loads, before, strict=True)),
            "going on of the writes",
        )
        three.start(f"broker-{node}")
        all_in_sync(three, "t", 3)
    for load in loads:
        load.over = True
    for load in loads:
        load.join(TIMEOUT)
        assert not load.failed
    stored = read(three, "t", 3)
    for partition, values in stored.items():
        found = Counter(values)
        assert max(found.values()) == 1, "nothing twice"
        for load in loads:
            wanted = [value for at, value in load.acknowledged if at == partition]
            assert not [value for value in wanted if value not in found], "nothing lost"
            of_load = [value for value in values if value in set(wanted)]
            assert of_load == sorted(of_load, key=lambda value: int(value.split(b"-")[1])), "in order"
    all_in_sync(three, "t", 3)
    three.down()
    assert_equal_replicas(three, "t", 3)
    assert_equal_replicas(three, "__transaction_state", 8)


def test_a_zombie_stays_fenced_after_its_partitions_leader_died(three: LocalCluster) -> None:
    make_topic(three, "t")
    settings = {"bootstrap.servers": servers(three), "transactional.id": "x", "log_level": 0}
    zombie, successor = Producer(settings), Producer(settings)
    zombie.init_transactions(TIMEOUT)
    zombie.begin_transaction()
    zombie.produce("t", b"zombie's first")
    zombie.flush(TIMEOUT)
    successor.init_transactions(TIMEOUT)
    successor.begin_transaction()
    successor.produce("t", b"successor")
    successor.commit_transaction(TIMEOUT)
    three.kill(f"broker-{partition_of(three, 't').leader}")
    wait_until(lambda: partition_of(three, "t").leader >= 0, "new leader")
    with pytest.raises((KafkaException, SystemError)) as refused:  # a fatal error is raised wherever it is first met
        zombie.produce("t", b"zombie's last")
        zombie.flush(TIMEOUT)
        zombie.commit_transaction(TIMEOUT)
    assert "_FENCED" in repr(refused.value.__cause__ or refused.value)
    assert read(three, "t", 1) == {0: [b"successor"]}


async def connect(cluster: LocalCluster, node: int) -> Peer:
    process = next(p for p in cluster.status().processes if p.name == f"broker-{node}")
    return await Peer.connect(TcpNetwork(), "127.0.0.1", process.port)


async def write(peer: Peer, sequence: int) -> Any:
    topic = ProduceRequest.TopicProduceData
    records = encode_records(
        [(int(time.time() * 1000), None, b"v%d" % sequence, ())], producer_id=999, producer_epoch=0,
        base_sequence=sequence)
    answer = await peer.call(ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[topic(name="t", partition_data=[
            topic.PartitionProduceData(index=0, records=bytes(records))])],
    ), version=9)
    return answer.responses[0].partition_responses[0]


async def test_a_retry_at_the_new_leader_is_answered_with_the_original_offset(three: LocalCluster) -> None:
    await asyncio.to_thread(make_topic, three, "t")
    async with NativeProducer({"bootstrap.servers": three.bootstrap}) as first:
        await first.send("t", b"first")  # takes the first block of producer ids
    former = (await asyncio.to_thread(partition_of, three, "t")).leader
    peer = await connect(three, former)
    offsets = []
    for sequence in range(7):
        answer = await write(peer, sequence + 1)
        assert answer.error_code == 0
        offsets.append(answer.base_offset)
    peer.close()
    await asyncio.to_thread(three.kill, f"broker-{former}")
    await asyncio.to_thread(wait_until, lambda: partition_of(three, "t").leader not in (-1, former), "new leader")
    successor = await connect(three, (await asyncio.to_thread(partition_of, three, "t")).leader)
    for sequence in (3, 7):
        again = await write(successor, sequence)
        assert (again.error_code, again.base_offset) == (0, offsets[sequence - 1])
    request = OffsetForLeaderEpochRequest
    asked = request.OffsetForLeaderTopic(topic="t", partitions=[
        request.OffsetForLeaderTopic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)])
    ends = await successor.call(request(replica_id=-1, topics=[asked]), version=3)
    end = ends.topics[0].partitions[0]
    assert (end.error_code, end.leader_epoch, end.end_offset) == (0, 0, offsets[-1] + 1)
    successor.close()


def test_acks_all_is_refused_where_too_few_are_left(three: LocalCluster) -> None:
    make_topic(three, "t", min_insync_replicas="3")
    settings = {"bootstrap.servers": servers(three), "log_level": 0, "message.timeout.ms": 1500}
    results: list[object] = []

    def delivered(error: KafkaError | None, message: object) -> None:
        results.append(error and error.name())

    producer = Producer(settings)
    producer.produce("t", b"1", on_delivery=delivered)
    producer.flush(TIMEOUT)
    three.kill(f"broker-{partition_of(three, 't').replicas[-1]}")
    wait_until(lambda: len(partition_of(three, "t").isrs) == 2, "in-sync set without the dead one")
    producer.produce("t", b"2", on_delivery=delivered)
    producer.flush(TIMEOUT)
    one = Producer({**settings, "acks": 1})
    one.produce("t", b"3", on_delivery=delivered)
    one.flush(TIMEOUT)
    assert results[0] is None
    assert results[1] in ("NOT_ENOUGH_REPLICAS", "_MSG_TIMED_OUT")
    assert results[2] is None, "acks=1 asks for the leader alone"
