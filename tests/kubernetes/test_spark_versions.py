"""Upgrade and rollback of the definitions with a job that runs: an API server of its own, objects stored as v1alpha1 by
the former definition; the test plays the kubelet."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hapax.local.cluster import LocalCluster
from hapax_kube.api import ApiError, KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.kubelet import Kubelet
from hapax_kube.operator import Namespace, OperatorProcess
from integration.waiting import wait_until

DEFINITIONS = ROOT / "charts" / "hapax" / "files" / "crds"
FORMER = Path(__file__).parent / "former"
PRODUCERS, JOBS = "transactionalproducers", "sparkjobs"
SPARK: dict[str, Any] = {
    "image": "hapax-spark:test", "job": "hapax_spark.jobs.passthrough", "arguments": ["--input", "a"],
    "conf": {"spark.a": "b"}, "checkpoint": {"ephemeral": True}, "executors": {"instances": 3}}
NEWER = "a Spark job is a resource of its own: create a SparkJob"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def former(kube_binaries: Path, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace of an API server that knows only the former definitions."""
    api = KubeApi(kube_binaries, tmp_path / "kube")
    try:
        api.start().with_definitions(FORMER)
        for name in ("topics", "users", "brokerpools"):
            assert api.kubectl("apply", "-f", str(DEFINITIONS / f"{name}.yaml")).returncode == 0
        api.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
        yield Namespace(api, "team")
    finally:
        api.close()


def newer(path: str) -> str:
    return path.replace("v1alpha1", "v1alpha2")


def reason(namespace: Namespace, plural: str, name: str, kind: str) -> tuple[str, str]:
    return namespace.condition(plural, name, kind)


def test_what_is_stored_survives_upgrade_and_rollback_and_the_driver_is_not_restarted(
    former: Namespace, hapax: LocalCluster, start_operator: Callable[..., OperatorProcess]
) -> None:
    api, kubelet, name = former.api, Kubelet(former.api, former.name), f"job-{uuid.uuid4().hex[:8]}"
    path = former.path(PRODUCERS, "job")

    def until(done: Any, what: str) -> None:
        def look() -> bool:
            kubelet.tick()
            return bool(done())

        wait_until(look, what, 60)

    former.producer("job", transactionalId=name, allowedTopics=["a"], spark=SPARK)
    operator = start_operator(former, api.kubeconfig)
    until(lambda: reason(former, PRODUCERS, "job", "SparkRunning") == ("True", "Running"), "a run")
    driver = kubelet.driver()
    assert driver is not None and kubelet.begun == ["job-driver-1"]
    operator.kill()
    before = api.get(path)

    # The upgrade: the same object in both versions, with the same fields.
    api.with_definitions(DEFINITIONS)
    wait_until(lambda: api.exists(newer(path)), "the new version", 30)
    read = api.get(newer(path))
    assert read["apiVersion"] == "hapax.dev/v1alpha2"
    assert (read["spec"], read["status"], read["metadata"]["uid"]) == (
        before["spec"], before["status"], before["metadata"]["uid"])
    api.patch(newer(path), {"spec": {"hangingAfterSeconds": 77}})
    assert api.get(path)["spec"] == {**before["spec"], "hangingAfterSeconds": 77}, "a write in the new version"
    with pytest.raises(ApiError, match=re.escape(NEWER)):
        api.create(newer(former.path(PRODUCERS)), {
            "apiVersion": "hapax.dev/v1alpha2", "kind": "TransactionalProducer", "metadata": {"name": "other"},
            "spec": {"transactionalId": "other", "spark": SPARK}})

    # A rollback is taken, and loses nothing.
    definition = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PRODUCERS}.hapax.dev"
    assert api.get(definition)["status"]["storedVersions"] == ["v1alpha1"]
    api.with_definitions(FORMER)
    wait_until(lambda: not api.exists(newer(path)), "the former definition", 30)
    assert api.get(path)["spec"] == {**before["spec"], "hangingAfterSeconds": 77}
    operator = start_operator(former, api.kubeconfig)
    seen = former.get(PRODUCERS, "job")["metadata"]["generation"]
    until(lambda: former.get(PRODUCERS, "job")["status"]["observedGeneration"] == seen, "a look")
    operator.kill()

    # The upgraded operator goes on with the run, and carries it over when it is asked to.
    api.with_definitions(DEFINITIONS)
    start_operator(former, api.kubeconfig)
    former.annotate(PRODUCERS, "job", **{"carry-over": "true"})
    until(lambda: former.exists(JOBS, "job") and reason(former, JOBS, "job", "Running") == ("True", "Running"),
          "the SparkJob")
    until(lambda: not former.get(PRODUCERS, "job")["metadata"].get("finalizers"), "end of the hand-over")
    carried, left = former.get(JOBS, "job"), former.get(PRODUCERS, "job")
    assert {**carried["spec"], **before["spec"]["spark"]} == carried["spec"]
    assert carried["spec"]["producer"] == {"name": "job"}
    assert carried["metadata"]["ownerReferences"][0]["uid"] == left["metadata"]["uid"]
    assert carried["status"]["record"]["driverUid"] == driver["metadata"]["uid"]
    assert "spark" not in left["spec"] and "spark" not in left["status"]
    assert left["spec"]["allowedTopics"] == ["a"]
    same = kubelet.driver()
    assert same is not None and same["metadata"]["uid"] == driver["metadata"]["uid"]
    assert kubelet.begun == ["job-driver-1"], "it was never restarted"

    # It is a SparkJob's run now: what fails is started again, and what is deleted ends.
    kubelet.ends(same, "Failed", "Error", 1)
    until(lambda: kubelet.begun == ["job-driver-1", "job-spark-2"], "the next run")
    former.delete(PRODUCERS, "job")
    until(lambda: not former.exists(JOBS, "job"), "end of the job with its producer")
    assert kubelet.driver() is None
