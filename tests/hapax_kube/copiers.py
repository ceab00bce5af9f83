"""Acts as the controller of Deployments, scheduler and kubelet for copiers of Mirrors, where there are no nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hapax_kube.api import ApiError, KubeApi
from hapax_operator.mirror_pods import MIRROR


class Copiers:
    """`tick()` makes one step: each Deployment of a Mirror gets as many ready pods as it wants, at `address`."""

    def __init__(self, api: KubeApi, namespace: str, address: str = "127.0.0.1") -> None:
        self._api = api
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        self.address = address
        self.come_up = True
        """Whether pods become ready."""

    def deployment(self, mirror: str) -> Any:
        return self._api.get(f"{self._deployments}/{mirror}-mirror")

    def arguments(self, mirror: str) -> list[str]:
        return list(self.deployment(mirror)["spec"]["template"]["spec"]["containers"][0]["args"])

    def pods(self, deployment: Mapping[str, Any]) -> list[Any]:
        uid = deployment["spec"]["selector"]["matchLabels"][MIRROR]
        return list(self._api.get(f"{self._pods}?labelSelector={MIRROR}%3D{uid}")["items"])

    def tick(self) -> None:
        for deployment in self._api.get(self._deployments)["items"]:
            try:
                self._run(deployment)
            except ApiError as error:
                if error.code not in (404, 409):
                    raise

    def close(self) -> None:
        for pod in self._api.get(f"{self._pods}?labelSelector={MIRROR}")["items"]:
            self._end(pod)

    def _run(self, deployment: Mapping[str, Any]) -> None:
        pods, wanted, name = self.pods(deployment), deployment["spec"]["replicas"], deployment["metadata"]["name"]
        for pod in pods[wanted:]:
            self._end(pod)
        for number in range(len(pods), wanted):
            self._start(deployment, f"{name}-{number}")
        self._api.patch(f"{self._deployments}/{name}/status", {"status": {
            "observedGeneration": deployment["metadata"]["generation"], "replicas": wanted, "updatedReplicas": wanted,
            "readyReplicas": wanted if self.come_up else 0, "conditions": [
                {"type": "Progressing", "status": "True", "reason": "x", "message": "x"}]}})

    def _start(self, deployment: Mapping[str, Any], name: str) -> None:
        template = deployment["spec"]["template"]
        self._api.create(self._pods, {
            "apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
            "metadata": {"name": name, "labels": template["metadata"]["labels"]}})
        status: dict[str, Any] = {
            "phase": "Running", "podIP": self.address, "podIPs": [{"ip": self.address}],
            "conditions": [{"type": "Ready", "status": "True" if self.come_up else "False"}]}
        if not self.come_up:
            status["containerStatuses"] = [{
                "name": "copier", "ready": False, "restartCount": 3, "image": "none", "imageID": "",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "the login failed"}}}]
        self._api.patch(f"{self._pods}/{name}/status", {"status": status})

    def _end(self, pod: Mapping[str, Any]) -> None:
        try:
            self._api.call("DELETE", f"{self._pods}/{pod['metadata']['name']}", {
                "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
        except ApiError as error:
            if error.code != 404:
                raise
