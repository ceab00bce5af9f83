"""One admin service beside the shared cluster, for the tests that leave both as they found them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from hapax.local.cluster import LocalCluster
from integration.admin_process import AdminProcess


@pytest.fixture(scope="session")
def rest(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    process = AdminProcess(cluster, tmp_path_factory.mktemp("admin")).start()
    yield process
    assert process.close() == 0, process.log.read_text()


@pytest.fixture
def topic(rest: AdminProcess) -> Iterator[str]:
    """A topic of the test's own with two partitions."""
    name = f"rest-{uuid.uuid4().hex[:12]}"
    assert rest.call("POST", "/v1/topics", {"name": name, "partitions": 2}).status == 201
    yield name
    rest.call("DELETE", f"/v1/topics/{name}")


@pytest.fixture
def cluster_bootstrap(cluster: LocalCluster) -> str:
    return cluster.bootstrap
