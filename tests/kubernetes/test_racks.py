"""Racks from the labels of nodes: the operator with the chart's rights alone, a real API server, two real brokers.

There is no scheduler here, so the test binds the pods, of which only their names and nodes matter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka import KafkaAdminClient

from conftest import end_cluster, start_cluster
from hapax.codec.metadata import Keys, RacksRecord
from hapax.local.cluster import LocalCluster
from hapax.runtime.etcd import EtcdStore
from hapax_kube.api import ApiError, KubeApi
from hapax_kube.operator import Namespace, OperatorProcess
from integration.waiting import wait_until

NAME = "demo-hapax-broker"
LABEL = "example.com/row"
MACHINE = "rack-test-1"
"""Both brokers believe to run there."""
ELSEWHERE = "rack-test-2"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def hapax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("hapax"), brokers=2, settings=[f"broker.machine={MACHINE}"])
    yield cluster
    end_cluster(cluster)


@pytest.fixture
def machines(kube_api: KubeApi) -> Iterator[Callable[[str, str], None]]:
    """`machines(name, row)`: a node with this label; without it where `row` is empty."""
    made: set[str] = set()

    def label(name: str, row: str) -> None:
        if name not in made:
            kube_api.create("/api/v1/nodes", {"metadata": {"name": name}})
            made.add(name)
        kube_api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {LABEL: row or None}}})

    yield label
    for name in made:
        kube_api.delete(f"/api/v1/nodes/{name}")


class Pods:
    def __init__(self, namespace: Namespace, labels: dict[str, str]) -> None:
        self._api, self._path = namespace.api, f"/api/v1/namespaces/{namespace.name}/pods"
        self._labels = labels

    def bind(self, ordinal: int, machine: str) -> None:
        self._api.create(self._path, {
            "metadata": {"name": f"{NAME}-{ordinal}", "labels": self._labels},
            "spec": {"nodeName": machine, "containers": [{"name": "broker", "image": "none"}]}})

    def end(self, ordinal: int) -> None:
        try:
            self._api.call("DELETE", f"{self._path}/{NAME}-{ordinal}", {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.code != 404:
                raise


async def stored(hapax: LocalCluster) -> RacksRecord:
    state = hapax.status()
    store = EtcdStore([f"127.0.0.1:{state.process('etcd').port}"])
    try:
        found = await store.get(Keys(state.cluster_id).racks)
        assert found is not None
        return RacksRecord.decode(found.value)
    finally:
        await store.close()


def test_each_broker_has_the_rack_of_its_node_and_a_condition_names_those_without(
    namespace: Namespace, render: Callable[..., list[dict[str, Any]]], hapax: LocalCluster, tmp_path: Path,
    start_operator: Callable[..., OperatorProcess], machines: Callable[[str, str], None],
) -> None:
    objects = render(
        f'operator.watchNamespaces=["{namespace.name}"]', f'broker.rack.topologyKey="{LABEL}"', "broker.replicas=2",
        namespace=namespace.name)
    given = tmp_path / "objects.yaml"
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    given.write_text(yaml.safe_dump_all(
        each for each in objects
        if each["kind"] in kinds or (each["kind"], each["metadata"]["name"]) == ("StatefulSet", NAME)))
    done = namespace.api.kubectl("apply", "-f", str(given))
    assert done.returncode == 0, done.stderr
    (workload,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", NAME))
    pods = Pods(namespace, workload["spec"]["selector"]["matchLabels"])
    machines(MACHINE, "")
    for ordinal in (0, 1):
        pods.bind(ordinal, MACHINE)
    operator = start_operator(
        namespace, kubeconfig=namespace.api.kubeconfig_of(namespace.name, "demo-hapax-operator"), brokers=NAME,
        more=("--rack-label", LABEL))

    def told() -> tuple[str, str]:
        found = namespace.get("brokerpools", NAME).get("status", {}).get("conditions", ())
        return next(((each["reason"], each["message"]) for each in found if each["type"] == "RacksKnown"), ("", ""))

    def racks() -> set[str]:
        return {each["rack"] for each in admin.describe_cluster()["brokers"] if each["broker_id"] < 100}

    with contextlib.closing(KafkaAdminClient(bootstrap_servers=hapax.bootstrap)) as admin:
        wait_until(lambda: namespace.exists("brokerpools", NAME), "pool", 60)
        unknown = "; ".join(f"{NAME}-{ordinal}: node {MACHINE} has no label {LABEL}" for ordinal in (0, 1))
        wait_until(lambda: told() == ("RackUnknown", unknown), "condition", 60)
        wait_until(lambda: namespace.ready(NAME, "brokerpools"), "brokers that serve without racks", 60)
        machines(MACHINE, "7")
        wait_until(lambda: racks() == {"7"} and told()[0] == "Labelled", "rack without a restart", 60)

        pods.end(1)
        pods.bind(1, ELSEWHERE)
        wait_until(
            lambda: told() == ("RackUnknown", f"{NAME}-1: node {ELSEWHERE} is not known"), "pod on another node", 60)
        machines(ELSEWHERE, "8")
        wait_until(lambda: told()[0] == "Labelled", "rack of the other node", 60)
    assert asyncio.run(stored(hapax)) == RacksRecord(LABEL, {MACHINE: "7", ELSEWHERE: "8"})
    operator.stop()
    for ordinal in (0, 1):
        pods.end(ordinal)
    namespace.api.kubectl("delete", "--wait=false", "-f", str(given))
