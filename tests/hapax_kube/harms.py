"""Ways to lose a broker: its process, or its node in three ways. Each fault is undone afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hapax_kube.cluster import KubeCluster
from hapax_kube.failover import Failovers, TakenOver, acting_controller
from hapax_kube.tools import Release


def broker_killed(cluster: KubeCluster, failovers: Failovers) -> TakenOver:
    release, victim = failovers.release, failovers.busiest()
    return failovers.measure(
        victim, lambda: cluster.kill_container(release.namespace, _broker(release, victim), "broker"))


def machine_frozen(cluster: KubeCluster, failovers: Failovers) -> TakenOver:
    return _machine(cluster, failovers, cluster.freeze, cluster.thaw)


def machine_cut_off(cluster: KubeCluster, failovers: Failovers) -> TakenOver:
    return _machine(cluster, failovers, cluster.cut, cluster.heal)


def controllers_machine_crashed(cluster: KubeCluster, failovers: Failovers) -> TakenOver:
    release = failovers.release
    acting = acting_controller(release)
    assert acting is not None, "there is no acting controller"
    node = acting["spec"]["nodeName"]
    failovers.wait_whole()  # so that the broker on this node leads partitions
    (victim,) = (
        int(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"])
        for pod in release.pods("broker") if pod["spec"]["nodeName"] == node
    )  # fmt: skip
    try:
        return failovers.measure(victim, lambda: cluster.crash(node))
    finally:
        cluster.boot(node)
        cluster.wait_ready(node)


HARMS: Final[dict[str, Callable[[KubeCluster, Failovers], TakenOver]]] = {
    "SIGKILL of a broker's container": broker_killed,
    "a machine frozen": machine_frozen,
    "a machine cut off": machine_cut_off,
    "the acting controller's machine crashed": controllers_machine_crashed,
}
"""Fault, as it is called in results -> function."""


def _broker(release: Release, number: int) -> str:
    return f"{release.name}-broker-{number}"


def _machine(
    cluster: KubeCluster, failovers: Failovers, harm: Callable[[str], float], undo: Callable[[str], None]
) -> TakenOver:
    release, victim = failovers.release, failovers.busiest()
    node = cluster.node_of(release.namespace, _broker(release, victim))
    try:
        return failovers.measure(victim, lambda: harm(node))
    finally:
        undo(node)
