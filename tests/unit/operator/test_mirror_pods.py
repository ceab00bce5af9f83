"""The copiers of a Mirror, their user, and how the operator reads both."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hapax_operator.mirror_pods import (
    MIRROR,
    PodSeen,
    UserSeen,
    beside,
    deployment,
    deployment_seen,
    fingerprint_of,
    pod_seen,
    user,
    user_seen,
)
from hapax_operator.mirror_reports import ReportReader, TopicState, read_report

from .mirror_bodies import COPIERS, mirror


def container(body: dict[str, Any]) -> dict[str, Any]:
    (found,) = body["spec"]["template"]["spec"]["containers"]
    return found  # type: ignore[no-any-return]


def options(**spec: Any) -> list[str]:
    made = container(deployment(mirror(**spec), COPIERS, None))
    assert made["command"] == ["hapax"]
    return made["args"]  # type: ignore[no-any-return]


def test_the_command_line_says_what_the_mirror_says() -> None:
    assert options() == [
        "copy", "--from", "old:9092", "--to", "hapax.home.svc:9092", "--topics", r"shop\.orders", "--follow",
        "--on-lost", "stop", "--name", "shop.orders", "--instance", "$(POD_NAME)", "--metrics-host", "0.0.0.0",
        "--metrics-port", "8080"]
    everything = options(
        topics=["a", "b-*"], exclude=["b-x*"], groups=["g*"], prefix="old.", replicationFactor=2, onLost="Skip",
        target={"bootstrapServers": "new:1", "configMap": {"name": "c", "key": "k"}},
        source={"bootstrapServers": "old:9092", "secret": {"name": "s"}})
    assert everything == [
        "copy", "--from", "old:9092", "--to", "new:1", "--from-config", "/etc/hapax-copy/source/client.properties",
        "--to-config", "/etc/hapax-copy/target/k", "--topics", r"a|b\-.*", "--exclude", r"b\-x.*", "--groups", "g.*",
        "--prefix", "old.", "--replication-factor", "2", "--follow", "--on-lost", "skip", "--name", "shop.orders",
        "--instance", "$(POD_NAME)", "--metrics-host", "0.0.0.0", "--metrics-port", "8080"]
    assert "--by-key" in options(partitioning="ByKey")


def test_a_long_name_is_one_that_the_copy_takes() -> None:
    names = {mirror("x" * size, namespace="n" * 63).copy_name for size in (36, 37, 180, 200)}
    assert len(names) == 4 and {len(each) for each in names} == {100}


def test_files_of_both_sides_are_mounted() -> None:
    described = mirror(source={"bootstrapServers": "old:9092", "configMap": {"name": "c"}})
    body = deployment(described, COPIERS, UserSeen("3", True, ""))
    assert [(each["name"], each["mountPath"]) for each in container(body)["volumeMounts"]] == [
        ("tmp", "/tmp"), ("source", "/etc/hapax-copy/source"), ("target", "/etc/hapax-copy/target")]
    volumes = {each["name"]: each for each in body["spec"]["template"]["spec"]["volumes"]}
    assert volumes["source"]["configMap"] == {"name": "c"}
    assert volumes["target"]["secret"]["secretName"] == beside(described) == "orders-mirror"


def test_a_template_may_add_and_not_replace() -> None:
    body = deployment(mirror(podTemplate={
        "metadata": {"labels": {"team": "a", MIRROR: "other"}, "annotations": {"x": "y"}, "name": "mine"},
        "spec": {"priorityClassName": "high", "containers": [
            {"name": "copier", "command": ["sh"], "args": ["-c"], "image": "mine",
             "env": [{"name": "POD_NAME", "value": "x"}, {"name": "A", "value": "b"}]},
            {"name": "beside", "image": "other"}]}}), COPIERS, None)
    template = body["spec"]["template"]
    assert template["metadata"]["labels"].items() >= body["spec"]["selector"]["matchLabels"].items()
    assert template["metadata"]["labels"]["team"] == "a" and "name" not in template["metadata"]
    mine, beside_it = template["spec"]["containers"]
    assert (mine["command"], mine["args"][0], mine["image"]) == (["hapax"], "copy", COPIERS.image)
    assert {each["name"] for each in mine["env"]} == {"POD_NAME", "A"} and "valueFrom" in mine["env"][0]
    assert beside_it["name"] == "beside" and template["spec"]["priorityClassName"] == "high"


def test_a_fingerprint_is_of_all_that_was_made() -> None:
    made = {fingerprint_of(deployment(mirror(**spec), COPIERS, own)) for spec, own in (
        ({}, None), ({}, UserSeen("3", True, "")), ({"replicas": 2}, None), ({"suspend": True}, None),
        ({"topics": ["a"]}, None), ({"tolerations": [{"key": "a"}]}, None))}
    assert len(made) == 6
    assert fingerprint_of(user(mirror(), "a.b")) != fingerprint_of(user(mirror(), ""))


def test_its_user_may_do_what_the_copy_needs_and_no_more() -> None:
    acls = user(mirror(topics=["*"], prefix="shop.old.", groups=["shop.g"]), "")["spec"]["acls"]
    assert [(each["type"], each["name"], each["pattern"], each["operations"]) for each in acls] == [
        ("Topic", "shop.old.", "Prefixed", ["Read", "Write", "Create", "Alter", "DescribeConfigs"]),
        ("Topic", "hapax-copy.shop.orders.", "Prefixed", ["Read", "Write", "Create", "Alter", "DescribeConfigs"]),
        ("Group", "hapax-copy.shop.orders", "Literal", ["Read"]), ("Group", "shop.g", "Literal", ["Read"]),
        ("TransactionalId", "hapax-copy.shop.orders.", "Prefixed", ["Write"])]
    for spec in ({}, {"partitioning": "ByKey"}):  # each copy has a topic of its own for its positions
        acls = user(mirror(topics=["*"], **spec), "")["spec"]["acls"]
        assert [(each["name"], each["pattern"]) for each in acls[:2]] == [
            ("*", "Literal"), ("hapax-copy.shop.orders.", "Prefixed")]


def test_what_is_read_of_a_deployment() -> None:
    described = mirror()
    body = deployment(described, COPIERS, None)
    body["metadata"] |= {"resourceVersion": "9", "generation": 2}
    found = deployment_seen(body, described)
    assert found.ours and found.fingerprint == fingerprint_of(body) and not found.current
    assert not deployment_seen(body, mirror("other")).ours
    body["status"] = {
        "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "conditions": [
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "too long"},
            {"type": "Available", "status": "False", "reason": "x", "message": "no"}]}
    found = deployment_seen(body, described)
    assert (found.current, found.pods, found.updated, found.ready, found.failure) == (True, 1, 1, 0, "too long")


def test_a_user_is_ready_for_what_it_is_now() -> None:
    described = mirror()
    body = user(described, "")
    body["metadata"] |= {"resourceVersion": "9", "generation": 2}
    assert not user_seen(body, described).ready
    body["status"] = {"observedGeneration": 1, "conditions": [
        {"type": "Ready", "status": "True", "message": "it can log in"}]}
    assert not user_seen(body, described).ready
    body["status"] |= {"observedGeneration": 2, "passwordSince": "2026-01-01T00:00:00Z"}
    assert user_seen(body, described).ready and user_seen(body, described).password_since == "2026-01-01T00:00:00Z"


def pod(**status: Any) -> PodSeen:
    return pod_seen({"metadata": {"name": "a", "uid": "u"}, "status": {"podIP": "10.0.0.1", **status}})


def test_a_pod_that_does_not_run_says_why() -> None:
    ready = {"type": "Ready", "status": "True"}
    assert pod(conditions=[ready]) == PodSeen("a", "u", "10.0.0.1", True)
    assert pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "no node"}]).problem == "no node"
    waits = {"name": "copier", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
             "lastState": {"terminated": {"reason": "Error", "message": "the login failed\n"}}}
    assert pod(containerStatuses=[{"name": "beside", "state": {}}, waits]).problem == "the login failed"
    pulls = {"name": "copier", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    assert pod(containerStatuses=[pulls]).problem == "ImagePullBackOff"
    assert not pod_seen({"metadata": {"name": "a", "uid": "u", "deletionTimestamp": "x"},
                         "status": {"conditions": [ready]}}).ready


# --- reports ----------------------------------------------------------------------------------------------------------

TOLD = {"startedMs": 5, "records": 7, "topics": [
    {"name": "a", "partitions": 2, "lagRecords": 3, "lagMs": 4, "kind": "made-again", "error": "it is another one"}]}


def test_a_report_is_read() -> None:
    report = read_report(json.dumps(TOLD).encode())
    assert report.topics == (TopicState("a", 2, 3, 4, "MadeAgain", "it is another one", True),)
    assert (report.started_ms, report.records, report.partitions, report.source_error) == (5, 7, 2, "")


@pytest.mark.parametrize("text", [
    b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, json.dumps({**TOLD, "records": -1}).encode(),
    json.dumps({**TOLD, "startedMs": 2**70}).encode(), json.dumps({**TOLD, "topics": [1]}).encode(),
    json.dumps({**TOLD, "topics": 1}).encode()])
def test_what_is_no_report_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_report(text)


async def test_copiers_are_asked_at_once_and_one_that_is_silent_holds_up_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /status ")
        text = json.dumps(TOLD).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(text))
        for at in range(0, len(text), 20):
            writer.write(text[at:at + 20])
            await writer.drain()
        writer.close()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr("hapax_operator.pod_http._TIMEOUT_S", 0.5)
    reports = ReportReader()
    async with await asyncio.start_server(answer, "127.0.0.1") as good:
        port = good.sockets[0].getsockname()[1]
        async with await asyncio.start_server(silent, "127.0.0.2", port):
            monkeypatch.setattr("hapax_operator.mirror_reports.METRICS_PORT", port)
            found = await reports.read([
                PodSeen("a", "1", "127.0.0.1"), PodSeen("b", "2", "127.0.0.2"), PodSeen("c", "3", "127.0.0.3"),
                PodSeen("d", "4")])
    await reports.close()
    assert list(found) == ["1"]
