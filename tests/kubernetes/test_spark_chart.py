"""The chart's part for Spark: what it renders, that a real API server takes it, and what the account may do there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace

CHART = ROOT / "charts" / "hapax"
Render = Callable[..., list[dict[str, Any]]]
ON = ("spark.enabled=true", "spark.checkpoint.enabled=true")


def of_spark(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in objects if each["metadata"]["name"].startswith("demo-hapax-spark")]


def test_it_comes_when_asked_for_into_each_namespace_of_jobs(render: Render) -> None:
    assert of_spark(render()) == []
    here = of_spark(render("spark.enabled=true"))
    assert {(each["kind"], each["metadata"]["namespace"]) for each in here} == {
        (kind, "prod") for kind in ("ServiceAccount", "Role", "RoleBinding")}
    there = of_spark(render(*ON, 'spark.namespaces=["a","b"]'))
    assert sorted((each["kind"], each["metadata"]["namespace"]) for each in there) == [
        (kind, space) for kind in ("PersistentVolumeClaim", "Role", "RoleBinding", "ServiceAccount")
        for space in ("a", "b")]
    assert all(each["subjects"][0]["namespace"] == each["metadata"]["namespace"]
               for each in there if each["kind"] == "RoleBinding")


def test_the_checkpoint_stays_and_is_shared_unless_said_otherwise(render: Render) -> None:
    (claim,) = (each for each in of_spark(render(*ON)) if each["kind"] == "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    own = of_spark(render(*ON, 'spark.checkpoint.accessMode="ReadWriteOnce"', 'spark.checkpoint.className="fast"'))
    assert [(each["spec"]["accessModes"], each["spec"]["storageClassName"])
            for each in own if each["kind"] == "PersistentVolumeClaim"] == [(["ReadWriteOnce"], "fast")]


def test_the_operator_may_ask_drivers(render: Render) -> None:
    def ports(objects: list[dict[str, Any]]) -> set[int]:
        (policy,) = (each for each in objects if each["kind"] == "NetworkPolicy"
                     and each["metadata"]["name"] == "demo-hapax-operator")
        return {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}

    assert ports(render(*ON)) - ports(render()) == {4041}


@pytest.mark.parametrize("words", ["spark.checkpoint.accessMode=ReadOnlyMany", "spark.checkpoint.size=big",
                                   "spark.namespaces={Upper}", "spark.image=x"])
def test_what_is_no_value_is_refused(helm: Callable[..., subprocess.CompletedProcess[str]], words: str) -> None:
    done = helm("template", "demo", str(CHART), "--set", words)
    assert done.returncode != 0 and "spark" in done.stderr


def test_a_real_api_server_lets_a_driver_make_pods_and_read_no_secret(
    kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path
) -> None:
    rendered = tmp_path / "spark.yaml"
    rendered.write_text(yaml.safe_dump_all(of_spark(render(*ON, namespace=namespace.name))))
    done = kube_api.kubectl("apply", "--validate=strict", "-f", str(rendered))
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    account = f"system:serviceaccount:{namespace.name}:demo-hapax-spark"

    def may(verb: str, what: str) -> bool:
        asked = kube_api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": account, "resourceAttributes": {
                "namespace": namespace.name, "verb": verb, "resource": what}}})  # fmt: skip
        return bool(asked["status"]["allowed"])

    for what in ("pods", "services", "configmaps", "persistentvolumeclaims"):
        assert all(may(verb, what) for verb in ("create", "get", "watch", "deletecollection")), what
    assert not any(may("get", what) for what in ("secrets", "serviceaccounts", "roles"))
