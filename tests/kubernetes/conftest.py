"""One Kubernetes API for all tests of this folder, a namespace and an operator process for each that asks.

Its binaries are built by `make kube-binaries`, which `.ci/run` does beforehand where there is a Go toolchain; without
them these tests skip and say so.
"""

from __future__ import annotations

import itertools
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import end_cluster, start_cluster
from hapax.local.cluster import LocalCluster
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT, NoKubernetes, find
from hapax_kube.operator import Namespace, OperatorProcess


@pytest.fixture(scope="session")
def kube_binaries() -> Path:
    try:
        found = find()
    except NoKubernetes as error:
        pytest.skip(str(error))
    if found is None:
        pytest.skip("no Kubernetes is built: `make kube-binaries` builds it where there is a Go toolchain")
    return found


@pytest.fixture(scope="session")
def kube_api(kube_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """The API server with the operator's resource definitions. Leave it as you found it."""
    api = KubeApi(kube_binaries, tmp_path_factory.mktemp("kube"))
    try:
        yield api.start().with_definitions(ROOT / "charts" / "hapax" / "files" / "crds")
    finally:
        api.close()


@pytest.fixture
def namespace(kube_api: KubeApi) -> Iterator[Namespace]:
    """An empty namespace; deleted at the end, and what is in it goes with it."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kube_api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield Namespace(kube_api, name)
    kube_api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module")
def hapax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster for the operator, with a controller of its own."""
    cluster = start_cluster(tmp_path_factory.mktemp("hapax"), brokers=2)
    yield cluster
    end_cluster(cluster)


_REGISTRY = ["--set", "image.registry=registry.example"]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[dict[str, Any]]]
RELEASE = "demo"


@pytest.fixture(scope="session")
def helm(kube_binaries: Path) -> Helm:
    """Templates get a registry for images, as every installation has."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        given = [] if words[0] == "lint" or any("image.re" in word for word in words) else _REGISTRY
        return subprocess.run(
            [kube_binaries / "helm", *words, *given], capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """`render("etcd.replicas=1", namespace="n")`: all objects of the chart with these values."""

    def run(*values: str, namespace: str = "prod") -> list[dict[str, Any]]:
        sets = [word for value in values for word in ("--set-json", value)]
        done = helm("template", RELEASE, str(ROOT / "charts" / "hapax"), "--namespace", namespace, *sets)
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.load_all(done.stdout, _LOADER) if each]

    return run


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
_node_ids = itertools.count(310)

StartOperator = Callable[..., OperatorProcess]


@pytest.fixture
def start_operator(hapax: LocalCluster, kube_api: KubeApi, tmp_path: Path) -> Iterator[StartOperator]:
    """`start_operator(namespace)`, as admin or by the kubeconfig, and for the StatefulSet `brokers`, with `more`
    arguments; it is killed at the end. Each has a node id of its own, as pods have."""
    started: list[OperatorProcess] = []

    def start(
        namespace: Namespace, kubeconfig: Path | None = None, brokers: str = "", more: Sequence[str] = ()
    ) -> OperatorProcess:
        node_id = next(_node_ids)
        operator = OperatorProcess(
            hapax, kubeconfig or kube_api.kubeconfig, namespace.name, node_id, tmp_path / f"{node_id}", brokers,
            more)
        started.append(operator)
        operator.start()
        return operator

    yield start
    for operator in started:
        operator.close()


@pytest.fixture
def operator(start_operator: StartOperator, namespace: Namespace) -> OperatorProcess:
    return start_operator(namespace)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows what its operators wrote."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed and "tmp_path" in getattr(item, "funcargs", {}):
        for log in sorted(item.funcargs["tmp_path"].glob("*/operator.log")):  # type: ignore[attr-defined]
            report.sections.append((str(log.parent.name), log.read_text(errors="replace")[-4000:]))
    return report  # type: ignore[return-value]
