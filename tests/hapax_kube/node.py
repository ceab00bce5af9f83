"""One node of the tests' Kubernetes cluster: `python -m hapax_kube.node SPEC`, PID 1 of its own namespaces.

It has its own network, processes, mounts, host name, containerd, kubelet and kube-proxy. It shares the kernel and the
disk with the other nodes. SPEC is JSON. When this process is killed, everything on the node ends at once, as when a
computer loses power; its disk (`folder`) stays.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

CGROUPS: Final = Path("/sys/fs/cgroup")
_LINK_S: Final = 20.0
_CONTAINERD_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.05
_AGAIN_AFTER_S: Final = 1.0


@dataclass(frozen=True)
class NodeSpec:
    name: str
    number: int
    address: str
    gateway: str
    """Address of the control plane, which is also the cluster's DNS server."""
    pods: str
    """Address range of this node's pods."""
    routes: dict[str, str]
    """Address range of another node's pods -> that node's address."""
    folder: str
    binaries: str
    images: list[str]
    kubeconfig: str
    proxy_kubeconfig: str
    cgroup: str
    """Path below the root of each hierarchy."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


# --- cgroups ------------------------------------------------------------------------------------------------------


def hierarchies() -> list[Path]:
    """The mounted cgroup v1 hierarchies, and that of v2 if it is mounted too."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    places = [Path(place) for _, place, kind, *_ in mounts if kind in ("cgroup", "cgroup2")]
    return [place for place in places if place.parent == CGROUPS]


def make_cgroup(name: str) -> None:
    for hierarchy in hierarchies():
        folder = hierarchy
        for part in name.split("/"):
            above, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):  # both are empty in a new cpuset, in which nothing can run
                if (folder / file).exists() and not (folder / file).read_text().strip():
                    (folder / file).write_text((above / file).read_text())


def remove_cgroup(name: str) -> None:
    """Removes a cgroup and those below it. A cgroup that still has processes is left."""
    for hierarchy in hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            try:
                os.rmdir(folder)
            except OSError as error:
                if os.path.exists(folder):
                    print(f"{folder} was not removed: {error}", file=sys.stderr)


def set_frozen(name: str, frozen: bool) -> None:
    """Stops or continues every process in the cgroup and below, all at once. Returns when all of them have stopped."""
    state = CGROUPS / "freezer" / name / "freezer.state"
    wanted = "FROZEN" if frozen else "THAWED"
    while state.exists() and state.read_text().strip() != wanted:
        state.write_text(wanted)
        time.sleep(0.001)


# --- the node's own processes -------------------------------------------------------------------------------------


