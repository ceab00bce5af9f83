"""Authorisation on a real cluster, asked by real clients. Without authentication each of them is `User:ANONYMOUS`,
which is no super user here: a resource that no ACL names is open, so that the first ACLs can be made."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
)
from kafka.admin import ResourceType as PythonType
from kafka.errors import TopicAuthorizationFailedError

from conftest import end_cluster, start_cluster
from hapax.client import NewTopic as NativeTopic
from hapax.client.blocking import Admin
from hapax.client.blocking import Producer as NativeProducer
from hapax.client.errors import HapaxError
from hapax.local.cluster import LocalCluster
from integration.acls import known_everywhere
from integration.test_cli import invoke
from integration.waiting import wait_until

TIMEOUT = 30.0
ME = "User:ANONYMOUS"
SETTINGS = [
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users=User:root",
    "allow.everyone.if.no.acl.found=true", "group.initial.rebalance.delay.ms=0"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("guarded"), brokers=2, coordinators=2, settings=SETTINGS)
    yield cluster
    end_cluster(cluster)


@pytest.fixture
def admin(guarded: LocalCluster) -> AdminClient:
    """May do everything with the cluster; others may do nothing with it."""
    client = AdminClient({"bootstrap.servers": guarded.bootstrap, "log_level": 0})
    add(guarded, client, ALLOW, AclOperation.ALL, ResourceType.BROKER, "kafka-cluster")
    add(guarded, client, DENY, AclOperation.ALL, ResourceType.TOPIC, "__", ResourcePatternType.PREFIXED)
    return client


ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL = ResourcePatternType.LITERAL


def binding(
    permission: AclPermissionType, operation: AclOperation, kind: ResourceType, name: str,
    pattern: ResourcePatternType = LITERAL, principal: str = ME,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, "*", operation, permission)


def add(
    cluster: LocalCluster, admin: AdminClient, permission: AclPermissionType, operation: AclOperation,
    kind: ResourceType, name: str, pattern: ResourcePatternType = LITERAL, principal: str = ME,
) -> None:
    """Every node decides by it when this returns."""
    for made in admin.create_acls([binding(permission, operation, kind, name, pattern, principal)]).values():
        made.result(TIMEOUT)
    known_everywhere({"bootstrap.servers": cluster.bootstrap})


def drop(cluster: LocalCluster, admin: AdminClient, kind: ResourceType, name: str) -> list[AclBinding]:
    wanted = AclBindingFilter(
        kind, name, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
    (found,) = admin.delete_acls([wanted]).values()
    gone = list(found.result(TIMEOUT))
    known_everywhere({"bootstrap.servers": cluster.bootstrap})
    return gone


def new_topic(admin: AdminClient) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    for made in admin.create_topics([NewTopic(name, 2, 2)]).values():
        made.result(TIMEOUT)
    return name


def written(cluster: LocalCluster, topic: str, **settings: object) -> int:
    """The error code of one write; 0: it is stored."""
    outcome: list[int] = []

    def told(error: KafkaError | None, message: Message) -> None:
        outcome.append(0 if error is None else error.code())

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, **settings})
    producer.produce(topic, b"x", partition=0, on_delivery=told)
    producer.flush(TIMEOUT)
    return outcome[0]


def test_librdkafka_makes_lists_and_deletes_bindings(guarded: LocalCluster, admin: AdminClient) -> None:
    mine = [
        binding(ALLOW, AclOperation.READ, ResourceType.TOPIC, "crud-a", principal="User:alice"),
        binding(DENY, AclOperation.ALL, ResourceType.GROUP, "crud-", ResourcePatternType.PREFIXED, "User:bob"),
    ]
    for made in admin.create_acls(mine).values():
        made.result(TIMEOUT)
    found = admin.describe_acls(AclBindingFilter(
        ResourceType.ANY, "crud-a", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY))
    assert sorted(map(str, found.result(TIMEOUT))) == sorted(map(str, mine))
    assert [str(each) for each in drop(guarded, admin, ResourceType.TOPIC, "crud-a")] == [str(mine[0])]
    assert [str(each) for each in drop(guarded, admin, ResourceType.GROUP, "crud-")] == [str(mine[1])]


def test_kafka_python_makes_lists_and_deletes_bindings(guarded: LocalCluster, admin: AdminClient) -> None:
    python = KafkaAdminClient(bootstrap_servers=guarded.bootstrap)
    try:
        made = ACL(
            "User:carol", "10.0.0.7", ACLOperation.WRITE, ACLPermissionType.ALLOW,
            ResourcePattern(PythonType.TOPIC, "python"))
        assert len(python.create_acls([made])["succeeded"]) == 1
        wanted = ACLFilter(
            "User:carol", None, ACLOperation.ANY, ACLPermissionType.ANY,
            ResourcePatternFilter(PythonType.ANY, None, ACLResourcePatternType.ANY))
        found, _ = python.describe_acls(wanted)
        assert found == [made]
        assert "carol" in str(python.delete_acls([wanted]))
        assert python.describe_acls(wanted)[0] == []
    finally:
        python.close()


def test_a_write_is_refused_until_it_is_permitted_and_a_denial_outweighs(
    guarded: LocalCluster, admin: AdminClient
) -> None:
    topic = new_topic(admin)
    add(guarded, admin, ALLOW, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    assert written(guarded, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    add(guarded, admin, ALLOW, AclOperation.WRITE, ResourceType.TOPIC, topic)
    assert written(guarded, topic) == 0
    add(guarded, admin, DENY, AclOperation.WRITE, ResourceType.TOPIC, topic[:6], ResourcePatternType.PREFIXED, "User:*")
    wait_until(lambda: written(guarded, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED, 5)
    assert len(drop(guarded, admin, ResourceType.TOPIC, topic[:6])) == 1


def test_a_right_that_ends_stops_a_reader_and_a_writer_in_their_midst(
    guarded: LocalCluster, admin: AdminClient
) -> None:
    """The abuse case of a revoked right: the open connections and the reader's fetch session go on otherwise."""
    topic = new_topic(admin)
    for operation in (AclOperation.READ, AclOperation.WRITE):
        add(guarded, admin, ALLOW, operation, ResourceType.TOPIC, topic)
    # An idempotent producer of this library ends for good with the first refusal.
    producer = KafkaProducer(bootstrap_servers=guarded.bootstrap, enable_idempotence=False)
    consumer = KafkaConsumer(bootstrap_servers=guarded.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=100)
    from kafka.structs import TopicPartition as Partition

    consumer.assign([Partition(topic, 0)])
    try:
        producer.send(topic, b"1", partition=0).get(TIMEOUT)
        wait_until(lambda: bool(consumer.poll(200)), TIMEOUT)
        consumer.poll(200)
        assert len(drop(guarded, admin, ResourceType.TOPIC, topic)) == 2
        add(guarded, admin, ALLOW, AclOperation.READ, ResourceType.TOPIC, topic, principal="User:alice")

        def refused() -> bool:
            try:
                assert not consumer.poll(200)
            except TopicAuthorizationFailedError:
                return True
            return False

        wait_until(refused, 10)
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send(topic, b"2", partition=0).get(TIMEOUT)
        add(guarded, admin, ALLOW, AclOperation.ALL, ResourceType.TOPIC, topic)
        wait_until(lambda: _sent(producer, topic), 10)
        wait_until(lambda: _polled(consumer), TIMEOUT)
    finally:
        consumer.close()
        producer.close(5)


