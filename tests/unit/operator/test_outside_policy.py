"""Resources that the policy of namespaces forbids: they change nothing, hold up nobody, and show nothing."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.core.transaction.policy import StoredPolicy
from hapax_operator import plan_lease, plan_producer, plan_topic
from hapax_operator.namespace_policy import read_policy
from hapax_operator.plan_policy import must_store, policy_of
from hapax_operator.plan_producer import ProducerSeen
from hapax_operator.plan_spark import plan_spark
from hapax_operator.plan_topic import Create, PartitionSeen, TopicPlan, TopicSeen
from hapax_operator.resources import (
    FINALIZER,
    PAUSE,
    PRODUCERS,
    TOPICS,
    ProducerResource,
    TopicResource,
    read,
)
from hapax_operator.spark_work import of_section

POLICY = read_policy({"namespaces": [
    {"names": ["*"], "topics": ["{namespace}.*"], "transactionalIds": ["{namespace}.*"]},
    {"names": ["platform"], "topics": ["*"]}]})
WHY = "namespace shop may not own the topic orders"


def body(name: str, namespace: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    metadata = {
        "namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z", **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": spec, **more}


def topic(name: str, namespace: str = "shop", spec: dict[str, Any] | None = None, **more: Any) -> TopicResource:
    made = read(TOPICS, body(name, namespace, spec or {}, **more), POLICY)
    assert isinstance(made, TopicResource)
    return made


def producer(namespace: str = "shop", metadata: dict[str, Any] | None = None, **spec: Any) -> ProducerResource:
    made = read(PRODUCERS, body("p", namespace, spec, metadata=metadata or {}), POLICY)
    assert isinstance(made, ProducerResource)
    return made


SEEN = TopicSeen(name="orders", topic_id="id-1", partitions=[PartitionSeen(0, (0,), (0,))])


def shown(planned: TopicPlan) -> dict[str, str]:
    return {each.type: each.reason for each in planned.conditions}


def test_a_topic_of_another_namespace_gets_a_condition_and_not_the_topic() -> None:
    resource = topic("orders", spec={"partitions": 3, "deletionPolicy": "Delete"})
    assert resource.outside == WHY and not topic("shop.orders").outside
    for seen in (None, SEEN):
        planned = plan_topic.plan(resource, [resource], seen)
        assert (planned.actions, planned.finalizer) == ((), None)
        assert shown(planned) == {"Ready": "OutsidePolicy", "OutsidePolicy": "Namespace"}
        assert planned.status == {**dict.fromkeys(
            ("topicId", "partitions", "replicationFactor", "inSync", "partitionStates")), "topicName": "orders"}
        assert [each.reason for each in planned.notes] == ["OutsidePolicy"]


def test_it_does_not_count_against_a_newer_one_that_may() -> None:
    older, newer = topic("orders"), topic(
        "orders", "platform", metadata={"creationTimestamp": "2026-02-01T00:00:00Z"})
    planned = plan_topic.plan(newer, [older, newer], None)
    assert planned.actions == (Create(1, -1, {}),)
    assert plan_topic.plan(older, [older, newer], SEEN).actions == ()


@pytest.mark.parametrize("deleting", [True, False])
def test_a_topic_that_was_its_own_before_the_policy_changed_is_let_go(deleting: bool) -> None:
    times = {"deletionTimestamp": "2026-02-01T00:00:00Z"} if deleting else {}
    resource = topic(
        "orders", spec={"deletionPolicy": "Delete"}, status={"topicId": "id-1"},
        metadata={"finalizers": [FINALIZER], **times})
    planned = plan_topic.plan(resource, [resource], SEEN)
    assert (planned.actions, planned.finalizer) == ((), False)


def test_an_heir_outside_the_policy_keeps_no_topic_alive() -> None:
    """Otherwise whoever may make a Topic anywhere decides that other people's topics stay."""
    going = topic("shop.orders", spec={"deletionPolicy": "Delete"}, status={"ownedTopicId": "id-1"}, metadata={
        "finalizers": [FINALIZER], "deletionTimestamp": "2026-02-01T00:00:00Z"})
    foreign = topic("x", "pay", {"topicName": "shop.orders"})
    assert plan_topic.plan(going, [going, foreign], SEEN).actions == (plan_topic.Delete("id-1"),)


@pytest.mark.parametrize(("spec", "why"), [
    ({"transactionalId": "shop.loader"}, ""),
    ({"transactionalIdPrefix": "shop.l"}, ""),
    ({"transactionalId": "loader"}, "namespace shop may not own the transactional id loader"),
    ({"transactionalIdPrefix": "shop"}, "namespace shop may not own transactional ids that begin with shop"),
    ({"lease": {"name": "shop.files", "partitions": ["shop.orders-0"]}}, ""),
    ({"lease": {"name": "files", "partitions": ["shop.orders-0"]}}, "namespace shop may not own the lease files"),
    ({"lease": {"name": "shop.files", "partitions": ["shop.a-0", "pay.a-1"]}},
     "namespace shop may not own the topic pay.a, of which the lease has a partition"),
])
def test_which_producers_a_namespace_may_describe(spec: dict[str, Any], why: str) -> None:
    assert producer(**spec).outside == why


def test_a_foreign_id_gets_no_policy_is_not_fenced_and_is_not_shown() -> None:
    """Its policy would forbid the id's real owner to write."""
    resource = producer(transactionalId="loader", onHanging="Abort", fence=3, allowedTopics=["none"])
    assert policy_of(resource) is None and not must_store(resource, None)
    seen = [ProducerSeen("loader", 7, 1, "Ongoing", opened_ms=0, instance="i", holder="app")]
    planned = plan_producer.plan(resource, seen, 10**9)
    assert (planned.fences, planned.ensure, planned.intends) == ((), False, False)
    assert {each.type for each in planned.conditions} == {"Ready", "OutsidePolicy"}
    assert set(planned.status.values()) == {None}


def test_a_policy_from_before_is_taken_back_even_while_paused() -> None:
    before = ProducerResource(meta=producer(transactionalId="shop.x").meta, transactional_id="loader")
    policy = policy_of(before)
    assert policy is not None
    paused = producer(transactionalId="loader", metadata={"annotations": {PAUSE: "true"}})
    assert must_store(paused, StoredPolicy(policy, 1))


def test_a_foreign_lease_is_not_taken_and_holds_up_nobody() -> None:
    foreign = producer(lease={"name": "pay.files", "partitions": ["pay.a-0"]})
    planned = plan_lease.plan_lease(foreign, None, 0)
    assert planned.action is None and planned.conditions[0].reason == "OutsidePolicy"
    own = producer("pay", lease={"name": "pay.files", "partitions": ["pay.a-0"]},
                   metadata={"creationTimestamp": "2026-03-01T00:00:00Z"})
    assert plan_lease.owner_before(own, [foreign, own]) is None


def test_a_job_under_foreign_ids_is_not_started() -> None:
    resource = producer(transactionalId="loader", spark={
        "image": "i", "job": "j", "checkpoint": {"claimName": "c"}})
    planned = plan_spark(of_section(resource), True, [], [], 0)
    assert planned.step is None
    assert [(each.type, each.reason) for each in planned.conditions][:1] == [("SparkRunning", "OutsidePolicy")]
