"""`EtcdKeeper`: what it takes care of besides keeps no member from being replaced."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.runtime import telemetry
from hapax.runtime.clock import SystemClock
from hapax.runtime.etcd_members import EtcdAlarm, EtcdMember, EtcdRefused, EtcdStatus
from hapax_operator.conditions import Note
from hapax_operator.etcd_keeper import EtcdKeeper
from hapax_operator.etcd_observe import Spec, snapshot_name, snapshots_of
from hapax_operator.plan_etcd_care import Care

CLUSTER = 0xC


class Api:
    """One pod, whose member is that of etcd."""

    def __init__(self) -> None:
        self.remembered: dict[str, Any] = {
            "metadata": {"resourceVersion": "1", "uid": "r"}, "data": {"cluster": "c"}}
        self.written: list[dict[str, Any]] = []
        self.known: dict[str, Any] = {}
        """The Workload's status as it was."""
        self.claims: list[str] = []
        self.broken = False
        """Whether the pod is of a former revision, and not ready."""
        self.evicted: list[str] = []
        self.claim_ends = False
        self.volume = ""
        """What the pod has found on its volume; empty: it has not looked."""
        self.status: dict[str, Any] = {}
        self.notes: list[Note] = []

    async def read(self, path: str) -> Mapping[str, Any] | None:
        metadata = {"namespace": "n", "name": "e", "uid": "w", "generation": 1, "resourceVersion": "1"}
        if "configmaps" in path:
            return self.remembered
        if "persistentvolumeclaims" in path:
            return {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"} if self.claim_ends else {}}
        if "workloads" in path:
            return {"metadata": metadata, "status": self.known}
        return {"metadata": metadata, "spec": {"replicas": 1},
                "status": {"observedGeneration": 1, "updateRevision": "r"}}

    async def listed(self, collection: str, selector: str) -> Mapping[str, Any]:
        if "persistentvolumeclaims" in collection:
            return {"items": [{"metadata": {"name": each, "uid": each}} for each in self.claims]}
        revision, ready = ("former", "False") if self.broken else ("r", "True")
        looked = [{"name": "volume", "state": {"terminated": {"exitCode": 0, "message": json.dumps({
            "volume": self.volume})}}}]
        return {"items": [{"metadata": {"name": "e-0", "uid": "u0", "labels": {"controller-revision-hash": revision}},
                           "status": {"conditions": [{"type": "Ready", "status": ready}],
                                      "initContainerStatuses": looked}}]}

    async def end(self, path: str, uid: str) -> None:
        self.evicted.append(uid)

    async def evict(self, namespace: str, pod: str, uid: str) -> str:
        self.evicted.append(uid)
        return ""

    async def replace(self, path: str, body: dict[str, Any]) -> bool:
        self.written.append(body["data"])
        return True

    async def put_status(self, meta: Any, status: dict[str, Any]) -> None:
        self.status = self.known | status

    async def record(self, meta: Any, note: Note) -> None:
        self.notes.append(note)


class Members:
    def __init__(self) -> None:
        self.alarms_fail = False
        self.cluster = CLUSTER
        self.lists_for = 0
        """A cluster whose member has got the address since it was asked for its state; 0: none."""
        self.snapshots_fail = False
        self.down = False
        self.db_bytes = 100
        self.used_bytes: int | None = None
        """None: all of it."""
        self.full = False
        self.defragmented = 0
        self.defragment_fails = False

    async def status(self, endpoint: str) -> EtcdStatus:
        if self.down:
            raise EtcdRefused("no answer")
        used = self.db_bytes if self.used_bytes is None else self.used_bytes
        return EtcdStatus(self.cluster, 10, 10, 5, self.db_bytes, used, (), "3.6.16")

    async def members(self, endpoint: str, cluster: int, *, confirmed: bool) -> list[EtcdMember]:
        if self.down or cluster != (self.lists_for or self.cluster):
            raise EtcdRefused("no answer, or one of another cluster")
        return [EtcdMember(11 if self.lists_for else 10, "e-0", ("http://e-0",), False)]

    async def alarms(self, endpoint: str) -> list[EtcdAlarm]:
        if self.alarms_fail:
            raise EtcdRefused("no leader")
        return [EtcdAlarm(10, "NOSPACE")] if self.full else []

    async def defragment(self, endpoint: str) -> None:
        self.defragmented += 1
        if self.defragment_fails:
            raise EtcdRefused("no answer in time")

    async def snapshot(self, endpoint: str, cluster: int, path: Path) -> int:
        assert cluster == self.cluster
        if self.snapshots_fail:
            raise OSError(28, "No space left on device")
        await asyncio.to_thread(path.write_bytes, b"data")
        return 4


def keeper(api: Api, members: Members, snapshots: Path) -> EtcdKeeper:
    care = Care(1000, 100, 0.5, 60, 2)
    spec = Spec("n", "e", "a=b", "e", "e-{ordinal}", "http://e-{ordinal}", "", str(snapshots), care)
    return EtcdKeeper(spec, api, SystemClock(), random.Random(1), telemetry.Metrics(), members)  # type: ignore[arg-type]


async def test_members_are_kept_while_alarms_and_snapshots_fail(tmp_path: Path) -> None:
    api, members = Api(), Members()
    api.remembered["data"] = {}
    members.alarms_fail = True
    await keeper(api, members, tmp_path / "is not there").look()
    assert api.written == [{"founder": "", "claim": "", "cluster": "c", "removed": ""}]
    shown = {each["type"]: each["reason"] for each in api.status["conditions"]}
    assert shown["SnapshotTaken"] == "Failed" and shown["Ready"] == "Founding"


async def test_while_no_member_answers_no_pod_and_no_claim_of_one_may_go(tmp_path: Path) -> None:
    """The admission policies read it there: with `members` at 0, the chart could be applied with fewer pods."""
    api, members = Api(), Members()
    api.claims = ["data-e-0", "data-e-1", "data-e-2", "data-other-4", "data-e-x"]
    members.down = True
    api.known = {"members": 3}
    await keeper(api, members, tmp_path).look()
    assert (api.status["members"], api.status["volumesKeptOf"]) == (3, [0, 1, 2])
    api.known = {}  # it was installed again, next to volumes that were left
    await keeper(api, members, tmp_path).look()
    assert (api.status["members"], api.status["volumesKeptOf"]) == (1, [0, 1, 2])
    api.remembered["data"] = {}
    await keeper(api, members, tmp_path).look()
    assert api.status["members"] == 0, "none was ever seen"


async def test_members_of_another_cluster_release_neither_pods_nor_claims(tmp_path: Path) -> None:
    """One member of a cluster that is not ours answers for the first pod. By what it says, no other pod is needed."""
    api, members = Api(), Members()
    api.claims, api.known = ["data-e-0", "data-e-1", "data-e-2"], {"members": 3}
    api.broken, members.cluster = True, 0xD
    await keeper(api, members, tmp_path).look()
    assert (api.status["members"], api.status["volumesKeptOf"]) == (3, [0, 1, 2])
    shown = {each["type"]: each for each in api.status["conditions"]}
    assert shown["Ready"]["reason"] == "OtherCluster" and shown["Rolled"]["reason"] == "Stopped"
    assert not api.evicted and not api.written
    (note,) = api.notes
    assert (note.type, note.reason) == ("Warning", "OtherCluster") and "bring these pods up" in note.message
    members.cluster = CLUSTER
    await keeper(api, members, tmp_path).look()
    assert api.evicted == ["u0"], "by its own members it can be repaired"


async def test_a_list_of_another_cluster_s_members_takes_no_data_from_ours(tmp_path: Path) -> None:
    """Its member has got the pod's address after ours has answered. By its list, ours were removed."""
    api, members = Api(), Members()
    api.volume, members.lists_for = "c:a", 0xD
    await keeper(api, members, tmp_path).look()
    assert not api.written, "no member was noted as removed"
    assert {each["type"]: each["reason"] for each in api.status["conditions"]}["Ready"] == "QuorumLost"
    members.lists_for = 0
    await keeper(api, members, tmp_path).look()
    assert {each["type"]: each["reason"] for each in api.status["conditions"]}["Ready"] == "AsDescribed"


async def test_parts_of_snapshots_that_were_never_whole_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "etcd-000000000001.db.part").write_bytes(b"torn")
    (tmp_path / "mine.part").write_bytes(b"another's")
    await keeper(Api(), Members(), tmp_path).look()
    names = os.listdir(tmp_path)
    assert len(names) == 2 and "mine.part" in names and len(snapshots_of(dict.fromkeys(names, 0))) == 1


