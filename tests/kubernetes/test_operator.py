"""The operator as a process, against a real API server and a real cluster."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest

from hapax.client import NewTopic
from hapax.client.blocking import Admin, Producer
from hapax.codec.metadata import Keys, TopicRecord
from hapax.local.cluster import LocalCluster
from hapax.runtime.etcd import EtcdStore
from hapax_kube.api import KubeApi
from hapax_kube.operator import ADOPT, Namespace, OperatorProcess
from integration.waiting import wait_until

TOPICS, PRODUCERS = "topics", "transactionalproducers"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def admin(hapax: LocalCluster) -> Admin:
    return Admin({"bootstrap.servers": hapax.bootstrap})


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def partitions(admin: Admin, topic: str) -> int:
    """0: there is no such topic."""
    return next((len(each.partitions) for each in admin.list_topics() if each.name == topic), 0)


def stored(hapax: LocalCluster, topic: str) -> TopicRecord | None:
    state = hapax.status()

    async def read() -> TopicRecord | None:
        store = EtcdStore([f"127.0.0.1:{state.process('etcd').port}"])
        try:
            found = await store.get(Keys(state.cluster_id).topic(topic))
            return None if found is None else TopicRecord.decode(found.value)
        finally:
            await store.close()

    return asyncio.run(read())


def stored_config(hapax: LocalCluster, topic: str) -> dict[str, str]:
    record = stored(hapax, topic)
    return {} if record is None else dict(record.config)


def until_ready(namespace: Namespace, name: str) -> None:
    wait_until(lambda: namespace.ready(name), f"ready topic {name}", 60)


def test_a_topic_is_made_grown_configured_and_shown(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    name = unique("orders")
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        namespace.topic(name, partitions=2, replicationFactor=2, config={"retention.ms": "3600000"})
        until_ready(namespace, name)
        assert partitions(admin, name) == 2
        namespace.patch(TOPICS, name, partitions=4, config={"retention.ms": "7200000", "segment.bytes": "65536"})
        until_ready(namespace, name)
        assert partitions(admin, name) == 4
        status = namespace.get(TOPICS, name)["status"]
        assert (status["topicName"], status["partitions"], status["replicationFactor"]) == (name, 4, 2)
        assert status["configured"] == ["retention.ms", "segment.bytes"]
        assert {each["leader"] for each in status["partitionStates"]} <= {0, 1}
        namespace.patch(TOPICS, name, replicationFactor=1)
        wait_until(
            lambda: namespace.get(TOPICS, name)["status"].get("replicationFactor") == 1, "topic with one replica", 60)
        assert {"TopicCreated", "PartitionsAdded", "Configured", "ReplicasChanging"} <= namespace.events()


def test_drift_is_mended_and_what_others_configured_stays(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    name = unique("drift")
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 3, config={"max.message.bytes": "5000"})])
        namespace.topic(name, annotations=ADOPT, partitions=3, config={"retention.ms": "1000000"})
        until_ready(namespace, name)
        first = namespace.get(TOPICS, name)["status"]["topicId"]
        admin.alter_topic_config(name, {"retention.ms": "5"})

        mended = {"max.message.bytes": "5000", "retention.ms": "1000000"}
        wait_until(lambda: stored_config(hapax, name) == mended, "mended configuration", 30)
        namespace.patch(TOPICS, name, config={"segment.ms": "60000", "retention.ms": None})
        until_ready(namespace, name)
        assert stored_config(hapax, name) == {"max.message.bytes": "5000", "segment.ms": "60000"}
        admin.delete_topics([name])
        wait_until(
            lambda: namespace.get(TOPICS, name)["status"].get("topicId") not in (None, first), "new topic", 60)
        until_ready(namespace, name)
        assert partitions(admin, name) == 3
        assert "TopicGone" in namespace.events()


def test_the_cluster_s_own_refusal_becomes_a_condition(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    name = unique("wide")
    namespace.topic(name, replicationFactor=9)
    wait_until(
        lambda: namespace.condition(TOPICS, name) == ("False", "InvalidReplicationFactor"), "condition of the refusal")
    body = namespace.get(TOPICS, name)
    (ready,) = (each for each in body["status"]["conditions"] if each["type"] == "Ready")
    assert "larger than the number of live brokers, 2" in ready["message"]
    namespace.patch(TOPICS, name, replicationFactor=2)
    until_ready(namespace, name)


def test_the_oldest_wins_and_the_next_follows(namespace: Namespace, operator: OperatorProcess) -> None:
    name = unique("shared")
    namespace.topic("first", topicName=name, partitions=2)
    until_ready(namespace, "first")
    namespace.topic("second", annotations=ADOPT, topicName=name, partitions=5)
    wait_until(lambda: namespace.condition(TOPICS, "second") == ("False", "ResourceConflict"), "conflict")
    assert namespace.get(TOPICS, "first")["status"]["partitions"] == 2
    namespace.delete(TOPICS, "first")
    until_ready(namespace, "second")
    assert namespace.get(TOPICS, "second")["status"]["partitions"] == 5


def test_a_topic_that_exists_is_changed_and_deleted_only_once_it_is_adopted(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    name = unique("theirs")
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 3)])
        for resource in ("loses", "takes"):
            namespace.topic(resource, topicName=name, partitions=5, deletionPolicy="Delete")
            wait_until(lambda: namespace.condition(TOPICS, resource) == ("False", "NotAdopted"), "condition")  # noqa: B023
            assert not namespace.get(TOPICS, resource)["metadata"].get("finalizers")
            if resource == "loses":
                namespace.delete(TOPICS, resource)
                wait_until(lambda: not namespace.exists(TOPICS, "loses"), "end of the resource", 30)
        assert partitions(admin, name) == 3 and "NotAdopted" in namespace.events()
        namespace.annotate(TOPICS, "takes", adopt="true")
        until_ready(namespace, "takes")
        namespace.annotate(TOPICS, "takes", adopt=None)
        assert partitions(admin, name) == 5
        namespace.delete(TOPICS, "takes")
        wait_until(lambda: not namespace.exists(TOPICS, "takes"), "end of the resource", 30)
        assert partitions(admin, name) == 0


def test_what_was_adopted_before_an_upgrade_stays_adopted(
    namespace: Namespace, start_operator: Callable[..., OperatorProcess], hapax: LocalCluster
) -> None:
    """A status as the release before this one left it."""
    name = unique("former")
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 2)])
        record = stored(hapax, name)
        assert record is not None and not record.made_by
        topic_id = record.topic_id
        namespace.topic(name, partitions=4, deletionPolicy="Delete")
        namespace.api.patch(namespace.path(TOPICS, name) + "/status", {"status": {
            "topicName": name, "topicId": topic_id.hex(), "configured": []}})
        start_operator(namespace)
        until_ready(namespace, name)
        assert partitions(admin, name) == 4
        assert namespace.get(TOPICS, name)["status"]["ownedTopicId"] == topic_id.hex()


def test_pause_and_unmanaged_let_go(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    name = unique("paused")
    namespace.topic(name, annotations={"hapax.dev/pause": "true"}, partitions=2, deletionPolicy="Delete")
    wait_until(lambda: namespace.condition(TOPICS, name, "Paused") == ("True", "Annotated"), "pause")
    assert namespace.condition(TOPICS, name) == ("False", "Missing")
    namespace.annotate(TOPICS, name, pause=None)
    until_ready(namespace, name)
    namespace.patch(TOPICS, name, managed=False, partitions=7)
    wait_until(lambda: namespace.condition(TOPICS, name) == ("Unknown", "Unmanaged"), "unmanaged")
    namespace.delete(TOPICS, name)
    wait_until(lambda: not namespace.exists(TOPICS, name), "end of the resource", 30)
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        assert partitions(admin, name) == 2


@pytest.mark.parametrize(("policy", "left"), [("Retain", 2), ("Delete", 0)])
def test_the_deletion_policy_decides_about_the_records(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster, policy: str, left: int
) -> None:
    name = unique(policy.lower())
    namespace.topic(name, partitions=2, deletionPolicy=policy)
    until_ready(namespace, name)
    assert bool(namespace.get(TOPICS, name)["metadata"].get("finalizers")) == (policy == "Delete")
    namespace.delete(TOPICS, name)
    wait_until(lambda: not namespace.exists(TOPICS, name), "end of the resource", 30)
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        assert partitions(admin, name) == left


def test_a_namespace_goes_with_its_topics(
    kube_api: KubeApi, hapax: LocalCluster, start_operator: Callable[..., OperatorProcess]
) -> None:
    name = unique("going")
    kube_api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    namespace = Namespace(kube_api, name)
    start_operator(namespace)
    namespace.topic("kept", topicName=unique("kept"))
    namespace.topic("deleted", topicName=unique("deleted"), deletionPolicy="Delete")
    until_ready(namespace, "kept")
    until_ready(namespace, "deleted")
    kube_api.delete(f"/api/v1/namespaces/{name}")
    wait_until(lambda: not kube_api.exists(f"/api/v1/namespaces/{name}"), "end of the namespace", 60)


def test_an_operator_that_was_away_catches_up(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    grown, gone, made = unique("grown"), unique("gone"), unique("made")
    namespace.topic(grown)
    namespace.topic(gone, deletionPolicy="Delete")
    until_ready(namespace, grown)
    until_ready(namespace, gone)
    operator.kill()
    namespace.patch(TOPICS, grown, partitions=3)
    namespace.topic(made)
    namespace.delete(TOPICS, gone)
    assert namespace.exists(TOPICS, gone)  # its records wait for the operator
    operator.start()
    until_ready(namespace, grown)
    until_ready(namespace, made)
    wait_until(lambda: not namespace.exists(TOPICS, gone), "end of the resource", 60)
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        assert [partitions(admin, each) for each in (grown, gone, made)] == [3, 0, 1]
    assert operator.stop() == 0


def test_of_two_operators_one_reconciles_and_the_other_takes_over(
    namespace: Namespace, start_operator: Callable[..., OperatorProcess]
) -> None:
    first = start_operator(namespace)
    wait_until(lambda: "this operator is the leader and reconciles" in first.log(), "first operator")
    second = start_operator(namespace)
    wait_until(lambda: "standing by" in second.log(), "second operator")
    name = unique("led")
    namespace.topic(name)
    until_ready(namespace, name)
    assert first.stop() == 0
    namespace.patch(TOPICS, name, partitions=2)
    until_ready(namespace, name)
    assert "this operator is the leader and reconciles" in second.log()


def test_the_api_server_dies_and_is_back(
    namespace: Namespace, operator: OperatorProcess, kube_api: KubeApi, hapax: LocalCluster
) -> None:
    name, gone = unique("steady"), unique("gone")
    namespace.topic(name)
    namespace.topic(gone)
    until_ready(namespace, name)
    until_ready(namespace, gone)
    operator_pid = operator.process.pid if operator.process else 0
    kube_api.kill_server()
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:  # the cluster does not mind
        admin.create_topics([NewTopic(unique("meanwhile"), 1)])
    kube_api.start_server()
    namespace.patch(TOPICS, name, partitions=3)
    until_ready(namespace, name)
    assert operator.process is not None and operator.process.poll() is None and operator.process.pid == operator_pid


def test_a_transactional_producer_is_shown_and_never_fenced_by_looking(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    topic, name = unique("payments"), unique("loader")
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    namespace.producer("loader", transactionalId=name)
    wait_until(lambda: namespace.get(PRODUCERS, "loader").get("status", {}).get("state") == "Empty", "its identity")
    with Producer({"bootstrap.servers": hapax.bootstrap, "transactional.id": name}) as producer:
        producer.begin()
        producer.send(topic, b"one")
        producer.flush()
        wait_until(
            lambda: "openTransaction" in namespace.get(PRODUCERS, "loader")["status"], "open transaction", 60)
        status = namespace.get(PRODUCERS, "loader")["status"]
        assert (status["state"], status["openTransaction"]["partitions"]) == ("Ongoing", [f"{topic}-0"])
        assert status["transactionalId"] == name and status["producerId"] >= 0
        producer.commit()  # whoever looks does not fence
        producer.begin()
        producer.send(topic, b"two")
        producer.flush()
        epoch = status["producerEpoch"]
        namespace.patch(PRODUCERS, "loader", fence=1)
        wait_until(lambda: namespace.get(PRODUCERS, "loader")["status"].get("fenced") == 1, "fence", 60)
        body = namespace.get(PRODUCERS, "loader")["status"]
        assert body["lastFence"]["epoch"] > epoch
        with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
            producer.commit()
        producer.close()
    assert "ProducerFenced" in namespace.events()
