"""etcd's members, with the chart's own containers, the real API server and real etcd processes.

There are no nodes: `EtcdPods` makes the pods of the StatefulSet as it is, and runs their containers on loopback.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from aetcd.rpc import rpc_pb2

from hapax.local.authority import Authority
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.etcd_users import set_up
from hapax.runtime.ports import Compare, Put
from hapax.runtime.tls import Material
from hapax_kube.api import ApiError
from hapax_kube.etcd_pods import EtcdPods
from hapax_kube.operator import Namespace
from integration.etcd_process import dies_with_parent
from integration.waiting import wait_until

NAME = "demo-hapax-etcd"
KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ConfigMap",
         "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
_networks = itertools.count(1)

pytestmark = pytest.mark.timeout(300)

Render = Callable[..., list[dict[str, Any]]]


class Release:
    """What the chart makes of etcd, in one namespace, with its keeper as a process under the chart's account."""

    def __init__(self, namespace: Namespace, render: Render, folder: Path) -> None:
        self.namespace = namespace
        self.api = namespace.api
        self._render = render
        self.values: tuple[str, ...] = ("security.enabled=false",)
        self.volumes_kept = False
        """Whether the policy is installed that keeps claims. Without it, the loss of a volume is easily played."""
        self._folder = folder
        network = next(_networks)
        self.pods = EtcdPods(self.api, namespace.name, folder, f"{os.getpid() % 200 + 20}.{network}")
        self.objects: list[dict[str, Any]] = []
        self.keeper: subprocess.Popen[bytes] | None = None

    def apply(self, *values: str) -> subprocess.CompletedProcess[str]:
        self.objects = [
            each for each in self._render(*self.values, *values, namespace=self.namespace.name)
            if (each["kind"] in KINDS and "etcd" in each["metadata"]["name"]
                and (self.volumes_kept or not each["metadata"]["name"].endswith("-etcd-volumes")))
            or (each["kind"], each["metadata"]["name"]) == ("StatefulSet", NAME)]
        for each in self.objects:
            if each["kind"] == "StatefulSet":  # no node reads its pods' Secrets and accounts
                each["spec"]["template"]["spec"].pop("serviceAccountName")
        path = self._folder / "objects.yaml"
        path.write_text(yaml.safe_dump_all(self.objects))
        return self.api.kubectl("apply", "-f", str(path))

    def install(self, *values: str, **care: Any) -> None:
        done = self.apply(*values)
        assert done.returncode == 0, done.stderr
        self._spec = self.pods.spec(self.objects, **care)
        self._account = self.api.kubeconfig_of(self.namespace.name, f"{NAME}-keeper")
        self.start_keeper()

    def start_keeper(self) -> None:
        command = [sys.executable, "-m", "hapax_operator.etcd_main", f"--spec={self._spec}", "--http=127.0.0.1:0"]
        with (self._folder / "keeper.log").open("ab") as log:
            self.keeper = subprocess.Popen(
                dies_with_parent(command), stdout=log, stderr=log,
                env={**os.environ, "KUBECONFIG": str(self._account)})

    def kill_keeper(self) -> None:
        if self.keeper is not None:
            self.keeper.kill()
            self.keeper.wait()
            self.keeper = None

    def close(self) -> None:
        self.kill_keeper()
        self.pods.close()
        self.api.kubectl("delete", "--wait=false", "-f", str(self._folder / "objects.yaml"))

    def log(self) -> str:
        path = self._folder / "keeper.log"
        return path.read_text() if path.exists() else ""

    def condition(self, kind: str = "Ready") -> tuple[str, str]:
        if not self.namespace.exists("workloads", NAME):
            return "", ""
        body = self.namespace.get("workloads", NAME)
        return next(((each["status"], each["reason"]) for each in body.get("status", {}).get("conditions", ())
                     if each["type"] == kind), ("", ""))

    def until(self, done: Callable[[], bool], what: str, seconds: float = 90) -> None:
        def stepped() -> bool:
            self.pods.tick()
            return done()

        wait_until(stepped, what, seconds, every_s=0.1)

    def whole(self, size: int) -> None:
        self.until(lambda: self.condition() == ("True", "AsDescribed") and len(self.members()) == size,
                   f"{size} members: {self.condition()}")

    def members(self) -> dict[str, int]:
        """Name -> id, as a member that answers knows them."""
        for ordinal in range(5):
            try:
                found = call(self.pods.client(ordinal), "Cluster/MemberList", rpc_pb2.MemberListRequest(),
                             rpc_pb2.MemberListResponse, 1.0)
            except grpc.RpcError:
                continue
            return {each.name: each.ID for each in found.members if not each.isLearner}
        return {}

    def clusters(self) -> set[int]:
        found = set()
        for ordinal in range(5):
            try:
                found.add(call(self.pods.client(ordinal), "Maintenance/Status", rpc_pb2.StatusRequest(),
                               rpc_pb2.StatusResponse, 1.0).header.cluster_id)
            except grpc.RpcError:
                continue
        return found


