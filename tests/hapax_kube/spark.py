"""Resources, pods and commands of a Spark job on the tests' cluster, small enough for one computer."""

from __future__ import annotations

import json
from typing import Any, Final

from hapax_kube.images import SPARK

JOBS: Final = "hapax-spark"
"""The namespace that the chart creates for jobs of the release `hapax` in `hapax`."""
ACCOUNT: Final = "hapax-spark"
CLAIM: Final = "hapax-spark-checkpoint"
CHECKPOINT: Final = "/checkpoint"
HOME: Final = "/opt/hapax/hapax_spark"
SMALL: Final = {
    "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.executor.cores": "1",
    # Executors must fit on a computer with two processors for everything.
    "spark.kubernetes.executor.request.cores": "50m", "spark.kubernetes.driver.request.cores": "50m",
    # Memory for a JVM, and Python workers with Arrow beside it.
    "spark.executor.memoryOverhead": "768m", "spark.driver.memoryOverhead": "768m",
    "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
    # The API server of a busy computer may need more than Spark's default of ten seconds.
    **{f"spark.kubernetes.{who}.{what}Timeout": "60000"
       for who in ("submission", "driver") for what in ("connection", "request")},
    # Spark requests the next executor soon after one is lost.
    "spark.kubernetes.allocation.batch.delay": "1s",
}  # fmt: skip


def topic(name: str, partitions: int) -> Any:
    return {
        "apiVersion": "hapax.dev/v1alpha1", "kind": "Topic", "metadata": {"name": name.replace("_", "-")},
        "spec": {"topicName": name, "partitions": partitions, "replicationFactor": 3,
                 "config": {"min.insync.replicas": "2"}},
    }  # fmt: skip


def job(name: str, module: str, arguments: list[str], executors: int) -> list[Any]:
    """A TransactionalProducer, and a SparkJob that the operator runs under its ids."""
    conf = {key: value for key, value in SMALL.items() if not key.endswith((".memory", ".cores"))}
    conf["spark.kubernetes.executor.request.cores"] = SMALL["spark.kubernetes.executor.request.cores"]
    return [
        {"apiVersion": "hapax.dev/v1alpha2", "kind": "TransactionalProducer", "metadata": {"name": name},
         "spec": {"transactionalIdPrefix": f"{JOBS}.{name}-"}},
        {"apiVersion": "hapax.dev/v1alpha2", "kind": "SparkJob", "metadata": {"name": name}, "spec": {
            "producer": {"name": name}, "image": SPARK, "imagePullPolicy": "Never", "job": module,
            "arguments": arguments, "conf": conf,
            "driver": {"memory": "512m", "resources": {
                "requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}}},
            "executors": {"instances": executors, "cores": 1, "memory": "512m"},
            "checkpoint": {"claimName": CLAIM, "path": CHECKPOINT},
            "backOff": {"firstSeconds": 1, "longestSeconds": 10}}},
    ]


def submitted(namespace: str, name: str, job: list[str], **more: str) -> list[str]:
    """The arguments of `spark-submit` in both modes."""
    volume = "volumes.persistentVolumeClaim.checkpoint"
    settings = {
        **SMALL, "spark.kubernetes.namespace": namespace, "spark.kubernetes.container.image": SPARK,
        "spark.kubernetes.container.image.pullPolicy": "Never", "spark.executor.instances": "1",
        "spark.python.daemon.module": "hapax_spark.daemon",
        f"spark.kubernetes.executor.{volume}.mount.path": CHECKPOINT,
        f"spark.kubernetes.executor.{volume}.options.claimName": CLAIM, **more,
    }  # fmt: skip
    return [
        "--name", name, *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
        f"local://{HOME}/jobs/passthrough.py", *job, "--checkpoint", f"{CHECKPOINT}/{name}",
    ]  # fmt: skip


def in_cluster_mode(server: str, namespace: str, name: str, job: list[str], templates: str) -> list[str]:
    """A `spark-submit` command for a computer that has PySpark and KUBECONFIG; it returns when the driver has ended.
    `templates` is the folder of the pod templates on that computer."""
    volume = "spark.kubernetes.driver.volumes.persistentVolumeClaim.checkpoint"
    return [
        "spark-submit", "--master", f"k8s://{server}", "--deploy-mode", "cluster",
        *submitted(namespace, name, job, **{
            "spark.kubernetes.authenticate.driver.serviceAccountName": ACCOUNT,
            "spark.kubernetes.driver.pod.name": name,
            "spark.kubernetes.driver.podTemplateFile": f"{templates}/driver.yaml",
            "spark.kubernetes.executor.podTemplateFile": f"{templates}/executor.yaml",
            f"{volume}.mount.path": CHECKPOINT, f"{volume}.options.claimName": CLAIM,
        }),
    ]  # fmt: skip


def in_client_mode(namespace: str, name: str, job: list[str]) -> Any:
    """A pod in which `spark-submit` is the driver."""
    words = submitted(namespace, name, job, **{
        "spark.driver.host": "$(POD_IP)", "spark.driver.bindAddress": "$(POD_IP)",
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podTemplateFile": f"{HOME}/executor.yaml",
    })  # fmt: skip
    fields = {"POD_NAME": "metadata.name", "POD_IP": "status.podIP"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/component": "spark-driver"}},
        "spec": {
            "restartPolicy": "Never", "serviceAccountName": ACCOUNT, "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "driver", "image": SPARK, "imagePullPolicy": "Never",
                "args": ["spark-submit", "--master", "k8s://https://kubernetes.default.svc", "--deploy-mode", "client",
                         *words],
                "env": [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()],
                "securityContext": {
                    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]}},
                "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}},
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "checkpoint", "mountPath": CHECKPOINT}],
            }],
            "volumes": [{"name": "tmp", "emptyDir": {}},
                        {"name": "checkpoint", "persistentVolumeClaim": {"claimName": CLAIM}}],
        },
    }  # fmt: skip


def as_list(*items: Any) -> str:
    """The items as a List for `kubectl apply -f -`."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})
