"""Real clients against a real cluster: idempotence, transactions, both isolation levels, zombies, kills.

Each of confluent-kafka (librdkafka), kafka-python and aiokafka runs through every test.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, NewTopic
from kafka.admin import ConfigResource as KafkaConfigResource
from kafka.admin import ConfigResourceType as KafkaConfigResourceType
from kafka.admin import KafkaAdminClient

from clients.foreign import Abortable, Fatal, ForeignClient, TransactionalProducer
from clients.foreign.aio import Aio
from clients.foreign.confluent import Confluent
from clients.foreign.kafka_python import KafkaPython
from clients.other import WHOLE
from clients.purged import commit_after_a_purge
from hapax.local.cluster import LocalCluster

CLIENTS: list[ForeignClient] = [Confluent(), KafkaPython(), Aio()]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> ForeignClient:
    chosen: ForeignClient = request.param
    return chosen


def new_topic(bootstrap: str, partitions: int) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        created.result(30)
    return name


def end_of(bootstrap: str, topic: str, partition: int) -> int:
    """The high watermark. Under read_committed, librdkafka's default, it would be the last stable offset, which a
    commit's answer may be ahead of: the markers follow it."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": "read_uncommitted"}
    consumer = Consumer({"log_level": 0, **settings})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1])
    finally:
        consumer.close()


def values(client: ForeignClient, bootstrap: str, topic: str, partition: int, *, committed: bool) -> list[bytes | None]:
    reader = client.reader(bootstrap, committed=committed)
    try:
        return [value for _, value in reader.read_to(topic, partition, end_of(bootstrap, topic, partition))]
    finally:
        reader.close()


def test_idempotent_produce_keeps_order_and_count(client: ForeignClient, cluster: LocalCluster) -> None:
    topic = new_topic(cluster.bootstrap, 2)
    sent = [(i % 2, b"k%d" % i, b"v%d" % i) for i in range(500)]
    offsets = client.produce_idempotently(cluster.bootstrap, topic, sent)
    assert sorted(offsets) == sorted([*range(250), *range(250)])
    for partition in (0, 1):
        expected = [value for p, _, value in sent if p == partition]
        assert values(client, cluster.bootstrap, topic, partition, committed=True) == expected


def test_commit_shows_and_abort_hides(client: ForeignClient, cluster: LocalCluster) -> None:
    topic = new_topic(cluster.bootstrap, 2)
    producer = client.transactional_producer(cluster.bootstrap, f"tx-{topic}")
    try:
        for name, end in ((b"a", producer.commit), (b"b", producer.abort), (b"c", producer.commit)):
            producer.begin()
            for partition in (0, 1):
                for i in range(3):
                    producer.send(topic, partition, name, b"%s%d" % (name, i))
            producer.flush()
            end()
    finally:
        producer.close()
    for partition in (0, 1):
        assert values(client, cluster.bootstrap, topic, partition, committed=True) == [
            b"a0", b"a1", b"a2", b"c0", b"c1", b"c2",
        ]  # fmt: skip
        assert values(client, cluster.bootstrap, topic, partition, committed=False) == [
            b"a0", b"a1", b"a2", b"b0", b"b1", b"b2", b"c0", b"c1", b"c2",
        ]  # fmt: skip


def test_offsets_commit_and_abort_with_the_transaction(client: ForeignClient, cluster: LocalCluster) -> None:
    topic = new_topic(cluster.bootstrap, 1)
    group = f"g-{topic}"
    producer = client.transactional_producer(cluster.bootstrap, f"tx-{topic}")
    reader = client.reader(cluster.bootstrap, committed=True, group=group)
    try:
        for offset, end, seen in ((5, producer.commit, 5), (9, producer.abort, 5), (11, producer.commit, 11)):
            producer.begin()
            producer.send(topic, 0, b"k", b"v")
            producer.flush()
            producer.send_offsets(topic, 0, offset, group)
            end()
            assert reader.committed(topic, 0) == seen
    finally:
        reader.close()
        producer.close()


def test_a_zombie_is_fenced(client: ForeignClient, cluster: LocalCluster) -> None:
    topic = new_topic(cluster.bootstrap, 1)
    zombie = client.transactional_producer(cluster.bootstrap, f"tx-{topic}")
    zombie.begin()
    zombie.send(topic, 0, b"k", b"zombie")
    zombie.flush()
    heir = client.transactional_producer(cluster.bootstrap, f"tx-{topic}")
    try:
        with pytest.raises((Fatal, Abortable)):
            zombie.send(topic, 0, b"k", b"late")
            zombie.flush()
            zombie.commit()
        heir.begin()
        heir.send(topic, 0, b"k", b"heir")
        heir.flush()
        heir.commit()
    finally:
        zombie.close()
        heir.close()
    assert values(client, cluster.bootstrap, topic, 0, committed=True) == [b"heir"]