OPTIONS = (("grpc.enable_http_proxy", 0),)


def call(
    endpoint: str, method: str, request: Any, response: Any, timeout: float = 3.0, root: Material | None = None
) -> Any:
    opened = grpc.insecure_channel(endpoint, options=OPTIONS) if root is None else grpc.secure_channel(
        endpoint, grpc.ssl_channel_credentials(root.authorities, root.key, root.chain), options=OPTIONS)
    with opened as channel:
        return channel.unary_unary(
            f"/etcdserverpb.{method}", request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString)(request, timeout=timeout, wait_for_ready=True)


def put(endpoint: str, key: str, value: str) -> None:
    call(endpoint, "KV/Put", rpc_pb2.PutRequest(key=key.encode(), value=value.encode()), rpc_pb2.PutResponse)


def stored(endpoint: str, prefix: str) -> dict[str, str]:
    key = prefix.encode()
    found = call(endpoint, "KV/Range", rpc_pb2.RangeRequest(
        key=key, range_end=key[:-1] + bytes([key[-1] + 1])), rpc_pb2.RangeResponse)
    return {each.key.decode(): each.value.decode() for each in found.kvs}


@pytest.fixture
def release(namespace: Namespace, render: Render, tmp_path: Path) -> Iterator[Release]:
    release = Release(namespace, render, tmp_path)
    yield release
    print(release.log()[-6000:])
    for ordinal in range(5):
        print(f"--- {ordinal}\n{release.pods.log(ordinal)[-1500:]}")
    release.close()


class Writer:
    """Writes key after key through any member that answers, and remembers what was acknowledged."""

    def __init__(self, pods: EtcdPods) -> None:
        self._pods = pods
        self._stop = threading.Event()
        self.written: dict[str, str] = {}
        self.longest_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last, ordinals = time.monotonic(), itertools.cycle(range(5))
        at = next(ordinals)
        for number in itertools.count():
            while not self._stop.is_set():
                try:
                    call(self._pods.client(at), "KV/Put", rpc_pb2.PutRequest(
                        key=f"w/{number:06}".encode(), value=str(number).encode()), rpc_pb2.PutResponse, 2.0)
                except grpc.RpcError:
                    at = next(ordinals)
                    continue
                self.written[f"w/{number:06}"] = str(number)
                self.longest_s = max(self.longest_s, time.monotonic() - last)
                last = time.monotonic()
                break
            if self._stop.wait(0.02):
                return

    def stop(self) -> dict[str, str]:
        self._stop.set()
        self._thread.join(10)
        return self.written


def test_more_members_are_of_the_same_cluster(release: Release) -> None:
    release.install("etcd.replicas=1")
    release.until(lambda: bool(release.members()), "first member")
    put(release.pods.client(0), "before", "1")
    assert release.apply("etcd.replicas=3").returncode == 0
    release.until(lambda: all(answers(release, each) for each in range(3)), "three members")
    assert len(release.clusters()) == 1
    for ordinal in range(3):
        assert stored(release.pods.client(ordinal), "before") == {"before": "1"}


