"""Volumes grow, as the page says. Folders of the machines do not, so the test reports as the storage's driver would."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hapax_kube.cluster import KubeCluster
from hapax_kube.page import Page
from hapax_kube.tools import Release

pytestmark = pytest.mark.timeout(600)

SELECTOR = "app.kubernetes.io/component=broker"


@contextmanager
def driver(release: Release) -> Iterator[list[str]]:
    """Gives each claim of a broker what it asks for. Yields the names of those that were given more."""
    grown: list[str] = []
    end = threading.Event()

    def give() -> None:
        tools, space = release.tools, ("-n", release.namespace)
        for claim in tools.get("pvc", *space, "-l", SELECTOR)["items"]:
            name, asked = claim["metadata"]["name"], claim["spec"]["resources"]["requests"]["storage"]
            if claim["status"].get("capacity", {}).get("storage") == "1Gi" != asked:
                capacity = {"capacity": {"storage": asked}}
                tools.kubectl("patch", "pv", claim["spec"]["volumeName"], "-p", json.dumps({"spec": capacity}))
                tools.kubectl("patch", "pvc", name, *space, "--subresource=status", "-p",
                              json.dumps({"status": capacity}))
                grown.append(name)

    def work() -> None:
        while not end.wait(1):
            give()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield grown
    finally:
        end.set()
        thread.join(60)


def test_volumes_of_brokers_grow(cluster: KubeCluster, release: Release, page: Page) -> None:
    before = {each["metadata"]["name"]: each["metadata"]["uid"] for each in release.pods("broker")}
    with driver(release) as grown:
        page.follow("Larger volumes")
    assert {f"data-{name}" for name in before} <= set(grown)
    assert {each["metadata"]["name"]: each["metadata"]["uid"] for each in release.pods("broker")} == before
    release.wait_ready()
