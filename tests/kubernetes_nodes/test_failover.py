"""Machines and pods that die: others lead within seconds, whatever Kubernetes thinks of it, and all is whole again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hapax_kube.cluster import Cluster
from hapax_kube.failover import Failovers, TakenOver, acting_controller
from hapax_kube.tools import Release
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

LEADERS_S = 5.0


@pytest.fixture(scope="module")
def failovers(release: Release, own_cluster: Cluster | None) -> Iterator[Failovers]:
    if own_cluster is None:
        pytest.skip("clients of these tests are not in a pod, and reach pods of the tests' own cluster only")
    with Failovers(release, "failover") as made:
        yield made


def broker(release: Release, number: int) -> str:
    return f"{release.name}-broker-{number}"


def judge(found: TakenOver, what: str, figures: dict[str, float]) -> None:
    figures[f"{what}: others lead"] = found.leaders_s
    figures[f"{what}: all take writes"] = found.writes_s
    assert found.leaders_s < LEADERS_S


def wait_whole(release: Release, failovers: Failovers) -> None:
    """As the next one needs it; that leaderships go back to where they were is seen elsewhere."""
    release.wait_ready()
    failovers.wait_whole(balanced=False)


def test_a_broker_killed(
    cluster: Cluster, release: Release, failovers: Failovers, figures: dict[str, float]
) -> None:
    victim = failovers.busiest()
    found = failovers.measure(
        victim, lambda: cluster.kill_container(release.namespace, broker(release, victim), "broker"))
    judge(found, "SIGKILL of a broker's container", figures)
    wait_whole(release, failovers)


@pytest.mark.parametrize(
    ("what", "harm", "undo"), [("frozen", Cluster.freeze, Cluster.thaw), ("cut off", Cluster.cut, Cluster.heal)]
)
def test_a_machine_that_does_not_answer(
    cluster: Cluster, release: Release, failovers: Failovers, figures: dict[str, float], what: str,
    harm: Callable[[Cluster, str], float], undo: Callable[[Cluster, str], None],
) -> None:
    victim = failovers.busiest()
    node = cluster.node_of(release.namespace, broker(release, victim))
    try:
        found = failovers.measure(victim, lambda: harm(cluster, node))
    finally:
        undo(cluster, node)
    judge(found, f"a machine {what}", figures)
    wait_whole(release, failovers)


def test_the_machine_of_the_acting_controller_crashes(
    cluster: Cluster, release: Release, failovers: Failovers, figures: dict[str, float]
) -> None:
    acting = acting_controller(release)
    assert acting is not None
    node = acting["spec"]["nodeName"]
    failovers.wait_whole()  # so that its broker leads some
    (victim,) = (
        int(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"])
        for pod in release.pods("broker") if pod["spec"]["nodeName"] == node
    )  # fmt: skip
    try:
        found = failovers.measure(victim, lambda: cluster.crash(node))
    finally:
        cluster.boot(node)
    judge(found, "the acting controller's machine crashed", figures)
    cluster.wait_ready(node)
    wait_whole(release, failovers)


def test_it_serves_without_an_operator_and_one_catches_up(release: Release, failovers: Failovers) -> None:
    release.tools.kubectl("scale", "statefulset/hapax-operator", "-n", release.namespace, "--replicas=0")
    try:
        wait_until(lambda: not release.pods("operator"), "end of all operators", every_s=0.5)
        release.tools.kubectl("apply", "-n", release.namespace, "-f", "-", text=(
            "{apiVersion: hapax.dev/v1alpha1, kind: Topic, metadata: {name: later}, "
            "spec: {partitions: 3, replicationFactor: 3}}"))
        failovers.write(list(failovers.leaders()))
    finally:
        release.tools.kubectl("scale", "statefulset/hapax-operator", "-n", release.namespace, "--replicas=2")
    release.tools.kubectl(
        "wait", "topic.hapax.dev/later", "-n", release.namespace, "--for=condition=Ready", "--timeout=120s",
        timeout_s=130)
    release.wait_ready()