def answers(release: Release, ordinal: int) -> bool:
    try:
        call(release.pods.client(ordinal), "Maintenance/Status", rpc_pb2.StatusRequest(), rpc_pb2.StatusResponse, 0.5)
    except grpc.RpcError:
        return False
    return True


def test_no_write_is_lost_while_members_come_go_and_lose_their_data(release: Release) -> None:
    release.install("etcd.replicas=1")
    release.whole(1)
    (cluster,) = release.clusters()
    writer = Writer(release.pods)
    try:
        assert release.apply("etcd.replicas=3").returncode == 0
        release.whole(3)
        first = release.members()
        assert release.apply("etcd.replicas=5").returncode == 0
        release.until(lambda: len(release.members()) == 4, "fourth member")
        release.kill_keeper()  # in the middle of the change
        release.start_keeper()
        release.whole(5)
        before = release.members()
        assert first.items() <= before.items()
        release.pods.lose_volume(1)
        release.until(lambda: release.condition() != ("True", "AsDescribed"), "notice of the loss")
        release.whole(5)
        after = release.members()
        assert {name for name in after if after[name] != before[name]} == {f"{NAME}-1"}
        for members, replicas in ((3, 5), (3, 3), (1, 3), (1, 1)):
            done = release.apply(f"etcd.members={members}", f"etcd.replicas={replicas}")
            assert done.returncode == 0, done.stderr
            release.whole(members)
        release.until(lambda: list(release.pods.pods) == [f"{NAME}-0"], "one pod")
    finally:
        written = writer.stop()
    assert release.clusters() == {cluster}
    found = stored(release.pods.client(0), "w/")
    assert written.items() <= found.items(), f"{len(written.keys() - found.keys())} writes are lost"
    assert len(written) > 100 and set(release.members()) == {f"{NAME}-0"}


def test_pods_are_not_removed_before_their_members(release: Release) -> None:
    release.install("etcd.replicas=3")
    release.whole(3)
    done = release.apply("etcd.replicas=1")
    assert done.returncode != 0 and "members of etcd leave one by one" in done.stderr
    with pytest.raises(ApiError, match="members of etcd leave one by one"):
        release.api.patch(f"/apis/apps/v1/namespaces/{release.namespace.name}/statefulsets/{NAME}/scale",
                          {"spec": {"replicas": 2}})
    put(release.pods.client(0), "kept", "1")
    release.api.kubectl("delete", "validatingadmissionpolicybinding", f"{release.namespace.name}.demo-hapax-etcd")
    path = f"/apis/apps/v1/namespaces/{release.namespace.name}/statefulsets/{NAME}"
    wait_until(lambda: scaled(release, path), "an end of the policy", 30)
    # Two of three pods are gone at once: they come back, and leave after their members.
    release.whole(1)
    release.until(lambda: list(release.pods.pods) == [f"{NAME}-0"], "one pod")
    assert stored(release.pods.client(0), "kept") == {"kept": "1"}


def scaled(release: Release, path: str) -> bool:
    try:
        release.api.patch(path, {
            "metadata": {"annotations": {"hapax.dev/replicas": "1", "hapax.dev/members": "1"}},
            "spec": {"replicas": 1}})
    except ApiError:
        return False
    return True


def test_the_only_member_is_never_founded_twice(release: Release) -> None:
    release.install("etcd.replicas=1")
    release.whole(1)
    put(release.pods.client(0), "lost", "1")
    release.pods.lose_volume(0)
    release.until(lambda: release.condition() == ("False", "VolumeLost"), "condition of the loss")
    for _ in range(20):
        release.pods.tick()
    assert not release.clusters() and "waiting: no member answers" in release.pods.log(0)


