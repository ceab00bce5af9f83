"""Load balancers for clients outside: the operator with the chart's rights alone, a real API server, a real store. The
test plays the cloud, which gives each Service an address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax.codec.metadata import Keys, OutsideRecord
from hapax.local.cluster import LocalCluster
from hapax.runtime.etcd import EtcdStore
from hapax_kube.operator import Namespace, OperatorProcess
from integration.waiting import wait_until

KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy",
         "ValidatingAdmissionPolicyBinding")
NAME = "demo-hapax-broker"
VALUES = ("external.enabled=true", 'external.type="LoadBalancer"', "security.enabled=false", "broker.replicas=2",
          "coordinator.replicas=1", "external.port=9443")

pytestmark = pytest.mark.timeout(240)


def told(hapax: LocalCluster) -> dict[int, str]:
    """What the store says that clients outside are told."""
    state = hapax.status()

    async def read() -> dict[int, str]:
        store = EtcdStore([f"127.0.0.1:{state.process('etcd').port}"])
        try:
            found = await store.get(Keys(state.cluster_id).outside)
        finally:
            await store.close()
        nodes = {} if found is None else OutsideRecord.decode(found.value).nodes
        return {int(node): f"{host}:{port}" for node, (host, port) in nodes.items()}

    return asyncio.run(read())


def test_clients_are_told_the_addresses_that_load_balancers_get(
    namespace: Namespace, render: Callable[..., list[dict[str, Any]]], start_operator: Callable[..., OperatorProcess],
    hapax: LocalCluster, tmp_path: Path,
) -> None:
    objects = render(*VALUES, f'operator.watchNamespaces=["{namespace.name}"]', namespace=namespace.name)
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(
        each for each in objects if each["kind"] in KINDS or each["metadata"]["name"].endswith("-external")
        or (each["kind"], each["metadata"]["name"]) == ("StatefulSet", NAME)))
    done = namespace.api.kubectl("apply", "-f", str(path))
    assert done.returncode == 0, done.stderr
    (pod,) = (each["spec"]["template"]["spec"] for each in objects
              if (each["kind"], each["metadata"]["name"]) == ("Deployment", "demo-hapax-operator"))
    words = pod["containers"][0]["args"]
    selector = words[words.index("--outside") + 1]
    operator = start_operator(
        namespace, kubeconfig=namespace.api.kubeconfig_of(namespace.name, "demo-hapax-operator"), brokers=NAME,
        more=("--outside", selector))
    services = f"/api/v1/namespaces/{namespace.name}/services"

    def gives(node: str, **address: str) -> None:
        namespace.api.patch(f"{services}/demo-hapax-{node}-external/status", {
            "status": {"loadBalancer": {"ingress": [address] if address else []}}})

    def condition() -> tuple[str, str]:
        return namespace.condition("brokerpools", NAME, "AddressesKnown")

    wait_until(lambda: namespace.exists("brokerpools", NAME) and condition() == ("False", "WaitingForLoadBalancer"),
               "condition", 90)
    assert told(hapax) == {}
    gives("broker-0", ip="192.0.2.1")
    gives("coordinator-100", hostname="lb-100.example")
    wait_until(lambda: told(hapax) == {0: "192.0.2.1:9443", 100: "lb-100.example:9443"}, "two addresses", 60)
    assert condition() == ("False", "WaitingForLoadBalancer")
    gives("broker-1", ip="192.0.2.2")
    wait_until(lambda: condition() == ("True", "Balanced"), "condition", 60)
    # An operator that starts later sees what changed meanwhile; what is gone for a moment stays. Of a Service that was
    # made again, the former one's address is not told, which may be another's now.
    operator.stop()
    gives("broker-0", ip="192.0.2.9")
    gives("broker-1")
    namespace.api.delete(f"{services}/demo-hapax-coordinator-100-external")
    done = namespace.api.kubectl("apply", "-f", str(path))
    assert done.returncode == 0, done.stderr
    operator = start_operator(
        namespace, kubeconfig=namespace.api.kubeconfig_of(namespace.name, "demo-hapax-operator"), brokers=NAME,
        more=("--outside", selector))
    wait_until(lambda: told(hapax) == {0: "192.0.2.9:9443", 1: "192.0.2.2:9443"}, "what is so now", 90)
    wait_until(lambda: condition() == ("False", "WaitingForLoadBalancer"), "condition", 60)
    # external.enabled=false: the Services are gone. If they come again, it is with other load balancers.
    operator.stop()
    start_operator(
        namespace, kubeconfig=namespace.api.kubeconfig_of(namespace.name, "demo-hapax-operator"), brokers=NAME)
    wait_until(lambda: told(hapax) == {}, "end of what was told", 60)
    namespace.api.kubectl("delete", "--wait=false", "-f", str(path))
