"""Kafka's own kafka-configs sets, shows and removes quotas, and Kafka's own producer is slowed down by them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from clients.other import new_name
from clients.other.kafka_tools import KafkaTools, kafka_tools
from conftest import end_cluster, start_cluster
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster
from integration.scraping import scraped, total


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("quota-tools"), settings=["group.initial.rebalance.delay.ms=0"])
    yield cluster
    end_cluster(cluster)


@pytest.fixture(scope="module")
def tools(limited: LocalCluster) -> Iterator[KafkaTools]:
    with kafka_tools(limited.bootstrap) as running:
        yield running


def test_kafka_configs_sets_shows_and_removes(tools: KafkaTools, limited: LocalCluster) -> None:
    tools.ok("kafka-configs", "--alter", "--entity-type", "clients", "--entity-name", "app", "--add-config",
             "producer_byte_rate=1024,consumer_byte_rate=2048")
    tools.ok("kafka-configs", "--alter", "--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients",
             "--entity-default", "--add-config", "request_percentage=12.5,controller_mutation_rate=3")
    tools.ok("kafka-configs", "--alter", "--entity-type", "ips", "--entity-name", "10.0.0.1", "--add-config",
             "connection_creation_rate=5")
    with Admin({"bootstrap.servers": limited.bootstrap}) as admin:
        assert admin.list_quotas() == {
            (("client-id", "app"),): {"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0},
            (("client-id", None), ("user", "alice")): {"request_percentage": 12.5, "controller_mutation_rate": 3.0},
            (("ip", "10.0.0.1"),): {"connection_creation_rate": 5.0}}
    shown = tools.run("kafka-configs", "--describe", "--entity-type", "clients", "--entity-name", "app").output
    assert "client-id 'app'" in shown and "producer_byte_rate=1024" in shown and "consumer_byte_rate=2048" in shown
    shown = tools.run("kafka-configs", "--describe", "--entity-type", "ips").output
    assert "10.0.0.1" in shown and "connection_creation_rate=5" in shown
    shown = tools.run("kafka-configs", "--describe", "--entity-type", "users", "--entity-name", "alice",
                      "--entity-type", "clients", "--entity-default").output
    assert "request_percentage=12.5" in shown
    tools.ok("kafka-configs", "--alter", "--entity-type", "clients", "--entity-name", "app", "--delete-config",
             "producer_byte_rate,consumer_byte_rate")
    shown = tools.run("kafka-configs", "--describe", "--entity-type", "clients", "--entity-name", "app").output
    assert "byte_rate" not in shown
    tools.fails("(?i)must be|greater|invalid", "kafka-configs", "--alter", "--entity-type", "clients", "--entity-name",
                "app", "--add-config", "producer_byte_rate=0")


def test_a_java_producer_waits(tools: KafkaTools, limited: LocalCluster) -> None:
    name = new_name()
    tools.ok("kafka-topics", "--create", "--topic", name)
    lines = "\n".join("x" * 2_000 for _ in range(150)) + "\n"
    tools.ok("kafka-configs", "--alter", "--entity-type", "clients", "--entity-default", "--add-config",
             "producer_byte_rate=20000")
    try:
        began = time.monotonic()
        # One request at a time: ten seconds' worth are stored at once, and of the rest each one waits for the former.
        tools.ok("kafka-console-producer", "--topic", name, "--batch-size", "16000", "--command-property",
                 "max.in.flight.requests.per.connection=1", text=lines)
        waited = time.monotonic() - began
    finally:
        tools.ok("kafka-configs", "--alter", "--entity-type", "clients", "--entity-default", "--delete-config",
                 "producer_byte_rate")
    assert f"{name}:0:150" in tools.ok("kafka-get-offsets", "--topic", name).output.split()
    assert total(scraped(limited, "broker-0"), "hapax_throttled_total", quota="producer_byte_rate") > 1
    assert waited > 3, waited