class KubeNode:
    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.folder = Path(spec.folder)
        self.binaries = Path(spec.binaries)
        self.socket = self.folder / "containerd.sock"

    def run(self) -> None:
        self._namespaces()
        self._network()
        make_cgroup(self.spec.cgroup)
        (CGROUPS / "freezer" / self.spec.cgroup / "cgroup.procs").write_text("0")  # child processes belong to it too
        self._write_settings()
        self._keep("containerd", "--config", str(self.folder / "containerd.toml"))
        self._import_images()
        self._keep(
            "kubelet", "--config", str(self.folder / "kubelet.json"), "--kubeconfig", self.spec.kubeconfig,
            "--hostname-override", self.spec.name, "--node-ip", self.spec.address,
            "--root-dir", str(self.folder / "kubelet"), "--cert-dir", str(self.folder / "kubelet" / "pki"),
            "--node-labels", f"topology.kubernetes.io/zone=zone-{self.spec.number}", "--v=1")  # fmt: skip
        self._keep("kube-proxy", "--config", str(self.folder / "proxy.json"), "--v=1")
        while True:  # containers' shims lose their parents, so PID 1 has to reap them
            os.wait()

    def _keep(self, name: str, *words: str) -> None:
        """Runs one of the node's programs, and restarts it whenever it ends."""
        command = [str(self.binaries / name), *words]
        environment = {**os.environ, "PATH": f"{self.binaries}:{os.environ['PATH']}"}

        def again() -> None:
            while True:
                with open(self.folder / f"{name}.log", "ab") as log:
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
                process.wait()  # PID 1 may have reaped it already
                time.sleep(_AGAIN_AFTER_S)

        threading.Thread(target=again, daemon=True).start()

    # --- namespaces

    def _namespaces(self) -> None:
        run("mount", "--make-rshared", "/")
        run("hostname", self.spec.name)
        # These paths would be the same on every node: sockets of the shims, and the kubelet's links to logs.
        for place in ("/run", "/var/log"):
            run("mount", "-t", "tmpfs", "tmpfs", place)
        Path("/var/log/containers").mkdir()

    def _network(self) -> None:
        limit = time.monotonic() + _LINK_S
        while not Path("/proc/self/net/dev").read_text().count("eth0:"):
            assert time.monotonic() < limit, "timed out: this node has no network"
            time.sleep(_LOOK_EVERY_S)
        run("ip", "link", "set", "lo", "up")
        run("ip", "addr", "add", f"{self.spec.address}/24", "dev", "eth0")
        run("ip", "link", "set", "eth0", "up")
        run("ip", "route", "add", "default", "via", self.spec.gateway)
        for pods, address in self.spec.routes.items():
            run("ip", "route", "add", pods, "via", address)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    # --- settings

    def _write_settings(self) -> None:
        for name in ("kubelet", "pod-logs", "volume-plugins", "network", "opt"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "resolv.conf").write_text(f"nameserver {self.spec.gateway}\n")
        (self.folder / "containerd.toml").write_text(self._containerd())
        for name, content in (
            ("network/10-pods.conflist", self._pod_network()), ("kubelet.json", self._kubelet()),
            ("proxy.json", self._proxy()),
        ):
            (self.folder / name).write_text(json.dumps(content, indent=1))

    def _containerd(self) -> str:
        folder, cri = self.folder, "plugins.'io.containerd.cri.v1"
        runc = shutil.which("runc")
        return f"""\
version = 3
root = "{folder}/containerd"
state = "{folder}/state"
disabled_plugins = ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
                    "io.containerd.nri.v1.nri"]
[grpc]
address = "{self.socket}"
[ttrpc]
address = "{self.socket}.ttrpc"
[plugins.'io.containerd.internal.v1.opt']
path = "{folder}/opt"
[{cri}.images']
snapshotter = "overlayfs"
[{cri}.images'.pinned_images]
sandbox = "localhost/pause:1"
[{cri}.runtime']
restrict_oom_score_adj = true  # lowering it takes a capability that root in a container lacks
disable_apparmor = true
netns_mounts_under_state_dir = true
[{cri}.runtime'.cni]
use_internal_loopback = true
bin_dirs = ["{self.binaries}"]
conf_dir = "{folder}/network"
[{cri}.runtime'.containerd]
default_runtime_name = "runc"
[{cri}.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{folder}/runc"
SystemdCgroup = false
"""

    def _pod_network(self) -> Any:
        ranges = {"type": "host-local", "dataDir": str(self.folder / "addresses"),
                  "ranges": [[{"subnet": self.spec.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}  # fmt: skip
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "ptp", "mtu": 1500, "ipam": ranges},
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True, "backend": "nftables"},
        ]}  # fmt: skip

    def _kubelet(self) -> Any:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "failCgroupV1": False, "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self.spec.cgroup}",
            "containerRuntimeEndpoint": f"unix://{self.socket}", "address": self.spec.address,
            # Only the cluster's own nodes can reach it.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDNS": [self.spec.gateway], "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"), "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "failSwapOn": False, "enforceNodeAllocatable": [], "oomScoreAdj": 0,
            # The disk belongs to the whole computer: no image or pod may be evicted because it is full.
            "imageMinimumGCAge": "24h", "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%",
                             "nodefs.inodesFree": "1%"},
            # Containers are killed often here, so the back-off after crashes must be short.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "maxPods": 60, "syncFrequency": "10s", "shutdownGracePeriod": "0s",
        }  # fmt: skip

    def _proxy(self) -> Any:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
            "nftables": {"minSyncPeriod": "100ms"}, "clientConnection": {"kubeconfig": self.spec.proxy_kubeconfig},
            "clusterCIDR": "10.244.0.0/16", "hostnameOverride": self.spec.name, "oomScoreAdj": 0,
            "metricsBindAddress": "127.0.0.1:10249",
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }  # fmt: skip

    def _import_images(self) -> None:
        ctr = [str(self.binaries / "ctr"), "--address", str(self.socket), "--namespace", "k8s.io"]
        limit = time.monotonic() + _CONTAINERD_S
        while subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode:
            assert time.monotonic() < limit, "timed out: containerd does not answer"
            time.sleep(_LOOK_EVERY_S)
        imported = self.folder / "imported"
        imported.mkdir(exist_ok=True)
        for image in self.spec.images:
            mark = imported / Path(image).name
            if not mark.exists():  # a node that starts again has the images on its disk
                run(*ctr, "images", "import", "--local", image)
                mark.touch()


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


if __name__ == "__main__":
    KubeNode(NodeSpec(**json.loads(sys.argv[1]))).run()
