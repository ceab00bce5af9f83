"""The chart on machines: it comes up in time, and `helm test` has produced, transacted and consumed."""

from __future__ import annotations

import json

import pytest

from hapax_kube.tools import Release
from integration.busy import busy_loops
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

INSTALLED_S = 90.0
HEALTH = """
import sys, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
for address in sys.argv[1:]:
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        print(address, health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
"""


def test_it_is_installed_in_time(release: Release, figures: dict[str, float]) -> None:
    assert figures["helm install until every pod is ready"] <= INSTALLED_S


def test_the_rest_api_answers(release: Release) -> None:
    ask = "import urllib.request as http; print(http.urlopen('http://hapax-admin/v1/nodes?role=broker').read().decode())"
    said = release.tools.kubectl("exec", "hapax-broker-0", "-n", release.namespace, "--", "python3", "-c", ask)
    assert {each["node_id"] for each in json.loads(said)["items"]} == {0, 1, 2}


def test_a_grpc_client_in_a_pod_is_answered_by_every_process(release: Release) -> None:
    pods = [pod for role in ("broker", "coordinator", "pid", "controller") for pod in release.pods(role)]
    listeners = {
        f"{pod['status']['podIP']}:{port['containerPort']}"
        for pod in pods for container in pod["spec"]["containers"] for port in container.get("ports", ())
        if port["name"] in ("rpc", "public-rpc")
    }
    assert len(listeners) == 2 * len(pods) >= 8
    wanted = {f"{address} SERVING" for address in listeners}

    def said() -> set[str]:
        answers = release.tools.kubectl(
            "exec", "hapax-broker-0", "-n", release.namespace, "--", "python3", "-c", HEALTH, *sorted(listeners),
            timeout_s=180)
        return set(answers.splitlines())

    with busy_loops():  # a process that got no time for its lease says so, and serves again
        wait_until(lambda: said() == wanted, "answer of every process that it serves", 120, every_s=1)