def test_snapshots_are_taken_and_kept(release: Release, tmp_path: Path) -> None:
    release.install("etcd.replicas=1", snapshotEverySeconds=2, snapshotsKept=2)
    release.whole(1)
    folder = tmp_path / "snapshots"
    seen: set[str] = set()

    def turned_over() -> bool:
        seen.update(each.name for each in folder.glob("*.db"))
        return len(seen) >= 4

    release.until(turned_over, "snapshots")
    release.until(lambda: 1 <= len(list(folder.iterdir())) <= 3, "old ones go")
    assert release.condition("SnapshotTaken") == ("True", "OnSchedule")
    newest = max(folder.glob("*.db"))
    assert newest.stat().st_size % 512 == 32  # etcd's own sum is at the end, as its tools expect it


def test_an_alarm_for_space_ends_when_there_is_space(release: Release) -> None:
    quota = 16 * 2**20
    release.install("etcd.replicas=1", f"etcd.quotaBytes={quota}", defragmentBytes=2**40)
    release.whole(1)
    endpoint = release.pods.client(0)
    with pytest.raises(grpc.RpcError, match="space exceeded"):
        for number in range(64):
            put(endpoint, f"fill/{number}", "x" * 500_000)
    release.until(lambda: release.condition("SpaceLeft") == ("False", "QuotaReached"), "condition of the alarm")
    found = call(endpoint, "KV/DeleteRange", rpc_pb2.DeleteRangeRequest(key=b"fill/", range_end=b"fill0"),
                 rpc_pb2.DeleteRangeResponse)
    call(endpoint, "KV/Compact", rpc_pb2.CompactionRequest(revision=found.header.revision, physical=True),
         rpc_pb2.CompactionResponse)
    release.until(lambda: release.condition("SpaceLeft") == ("True", "BelowQuota"), "end of the alarm")
    put(endpoint, "again", "1")
    assert "a member is defragmented" in release.log()


def test_a_client_passes_over_a_member_without_a_vote(release: Release) -> None:
    release.install("etcd.replicas=1")
    release.whole(1)
    release.kill_keeper()  # so that the learner stays one
    assert release.apply("etcd.replicas=3").returncode == 0
    address = f"http://{release.pods.address(1)}:2380"
    call(release.pods.client(0), "Cluster/MemberAdd", rpc_pb2.MemberAddRequest(peerURLs=[address], isLearner=True),
         rpc_pb2.MemberAddResponse)
    release.until(lambda: answers(release, 1), "the learner")

    async def write() -> bool:
        store = EtcdStore([release.pods.client(1), release.pods.client(0)])
        try:
            return (await store.txn([Compare("k", "create_revision", 0)], [Put("k", b"v")])).succeeded
        finally:
            await store.close()

    assert asyncio.run(write())


def test_members_of_a_closed_store_come_and_go_too(release: Release) -> None:
    """With TLS, and users in etcd: the keeper has the certificate of etcd's user root."""
    authority, folder = Authority.make(), release.pods.tls
    folder.mkdir()
    names = [release.pods.address(each) for each in range(5)]
    authority.issue("CN=etcd", names, use="both").write(folder, "etcd")
    issued = authority.issue("CN=root", use="client")
    issued.write(folder, "root")
    (folder / "services-ca.crt").write_bytes(authority.certificate)
    root = Material(issued.certificate, issued.key, authority.certificate)
    release.values = ("security.enabled=true", 'tls.issuer="operator"')
    release.install("etcd.replicas=1", snapshotEverySeconds=1)
    release.until(lambda: release.condition() == ("True", "AsDescribed"), "first member")
    assert set_up(release.pods.client(0), root, "hapax") > 0
    assert release.apply("etcd.replicas=3").returncode == 0

    def members() -> int:
        found = call(release.pods.client(0), "Cluster/MemberList", rpc_pb2.MemberListRequest(),
                     rpc_pb2.MemberListResponse, root=root)
        return sum(not each.isLearner for each in found.members)

    release.until(lambda: members() == 3 and release.condition() == ("True", "AsDescribed"), "three members")
    before = set((release.pods.folder / "snapshots").glob("*.db"))
    release.until(lambda: bool(set((release.pods.folder / "snapshots").glob("*.db")) - before), "another snapshot")
    assert release.apply("etcd.members=1", "etcd.replicas=3").returncode == 0
    release.until(lambda: members() == 1 and release.condition() == ("True", "AsDescribed"), "one member")


