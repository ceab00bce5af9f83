"""scripts/volumes.py: what it decides from what it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripts.volumes import (
    ZONE,
    Kube,
    Refused,
    backups,
    claims_of,
    finish,
    newest,
    placed,
    pod_for,
    restored_claim,
    snapshot_class,
    surplus,
    zone_of,
)


def node(name: str, zone: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **({ZONE: zone} if zone else {})}}}


NODES = [node("n1", "a"), node("n2", "a"), node("n3", "b")]


def volume(*expressions: tuple[str, str, list[str]]) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": key, "operator": kind, "values": values}]}
             for key, kind, values in expressions]
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if terms else {}}


@pytest.mark.parametrize(("expressions", "zone"), [
    ([], ""),
    ([(ZONE, "In", ["a"])], "a"),
    ([(ZONE, "In", ["a", "b"])], ""),
    ([("kubernetes.io/hostname", "In", ["n3"])], "b"),
    ([("kubernetes.io/hostname", "In", ["n2"])], "a"),
    ([("kubernetes.io/hostname", "NotIn", ["n3"])], "a"),
    ([("kubernetes.io/hostname", "In", ["n1"]), ("kubernetes.io/hostname", "In", ["n3"])], ""),
    ([("disk", "Exists", [])], ""),
    ([("disk", "DoesNotExist", [])], ""),
    ([(ZONE, "In", ["gone"])], ""),
])
def test_the_zone_of_a_volume_is_that_of_the_nodes_that_reach_it(expressions: Any, zone: str) -> None:
    """Whatever keys its driver uses."""
    assert zone_of(volume(*expressions), NODES) == zone


def test_all_expressions_of_a_term_must_fit() -> None:
    both = {"matchExpressions": [{"key": ZONE, "operator": "Exists"},
                                 {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n3"]}]}
    assert zone_of({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [both]}}}}, NODES) == "b"
    assert zone_of({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [both]}}}}, [node("n3")]) == ""


def kind(name: str, driver: str = "d", default: bool = False) -> dict[str, Any]:
    annotations = {"snapshot.storage.kubernetes.io/is-default-class": "true"} if default else {}
    return {"metadata": {"name": name, "annotations": annotations}, "driver": driver}


def test_which_class_of_snapshots_a_volume_has() -> None:
    assert snapshot_class("d", [kind("x"), kind("y", "other")]) == "x"
    assert snapshot_class("d", [kind("x"), kind("y", default=True)]) == "y"
    assert snapshot_class("d", [kind("x"), kind("y", default=True)], "x") == "x"
    assert snapshot_class("none", [kind("x")]) == snapshot_class("", [kind("x", "")]) == ""
    with pytest.raises(Refused, match="x, y"):
        snapshot_class("d", [kind("y"), kind("x")])


def test_which_backups_go() -> None:
    done = dict.fromkeys(("1", "2", "3"), True)
    assert surplus(done, 2) == ["1"] and surplus(done, 3) == surplus(done, 5) == []
    assert surplus({**done, "4": False}, 1) == ["1", "2"], "one that is being taken stays, and counts for nothing"
    assert surplus({"0": False, **done}, 3) == ["0"], "one that was never finished"
    assert surplus({"0": False, "1": True}, 2) == []


def test_a_release_of_the_same_name_elsewhere_has_backups_of_its_own(tmp_path: Path) -> None:
    """In one folder: neither are its backups surplus, nor are they restored unless they are named."""
    for name, namespace in (("1", "a"), ("2", "b"), ("3", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backup.json").write_text(json.dumps({
            "version": 1, "release": "demo", "namespace": namespace, "cut": True, "finished": name != "2",
            "claims": []}))
    assert backups(tmp_path, "demo", "a") == {"1": True, "3": True} and backups(tmp_path, "demo", "b") == {"2": False}
    assert newest(tmp_path, "demo", "cut", "b") == tmp_path / "2"
    finish(Kube("b"), "demo", tmp_path, 1)
    assert set(backups(tmp_path, "demo")) == {"1", "2", "3"}
    with pytest.raises(Refused, match="a, b"):
        newest(tmp_path, "demo", "finished")
    finish(Kube("a"), "demo", tmp_path, 1)
    assert set(backups(tmp_path, "demo")) == {"2", "3"}
    (tmp_path / "2" / "backup.json").unlink()
    assert newest(tmp_path, "demo", "finished") == tmp_path / "3", "into any namespace"


def test_a_backup_that_names_no_namespace_is_nobody_s_to_remove(tmp_path: Path) -> None:
    """Of a former version: it may be the last one of a release in another namespace."""
    for name, of in (("1", {}), ("2", {"namespace": "a"}), ("3", {"namespace": "a"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backup.json").write_text(json.dumps({
            "version": 1, "release": "demo", "cut": True, "finished": True, "claims": [], **of}))
    finish(Kube("a"), "demo", tmp_path, 1)
    assert set(backups(tmp_path, "demo")) == {"1", "3"}
    with pytest.raises(Refused, match=r"in b that is cut; these name no namespace, so .* by its folder: 1"):
        finish(Kube("b"), "demo", tmp_path, 1)
    with pytest.raises(Refused, match="a, an unnamed one"):
        newest(tmp_path, "demo", "finished")
    with pytest.raises(Refused, match="is of the namespace a"):
        finish(Kube("b"), "demo", tmp_path / "3", 1)
    finish(Kube("b"), "demo", tmp_path / "1", 1)
    assert backups(tmp_path, "demo", "b") == {"1": True}, "a person has said whose it is"


def test_a_restored_claim_asks_for_what_its_snapshot_needs() -> None:
    of = {"name": "c", "labels": {"a": "b"}, "zone": "", "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "s"}}
    assert "dataSource" not in restored_claim(of, "t")["spec"]
    found = restored_claim({**of, "snapshot": "c-t", "restoreSize": "2Gi"}, "t")
    assert found["spec"]["dataSource"]["name"] == "c-t" and found["metadata"]["labels"] == {"a": "b"}
    assert found["spec"]["resources"] == {"requests": {"storage": "2Gi"}}
    assert of["spec"]["resources"] == {"requests": {"storage": "1Gi"}}


@pytest.mark.parametrize(("asked", "needed", "size"), [
    ("1Gi", "2Gi", "2Gi"), ("3Gi", "2Gi", "3Gi"), ("1Gi", "0", "1Gi"), ("1.5Gi", "1600Mi", "1600Mi"),
    ("2G", "1953125Ki", "2G"), ("1Gi", "1073741825", "1073741825"),
])
def test_a_restored_claim_is_never_smaller_than_the_one_that_was_saved(asked: str, needed: str, size: str) -> None:
    """A driver that does not say how large a snapshot is has 0."""
    of = {"name": "c", "labels": {}, "zone": "", "snapshot": "c-t", "restoreSize": needed,
          "spec": {"resources": {"requests": {"storage": asked}}}}
    assert restored_claim(of, "t")["spec"]["resources"] == {"requests": {"storage": size}}


def test_only_volumes_of_brokers_and_etcd_are_saved() -> None:
    """The chart makes the others itself, and would refuse to be installed next to one that it has not made."""
    kept = [{"metadata": {"name": each, "labels": {"app.kubernetes.io/component": each}}}
            for each in ("broker", "etcd")]
    others = [{"metadata": {"name": "demo-hapax-spark-checkpoint", "labels": {}}},
              {"metadata": {"name": "s", "labels": {"app.kubernetes.io/component": "etcd-keeper"}}}]

    class Found:
        def items(self, *_: str) -> list[Any]:
            return [*others, *kept]

    assert claims_of(Found(), "demo") == kept  # type: ignore[arg-type]


def test_a_pod_is_kept_to_its_volume_s_zone() -> None:
    (term,) = pod_for("c", "r", "i", "b", "broker", {})["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}
    assert pod_for("c", "r", "i", "", "broker", {})["spec"]["affinity"] == {}
    assert len(pod_for("c" * 90, "r", "i", "", "", {})["metadata"]["name"]) == 63


TAINTED: dict[str, Any] = {"tolerations": [{"key": "disk", "operator": "Exists"}], "nodeSelector": {"disk": "fast"},
                           "imagePullSecrets": [{"name": "registry"}]}


def stateful_set(component: str, release: str = "demo", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": f"x-{component}", "labels": {
        "app.kubernetes.io/instance": release, "app.kubernetes.io/component": component}},
        "spec": {"template": {"spec": spec}}}


class Installed(Kube):
    """The StatefulSets that are there."""

    def __init__(self, *found: dict[str, Any]) -> None:
        super().__init__("n")
        self.found = list(found)

    def items(self, kind: str, *words: str) -> list[Any]:
        assert (kind, words) == ("statefulsets", ("-l", "app.kubernetes.io/instance=demo"))
        return self.found


def test_a_pod_runs_where_the_release_s_own_pods_may_and_finds_its_image_as_they_do() -> None:
    """Otherwise it stays pending on machines with taints, and its image is not found in a private registry."""
    wanted = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "cpu", "operator": "Exists"}]}, {"matchFields": []}]}}}
    kube = Installed(
        stateful_set("broker", **TAINTED, affinity={**wanted, "podAntiAffinity": {"any": []}}, priorityClassName="p"),
        stateful_set("etcd"), stateful_set("coordinator", tolerations=[{}]))
    found = placed(kube, "demo", None)
    assert found == {"broker": {**TAINTED, "affinity": wanted}, "etcd": {}}
    spec = pod_for("c", "demo", "i", "b", "broker", found["broker"])["spec"]
    assert {key: spec[key] for key in TAINTED} == TAINTED
    zone = {"key": ZONE, "operator": "In", "values": ["b"]}
    assert spec["affinity"] == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "cpu", "operator": "Exists"}, zone]},
                              {"matchFields": [], "matchExpressions": [zone]}]}}}, "in this zone by either term"
    assert found["broker"]["affinity"] == wanted, "one pod's zone is not another's"
    assert pod_for("c", "demo", "i", "", "broker", found["broker"])["spec"]["affinity"] == wanted


def test_the_pods_of_a_release_that_is_uninstalled_are_like_those_in_a_file(tmp_path: Path) -> None:
    """A backup is taken after `helm uninstall`: nothing in the namespace says then what its pods were like."""
    file = tmp_path / "statefulsets.json"
    file.write_text(json.dumps({"items": [stateful_set("broker", "other"), stateful_set("broker", **TAINTED)]}))
    assert placed(Installed(), "demo", file) == {"broker": TAINTED}
    assert placed(Installed(stateful_set("broker")), "demo", file) == {"broker": {}}, "what is there counts"
    assert placed(Installed(), "demo", None) == {}
    for bad in ("[]", "no", "{}"):
        file.write_text(bad)
        with pytest.raises(Refused, match="kubectl get statefulsets"):
            placed(Installed(), "demo", file)
    file.write_text(json.dumps({"items": [stateful_set("broker", "other"), stateful_set("coordinator")]}))
    with pytest.raises(Refused, match="no StatefulSet of demo"):  # such as of another namespace
        placed(Installed(), "demo", file)
