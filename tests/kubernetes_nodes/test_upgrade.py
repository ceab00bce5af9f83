"""`helm upgrade` as docs/kubernetes.md says, while transactions run: every pod is replaced, no record is lost, none is
there twice."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from hapax.client import HapaxError
from hapax.client.blocking import Admin
from hapax_kube import pod_load
from hapax_kube.page import Page
from hapax_kube.tools import Release
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

TOPIC = "upgraded"


class Load:
    """`hapax_kube.pod_load` in a pod of its own, which no upgrade touches."""

    def __init__(self, release: Release, folder: Path) -> None:
        self._release = release
        self._said = folder / "load.log"
        self._where = ["-n", release.namespace]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        tools = self._release.tools
        tools.kubectl("apply", *self._where, "-f", "-", text=json.dumps(self._pod()))
        tools.kubectl("wait", "pod/load", *self._where, "--for=condition=Ready", "--timeout=60s")
        with open(self._said, "w") as said, open(pod_load.__file__) as program:
            self._process = subprocess.Popen(
                tools.command("kubectl", "exec", "-i", "load", *self._where, "--", "python3", "-", TOPIC,
                              f"hapax.{self._release.namespace}.svc.cluster.local:9092"),
                stdin=program, stdout=subprocess.PIPE, stderr=said, text=True)  # fmt: skip
        wait_until(lambda: self.committed() > 0, "committed transaction")

    def committed(self) -> int:
        """At least so many, so far."""
        assert self._process is not None and self._process.poll() is None, self._said.read_text()
        lines = [line for line in self._said.read_text().splitlines() if line.endswith(" committed")]
        return int(lines[-1].split()[0]) if lines else 0

    def finish(self) -> dict[str, object]:
        assert self._process is not None
        self._release.tools.kubectl("exec", "load", *self._where, "--", "touch", "/tmp/stop")
        answer, _ = self._process.communicate(timeout=180)
        assert self._process.returncode == 0, self._said.read_text()
        return dict(json.loads(answer))

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._release.tools.kubectl(
            "delete", "pod/load", *self._where, "--ignore-not-found", "--grace-period=1", timeout_s=90)

    def _pod(self) -> object:
        (like, *_) = self._release.pods("coordinator")
        spec, container = like["spec"], like["spec"]["containers"][0]
        labels = {**like["metadata"]["labels"], "app.kubernetes.io/component": "test"}
        return {
            "apiVersion": "v1", "kind": "Pod",
            # As the pod of `helm test`, which may reach Kafka's ports whatever policies there are.
            "metadata": {"name": "load", "labels": labels},
            "spec": {
                "restartPolicy": "Never", "securityContext": spec["securityContext"],
                "automountServiceAccountToken": False, "volumes": [{"name": "tmp", "emptyDir": {}}],
                "containers": [{
                    "name": "load", "image": container["image"], "imagePullPolicy": container["imagePullPolicy"],
                    "command": ["python3", "-c", "import signal; signal.pause()"],
                    "securityContext": container["securityContext"],
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }],
            },
        }  # fmt: skip


class Replicas(threading.Thread):
    """How many are in sync, of partitions that have three: the fewest that were seen until it is closed."""

    def __init__(self, bootstrap: str | None) -> None:
        super().__init__()
        self.fewest = 3
        self.looks = 0
        self._address = bootstrap
        self._end = threading.Event()

    def run(self) -> None:
        if self._address is None:
            return
        with Admin({"bootstrap.servers": self._address}) as admin:
            while not self._end.wait(0.2):
                with contextlib.suppress(HapaxError):
                    parts = [each for topic in admin.list_topics() for each in topic.partitions]
                    self.fewest = min([self.fewest, *(len(each.isr) for each in parts if len(each.replicas) == 3)])
                    self.looks += 1

    def close(self) -> None:
        self._end.set()
        if self.ident is not None:
            self.join()


def uids(release: Release) -> set[str]:
    roles = ("broker", "coordinator", "pid", "operator")
    return {pod["metadata"]["uid"] for role in roles for pod in release.pods(role)}


def test_upgraded_under_load(
    release: Release, page: Page, first_port: str | None, tmp_path: Path, figures: dict[str, float]
) -> None:
    """Each broker waits until the last one is in sync again (which is seen where machines' ports can be reached)."""
    load, replicas = Load(release, tmp_path), Replicas(first_port)
    try:
        load.start()
        before = uids(release)
        replicas.start()
        began = time.monotonic()
        page.follow("Upgrading")
        page.keep({role: {"podAnnotations": {"step": "two"}} for role in ("broker", "coordinator", "pid", "operator")})
        release.wait_ready()
        figures["helm upgrade, every pod replaced, under load"] = time.monotonic() - began
        replicas.close()
        assert replicas.looks > 20 or first_port is None
        assert replicas.fewest >= 2, "a broker went while another one had to catch up"
        # A Deployment is complete while the last of its former pods are still on their way out.
        wait_until(lambda: not before & uids(release), "end of all former pods")
        wanted = load.committed() + 50
        wait_until(lambda: load.committed() >= wanted, "transactions after the upgrade")
        found = load.finish()
        figures["longest transaction of the load during it"] = float(str(found["longest_s"]))
        assert found["lost"] == {"0": [], "1": []}, found
        assert found["doubled"] == {} and found["wrong"] == [], found
        assert found["position"] == int(str(found["committed"])) - 1, found
    finally:
        replicas.close()
        load.close()
