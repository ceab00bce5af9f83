"""The native client against Hapax: everything it promises against Kafka, and Hapax's own calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clients.native_suite import Cluster, NativeSuite, on  # noqa: F401 - a fixture
from conftest import end_cluster, start_cluster

from hapax.cli.local.cluster import LocalCluster


class Hapax:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap

    def crash(self) -> None:
        """SIGKILL to the broker, then up again."""
        self.cluster.kill("broker-0")
        self.cluster.start("broker-0")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hapax]:
    cluster = start_cluster(tmp_path_factory.mktemp("client-cluster"))
    yield Hapax(cluster)
    end_cluster(cluster)


class TestOnHapax(NativeSuite):
    pass
