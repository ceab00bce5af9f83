"""What happens around an operator that lives on: others write the status, stores stand still."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hapax.local.cluster import LocalCluster
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.ports import MetadataUnavailable
from hapax_kube.api import KubeApi
from hapax_kube.operator import Namespace, OperatorProcess
from integration.waiting import wait_until

TOPICS = "topics"
CHANGED_S = 2.0
"""A watch of a resource whose definition has changed ends after a good second."""

pytestmark = pytest.mark.timeout(240)


def names(count: int) -> list[str]:
    return [f"t-{uuid.uuid4().hex[:8]}" for _ in range(count)]


def until_ready(namespace: Namespace, *topics: str) -> None:
    for name in topics:
        wait_until(lambda name=name: namespace.ready(name), f"ready topic {name}", 120)  # type: ignore[misc]


async def unanswered(port: int) -> None:
    store = EtcdStore([f"127.0.0.1:{port}"], 2.0)
    try:
        with pytest.raises(MetadataUnavailable):
            await store.get("anything")
    finally:
        await store.close()


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_others_write_the_status_and_the_metadata(namespace: Namespace, operator: OperatorProcess) -> None:
    (name,) = names(1)
    namespace.topic(name, deletionPolicy="Delete")
    path = namespace.path(TOPICS, name)
    for number in range(30):
        namespace.api.patch(f"{path}/status", {"status": {"partitions": 100 + number, "topicId": f"{number}"}})
        namespace.annotate(TOPICS, name, noise=str(number))
        if number == 15:
            namespace.patch(TOPICS, name, partitions=2)
    until_ready(namespace, name)
    wait_until(lambda: namespace.get(TOPICS, name)["status"]["partitions"] == 2, "its own word", 60)
    wait_until(lambda: len(namespace.get(TOPICS, name)["status"]["topicId"]) == 32, "its own id", 60)
    assert namespace.get(TOPICS, name)["metadata"]["finalizers"] == ["hapax.dev/delete-topic"]


def test_the_status_of_a_producer_says_that_its_coordinator_does_not_answer(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster
) -> None:
    (name,) = names(1)
    namespace.topic(name)
    until_ready(namespace, name)

    def shown() -> tuple[str, str]:
        return namespace.condition("transactionalproducers", name)

    coordinators = [each for each in hapax.status().processes if each.role == "coordinator"]
    try:
        for each in coordinators:
            os.kill(each.pid, signal.SIGSTOP)
        namespace.producer(name, transactionalId=name)
        wait_until(lambda: shown() == ("False", "NotAnswered"), "a word in the status", 60)
    finally:
        for each in coordinators:
            hapax.kill(each.name)  # one that goes on would end, because its registration is gone
            hapax.start(each.name)
    wait_until(lambda: shown()[0] == "True", "a producer that is described", 90)


def test_stores_stand_still(
    namespace: Namespace, operator: OperatorProcess, kube_api: KubeApi, hapax: LocalCluster
) -> None:
    first, second, third = names(3)
    namespace.topic(first)
    until_ready(namespace, first)
    etcd = hapax.status().process("etcd")
    with frozen(etcd.pid):  # for less than the nodes' leases
        namespace.topic(second, partitions=2)
        asyncio.run(unanswered(etcd.port))
    until_ready(namespace, second)
    with frozen(kube_api.pids()["etcd"]):
        assert kube_api.kubectl("get", "topics.hapax.dev", "-A", "--request-timeout=2s").returncode != 0
    namespace.topic(third)
    namespace.patch(TOPICS, first, partitions=3)
    until_ready(namespace, first, third)
    assert operator.process is not None and operator.process.poll() is None


def test_a_definition_is_changed_under_load(namespace: Namespace, operator: OperatorProcess, kube_api: KubeApi) -> None:
    """Each change ends the watches of what it defines, a moment later; what is made and changed meanwhile counts."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/topics.hapax.dev"
    former = kube_api.get(path)["spec"]["versions"]
    made = names(1)
    namespace.topic(made[0])
    until_ready(namespace, *made)
    try:
        for number in range(3):
            (version,) = copy.deepcopy(former)
            spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            spec["properties"][f"later{number}"] = {"type": "string", "description": "of a release to come"}
            later = {**version, "name": "v1beta1", "storage": False}
            kube_api.patch(path, {"spec": {"versions": [version, later] if number else [version]}})
            limit = time.monotonic() + CHANGED_S
            while time.monotonic() < limit:
                (name,) = names(1)
                namespace.topic(name)
                namespace.patch(TOPICS, made[-1], partitions=2)
                made.append(name)
                until_ready(namespace, *made[-2:])
    finally:
        kube_api.patch(path, {"spec": {"versions": former}})
    for name in made[:-1:5]:
        namespace.patch(TOPICS, name, partitions=3)
    until_ready(namespace, *made)
