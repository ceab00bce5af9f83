"""TransactionalProducers against a real API server and a real cluster: what they limit, and whom they fence."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from hapax.client import CommitToken, NewTopic
from hapax.client.blocking import Admin, Leases, Producer
from hapax.client.errors import HapaxError
from hapax.codec.metadata import Keys, PolicyRecord
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from hapax.runtime.etcd import EtcdStore
from hapax_kube.operator import ADOPT, Namespace, OperatorProcess
from integration.waiting import wait_until

PRODUCERS = "transactionalproducers"

pytestmark = pytest.mark.timeout(180)


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def stored_policies(hapax: LocalCluster) -> list[PolicyRecord]:
    state = hapax.status()

    async def read() -> list[PolicyRecord]:
        store = EtcdStore([f"127.0.0.1:{state.process('etcd').port}"])
        try:
            found, _ = await store.list(Keys(state.cluster_id).policies)
            return [PolicyRecord.decode(each.value) for each in found]
        finally:
            await store.close()

    return asyncio.run(read())


def refusal(call: Callable[[], object]) -> int:
    with pytest.raises(HapaxError) as caught:
        call()
    return caught.value.code


def refusal_text(call: Callable[[], object]) -> str:
    with pytest.raises(HapaxError) as caught:
        call()
    return str(caught.value)


def producer(hapax: LocalCluster, name: str, timeout_ms: int = 20_000) -> Producer:
    return Producer({
        "bootstrap.servers": hapax.bootstrap, "transactional.id": name, "transaction.timeout.ms": timeout_ms})


def committed(writer: Producer, topic: str) -> None:
    writer.begin()
    writer.send(topic, b"x")
    writer.commit()


def until_enforced(namespace: Namespace, name: str) -> None:
    wait_until(lambda: namespace.condition(PRODUCERS, name, "PolicyStored")[0] == "True", "policy", 60)


def test_coordinators_enforce_what_a_resource_allows_and_its_end_is_the_policy_s(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    allowed, other, name = unique("allowed"), unique("other"), unique("loader")
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        admin.create_topics([NewTopic(allowed, 1), NewTopic(other, 1)])
    namespace.producer("loader", transactionalId=name, allowedTopics=[allowed[:-1] + "*"],
                       maxTransactionTimeoutSeconds=30)
    until_enforced(namespace, "loader")
    assert refusal(lambda: producer(hapax, name, 40_000).start()) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    with producer(hapax, name) as writer:
        committed(writer, allowed)
        writer.begin()
        assert refusal(lambda: writer.send(other, b"x").result(30)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        writer.abort()
        committed(writer, allowed)  # it can go on
        namespace.patch(PRODUCERS, "loader", allowedTopics=[allowed, other])
        until_enforced(namespace, "loader")
        committed(writer, other)
        namespace.patch(PRODUCERS, "loader", allowedTopics=[allowed])
        until_enforced(namespace, "loader")

        operator.kill()
        namespace.delete(PRODUCERS, "loader")
        assert not namespace.exists(PRODUCERS, "loader")  # it waits for no operator
        writer.begin()
        assert refusal(lambda: writer.send(other, b"x").result(30)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        writer.abort()
        operator.start()
        wait_until(lambda: not any(each.transactional_id == name for each in stored_policies(hapax)), "its end", 60)
        committed(writer, other)


def test_the_oldest_resource_of_an_id_counts_and_the_next_follows(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    prefix = unique("team")
    namespace.producer("older", transactionalIdPrefix=prefix, maxTransactionTimeoutSeconds=10)
    until_enforced(namespace, "older")
    wait_until(lambda: _is_older(namespace, "older"), "another second")
    namespace.producer("younger", transactionalId=f"{prefix}-a", maxTransactionTimeoutSeconds=100)
    wait_until(lambda: namespace.condition(PRODUCERS, "younger") == ("False", "ResourceConflict"), "conflict", 60)
    assert "ResourceConflict" in namespace.events()
    assert refusal(lambda: producer(hapax, f"{prefix}-a").start()) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    namespace.delete(PRODUCERS, "older")
    until_enforced(namespace, "younger")
    wait_until(lambda: namespace.condition(PRODUCERS, "younger")[0] == "True", "its turn", 60)
    producer(hapax, f"{prefix}-a").start().close()


def test_an_id_that_is_in_use_is_fenced_and_limited_only_once_it_is_adopted(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    topic, name = unique("payments"), unique("theirs")
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    with producer(hapax, name) as writer:
        committed(writer, topic)
        namespace.producer("loader", transactionalId=name, fence=1, allowedTopics=["nothing"], onHanging="Abort")
        namespace.producer("all", transactionalIdPrefix=name[:-1], allowedTopics=["nothing"])
        for resource in ("loader", "all"):
            wait_until(lambda: namespace.condition(PRODUCERS, resource) == ("False", "NotAdopted"), "condition", 60)  # noqa: B023
        assert not stored_policies(hapax) or all(each.transactional_id != name for each in stored_policies(hapax))
        assert "state" not in status(namespace) and "NotAdopted" in namespace.events()
        committed(writer, topic)
        namespace.delete(PRODUCERS, "all")
        namespace.annotate(PRODUCERS, "loader", adopt="true")
        wait_until(lambda: status(namespace).get("fenced") == 1, "fence", 60)
        namespace.annotate(PRODUCERS, "loader", adopt=None)
        until_enforced(namespace, "loader")
        assert refusal(lambda: committed(writer, topic)) != 0
        namespace.patch(PRODUCERS, "loader", fence=2)
        wait_until(lambda: status(namespace).get("fenced") == 2, "second fence, without the annotation", 60)


def test_an_id_gets_its_identity_and_the_status_tells_how_it_fares(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    topic, name = unique("payments"), unique("loader")
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    namespace.producer("loader", transactionalId=name)
    wait_until(lambda: status(namespace).get("state") == "Empty", "its identity", 60)
    made = status(namespace)
    assert made["producerId"] >= 0 and "holder" not in made and "IdentityMade" in namespace.events()
    with producer(hapax, name) as first:
        assert first.identity.producer_id == made["producerId"]
        first.begin()
        first.send(topic, b"x")
        first.commit(CommitToken("q", 7, records=1, allow_unknown_history=True))
        wait_until(lambda: status(namespace).get("lastOutcome", {}).get("result") == "Commit", "outcome", 60)
        shown = status(namespace)
        assert (shown["lastToken"]["scope"], shown["lastToken"]["value"], shown["lastToken"]["records"]) == ("q", 7, 1)
        assert "127.0.0.1" in shown["holder"] and "fencedBy" not in shown  # nobody held it before

        with producer(hapax, name) as second:
            wait_until(lambda: "fencedBy" in status(namespace), "fencing", 60)
            by = status(namespace)["fencedBy"]
            assert (by["cause"], by["fenced"]) == ("Initialized", shown["holder"])
            wait_until(lambda: "InstanceFenced" in namespace.events(), "Event", 60)
            second.begin()
            second.send(topic, b"y")
            second.flush()
            namespace.patch(PRODUCERS, "loader", fence=1)
            wait_until(lambda: status(namespace).get("fenced") == 1, "fence", 60)
            told = refusal_text(lambda: second.commit())
            assert f"by hapax-operator for {namespace.name}/loader (requested by spec.fence)" in told
        wait_until(lambda: "hapax-operator" in status(namespace)["fencedBy"]["by"], "who fenced", 60)
        assert status(namespace)["lastOutcome"]["result"] == "Abort" and "fencing" not in status(namespace)


def test_a_lease_is_taken_kept_and_shown_and_its_holder_never_fenced(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    topic, name = unique("files"), unique("lease")
    here = {"bootstrap.servers": hapax.bootstrap}
    with Admin(here) as admin, Leases(here) as leases:
        admin.create_topics([NewTopic(topic, 2)])
        namespace.producer("files", lease={"name": name, "partitions": [f"{topic}-0"], "expireSeconds": 30})
        wait_until(lambda: namespace.condition(PRODUCERS, "files") == ("True", "Leased"), "lease", 60)
        shown = status(namespace, "files")
        assert (shown["state"], shown["producerEpoch"], shown["lease"]["holder"]) == ("Leased", 0, "hapax-operator")
        resumed = leases.take(
            name, [TopicPartition(topic, PartitionIndex(0))], expire_ms=30_000, holder="me",
            resume=(shown["producerId"], shown["producerEpoch"]))
        with Producer({"bootstrap.servers": hapax.bootstrap}, start_from=resumed.start_from()) as writer:
            writer.send(topic, b"x", partition=0).result(30)
            namespace.patch(PRODUCERS, "files", lease={"partitions": [f"{topic}-0", f"{topic}-1"]})
            wait_until(lambda: status(namespace, "files")["lease"].get("partitionCount") == 2, "second partition", 60)
            wait_until(lambda: status(namespace, "files")["lease"].get("records") == 1, "progress", 60)
            expires = status(namespace, "files")["lease"]["expiresAt"]
            wait_until(lambda: status(namespace, "files")["lease"]["expiresAt"] > expires, "renewal", 60)
            writer.send(topic, b"y", partition=0).result(30)  # it is still the holder
        assert status(namespace, "files")["lease"]["holder"] == "me"
        namespace.producer("other", annotations=ADOPT, lease={"name": name, "partitions": [f"{topic}-0"]})
        wait_until(
            lambda: namespace.condition(PRODUCERS, "other") == ("False", "ResourceConflict"), "conflict with the older")
        assert "lease" not in status(namespace, "other")
        namespace.delete(PRODUCERS, "files")
        wait_until(lambda: namespace.condition(PRODUCERS, "other") == ("True", "Leased"), "heir", 60)
        assert status(namespace, "other")["lease"]["holder"] == "me", "it still holds it: nobody was fenced"
        assert status(namespace, "other")["producerEpoch"] == 0 and "LeaseTaken" in namespace.events()


def status(namespace: Namespace, name: str = "loader") -> dict[str, Any]:
    found: dict[str, Any] = namespace.get(PRODUCERS, name).get("status", {})
    return found


def _is_older(namespace: Namespace, name: str) -> bool:
    """Creation times are whole seconds: whether a resource made now is certainly the younger one."""
    made: dict[str, Any] = namespace.producer(probe := unique("probe"), transactionalId=probe)
    namespace.delete(PRODUCERS, probe)
    created: str = namespace.get(PRODUCERS, name)["metadata"]["creationTimestamp"]
    return made["metadata"]["creationTimestamp"] > created