def _sent(producer: KafkaProducer, topic: str) -> bool:
    try:
        producer.send(topic, b"3", partition=0).get(TIMEOUT)
    except TopicAuthorizationFailedError:
        return False
    return True


def _polled(consumer: KafkaConsumer) -> bool:
    try:
        return bool(consumer.poll(200))
    except TopicAuthorizationFailedError:
        return False


def test_a_hidden_topic_is_told_from_a_missing_one_by_no_call(guarded: LocalCluster, admin: AdminClient) -> None:
    hidden, missing = new_topic(admin), f"m-{uuid.uuid4().hex[:8]}"
    for name in (hidden, missing):
        add(guarded, admin, ALLOW, AclOperation.READ, ResourceType.TOPIC, name, principal="User:alice")
    consumer = Consumer({"bootstrap.servers": guarded.bootstrap, "group.id": "g", "log_level": 0})
    try:
        assert hidden not in consumer.list_topics(timeout=TIMEOUT).topics
        told = set()
        for name in (hidden, missing):
            error = consumer.list_topics(name, timeout=TIMEOUT).topics[name].error
            assert error is not None
            told.add(error.code())
            with pytest.raises(KafkaException) as failed:
                consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=TIMEOUT)
            told.add(failed.value.args[0].code())
        assert told <= {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_PARTITION}, told
        assert KafkaError.TOPIC_AUTHORIZATION_FAILED in told
    finally:
        consumer.close()


def test_a_group_and_its_commits_are_for_those_who_may_read_it(guarded: LocalCluster, admin: AdminClient) -> None:
    topic, group = new_topic(admin), f"g-{uuid.uuid4().hex[:8]}"
    add(guarded, admin, ALLOW, AclOperation.ALL, ResourceType.GROUP, group, principal="User:alice")
    add(guarded, admin, ALLOW, AclOperation.DESCRIBE, ResourceType.GROUP, group)
    settings = {"bootstrap.servers": guarded.bootstrap, "group.id": group, "log_level": 0, "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        with pytest.raises(KafkaException) as refused:
            consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        consumer.subscribe([topic])
        errors: list[int] = []

        def told() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is not None:
                errors.append(message.error().code())
            return bool(errors)

        wait_until(told, TIMEOUT)
        assert errors[0] == KafkaError.GROUP_AUTHORIZATION_FAILED
    finally:
        consumer.close()
    add(guarded, admin, ALLOW, AclOperation.READ, ResourceType.GROUP, group)
    consumer = Consumer(settings)
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT)
        assert committed.offset == 5
        add(guarded, admin, ALLOW, AclOperation.READ, ResourceType.TOPIC, topic, principal="User:alice")

        def hidden() -> bool:
            try:
                consumer.commit(offsets=[TopicPartition(topic, 0, 6)], asynchronous=False)
            except KafkaException as error:
                return bool(error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED)
            return False

        wait_until(hidden, 5)
    finally:
        consumer.close()


