"""A cluster that permits nothing to whom no ACL names: two tenants by their certificates, an administrator, and the
nodes, which have no principal and prove themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from clients.other import new_name
from clients.secured import Secured, secured
from conftest import end_cluster, start_cluster
from hapax.local.cluster import LocalCluster
from integration.acls import known_everywhere

TIMEOUT = 30.0


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    made = secured(tmp_path_factory.mktemp("certificates"))
    for name in ("admin", "alice", "bob"):
        made.authority.issue(f"CN={name},O=shop", use="client").write(made.folder, name)
    return made


@pytest.fixture(scope="module")
def closed(tls: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = start_cluster(
        tmp_path_factory.mktemp("closed"), brokers=2, coordinators=2,
        settings=tls.settings("authorizer.class.name=acl", "super.users=User:CN=admin,O=shop"))
    yield running
    end_cluster(running)


def of(tls: Secured, name: str, **more: object) -> dict[str, object]:
    return {
        "bootstrap.servers": tls.bootstrap, "security.protocol": "SSL", "log_level": 0,
        "ssl.ca.location": str(tls.folder / "ca.crt"), "ssl.certificate.location": str(tls.folder / f"{name}.crt"),
        "ssl.key.location": str(tls.folder / f"{name}.key"), **more}


def permit(admin: AdminClient, name: str, operation: AclOperation, kind: ResourceType, resource: str) -> None:
    for made in admin.create_acls([AclBinding(
        kind, resource, ResourcePatternType.PREFIXED, f"User:CN={name},O=shop", "*", operation,
        AclPermissionType.ALLOW)]).values():
        made.result(TIMEOUT)


def test_two_tenants_keep_apart(tls: Secured, closed: LocalCluster) -> None:
    tenant = new_name()
    topic = f"{tenant}-orders"
    admin = AdminClient(of(tls, "admin"))
    for created in admin.create_topics([NewTopic(topic, 2, 2)]).values():
        created.result(TIMEOUT)
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
        permit(admin, "alice", AclOperation.ALL, kind, tenant)
    known_everywhere({name: str(value) for name, value in of(tls, "admin").items()})

    producer = Producer(of(tls, "alice", **{"transactional.id": f"{tenant}-t"}))
    consumer = Consumer(of(tls, "alice", **{
        "group.id": f"{tenant}-g", "auto.offset.reset": "earliest", "enable.auto.commit": False}))
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce(topic, b"one", partition=0)
    producer.send_offsets_to_transaction(
        [TopicPartition(topic, 1, 7)], consumer.consumer_group_metadata(), TIMEOUT)
    producer.commit_transaction(TIMEOUT)
    consumer.subscribe([topic])
    message = consumer.poll(TIMEOUT)
    assert message is not None and message.value() == b"one"
    (committed,) = consumer.committed([TopicPartition(topic, 1)], timeout=TIMEOUT)
    assert committed.offset == 7
    consumer.close()

    outcome: list[int] = []

    def told(error: KafkaError | None, message: Message) -> None:
        outcome.append(0 if error is None else error.code())

    stranger = Producer(of(tls, "bob", **{"message.timeout.ms": 10_000}))
    stranger.produce(topic, b"two", partition=0, on_delivery=told)
    stranger.flush(TIMEOUT)
    assert outcome and outcome[0] in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._MSG_TIMED_OUT)
    thief = Producer(of(tls, "bob", **{"transactional.id": f"{tenant}-t"}))
    with pytest.raises(KafkaException) as refused:
        thief.init_transactions(TIMEOUT)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    theirs = AdminClient(of(tls, "bob"))
    assert theirs.list_topics(timeout=TIMEOUT).topics == {}
    for made in theirs.create_acls([AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:CN=bob,O=shop", "*", AclOperation.ALL,
        AclPermissionType.ALLOW)]).values():
        with pytest.raises(KafkaException) as refused:
            made.result(TIMEOUT)
        assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    plain = AdminClient({"bootstrap.servers": closed.bootstrap, "log_level": 0})
    assert plain.list_topics(timeout=TIMEOUT).topics == {}

    producer.begin_transaction()  # its holder was not fenced
    producer.produce(topic, b"three", partition=0)
    producer.commit_transaction(TIMEOUT)


def test_a_coordinator_that_takes_over_reads_its_log_without_a_permission(tls: Secured, closed: LocalCluster) -> None:
    tenant = new_name()
    admin = AdminClient(of(tls, "admin"))
    for created in admin.create_topics([NewTopic(tenant, 1, 2)]).values():
        created.result(TIMEOUT)
    producer = Producer(of(tls, "admin", **{"transactional.id": tenant}))
    producer.init_transactions(TIMEOUT)
    for name in ("coordinator-0", "coordinator-1"):
        closed.kill(name)
        producer.begin_transaction()
        producer.produce(tenant, name.encode(), partition=0)
        producer.commit_transaction(TIMEOUT)
        closed.start(name)


@pytest.mark.parametrize(("name", "codes"), [
    ("admin", {KafkaError.TOPIC_EXCEPTION}),
    ("alice", {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._MSG_TIMED_OUT}),
])
def test_no_client_writes_an_internal_topic(tls: Secured, closed: LocalCluster, name: str, codes: set[int]) -> None:
    outcome: list[int] = []

    def told(error: KafkaError | None, message: Message) -> None:
        outcome.append(0 if error is None else error.code())

    producer = Producer(of(tls, name, **{"message.timeout.ms": 10_000, "client.id": "__admin_client"}))
    producer.produce("__transaction_state", b"x", partition=0, on_delivery=told)
    producer.flush(TIMEOUT)
    assert len(outcome) == 1 and outcome[0] in codes
