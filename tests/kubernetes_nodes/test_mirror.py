"""A Mirror on machines: its copiers are killed while they copy from another cluster, and each record is copied once."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import end_cluster, start_cluster
from copying.world import Writer, is_copied, make_topic
from hapax.client import Admin
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from hapax_kube.cluster import GATEWAY, KubeCluster
from hapax_kube.tools import CHART, Release
from hapax_operator.mirror_pods import MIRROR
from integration.waiting import until

pytestmark = pytest.mark.timeout(600)

TEAM = "team-mirror"
SOURCE = f"{GATEWAY}:31500"
TOPIC, COPY, PARTITIONS = "orders", f"{TEAM}.orders", 4
RESOURCE: dict[str, Any] = {
    "apiVersion": "hapax.dev/v1alpha2", "kind": "Mirror", "metadata": {"name": "orders", "namespace": TEAM},
    "spec": {"source": {"bootstrapServers": SOURCE}, "topics": ["ord*"], "prefix": f"{TEAM}.", "replicas": 2,
             "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}}}


@pytest.fixture
def source(cluster: KubeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Another cluster, beside the Kubernetes cluster, which pods reach."""
    for name in os.environ:
        if name.startswith("HAPAX_KUBE_"):  # its processes would take these for settings
            monkeypatch.delenv(name)
    made = start_cluster(tmp_path / "source", brokers=1, settings=[
        f"listeners=OUTSIDE://{SOURCE}+node.id", "listener.security.protocol.map=OUTSIDE:PLAINTEXT"])
    yield made
    end_cluster(made)


@pytest.fixture
def team(release: Release) -> Iterator[str]:
    tools = release.tools

    def allow(*namespaces: str) -> None:
        tools.helm("upgrade", release.name, str(CHART), "--namespace", release.namespace, "--reuse-values",
                   "--set-json", f"mirrors.namespaces={json.dumps(namespaces)}")

    tools.kubectl("create", "namespace", TEAM)
    allow(TEAM)
    yield TEAM
    tools.kubectl("-n", TEAM, "delete", "mirrors", "--all", timeout_s=60)
    allow()
    tools.kubectl("delete", "namespace", TEAM, "--wait=false")


async def test_a_mirror_copies_each_record_once_while_its_copiers_are_killed(
    cluster: KubeCluster, release: Release, outside: str, source: LocalCluster, team: str, figures: dict[str, float]
) -> None:
    tools, began = release.tools, time.monotonic()

    def copiers() -> list[str]:
        found = tools.get("pods", "-n", team, "-l", MIRROR)["items"]
        return [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]

    async def become(what: str) -> None:
        await asyncio.to_thread(
            tools.kubectl, "-n", team, "wait", "mirror/orders", f"--for={what}", "--timeout=90s")

    async def copied() -> int:
        async with Admin({"bootstrap.servers": outside}) as admin:
            parts = [TopicPartition(COPY, PartitionIndex(number)) for number in range(PARTITIONS)]
            return sum(each.high_watermark for each in (await admin.partition_offsets(parts)).values())

    async def goes_on() -> None:
        before = await copied()

        async def more() -> bool:
            return await copied() > before + 50

        await until(more, "further records", 40)

    await make_topic(source.bootstrap, TOPIC, PARTITIONS)
    writer = Writer(source.bootstrap, [(TOPIC, PARTITIONS)])
    writing = asyncio.create_task(writer.run(pause_s=0.01))
    await asyncio.to_thread(tools.kubectl, "apply", "-f", "-", text=json.dumps(RESOURCE))
    await become("condition=Ready")
    figures["a Mirror with two copiers is ready"] = time.monotonic() - began
    first, second = await asyncio.to_thread(copiers)
    await asyncio.to_thread(cluster.kill_container, team, first, "copier")
    await goes_on()
    await asyncio.to_thread(tools.kubectl, "-n", team, "delete", "pod", second, "--grace-period=0", "--force")
    await goes_on()
    await become("condition=Ready")
    writer.stop()
    await writing

    async def complete() -> bool:
        return await is_copied(source.bootstrap, outside, TOPIC, COPY)

    await until(complete, "the same records on both sides", 60)
    await become("jsonpath={.status.lag.records}=0")
    await become("condition=Ready")
    status = (await asyncio.to_thread(tools.get, "mirror", "orders", "-n", team))["status"]
    assert status["topicCount"] == 1 and status["partitions"] == PARTITIONS, status
    assert status["group"] == f"hapax-copy.{TEAM}.orders" and status["recordsCopied"] > 0
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    assert (conditions["SourceReachable"], conditions["Blocked"]) == ("True", "False"), conditions
    assert second not in await asyncio.to_thread(copiers)
    figures["a Mirror copies while two copiers are killed"] = time.monotonic() - began
