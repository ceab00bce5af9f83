"""The operator as a separate process, and a namespace with shortcuts to its resources."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hapax.local.cluster import LocalCluster
from hapax_kube.api import ApiError, KubeApi
from hapax_operator.resources import version_of
from integration.etcd_process import dies_with_parent

GROUP = "/apis/hapax.dev"


ADOPT = {"hapax.dev/adopt": "true"}


class Namespace:
    """`topic(...)` and `producer(...)` create resources; the other methods take a plural and a name."""

    def __init__(self, api: KubeApi, name: str) -> None:
        self.api = api
        self.name = name

    def path(self, plural: str, name: str = "") -> str:
        path = f"{GROUP}/{version_of(plural)}/namespaces/{self.name}/{plural}"
        return path + (f"/{name}" if name else "")

    def topic(self, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
        return self._create("topics", "Topic", name, spec, annotations)

    def producer(self, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
        return self._create("transactionalproducers", "TransactionalProducer", name, spec, annotations)

    def spark_job(self, name: str, producer: str, **spec: Any) -> Any:
        return self._create("sparkjobs", "SparkJob", name, {"producer": {"name": producer}, **spec}, None)

    def user(self, name: str, login: str = "Scram", *, authentication: Any = None, **spec: Any) -> Any:
        """`authentication`: its further fields."""
        return self._create(
            "users", "User", name, {"authentication": {"type": login, **(authentication or {})}, **spec}, None)

    def mirror(self, name: str, **spec: Any) -> Any:
        return self._create("mirrors", "Mirror", name, spec, None)

    def secret(self, name: str) -> dict[str, str]:
        """Its contents; empty if there is no such Secret."""
        path = f"/api/v1/namespaces/{self.name}/secrets/{name}"
        if not self.api.exists(path):
            return {}
        data = self.api.get(path).get("data") or {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def _create(self, plural: str, kind: str, name: str, spec: Any, annotations: dict[str, str] | None) -> Any:
        metadata = {"name": name, "annotations": annotations or {}}
        return self.api.create(self.path(plural), {
            "apiVersion": f"hapax.dev/{version_of(plural)}", "kind": kind, "metadata": metadata, "spec": spec})

    def get(self, plural: str, name: str) -> Any:
        return self.api.get(self.path(plural, name))

    def patch(self, plural: str, name: str, **spec: Any) -> Any:
        return self.api.patch(self.path(plural, name), {"spec": spec})

    def annotate(self, plural: str, name: str, **annotations: str | None) -> Any:
        return self.api.patch(self.path(plural, name), {"metadata": {"annotations": {
            f"hapax.dev/{key}": value for key, value in annotations.items()}}})

    def delete(self, plural: str, name: str) -> Any:
        return self.api.delete(self.path(plural, name))

    def exists(self, plural: str, name: str) -> bool:
        return self.api.exists(self.path(plural, name))

    def condition(self, plural: str, name: str, kind: str = "Ready") -> tuple[str, str]:
        """Status and reason; empty if the condition is missing or describes an older generation."""
        body = self.get(plural, name)
        for each in body.get("status", {}).get("conditions", ()):
            if each["type"] == kind and each["observedGeneration"] == body["metadata"]["generation"]:
                return each["status"], each["reason"]
        return "", ""

    def ready(self, name: str, plural: str = "topics") -> bool:
        return self.condition(plural, name)[0] == "True"

    def events(self) -> set[str]:
        """The reasons of all events up to now."""
        found = self.api.get(f"/apis/events.k8s.io/v1/namespaces/{self.name}/events")
        return {each["reason"] for each in found["items"]}

    def refusal(self, *arguments: Any, **spec: Any) -> str:
        """The API server's message when it refuses this Topic; empty if it accepted it."""
        try:
            self.topic(*arguments, **spec)
        except ApiError as error:
            return error.message
        return ""


class OperatorProcess:
    def __init__(
        self, cluster: LocalCluster, kubeconfig: Path, namespace: str, node_id: int, folder: Path, brokers: str = "",
        more: Sequence[str] = (),
    ) -> None:
        """`brokers`: the StatefulSet whose number of replicas the operator sets. `more`: of the command line."""
        self.folder = folder
        state = cluster.status()
        etcd = state.process("etcd")
        self.command = [
            sys.executable, "-m", "hapax_operator.main", "--namespace", namespace,
            "--set", f"node.id={node_id}", "--set", f"etcd.endpoints=127.0.0.1:{etcd.port}",
            "--set", f"cluster.id={state.cluster_id}", "--set", f"log.dir={folder / 'data'}",
            "--set", "http.listen=127.0.0.1:0", *(["--brokers", f"{namespace}/{brokers}"] if brokers else []),
            *more,
        ]  # fmt: skip
        self.environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "operator.log", "ab") as log:
            self.process = subprocess.Popen(
                dies_with_parent(self.command), stdout=log, stderr=log, env=self.environment)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ends the operator with SIGTERM. Returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def log(self) -> str:
        return (self.folder / "operator.log").read_text(errors="replace")

    def processor_s(self) -> float:
        """Processor time that it has used so far."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise AssertionError(json.dumps(self.command))


def readiness(port: int) -> str:
    """Why the process is not ready; empty: it is."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            assert answer.status == 200
            return ""
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError as error:
        return str(error)
