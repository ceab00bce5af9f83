"""Clients that log in over TLS, by each mechanism: librdkafka, kafka-python, aiokafka, Java, franz-go."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from clients.logins import MECHANISMS, PASSWORD, Logins, set_password
from clients.other import go_command, java_command, new_name, program
from clients.other.kafka_tools import kafka_tools
from clients.raw_login import RawClient
from conftest import end_cluster, start_cluster
from hapax.local.cluster import LocalCluster
from integration.scraping import scraped, total

VALUES = [b"v%d" % number for number in range(50)]
of_each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@pytest.fixture(scope="module")
def node(users: Logins, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Sessions end every 1.5 s: clients log in again on their connections or on new ones."""
    settings = users.settings("num.partitions=1", "connections.max.reauth.ms=1500")
    running = start_cluster(tmp_path_factory.mktemp("logins"), settings=settings)
    set_password(running.bootstrap, "alice")
    yield running
    end_cluster(running)


@pytest.fixture
def topic(users: Logins, node: LocalCluster) -> str:
    name = new_name()
    admin = AdminClient(users.librdkafka("SCRAM-SHA-512"))
    for created in admin.create_topics([NewTopic(name, 1, 1)]).values():
        created.result(30)
    return name


@of_each_mechanism
def test_librdkafka(users: Logins, topic: str, mechanism: str) -> None:
    producer = Producer(users.librdkafka(mechanism, **{"transactional.id": topic}))
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce(topic, value)
    producer.commit_transaction(30)
    consumer = Consumer(users.librdkafka(mechanism, **{"group.id": topic, "auto.offset.reset": "earliest"}))
    consumer.subscribe([topic])
    seen: list[bytes | None] = []
    while len(seen) < len(VALUES):
        record = consumer.poll(30)
        assert record is not None and record.error() is None
        seen.append(record.value())
    consumer.close()
    assert seen == VALUES


@pytest.mark.parametrize(("name", "password"), [("alice", "guess"), ("mallory", PASSWORD)])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_librdkafka_is_told_that_it_may_not_come_in(
    users: Logins, node: LocalCluster, mechanism: str, name: str, password: str
) -> None:
    errors: list[KafkaError] = []
    producer = Producer(users.librdkafka(mechanism, name, password, error_cb=errors.append))
    for _ in range(300):
        producer.poll(0.1)
        if any(error.code() == KafkaError._AUTHENTICATION for error in errors):
            break
    texts = [error.str() for error in errors if error.code() == KafkaError._AUTHENTICATION]
    assert texts and "invalid credentials" in texts[0]


def kafka_python(users: Logins, mechanism: str) -> dict[str, Any]:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return users.token()

    who: dict[str, Any] = (
        {"sasl_oauth_token_provider": Tokens()} if mechanism == "OAUTHBEARER"
        else {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD})
    return {
        "bootstrap_servers": users.bootstrap, "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism,
        "ssl_cafile": str(users.tls.folder / "ca.crt"), **who}


@of_each_mechanism
def test_kafka_python(users: Logins, topic: str, mechanism: str) -> None:
    with KafkaProducer(**kafka_python(users, mechanism)) as producer:
        for value in VALUES:
            producer.send(topic, value)
        producer.flush(30)
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000,
        **kafka_python(users, mechanism))
    seen = []
    for record in consumer:
        seen.append(record.value)
        if len(seen) == len(VALUES):
            break
    consumer.close()
    assert seen == VALUES


@of_each_mechanism
def test_aiokafka(users: Logins, topic: str, mechanism: str) -> None:
    class Tokens(AioTokens):  # type: ignore[misc]
        async def token(self) -> str:
            return users.token()

    async def scenario() -> list[bytes | None]:
        who: dict[str, Any] = (
            {"sasl_oauth_token_provider": Tokens()} if mechanism == "OAUTHBEARER"
            else {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD})
        settings = {
            "bootstrap_servers": users.bootstrap, "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism,
            "ssl_context": ssl.create_default_context(cafile=str(users.tls.folder / "ca.crt")), **who}
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in VALUES]

    assert asyncio.run(scenario()) == VALUES


@of_each_mechanism
def test_java(users: Logins, node: LocalCluster, monkeypatch: pytest.MonkeyPatch, mechanism: str) -> None:
    monkeypatch.setenv("CLIENT_CONFIG", str(users.java(mechanism)))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="
                       + (users.tls.folder / "token").as_uri())
    with program(java_command()) as java:
        java.run("transactions", users.bootstrap, new_name())


@of_each_mechanism
def test_franz_go(users: Logins, node: LocalCluster, monkeypatch: pytest.MonkeyPatch, mechanism: str) -> None:
    monkeypatch.setenv("CLIENT_TLS", str(users.tls.folder))
    who = users.token() if mechanism == "OAUTHBEARER" else f"alice {PASSWORD}"
    monkeypatch.setenv("CLIENT_SASL", f"{mechanism} {who}")
    with program(go_command("franz_go")) as franz_go:
        franz_go.run("transactions", users.bootstrap, new_name())


def test_kafka_configs_sets_shows_and_removes_passwords(users: Logins, node: LocalCluster) -> None:
    name = new_name()
    of_user = ("--entity-type", "users", "--entity-name", name)
    with kafka_tools(node.bootstrap) as tools:
        tools.ok("kafka-configs", "--alter", *of_user, "--add-config", "SCRAM-SHA-512=[iterations=8192,password=pw]")
        assert "SCRAM-SHA-512=iterations=8192" in tools.ok("kafka-configs", "--describe", *of_user).output
        with RawClient(users) as client:
            assert client.scram(name, "pw", mechanism="SCRAM-SHA-512")[-1].error_code == 0
        tools.ok("kafka-configs", "--alter", *of_user, "--delete-config", "SCRAM-SHA-512")
        assert "SCRAM-SHA-512" not in tools.run("kafka-configs", "--describe", *of_user).output
    with RawClient(users) as client:
        assert client.scram(name, "pw", mechanism="SCRAM-SHA-512")[-1].error_code == 58


def test_a_client_that_logs_in_again_notices_nothing(users: Logins, node: LocalCluster, topic: str) -> None:
    """KIP-368: over several lifetimes of a session, on open connections."""
    failures: list[object] = []
    producer = Producer(users.librdkafka("SCRAM-SHA-256", **{"linger.ms": 0}))
    count = 0

    def renewed() -> float:
        return total(scraped(node, "broker-0"), "hapax_sasl_logins_total", outcome="renewed")

    before = renewed()
    while renewed() < before + 3:
        producer.produce(topic, b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
        count += 1
        producer.poll(0.05)
        assert count < 2000
    assert producer.flush(30) == 0
    assert failures == []
