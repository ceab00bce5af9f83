"""Drivers' pods: creates their bodies, and converts pods of the API server to the plan's `PodSeen`."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from hapax_operator.plan_spark import PodSeen
from hapax_operator.pod_template import POD_SECURITY, SECURITY, given_in, merged, short_name
from hapax_operator.resources import GROUP, KINDS, version_of
from hapax_operator.spark_resource import DEFAULT_ACCOUNT, SparkSpec
from hapax_operator.spark_work import SparkWork

GATE: Final = "hapax.dev/fenced"
IDENTITY: Final = "hapax.dev/identity"
OWNER: Final = "hapax.dev/producer-uid"
OF_CLUSTER: Final = "hapax.dev/spark-cluster"
RUN: Final = "hapax.dev/spark-run"
FINGERPRINT: Final = "hapax.dev/fingerprint"
COMPONENT: Final = "app.kubernetes.io/component"
DRIVER, EXECUTOR = "spark-driver", "spark-executor"
PROGRESS_PORT: Final = 4041
UI_PORT: Final = 4040
AUTH_PATH: Final = "/var/run/hapax/spark-auth"
AUTH_KEY: Final = "secret"
_AUTH_ENCODED: Final = "encoded"
_AUTH_ENV: Final = "_SPARK_AUTH_SECRET"
"""Spark's own name for it, in executors. What a driver reads from a file, it takes in base64."""

_UNITS: Final = {"": 2**20, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30,
                 "t": 2**40, "tb": 2**40}
"""Units of Spark's sizes. A number without a unit is in mebibytes."""


def driver_name(resource: str, run: int, infix: str = "driver") -> str:
    return f"{short_name(resource)}-{infix}-{run}"


def cluster_label(cluster: str) -> str:
    """A label's value for any name of a cluster."""
    return hashlib.sha256(cluster.encode()).hexdigest()[:32]


def driver_pod(
    work: SparkWork, spark: SparkSpec, run: int, account: str = DEFAULT_ACCOUNT, cluster: str = ""
) -> dict[str, Any]:
    """The body of a driver's pod. Its scheduling gate keeps it from being scheduled until the gate is removed.
    `account`: of jobs that name no service account. `cluster`: as of `Clusters.own`."""
    ref = work.meta.ref
    name = driver_name(ref.name, run, work.form.infix)
    labels = {
        "app.kubernetes.io/name": "hapax-spark", "app.kubernetes.io/managed-by": "hapax-operator",
        COMPONENT: DRIVER, IDENTITY: work.identity, OWNER: work.meta.uid, RUN: str(run)}
    if cluster:
        labels[OF_CLUSTER] = cluster_label(cluster)
    container: dict[str, Any] = {
        "name": "driver", "image": spark.image, "imagePullPolicy": spark.pull_policy,
        "args": ["run", spark.job, *spark.arguments],
        "env": _environment(work, spark, {**labels, COMPONENT: EXECUTOR}),
        "ports": [{"name": "driver", "containerPort": 7078}, {"name": "blocks", "containerPort": 7079},
                  {"name": "progress", "containerPort": PROGRESS_PORT},
                  *([{"name": "ui", "containerPort": UI_PORT}] if spark.ui else [])],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"}, {"name": "spark-local", "mountPath": "/spark-local"}],
    }
    if spark.driver_resources:
        container["resources"] = dict(spark.driver_resources)
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}, {"name": "spark-local", "emptyDir": {}}]
    if "://" not in spark.checkpoint_path:  # an emptyDir if `ephemeral` is true, otherwise no run is planned
        claim = {"persistentVolumeClaim": {"claimName": spark.checkpoint_claim}}
        volumes.append({"name": "checkpoint", **(claim if spark.checkpoint_claim else {"emptyDir": {}})})
        container["volumeMounts"].append({"name": "checkpoint", "mountPath": spark.checkpoint_path})
    needed: dict[str, Any] = {
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
            "serviceAccountName": spark.account or account, "nodeSelector": dict(spark.node_selector),
            "imagePullSecrets": [{"name": each} for each in spark.pull_secrets],
            "containers": [container],
            "volumes": volumes,
        },
    }
    usual = {"spec": {
        "enableServiceLinks": False, "terminationGracePeriodSeconds": 30,
        "securityContext": {**POD_SECURITY, "fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [{
            "name": "driver", "securityContext": SECURITY, "resources": _resources(spark.driver_memory)}]}}
    body = merged(merged(merged(usual, given_in(spark.driver_template)), _common(work, spark, "driver")), needed)
    # A template may neither lift the gate nor let anything start the driver a second time.
    body["spec"]["schedulingGates"] = needed["spec"]["schedulingGates"]
    body["metadata"]["ownerReferences"] = needed["metadata"]["ownerReferences"]
    return body


def executor_pod(work: SparkWork, spark: SparkSpec) -> dict[str, Any] | None:
    """The template of executors' pods; None: the image's own (hapax_spark/executor.yaml), which it is like."""
    common = _common(work, spark, "executor")
    if not spark.executor_template and len(common["spec"]) == 1 and len(common["spec"]["containers"][0]) == 1:
        return None
    usual = {
        "apiVersion": "v1", "kind": "Pod",
        "spec": {
            "automountServiceAccountToken": False, "enableServiceLinks": False, "securityContext": POD_SECURITY,
            "containers": [{
                "name": "executor", "securityContext": SECURITY,
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}],
            "volumes": [{"name": "tmp", "emptyDir": {}}]}}
    return merged(merged(usual, given_in(spark.executor_template)), common)


