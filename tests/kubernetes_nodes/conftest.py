"""A Kubernetes whose pods run, and Hapax installed on it by the chart: `make kube-test`.

On a cluster that is there (KUBECONFIG), or on the tests' own, in a world of its own; only that one's nodes can be
crashed, frozen and cut off. In any other way of running the tests, these skip.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hapax.client import HapaxError
from hapax.client.blocking import Admin
from hapax_kube.binaries import ROOT, build
from hapax_kube.cluster import KubeCluster
from hapax_kube.images import HAPAX, build_images
from hapax_kube.page import Page, seconds_until
from hapax_kube.tools import Release, Tools
from hapax_kube.world import FOLDER

HERE: Final = Path(__file__).parent
NAMESPACE: Final = "hapax"
NODES: Final = 3
FIRST_PORT: Final = 30_200
VALUES: Final = Path(os.environ.get("HAPAX_KUBE_VALUES", HERE / "values.yaml"))
_figures: dict[str, float] = {}


@pytest.fixture(scope="session")
def figures() -> dict[str, float]:
    """Seconds by what took them; shown at the end of the run."""
    return _figures


@pytest.fixture(scope="session")
def own_cluster(figures: dict[str, float]) -> Iterator[KubeCluster | None]:
    """The tests' own; None where there is another one."""
    if FOLDER not in os.environ:
        if not os.environ.get("HAPAX_KUBE_EXTERNAL"):
            pytest.skip("pods need a cluster with nodes: `make kube-test`")
        yield None
        return
    folder = Path(os.environ[FOLDER])
    began = time.monotonic()
    cluster = KubeCluster(folder, folder.name, build(), list(build_images().values()), NODES)
    try:
        cluster.start()
        figures[f"a Kubernetes with {NODES} nodes is ready"] = time.monotonic() - began
        yield cluster
    except BaseException:
        for name, text in cluster.logs().items():
            print(f"--- {name}\n{text}")
        raise
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def tools(own_cluster: KubeCluster | None) -> Tools:
    if own_cluster is not None:
        return own_cluster.tools
    found = Tools(build(), Path(os.environ["KUBECONFIG"]))
    assert found.get("nodes")["items"], "the cluster of KUBECONFIG has no nodes, so no pod can run there"
    return found


@pytest.fixture
def cluster(own_cluster: KubeCluster | None) -> KubeCluster:
    """One whose machines may be harmed. Leave it whole."""
    if own_cluster is None:
        pytest.skip("only the tests' own cluster has machines that may be harmed: unset KUBECONFIG")
    return own_cluster


@pytest.fixture(scope="session")
def page(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """docs/kubernetes.md, whose commands find there what they name."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copy(VALUES, folder / "values.yaml")
    return Page(
        ROOT / "docs" / "kubernetes.md", tools, folder, IMAGE=os.environ.get("HAPAX_KUBE_IMAGE", HAPAX))


@pytest.fixture(scope="session")
def release(tools: Tools, page: Page, figures: dict[str, float]) -> Iterator[Release]:
    """Hapax, installed once for all tests, as the page says: leave it whole."""
    installed = Release(tools, NAMESPACE, VALUES)
    try:
        said = page.follow("Installing")
        figures["helm install until every pod is ready"] = seconds_until(said, "helm -n hapax test")
        assert "were read once" in said, said
        yield installed
    finally:
        if FOLDER not in os.environ:  # what the tests' own cluster had ends with it
            installed.uninstall()


@pytest.fixture(scope="session")
def first_port(release: Release) -> str | None:
    """Where clients outside begin: a port of any machine; None: it cannot be reached from here."""
    (address, *_) = (
        each["address"] for each in release.tools.get("nodes")["items"][0]["status"]["addresses"]
        if each["type"] == "InternalIP")
    bootstrap = f"{address}:{FIRST_PORT}"
    try:
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.list_topics()
    except HapaxError:  # whoever answers there is no broker
        return None
    return bootstrap


@pytest.fixture
def outside(first_port: str | None, own_cluster: KubeCluster | None) -> str:
    if first_port is None:
        assert own_cluster is None, "clients outside cannot connect"
        pytest.skip(f"port {FIRST_PORT} of the cluster's machines cannot be reached from here")
    return first_port


@pytest.fixture
def admin(outside: str) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": outside}) as admin:
        yield admin


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows the pods and the last events."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    found = getattr(item, "funcargs", {}).get("release")
    if report.failed and found is not None:
        report.sections.append(("pods", found.describe()))
        report.sections.append(("operators", found.operator_logs()))
    return report  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("seconds")
        for name, seconds in _figures.items():
            terminalreporter.write_line(f"{seconds:8.2f}  {name}")
        build_folder = HERE.parents[1] / "build"
        build_folder.mkdir(exist_ok=True)
        name = os.environ.get("HAPAX_KUBE_FIGURES", "kube-test.json")
        (build_folder / name).write_text(json.dumps(_figures, indent=1) + "\n")
