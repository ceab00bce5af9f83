"""Acts as scheduler and kubelet for pods of Spark jobs, where there are no nodes.

`tick()` makes one step: pods without a scheduling gate start (a driver creates an executor, as Spark does), and deleted
pods end. When a pod starts, a check makes sure that no two drivers run at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from hapax_kube.api import ApiError, KubeApi

IDENTITY = "hapax.dev/identity"
COMPONENT = "app.kubernetes.io/component"
RUN = "hapax.dev/spark-run"
CONF = "spark.kubernetes.executor.label."


class Kubelet:
    def __init__(self, api: KubeApi, namespace: str, address: str = "127.0.0.1") -> None:
        self._api = api
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._query = f"?{urlencode({'labelSelector': IDENTITY})}"
        self.address = address
        self.begun: list[str] = []
        """Names of the drivers that started, in order."""

    def pods(self, component: str = "") -> list[dict[str, Any]]:
        found = self._api.get(self._path + self._query)["items"]
        return [each for each in found if not component or each["metadata"]["labels"][COMPONENT] == component]

    def driver(self, prefix: str = "") -> dict[str, Any] | None:
        """The running driver whose name has this prefix."""
        found = self.pods("spark-driver")
        return next((each for each in found if alive(each) and each["metadata"]["name"].startswith(prefix)), None)

    def described(self) -> str:
        """The namespace's producers, jobs and pods, for whoever reads why a test failed."""
        kinds = "transactionalproducers.hapax.dev,sparkjobs.hapax.dev,pods"
        return self._api.kubectl("-n", self._namespace, "get", kinds, "-o", "yaml").stdout

    def close(self) -> None:
        """Removes the pods, which no kubelet would end, so that the namespace can be deleted."""
        for pod in self.pods():
            self._gone(pod)

    def tick(self) -> None:
        pods = self.pods()
        for pod in pods:
            try:
                if alive(pod) and pod["metadata"].get("deletionTimestamp"):
                    self.ends(pod, "Failed", "Error", 143)
                    self._gone(pod)
                elif not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates"):
                    self._begin(pod, pods)
            except ApiError as error:
                if error.code not in (404, 409):
                    raise

    def ends(self, pod: Mapping[str, Any], phase: str, reason: str, code: int, message: str = "") -> None:
        """Reports that the pod's container has ended."""
        said = message or f"said before {reason}"
        self._status(pod, {"phase": phase, "containerStatuses": [
            _container({"terminated": {"reason": reason, "exitCode": code, "message": said}})]})

    def _begin(self, pod: Mapping[str, Any], pods: list[dict[str, Any]]) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        others = [
            each["metadata"]["name"] for each in pods
            if alive(each) and each["metadata"]["labels"][IDENTITY] == labels[IDENTITY]
            and each["metadata"]["labels"][RUN] != labels[RUN]]
        assert not others, f"{name} started while {others} are running"
        self._api.create(f"{self._path}/{name}/binding", {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "machine"}})
        self._status(pod, {
            "phase": "Running", "podIP": self.address, "podIPs": [{"ip": self.address}],
            "containerStatuses": [_container({"running": {"startedAt": "2026-01-01T00:00:00Z"}})]})
        if labels[COMPONENT] == "spark-driver":
            self.begun.append(name)
            self._executor(pod)

    def _executor(self, driver: Mapping[str, Any]) -> None:
        """Creates an executor as Spark does: with the labels of the driver's settings, and owned by the driver."""
        environment = {each["name"]: each.get("value", "") for each in driver["spec"]["containers"][0]["env"]}
        conf = json.loads(environment["HAPAX_SPARK_CONF"])
        labels = {name.removeprefix(CONF): value for name, value in conf.items() if name.startswith(CONF)}
        metadata = driver["metadata"]
        self._api.create(self._path, {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"{metadata['name']}-exec-1", "labels": labels, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}]},
            "spec": {"containers": [{"name": "executor", "image": "none"}]}})

    def _status(self, pod: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        self._api.patch(f"{self._path}/{pod['metadata']['name']}/status", {
            "metadata": {"uid": pod["metadata"]["uid"]}, "status": status})

    def _gone(self, pod: Mapping[str, Any]) -> None:
        try:
            self._api.call("DELETE", f"{self._path}/{pod['metadata']['name']}", {
                "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
                "preconditions": {"uid": pod["metadata"]["uid"]}})
        except ApiError as error:
            if error.code not in (404, 409):
                raise


def alive(pod: Mapping[str, Any]) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in ("Succeeded", "Failed")


def _container(state: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "driver", "ready": "running" in state, "restartCount": 0, "image": "none", "imageID": "",
            "state": state}
