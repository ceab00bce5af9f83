"""Quotas on a real cluster, set by the command, felt by librdkafka, kafka-python and the native client."""

from __future__ import annotations

import json
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as PythonTopic
from kafka.errors import ThrottlingQuotaExceededError

from conftest import end_cluster, start_cluster
from hapax.client.blocking import Admin
from hapax.client.blocking import Producer as NativeProducer
from hapax.local.cluster import LocalCluster
from integration.scraping import scraped, total
from integration.test_cli import invoke
from integration.waiting import wait_until

TIMEOUT = 60.0
RATE = 40_000
SIZE = 720_000
"""Eighteen seconds' worth: ten may be used at once, and eight are waited for."""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("quotas"), brokers=2, coordinators=1)
    yield cluster
    end_cluster(cluster)


@contextmanager
def quota(cluster: LocalCluster, *words: str, **entity: str) -> Iterator[None]:
    """Holds on every node within the block. `entity`: client_id="app"; "" is the default."""
    named = [
        part for kind, name in entity.items() for option in [f"--{kind.replace('_', '-')}"]
        for part in ([option, name] if name else [f"{option}-default"])]
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        names = {kind.replace("_", "-"): name or None for kind, name in entity.items()}
        before = entities(cluster)
        invoke("quota", "set", *words, *named, "--bootstrap", cluster.bootstrap)
        assert admin.list_quotas(names, strict=True)
        wait_until(lambda: all(each > known for each, known in zip(entities(cluster), before, strict=True)), "quota")
        try:
            yield
        finally:
            admin.alter_quotas(names, dict.fromkeys(word.partition("=")[0] for word in words))
            wait_until(lambda: entities(cluster) == before, "end of the quota")


def entities(cluster: LocalCluster) -> list[float]:
    """By node: how many entities with quotas it knows."""
    return [total(scraped(cluster, node), "hapax_quota_entities") for node in ("broker-0", "broker-1", "coordinator-0")]


def new_topic(cluster: LocalCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(name, 1, 2)]).values():
        made.result(TIMEOUT)
    return name


class Throttled:
    def __init__(self) -> None:
        self.events: list[ThrottleEvent] = []
        self.at: list[float] = []

    def __call__(self, event: ThrottleEvent) -> None:
        self.events.append(event)
        self.at.append(time.monotonic())


def test_librdkafka_is_told_at_once_and_its_next_write_waits(limited: LocalCluster) -> None:
    topic, throttled = new_topic(limited), Throttled()
    settings = {"bootstrap.servers": limited.bootstrap, "message.max.bytes": 2_000_000}
    slow = Producer({**settings, "client.id": "slow", "throttle_cb": throttled})
    fast = Producer({**settings, "client.id": "fast"})
    with quota(limited, f"producer_byte_rate={RATE}", client_id="slow"):
        stored: list[float] = []
        began = time.monotonic()
        slow.produce(topic, bytes(SIZE), on_delivery=lambda error, message: stored.append(time.monotonic()))
        wait_until(lambda: slow.poll(0.05) >= 0 and bool(stored and throttled.events), "answer")
        told_s = throttled.events[0].throttle_time
        assert 6 < told_s < 9
        assert stored[0] - began < told_s, "the answer did not wait"
        fast.produce(topic, bytes(SIZE))
        assert fast.flush(TIMEOUT) == 0
        assert time.monotonic() - stored[0] < told_s, "another client does not wait"
        slow.produce(topic, b"next", on_delivery=lambda error, message: stored.append(time.monotonic()))
        assert slow.flush(TIMEOUT) == 0
        assert stored[1] - stored[0] > told_s - 1, "the connection was not read before"
    counted = sum(
        total(scraped(limited, node), "hapax_throttled_total", quota="producer_byte_rate")
        for node in ("broker-0", "broker-1"))
    assert counted >= 1


