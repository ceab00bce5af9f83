"""Kafka's own tools on a cluster with an authoriser: kafka-acls, and what the others are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.other import new_name
from clients.other.kafka_tools import KafkaTools, kafka_tools
from conftest import end_cluster, start_cluster
from hapax.local.cluster import LocalCluster
from integration.acls import known_everywhere

ME = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("access-tools"), settings=[
        "authorizer.class.name=acl", "super.users=User:root", "allow.everyone.if.no.acl.found=true",
        "group.initial.rebalance.delay.ms=0"])
    yield cluster
    end_cluster(cluster)


@pytest.fixture(scope="module")
def tools(guarded: LocalCluster) -> Iterator[KafkaTools]:
    with kafka_tools(guarded.bootstrap) as running:
        running.ok("kafka-acls", "--add", "--allow-principal", ME, "--operation", "All", "--cluster")
        yield running


def test_kafka_acls_adds_lists_and_removes(tools: KafkaTools) -> None:
    name = new_name()
    tools.ok("kafka-acls", "--add", "--allow-principal", "User:alice", "--producer", "--topic", name)
    tools.ok(
        "kafka-acls", "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.7", "--operation", "Read",
        "--topic", name[:4], "--group", "*", "--resource-pattern-type", "prefixed")
    listed = tools.ok("kafka-acls", "--list", "--topic", name).output
    for operation in ("WRITE", "DESCRIBE", "CREATE"):
        assert f"(principal=User:alice, host=*, operation={operation}, permissionType=ALLOW)" in listed
    matching = tools.ok("kafka-acls", "--list", "--topic", name, "--resource-pattern-type", "match").output
    assert "principal=User:bob, host=10.0.0.7, operation=READ, permissionType=DENY" in matching
    mine = tools.ok("kafka-acls", "--list", "--principal", "User:bob").output
    assert f"name={name[:4]}, patternType=PREFIXED" in mine and "alice" not in mine
    tools.ok("kafka-acls", "--remove", "--force", "--topic", name)
    tools.ok("kafka-acls", "--remove", "--force", "--topic", name[:4], "--group", "*", "--resource-pattern-type",
             "prefixed")
    assert "principal=" not in tools.ok(
        "kafka-acls", "--list", "--topic", name, "--resource-pattern-type", "match").output


def test_java_clients_are_told_that_they_may_not(tools: KafkaTools, guarded: LocalCluster) -> None:
    name = new_name()
    tools.ok("kafka-topics", "--create", "--topic", name)
    tools.ok("kafka-acls", "--add", "--allow-principal", ME, "--operation", "Describe", "--topic", name)
    known_everywhere({"bootstrap.servers": guarded.bootstrap})
    tools.run("kafka-console-producer", "--topic", name, text="refused\n")  # it says so in its log alone
    assert f"{name}:0:0" in tools.ok("kafka-get-offsets", "--topic", name).output.split()
    read = tools.run(
        "kafka-console-consumer", "--topic", name, "--from-beginning", "--max-messages", "1", "--timeout-ms", "5000")
    assert "Processed a total of 0 messages" in read.output
    tools.ok("kafka-acls", "--add", "--allow-principal", ME, "--operation", "All", "--topic", name)
    known_everywhere({"bootstrap.servers": guarded.bootstrap})
    tools.ok("kafka-console-producer", "--topic", name, text="stored\n")
    read = tools.ok("kafka-console-consumer", "--topic", name, "--from-beginning", "--max-messages", "1",
                    "--timeout-ms", "20000")
    assert "stored" in read.output and "refused" not in read.output
    hidden = new_name()
    tools.ok("kafka-topics", "--create", "--topic", hidden)
    tools.ok("kafka-acls", "--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", hidden)
    known_everywhere({"bootstrap.servers": guarded.bootstrap})
    assert hidden not in tools.ok("kafka-topics", "--list").output.split()
