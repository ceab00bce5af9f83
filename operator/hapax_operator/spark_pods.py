"""Drivers' pods: creates their bodies, and converts pods of the API server to the plan's `PodSeen`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from hapax_operator.plan_spark import PodSeen
from hapax_operator.resources import GROUP, KINDS, version_of
from hapax_operator.spark_resource import DEFAULT_ACCOUNT, SparkSpec
from hapax_operator.spark_work import SparkWork

GATE: Final = "hapax.dev/fenced"
IDENTITY: Final = "hapax.dev/identity"
OWNER: Final = "hapax.dev/producer-uid"
RUN: Final = "hapax.dev/spark-run"
FINGERPRINT: Final = "hapax.dev/fingerprint"
COMPONENT: Final = "app.kubernetes.io/component"
DRIVER, EXECUTOR = "spark-driver", "spark-executor"
PROGRESS_PORT: Final = 4041

_LONGEST_BASE: Final = 46
"""Characters. With the form's infix and a number appended, a pod's name is still a valid host name."""
_UNITS: Final = {"": 2**20, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30,
                 "t": 2**40, "tb": 2**40}
"""Units of Spark's sizes. A number without a unit is in mebibytes."""


def driver_name(resource: str, run: int, infix: str = "driver") -> str:
    base = resource.replace(".", "-")
    if base != resource or len(base) > _LONGEST_BASE:
        base = f"{base[:_LONGEST_BASE - 9].rstrip('-')}-{hashlib.sha256(resource.encode()).hexdigest()[:8]}"
    return f"{base}-{infix}-{run}"


def driver_pod(work: SparkWork, spark: SparkSpec, run: int, account: str = DEFAULT_ACCOUNT) -> dict[str, Any]:
    """The body of a driver's pod. Its scheduling gate keeps it from being scheduled until the gate is removed.
    `account`: of jobs that name no service account."""
    ref = work.meta.ref
    name = driver_name(ref.name, run, work.form.infix)
    labels = {
        "app.kubernetes.io/name": "hapax-spark", "app.kubernetes.io/managed-by": "hapax-operator",
        COMPONENT: DRIVER, IDENTITY: work.identity, OWNER: work.meta.uid, RUN: str(run)}
    container: dict[str, Any] = {
        "name": "driver", "image": spark.image, "imagePullPolicy": spark.pull_policy,
        "args": ["run", spark.job, *spark.arguments],
        "env": _environment(work, spark, {**labels, COMPONENT: EXECUTOR}),
        "ports": [{"name": "driver", "containerPort": 7078}, {"name": "blocks", "containerPort": 7079},
                  {"name": "progress", "containerPort": PROGRESS_PORT}],
        "resources": dict(spark.driver_resources) or _resources(spark.driver_memory),
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"}, {"name": "spark-local", "mountPath": "/spark-local"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}, {"name": "spark-local", "emptyDir": {}}]
    if "://" not in spark.checkpoint_path:  # an emptyDir if `ephemeral` is true, otherwise no run is planned
        claim = {"persistentVolumeClaim": {"claimName": spark.checkpoint_claim}}
        volumes.append({"name": "checkpoint", **(claim if spark.checkpoint_claim else {"emptyDir": {}})})
        container["volumeMounts"].append({"name": "checkpoint", "mountPath": spark.checkpoint_path})
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": ref.namespace, "labels": labels,
            "annotations": {FINGERPRINT: spark.fingerprint},
            "ownerReferences": [{
                "apiVersion": f"{GROUP}/{version_of(ref.plural)}", "kind": KINDS[ref.plural], "name": ref.name,
                "uid": work.meta.uid, "controller": True}],
        },
        "spec": {
            "restartPolicy": "Never", "schedulingGates": [{"name": GATE}],
            "serviceAccountName": spark.account or account, "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30, "nodeSelector": dict(spark.node_selector),
            "imagePullSecrets": [{"name": each} for each in spark.pull_secrets],
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
                "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": volumes,
        },
    }