def test_a_transactional_id_of_another_is_neither_used_nor_fenced(guarded: LocalCluster, admin: AdminClient) -> None:
    """Coordinators and brokers work on internal topics whose every use is denied to all users.

    The holder is silent while its id is denied to it as well: librdkafka would ask for its coordinator in the
    background, and a refusal of that ends any producer for good, on Kafka too."""
    topic, mine, theirs = new_topic(admin), f"x-{uuid.uuid4().hex[:8]}", f"y-{uuid.uuid4().hex[:8]}"
    bootstrap = {"bootstrap.servers": guarded.bootstrap}
    with Admin(bootstrap) as native, NativeProducer({**bootstrap, "transactional.id": theirs}) as holder:

        def commits() -> None:
            holder.begin()
            holder.send(topic, b"held", partition=0)
            holder.commit()

        commits()
        (before,) = native.describe_transactions([theirs])
        add(guarded, admin, ALLOW, AclOperation.ALL, ResourceType.TRANSACTIONAL_ID, theirs, principal="User:alice")
        thief = Producer({**bootstrap, "transactional.id": theirs, "log_level": 0})
        with pytest.raises(KafkaException) as refused:
            thief.init_transactions(TIMEOUT)
        assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert len(drop(guarded, admin, ResourceType.TRANSACTIONAL_ID, theirs)) == 1
        (after,) = native.describe_transactions([theirs])
        assert (after.producer_id, after.producer_epoch) == (before.producer_id, before.producer_epoch)
        commits()
    producer = Producer({**bootstrap, "transactional.id": mine, "log_level": 0})
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce(topic, b"mine", partition=0)
    producer.commit_transaction(TIMEOUT)


def test_the_command_adds_lists_and_removes(guarded: LocalCluster, admin: AdminClient) -> None:
    def hapax(*words: str, ok: bool = True) -> Any:
        done = invoke("acl", *words, "--bootstrap", guarded.bootstrap, *(("--json",) if ok else ()), ok=ok)
        return json.loads(done.stdout) if ok else done

    added = hapax("add", "--allow", "User:app", "--deny", "User:*", "--operation", "read", "--operation",
                  "alter-configs", "--topic", "cmd-", "--group", "cmd-", "--prefixed")
    assert len(added) == 8
    listed = hapax("list", "--topic", "cmd-orders", "--principal", "User:app")
    shown = ("permission", "operation", "type", "name", "pattern")
    assert [tuple(each[column] for column in shown) for each in listed] == [
        ("allow", "read", "topic", "cmd-", "prefixed"), ("allow", "alter-configs", "topic", "cmd-", "prefixed")]
    assert hapax("remove", "--topic", "cmd-") == [], "no literal one"
    assert len(hapax("remove", "--topic", "cmd-", "--prefixed", "--operation", "read")) == 2
    assert len(hapax("remove", "--principal", "User:app")) == 3
    assert len(hapax("remove", "--group", "cmd-", "--topic", "cmd-", "--prefixed")) == 3
    assert hapax("add", "--allow", "app", "--operation", "read", "--topic", "t", ok=False).exit_code == 2
    assert hapax("add", "--allow", "User:a", "--operation", "sing", "--topic", "t", ok=False).exit_code == 2
    assert hapax("remove", ok=False).exit_code == 2


def test_native_clients_are_told_in_the_same_words(guarded: LocalCluster, admin: AdminClient) -> None:
    with Admin({"bootstrap.servers": guarded.bootstrap}) as native:
        add(guarded, admin, ALLOW, AclOperation.CREATE, ResourceType.TOPIC, "native", principal="User:alice")
        drop(guarded, admin, ResourceType.BROKER, "kafka-cluster")
        try:
            add(guarded, admin, ALLOW, AclOperation.ALTER, ResourceType.BROKER, "kafka-cluster")
            with pytest.raises(HapaxError) as refused:
                native.create_topics([NativeTopic("native", 1)])
            assert refused.value.code == KafkaError.TOPIC_AUTHORIZATION_FAILED
        finally:
            add(guarded, admin, ALLOW, AclOperation.ALL, ResourceType.BROKER, "kafka-cluster")
            drop(guarded, admin, ResourceType.TOPIC, "native")