def test_a_consumer_gets_its_records_and_is_told_to_wait(limited: LocalCluster) -> None:
    topic, throttled = new_topic(limited), Throttled()
    producer = Producer({"bootstrap.servers": limited.bootstrap, "message.max.bytes": 2_000_000})
    producer.produce(topic, bytes(SIZE))
    assert producer.flush(TIMEOUT) == 0
    with quota(limited, f"consumer_byte_rate={RATE}", user="ANONYMOUS", client_id=""):
        consumer = Consumer({
            "bootstrap.servers": limited.bootstrap, "group.id": topic, "client.id": "reader", "throttle_cb": throttled,
            "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(TIMEOUT)
        assert message is not None and message.error() is None and len(message.value()) == SIZE
        wait_until(lambda: consumer.poll(0.05) is None and bool(throttled.events), "throttle")
        assert 6 < throttled.events[0].throttle_time < 9
        consumer.close()


def test_a_client_that_takes_too_much_time_is_told_to_wait(limited: LocalCluster) -> None:
    topic, busy, other = new_topic(limited), Throttled(), Throttled()

    def counted() -> float:
        return sum(total(scraped(limited, node), "hapax_throttled_total", quota="request_percentage")
                   for node in ("broker-0", "broker-1", "coordinator-0"))

    before = counted()
    with quota(limited, "request_percentage=0.01", client_id="busy"):
        producers = [
            Producer({"bootstrap.servers": limited.bootstrap, "client.id": name, "linger.ms": 0, "throttle_cb": told})
            for name, told in (("busy", busy), ("other", other))]
        until = time.monotonic() + TIMEOUT
        while not busy.events:
            assert time.monotonic() < until, "a client that asks all the time is never told to wait"
            for producer in producers:
                producer.produce(topic, b"x")
                producer.poll(0.02)
        assert not other.events, "another client does not wait"
        assert counted() > before
    for producer in producers:
        assert producer.flush(TIMEOUT) == 0


def test_changes_of_partitions_are_refused_or_wait(limited: LocalCluster) -> None:
    with quota(limited, "controller_mutation_rate=0.5", user=""):
        client = KafkaAdminClient(bootstrap_servers=limited.bootstrap)
        names = [f"m-{uuid.uuid4().hex[:8]}" for _ in range(3)]
        client.create_topics([PythonTopic(names[0], 7, 1)])
        with pytest.raises(ThrottlingQuotaExceededError):
            client.create_topics([PythonTopic(names[1], 1, 1)])
        client.close()
        native: Any = Admin({"bootstrap.servers": limited.bootstrap, "default.api.timeout.ms": 60_000})
        with native as admin:
            admin.create_topics([names[2]])
            assert names[2] in {topic.name for topic in admin.list_topics()}, "the native client waits and repeats"


def test_the_nodes_themselves_are_charged_nothing(limited: LocalCluster) -> None:
    topic = new_topic(limited)
    plenty = ("producer_byte_rate=1e9", "consumer_byte_rate=1e9", "request_percentage=1e6")
    with ExitStack() as quotas:
        quotas.enter_context(quota(limited, *plenty, user="ANONYMOUS", client_id="app"))
        quotas.enter_context(quota(limited, *plenty, user="ANONYMOUS", client_id="admin"))
        quotas.enter_context(
            quota(limited, "producer_byte_rate=1", "consumer_byte_rate=1", "request_percentage=0.001", user=""))
        throttled_before = throttles(limited)
        with NativeProducer({
            "bootstrap.servers": limited.bootstrap, "client.id": "app", "transactional.id": topic, "acks": "all",
        }) as producer:
            for number in range(20):
                with producer.transaction():
                    producer.send(topic, b"%d" % number, partition=0)
        wait_until(lambda: total(scraped(limited, "broker-0"), "hapax_quota_meters") > 0, "meter")
        assert throttles(limited) == throttled_before


def throttles(cluster: LocalCluster) -> dict[str, float]:
    """The bytes that nodes exchange, by key."""
    return {
        key: sum(total(scraped(cluster, node), "hapax_throttled_total", quota=key)
                 for node in ("broker-0", "broker-1", "coordinator-0"))
        for key in ("producer_byte_rate", "consumer_byte_rate")}


def test_connections_of_an_address_wait_their_turn(limited: LocalCluster) -> None:
    host, _, port = limited.bootstrap.split(",")[0].rpartition(":")
    question = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    with quota(limited, "connection_creation_rate=1", ip="127.0.0.1"), ExitStack() as opened:
        began = time.monotonic()
        answered = []
        for _ in range(16):
            connection = opened.enter_context(socket.create_connection((host, int(port)), TIMEOUT))
            connection.sendall(question)
            opened.callback(connection.close)
            answered.append(connection)
        times = []
        for connection in answered:
            connection.settimeout(TIMEOUT)
            assert connection.recv(4)
            times.append(time.monotonic() - began)
        assert times[-1] > 2, times
        assert times == sorted(times)


def test_the_command_lists_sets_and_removes(limited: LocalCluster) -> None:
    def hapax(*words: str, ok: bool = True) -> str:
        return invoke("quota", *words, "--bootstrap", limited.bootstrap, ok=ok).stdout

    assert json.loads(hapax("list", "--json")) == []
    hapax("set", "producer_byte_rate=1024", "request_percentage=12.5", "--user", "alice", "--client-id-default")
    hapax("set", "connection_creation_rate=5", "--ip", "10.0.0.1")
    rows = json.loads(hapax("list", "--json"))
    assert rows == [
        {"user": "alice", "client-id": {"default": True}, "ip": None, "quota": "producer_byte_rate", "value": 1024.0},
        {"user": "alice", "client-id": {"default": True}, "ip": None, "quota": "request_percentage", "value": 12.5},
        {"user": None, "client-id": None, "ip": "10.0.0.1", "quota": "connection_creation_rate", "value": 5.0}]
    assert "<default>" in hapax("list", "--user", "alice") and "10.0.0.1" not in hapax("list", "--user", "alice")
    left = json.loads(hapax("remove", "request_percentage", "--user", "alice", "--client-id-default", "--json"))
    assert [row["quota"] for row in left] == ["producer_byte_rate"]
    hapax("remove", "--user", "alice", "--client-id-default")
    hapax("remove", "--ip", "10.0.0.1")
    assert json.loads(hapax("list", "--json")) == []
    for wrong in (
        ["set", "producer_byte_rate=1"], ["set", "producer_byte_rate=x", "--user", "a"],
        ["set", "producer_byte_rate=-1", "--user", "a"], ["set", "producer_byte_rate=1", "--ip", "10.0.0.1"],
        ["set", "request_percentage=1", "--user", "a", "--user-default"], ["remove"],
        ["remove", "nothing", "--user", "a"],
    ):
        hapax(*wrong, ok=False)
