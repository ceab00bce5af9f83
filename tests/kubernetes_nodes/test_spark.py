"""A SparkJob on machines: real Spark in pods of a namespace of its own, with everything that its fields say."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from hapax_kube.cluster import KubeCluster
from hapax_kube.images import SPARK, build_images
from hapax_kube.spark import JOBS, SMALL, as_list
from hapax_kube.tools import Release, Tools
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

SPACE: Final = ("-n", JOBS)
PLACE: Final = "tests/spark"
RECORDS: Final = 600
TOKEN: Final = "a-secret-of-another-system"
HELPERS: Final = """
import os, threading
from pathlib import Path

def seen(value):
    while value == b"v400" and not Path("/checkpoint/go").exists():
        threading.Event().wait(0.1)
    settings = Path("/settings/suffix").read_text()
    return f"{value.decode()}|{os.environ['API_TOKEN']}|{os.environ['MODE']}|{settings}|{os.environ['NODE']}".encode()
"""
JOB: Final = """
from helpers import seen
from pyspark.sql import SparkSession, functions as F
from hapax_spark.jobs.session import common_arguments
from hapax_spark.jobs.streams import read_topic, write_topic

arguments = common_arguments("one record for each").parse_args()
spark = SparkSession.builder.getOrCreate()
records = read_topic(spark, arguments).select("key", F.udf(seen, "binary")("value").alias("value"))
write_topic(records, arguments, name="seen", mode="append").awaitTermination()
"""
FILL: Final = """
from hapax.client import NewTopic
from hapax.client.blocking import Admin, Producer
here = {"bootstrap.servers": "localhost:9092"}
with Admin(here) as admin:
    admin.create_topics([NewTopic(name, 1, 3, {"min.insync.replicas": "2"}) for name in ("spark-in", "spark-out")])
with Producer({**here, "enable.idempotence": True}) as producer:
    for number in range(%d):
        producer.send("spark-in", b"v%%d" %% number)
    producer.flush()