def test_records_numbered_like_aborted_ones_are_not_lost(cluster: LocalCluster) -> None:
    topic = new_topic(cluster.bootstrap, 1)
    broker = cluster.status().process("broker-0").pid
    committed = commit_after_a_purge(cluster.bootstrap, topic, broker)
    assert values(CLIENTS[0], cluster.bootstrap, topic, 0, committed=True) == [committed]


def test_configurations_are_read_and_changed_by_kafka_s_tools(cluster: LocalCluster) -> None:
    topic = new_topic(cluster.bootstrap, 1)
    admin = AdminClient({"log_level": 0, "bootstrap.servers": cluster.bootstrap})

    def read(resource: ConfigResource) -> dict[str, tuple[str | None, str]]:
        (found,) = admin.describe_configs([resource]).values()
        return {
            name: (entry.value, ConfigSource(entry.source).name) for name, entry in found.result(30).items()}

    before = read(ConfigResource("topic", topic))
    assert before["retention.ms"] == ("604800000", "DEFAULT_CONFIG")
    change = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource("topic", topic, incremental_configs=[change])
    for done in admin.incremental_alter_configs([changed]).values():
        done.result(30)
    assert read(ConfigResource("topic", topic)) == before | {"retention.ms": ("60000", "DYNAMIC_TOPIC_CONFIG")}
    assert read(ConfigResource("broker", "0"))["node.id"] == ("0", "STATIC_BROKER_CONFIG")
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as other:
        told = other.describe_configs([KafkaConfigResource(KafkaConfigResourceType.TOPIC, topic)])
    assert topic in str(told) and "60000" in str(told)


TRANSACTIONS = 200


def process_all(client: ForeignClient, bootstrap: str, topics: tuple[str, str], kill: Callable[[int], None]) -> None:
    """Consume-process-produce: input record i becomes one record in each of two output partitions, in one transaction
    with the position. After whatever failure a new producer goes on from the committed position: nothing is assumed
    about a commit whose answer was lost."""
    source, target = topics
    group = f"g-{source}"
    producer: TransactionalProducer | None = None
    reader = client.reader(bootstrap, committed=True, group=group)
    killed = -1
    failures = 0
    try:
        while True:
            try:
                if producer is None:
                    producer = client.transactional_producer(bootstrap, f"tx-{source}")
                    position = max(0, reader.committed(source, 0))
                if position >= TRANSACTIONS:
                    return
                if position > killed:
                    killed = position
                    kill(position)
                producer.begin()
                for partition in (0, 1):
                    producer.send(target, partition, b"%d" % position, b"out%d" % position)
                producer.send_offsets(source, 0, position + 1, group)
                producer.commit()
                position += 1
            except (Abortable, Fatal) as failure:
                failures += 1
                assert failures < 100, f"never recovers: {failure}"
                if producer is not None:
                    producer.close()
                producer = None
    finally:
        reader.close()
        if producer is not None:
            producer.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("client", "victim"), [
    pytest.param(client, victim, id=f"{client.name}-{victim}")
    for number, client in enumerate(CLIENTS) for place, victim in enumerate(("broker-0", "coordinator-0"))
    if WHOLE or number % 2 == place  # `make test` has room for one of each client
])
def test_kills_lose_and_double_nothing(
    client: ForeignClient, victim: str, cluster_factory: Callable[..., LocalCluster]
) -> None:
    cluster = cluster_factory(brokers=1, coordinators=2)
    source, target = new_topic(cluster.bootstrap, 1), new_topic(cluster.bootstrap, 2)
    client.produce_idempotently(cluster.bootstrap, source, [(0, b"k", b"in%d" % i) for i in range(TRANSACTIONS)])

    def kill(position: int) -> None:
        if position in (40, 110, 170):
            cluster.kill(victim)
            cluster.restart(victim)

    process_all(client, cluster.bootstrap, (source, target), kill)
    for partition in (0, 1):
        found = Counter(values(client, cluster.bootstrap, target, partition, committed=True))
        assert found == Counter(b"out%d" % i for i in range(TRANSACTIONS))
