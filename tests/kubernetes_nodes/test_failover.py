"""Machines and pods that die: others lead within seconds, whatever Kubernetes thinks of it, and all is whole again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hapax_kube.cluster import KubeCluster
from hapax_kube.failover import Failovers
from hapax_kube.harms import HARMS
from hapax_kube.tools import Release
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

LEADERS_S = 5.0


@pytest.fixture(scope="module")
def failovers(release: Release, own_cluster: KubeCluster | None) -> Iterator[Failovers]:
    if own_cluster is None:
        pytest.skip("clients of these tests are not in a pod, and reach pods of the tests' own cluster only")
    with Failovers(release, "failover") as made:
        yield made


@pytest.mark.parametrize("harm", HARMS)
def test_others_lead_within_seconds(
    cluster: KubeCluster, release: Release, failovers: Failovers, figures: dict[str, float], harm: str
) -> None:
    found = HARMS[harm](cluster, failovers)
    figures[f"{harm}: others lead"] = found.leaders_s
    figures[f"{harm}: all take writes"] = found.writes_s
    assert found.leaders_s < LEADERS_S
    release.wait_ready()
    failovers.wait_whole(balanced=False)  # that leaderships go back to where they were is seen elsewhere


def test_it_serves_without_an_operator_and_one_catches_up(release: Release, failovers: Failovers) -> None:
    release.tools.kubectl("scale", "deployment/hapax-operator", "-n", release.namespace, "--replicas=0")
    try:
        wait_until(lambda: not release.pods("operator"), "end of all operators", every_s=0.5)
        release.tools.kubectl("apply", "-n", release.namespace, "-f", "-", text=(
            "{apiVersion: hapax.dev/v1alpha1, kind: Topic, metadata: {name: later}, "
            "spec: {partitions: 3, replicationFactor: 3}}"))
        failovers.write(list(failovers.leaders()))
    finally:
        release.tools.kubectl("scale", "deployment/hapax-operator", "-n", release.namespace, "--replicas=2")
    release.tools.kubectl(
        "wait", "topic.hapax.dev/later", "-n", release.namespace, "--for=condition=Ready", "--timeout=120s",
        timeout_s=130)
    release.wait_ready()