class Disk:
    """How much of it is free, besides what is in the folder."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size

    def usage(self, folder: Path) -> Any:
        assert folder == self.folder
        return SimpleNamespace(free=self.size - sum(each.stat().st_blocks * 512 for each in folder.iterdir()))


async def test_the_oldest_snapshots_go_where_there_is_no_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no newer one is ever stored."""
    members, block = Members(), 1 << 16
    monkeypatch.setattr(shutil, "disk_usage", Disk(tmp_path, 4 * block).usage)
    for at in (1, 2, 3):
        (tmp_path / snapshot_name(at)).write_bytes(bytes(block))
    members.db_bytes = 2 * block
    kept = keeper(Api(), members, tmp_path)
    await kept.look()
    assert sorted(os.listdir(tmp_path)) == [snapshot_name(2), snapshot_name(3)]
    await kept.look()
    names = sorted(os.listdir(tmp_path))
    assert len(names) == 3 and names[:2] == [snapshot_name(2), snapshot_name(3)], "no more than needed"


async def test_no_snapshot_goes_for_one_that_has_no_room_without_it_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one fails, and the volume has what it had."""
    api, members, block = Api(), Members(), 1 << 16
    monkeypatch.setattr(shutil, "disk_usage", Disk(tmp_path, 4 * block).usage)
    former = [snapshot_name(at) for at in (1, 2)]
    for name in former:
        (tmp_path / name).write_bytes(bytes(block))
    members.db_bytes, members.snapshots_fail = 4 * block, True
    kept = keeper(api, members, tmp_path)
    for _ in range(3):
        await kept.look()
    assert sorted(os.listdir(tmp_path)) == former
    assert {each["type"]: each["reason"] for each in api.status["conditions"]}["SnapshotTaken"] == "Failed"


async def test_a_folder_that_could_not_be_read_once_is_no_failed_snapshot(tmp_path: Path) -> None:
    api, folder = Api(), tmp_path / "later"
    kept = keeper(api, Members(), folder)
    await kept.look()
    assert {each["type"]: each["reason"] for each in api.status["conditions"]}["SnapshotTaken"] == "Failed"
    folder.mkdir()
    (folder / snapshot_name(int(time.time()) - 5)).write_bytes(b"data")
    await kept.look()
    assert {each["type"]: each["reason"] for each in api.status["conditions"]}["SnapshotTaken"] == "OnSchedule"


async def test_a_defragmentation_without_effect_is_not_repeated_at_each_look(tmp_path: Path) -> None:
    """Also one that failed: the member may be at it still."""
    members = Members()
    members.full, members.db_bytes, members.used_bytes = True, 990, 100
    kept = keeper(Api(), members, tmp_path)
    for _ in range(4):
        await kept.look()
    assert members.defragmented == 1
    members.used_bytes, members.defragment_fails = 50, True  # more is unused than was then
    with pytest.raises(EtcdRefused):
        await kept.look()
    for _ in range(3):
        await kept.look()
    assert members.defragmented == 2


async def test_the_only_member_stays_while_its_claim_is_being_deleted(tmp_path: Path) -> None:
    """A new revision would take all that etcd has."""
    api = Api()
    api.broken = api.claim_ends = True
    await keeper(api, Members(), tmp_path).look()
    shown = {each["type"]: each for each in api.status["conditions"]}
    assert api.evicted == [] and shown["Rolled"]["reason"] == "EvictionRefused"
    assert "its data would go with the pod" in shown["Rolled"]["message"]
