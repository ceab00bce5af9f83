"""Drivers' pods: what is in them, how they look to the plan, and what drivers say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from hapax.runtime.clock import SystemClock
from hapax_operator.plan_spark import PodSeen
from hapax_operator.resources import ProducerResource, read_producer
from hapax_operator.spark_pods import driver_name, driver_pod, pod_seen
from hapax_operator.spark_progress import ProgressReader, read_progress, read_report
from hapax_operator.spark_work import identity_of, of_section

SPARK: dict[str, Any] = {"image": "spark:1", "job": "jobs.one", "arguments": ["--x"],
                         "checkpoint": {"ephemeral": True}}


def resource(spark: Mapping[str, Any], name: str = "loader", **spec: Any) -> ProducerResource:
    spec = spec or {"transactionalId": "loader"}
    return read_producer({
        "metadata": {"namespace": "team", "name": name, "uid": "u"}, "spec": {**spec, "spark": dict(spark)}})


def pod(spark: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    described = resource(spark, **spec)
    assert described.spark is not None
    return driver_pod(of_section(described), described.spark, 3)


def environment(body: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in body["spec"]["containers"][0]["env"]}


def test_a_job_that_names_no_account_gets_that_of_the_operator_s_release() -> None:
    for given, account in (({}, "demo-hapax-spark"), ({"serviceAccountName": "mine"}, "mine")):
        described = resource({**SPARK, **given})
        assert described.spark is not None
        body = driver_pod(of_section(described), described.spark, 1, "demo-hapax-spark")
        assert body["spec"]["serviceAccountName"] == account


def test_a_driver_s_pod() -> None:
    body = pod({
        **SPARK, "executors": {"instances": 2, "cores": 3, "memory": "2g"}, "driver": {"memory": "512m"},
        "conf": {"spark.a": "b", "spark.kubernetes.executor.label.hapax.dev/spark-run": "7"},
        "checkpoint": {"claimName": "claim", "path": "/check"}})
    container, told = body["spec"]["containers"][0], environment(body)
    assert (body["metadata"]["name"], container["args"]) == ("loader-driver-3", ["run", "jobs.one", "--x"])
    assert body["spec"]["schedulingGates"] == [{"name": "hapax.dev/fenced"}], "it waits until it is named"
    assert body["spec"]["restartPolicy"] == "Never"
    assert (told["HAPAX_SPARK_EXECUTORS"], told["HAPAX_SPARK_EXECUTOR_CORES"]) == ("2", "3")
    assert (told["HAPAX_SPARK_EXECUTOR_MEMORY"], told["HAPAX_SPARK_DRIVER_MEMORY"]) == ("2g", "512m")
    assert (told["HAPAX_SPARK_CHECKPOINT"], told["HAPAX_SPARK_TRANSACTIONAL_ID"]) == ("/check", "loader")
    assert {"POD_NAME", "POD_NAMESPACE", "POD_IP", "HAPAX_SPARK_IMAGE"} <= set(told)
    conf = json.loads(told["HAPAX_SPARK_CONF"])
    assert conf["spark.a"] == "b"
    assert conf["spark.kubernetes.executor.label.hapax.dev/spark-run"] == "3", "by it executors are found"
    assert conf["spark.kubernetes.executor.label.app.kubernetes.io/component"] == "spark-executor"
    assert {"name": "checkpoint", "persistentVolumeClaim": {"claimName": "claim"}} in body["spec"]["volumes"]
    assert container["resources"]["limits"] == {"memory": "896Mi"}
    assert container["securityContext"]["readOnlyRootFilesystem"] and body["spec"]["securityContext"]["runAsNonRoot"]


def test_a_checkpoint_in_an_object_store_is_not_mounted() -> None:
    body = pod({**SPARK, "checkpoint": {"path": "s3a://b/c"}}, transactionalIdPrefix="team-")
    assert environment(body)["HAPAX_SPARK_CHECKPOINT"] == "s3a://b/c"
    assert environment(body)["HAPAX_SPARK_TRANSACTIONAL_ID_PREFIX"] == "team-"
    assert "checkpoint" not in {each["name"] for each in body["spec"]["volumes"]}


def test_names_are_those_of_hosts_and_never_the_same_for_two() -> None:
    names = [driver_name(name, 12_345) for name in ("a" * 200, "a" * 201, "a.b", "a-b", "a" * 46, "a" * 47)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and "." not in name for name in names)


def test_an_identity_is_that_of_the_id_not_of_the_resource() -> None:
    assert identity_of(resource(SPARK, "a")) == identity_of(resource(SPARK, "b"))
    assert identity_of(resource(SPARK, "a")) != identity_of(resource(SPARK, "a", transactionalIdPrefix="loader"))


@pytest.mark.parametrize(("status", "told"), [
    ({}, ("Pending", "", None)),
    ({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}, ("Pending", "Unschedulable", None)),
    ({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
     ("Pending", "ImagePullBackOff", None)),
    ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]},
     ("Failed", "OOMKilled", 137)),
    ({"phase": "Failed", "reason": "Evicted"}, ("Failed", "Evicted", None)),
])
def test_why_a_pod_waits_or_ended(status: dict[str, Any], told: tuple[str, str, int | None]) -> None:
    body = pod(SPARK)
    body["metadata"]["uid"] = "p"
    seen = pod_seen({**body, "status": status})
    assert (seen.phase, seen.reason, seen.exit_code) == told
    assert (seen.run, seen.driver, seen.gated, seen.owner, seen.told_ms) == (3, True, True, "u", -1)
    body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    assert pod_seen(body).told_ms == 1_767_225_600_000


@pytest.mark.parametrize("text", [
    b"", b"[]", b"{}", b'{"batchId": "x"}', b'{"batchId": 1, "timestampMs": null}', b"[" * 60_000,
    b'{"batchId": 1, "timestampMs": 253402300800000}', b'{"batchId": 1, "timestampMs": 1e300}',
    b'{"batchId": 9223372036854775808, "timestampMs": 1}', b'{"batchId": 1, "timestampMs": 1, "numInputRows": -2}',
    b'{"batchId": 1, "timestampMs": 1, "inputRowsPerSecond": NaN}',
    b'{"batchId": 1, "timestampMs": 1, "processedRowsPerSecond": 1e999}',
    b'{"batchId": 1, "timestampMs": 1, "lastCommit": {"batchId": 1, "timestampMs": 1e18}}',
])
def test_what_is_no_progress_is_told_apart(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_progress(text)


@pytest.mark.parametrize("report", [
    "", "[]", "null", "{}", '{"progress": null}', '{"progress": ' + "[" * 4000, '{"progress": ' + '{"a":' * 800])
def test_what_is_no_report_is_told_apart(report: str) -> None:
    """A container's last words are the user's: they must not keep the operator from looking after the job."""
    with pytest.raises(ValueError):
        read_report(report)


def test_what_is_shown_of_progress_is_valid_in_a_status() -> None:
    told = read_progress(
        b'{"batchId": 1, "timestampMs": 253402300799999, "name": "\\ud800", "lastCommit": {"batchId": 0}}').status()
    assert (told["time"], told["name"]) == ("9999-12-31T23:59:59Z", "?")


def test_progress_without_a_commit_yet() -> None:
    progress = read_progress(b'{"batchId": 0, "timestampMs": 1, "processedRowsPerSecond": 1.26, "lastCommit": null}')
    assert progress.status()["processedRowsPerSecond"] == 1.3 and "lastCommit" not in progress.status()


async def test_a_driver_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    text = b'{"batchId": 7, "timestampMs": 1}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    monkeypatch.setattr("hapax_operator.spark_progress.PROGRESS_PORT", server.sockets[0].getsockname()[1])
    progress, woken = ProgressReader(SystemClock()), asyncio.Event()
    seen = PodSeen("job-driver-1", "uid", "owner", 1, True, phase="Running", address="127.0.0.1")
    assert progress.of(seen, woken.set) is None
    await asked.wait()
    assert progress.of(seen, woken.set) is None
    answer.set()
    await asyncio.wait_for(woken.wait(), 30)
    known = progress.of(seen, woken.set)
    assert known is not None and known.batch == 7
    await progress.close()
    server.close()
