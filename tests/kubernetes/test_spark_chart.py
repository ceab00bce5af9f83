"""The chart's part for Spark: what it renders, that a real API server takes it, and what the account may do there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace
from hapax_operator.resources import read_spark_job
from hapax_operator.spark_pods import auth_secret
from hapax_operator.spark_work import of_job
from integration.waiting import wait_until

CHART = ROOT / "charts" / "hapax"
Render = Callable[..., list[dict[str, Any]]]
ON = ("spark.enabled=true", "spark.checkpoint.enabled=true")


def of_spark(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in objects if each["metadata"]["name"].startswith("demo-hapax-spark")]


def test_it_comes_when_asked_for_into_each_namespace_of_jobs_and_not_the_release_s(render: Render) -> None:
    assert of_spark(render()) == []
    own = of_spark(render("spark.enabled=true"))
    assert {(each["kind"], each["metadata"].get("namespace", each["metadata"]["name"])) for each in own} == {
        (kind, "demo-hapax-spark-prod") for kind in ("Namespace", "ServiceAccount", "Role", "RoleBinding")}
    (made,) = (each for each in own if each["kind"] == "Namespace")
    assert made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}, "jobs and checkpoints are in it"
    there = of_spark(render(*ON, 'spark.namespaces=["a","b"]'))
    assert sorted((each["kind"], each["metadata"]["namespace"]) for each in there) == [
        (kind, space) for kind in ("PersistentVolumeClaim", "Role", "RoleBinding", "ServiceAccount")
        for space in ("a", "b")]
    assert all(each["subjects"][0]["namespace"] == each["metadata"]["namespace"]
               for each in there if each["kind"] == "RoleBinding")


def test_the_operator_watches_where_jobs_are(render: Render) -> None:
    objects = render("spark.enabled=true", 'operator.watchNamespaces=["team"]')
    watched = {each["metadata"]["namespace"] for each in objects
               if each["kind"] == "Role" and each["metadata"]["name"] == "prod.demo-hapax-operator"}
    assert watched == {"team", "demo-hapax-spark-prod"}
    (operator,) = (each for each in objects if each["kind"] == "Deployment"
                   and each["metadata"]["name"] == "demo-hapax-operator")
    words = operator["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [words[at + 1] for at, each in enumerate(words) if each == "--namespace"] == [
        "team", "demo-hapax-spark-prod"]


def test_drivers_are_scraped_where_they_are(render: Render) -> None:
    (monitor,) = (each for each in render("spark.enabled=true", "serviceMonitor.enabled=true")
                  if each["kind"] == "PodMonitor")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["demo-hapax-spark-prod"]}
    assert [(each["port"], each["path"]) for each in monitor["spec"]["podMetricsEndpoints"]] == [
        ("progress", "/metrics"), ("ui", "/metrics/prometheus"), ("ui", "/metrics/executors/prometheus")]
    assert not any(each["kind"] == "PodMonitor" for each in render("serviceMonitor.enabled=true"))


def test_drivers_reach_the_cluster_where_clients_are_named(render: Render) -> None:
    clients = 'networkPolicy.clients=[{"namespaceSelector":{"matchLabels":{"team":"a"}}}]'
    (broker,) = (each for each in render("spark.enabled=true", clients) if each["kind"] == "NetworkPolicy"
                 and each["metadata"]["name"] == "demo-hapax-broker")
    peers = [str(rule["from"]) for rule in broker["spec"]["ingress"] if rule["ports"][0]["port"] in (9092, 9096, 9098)]
    assert len(peers) == 3 and all("demo-hapax-spark-prod" in each and "team" in each for each in peers)


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


RESTRICTED: dict[str, Any] = {
    "runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}


def pod(name: str, **spec: Any) -> str:
    """As JSON, for the restricted standard."""
    return json.dumps({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "securityContext": RESTRICTED, "automountServiceAccountToken": False, "containers": [{
                "name": "one", "image": "none", "securityContext": {
                    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}], **spec}})


def claim(name: str, **spec: Any) -> str:
    return json.dumps({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}})


def mounting(claim: str) -> list[dict[str, Any]]:
    return [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]


@pytest.fixture
def jobs(kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path) -> Iterator[str]:
    """The namespace of jobs of a release in `namespace`, with accounts, rights and admission policies as rendered."""
    kinds = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
             "PersistentVolumeClaim", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    rendered = tmp_path / "spark.yaml"
    found = [each for each in render(*ON, namespace=namespace.name) if each["kind"] in kinds]
    rendered.write_text(yaml.safe_dump_all(found))
    done = kube_api.kubectl("apply", "--validate=strict", "-f", str(rendered))
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    space = f"demo-hapax-spark-{namespace.name}"
    yield space
    policies = [f"{each['kind']}/{each['metadata']['name']}" for each in found if "Policy" in each["kind"]]
    assert kube_api.kubectl("delete", *policies, f"namespace/{space}", "--wait=false").returncode == 0


def test_what_a_driver_may_do(kube_api: KubeApi, namespace: Namespace, jobs: str, tmp_path: Path) -> None:
    """It creates pods that mount claims of its own namespace, and has no right elsewhere."""
    account = f"system:serviceaccount:{jobs}:demo-hapax-spark"

    def may(space: str, verb: str, what: str) -> bool:
        asked = kube_api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": account, "resourceAttributes": {"namespace": space, "verb": verb, "resource": what}}})
        return bool(asked["status"]["allowed"])

    for what in ("pods", "services", "configmaps", "persistentvolumeclaims"):
        assert all(may(jobs, verb, what) for verb in ("create", "get", "watch", "deletecollection")), what
        assert not any(may(namespace.name, verb, what) for verb in ("create", "get", "list", "delete")), what
    for what in ("secrets", "serviceaccounts", "roles", "pods/exec", "sparkjobs.hapax.dev"):
        assert not any(may(jobs, verb, what) for verb in ("get", "create")), what
    assert not may("", "get", "persistentvolumes")

    as_driver = ("--kubeconfig", str(kube_api.kubeconfig_of(jobs, "demo-hapax-spark")))

    def tried(space: str, body: str) -> str:
        """What the API server says against it; empty: it was created."""
        (tmp_path / "body.json").write_text(body)
        done = kube_api.kubectl(*as_driver, "-n", space, "create", "-f", str(tmp_path / "body.json"))
        return done.stderr if done.returncode else ""

    machine = [{"name": "data", "hostPath": {"path": "/var/lib/kubelet"}}]
    # The policy is in force some moments after it was made.
    wait_until(
        lambda: "no account but its own" in tried(jobs, pod("other", serviceAccountName="stronger")), "the policy", 30)
    assert "violates PodSecurity" in tried(jobs, pod("host", volumes=machine))
    assert tried(jobs, pod("executor", volumes=mounting("demo-hapax-spark-checkpoint"))) == ""
    assert tried(jobs, claim("dynamic")) == ""
    assert "forbidden" in tried(namespace.name, pod("thief", volumes=mounting("data-demo-hapax-broker-0")))
    assert "name none themselves" in tried(jobs, claim("taken", volumeName="volume-of-a-broker"))
    kube_api.create("/api/v1/namespaces/" + jobs + "/persistentvolumeclaims", json.loads(claim("free")))
    done = kube_api.kubectl(
        *as_driver, "-n", jobs, "patch", "pvc", "free", "-p", '{"spec": {"volumeName": "volume-of-a-broker"}}')
    assert "name none themselves" in done.stderr


def test_jobs_of_the_release_s_own_namespace_mount_no_volumes_of_it(
    kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path
) -> None:
    """Where somebody wants them there, against the default."""
    policies = [each for each in render(
        "spark.enabled=true", f'spark.namespaces=["{namespace.name}"]', namespace=namespace.name)
        if each["metadata"]["name"].endswith("hapax-spark")]
    (tmp_path / "policies.yaml").write_text(yaml.safe_dump_all(policies))
    assert kube_api.kubectl("apply", "-f", str(tmp_path / "policies.yaml")).returncode == 0
    as_driver = ("--kubeconfig", str(kube_api.kubeconfig_of(namespace.name, "demo-hapax-spark")))

    def tried(claim: str, **spec: Any) -> str:
        (tmp_path / "body.json").write_text(pod("one", **{"volumes": mounting(claim), **spec}))
        return kube_api.kubectl(
            *as_driver, "-n", namespace.name, "create", "--dry-run=server", "-f", str(tmp_path / "body.json")).stderr

    try:
        wait_until(lambda: "no volumes of brokers and etcd" in tried("data-demo-hapax-broker-0"), "the policy", 30)
        assert "no volumes of brokers and etcd" in tried("data-demo-hapax-etcd-0")
        machine = [{"name": "data", "hostPath": {"path": "/var/lib/kubelet"}}]
        for more in ({"volumes": machine}, {"hostNetwork": True}, {"hostPID": True}):
            assert "get nothing of their machine" in tried("mine", **more)
        assert tried("demo-hapax-spark-checkpoint") == ""
    finally:
        kube_api.kubectl("delete", "-f", str(tmp_path / "policies.yaml"), "--wait=false")


def test_the_operator_makes_the_secret_of_a_job_and_no_other(
    kube_api: KubeApi, namespace: Namespace, jobs: str, tmp_path: Path
) -> None:
    """With the admission policies that the chart installs."""
    as_operator = ("--kubeconfig", str(kube_api.kubeconfig_of(namespace.name, "demo-hapax-operator")), "-n", jobs)
    space = Namespace(kube_api, jobs)
    job = read_spark_job(space.spark_job(
        "nightly", "loader", image="none", job="jobs.one", checkpoint={"ephemeral": True}, managed=False))

    def tried(body: Any) -> str:
        (tmp_path / "secret.json").write_text(json.dumps(body))
        return kube_api.kubectl(*as_operator, "create", "-f", str(tmp_path / "secret.json")).stderr

    foreign = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {"name": "foreign"}}
    wait_until(lambda: "Secrets of Users alone" in tried(foreign), "the policy", 30)
    secret = auth_secret(of_job(job, None), "random")
    assert tried(secret) == ""
    assert space.secret(secret["metadata"]["name"])["secret"] == "random"
    refused = kube_api.kubectl(*as_operator, "patch", "secret", secret["metadata"]["name"], "-p", "{}").stderr
    assert "forbidden" in refused, "it has no right to read or change it"