def _environment(
    work: SparkWork, spark: SparkSpec, executor_labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    conf = {f"spark.kubernetes.executor.label.{name}": value for name, value in executor_labels.items()}
    conf |= {f"spark.kubernetes.node.selector.{name}": value for name, value in spark.node_selector.items()}
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    texts = {
        "HAPAX_SPARK_IMAGE": spark.image,
        "HAPAX_SPARK_EXECUTORS": str(spark.executors), "HAPAX_SPARK_EXECUTOR_CORES": str(spark.executor_cores),
        "HAPAX_SPARK_EXECUTOR_MEMORY": spark.executor_memory, "HAPAX_SPARK_DRIVER_MEMORY": spark.driver_memory,
        # Executors are found by these labels, so no other setting may override them.
        "HAPAX_SPARK_CONF": json.dumps({**spark.conf, **conf}, sort_keys=True),
        "HAPAX_SPARK_CHECKPOINT": spark.checkpoint_path, "SPARK_LOCAL_DIRS": "/spark-local",
    }
    producer = work.producer
    assert producer is not None
    if producer.transactional_id:
        texts["HAPAX_SPARK_TRANSACTIONAL_ID"] = producer.transactional_id
    else:
        texts["HAPAX_SPARK_TRANSACTIONAL_ID_PREFIX"] = producer.prefix
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()] + [
        {"name": name, "value": value} for name, value in texts.items()]


def _resources(memory: str) -> dict[str, Any]:
    """Memory by Spark's rule for a driver in Python: the JVM's heap plus 40 %, at least 384 MiB."""
    match = re.fullmatch(r"(\d+)([a-z]*)", memory.lower())
    heap = int(match[1]) * _UNITS.get(match[2], 2**20) if match else 2**30
    total = -(-(heap + max(heap * 4 // 10, 384 * 2**20)) // 2**20)
    return {"requests": {"cpu": "500m", "memory": f"{total}Mi"}, "limits": {"memory": f"{total}Mi"}}


def is_ours(pod: Mapping[str, Any]) -> bool:
    return IDENTITY in (pod["metadata"].get("labels") or {})


def pod_seen(pod: Mapping[str, Any]) -> PodSeen:
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    reason, message, code = _told(status)
    run = labels.get(RUN, "")
    return PodSeen(
        name=metadata["name"], uid=metadata["uid"], owner=labels.get(OWNER, ""),
        run=int(run) if run.isdigit() else 0, driver=labels.get(COMPONENT) == DRIVER,
        fingerprint=(metadata.get("annotations") or {}).get(FINGERPRINT, ""),
        phase=status.get("phase") or "Pending",
        gated=any(each["name"] == GATE for each in pod["spec"].get("schedulingGates") or ()),
        told_ms=_told_to_end_ms(metadata), reason=reason, message=message, exit_code=code,
        address=status.get("podIP") or "")


def _told(status: Mapping[str, Any]) -> tuple[str, str, int | None]:
    """Reason, message and exit code."""
    state = next((each.get("state") or {} for each in status.get("containerStatuses") or ()), {})
    ended, waiting = state.get("terminated"), state.get("waiting")
    code = None if ended is None else ended.get("exitCode")
    if status.get("reason"):  # of the whole pod, such as Evicted
        return status["reason"], status.get("message") or "", code
    if ended is not None:
        return ended.get("reason") or "Error", (ended.get("message") or "").strip(), code
    if waiting is not None:
        return waiting.get("reason") or "", waiting.get("message") or "", None
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return each.get("reason") or "", each.get("message") or "", None
    return "", "", None


def _told_to_end_ms(metadata: Mapping[str, Any]) -> int:
    """When the pod was told to end. The API server's timestamp includes the grace period."""
    if not metadata.get("deletionTimestamp"):
        return -1
    at = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp()
    return int((at - (metadata.get("deletionGracePeriodSeconds") or 0)) * 1000)