"""
READ: Final = """
import json
from hapax.client.blocking import Consumer
here = {"bootstrap.servers": "localhost:9092", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
found = []
with Consumer(here) as consumer:
    partitions = consumer.partitions("spark-out")
    ends = consumer.end_offsets(partitions)
    consumer.assign(partitions)
    while any(consumer.position(each) < ends[each] for each in partitions):
        found += [record.value.decode() for record in consumer.poll(500)]
print(json.dumps(found))
"""
ASK: Final = """
import sys, urllib.request
for address in sys.argv[1:]:
    with urllib.request.urlopen(address, timeout=20) as answer:
        print(address, answer.status, answer.read().decode())
"""


def python(release: Release, program: str, *words: str) -> str:
    """What it prints in a broker's pod."""
    return release.tools.kubectl(
        "exec", "-i", "hapax-broker-0", "-n", release.namespace, "--", "python3", "-", *words, text=program)


@pytest.fixture
def two_machines(cluster: KubeCluster, figures: dict[str, float]) -> Iterator[list[str]]:
    """Machines with Spark's image, of which nothing else may use the second one."""
    machines = cluster.nodes[-2:]
    began = time.monotonic()
    cluster.load(machines, build_images("hapax-spark")["localhost/hapax-spark:test"])
    figures["Spark's image is loaded on two machines"] = time.monotonic() - began
    try:
        cluster.tools.kubectl("label", "node", *machines, f"{PLACE}=yes")
        cluster.tools.kubectl("taint", "node", machines[1], f"{PLACE}=yes:NoSchedule")
        yield machines
    finally:
        cluster.tools.kubectl("taint", "node", machines[1], f"{PLACE}-")
        cluster.tools.kubectl("label", "node", *machines, f"{PLACE}-")


def resources(bootstrap: str) -> str:
    small = {key: value for key, value in SMALL.items()
             if not key.endswith((".memory", ".cores")) and "ui" not in key}
    small["spark.kubernetes.executor.deleteOnTermination"] = "false"  # what failed can be looked at
    small["spark.eventLog.compress"] = "false"  # its text is looked at
    small["spark.kubernetes.executor.request.cores"] = SMALL["spark.kubernetes.executor.request.cores"]
    few = {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "spark-driver"}}}]}}
    return as_list(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "api"}, "stringData": {"token": TOKEN}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "jobs"},
         "data": {"mine.py": JOB, "helpers.py": HELPERS, "suffix": "mounted"}},
        {"apiVersion": "hapax.dev/v1alpha2", "kind": "TransactionalProducer", "metadata": {"name": "seen"},
         "spec": {"transactionalIdPrefix": f"{JOBS}.seen-"}},
        {"apiVersion": "hapax.dev/v1alpha2", "kind": "SparkJob", "metadata": {"name": "seen"}, "spec": {
            "producer": {"name": "seen"}, "image": os.environ.get("HAPAX_KUBE_SPARK_IMAGE", SPARK),
            "imagePullPolicy": "Never", "job": "local:///jobs/mine.py",
            "arguments": ["--bootstrap", bootstrap, "--input", "spark-in", "--output", "spark-out",
                          "--max-offsets-per-trigger", "300", "--trigger", "1 second"],
            "conf": small, "driver": {"memory": "512m", "resources": few},
            "executors": {"instances": 1, "cores": 1, "memory": "512m"},
            "env": [{"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "api", "key": "token"}}},
                    {"name": "MODE", "value": "both"}],
            "volumes": [{"name": "jobs", "configMap": {"name": "jobs"}}],
            "volumeMounts": [{"name": "jobs", "mountPath": "/jobs"},
                             {"name": "jobs", "mountPath": "/settings/suffix", "subPath": "suffix"}],
            "nodeSelector": {PLACE: "yes"},
            "tolerations": [{"key": PLACE, "operator": "Exists", "effect": "NoSchedule"}],
            "driverTemplate": {"metadata": {"labels": {"team": "data"}}},
            "executorTemplate": {
                "metadata": {"labels": {"team": "data"}},
                "spec": {"affinity": apart, "containers": [{
                    "name": "executor",
                    "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}]}},
            "dependencies": {"pyFiles": ["local:///jobs/helpers.py"]},
            "authenticate": True, "ui": {"service": True},
            "checkpoint": {"claimName": "hapax-spark-checkpoint", "path": "/checkpoint"},
            "eventLog": {"path": "/checkpoint/events"}, "backOff": {"firstSeconds": 1, "longestSeconds": 10}}})


def pods(tools: Tools, component: str) -> list[Any]:
    return list(tools.get("pods", *SPACE, "-l", f"app.kubernetes.io/component={component}")["items"])


def test_a_job_with_all_that_its_fields_say(
    release: Release, two_machines: list[str], figures: dict[str, float]
) -> None:
    tools = release.tools
    python(release, FILL % RECORDS)
    began = time.monotonic()
    tools.kubectl("apply", *SPACE, "-f", "-", text=resources(release.bootstrap))

    def status() -> Any:
        found = tools.get("sparkjob", "seen", *SPACE).get("status", {})
        assert found.get("record", {}).get("failures", 0) < 2, described(tools)
        return found

    def progress() -> dict[str, Any]:
        found: dict[str, Any] = status().get("progress", {})
        return found

    try:
        # The first batch is committed; the second one waits for a file on the volume that driver and executor share.
        wait_until(lambda: progress().get("lag", {}).get("records") == RECORDS - 300, "progress", 240, every_s=1)
        figures["a SparkJob's first batch is committed and shown in its status"] = time.monotonic() - began
        first = progress()
        assert (first["batchId"], first["inputRows"], first["executors"], first["name"]) == (0, 300, 1, "seen")
        assert first["processedRowsPerSecond"] > 0 and first["lag"]["milliseconds"] > 0
        assert first["lastCommit"]["batchId"] == 0
        (driver,), (executor,) = pods(tools, "spark-driver"), pods(tools, "spark-executor")
        assert {each["spec"]["nodeName"] for each in (driver, executor)} == set(two_machines)
        assert driver["metadata"]["labels"]["team"] == executor["metadata"]["labels"]["team"] == "data"
        assert TOKEN not in json.dumps([driver, executor]), "the Secret is referred to"
        uid = tools.get("sparkjob", "seen", *SPACE)["metadata"]["uid"]
        secret = tools.get("secret", f"seen-spark-auth-{uid[:8]}", *SPACE)["data"]["secret"]
        assert len(secret) > 40 and secret not in json.dumps([driver, executor])

        ui = f"http://seen-spark-ui.{JOBS}.svc.cluster.local"
        said = python(
            release, ASK, f"{ui}:4040/jobs/", f"{ui}:4040/metrics/executors/prometheus",
            f"{ui}:4040/metrics/prometheus/", f"{ui}:4040/api/v1/applications", f"{ui}:4041/metrics")
        for part in ("<title>", "metrics_executor_memoryUsed_bytes", "_jvm_heap_used", '"name" : "seen-spark-1"',
                     f'name="seen"}} {RECORDS - 300}'):
            assert part in said, said[-6000:]

        tools.kubectl("exec", driver["metadata"]["name"], *SPACE, "-c", "driver", "--", "touch", "/checkpoint/go")
        wait_until(lambda: progress().get("lag", {}).get("records") == 0 and progress()["lastCommit"]["batchId"] == 1
                   and status().get("lastToken", {}).get("value") == 1, "its end", 120, every_s=1)
        shown = status()
        assert shown["lastToken"]["records"] == 300 and shown["lastToken"]["scope"].startswith(first["queryId"])
        found = json.loads(python(release, READ))
        machine = executor["spec"]["nodeName"]
        assert sorted(found) == sorted(f"v{number}|{TOKEN}|both|mounted|{machine}" for number in range(RECORDS))

        tools.kubectl("delete", "sparkjob", "seen", *SPACE, "--timeout=120s", timeout_s=140)
        assert not [each for each in pods(tools, "spark-driver") if each["status"]["phase"] == "Running"]
        wait_until(lambda: not pods(tools, "spark-executor"), "end of the executors, which Kubernetes ends", 60)
        figures["a SparkJob from its resource to its end"] = time.monotonic() - began
        assert_logged(tools)
    finally:
        tools.kubectl("delete", "sparkjob,transactionalproducer", "seen", *SPACE, "--ignore-not-found", "--wait=false")


def assert_logged(tools: Tools) -> None:
    """The event logs are still on the volume."""
    image, name = os.environ.get("HAPAX_KUBE_SPARK_IMAGE", SPARK), "history"
    look = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "restartPolicy": "Never", "nodeSelector": {PLACE: "yes"}, "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001,
                                "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "checkpoint", "persistentVolumeClaim": {"claimName": "hapax-spark-checkpoint"}}],
            "containers": [{
                "name": name, "image": image, "imagePullPolicy": "Never",
                "command": ["sh", "-c", "cat /checkpoint/events/*/events_*"],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}]}]}}
    tools.kubectl("create", *SPACE, "-f", "-", text=json.dumps(look))
    tools.kubectl("wait", f"pod/{name}", *SPACE, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    logged = tools.kubectl("logs", name, *SPACE)
    tools.kubectl("delete", "pod", name, *SPACE, "--wait=false")
    assert "SparkListenerApplicationEnd" in logged and TOKEN not in logged


def described(tools: Tools) -> str:
    """What helps to find out why the job fails."""
    logs = [tools.kubectl("logs", *SPACE, "-l", f"app.kubernetes.io/component=spark-{role}", "-c", role, "--tail=60")
            for role in ("driver", "executor")]
    return "\n".join([tools.kubectl("get", "sparkjob", "seen", *SPACE, "-o", "jsonpath={.status}"), *logs])