def test_new_revisions_come_one_pod_at_a_time_and_a_bad_one_takes_no_second(release: Release) -> None:
    release.install("etcd.replicas=3")
    release.whole(3)
    path = f"/apis/apps/v1/namespaces/{release.namespace.name}/statefulsets/{NAME}"
    writer = Writer(release.pods)
    try:
        release.pods.ended.clear()
        leader = leading(release)
        assert release.apply("etcd.replicas=3", 'etcd.resources.requests.memory="64Mi"').returncode == 0
        release.until(lambda: len(release.pods.ended) == 3 and release.condition("Rolled") == ("True", "UpToDate"),
                      f"end of the roll: {release.condition('Rolled')}", 150)
        assert sorted(release.pods.ended) == [f"{NAME}-{each}" for each in range(3)]
        assert release.pods.ended[-1] == f"{NAME}-{leader}", "the leader comes last"
        body = release.api.get(path)
        for container in body["spec"]["template"]["spec"]["initContainers"]:
            for each in container["env"]:
                if each["name"] == "SETTINGS":
                    each["value"] = each["value"].replace('"http://0.0.0.0:2381"', '"nothing"')
        release.pods.ended.clear()
        release.api.call("PUT", path, body)
        release.until(lambda: release.condition("Rolled") == ("False", "PodNotReady"), "a stop", 120)
        end = time.monotonic() + 8
        release.until(lambda: time.monotonic() > end, "some time")
        assert len(release.pods.ended) == 1, "the others still have a quorum"
        assert release.apply("etcd.replicas=3").returncode == 0
        release.until(lambda: len(release.pods.ended) == 4 and release.condition("Rolled") == ("True", "UpToDate"),
                      f"the repair: {release.condition('Rolled')}", 150)
        assert release.pods.ended[1] == release.pods.ended[0], "the broken one is replaced first"
    finally:
        written = writer.stop()
    release.whole(3)
    found = stored(release.pods.client(0), "w/")
    assert written.items() <= found.items() and len(written) > 50


def leading(release: Release) -> int:
    for ordinal in range(3):
        found = call(release.pods.client(ordinal), "Maintenance/Status", rpc_pb2.StatusRequest(),
                     rpc_pb2.StatusResponse)
        if found.leader == found.header.member_id:
            return ordinal
    raise AssertionError("there is no leader")


def test_the_volume_of_a_member_is_not_deleted_unless_the_others_have_a_quorum_without_it(release: Release) -> None:
    release.volumes_kept = True
    release.install("etcd.replicas=3")
    release.whole(3)
    claims = f"/api/v1/namespaces/{release.namespace.name}/persistentvolumeclaims/data-{NAME}-"

    def refusal(ordinal: int, how: str = "?dryRun=All") -> str:
        try:
            release.api.delete(f"{claims}{ordinal}{how}")
        except ApiError as error:
            return error.message
        return ""

    release.until(lambda: "a member of etcd has its data on this volume" in refusal(1), "policy", 30)
    assert f"annotate workload {NAME} hapax.dev/replace-volume-of=1" in refusal(1, "")
    workload = f"/apis/hapax.dev/v1alpha1/namespaces/{release.namespace.name}/workloads/{NAME}"
    frozen = release.pods.pods[f"{NAME}-2"].process
    assert frozen is not None
    frozen.send_signal(signal.SIGSTOP)
    release.api.patch(workload, {"metadata": {"annotations": {"hapax.dev/replace-volume-of": "1"}}})
    release.until(lambda: release.condition("VolumeReplaceable") == ("False", "MembersDown"), "refusal")
    release.until(lambda: "must be healthy, and have a vote, first: [2]" in refusal(1), "why", 30)
    frozen.send_signal(signal.SIGCONT)
    release.until(lambda: release.condition("VolumeReplaceable") == ("True", "Replicated"), "condition")
    release.until(lambda: refusal(1) == "", "permission", 30)
    assert refusal(0) and refusal(2), "one at a time"
    former = release.members()
    release.pods.lose_volume(1)
    release.until(lambda: (found := release.members()) != former and len(found) == 3, "another member")
    release.whole(3)
    release.api.patch(workload, {"metadata": {"annotations": {"hapax.dev/replace-volume-of": None}}})
    release.until(lambda: refusal(1) != "", "protection again", 30)


