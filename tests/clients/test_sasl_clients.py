"""Clients that log in over TLS: librdkafka, kafka-python, aiokafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from clients.other import new_name
from clients.secured import Secured, secured
from conftest import end_cluster, start_cluster
from hapax.local.cluster import LocalCluster


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    return secured(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(tls: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = start_cluster(
        tmp_path_factory.mktemp("logins"), settings=[
            f"listeners=SASL_SSL://127.0.0.1:{tls.port}+node.id",
            f"ssl.certificate.location={tls.folder / 'node.crt'}", f"ssl.key.location={tls.folder / 'node.key'}",
            "listener.name.plaintext.sasl.allow.secrets.without.tls=true", "num.partitions=1"])
    yield running
    end_cluster(running)


def test_thin(tls: Secured, node: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for done in admin.alter_user_scram_credentials([UserScramCredentialUpsertion(
            "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")]).values():
        done.result(30)
    config = {"bootstrap.servers": tls.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256",
              "sasl.username": "alice", "sasl.password": "secret", "ssl.ca.location": str(tls.folder / "ca.crt")}
    topic = new_name()
    admin = AdminClient(config)
    for created in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        created.result(30)
    producer = Producer(config)
    producer.produce(topic, b"one")
    assert producer.flush(30) == 0
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    record = consumer.poll(30)
    assert record is not None and record.value() == b"one"
    consumer.close()
