"""`python -m hapax_kube upgrade`: from the chart of the first phase (commit a76baed) to this one, under load.

The former chart is installed with the image of its own commit, and gets resources, data and clients. Then the commands
of docs/kubernetes.md, "From the first phase", are run as they stand there. Between its two steps, the former native
client gives way to the present one, as the page says. Nothing may be lost or doubled, no client
may stand still for more than five seconds, and what was stored must be found. The figures go to
build/kube-upgrade.json. The exit code is 1 if a condition is not met.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from hapax_kube import former
from hapax_kube.binaries import ROOT, build
from hapax_kube.cluster import KubeCluster
from hapax_kube.images import HAPAX, build_images
from hapax_kube.page import Page
from hapax_kube.tools import Release, Tools
from hapax_kube.upgrade_load import PARTITIONS, Client, Copier, Reader, Writer, contents
from hapax_kube.world import FOLDER

NODES: Final = 3
NAMESPACE: Final = "hapax"
AT_MOST_S: Final = 5.0
_FIRST_PORT: Final = 30_200
_RESULTS: Final = ROOT / "build" / "kube-upgrade.json"
_VALUES: Final = ROOT / "tests" / "kubernetes_nodes" / "values.yaml"
_STORED: Final = (
    ("topics.hapax.dev", {
        "apiVersion": "hapax.dev/v1alpha1", "kind": "Topic", "metadata": {"name": "described"},
        "spec": {"partitions": 2, "replicationFactor": 3, "deletionPolicy": "Delete"}}),
    ("txp", {
        "apiVersion": "hapax.dev/v1alpha1", "kind": "TransactionalProducer", "metadata": {"name": "loader"},
        "spec": {"transactionalId": "loader", "allowedTopics": ["described"]}}),
    ("txp", {
        "apiVersion": "hapax.dev/v1alpha1", "kind": "TransactionalProducer", "metadata": {"name": "job"},
        "spec": {"transactionalIdPrefix": "job-", "spark": {
            "image": "localhost/none:1", "job": "hapax_spark.jobs.passthrough", "suspend": True,
            "checkpoint": {"claimName": "none", "path": "/checkpoint/job"}}}}),
)


class NativeClient(Client):
    """The native client of one of the releases, in a pod of that release's image: transactions with tokens, whose
    numbers it checks itself at its end."""

    def __init__(self, release: Release, folder: Path, name: str, tree: Path, image: str) -> None:
        """`tree`: of the release, with the program that the pod runs."""
        super().__init__(f"{name} native client", "hapax.hapax.svc.cluster.local:9092")
        self._release = release
        self._pod_name = f"{name}-client"
        self._program = tree / "tests" / "hapax_kube" / "pod_load.py"
        self._image = image
        self._said = folder / f"{name}-client.log"
        self._said.touch()
        self.outcome: dict[str, Any] = {}

    def start(self) -> None:
        self._release.tools.kubectl("apply", "-n", NAMESPACE, "-f", "-", text=json.dumps(self._pod()))
        self._release.tools.kubectl(
            "wait", f"pod/{self._pod_name}", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=60s")
        super().start()

    def work(self) -> None:
        with open(self._said, "w") as said, open(self._program) as text:
            done = subprocess.run(
                self._release.tools.command(
                    "kubectl", "exec", "-i", self._pod_name, "-n", NAMESPACE, "--", "python3", "-", self._pod_name,
                    self.bootstrap),
                stdin=text, stdout=subprocess.PIPE, stderr=said, text=True, check=False)
        assert done.returncode == 0, self._said.read_text()[-3000:]
        self.outcome = json.loads(done.stdout)
        self.done, self.longest_s = self.outcome["committed"], self.outcome["longest_s"]
        self.notes = self.outcome["repeated"]

    def committed(self) -> int:
        lines = [line for line in self._said.read_text().splitlines() if line.endswith(" committed")]
        return int(lines[-1].split()[0]) if lines else 0

    def end(self) -> None:
        self._release.tools.kubectl("exec", self._pod_name, "-n", NAMESPACE, "--", "touch", "/tmp/stop")
        super().end()

    def _pod(self) -> object:
        (like, *_) = self._release.pods("coordinator")
        spec, container = like["spec"], like["spec"]["containers"][0]
        return {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self._pod_name, "labels": {"app": self._pod_name}},
            "spec": {
                "restartPolicy": "Never", "securityContext": spec["securityContext"],
                "automountServiceAccountToken": False, "volumes": [{"name": "tmp", "emptyDir": {}}],
                "containers": [{
                    "name": "load", "image": self._image, "imagePullPolicy": container["imagePullPolicy"],
                    "command": ["python3", "-c", "import signal; signal.pause()"],
                    "securityContext": container["securityContext"],
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }],
            },
        }  # fmt: skip


class Upgrade:
    def __init__(self, cluster: KubeCluster, folder: Path) -> None:
        self.tools: Tools = cluster.tools
        self.folder = folder
        self.release = Release(self.tools, NAMESPACE, _VALUES)
        (address, *_) = (
            each["address"] for each in self.tools.get("nodes")["items"][0]["status"]["addresses"]
            if each["type"] == "InternalIP")
        self.bootstrap = f"{address}:{_FIRST_PORT}"
        self.faults: list[str] = []
        self.figures: dict[str, float] = {}
        # The former release had jobs beside its nodes, which the present one does only where it is told to.
        values = yaml.safe_load(_VALUES.read_text()) | {"spark": {"enabled": True, "namespaces": [NAMESPACE]}}
        for role in ("broker", "coordinator", "etcd"):
            del values[role]["minReadySeconds"]  # as it comes: the former nodes look for moved members seldom
        (folder / "values.yaml").write_text(yaml.safe_dump(values))
        self.page = Page(ROOT / "docs" / "kubernetes.md", self.tools, folder, IMAGE=HAPAX)

    def install_former(self) -> None:
        values = former.tree() / "tests" / "kubernetes_nodes" / "values.yaml"
        self.tools.helm(
            "install", "hapax", str(former.tree() / "charts" / "hapax"), "--namespace", NAMESPACE, "--create-namespace",
            "--values", str(values), "--set", f"image.tag={former.TAG}", "--wait")
        where = ("-n", NAMESPACE, "brokerpool/hapax-broker")
        self.tools.kubectl("wait", "--for=create", "--timeout=60s", *where)
        self.tools.kubectl("wait", "--for=condition=Ready", "--timeout=120s", *where)
        self.tools.kubectl(
            "wait", "--for=condition=Ready", "--timeout=120s", "pod", "-n", NAMESPACE, "--selector",
            "app.kubernetes.io/instance=hapax")

    def store(self) -> None:
        """Resources as the former release stores them."""
        from hapax.client import NewTopic
        from hapax.client.blocking import Admin

        for _, each in _STORED:
            self.tools.kubectl("apply", "-n", NAMESPACE, "-f", "-", text=json.dumps(each))
        self.tools.kubectl(
            "wait", "--for=condition=Ready", "--timeout=60s", "-n", NAMESPACE, "topics.hapax.dev/described",
            "txp/loader")
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            admin.create_topics([
                NewTopic(name, PARTITIONS, 3, {"min.insync.replicas": "2"}) for name in ("written", "copied")])

    def run(self) -> None:
        self.timed("former chart installed", self.install_former)
        self.store()
        before = {kind: self.tools.get(kind, "-n", NAMESPACE)["items"] for kind in ("topics.hapax.dev", "txp")}
        writer = Writer(self.bootstrap, "written")
        readers = [Reader(self.bootstrap, name) for name in ("written", "copied")]
        natives = [
            NativeClient(self.release, self.folder, "former", former.tree(), f"{former.REPOSITORY}:{former.TAG}"),
            NativeClient(self.release, self.folder, "present", ROOT, HAPAX)]
        others: list[Client] = [writer, Copier(self.bootstrap, "written", "copied"), *readers]
        for each in (*others, natives[0]):
            each.start()
        logs = Logs(self.tools, self.folder, [
            pod["metadata"]["name"] for role in ("broker", "coordinator") for pod in self.release.pods(role)])
        try:
            self.upgrade(writer, readers, natives, others)
        finally:
            logs.close()
        self.judge(writer, readers, natives, [*others, *natives])
        self.look_at(before)

    def upgrade(
        self, writer: Writer, readers: list[Reader], natives: list[NativeClient], others: list[Client]
    ) -> None:
        self.go_on(others, natives[0])
        self.timed("to the nodes of both releases", lambda: self.page.follow("To the nodes of both releases"))
        self.go_on(others, natives[0])
        natives[1].start()
        self.go_on(others, natives[1])
        natives[0].end()
        self.timed("to the nodes of this release", lambda: self.page.follow("To the nodes of this release"))
        self.go_on(others, natives[1])
        writer.end()
        self.until(lambda: all(each.done >= writer.done for each in readers), 60, others)
        for each in (*others[1:], natives[1]):
            each.end()

    def go_on(self, others: list[Client], native: NativeClient) -> None:
        """Waits until every client has gone on for a while."""
        marks = [each.done for each in others]
        seen = native.committed()
        self.until(lambda: all(each.done > mark + 200 for each, mark in zip(others, marks, strict=True))
                   and native.committed() > seen + 50, 90, [*others, native])

    def judge(
        self, writer: Writer, readers: list[Reader], natives: list[NativeClient], clients: list[Client]
    ) -> None:
        wanted = {each: list(range(each, writer.done, PARTITIONS)) for each in range(PARTITIONS)}
        for name, reader in zip(("written", "copied"), readers, strict=True):
            found = contents(self.bootstrap, name)
            for where, numbers in (("the log", found), ("its reader", reader.found)):
                for partition in range(PARTITIONS):
                    got = numbers.get(partition, [])
                    lost = sorted(set(wanted[partition]) - set(got))
                    doubled = len(got) - len(set(got))
                    if where == "the log":
                        self.check(got == wanted[partition], f"{name}-{partition}: {len(lost)} lost, "
                                   f"{doubled} doubled, or out of order: {lost[:5]}")
                    else:  # a group may read again what it has not committed yet, and loses nothing
                        self.check(not lost, f"{where} of {name}-{partition} lacks {lost[:5]}")
        for native in natives:
            outcome = native.outcome
            self.check(outcome["lost"] == {"0": [], "1": []} and outcome["doubled"] == {} and outcome["wrong"] == []
                       and outcome["position"] == outcome["committed"] - 1, f"{native.name}: {outcome}")
        for each in clients:
            self.figures[f"longest pause of: {each.name}"] = each.longest_s
            at = time.strftime("%H:%M:%S", time.gmtime(each.longest_at)) if each.longest_at else "?"
            print(f"{each.name}: {each.done}, longest {each.longest_s:.2f} s (until {at}), "
                  f"{len(each.notes)} notes {each.notes[:5]}", flush=True)
            self.check(each.longest_s <= AT_MOST_S, f"{each.name} stood still for {each.longest_s:.1f} s")

    def look_at(self, before: dict[str, list[Any]]) -> None:
        """What was stored is there and is carried out."""
        self.tools.kubectl(
            "wait", "--for=condition=Ready", "--timeout=60s", "-n", NAMESPACE, "topics.hapax.dev/described",
            "txp/loader")
        for kind, items in before.items():
            after = {each["metadata"]["name"]: each for each in self.tools.get(kind, "-n", NAMESPACE)["items"]}
            for each in items:
                now = after.get(each["metadata"]["name"])
                self.check(now is not None and now["metadata"]["uid"] == each["metadata"]["uid"]
                           and _holds(now["spec"], each["spec"]), f"{kind} {each['metadata']['name']} changed: {now}")
        images = {
            container["image"] for pod in self.tools.get("pods", "-n", NAMESPACE)["items"]
            if pod["metadata"]["labels"].get("app.kubernetes.io/instance") == "hapax"
            for container in pod["spec"]["containers"]}
        self.check(f"{former.REPOSITORY}:{former.TAG}" not in images, f"pods of the former release: {images}")
        self.timed("helm test", lambda: self.tools.helm("test", "hapax", "-n", NAMESPACE, "--logs"))

    def check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.faults.append(otherwise)

    def timed(self, what: str, work: Any) -> None:
        began = time.monotonic()
        print(f"{time.strftime('%H:%M:%S', time.gmtime())} {what} ...", file=sys.stderr, flush=True)
        said = work()
        if isinstance(said, str):
            (self.folder / f"{what.replace(' ', '-')}.txt").write_text(said)
        self.figures[what] = time.monotonic() - began

    def until(self, happened: Any, seconds: float, clients: list[Client]) -> None:
        limit = time.monotonic() + seconds
        while not happened():
            for each in clients:
                if each.failure is not None:
                    raise each.failure
            assert time.monotonic() < limit, [(each.name, each.done, each.notes[-3:]) for each in clients]
            time.sleep(0.2)


def main() -> int:
    world = Path(os.environ[FOLDER])
    folder = ROOT / "build" / "kube-upgrade"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archives = [*build_images().values(), former.image()]
    cluster = KubeCluster(world, world.name, build(), archives, NODES)
    try:
        upgrade = Upgrade(cluster.start(), folder)
        try:
            upgrade.run()
        except BaseException:
            _keep(upgrade.tools, folder)
            raise
        if upgrade.faults:
            _keep(upgrade.tools, folder)
    finally:
        cluster.close()
    _RESULTS.write_text(json.dumps(upgrade.figures, indent=1) + "\n")
    for name, seconds in upgrade.figures.items():
        print(f"{seconds:8.2f}  {name}")
    for fault in upgrade.faults:
        print(f"FAULT: {fault}")
    return 1 if upgrade.faults else 0


def _holds(now: Any, before: Any) -> bool:
    """Whether all that was stored is there with its value; a definition may have added defaults."""
    if isinstance(before, dict):
        return isinstance(now, dict) and all(key in now and _holds(now[key], value) for key, value in before.items())
    return bool(now == before)


class Logs:
    """Follows the logs of pods that are replaced, since theirs go with them."""

    def __init__(self, tools: Tools, folder: Path, pods: Sequence[str]) -> None:
        self._tools = tools
        self._folder = folder
        self._stopping = threading.Event()
        self._followers: dict[str, subprocess.Popen[bytes]] = {}
        self._threads = [threading.Thread(target=self._follow, args=(pod,), daemon=True) for pod in pods]
        for each in self._threads:
            each.start()

    def _follow(self, pod: str) -> None:
        with open(self._folder / f"{pod}.all.log", "ab") as log:
            while not self._stopping.wait(0.5):
                self._followers[pod] = subprocess.Popen(
                    self._tools.command("kubectl", "logs", "--follow", pod, "-n", NAMESPACE),
                    stdout=log, stderr=subprocess.DEVNULL)
                self._followers[pod].wait()

    def close(self) -> None:
        self._stopping.set()
        for each in list(self._followers.values()):
            each.terminate()
        for thread in self._threads:
            thread.join(10)


def _keep(tools: Tools, folder: Path) -> None:
    """Writes down what helps to find out what went wrong."""
    for name, words in (
        ("pods", ("get", "pods", "-A", "-o", "wide")),
        ("events", ("get", "events", "-n", NAMESPACE, "--sort-by=.lastTimestamp")),
        ("resources", ("get", "workloads,brokerpools,topics.hapax.dev,txp", "-n", NAMESPACE, "-o", "yaml")),
    ):
        try:
            (folder / f"{name}.txt").write_text(tools.kubectl(*words))
        except AssertionError as error:
            (folder / f"{name}.txt").write_text(str(error))
    for pod in tools.get("pods", "-n", NAMESPACE)["items"]:
        name = pod["metadata"]["name"]
        for previous in ("", "-previous"):
            try:
                words = ("logs", name, "-n", NAMESPACE, "--all-containers", *(["--previous"] if previous else []))
                (folder / f"{name}{previous}.log").write_text(tools.kubectl(*words))
            except AssertionError:
                continue


if __name__ == "__main__":
    sys.exit(main())
