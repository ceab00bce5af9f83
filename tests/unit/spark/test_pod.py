"""Spark's settings for a driver in a pod."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax_operator.resources import read_producer
from hapax_operator.spark_pods import executor_pod
from hapax_operator.spark_work import of_section
from hapax_spark.jobs.pod import TEMPLATE, PodError, settings
from hapax_spark.jobs.session import REDACTION

IN_POD = {"POD_NAME": "flights-driver", "POD_NAMESPACE": "jobs", "POD_IP": "10.0.0.7",
          "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}  # fmt: skip
POD = "/api/v1/namespaces/jobs/pods/flights-driver"
CLAIMS = "/api/v1/namespaces/jobs/persistentvolumeclaims/"


def pod(**more: Any) -> dict[str, Any]:
    container = {"image": "registry/hapax-spark:1", "imagePullPolicy": "Never", **more.pop("container", {})}
    labels = {"hapax.dev/producer": "flights", "app.kubernetes.io/component": "spark-driver", "x": "y"}
    return {"metadata": {"labels": labels}, "spec": {"containers": [container], **more}}


class Api:
    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def __call__(self, path: str) -> Any:
        return self.answers[path]


def nobody(path: str) -> Any:
    raise AssertionError(f"nobody is to be asked, but was for {path}")


def test_the_driver_is_its_pod_and_owns_its_executors() -> None:
    found = settings(IN_POD, Api({POD: pod()}))
    assert found["spark.master"] == "k8s://https://10.96.0.1:443"
    assert found["spark.kubernetes.driver.pod.name"] == "flights-driver"
    assert (found["spark.kubernetes.namespace"], found["spark.driver.host"]) == ("jobs", "10.0.0.7")
    assert found["spark.driver.bindAddress"] == "10.0.0.7", "what executors connect to"


def test_executors_are_like_the_driver() -> None:
    found = settings(IN_POD, Api({POD: pod(imagePullSecrets=[{"name": "a"}, {"name": "b"}])}))
    assert found["spark.kubernetes.container.image"] == "registry/hapax-spark:1"
    assert found["spark.kubernetes.container.image.pullPolicy"] == "Never"
    assert found["spark.kubernetes.container.image.pullSecrets"] == "a,b"
    label = "spark.kubernetes.executor.label."
    assert {name.removeprefix(label): value for name, value in found.items() if name.startswith(label)} == {
        "hapax.dev/producer": "flights", "app.kubernetes.io/component": "spark-executor"}  # fmt: skip


def test_how_many_and_how_large() -> None:
    given = {"HAPAX_SPARK_EXECUTORS": "3", "HAPAX_SPARK_EXECUTOR_CORES": "2", "HAPAX_SPARK_EXECUTOR_MEMORY": "700m",
             "HAPAX_SPARK_DRIVER_MEMORY": "600m", "HAPAX_SPARK_CHECKPOINT": "/checkpoint"}  # fmt: skip
    found = settings(IN_POD | given, Api({POD: pod()}))
    assert [found[f"spark.{name}"] for name in ("executor.instances", "executor.cores", "executor.memory",
                                               "driver.memory", "sql.streaming.checkpointLocation")] == [
        "3", "2", "700m", "600m", "/checkpoint"]  # fmt: skip


def test_what_is_given_as_json_comes_last() -> None:
    given = {"HAPAX_SPARK_CONF": '{"spark.executor.instances": 5, "spark.ui.enabled": false, "spark.app.name": "x"}'}
    found = settings(IN_POD | given, Api({POD: pod()}))
    assert [found[f"spark.{name}"] for name in ("executor.instances", "ui.enabled", "app.name")] == ["5", "false", "x"]


@pytest.mark.parametrize("text", ["{", "[1]", '"a"'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(PodError, match="HAPAX_SPARK_CONF must be a JSON object"):
        settings({"HAPAX_SPARK_CONF": text}, nobody)


def test_executors_mount_the_claims_that_several_machines_may_mount() -> None:
    mounted = pod(
        volumes=[{"name": "checkpoint", "persistentVolumeClaim": {"claimName": "shared"}},
                 {"name": "own", "persistentVolumeClaim": {"claimName": "single"}},
                 {"name": "tmp", "emptyDir": {}}],
        container={"volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint", "subPath": "flights"},
                                    {"name": "own", "mountPath": "/own"}, {"name": "tmp", "mountPath": "/tmp"}]},
    )  # fmt: skip
    found = settings(IN_POD, Api({
        POD: mounted, CLAIMS + "shared": {"spec": {"accessModes": ["ReadWriteMany"]}},
        CLAIMS + "single": {"spec": {"accessModes": ["ReadWriteOnce"]}}}))
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim."
    assert {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)} == {
        "checkpoint.options.claimName": "shared", "checkpoint.mount.path": "/checkpoint",
        "checkpoint.mount.readOnly": "false", "checkpoint.mount.subPath": "flights",
    }  # fmt: skip


def test_outside_of_a_pod_nothing_of_kubernetes() -> None:
    assert settings({}, nobody) == {
        "spark.driver.memory": "1g", "spark.python.daemon.module": "hapax_spark.daemon", **dict([REDACTION])}
    with pytest.raises(PodError, match="POD_IP must be set together with POD_NAME"):
        settings({"POD_NAME": "x", "POD_NAMESPACE": "y"}, nobody)


@pytest.mark.parametrize("name", ["executor", "driver"])
def test_what_templates_make_is_as_confined_as_the_restricted_standard_wants(name: str) -> None:
    spec = yaml.safe_load(TEMPLATE.with_name(f"{name}.yaml").read_text())["spec"]
    (container,) = spec["containers"]
    assert (spec.get("automountServiceAccountToken", True), container["name"]) == (name == "driver", name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


@pytest.mark.parametrize("shown", [
    "kafka.ssl.truststore.location", "/etc/app/key.pem", "kafka.sasl.mechanism", "kafka.bootstrap.servers"])
def test_what_spark_may_show_of_options(shown: str) -> None:
    assert re.search(REDACTION[1], shown) is None


@pytest.mark.parametrize("hidden", [
    "kafka.sasl.password", "kafka.sasl.jaas.config", "kafka.ssl.keystore.key", "kafka.ssl.key.password",
    "kafka.sasl.oauthbearer.client.credentials.client.secret", "-----BEGIN EC PRIVATE KEY-----"])
def test_what_spark_must_not_show_of_options(hidden: str) -> None:
    assert re.search(REDACTION[1], hidden)


def test_a_given_template_takes_the_place_of_the_image_s_and_mounts_its_own_volumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hapax_spark.jobs.pod.GIVEN_TEMPLATE", tmp_path / "executor.json")
    template = {"spec": {"volumes": [{"name": "own", "persistentVolumeClaim": {"claimName": "own"}}]}}
    mounts = [{"name": each, "mountPath": f"/{each}"} for each in ("own", "shared")]
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in ("own", "shared")]
    beside = {"name": "beside", "image": "other"}
    body = pod(container={"name": "driver", "volumeMounts": mounts}, volumes=volumes)
    body["spec"]["containers"].insert(0, beside)
    found = settings({**IN_POD, "HAPAX_SPARK_EXECUTOR_TEMPLATE": json.dumps(template)}, Api({
        POD: body, CLAIMS + "shared": {"spec": {"accessModes": ["ReadWriteMany"]}}}))
    assert found["spark.kubernetes.executor.podTemplateFile"] == str(tmp_path / "executor.json")
    assert json.loads((tmp_path / "executor.json").read_text()) == template
    assert found["spark.kubernetes.container.image"] == "registry/hapax-spark:1", "the driver's, not its neighbour's"
    claimed = [name for name in found if name.endswith(".options.claimName")]
    assert claimed == ["spark.kubernetes.executor.volumes.persistentVolumeClaim.shared.options.claimName"]


@pytest.mark.parametrize("text", ["{", "[]", '{"spec": {"volumes": [1]}}', "{}"])
def test_what_is_no_template_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hapax_spark.jobs.pod.GIVEN_TEMPLATE", tmp_path / "executor.json")
    with pytest.raises(PodError, match="must be a pod template"):
        settings({**IN_POD, "HAPAX_SPARK_EXECUTOR_TEMPLATE": text}, nobody)


def test_the_operator_s_template_is_the_image_s_and_more() -> None:
    producer = read_producer({"metadata": {"namespace": "team", "name": "p", "uid": "u"}, "spec": {
        "transactionalId": "a", "spark": {
            "image": "i", "job": "j", "executorTemplate": {"metadata": {"labels": {"team": "a"}}}}}})
    assert producer.spark is not None
    found = executor_pod(of_section(producer), producer.spark)
    assert found is not None and found.pop("metadata") == {"labels": {"team": "a"}}
    assert found == yaml.safe_load(TEMPLATE.read_text())
