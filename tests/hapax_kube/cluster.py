"""A Kubernetes cluster on one computer: a control plane, and nodes that run containers and can crash, freeze and be cut
off.

It runs in a sandbox (`hapax_kube.world`) with its own addresses, processes and mounts. The control plane and the
cluster's DNS are on a bridge, at 10.90.0.1. Node N is a process in its own namespaces, at 10.90.0.(10+N), with the pods
10.244.N.0/24. Programs in the sandbox reach pods by address and by name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from hapax_kube.api import MASTERS, ApiError, KubeApi
from hapax_kube.node import CGROUPS, NodeSpec, make_cgroup, remove_cgroup, run, set_frozen
from hapax_kube.tools import Tools

GATEWAY: Final = "10.90.0.1"
_BRIDGE: Final = "02:00:0a:5a:00:01"
_FIRST_SERVICE: Final = "10.96.0.1"
_READY_S: Final = 180.0
_LOOK_EVERY_S: Final = 0.1
_VOLUMES: Final = 40
_CPU_SHARES: Final = 20 * 1024


class ControlPlane(KubeApi):
    """An API server with all controllers and a scheduler, at an address that kubelets reach."""

    names = (
        f"IP:{_FIRST_SERVICE},DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,"
        "DNS:kubernetes.default.svc.cluster.local"
    )

    def __init__(self, binaries: Path, folder: Path, nodes: list[str]) -> None:
        self.users = {
            **KubeApi.users, "scheduler": ("scheduler", MASTERS), "proxy": ("proxy", MASTERS),
            **{name: (f"system:node:{name}", "system:nodes") for name in nodes},
        }  # fmt: skip
        super().__init__(binaries, folder, owned=False, address=GATEWAY)

    def start(self) -> ControlPlane:
        super().start()
        self._run("kube-scheduler", [
            "--kubeconfig", str(self.kubeconfig_path("scheduler")), "--leader-elect=false", "--bind-address=127.0.0.1",
            "--profiling=false",
        ])  # fmt: skip
        names = self.folder / "Corefile"
        names.write_text(
            f".:53 {{\n  bind {GATEWAY}\n  errors\n  kubernetes cluster.local in-addr.arpa {{\n"
            f"    kubeconfig {self.kubeconfig}\n    pods insecure\n    ttl 1\n  }}\n}}\n")
        self._run("coredns", ["-conf", str(names)])
        return self

    def _apiserver_alone(self) -> list[str]:
        return [
            "--authorization-mode=Node,RBAC", "--enable-aggregator-routing=true", "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        ]  # fmt: skip

    def _manager(self) -> list[str]:
        return [
            "--kubeconfig", str(self.kubeconfig_path("controller-manager")), "--leader-elect=false",
            "--bind-address=127.0.0.1", "--use-service-account-credentials=true", "--profiling=false",
            f"--service-account-private-key-file={self.folder / 'accounts.key'}",
            f"--root-ca-file={self.folder / 'server.crt'}",
            # Values for fast reactions, as an operator would set them. Hapax's failover does not depend on them.
            "--node-monitor-period=2s", "--node-monitor-grace-period=16s",
        ]  # fmt: skip


class KubeCluster:
    def __init__(
        self, folder: Path, name: str, binaries: Path, images: list[Path], nodes: int, ready_s: float = _READY_S
    ) -> None:
        """`name` is also the name of the cgroups. `ready_s` limits each step of starting, such as loading images."""
        self.folder = folder
        self.name = name
        self.binaries = binaries
        self.nodes = [f"node-{number}" for number in range(1, nodes + 1)]
        self.control = ControlPlane(binaries, folder / "control", self.nodes)
        self.kubeconfig = self.control.kubeconfig
        self.tools = Tools(binaries, self.kubeconfig)
        self._images = images
        self._ready_s = ready_s
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._booted: dict[str, str] = {}

    # --- the whole cluster

    def start(self) -> KubeCluster:
        make_cgroup(self.name)
        # Otherwise all pods of all nodes would get as much processor time as a single process of this computer.
        (CGROUPS / "cpu" / self.name / "cpu.shares").write_text(str(_CPU_SHARES))
        # The bridge has its own MAC address. By default it is the lowest of its ports', and changes when that node's
        # port is removed: then names and the API could not be reached until every node has resolved the address again.
        run("ip", "link", "add", "nodes", "address", _BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{GATEWAY}/24", "dev", "nodes")
        run("ip", "link", "set", "nodes", "up")
        names = self.folder / "resolv.conf"
        names.write_text(f"nameserver {GATEWAY}\n")
        run("mount", "--bind", str(names), "/etc/resolv.conf")
        self.control.start()
        for name in self.nodes:
            self.boot(name)
        self._make_volumes()
        for name in self.nodes:
            self.wait_ready(name)
        return self

    def close(self) -> None:
        for name in list(self._running):
            self.thaw(name)
            self.crash(name)
        self.control.close()
        remove_cgroup(self.name)

    def logs(self) -> dict[str, str]:
        """The last lines of the logs of everything that is not a pod."""
        found = [*(self.folder / "control").glob("*.log"), *self.folder.glob("node-*/*.log")]
        return {str(path.relative_to(self.folder)): path.read_text(errors="replace")[-3000:] for path in sorted(found)}

    def _make_volumes(self) -> None:
        """Creates volumes that every node reaches, like network volumes. Each is bound once and not reused. Most have
        1 GiB; nothing expands them by itself."""
        items: list[Any] = [{
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "kubernetes.io/no-provisioner",
            "metadata": {"name": "folder", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "reclaimPolicy": "Retain", "allowVolumeExpansion": True,
        }]  # fmt: skip
        for number in range(_VOLUMES):
            path = self.folder / "volumes" / f"{number}"
            path.mkdir(parents=True)
            path.chmod(0o777)  # pods run as users without privileges
            items.append({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"folder-{number}"}, "spec": {
                    "capacity": {"storage": "1Gi" if number % 5 else "100Gi"}, "storageClassName": "folder",
                    "accessModes": ["ReadWriteOnce", "ReadWriteMany"], "hostPath": {"path": str(path)},
                    "persistentVolumeReclaimPolicy": "Retain",
                },
            })  # fmt: skip
        self.tools.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    # --- nodes

    def boot(self, name: str) -> None:
        """Starts a new node, or one that crashed, with its disk."""
        number = self.nodes.index(name) + 1
        self._booted[name] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        make_cgroup(f"{self.name}/{name}")
        spec = NodeSpec(
            name=name, number=number, address=_address(number), gateway=GATEWAY, pods=_pods(number),
            routes={_pods(n): _address(n) for n in range(1, len(self.nodes) + 1) if n != number},
            folder=str(folder), binaries=str(self.binaries), images=[str(each) for each in self._images],
            kubeconfig=str(self.control.kubeconfig_path(name)),
            proxy_kubeconfig=str(self.control.kubeconfig_path("proxy")), cgroup=f"{self.name}/{name}")
        with open(folder / "node.log", "ab") as log:
            process = subprocess.Popen(
                ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc",
                 sys.executable, "-m", "hapax_kube.node", spec.to_json()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)  # fmt: skip
        self._running[name] = process
        own, its = "/proc/self/ns/net", f"/proc/{process.pid}/ns/net"
        self._until(lambda: os.readlink(own) != os.readlink(its), f"network namespace of {name}")
        link = f"to-{name}"
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
        run("ip", "link", "set", link, "master", "nodes", "up")
        run("ip", "route", "replace", _pods(number), "via", _address(number))

    def load(self, nodes: list[str], image: Path) -> None:
        """Loads an image that not every test needs on these nodes."""
        ctr = [str(self.binaries / "ctr"), "--namespace", "k8s.io"]
        loads = [subprocess.Popen(
            [*ctr, "--address", str(self.folder / name / "containerd.sock"), "images", "import", "--local", str(image)],
            stdout=subprocess.DEVNULL) for name in nodes]
        assert not any([each.wait() for each in loads]), f"{image} cannot be loaded"

    def wait_ready(self, name: str) -> None:
        """Waits until the node is ready and runs what it ran before. The API server may still show its state before the
        crash."""
        def ready() -> bool:
            assert self._running[name].poll() is None, (self.folder / name / "node.log").read_text()
            try:
                found = self.control.get(f"/api/v1/nodes/{name}")
                pods = self.control.get(f"/api/v1/pods?fieldSelector=spec.nodeName={name}")["items"]
            except ApiError:
                return False
            conditions = found["status"]["conditions"]
            return (
                any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
                and all(_runs_since(pod, self._booted[name]) for pod in pods))

        self._until(ready, f"ready {name}")

    def crash(self, name: str) -> float:
        """Ends the node as a loss of power does; its disk stays. Returns the time (`time.monotonic()`)."""
        process = self._running.pop(name)
        (init,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        began = time.monotonic()
        os.kill(int(init), signal.SIGKILL)  # the kernel ends everything else in its namespace
        set_frozen(f"{self.name}/{name}", False)  # a frozen process does not end
        process.wait()
        # The kernel removes the link some time after the namespace of its other end.
        while Path("/proc/self/net/dev").read_text().count(f"to-{name}:"):
            subprocess.run(["ip", "link", "del", f"to-{name}"], capture_output=True, check=False)
        remove_cgroup(f"{self.name}/{name}")
        return began

    def freeze(self, name: str) -> float:
        """Stops every process on the node. The kernel still acknowledges what its network receives."""
        began = time.monotonic()
        set_frozen(f"{self.name}/{name}", True)
        return began

    def thaw(self, name: str) -> None:
        set_frozen(f"{self.name}/{name}", False)

    def cut(self, name: str) -> float:
        """Cuts the node off the network, in both directions."""
        began = time.monotonic()
        run("ip", "link", "set", f"to-{name}", "down")
        return began

    def heal(self, name: str) -> None:
        run("ip", "link", "set", f"to-{name}", "up")

    # --- pods

    def pod(self, namespace: str, name: str) -> Any:
        return self.control.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def node_of(self, namespace: str, pod: str) -> str:
        return str(self.pod(namespace, pod)["spec"]["nodeName"])

    def pids(self, namespace: str, pod: str, container: str) -> list[int]:
        """Ids of a container's processes, in this process's namespace."""
        body = self.pod(namespace, pod)
        (identity,) = (
            each["containerID"].removeprefix("containerd://")
            for each in body["status"]["containerStatuses"] if each["name"] == container
        )  # fmt: skip
        below = CGROUPS / "pids" / self.name / body["spec"]["nodeName"]
        (procs,) = below.glob(f"kubepods/**/{identity}/cgroup.procs")
        return [int(pid) for pid in procs.read_text().split()]

    def kill_container(self, namespace: str, pod: str, container: str) -> float:
        """Kills a container with SIGKILL. Its first process can receive that only from outside its namespace."""
        pids = self.pids(namespace, pod, container)
        assert pids, f"{pod} is not running"
        began = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return began

    def _until(self, happened: Any, what: str) -> None:
        limit = time.monotonic() + self._ready_s
        while not happened():
            assert time.monotonic() < limit, f"timed out: no {what}"
            time.sleep(_LOOK_EVERY_S)


def _runs_since(pod: Any, time: str) -> bool:
    """Whether the pod's containers run and were started at this time or later (RFC 3339, in whole seconds, like the
    kubelet's times)."""
    if "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] in ("Succeeded", "Failed"):
        return True
    containers = pod["status"].get("containerStatuses", ())
    started = [each["state"].get("running", {}).get("startedAt", "") for each in containers]
    return bool(started) and min(started) >= time


def _address(number: int) -> str:
    return f"10.90.0.{10 + number}"


def _pods(number: int) -> str:
    return f"10.244.{number}.0/24"
