"""Clients over TLS with certificates on both sides: librdkafka, kafka-python, aiokafka, Java, franz-go, our own."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from typer.testing import CliRunner

from clients.other import go_command, java_command, new_name, program
from clients.secured import Secured, secured
from conftest import end_cluster, start_cluster
from hapax.cli.main import application
from hapax.client import AuthenticationError, RetriableError, blocking
from hapax.local.cluster import LocalCluster
from hapax.runtime.network import raise_descriptor_limit
from integration.scraping import scraped, total
from integration.waiting import wait_until

VALUES = [b"v%d" % number for number in range(50)]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    return secured(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(tls: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = start_cluster(
        tmp_path_factory.mktemp("secured"), settings=tls.settings("ssl.reload.interval.ms=200", "num.partitions=1"))
    yield running
    end_cluster(running)


def librdkafka(tls: Secured) -> dict[str, object]:
    return {
        "bootstrap.servers": tls.bootstrap, "security.protocol": "SSL", "log_level": 0,
        "ssl.ca.location": str(tls.folder / "ca.crt"), "ssl.certificate.location": str(tls.folder / "client.crt"),
        "ssl.key.location": str(tls.folder / "client.key"),
    }


def kafka_python(tls: Secured) -> dict[str, object]:
    return {
        "bootstrap_servers": tls.bootstrap, "security_protocol": "SSL", "ssl_cafile": str(tls.folder / "ca.crt"),
        "ssl_certfile": str(tls.folder / "client.crt"), "ssl_keyfile": str(tls.folder / "client.key"),
    }


@pytest.fixture
def topic(tls: Secured, node: LocalCluster) -> str:
    name = new_name()
    admin = AdminClient(librdkafka(tls))
    for created in admin.create_topics([NewTopic(name, 1, 1)]).values():
        created.result(30)
    return name


def test_librdkafka(tls: Secured, topic: str) -> None:
    producer = Producer({**librdkafka(tls), "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce(topic, value)
    producer.commit_transaction(30)
    consumer = Consumer({**librdkafka(tls), "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    seen: list[bytes | None] = []
    while len(seen) < len(VALUES):
        record = consumer.poll(30)
        assert record is not None and record.error() is None
        seen.append(record.value())
    consumer.close()
    assert seen == VALUES


def test_kafka_python(tls: Secured, topic: str) -> None:
    with KafkaProducer(**kafka_python(tls)) as producer:
        for value in VALUES:
            producer.send(topic, value)
        producer.flush(30)
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **kafka_python(tls))
    seen = []
    for record in consumer:
        seen.append(record.value)
        if len(seen) == len(VALUES):
            break
    consumer.close()
    assert seen == VALUES


def test_aiokafka(tls: Secured, topic: str) -> None:
    context = ssl.create_default_context(cafile=str(tls.folder / "ca.crt"))
    context.load_cert_chain(tls.folder / "client.crt", tls.folder / "client.key")
    settings = {"bootstrap_servers": tls.bootstrap, "security_protocol": "SSL", "ssl_context": context}

    async def scenario() -> list[bytes | None]:
        async with AIOKafkaProducer(**settings, transactional_id=topic) as producer, producer.transaction():
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", isolation_level="read_committed", **settings
        ) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in VALUES]

    assert asyncio.run(scenario()) == VALUES


@pytest.mark.parametrize("words", [("transactions",), ("members", "consumer")])
def test_java(tls: Secured, node: LocalCluster, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("CLIENT_CONFIG", str(tls.file()))
    with program(java_command()) as java:
        java.run(words[0], tls.bootstrap, new_name(), *words[1:])


@pytest.mark.parametrize("words", [("transactions",), ("members", "consumer")])
def test_franz_go(tls: Secured, node: LocalCluster, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("CLIENT_TLS", str(tls.folder))
    with program(go_command("franz_go")) as franz_go:
        franz_go.run(words[0], tls.bootstrap, new_name(), *words[1:])


def test_the_native_client(tls: Secured, topic: str) -> None:
    settings = {"bootstrap.servers": tls.bootstrap, **tls.client}
    with blocking.Producer({**settings, "transactional.id": topic}) as producer, producer.transaction():
        for value in VALUES:
            producer.send(topic, value)
    with blocking.Consumer({
        **settings, "group.id": topic, "auto.offset.reset": "earliest", "isolation.level": "read_committed",
    }) as consumer:
        consumer.subscribe([topic])
        seen: list[bytes | None] = []
        while len(seen) < len(VALUES):
            seen += [record.value for record in consumer.poll(30_000)]
    assert seen == VALUES


def test_the_native_client_says_what_is_wrong(tls: Secured, node: LocalCluster) -> None:
    settings = {"bootstrap.servers": tls.bootstrap, "request.timeout.ms": 1000}
    with pytest.raises(AuthenticationError, match=r"self-signed|unable to get local issuer"):
        blocking.Admin({**settings, "security.protocol": "SSL"}).start()
    anonymous = {**settings, "security.protocol": "SSL", "ssl.ca.location": str(tls.folder / "ca.crt")}
    with pytest.raises(RetriableError, match="certificate required"):
        blocking.Admin(anonymous).start()
    with pytest.raises(RetriableError, match="no node answers"):
        blocking.Admin(settings).start()


@pytest.fixture
def hapax(tls: Secured, node: LocalCluster) -> Callable[..., str]:
    def run(*words: str, given: str = "") -> str:
        arguments = [*words, "--bootstrap", tls.bootstrap, "--command-config", str(tls.file())]
        done = CliRunner().invoke(application([words[0]]), arguments, input=given)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_the_command(hapax: Callable[..., str], topic: str) -> None:
    assert topic in hapax("topic", "list")
    hapax("produce", topic, given="one\ntwo\n")
    assert hapax("consume", topic, "--from-beginning", "--until-end") == "one\ntwo\n"
    assert "broker" in hapax("cluster", "nodes")


def served_certificate(tls: Secured) -> str:
    context = ssl.create_default_context(cafile=str(tls.folder / "ca.crt"))
    context.load_cert_chain(tls.folder / "client.crt", tls.folder / "client.key")
    with (
        socket.create_connection(("127.0.0.1", tls.port)) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as secure,
    ):
        der = secure.getpeercert(binary_form=True)
        assert der is not None
        return ssl.DER_cert_to_PEM_cert(der)


def test_all_certificates_are_replaced_while_clients_work(tls: Secured, node: LocalCluster, topic: str) -> None:
    settings = {"bootstrap.servers": tls.bootstrap, **tls.client}
    former = (tls.folder / "node.crt").read_text()
    failures: list[object] = []
    other = Producer({**librdkafka(tls), "linger.ms": 0})

    def produce(count: int) -> None:
        for _ in range(count):
            producer.send(topic, b"native").result()
            other.produce(topic, b"other", on_delivery=lambda error, _: failures.append(error) if error else None)
            other.poll(0)

    with blocking.Producer(settings) as producer:
        produce(50)
        (tls.folder / "node.crt").write_bytes(b"rubbish")  # abuse case 34
        wait_until(lambda: "new certificates are not used" in node.log("broker-0"), "refusal")
        assert served_certificate(tls) == former
        produce(50)
        tls.renew("node")
        tls.renew("client")
        wait_until(lambda: served_certificate(tls) == (tls.folder / "node.crt").read_text(), "new certificate")
        produce(50)  # over the connections from before
        assert other.flush(30) == 0
    assert failures == []
    assert (tls.folder / "node.crt").read_text() != former
    with blocking.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        seen: list[bytes | None] = []
        while len(seen) < 300:
            seen += [record.value for record in consumer.poll(30_000)]
    assert sorted(map(bytes, filter(None, seen))) == [b"native"] * 150 + [b"other"] * 150


PER_ADDRESS = 500
"""`ssl.max.handshakes.per.ip`."""
FLOOD = int(os.environ.get("HAPAX_TEST_HANDSHAKES", "2000"))


def test_handshakes_that_never_end_lock_no_client_out(tls: Secured, node: LocalCluster, topic: str) -> None:
    """Abuse case 4. HAPAX_TEST_HANDSHAKES=10000 for the whole of it."""
    settings = {"bootstrap.servers": tls.bootstrap, **tls.client}
    raise_descriptor_limit()
    flood = []

    def ended() -> float:
        return sum(total(scraped(node, "broker-0"), "hapax_tls_handshakes_total", listener="SSL", outcome=outcome)
                   for outcome in ("given up", "timed out"))

    before = ended()
    with blocking.Producer(settings) as producer:
        producer.send(topic, b"before").result()
        for number in range(FLOOD):
            sock = socket.create_connection(("127.0.0.1", tls.port))
            if number % 2:
                sock.sendall(b"\x16\x03\x01\x02\0\x01")
            flood.append(sock)
        producer.send(topic, b"amid").result()
        with blocking.Producer(settings) as another:
            another.send(topic, b"a new one").result()
        assert ended() - before >= FLOOD - PER_ADDRESS, "the node has kept them all"
    for sock in flood:
        sock.close()
