"""`TransactionalProducer.spec.spark` against a real API server and a real cluster; the test plays the kubelet."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from hapax.client import NewTopic
from hapax.client.blocking import Admin, Producer
from hapax.client.errors import HapaxError
from hapax.local.cluster import LocalCluster
from hapax_kube.answering import answering
from hapax_kube.api import ApiError
from hapax_kube.kubelet import Kubelet
from hapax_kube.operator import ADOPT, Namespace, OperatorProcess
from hapax_operator.resources import read_producer
from hapax_operator.spark_pods import PROGRESS_PORT, driver_pod
from hapax_operator.spark_work import of_section
from integration.waiting import wait_until

PRODUCERS = "transactionalproducers"
SPARK = {"image": "hapax-spark:test", "job": "hapax_spark.jobs.passthrough", "arguments": ["--input", "a"],
         "checkpoint": {"ephemeral": True},
         "backOff": {"firstSeconds": 3, "longestSeconds": 5}}

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def kubelet(namespace: Namespace) -> Iterator[Kubelet]:
    kubelet = Kubelet(namespace.api, namespace.name)
    yield kubelet
    kubelet.close()


def reason(namespace: Namespace, kind: str = "SparkRunning") -> tuple[str, str]:
    return namespace.condition(PRODUCERS, "job", kind)


def until(kubelet: Kubelet, done: Callable[[], bool], what: str) -> None:
    """Pods do meanwhile what they are told."""
    def look() -> bool:
        kubelet.tick()
        return done()

    try:
        wait_until(look, what, 60)
    except AssertionError as error:
        error.add_note(f"the resources and pods are: {kubelet.described()}")
        raise


def test_a_job_runs_fails_runs_again_is_done_and_ends(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster, kubelet: Kubelet
) -> None:
    name = f"job-{uuid.uuid4().hex[:8]}"
    progress = {
        "queryId": "q", "runId": "r", "name": "passthrough", "batchId": 4, "numInputRows": 100,
        "inputRowsPerSecond": 12.34, "processedRowsPerSecond": 56.78, "timestampMs": 1_800_000_000_000,
        "lastCommit": {"batchId": 3, "timestampMs": 1_799_999_999_000}}
    with answering(PROGRESS_PORT, lambda: progress) as address:
        kubelet.address = address
        namespace.producer("job", transactionalId=name, spark=SPARK)
        until(kubelet, lambda: reason(namespace) == ("True", "Running"), "a run")
        pod = kubelet.driver()
        assert pod is not None and kubelet.begun == ["job-driver-1"]
        container = pod["spec"]["containers"][0]
        assert container["args"] == ["run", "hapax_spark.jobs.passthrough", "--input", "a"]
        assert {"name": "HAPAX_SPARK_TRANSACTIONAL_ID", "value": name} in container["env"]
        assert pod["metadata"]["ownerReferences"][0]["name"] == "job"

        def shown() -> dict[str, Any]:
            return namespace.get(PRODUCERS, "job")["status"].get("sparkProgress", {})

        until(kubelet, lambda: shown().get("batchId") == 4 and shown()["executors"] == 1, "progress")
        assert (shown()["processedRowsPerSecond"], shown()["lastCommit"]) == (
            56.8, {"batchId": 3, "time": "2027-01-15T07:59:59Z"})

    kubelet.ends(pod, "Failed", "OOMKilled", 137)
    until(kubelet, lambda: reason(namespace)[1] == "BackOff", "back-off")
    assert reason(namespace, "SparkFailed") == ("True", "OOMKilled")
    until(kubelet, lambda: reason(namespace) == ("True", "Running"), "the second run")
    assert kubelet.begun == ["job-driver-1", "job-driver-2"]
    assert reason(namespace, "SparkFailed") == ("False", "RunsAgain")
    assert {"SparkRunning", "SparkFailed", "BackOff"} <= namespace.events()

    second = kubelet.driver()
    assert second is not None
    kubelet.ends(second, "Succeeded", "Completed", 0)
    until(kubelet, lambda: reason(namespace)[1] == "Completed", "completion")
    namespace.patch(PRODUCERS, "job", spark={"rerun": 1})
    until(kubelet, lambda: len(kubelet.begun) == 3 and reason(namespace) == ("True", "Running"), "another run")
    namespace.patch(PRODUCERS, "job", spark={"arguments": ["--input", "b"]})
    until(kubelet, lambda: len(kubelet.begun) == 4 and reason(namespace) == ("True", "Running"), "a changed job's run")
    namespace.patch(PRODUCERS, "job", spark={"suspend": True})
    until(kubelet, lambda: reason(namespace)[1] == "Suspended" and kubelet.driver() is None, "suspension")
    namespace.patch(PRODUCERS, "job", spark={"suspend": False})
    until(kubelet, lambda: reason(namespace) == ("True", "Running"), "the run after it")
    namespace.delete(PRODUCERS, "job")
    assert namespace.exists(PRODUCERS, "job"), "its driver ends first"
    until(kubelet, lambda: not namespace.exists(PRODUCERS, "job"), "end of the resource")
    assert kubelet.driver() is None


def test_a_driver_s_pod_fits_the_restricted_standard(namespace: Namespace) -> None:
    namespace.api.patch(f"/api/v1/namespaces/{namespace.name}", {
        "metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    pods = f"/api/v1/namespaces/{namespace.name}/pods?dryRun=All&fieldValidation=Strict"
    described = read_producer(namespace.producer("job", transactionalId="job", managed=False, spark={
        **SPARK, "checkpoint": {"claimName": "claim"}, "nodeSelector": {"disk": "fast"}, "imagePullSecrets": ["one"]}))
    assert described.spark is not None
    pod = deepcopy(driver_pod(of_section(described), described.spark, 1))
    namespace.api.create(pods, pod)
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="violates PodSecurity"):
        namespace.api.create(pods, pod)


def test_whoever_holds_the_id_is_fenced_before_a_run_starts(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster, kubelet: Kubelet
) -> None:
    name = f"job-{uuid.uuid4().hex[:8]}"
    settings = {"bootstrap.servers": hapax.bootstrap}
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(name, 1)])
    with Producer({**settings, "transactional.id": name}) as former:
        former.begin()
        former.send(name, b"x")
        former.flush()
        namespace.producer("job", annotations=ADOPT, transactionalId=name, spark=SPARK)
        until(kubelet, lambda: reason(namespace) == ("True", "Running"), "a run")
        with pytest.raises(HapaxError):
            former.commit()
    assert "run 1 is about to start" in namespace.get(PRODUCERS, "job")["status"]["lastFence"]["reason"]


def test_pause_and_unmanaged_leave_the_job_alone(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster, kubelet: Kubelet
) -> None:
    name = f"job-{uuid.uuid4().hex[:8]}"
    namespace.producer("job", transactionalId=name, managed=False, spark=SPARK)
    until(kubelet, lambda: namespace.condition(PRODUCERS, "job")[0] == "True", "a look")
    namespace.annotate(PRODUCERS, "job", pause="true")
    namespace.patch(PRODUCERS, "job", managed=True)
    until(kubelet, lambda: namespace.condition(PRODUCERS, "job", "Paused")[0] == "True", "pause")
    assert kubelet.pods() == []
    namespace.annotate(PRODUCERS, "job", pause=None)
    until(kubelet, lambda: reason(namespace) == ("True", "Running"), "a run")
    namespace.annotate(PRODUCERS, "job", pause="true")
    namespace.patch(PRODUCERS, "job", spark={"suspend": True})
    until(kubelet, lambda: namespace.condition(PRODUCERS, "job", "Paused")[0] == "True", "pause")
    assert kubelet.driver() is not None
    namespace.delete(PRODUCERS, "job")
    until(kubelet, lambda: not namespace.exists(PRODUCERS, "job"), "end of the resource, for which nobody waits")


def test_a_spark_job_runs_under_its_producer_and_waits_where_it_has_none(
    namespace: Namespace, operator: OperatorProcess, hapax: LocalCluster, kubelet: Kubelet
) -> None:
    name, jobs = f"job-{uuid.uuid4().hex[:8]}", "sparkjobs"
    told = {
        "batchId": 4, "numInputRows": 100, "inputRowsPerSecond": 12.34, "processedRowsPerSecond": 56.78,
        "timestampMs": 1_800_000_000_000, "lag": {"records": 250, "ms": 3400}}

    def shown(kind: str, which: str = "copy") -> tuple[str, str]:
        return namespace.condition(jobs, which, kind)

    with answering(PROGRESS_PORT, lambda: told) as address:
        kubelet.address = address
        namespace.spark_job("copy", "loader", **SPARK)
        until(kubelet, lambda: shown("Ready") == ("False", "NoProducer"), "a look")
        namespace.producer("loader", transactionalId=name)
        until(kubelet, lambda: shown("Running") == ("True", "Running"), "a run")
        assert kubelet.begun == ["copy-spark-1"] and shown("Ready") == ("True", "Accepted")
        until(kubelet, lambda: "progress" in namespace.get(jobs, "copy")["status"]
              and namespace.get(jobs, "copy")["status"]["progress"].get("lag") is not None, "progress")
    status = namespace.get(jobs, "copy")["status"]
    assert status["progress"]["lag"] == {"records": 250, "milliseconds": 3400}
    assert (status["progress"]["batchId"], status["transactionalId"]) == (4, name)
    columns = namespace.api.kubectl("-n", namespace.name, "get", "sparkjob", "copy").stdout.split("\n")
    assert "BEHIND" in columns[0] and "250" in columns[1]

    namespace.spark_job("rival", "loader", **SPARK)
    until(kubelet, lambda: shown("Ready", "rival") == ("False", "ResourceConflict"), "the younger one waits")
    namespace.delete(jobs, "copy")
    until(kubelet, lambda: shown("Running", "rival") == ("True", "Running"), "the younger one's run")
    assert kubelet.begun == ["copy-spark-1", "rival-spark-1"]
    namespace.delete("transactionalproducers", "loader")
    until(kubelet, lambda: shown("Running", "rival") == ("False", "NoProducer") and kubelet.driver() is None, "the end")
    assert not namespace.exists(jobs, "copy")


def test_a_scheduled_job_runs_once_for_a_time_whatever_its_operator_does(
    namespace: Namespace, start_operator: Callable[..., OperatorProcess], hapax: LocalCluster, kubelet: Kubelet
) -> None:
    jobs, operator = "sparkjobs", start_operator(namespace)
    namespace.producer("loader", transactionalId=f"job-{uuid.uuid4().hex[:8]}")
    namespace.spark_job("nightly", "loader", **SPARK, schedule={"cron": "* * * * *"}, authenticate=True,
                        ui={"service": True})

    def begun() -> bool:
        kubelet.tick()
        return bool(kubelet.begun)

    def record() -> dict[str, Any]:
        found: dict[str, Any] = namespace.get(jobs, "nightly").get("status", {}).get("record", {})
        return found

    # It may be due at once, if the operator became the leader as a minute was full.
    wait_until(begun, "the first run", 100)
    scheduled, pod = record()["scheduledAt"], kubelet.driver()
    assert pod is not None and scheduled.endswith(":00Z")
    created = namespace.get(jobs, "nightly")["metadata"]["creationTimestamp"]
    assert created < scheduled <= pod["metadata"]["creationTimestamp"], "not early, nor for a time before it was made"
    uid = namespace.get(jobs, "nightly")["metadata"]["uid"]
    assert namespace.secret(f"nightly-spark-auth-{uid[:8]}")["secret"], "what driver and executors know each other by"
    assert namespace.api.exists(f"/api/v1/namespaces/{namespace.name}/services/nightly-spark-ui")
    operator.kill()
    kubelet.ends(pod, "Succeeded", "Completed", 0, json.dumps({"progress": {
        "queryId": "q", "batchId": 7, "numInputRows": 5, "inputRowsPerSecond": 2.5, "timestampMs": 1_767_225_600_250,
        "lastCommit": {"batchId": 7, "timestampMs": 1_767_225_601_000}, "lag": {"records": 0, "ms": 0}}}))
    start_operator(namespace)
    until(kubelet, lambda: record().get("stage") == "Ended" or record()["scheduledAt"] != scheduled, "its end")
    (end,) = record()["history"]
    assert end["reason"] == "Completed" and "progress" not in end.get("message", "")

    def left() -> dict[str, Any]:
        found: dict[str, Any] = namespace.get(jobs, "nightly")["status"].get("progress", {})
        return found

    until(kubelet, lambda: left().get("batchId") == 7, "the last batch, which its driver left")
    assert (left()["lag"]["records"], left()["inputRowsPerSecond"]) == (0, 0)
    if record()["scheduledAt"] == scheduled:
        assert kubelet.begun == ["nightly-spark-1"], "no second run for the time"