def test_volumes_grow(release: Release) -> None:
    """With the keeper's rights alone. The test does what the storage's driver would."""
    storage = f"{release.namespace.name}-grows"
    release.api.create("/apis/storage.k8s.io/v1/storageclasses", {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": storage},
        "provisioner": "tests.hapax.dev/none", "allowVolumeExpansion": True})
    try:
        given = ("etcd.replicas=1", f'etcd.storage.className="{storage}"', 'etcd.storage.templateSize="4Gi"')
        release.install(*given)
        release.whole(1)
        claim = f"/api/v1/namespaces/{release.namespace.name}/persistentvolumeclaims/data-{NAME}-0"

        def report(size: str) -> None:
            release.api.patch(f"{claim}/status", {"status": {"phase": "Bound", "capacity": {"storage": size}}})

        report("4Gi")
        assert release.apply(*given, 'etcd.storage.size="8Gi"').returncode == 0
        release.until(lambda: bool(release.api.get(claim)["spec"]["resources"]["requests"]["storage"] == "8Gi"),
                      f"request: {release.condition('VolumesGrown')}")
        assert release.condition("VolumesGrown") == ("False", "Expanding")
        report("8Gi")
        release.until(lambda: release.condition("VolumesGrown") == ("True", "AsDescribed"), "condition")
    finally:
        release.api.delete(f"/apis/storage.k8s.io/v1/storageclasses/{storage}")


def test_a_snapshot_on_empty_volumes_becomes_the_cluster_once_a_person_has_said_so(release: Release) -> None:
    """What `scripts/volumes.py restore-etcd` does in pods, which are none here."""
    release.install("etcd.replicas=3")
    release.whole(3)
    put(release.pods.client(0), "kept/a", "1")
    snapshot, former = release.pods.folder / "taken.db", release.clusters()
    subprocess.run([
        release.api.binaries / "etcdctl", f"--endpoints=http://{release.pods.client(0)}", "snapshot", "save", snapshot],
        check=True, capture_output=True, timeout=60)
    put(release.pods.client(0), "kept/b", "after")
    for ordinal in range(3):
        release.pods.lose_volume(ordinal)
    release.until(lambda: release.condition()[1] == "QuorumLost" and all(
        f"{NAME}-{each}" in release.pods.pods and "volume" in release.pods.pods[f"{NAME}-{each}"].done
        for each in range(3)), f"empty volumes: {release.condition()}")

    first = f"{NAME}-0"
    url = release.pods.here(f"http://{first}.{NAME}.{release.namespace.name}.svc.cluster.local:2380")
    subprocess.run([
        release.api.binaries / "etcdutl", "snapshot", "restore", snapshot, f"--name={first}",
        f"--data-dir={release.pods.pods[first].folder / 'etcd'}", f"--initial-cluster={first}={url}",
        f"--initial-advertise-peer-urls={url}", "--initial-cluster-token=restored"],
        check=True, capture_output=True, timeout=60)
    release.api.delete(f"/api/v1/namespaces/{release.namespace.name}/pods/{first}")
    release.until(lambda: release.condition() == ("False", "OtherCluster"), f"another cluster: {release.condition()}")
    release.namespace.annotate("workloads", NAME, restored=f"{next(iter(former)):x}")
    end = time.monotonic() + 3
    release.until(lambda: time.monotonic() > end, "some time")
    assert release.condition() == ("False", "OtherCluster"), "the id of another one is no permission"
    (restored,) = release.clusters()
    release.namespace.annotate("workloads", NAME, restored=f"{restored:x}")
    release.whole(3)
    assert release.clusters() == {restored} != former
    release.until(lambda: answers(release, 2), "third member")
    assert stored(release.pods.client(2), "kept/") == {"kept/a": "1"}