def auth_secret(work: SparkWork, random_text: str) -> dict[str, Any]:
    """The Secret by which driver and executors know each other. It stays as it was first made."""
    return {
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "stringData": {AUTH_KEY: random_text, _AUTH_ENCODED: b64encode(random_text.encode()).decode()},
        "metadata": _beside(work, auth_name(work))}


def ui_service(work: SparkWork) -> dict[str, Any]:
    """Leads to the driver that runs: Spark's UI with its metrics, and the job's progress with its own."""
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": _beside(work, ui_name(work.meta.ref.name)),
        "spec": {
            "selector": {OWNER: work.meta.uid, COMPONENT: DRIVER},
            "ports": [{"name": "ui", "port": UI_PORT, "targetPort": UI_PORT},
                      {"name": "progress", "port": PROGRESS_PORT, "targetPort": PROGRESS_PORT}]}}


def auth_name(work: SparkWork) -> str:
    """Another one for a job that is deleted and made again: the former Secret is deleted some time later."""
    return f"{short_name(work.meta.ref.name)}-spark-auth-{work.meta.uid[:8]}"


def ui_name(job: str) -> str:
    return f"{short_name(job)}-spark-ui"


def _beside(work: SparkWork, name: str) -> dict[str, Any]:
    ref = work.meta.ref
    return {
        "name": name, "namespace": ref.namespace,
        "labels": {"app.kubernetes.io/name": "hapax-spark", "app.kubernetes.io/managed-by": "hapax-operator",
                   "app.kubernetes.io/component": "spark-driver"},
        "ownerReferences": [{
            "apiVersion": f"{GROUP}/{version_of(ref.plural)}", "kind": KINDS[ref.plural], "name": ref.name,
            "uid": work.meta.uid, "controller": True}]}


def _common(work: SparkWork, spark: SparkSpec, container: str) -> dict[str, Any]:
    """What the specification says of driver and executors alike; only the fields that it gives."""
    volumes, mounts = list(spark.volumes), list(spark.volume_mounts)
    env = list(spark.env)
    if spark.authenticate and container == "driver":
        volumes.append({"name": "spark-auth", "secret": {
            "secretName": auth_name(work), "defaultMode": 0o440}})
        mounts.append({"name": "spark-auth", "mountPath": AUTH_PATH, "readOnly": True})
    elif spark.authenticate:
        # An executor reads the secret from a file only when it knows its master, which it asks the driver for.
        env.append({"name": _AUTH_ENV, "valueFrom": {"secretKeyRef": {"name": auth_name(work), "key": _AUTH_ENCODED}}})
    of_container = {"env": env, "envFrom": list(spark.env_from), "volumeMounts": mounts}
    of_pod = {"volumes": volumes, "tolerations": list(spark.tolerations), "affinity": dict(spark.affinity)}
    return {"spec": {
        "containers": [{"name": container, **{name: value for name, value in of_container.items() if value}}],
        **{name: value for name, value in of_pod.items() if value}}}


def _conf(spark: SparkSpec) -> dict[str, str]:
    """Settings that follow from other fields. Those of `conf` override them."""
    loads = {
        "spark.jars.packages": spark.dependencies.packages, "spark.jars.repositories": spark.dependencies.repositories,
        "spark.jars": spark.dependencies.jars,
        # Spark hands a driver's files on to executors, but puts none of `local:` on Python's path.
        "spark.submit.pyFiles": [re.sub("^local:", "file:", each) for each in spark.dependencies.py_files],
        "spark.files": spark.dependencies.files}
    found = {name: ",".join(values) for name, values in loads.items() if values}
    if spark.event_log:
        path = spark.event_log if "://" in spark.event_log else f"file://{spark.event_log}"
        found |= {
            "spark.eventLog.enabled": "true", "spark.eventLog.dir": path, "spark.eventLog.rolling.enabled": "true"}
    if spark.ui:
        found |= {"spark.ui.enabled": "true", "spark.ui.port": str(UI_PORT), "spark.ui.prometheus.enabled": "true",
                  "spark.metrics.conf.*.sink.prometheusServlet.class":
                      "org.apache.spark.metrics.sink.PrometheusServlet",
                  "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
                  "spark.metrics.conf.*.source.jvm.class": "org.apache.spark.metrics.source.JvmSource"}
    return found


def _guarded_conf(spark: SparkSpec) -> dict[str, str]:
    """Settings that `conf` must not override."""
    if not spark.authenticate:
        return {}
    return {
        "spark.authenticate": "true", "spark.authenticate.secret.file": f"{AUTH_PATH}/{AUTH_KEY}",
        "spark.network.crypto.enabled": "true"}


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
        "HAPAX_SPARK_CONF": json.dumps({**_conf(spark), **spark.conf, **_guarded_conf(spark), **conf}, sort_keys=True),
        "HAPAX_SPARK_CHECKPOINT": spark.checkpoint_path, "SPARK_LOCAL_DIRS": "/spark-local",
    }
    if (template := executor_pod(work, spark)) is not None:
        texts["HAPAX_SPARK_EXECUTOR_TEMPLATE"] = json.dumps(template, sort_keys=True)
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
        told_ms=_told_to_end_ms(metadata), reason=reason, message="" if _is_report(message) else message,
        report=message if _is_report(message) else "", exit_code=code,
        address=status.get("podIP") or "", cluster=labels.get(OF_CLUSTER, ""))


def _is_report(message: str) -> bool:
    return message.startswith('{"progress": ')


def _told(status: Mapping[str, Any]) -> tuple[str, str, int | None]:
    """Reason, message and exit code."""
    containers = status.get("containerStatuses") or ()
    mine = [each for each in containers if each.get("name") == "driver"] or containers  # not one that runs beside it
    state = next((each.get("state") or {} for each in mine), {})
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
