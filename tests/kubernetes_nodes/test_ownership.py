"""Resources own what they made, and nothing else; a BrokerPool that is made again takes the live number of brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax_kube.tools import Release
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

TEAM = "team-own"
TOPIC = f"{TEAM}.orders"
NAME = "hapax-broker"
WAIT = "--timeout=90s"


def topic(name: str, **spec: Any) -> str:
    return json.dumps({
        "apiVersion": "hapax.dev/v1alpha1", "kind": "Topic", "metadata": {"name": name, "namespace": TEAM},
        "spec": {"deletionPolicy": "Delete", **spec}})


@pytest.fixture
def team(release: Release) -> Iterator[str]:
    release.tools.kubectl("create", "namespace", TEAM)
    yield TEAM
    release.tools.kubectl("-n", TEAM, "delete", "topics.hapax.dev,transactionalproducers", "--all", timeout_s=120)
    release.tools.kubectl("delete", "namespace", TEAM, timeout_s=120)


def test_a_topic_that_exists_is_adopted_only_by_an_annotation(release: Release, admin: Admin, team: str) -> None:
    def exists() -> bool:
        return any(each.name == TOPIC for each in admin.list_topics())

    def become(resource: str, condition: str) -> None:
        release.tools.kubectl("-n", team, "wait", f"topic.hapax.dev/{resource}", f"--for=condition={condition}", WAIT)

    admin.create_topics([NewTopic(TOPIC, 2, 3)])
    release.tools.kubectl("apply", "-f", "-", text=topic("orders", topicName=TOPIC, partitions=2))
    become("orders", "NotAdopted")
    release.tools.kubectl("-n", team, "delete", "topic.hapax.dev/orders", timeout_s=90)
    assert exists(), "the resource had not made it"
    release.tools.kubectl("apply", "-f", "-", text=topic("orders", topicName=TOPIC, partitions=2))
    release.tools.kubectl("-n", team, "annotate", "topic.hapax.dev/orders", "hapax.dev/adopt=true")
    become("orders", "Ready")
    release.tools.kubectl("-n", team, "delete", "topic.hapax.dev/orders", timeout_s=90)
    wait_until(lambda: not exists(), "end of the adopted topic", 60, every_s=0.5)

    release.tools.kubectl("apply", "-f", "-", text=topic("others", topicName="team-else.orders"))
    become("others", "OutsidePolicy")


def test_a_pool_that_is_made_again_keeps_the_brokers(release: Release) -> None:
    space = ("-n", release.namespace)
    before = release.tools.get("brokerpool", NAME, *space)
    pods = {pod["metadata"]["uid"] for pod in release.pods("broker")}
    release.tools.kubectl(*space, "scale", "brokerpool/hapax-broker", "--replicas=3")
    release.tools.kubectl(*space, "delete", "brokerpool", NAME)

    def again() -> bool:
        words = ("get", "brokerpool", NAME, *space, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
        return release.tools.kubectl(*words) not in ("", before["metadata"]["uid"])

    wait_until(again, "another pool", 60, every_s=0.5)
    release.tools.kubectl(*space, "wait", "--for=condition=Ready", WAIT, f"brokerpool/{NAME}")
    assert release.tools.get("brokerpool", NAME, *space)["spec"]["replicas"] == 3
    assert {pod["metadata"]["uid"] for pod in release.pods("broker")} == pods


def test_a_producer_that_is_gone_leaves_no_policy(release: Release, team: str) -> None:
    producer = {"apiVersion": "hapax.dev/v1alpha1", "kind": "TransactionalProducer",
                "metadata": {"name": "loader", "namespace": team},
                "spec": {"transactionalId": f"{team}.loader", "allowedTopics": [f"{team}.a"]}}
    release.tools.kubectl("apply", "-f", "-", text=json.dumps(producer))
    release.tools.kubectl(
        "-n", team, "wait", "transactionalproducer/loader", "--for=condition=PolicyStored", WAIT)
    uid = release.tools.get("transactionalproducer", "loader", "-n", team)["metadata"]["uid"]

    def policies() -> str:
        return release.tools.kubectl(
            "-n", release.namespace, "exec", "hapax-etcd-0", "-c", "etcd", "--", "etcdctl", "get", "--prefix",
            "--keys-only", "/hapax/hapax/policies/")

    assert uid in policies()
    release.tools.kubectl("-n", team, "delete", "transactionalproducer/loader")
    wait_until(lambda: uid not in policies(), "end of its policy", 60, every_s=0.5)
