"""Kafka's own command-line tools on three brokers and two coordinators."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from clients.other import REPLICATED, WHOLE, new_name
from clients.other.kafka_tools import KafkaTools, Verifiable, kafka_tools
from conftest import end_cluster, start_cluster
from hapax.client.blocking import Admin
from hapax.codec.records import encode_records
from hapax.local.cluster import LocalCluster
from integration.bad_input import ClusterProcess, Wire, produce
from integration.test_hanging_transactions import late_batch
from integration.waiting import wait_until

FAST = [*REPLICATED, "group.initial.rebalance.delay.ms=0", "group.consumer.session.timeout.ms=6000"]
whole = pytest.mark.skipif(not WHOLE, reason="for make test-clients")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("tools"), brokers=3, coordinators=2, settings=FAST)
    yield cluster
    end_cluster(cluster)


@pytest.fixture(scope="module")
def tools(three: LocalCluster) -> Iterator[KafkaTools]:
    with kafka_tools(three.bootstrap) as running:
        yield running


@pytest.fixture
def topic(tools: KafkaTools) -> str:
    """Two partitions."""
    name = new_name()
    tools.ok("kafka-topics", "--create", "--topic", name, "--partitions", "2")
    return name


def records(tools: KafkaTools, topic: str, count: int, *more: str) -> list[str]:
    """What the console consumer prints of the first `count` records."""
    ran = tools.ok(
        "kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", str(count),
        "--timeout-ms", "20000", *more)
    assert f"Processed a total of {count} messages" in ran.output
    return [line for line in ran.output.splitlines() if not line.startswith(("The consumer", "Processed"))]


# --- topics and configurations ----------------------------------------------------------------------------------------


def test_topics(tools: KafkaTools) -> None:
    name = new_name()
    tools.ok("kafka-topics", "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=60000")
    described = tools.ok("kafka-topics", "--describe", "--topic", name).output
    assert "PartitionCount: 2\tReplicationFactor: 3" in described and "retention.ms=60000" in described
    assert len(re.findall(r"Leader: [012]\tReplicas: (?:\d,){2}\d\tIsr: (?:\d,){2}\d\tElr: \tLast", described)) == 2
    topic_id = re.search(r"TopicId: (\S+)", described)
    assert topic_id is not None
    assert f"Topic: {name}" in tools.ok("kafka-topics", "--describe", "--topic-id", topic_id[1]).output
    assert name in tools.ok("kafka-topics", "--list").output.split()
    tools.fails("exists", "kafka-topics", "--create", "--topic", name)
    tools.ok("kafka-topics", "--create", "--topic", name, "--if-not-exists")
    tools.ok("kafka-topics", "--alter", "--topic", name, "--partitions", "4")
    assert "PartitionCount: 4" in tools.ok("kafka-topics", "--describe", "--topic", name).output
    tools.fails("4 partitions", "kafka-topics", "--alter", "--topic", name, "--partitions", "3")
    for state in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        assert tools.ok("kafka-topics", "--describe", f"--{state}-partitions").output.strip() == "", state
    tools.ok("kafka-topics", "--delete", "--topic", name)
    assert name not in tools.ok("kafka-topics", "--list").output.split()
    tools.fails("does not exist", "kafka-topics", "--describe", "--topic", name)
    tools.ok("kafka-topics", "--delete", "--topic", name, "--if-exists")


@whole
def test_topics_that_cannot_be_created(tools: KafkaTools) -> None:
    name = new_name()
    for expected, arguments in {
        "not alive": ["--replica-assignment", "0:7"],
        "greater than 0": ["--partitions", "0"],
        "larger than the number of live brokers": ["--replication-factor", "9"],
        "nonsense": ["--config", "nonsense=1"],
        "retention.ms": ["--config", "retention.ms=x"],
    }.items():
        tools.fails(expected, "kafka-topics", "--create", "--topic", name, *arguments)
    tools.fails("name", "kafka-topics", "--create", "--topic", "in valid")
    assert name not in tools.ok("kafka-topics", "--list").output.split()
    tools.ok("kafka-topics", "--create", "--topic", name, "--replica-assignment", "0:1:2,2:1:0")
    assert "Leader: 2\tReplicas: 2,1,0" in tools.ok("kafka-topics", "--describe", "--topic", name).output
    tools.fails("internal", "kafka-topics", "--delete", "--topic", "__consumer_offsets")


@whole
def test_configurations(tools: KafkaTools, topic: str) -> None:
    entity = ["--entity-type", "topics", "--entity-name", topic]
    tools.ok("kafka-configs", *entity, "--alter", "--add-config", "retention.ms=90000,cleanup.policy=[compact,delete]")
    described = tools.ok("kafka-configs", *entity, "--describe").output
    assert "retention.ms=90000" in described and "cleanup.policy=compact,delete" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=90000" in described
    tools.ok("kafka-configs", *entity, "--alter", "--delete-config", "retention.ms")
    described = tools.ok("kafka-configs", *entity, "--describe", "--all").output
    assert "retention.ms=604800000" in described and "cleanup.policy=compact,delete" in described
    tools.fails("nonsense", "kafka-configs", *entity, "--alter", "--add-config", "nonsense=1")
    broker = tools.ok("kafka-configs", "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all").output
    assert "default.replication.factor=3" in broker and "node.id=1" in broker
    for kind in ("brokers", "clients", "groups", "ips", "client-metrics"):
        tools.ok("kafka-configs", "--entity-type", kind, "--describe")
    tools.ok("kafka-client-metrics", "--list")


# --- records ----------------------------------------------------------------------------------------------------------


def test_what_the_console_producer_sends_the_console_consumer_prints(tools: KafkaTools, topic: str) -> None:
    tools.ok(
        "kafka-console-producer", "--topic", topic,
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=:",
        text="".join(f"k{i}:v{i}\n" for i in range(50)))
    tools.ok("kafka-console-producer", "--topic", topic, "--compression-codec", "zstd", text="squeezed\n")
    printed = records(tools, topic, 51, "--formatter-property", "print.key=true")
    assert sorted(printed) == sorted(["null\tsqueezed", *(f"k{i}\tv{i}" for i in range(50))])
    group = new_name()
    assert len(records(tools, topic, 20, "--group", group)) == 20
    assert len(records(tools, topic, 31, "--group", group)) == 31
    positions = tools.ok("kafka-consumer-groups", "--describe", "--group", group).rows()
    assert sum(int(row[3]) for row in positions if row[1] == topic) == 51


def test_offsets_and_deleted_records(tools: KafkaTools, topic: str, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": tools.bootstrap})
    for i in range(10):
        producer.produce(topic, b"%d" % i, partition=1, timestamp=9_000 if i == 4 else 1_000 + i)
        producer.flush(30)

    def offsets(*time: str) -> str:
        return tools.ok("kafka-get-offsets", "--topic", topic, *time).output.strip()

    assert offsets() == offsets("--time", "latest") == f"{topic}:0:0\n{topic}:1:10"
    assert offsets("--time", "earliest") == f"{topic}:0:0\n{topic}:1:0"
    assert offsets("--time", "max-timestamp") == f"{topic}:1:4"
    assert offsets("--time", "1003") == f"{topic}:1:3"
    assert offsets("--time", "earliest-local") == f"{topic}:0:0\n{topic}:1:0"
    assert offsets("--time", "latest-tiered") == ""
    tools.fails("Could not match", "kafka-get-offsets", "--topic", new_name())
    wanted = tmp_path / "delete.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 1, "offset": 3}]}))
    deleted = tools.ok("kafka-delete-records", "--offset-json-file", str(wanted)).output
    assert f"partition: {topic}-1\tlow_watermark: 3" in deleted
    assert offsets("--time", "earliest") == f"{topic}:0:0\n{topic}:1:3"
    assert records(tools, topic, 7) == [str(i) for i in range(3, 10)]


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def member(tools: KafkaTools, topic: str) -> Iterator[Callable[[str], Consumer]]:
    """A member, which has joined, of a group with the name of its protocol and the topic. The topic has ten records in
    partition 0."""
    producer = Producer({"bootstrap.servers": tools.bootstrap})
    for i in range(10):
        producer.produce(topic, b"%d" % i, partition=0)
    assert producer.flush(30) == 0
    made: list[Consumer] = []

    def make(protocol: str) -> Consumer:
        consumer = Consumer({
            "bootstrap.servers": tools.bootstrap, "group.id": f"{protocol}-{topic}", "client.id": "tools-test",
            "group.protocol": protocol, "auto.offset.reset": "earliest", "enable.auto.commit": False,
            **({"partition.assignment.strategy": "range"} if protocol == "classic" else {}),
        })
        made.append(consumer)
        consumer.subscribe([topic])
        seen = 0
        while seen < 6:
            seen += consumer.poll(0.1) is not None
        consumer.commit(asynchronous=False)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups(tools: KafkaTools, topic: str, member: Callable[[str], Consumer], protocol: str) -> None:
    groups, group = "kafka-consumer-groups", f"{protocol}-{topic}"
    consumer = member(protocol)
    kind = protocol.capitalize()

    rows = [row for row in tools.ok(groups, "--describe", "--group", group).rows() if row[0] == group]
    assert [row[1:6] for row in rows] == [[topic, "0", "6", "10", "4"], [topic, "1", "-", "0", "-"]]
    assert {row[8] for row in rows} == {"tools-test"}
    members = tools.ok(groups, "--describe", "--group", group, "--members", "--verbose").output
    assert f"{topic}:0,1" in members
    state = tools.ok(groups, "--describe", "--group", group, "--state").output
    assert re.search(r"\((100|101)\) +" + ("range" if protocol == "classic" else "uniform") + r" +Stable +1", state)
    assert [group, "Stable"] in tools.ok(groups, "--list", "--state", "stable").rows()
    assert [group, kind] in tools.ok(groups, "--list", "--type", protocol).rows()
    assert [group, kind, "consumer"] in tools.ok("kafka-groups", "--list").rows()

    reset = [groups, "--reset-offsets", "--group", group, "--topic"]
    tools.says("only be reset if the group .* is inactive", *reset, topic, "--to-earliest", "--execute")
    tools.says("not empty", groups, "--delete", "--group", group)
    tools.says("actively subscribed", groups, "--delete-offsets", "--group", group, "--topic", topic)
    consumer.close()

    def positions() -> list[str]:
        return [row[3] for row in tools.ok(groups, "--describe", "--group", group).rows() if row[0] == group]

    assert [group, "Empty"] in tools.ok(groups, "--list", "--state").rows()
    for arguments, expected in {
        ("--to-earliest",): ["0", "0"], ("--to-latest",): ["10", "0"], ("--shift-by", "-3"): ["7", "0"],
        ("--to-offset", "2"): ["2", "0"], ("--to-current",): ["2", "0"],
        ("--by-duration", "PT1H"): ["0", "0"], ("--to-datetime", "2020-01-01T00:00:00.000"): ["0", "0"],
    }.items():  # fmt: skip
        tools.ok(*reset, topic, *arguments, "--execute")
        assert positions() == expected, arguments
    tools.ok(*reset, f"{topic}:0", "--to-latest", "--dry-run")
    assert positions() == ["0", "0"]
    tools.ok(groups, "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert [row[2] for row in tools.ok(groups, "--describe", "--group", group).rows() if row[0] == group] == ["1"]
    tools.ok(groups, "--delete", "--group", group)
    tools.says("GroupIdNotFound", groups, "--describe", "--group", group)
    tools.says("GroupIdNotFound", groups, "--delete", "--group", group)


@whole
def test_an_application_of_kafka_streams_is_reset(tools: KafkaTools, topic: str) -> None:
    tools.ok("kafka-console-producer", "--topic", topic, text="a\nb\n")
    application = new_name()
    tools.ok("kafka-topics", "--create", "--topic", f"{application}-store-changelog", "--partitions", "1")
    reset = ["kafka-streams-application-reset", "--application-id", application, "--input-topics", topic]
    tools.ok(*reset, "--to-latest")
    rows = tools.ok("kafka-consumer-groups", "--describe", "--group", application).rows()
    assert sum(int(row[3]) for row in rows if row[0] == application) == 2
    assert f"{application}-store-changelog" not in tools.ok("kafka-topics", "--list").output.split()


# --- transactions -----------------------------------------------------------------------------------------------------


def test_transactions(tools: KafkaTools, topic: str) -> None:
    producer = Producer({"bootstrap.servers": tools.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction, None)):
        producer.begin_transaction()
        producer.produce(topic, b"v%d" % number, partition=0)
        assert producer.flush(30) == 0
        if end is not None:
            end(30)
    transactions, partition = "kafka-transactions", ["--topic", topic, "--partition", "0"]
    listed = [row for row in tools.ok(transactions, "list").rows() if row[0] == topic]
    (_, coordinator, producer_id, state), = listed
    assert state == "Ongoing" and coordinator in ("100", "101")
    assert [topic] == [row[0] for row in tools.ok(
        transactions, "list", "--transactional-id-pattern", f"{topic[:5]}.*").rows() if row[0] == topic]
    described = tools.ok(transactions, "describe", "--transactional-id", topic).output
    assert f"{topic}-0" in described and "Ongoing" in described
    tools.fails("could not be found", transactions, "describe", "--transactional-id", f"{topic}-none")
    for replica in ([], *(["--broker-id", str(broker)] for broker in range(3))):
        (row,) = [row for row in tools.ok(transactions, "describe-producers", *partition, *replica).rows()
                  if row[0] == producer_id]
        assert row[-1] == "4", replica
    tools.fails("Failed to describe producers", transactions, "describe-producers", *partition, "--broker-id", "100")
    for where in (["--topic", topic], *(["--broker-id", str(broker)] for broker in range(3))):
        hanging = tools.ok(transactions, "find-hanging", "--max-transaction-timeout", "0", *where)
        assert producer_id not in [row[2] for row in hanging.rows() if row[0] == topic], "its coordinator knows it"
    tools.fails("Could not find any open", transactions, "abort", *partition, "--start-offset", "3")
    tools.fails("Failed to abort", transactions, "abort", *partition, "--start-offset", "4")
    uncommitted = ["--isolation-level", "read_uncommitted"]
    assert records(tools, topic, 3, *uncommitted) == ["v0", "v1", "v2"]
    assert records(tools, topic, 1, "--isolation-level", "read_committed") == ["v0"]
    tools.ok(transactions, "forceTerminateTransaction", "--transactionalId", topic)
    assert "Ongoing" not in tools.ok(transactions, "describe", "--transactional-id", topic).output
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        producer.commit_transaction(30)
    tools.ok("kafka-console-producer", "--topic", topic, text="last\n")
    assert sorted(records(tools, topic, 2, "--isolation-level", "read_committed")) == ["last", "v0"]


def test_hanging_transactions_are_found_and_aborted(cluster_factory: Callable[..., LocalCluster]) -> None:
    """A write that arrives after its transaction's end opens one that no coordinator will end (KAFKA-9144). The broker
    refuses such a write (KIP-890) unless that is switched off, as here. The limit after which the cluster aborts it by
    itself, 20 minutes, does not pass."""
    cluster = cluster_factory(coordinators=2, settings=["transaction.partition.verification.enable=false"])
    late, alive, topic = new_name(), new_name(), new_name()
    transactions = "kafka-transactions"
    with contextlib.ExitStack() as stack:
        tools = stack.enter_context(kafka_tools(cluster.bootstrap))
        node = ClusterProcess(cluster, "broker-0").address
        tools.ok("kafka-topics", "--create", "--topic", topic, "--partitions", "3")

        def opened(name: str, partition: int) -> Producer:
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce(topic, b"in time", partition=partition)
            assert producer.flush(30) == 0
            return producer

        def described(name: str) -> list[str]:
            rows = tools.ok(transactions, "describe", "--transactional-id", name).rows()
            return next(row for row in rows if name in row)

        def hanging(*arguments: str) -> list[list[str]]:
            found = tools.ok(transactions, "find-hanging", *arguments).rows()
            return [row[:4] for row in found if row[0] == topic]

        ended, still_open = opened(late, 0), opened(alive, 1)
        ended.commit_transaction(30)
        assert described(late)[4] == "CompleteCommit" and described(alive)[4] == "Ongoing"
        producer_id, epoch = described(late)[2:4]
        wire = stack.enter_context(contextlib.closing(Wire(node)))  # of an older connection nothing would be taken
        answer = produce(wire, topic, late_batch(int(producer_id), int(epoch), 0), partition=2, transactional_id=late)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert produce(wire, topic, encode_records([(0, b"k", b"after", ())]), partition=2).error_code == 0

        # What its coordinator knows is not hanging, however old it is; what it has ended is.
        found = [[topic, "2", producer_id, epoch]]
        assert hanging("--topic", topic) == found  # older than 15 minutes
        assert hanging("--topic", topic, "--partition", "2") == found
        assert hanging("--broker-id", "0", "--max-transaction-timeout", "0") == found
        assert hanging("--topic", topic, "--partition", "0") == []
        (row,) = [row for row in tools.ok(transactions, "list").rows() if row[0] == late]
        assert row[2:] == [producer_id, "CompleteCommit"]
        where = ["--topic", topic, "--partition", "2"]
        (row,) = [r for r in tools.ok(transactions, "describe-producers", *where).rows() if r[0] == producer_id]
        assert row[-1] == "0", "it began at this offset"

        # It holds readers back: nothing of its partition is stable.
        assert ends(tools, topic) == {"0": 2, "1": 0, "2": 0}
        tools.fails("Could not find any open", transactions, "abort", *where, "--start-offset", "1")
        tools.ok(transactions, "abort", *where, "--start-offset", "0")
        assert hanging("--topic", topic) == []
        assert ends(tools, topic) == {"0": 2, "1": 0, "2": 3}
        assert sorted(records(tools, topic, 2, "--isolation-level", "read_committed")) == ["after", "in time"]
        (row,) = [r for r in tools.ok(transactions, "describe-producers", *where).rows() if r[0] == producer_id]
        assert row[-1] == "None"

        # By the older way to name it, which a tool takes for brokers without DescribeProducers.
        answer = produce(wire, topic, late_batch(int(producer_id), int(epoch), 1), partition=0, transactional_id=late)
        assert answer.error_code == 0 and hanging("--topic", topic) == [[topic, "0", producer_id, epoch]]
        tools.ok(
            transactions, "abort", "--topic", topic, "--partition", "0", "--producer-id", producer_id,
            "--producer-epoch", epoch, "--coordinator-epoch", "0")
        assert hanging("--topic", topic) == []

        # An open one of a producer that has died is its coordinator's: it is ended by its id.
        del still_open
        where = ["--topic", topic, "--partition", "1"]
        assert hanging(*where) == []
        tools.fails("Failed to abort", transactions, "abort", *where, "--start-offset", "0")
        tools.ok(transactions, "forceTerminateTransaction", "--transactionalId", alive)
        assert described(alive)[4] == "Empty" and ends(tools, topic)["1"] == 2
        again = opened(late, 2)
        again.commit_transaction(30)


def ends(tools: KafkaTools, topic: str) -> dict[str, int]:
    """The last stable offset of each partition."""
    settings = {"bootstrap.servers": tools.bootstrap, "group.id": topic, "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    try:
        return {
            str(partition): consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)[1]
            for partition in range(3)}
    finally:
        consumer.close()


# --- the cluster ------------------------------------------------------------------------------------------------------


@whole
def test_reassignments_and_elections(tools: KafkaTools, topic: str, tmp_path: Path) -> None:
    plan, moved = tmp_path / "plan.json", tmp_path / "topics.json"
    reassign = ["kafka-reassign-partitions", "--reassignment-json-file", str(plan)]

    def replicas() -> list[str]:
        return re.findall(r"Replicas: (\S+)", tools.ok("kafka-topics", "--describe", "--topic", topic).output)

    moved.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    generated = tools.ok(
        "kafka-reassign-partitions", "--generate", "--topics-to-move-json-file", str(moved), "--broker-list", "2,1,0")
    plan.write_text(generated.output.split("Proposed partition reassignment configuration\n")[1])
    tools.ok(*reassign, "--execute")
    for wanted in ([[0, 1], [2, 1, 0]], [[1, 0, 2], [2, 1, 0]]):
        plan.write_text(json.dumps({"version": 1, "partitions": [
            {"topic": topic, "partition": number, "replicas": each} for number, each in enumerate(wanted)]}))
        tools.ok(*reassign, "--execute")
        wait_until(
            lambda: "still in progress" not in tools.ok(*reassign, "--verify").output,
            "end of the reassignment")
        assert replicas() == [",".join(map(str, each)) for each in wanted]
    assert "No partition reassignments found" in tools.ok("kafka-reassign-partitions", "--list").output
    tools.ok(*reassign, "--execute", "--additional")  # to where they are: no error
    tools.says("None of the .* reassignments are active", *reassign, "--cancel")
    election = ["kafka-leader-election", "--election-type", "preferred"]
    tools.ok(*election, "--topic", topic, "--partition", "0")
    assert "Leader: 1" in tools.ok("kafka-topics", "--describe", "--topic", topic).output
    tools.ok("kafka-leader-election", "--election-type", "unclean", "--topic", topic, "--partition", "0")
    tools.ok(*election, "--all-topic-partitions")
    tools.fails("UnknownTopicOrPartition", *election, "--topic", new_name(), "--partition", "0")


@whole
def test_a_running_reassignment_is_listed_verified_replaced_and_canceled(
    tools: KafkaTools, tmp_path: Path
) -> None:
    topic, plan = new_name(), tmp_path / "plan.json"
    tools.ok("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "0:1,1:0")
    producer = Producer({"bootstrap.servers": tools.bootstrap})
    for number in range(80):  # more than a replica fetches at once, before it is slowed down
        producer.produce(topic, os.urandom(100_000), partition=number % 2)
    assert producer.flush(30) == 0
    reassign = ["kafka-reassign-partitions", "--reassignment-json-file", str(plan)]

    def write(*targets: list[int]) -> None:
        plan.write_text(json.dumps({"version": 1, "partitions": [
            {"topic": topic, "partition": number, "replicas": each} for number, each in enumerate(targets)]}))

    def replicas() -> list[str]:
        return re.findall(r"Replicas: (\S+)", tools.ok("kafka-topics", "--describe", "--topic", topic).output)

    with Admin({"bootstrap.servers": tools.bootstrap}) as admin:
        admin.set_throttle(1000)  # so that both moves run for minutes
        try:
            write([0, 2], [2, 0])
            tools.ok(*reassign, "--execute")
            tools.says(f"{topic}-0: replicas: 0,2,1. adding: 2. removing: 1.", "kafka-reassign-partitions", "--list")
            assert tools.ok(*reassign, "--verify").output.count("is still in progress") == 2
            tools.fails("there is an existing assignment|Cannot execute", *reassign, "--execute")
            tools.ok(*reassign, "--execute", "--additional")  # what runs already
            write([0, 2, 1])
            tools.fails(
                "is getting 2 replicas, the target has 3", *reassign, "--execute", "--additional",
                "--disallow-replication-factor-change")
            write([0, 1], [2, 0])
            tools.ok(*reassign, "--execute", "--additional")  # the first one goes back, the second one goes on
            listed = tools.ok("kafka-reassign-partitions", "--list").output
            assert f"{topic}-1" in listed and f"{topic}-0" not in listed
            tools.ok(*reassign, "--cancel")
            assert "No partition reassignments found" in tools.ok("kafka-reassign-partitions", "--list").output
            assert [sorted(each.split(",")) for each in replicas()] == [["0", "1"], ["0", "1"]]
        finally:
            admin.set_throttle(0)


@whole
def test_elections_that_cannot_be(tools: KafkaTools, three: LocalCluster) -> None:
    topic, alone = new_name(), new_name()
    tools.ok("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "2:1,0:2")
    tools.ok("kafka-topics", "--create", "--topic", alone, "--replica-assignment", "2")
    elect = ["kafka-leader-election", "--election-type"]
    three.stop("broker-2")
    try:
        tools.fails("PreferredLeaderNotAvailable", *elect, "preferred", "--topic", topic, "--partition", "0")
        tools.fails("EligibleLeadersNotAvailable", *elect, "unclean", "--topic", alone, "--partition", "0")
        said = tools.ok(*elect, "unclean", "--topic", topic, "--partition", "0").output
        assert f"{topic}-0" in said and "Valid replica already elected" in said
    finally:
        three.start("broker-2")


@whole
def test_the_cluster(tools: KafkaTools, topic: str) -> None:
    assert "Cluster ID: " in tools.ok("kafka-cluster", "cluster-id").output
    endpoints = tools.ok("kafka-cluster", "list-endpoints").rows()
    assert sorted(row[0] for row in endpoints) == ["0", "1", "100", "101", "2"]
    versions = tools.ok("kafka-broker-api-versions").output
    assert versions.count("ConsumerGroupHeartbeat(68): 0 to 1") == 5
    features = tools.ok("kafka-features", "describe").output
    assert re.search(r"transaction.version\s.*FinalizedVersionLevel: 2", features)
    tools.ok("kafka-features", "upgrade", "--feature", "transaction.version=2")
    tools.fails("cannot be changed", "kafka-features", "downgrade", "--feature", "transaction.version=1")
    quorum = tools.ok("kafka-metadata-quorum", "describe", "--status").output
    assert re.search(r"LeaderId: +300", quorum)
    assert "Leader" in tools.ok("kafka-metadata-quorum", "describe", "--replication").output
    described = tools.ok("kafka-log-dirs", "--describe").output
    folders = json.loads(next(line for line in described.splitlines() if line.startswith("{")))
    kept = {broker["broker"]: {replica["partition"] for folder in broker["logDirs"] for replica in folder["partitions"]}
            for broker in folders["brokers"]}
    assert sorted(kept) == [0, 1, 2, 100, 101]
    assert all(f"{topic}-0" in kept[broker] for broker in range(3)) and kept[100] == kept[101] == set()


VALUES = 3000


@whole
@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_verifiable_tools_while_a_broker_a_coordinator_and_a_member_are_killed(
    cluster_factory: Callable[..., LocalCluster], protocol: str, tmp_path: Path
) -> None:
    retrying = tmp_path / "producer.properties"
    retrying.write_text("retries=2147483647\nenable.idempotence=true\n")  # the tool's own choice is to lose records
    cluster, name = cluster_factory(brokers=3, coordinators=2, settings=FAST), new_name()
    with contextlib.ExitStack() as stack:
        tools = stack.enter_context(kafka_tools(cluster.bootstrap))
        log = stack.enter_context(tempfile.TemporaryFile("w+"))

        def run(tool: str, *arguments: str) -> Verifiable:
            process = Verifiable(tool, cluster.bootstrap, ["--topic", name, *arguments], log)
            stack.callback(process.kill)
            return process

        def member() -> Verifiable:
            timeout = ["--session-timeout", "6000"] if protocol == "classic" else []
            return run("kafka-verifiable-consumer", "--group-id", name, "--group-protocol", protocol, *timeout)

        tools.ok("kafka-topics", "--create", "--topic", name, "--partitions", "4")
        members = [member(), member()]
        producer = run(
            "kafka-verifiable-producer", "--max-messages", str(VALUES), "--throughput", "300", "--repeating-keys", "16",
            "--command-config", str(retrying))

        def acknowledged() -> list[str]:
            return [event["value"] for event in producer.named("producer_send_success")]

        def consumed() -> Counter[tuple[int, int]]:
            return Counter(
                (part["partition"], offset)
                for each in members for event in each.named("records_consumed") for part in event["partitions"]
                for offset in range(part["minOffset"], part["maxOffset"] + 1))

        for threshold, victim in ((300, "broker-1"), (900, "coordinator-0"), (1500, ""), (2100, "coordinator-1")):
            wait_until(lambda threshold=threshold: len(acknowledged()) >= threshold, "acknowledgement", 90)  # type: ignore[misc]
            if victim:
                cluster.kill(victim)
                cluster.restart(victim)
            else:
                members[0].kill()
                members.append(member())
        wait_until(lambda: bool(producer.named("shutdown_complete")), "end of the producer", 90)
        assert producer.named("producer_send_error") == []
        assert sorted(map(int, acknowledged())) == list(range(VALUES))
        # Idempotence: a record whose answer was lost was sent again, and is there once.
        assert sorted(map(int, records(tools, name, VALUES))) == list(range(VALUES))
        ends = tools.ok("kafka-get-offsets", "--topic", name).output.split()
        assert sum(int(line.split(":")[2]) for line in ends) == VALUES

        def lag() -> list[str]:
            rows = tools.run("kafka-consumer-groups", "--describe", "--group", name).rows()
            return [row[5] for row in rows if row[:2] == [name, name]]

        wait_until(lambda: lag() == ["0"] * 4, f"position at the end of all, but lags of {lag()}", 60)
        assert len(consumed()) == VALUES, "a position moved beyond records that no member had"


# --- what is on the disk ----------------------------------------------------------------------------------------------


@whole
def test_the_files_of_a_log_are_read(tools: KafkaTools, cluster_factory: Callable[..., LocalCluster]) -> None:
    one, name = cluster_factory(brokers=1), new_name()
    with kafka_tools(one.bootstrap) as others:
        others.ok("kafka-topics", "--create", "--topic", name, "--config", "segment.bytes=1048576")
    producer = Producer({"bootstrap.servers": one.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    for number in range(12):
        producer.begin_transaction()
        for _ in range(20):
            producer.produce(name, os.urandom(8000), key=b"k%d" % number)
        assert producer.flush(30) == 0
        (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)(30)
    consumer = Consumer({"bootstrap.servers": one.bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    wait_until(lambda: consumer.poll(0.1) is not None, "record")
    consumer.commit(asynchronous=False)
    consumer.close()
    one.stop("broker-0")
    folder = one.folder.path / "broker-0" / f"{name}-0"

    def dump(path: Path, *arguments: str) -> str:
        return tools.ok("kafka-dump-log", "--files", str(path), *arguments, local=True).output

    files = {kind: sorted(folder.glob(f"*.{kind}")) for kind in ("log", "index", "timeindex", "txnindex", "snapshot")}
    assert len(files["log"]) > 1
    for kind, paths in files.items():
        assert paths, kind
        for path in paths:
            said = dump(path)
            assert not re.search("(?i)mismatch|invalid|corrupt|wrong", said), (path, said)
    for path in files["index"] + files["timeindex"]:
        assert re.search("passed sanity check|is empty", dump(path, "--index-sanity-check"))
        assert "Found" not in dump(path, "--verify-index-only")
    said = "".join(dump(path, "--deep-iteration", "--print-data-log") for path in files["log"])
    assert said.count("endTxnMarker: COMMIT") == 8 and said.count("endTxnMarker: ABORT") == 4
    assert len(re.findall(r"^\| offset: \d+ .* key: k\d+ ", said, re.MULTILINE)) == 240
    assert not re.search(r"isvalid: false", said)
    decoded = "".join(
        dump(path, "--offsets-decoder")
        for path in one.folder.path.glob("broker-0/__consumer_offsets-*/*.log") if path.stat().st_size > 200)
    assert f'"group":"{name}","topic":"{name}","partition":0' in decoded
    decoded = "".join(
        dump(path, "--transaction-log-decoder")
        for path in one.folder.path.glob("broker-0/__transaction_state-*/*.log") if path.stat().st_size > 200)
    assert f'"transactionalId":"{name}"' in decoded or f"transactional_id={name}" in decoded, decoded[:2000]
