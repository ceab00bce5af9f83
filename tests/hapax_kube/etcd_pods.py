"""Acts as controller of StatefulSets, scheduler and kubelet for the pods of etcd, where there are no nodes.

The pods are objects of the API server, made from the StatefulSet as it is there. Their containers are processes on
loopback with the chart's own commands and settings: the init containers one after the other, then etcd, which is
started again when it ends. Each pod has an IP address of its own below 127, by which its host name is replaced. A
volume is a folder by the uid of its claim.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from hapax.local.etcd import find_etcd
from hapax_kube.api import ApiError, KubeApi
from integration.etcd_process import dies_with_parent

_READY_LOOK_S = 1.0


class _Pod:
    def __init__(self, body: Mapping[str, Any], folder: Path) -> None:
        self.name = body["metadata"]["name"]
        self.uid = body["metadata"]["uid"]
        self.spec = body["spec"]
        self.folder = folder
        self.done: dict[str, Any] = {}
        """Init container -> its final state."""
        self.process: subprocess.Popen[bytes] | None = None
        self.running = ""
        self.restarts = 0
        self.status: Any = None

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class EtcdPods:
    """`tick()` makes one step of everything. `network`: two numbers of the addresses, 127.a.b.x."""

    def __init__(self, api: KubeApi, namespace: str, folder: Path, network: str, name: str = "demo-hapax-etcd") -> None:
        self.api = api
        self.namespace = namespace
        self.name = name
        self.folder = folder
        self._network = network
        self._etcd = find_etcd(sound_only=True).path
        self._core = f"/api/v1/namespaces/{namespace}"
        self._set = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"
        self.pods: dict[str, _Pod] = {}
        self.tls = folder / "tls"
        """What the Secret of etcd holds."""
        self.ended: list[str] = []
        """Names of pods that were deleted, in order."""
        self.held: set[str] = set()
        """Names of pods that are not started, as if no machine could run them."""

    # --- addresses

    def address(self, ordinal: int) -> str:
        return f"127.{self._network}.1{ordinal}"

    def here(self, text: str, own: str = "") -> str:
        """`text` with addresses on loopback."""
        text = re.sub(rf"{self.name}-(\d|\{{ordinal\}})\.{self.name}\.[a-z0-9-]+\.svc\.cluster\.local",
                      lambda found: f"127.{self._network}.1{found[1]}", text)
        return text.replace("0.0.0.0", own) if own else text

    def client(self, ordinal: int) -> str:
        return f"{self.address(ordinal)}:2379"

    # --- what a person does

    def lose_volume(self, ordinal: int) -> None:
        """Deletes the claim and the pod: another pod comes on an empty volume."""
        claim = f"{self._core}/persistentvolumeclaims/data-{self.name}-{ordinal}"
        uid = self.api.get(claim)["metadata"]["uid"]
        self.kill(ordinal)
        self.api.patch(claim, {"metadata": {"finalizers": None}})
        with contextlib.suppress(ApiError):
            self.api.delete(claim)
        shutil.rmtree(self.folder / "volumes" / uid)
        self.api.delete(f"{self._core}/pods/{self.name}-{ordinal}")

    def kill(self, ordinal: int) -> None:
        self.pods[f"{self.name}-{ordinal}"].end()

    def log(self, ordinal: int) -> str:
        path = self.folder / f"{self.name}-{ordinal}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- steps

    def tick(self) -> None:
        present = {each["metadata"]["name"]: each for each in self._listed()}
        body = self._described(self.api.get(self._set), present)
        for name, pod in present.items():
            known = self.pods.get(name)
            if known is not None and known.uid != pod["metadata"]["uid"]:
                known.end()
                del self.pods[name]
            ordinal = int(name.rpartition("-")[2])
            if ordinal >= body["spec"]["replicas"] or "deletionTimestamp" in pod["metadata"]:
                self.ended.append(name)
                self._gone(name, pod["metadata"]["uid"])
        for ordinal in range(body["spec"]["replicas"]):
            name = f"{self.name}-{ordinal}"
            if name not in present:
                self._make(body, name)
            elif "deletionTimestamp" not in present[name]["metadata"] and name not in self.held:
                self._run(present[name], ordinal)

    def _described(self, body: dict[str, Any], present: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Its status, as its controller writes it."""
        template = json.dumps(body["spec"]["template"], sort_keys=True)
        revision = f"{self.name}-{hashlib.sha256(template.encode()).hexdigest()[:10]}"
        of = [each["metadata"]["labels"]["controller-revision-hash"] for each in present.values()]
        ready = sum(pod.status is not None and pod.status["conditions"][0]["status"] == "True"
                    for pod in self.pods.values())
        status = {
            "observedGeneration": body["metadata"]["generation"], "replicas": len(present), "readyReplicas": ready,
            "updatedReplicas": of.count(revision), "updateRevision": revision}
        known = body.get("status") or {}
        if {each: known.get(each, 0) for each in status} == status:
            return body
        found: dict[str, Any] = self.api.patch(f"{self._set}/status", {"status": status})
        return found

    def close(self) -> None:
        for pod in self.pods.values():
            pod.end()
        for each in self._listed():
            self._gone(each["metadata"]["name"], each["metadata"]["uid"])

    def _listed(self) -> list[dict[str, Any]]:
        query = urlencode({"labelSelector": "app.kubernetes.io/component=etcd"})
        found: list[dict[str, Any]] = self.api.get(f"{self._core}/pods?{query}")["items"]
        return found

    def _make(self, body: Mapping[str, Any], name: str) -> None:
        template, metadata = body["spec"]["template"], body["metadata"]
        labels = template["metadata"]["labels"]
        revision = body["status"]["updateRevision"]
        claim = f"data-{name}"
        if not self.api.exists(f"{self._core}/persistentvolumeclaims/{claim}"):
            (of,) = body["spec"]["volumeClaimTemplates"]
            self.api.create(f"{self._core}/persistentvolumeclaims", {
                "metadata": {"name": claim, "labels": labels}, "spec": of["spec"]})
        self.api.create(f"{self._core}/pods", {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "labels": {**labels, "controller-revision-hash": revision},
                "annotations": template["metadata"].get("annotations") or {},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": metadata["name"],
                                     "uid": metadata["uid"], "controller": True}]},
            "spec": {**template["spec"], "nodeName": "machine", "volumes": [
                *(template["spec"].get("volumes") or ()),
                {"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}})

    def _gone(self, name: str, uid: str) -> None:
        known = self.pods.pop(name, None)
        if known is not None:
            known.end()
        try:
            self.api.call("DELETE", f"{self._core}/pods/{name}", {
                "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    # --- one pod

    def _run(self, body: Mapping[str, Any], ordinal: int) -> None:
        name = body["metadata"]["name"]
        pod = self.pods.get(name)
        if pod is None:
            uid = self.api.get(f"{self._core}/persistentvolumeclaims/data-{name}")["metadata"]["uid"]
            folder = self.folder / "volumes" / uid
            folder.mkdir(parents=True, exist_ok=True)
            pod = self.pods[name] = _Pod(body, folder)
        containers = [*(pod.spec.get("initContainers") or ()), *pod.spec["containers"]]
        todo = next(each for each in containers if each["name"] not in pod.done)
        main = todo in pod.spec["containers"]
        if pod.process is not None and pod.process.poll() is not None:
            code, pod.process = pod.process.returncode, None
            if main:
                pod.restarts += 1
            elif code == 0:
                said = self._said(pod, todo)
                message = said.read_text() if said.exists() else ""
                pod.done[todo["name"]] = {"terminated": {"exitCode": 0, "reason": "Completed", "message": message}}
                self._report(pod, ordinal)
                return
        if pod.process is None:
            self._start(pod, ordinal, todo)
        self._report(pod, ordinal)

    def _said(self, pod: _Pod, container: Mapping[str, Any]) -> Path:
        return self.folder / f"{pod.name}-{pod.uid}-{container['name']}.said"

    def _start(self, pod: _Pod, ordinal: int, container: Mapping[str, Any]) -> None:
        known = {"POD_NAME": pod.name, "POD_UID": pod.uid}
        given = {}
        for each in container.get("env") or ():
            source = each.get("valueFrom") or {}
            if "configMapKeyRef" in source:
                reference = source["configMapKeyRef"]
                path = f"{self._core}/configmaps/{reference['name']}"
                data = self.api.get(path).get("data") or {} if self.api.exists(path) else {}
                if reference["key"] not in data:
                    if reference.get("optional"):
                        continue
                    return  # CreateContainerConfigError
                given[each["name"]] = data[reference["key"]]
            elif source:
                given[each["name"]] = known[each["name"]]
            else:
                given[each["name"]] = self._text(each.get("value", ""), pod, ordinal, {**known, **given}, container)
        command = [*container["command"], *(container.get("args") or ())]
        command = [self._text(each, pod, ordinal, {**known, **given}, container) for each in command]
        command[0] = {"python3": sys.executable, "etcd": self._etcd}[command[0]]
        with (self.folder / f"{pod.name}.log").open("ab") as log:
            pod.process = subprocess.Popen(
                dies_with_parent(command), stdout=log, stderr=log, env={**os.environ, **given})

    def _text(
        self, text: str, pod: _Pod, ordinal: int, known: Mapping[str, str], container: Mapping[str, Any]
    ) -> str:
        text = re.sub(r"\$\(([A-Z_]+)\)", lambda found: known.get(found[1], found[0]), text)
        text = self.here(text, self.address(ordinal))
        text = re.sub(r'(^|=|")/data/', lambda found: f"{found[1]}{pod.folder}/", text)
        text = text.replace("/etc/hapax/tls", str(self.tls))
        return text.replace("/dev/termination-log", str(self._said(pod, container)))

    def _report(self, pod: _Pod, ordinal: int) -> None:
        init = [{
            "name": each["name"], "ready": each["name"] in pod.done, "restartCount": 0, "image": "", "imageID": "",
            "state": pod.done.get(each["name"], {"waiting": {"reason": "PodInitializing"}}),
        } for each in pod.spec.get("initContainers") or ()]
        started = len(pod.done) == len(init) and pod.process is not None
        ready = started and self._serves(ordinal)
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}} if started else {"waiting": {"reason": "Waits"}}
        status = {
            "phase": "Running" if started else "Pending", "initContainerStatuses": init,
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{
                "name": pod.spec["containers"][0]["name"], "ready": ready, "restartCount": pod.restarts, "image": "",
                "imageID": "", "state": state}]}
        if status != pod.status:
            try:
                self.api.patch(f"{self._core}/pods/{pod.name}/status", {"metadata": {"uid": pod.uid}, "status": status})
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
            pod.status = status

    def _serves(self, ordinal: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address(ordinal)}:2381/readyz", timeout=_READY_LOOK_S):
                return True
        except OSError:
            return False

    # --- the keeper's file

    def spec(self, objects: list[dict[str, Any]], **care: Any) -> Path:
        """As the chart has it, for loopback. `care`: changes of its settings."""
        (found,) = (each for each in objects if each["kind"] == "ConfigMap" and "etcd.json" in each["data"])
        spec = json.loads(self.here(found["data"]["etcd.json"]))
        snapshots = self.folder / "snapshots"
        snapshots.mkdir(exist_ok=True)
        spec["snapshots"] = str(snapshots)
        spec["tls"] = str(self.tls) if spec["tls"] else ""
        spec["care"] |= care
        path = self.folder / "etcd.json"
        path.write_text(json.dumps(spec))
        return path
