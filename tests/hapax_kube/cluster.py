"""A Kubernetes on one machine: a control plane, and nodes that run containers and can crash, freeze and be cut off.

It lives in a world of its own (`hapax_kube.world`), so that its addresses, processes and mounts are nobody else's. The
control plane and the cluster's names are on a bridge, at 10.90.0.1; node N is a process in namespaces of its own, at
10.90.0.(10+N), with the pods 10.244.N.0/24. What runs in the world reaches pods by their addresses and by their names.
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
    """With all controllers and a scheduler, for kubelets, at an address that they reach."""

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
            # As a company's would be set for fast reactions; nothing of Hapax's failover waits for it.
            "--node-monitor-period=2s", "--node-monitor-grace-period=16s",
        ]  # fmt: skip


class Cluster:
    def __init__(
        self, folder: Path, name: str, binaries: Path, images: list[Path], nodes: int, ready_s: float = _READY_S
    ) -> None:
        """`name` is also that of its cgroups; `ready_s` is for each step of starting, such as large images."""
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

    # --- as a whole

    def start(self) -> Cluster:
        make_cgroup(self.name)
        # All pods of all nodes would weigh as much as one process of this machine: they stand for machines.
        (CGROUPS / "cpu" / self.name / "cpu.shares").write_text(str(_CPU_SHARES))
        # With an address of its own: it would be the least of its nodes', and another one when that node goes, so that
        # names and the API could not be reached until everybody has asked for it again.
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
        """The ends of what everything that is not a pod wrote."""
        found = [*(self.folder / "control").glob("*.log"), *self.folder.glob("node-*/*.log")]
        return {str(path.relative_to(self.folder)): path.read_text(errors="replace")[-3000:] for path in sorted(found)}

    def _make_volumes(self) -> None:
        """Reached from every node, as a network's volumes are. They are bound once and never anew."""
        items: list[Any] = [{
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "kubernetes.io/no-provisioner",
            "metadata": {"name": "folder", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "reclaimPolicy": "Retain",
        }]  # fmt: skip
        for number in range(_VOLUMES):
            path = self.folder / "volumes" / f"{number}"
            path.mkdir(parents=True)
            path.chmod(0o777)  # of whoever comes: pods run as users without rights
            items.append({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"folder-{number}"}, "spec": {
                    "capacity": {"storage": "100Gi"}, "storageClassName": "folder",
                    "accessModes": ["ReadWriteOnce", "ReadWriteMany"], "hostPath": {"path": str(path)},
                    "persistentVolumeReclaimPolicy": "Retain",
                },
            })  # fmt: skip
        self.tools.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    # --- nodes

    def boot(self, name: str) -> None:
        """Switches it on: a new one, or one that crashed, with what is on its disk."""
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

    def wait_ready(self, name: str) -> None:
        """Until it is, with whatever it ran before it crashed: what the API server says of it may still be what was."""
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
        """As if it lost its power; its disk stays. When it did (`time.monotonic()`)."""
        process = self._running.pop(name)
        (init,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        began = time.monotonic()
        os.kill(int(init), signal.SIGKILL)  # the kernel ends everything else in its namespace
        set_frozen(f"{self.name}/{name}", False)  # what stands still does not end
        process.wait()
        # The kernel removes a link some time after the namespace of its other end.
        while Path("/proc/self/net/dev").read_text().count(f"to-{name}:"):
            subprocess.run(["ip", "link", "del", f"to-{name}"], capture_output=True, check=False)
        remove_cgroup(f"{self.name}/{name}")
        return began

    def freeze(self, name: str) -> float:
        """Every process on it stands still; its network goes on acknowledging what the kernel can."""
        began = time.monotonic()
        set_frozen(f"{self.name}/{name}", True)
        return began

    def thaw(self, name: str) -> None:
        set_frozen(f"{self.name}/{name}", False)

    def cut(self, name: str) -> float:
        """Nothing reaches it and it reaches nothing."""
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
        """Of a container's processes, as this process sees them."""
        body = self.pod(namespace, pod)
        (identity,) = (
            each["containerID"].removeprefix("containerd://")
            for each in body["status"]["containerStatuses"] if each["name"] == container
        )  # fmt: skip
        below = CGROUPS / "pids" / self.name / body["spec"]["nodeName"]
        (procs,) = below.glob(f"kubepods/**/{identity}/cgroup.procs")
        return [int(pid) for pid in procs.read_text().split()]

    def kill_container(self, namespace: str, pod: str, container: str) -> float:
        """SIGKILL, which a container's first process can get from outside its namespace only."""
        pids = self.pids(namespace, pod, container)
        assert pids, f"{pod} does not run"
        began = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return began

    def _until(self, happened: Any, what: str) -> None:
        limit = time.monotonic() + self._ready_s
        while not happened():
            assert time.monotonic() < limit, f"still no {what}"
            time.sleep(_LOOK_EVERY_S)


def _runs_since(pod: Any, time: str) -> bool:
    """Its containers run, and were started then or later (RFC 3339, to the second, as the kubelet says it)."""
    if "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] in ("Succeeded", "Failed"):
        return True
    containers = pod["status"].get("containerStatuses", ())
    started = [each["state"].get("running", {}).get("startedAt", "") for each in containers]
    return bool(started) and min(started) >= time


def _address(number: int) -> str:
    return f"10.90.0.{10 + number}"


def _pods(number: int) -> str:
    return f"10.244.{number}.0/24"
