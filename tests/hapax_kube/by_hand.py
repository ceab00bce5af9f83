"""Runs the pods of a rendered chart as processes on loopback, where there are no nodes: as a kubelet does, with the
chart's own commands, settings and Secrets.

Addresses are replaced: each (pod, port) has a port of its own on 127.0.0.1. Secrets are read from the API and written
to folders; a pod whose Secret is missing does not start, and `sync()` brings changes to those that run.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hapax.local.etcd import find_etcd
from hapax_kube.api import KubeApi
from integration.etcd_process import dies_with_parent, free_ports

Objects = list[dict[str, Any]]
_NAMED = re.compile(r"(?P<pod>[a-z0-9-]+)(?:\.[a-z0-9.-]+)?\.svc\.cluster\.local:(?P<port>\d+)")
_OWN = re.compile(r"(?:0\.0\.0\.0|\$\(POD_IP\)|127\.0\.0\.1|localhost):(?P<port>\d+)")
TRUSTED = "hapax.dev/trusted-issuers"


class Pod:
    def __init__(self, name: str, spec: Mapping[str, Any], folder: Path) -> None:
        self.name = name
        self.spec = spec
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def path(self, inside: str) -> Path:
        return self.folder / inside.lstrip("/")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class ByHand:
    def __init__(self, api: KubeApi, namespace: str, objects: Objects, folder: Path, release: str = "demo-hapax"):
        self.api = api
        self.namespace = namespace
        self.release = release
        self.objects = objects
        self._folder = folder
        self._ports: dict[tuple[str, int], int] = {}
        self.pods: dict[str, Pod] = {}

    # --- addresses

    def stays(self, port: int) -> None:
        """What listens on this port of loopback is none of the pods."""
        self._ports[f"other-{port}", port] = port

    def port(self, pod: str, port: int) -> int:
        """Where a pod's port is on loopback."""
        known = self._ports.get((pod, port))
        if known is None:
            known = self._ports[pod, port] = free_ports(1)[0]
        return known

    def here(self, text: str, pod: str) -> str:
        """`text` of a pod, with addresses on loopback."""
        first = {self.release: f"{self.release}-broker-0"}

        def named(found: re.Match[str]) -> str:
            return f"127.0.0.1:{self.port(first.get(found['pod'], found['pod']), int(found['port']))}"

        return _OWN.sub(lambda found: f"127.0.0.1:{self._own(pod, int(found['port']))}", _NAMED.sub(named, text))

    def _own(self, pod: str, port: int) -> int:
        """A port that was replaced already stays."""
        return port if port in self._ports.values() else self.port(pod, port)

    # --- pods

    def start(self, kind: str, component: str, name: str = "", node_id: int = 0, **environment: str) -> Pod | None:
        """None: a Secret is missing. `kind` and `component`: of its workload."""
        workload = f"{self.release}-{component}"
        (found,) = (each for each in self.objects
                    if (each["kind"], each["metadata"]["name"]) == (kind, workload))
        name = name or workload
        pod = Pod(name, found["spec"]["template"]["spec"], self._folder / name)
        pod.folder.mkdir(parents=True, exist_ok=True)
        if not self._secrets(pod):
            return None
        self._config_maps(pod)
        for folder in ("data", "tmp"):
            pod.path(folder).mkdir(exist_ok=True)
        for container in pod.spec.get("initContainers", ()):
            code = self._process(pod, container, node_id, environment).wait(60)
            assert code == 0, pod.log
        (container,) = pod.spec["containers"]
        pod.process = self._process(pod, container, node_id, environment)
        self.pods[name] = pod
        return pod

    def _process(
        self, pod: Pod, container: Mapping[str, Any], node_id: int, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        # Each release here has one member of etcd, which founds its cluster.
        known = {"POD_NAME": pod.name, "POD_UID": "by-hand", "FOUNDER": "by-hand", "REMOVED": "",
                 "HAPAX_NODE_ID": str(node_id)}
        given = {"POD_NAME": pod.name}
        for each in container.get("env", ()):
            if "value" in each:
                given[each["name"]] = self._text(each["value"], pod, given)
            elif each["name"] in known:
                given[each["name"]] = known[each["name"]]
            elif "secretKeyRef" in each["valueFrom"]:
                found = each["valueFrom"]["secretKeyRef"]
                given[each["name"]] = (self.secret(found["name"]) or {})[found["key"]].decode()
        command = [*container["command"], *container.get("args", ())]
        command = [self._text(each, pod, given) for each in command]
        if command[0] == "python3":
            command[0] = sys.executable
        elif command[0] == "etcd":
            command[0] = find_etcd().path
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HAPAX_")}
        with open(pod.folder / "log", "ab") as log:
            return subprocess.Popen(
                dies_with_parent(command), stdout=log, stderr=log, env={**kept, **given, **environment})

    def _text(self, text: str, pod: Pod, known: Mapping[str, str]) -> str:
        text = re.sub(r"\$\(([A-Z_]+)\)", lambda found: known.get(found[1], found[0]), text)
        text = self.here(text, pod.name)
        text = re.sub(
            r'(^|=|"|file://)/(etc/hapax|data|tmp)', lambda found: f"{found[1]}{pod.folder}/{found[2]}", text)
        return text.replace("/dev/termination-log", f"{pod.folder}/said")

    def restart_etcd(self, name: str) -> None:
        self.pods[name].end()
        assert self.start("StatefulSet", "etcd", name) is not None

    def close(self) -> None:
        for pod in self.pods.values():
            pod.end()

    # --- Secrets

    def secret(self, name: str) -> dict[str, bytes] | None:
        path = f"/api/v1/namespaces/{self.namespace}/secrets/{name}"
        if not self.api.exists(path):
            return None
        return {key: base64.b64decode(value) for key, value in (self.api.get(path).get("data") or {}).items()}

    def sync(self) -> None:
        """Brings the Secrets as they are now to the pods that run."""
        for pod in self.pods.values():
            self._secrets(pod)

    def _secrets(self, pod: Pod) -> bool:
        (container,) = pod.spec["containers"]
        mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        for volume in pod.spec["volumes"]:
            if "secret" not in volume:
                continue
            data = self.secret(volume["secret"]["secretName"])
            if data is None:
                return False
            folder = pod.path(mounted[volume["name"]])
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in data.items():
                # What a program in the pod would find there.
                if name.endswith(".properties"):
                    text = content.decode().replace("/etc/hapax", f"{pod.folder}/etc/hapax")
                    content = self.here(text, pod.name).encode()
                if not (folder / name).exists() or (folder / name).read_bytes() != content:
                    (folder / f".{name}").write_bytes(content)
                    (folder / f".{name}").replace(folder / name)
        return True

    def _config_maps(self, pod: Pod) -> None:
        (container,) = pod.spec["containers"]
        mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        for volume in pod.spec["volumes"]:
            if "configMap" in volume:
                (found,) = (each for each in self.objects if each["kind"] == "ConfigMap"
                            and each["metadata"]["name"] == volume["configMap"]["name"])
                folder = pod.path(mounted[volume["name"]])
                folder.mkdir(parents=True, exist_ok=True)
                for name, text in found["data"].items():
                    text = text.replace("/etc/hapax", f"{pod.folder}/etc/hapax")
                    (folder / name).write_text(self.here(text, pod.name))

    # --- etcd's workload

    def report_etcd(self, *, settled: bool) -> None:
        """Its status, which a controller would write."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets/{self.release}-etcd"
        body = self.api.get(path)
        wanted = body["spec"]["replicas"]
        self.api.patch(f"{path}/status", {"status": {
            "observedGeneration": body["metadata"]["generation"], "replicas": wanted, "currentRevision": "a",
            "readyReplicas": wanted, "updatedReplicas": wanted if settled else 0, "updateRevision": "b"}})

    def etcd_mark(self) -> str | None:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets/{self.release}-etcd"
        found = self.api.get(path)["spec"]["template"]["metadata"].get("annotations") or {}
        return None if TRUSTED not in found else str(found[TRUSTED])

    def spec(self, **changed: Any) -> Path:
        """The keeper's file of the rendered chart, for loopback."""
        (found,) = (each for each in self.objects if each["kind"] == "ConfigMap" and "spec.json" in each["data"])
        text = found["data"]["spec.json"]
        # What clients are told stays.
        spec = json.loads(self.here(text, "")) | {"clients": json.loads(text)["clients"]} | changed
        path = self._folder / "spec.json"
        path.write_text(json.dumps(spec))
        return path
