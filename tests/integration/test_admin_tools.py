"""Administration by kafka-python and librdkafka on a real cluster: what their users call, and what they are told."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaProducer
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType, KafkaAdminClient
from kafka.structs import TopicPartition

from hapax.local.cluster import LocalCluster

Make = Callable[..., LocalCluster]
TIMEOUT = 30.0
NO_REASSIGNMENT_IN_PROGRESS = 85
ELECTION_NOT_NEEDED = 84
NEWEST = (4, 3)
"""Kafka's release, as kafka-python infers it from the versions of calls."""


def test_administration_tools_are_answered(cluster_factory: Make) -> None:
    cluster = cluster_factory(brokers=2, coordinators=1)
    python = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    confluent = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    try:
        python.create_topics({"flights": {"num_partitions": 4, "replication_factor": 2}})
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
        producer.send("flights", bytes(1000), partition=0).get(TIMEOUT)
        producer.close()
        assert python._manager.broker_version == NEWEST

        folders = python.describe_log_dirs()
        sizes = {
            (topic["name"], each["partition_index"]): each["partition_size"]
            for broker in folders for folder in broker["log_dirs"] for topic in folder["topics"]
            for each in topic["partitions"]}
        assert sizes["flights", 0] > 1000

        quorum = python.describe_metadata_quorum()
        assert quorum["topics"][0]["partitions"][0]["leader_id"] >= 300

        resource = ConfigResource(ResourceType.TOPIC, "flights", set_config={"retention.ms": "1000"})
        for answer in confluent.alter_configs([resource]).values():
            answer.result(TIMEOUT)
        python.alter_configs([PythonResource(ConfigResourceType.TOPIC, "flights", {"segment.ms": "9000"})])
        (described,) = confluent.describe_configs([ConfigResource(ResourceType.TOPIC, "flights")]).values()
        configs: dict[str, ConfigEntry] = described.result(TIMEOUT)
        assert {name: configs[name].source for name in ("retention.ms", "segment.ms", "segment.bytes")} == {
            "retention.ms": 1, "segment.ms": 1, "segment.bytes": 5}

        pages = python.describe_topic_partitions(["flights"], response_partition_limit=3)
        assert "flights" in str(pages)
        (about,) = confluent.describe_topics(TopicCollection(["flights"])).values()
        assert len(about.result(TIMEOUT).partitions) == 4
        assert "transaction.version" in str(python.describe_features())
        assert "flights" in str(python.list_config_resources())

        assignment = [each.id for each in about.result(TIMEOUT).partitions[0].replicas]
        first = TopicPartition("flights", 0)
        assert python.alter_partition_reassignments({first: assignment}) == {first: None}, "it is there already"
        canceled = python.alter_partition_reassignments({first: None})
        assert canceled[first].errno == NO_REASSIGNMENT_IN_PROGRESS
        elected = python.elect_leaders(0, {"flights": [0]}, raise_errors=False)
        assert elected.replica_election_results[0].partition_result[0].error_code == ELECTION_NOT_NEEDED
    finally:
        python.close()
