"""kubectl and helm for a cluster, and Hapax installed there by its chart."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from hapax_kube.binaries import ROOT

CHART: Final = ROOT / "charts" / "hapax"
_LOOK_EVERY_S: Final = 0.3
_WATCH_S: Final = 20


class Tools:
    def __init__(self, binaries: Path, kubeconfig: Path) -> None:
        self.binaries = binaries
        self.kubeconfig = kubeconfig

    def kubectl(self, *words: str, timeout_s: float = 120, text: str | None = None) -> str:
        return self._call("kubectl", words, timeout_s, text)

    def helm(self, *words: str, timeout_s: float = 300) -> str:
        return self._call("helm", words, timeout_s, None)

    def command(self, program: str, *words: str) -> list[str]:
        return [str(self.binaries / program), f"--kubeconfig={self.kubeconfig}", *words]

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def _call(self, program: str, words: tuple[str, ...], timeout_s: float, text: str | None) -> str:
        done = subprocess.run(
            self.command(program, *words), input=text, capture_output=True, text=True, check=False, timeout=timeout_s)
        assert done.returncode == 0, f"{program} {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout


class Release:
    """A Helm release of Hapax in its own namespace. Resources have the names that `helm install` gives them."""

    def __init__(self, tools: Tools, namespace: str, values: Path) -> None:
        self.tools = tools
        self.namespace = namespace
        self.values = values
        self.name = "hapax"

    @property
    def bootstrap(self) -> str:
        """The bootstrap address for clients inside the cluster."""
        return f"hapax-broker.{self.namespace}.svc.cluster.local:9092"

    def install(self, *words: str) -> float:
        """Returns the seconds until every pod is ready."""
        began = time.monotonic()
        self.tools.helm(
            "install", self.name, str(CHART), "--namespace", self.namespace, "--create-namespace",
            "--values", str(self.values), *words)
        self.wait_ready()
        return time.monotonic() - began

    def upgrade(self, *words: str) -> float:
        """Returns the seconds until every pod is replaced and ready."""
        began = time.monotonic()
        self.tools.helm(
            "upgrade", self.name, str(CHART), "--namespace", self.namespace, "--values", str(self.values), *words)
        self.wait_ready()
        return time.monotonic() - began

    def wait_ready(self, patience_s: float = 300) -> None:
        """Waits until each workload has all pods of its newest description ready, and the wanted number of brokers
        serve."""
        limit = time.monotonic() + patience_s
        while unready := [_called(each) for each in self.workloads() if not self._complete(each)]:
            assert time.monotonic() < limit, f"not ready: {unready}\n{self.describe()}"
            # `kubectl wait` uses a watch; polling would take processor time from the pods.
            with contextlib.suppress(AssertionError):
                kind, _, name = unready[0].partition("/")
                words = ("rollout", "status", unready[0]) if kind == "deployment" else (
                    "wait", "--for=condition=Rolled", f"workload/{name}")
                self.tools.kubectl(*words, "-n", self.namespace, f"--timeout={_WATCH_S}s")
            time.sleep(_LOOK_EVERY_S)

    def workloads(self) -> list[Any]:
        return list(self.tools.get("statefulsets,deployments", "-n", self.namespace)["items"])

    def pods(self, component: str) -> list[Any]:
        found = self.tools.get("pods", "-n", self.namespace, "-l", f"app.kubernetes.io/component={component}")
        return list(found["items"])

    def _complete(self, body: Any) -> bool:
        name, chart = body["metadata"]["name"], "hapax.dev/replicas"
        if not name.endswith("-broker"):
            return _complete(body)
        words = ("get", "brokerpools", name, "-n", self.namespace, "--ignore-not-found", "-o", "json")
        pool = json.loads(self.tools.kubectl(*words) or "{}")
        conditions = pool.get("status", {}).get("conditions", ())
        return _complete(body) and any(
            (each["type"], each["status"]) == ("Ready", "True")
            and each["observedGeneration"] == pool["metadata"]["generation"]
            and body["metadata"]["annotations"][chart] == pool["metadata"]["annotations"].get(chart)
            for each in conditions)

    def describe(self) -> str:
        """What helps to find out why the release does not start."""
        pods = self.tools.kubectl("get", "pods", "-n", self.namespace, "-o", "wide")
        events = self.tools.kubectl("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp")
        return pods + "\n".join(events.splitlines()[-40:])

    def operator_logs(self) -> str:
        """The last lines of the operators' logs."""
        selector = "app.kubernetes.io/component=operator"
        return self.tools.kubectl("logs", "-n", self.namespace, "-l", selector, "--prefix", "--tail=25")

    def uninstall(self, *, wait: bool = True) -> None:
        """`wait`: until the last pod has ended."""
        self.tools.kubectl(
            "delete", "namespace", self.namespace, "--ignore-not-found", f"--wait={str(wait).lower()}", timeout_s=180)


def _called(body: Any) -> str:
    return f"{body['kind'].lower()}/{body['metadata']['name']}"


def _complete(body: Any) -> bool:
    wanted, status = body["spec"]["replicas"], body.get("status", {})
    return (
        status.get("observedGeneration") == body["metadata"]["generation"]
        and status.get("readyReplicas", 0) == wanted
        and status.get("updatedReplicas", 0) == wanted
        and status.get("replicas", 0) == wanted
    )
