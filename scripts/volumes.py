#!/usr/bin/env python3
"""Backs up the volumes of a Hapax release, including etcd's, and restores them, each in the zone that it was in.

    scripts/volumes.py save    NAMESPACE RELEASE IMAGE FOLDER [--snapshots auto|never] [--class CLASS]
                                            [--like FILE]
    scripts/volumes.py finish  NAMESPACE RELEASE FOLDER [--keep N]
    scripts/volumes.py restore NAMESPACE RELEASE IMAGE FOLDER [--like FILE]
    scripts/volumes.py restore-etcd NAMESPACE RELEASE [SNAPSHOT]

No pod of the release may run during `save`, because all volumes must be of one moment. It makes a folder in FOLDER,
and prints its name. A volume whose driver has a VolumeSnapshotClass is backed up by a VolumeSnapshot; any other one as
an archive in that folder, by a pod of its own, which runs where the volume can be reached. When `save` returns, the
release may start again. `finish` waits until all snapshots can be used, records their handles, and removes all but the
newest N backups of the release in FOLDER, with their snapshots.

`restore` takes FOLDER, or the newest finished backup in it, into a namespace without volumes of the release. If FOLDER
has backups of releases of this name in several namespaces, one of them must be given.

The pods of `save` and `restore` have the tolerations, node selectors, node affinity and image pull secrets of the
release's own pods. They are read from its StatefulSets, or, where it is uninstalled, from what --like names: the output
of `kubectl get statefulsets -o json`, from before. A backup remembers them for `restore`.

`restore-etcd` is for a release that has lost all volumes of etcd: it puts a snapshot that the keeper has taken (by
default the newest) on the empty volume of the first pod, and tells the keeper the id of the restored cluster.

All need kubectl and Python 3.11; IMAGE is the image of Hapax.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

ZONE = "topology.kubernetes.io/zone"
COMPONENT = "app.kubernetes.io/component"
KEPT = ("broker", "etcd")
"""Components whose volumes are backed up. The chart makes others itself: snapshots of etcd, and checkpoints of Spark
jobs."""
LABEL = "hapax.dev/backup"
OWNER = "hapax.dev/backup-of"
SNAPSHOTS = "volumesnapshots.snapshot.storage.k8s.io"
CONTENTS = "volumesnapshotcontents.snapshot.storage.k8s.io"
CLASSES = "volumesnapshotclasses.snapshot.storage.k8s.io"
DEFAULT_CLASS = "snapshot.storage.kubernetes.io/is-default-class"
VERSION = 1
WAIT_S = 600
_POD_USER = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
             "seccompProfile": {"type": "RuntimeDefault"}}


class Refused(Exception):
    """Says why nothing, or nothing more, is done."""


# --- pure ---------------------------------------------------------------------------------------------------------


def matches(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels fulfils a term of a node selector."""
    for each in term.get("matchExpressions") or ():
        value, values = labels.get(each["key"]), each.get("values") or ()
        kind = each["operator"]
        if kind == "In" and value not in values:
            return False
        if kind == "NotIn" and value in values:
            return False
        if (kind == "Exists") is not (value is not None) and kind in ("Exists", "DoesNotExist"):
            return False
    return True


def zone_of(volume: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> str:
    """The zone of all nodes that reach a PersistentVolume; empty: they are in several, or in none."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    if required is None:
        return ""
    zones = {
        (node["metadata"].get("labels") or {}).get(ZONE, "") for node in nodes
        if any(matches(term, node["metadata"].get("labels") or {}) for term in required["nodeSelectorTerms"])}
    return zones.pop() if len(zones) == 1 else ""


def snapshot_class(driver: str, classes: Sequence[Mapping[str, Any]], wished: str = "") -> str:
    """The VolumeSnapshotClass for volumes of this driver: the wished one, the default, or the only one. Empty: none.
    Raises Refused if there are several."""
    found = [each for each in classes if driver and each["driver"] == driver]
    for each in found:
        if each["metadata"]["name"] == wished:
            return wished
    default = [each for each in found
               if (each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"]
    chosen = default or found
    if len(chosen) > 1:
        names = ", ".join(sorted(each["metadata"]["name"] for each in chosen))
        raise Refused(f"several VolumeSnapshotClasses of {driver}: name one of {names} by --class")
    return str(chosen[0]["metadata"]["name"]) if chosen else ""


def described(
    claim: Mapping[str, Any], volume: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """What a backup knows of a claim."""
    return {
        "name": claim["metadata"]["name"], "labels": claim["metadata"].get("labels") or {},
        "zone": zone_of(volume, nodes),
        "spec": {key: claim["spec"][key] for key in ("accessModes", "resources", "storageClassName", "volumeMode")
                 if key in claim["spec"]}}


def size_of(quantity: str) -> Decimal:
    """Bytes."""
    number = quantity.rstrip("EPTGMKkim")
    unit = quantity[len(number):]
    if unit == "m":
        return Decimal(number) / 1000
    power = " kMGTPE".index(unit[:1].replace("K", "k") or " ")
    return Decimal(number) * (1024 if unit.endswith("i") else 1000) ** power


def restored_claim(of: Mapping[str, Any], stamp: str) -> dict[str, Any]:
    spec = json.loads(json.dumps(of["spec"]))
    if of.get("snapshot"):
        spec["dataSource"] = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": of["snapshot"]}
        if of.get("restoreSize"):
            asked = spec["resources"]["requests"]["storage"]
            spec["resources"] = {"requests": {"storage": max(asked, of["restoreSize"], key=size_of)}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": of["name"], "labels": of["labels"], "annotations": {LABEL: stamp}}, "spec": spec}


def placements(stateful_sets: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Component -> what its pods have of that which says where they may run, and by which Secrets their images come."""
    found = {}
    for each in stateful_sets:
        spec = each["spec"]["template"]["spec"]
        taken = {key: spec[key] for key in ("imagePullSecrets", "nodeSelector", "tolerations")
                 if spec.get(key)}
        # Not what keeps pods from each other: there are none to keep from.
        if nodes := (spec.get("affinity") or {}).get("nodeAffinity"):
            taken["affinity"] = {"nodeAffinity": nodes}
        found[(each["metadata"].get("labels") or {}).get(COMPONENT, "")] = taken
    return {component: taken for component, taken in found.items() if component in KEPT}


def within(affinity: Mapping[str, Any], zone: str) -> dict[str, Any]:
    """An affinity to nodes that holds in one zone only; empty: anywhere."""
    found: dict[str, Any] = json.loads(json.dumps(affinity))
    if zone:
        required = found.setdefault("nodeAffinity", {}).setdefault(
            "requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [{}]})
        for term in required["nodeSelectorTerms"]:  # of terms one must fit, of the expressions in one all
            term.setdefault("matchExpressions", []).append({"key": ZONE, "operator": "In", "values": [zone]})
    return found


def pod_for(
    claim: str, release: str, image: str, zone: str, component: str, placement: Mapping[str, Any]
) -> dict[str, Any]:
    """A pod that mounts one claim. `zone`: empty: anywhere, apart from others of the component where possible.
    `placement`: of the component's own pods (`placements`)."""
    labels = {OWNER: release, "hapax.dev/component": component}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"volume-{claim}"[:63].rstrip("-."), "labels": labels},
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1, "securityContext": _POD_USER,
            **placement, "affinity": within(placement.get("affinity") or {}, zone),
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels}} for key in (ZONE, "kubernetes.io/hostname")],
            "containers": [{
                "name": "volume", "image": image, "imagePullPolicy": "IfNotPresent",
                "command": ["python3", "-c", "import signal; signal.signal(15, lambda *_: exit()); signal.pause()"],
                "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                    "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "volume", "mountPath": "/volume"}]}],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}]}}


def surplus(backups: Mapping[str, bool], keep: int) -> list[str]:
    """The backups to remove, of all by name and whether they are finished: those older than the newest `keep` finished
    ones. Names sort by time. One that is not finished counts for nothing, and a newer one is never removed."""
    finished = sorted(name for name, done in backups.items() if done)[-keep:]
    return sorted(name for name in backups if len(finished) == keep and name < finished[0])


# --- kubectl ------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(f"volumes: {text}", file=sys.stderr, flush=True)


class Kube:
    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def run(self, *words: str, text: str | None = None) -> str:
        done = subprocess.run(self.command(*words), input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(f"kubectl {' '.join(words[:3])}: {done.stderr.strip()}")
        return done.stdout

    def command(self, *words: str) -> list[str]:
        return ["kubectl", "--namespace", self.namespace, *words]

    def items(self, kind: str, *words: str) -> list[Any]:
        return list(json.loads(self.run("get", kind, *words, "-o", "json"))["items"])

    def get(self, kind: str, name: str) -> Any:
        """None: it does not exist."""
        said = self.run("get", kind, name, "--ignore-not-found", "-o", "json")
        return json.loads(said) if said.strip() else None

    def create(self, *bodies: Mapping[str, Any]) -> None:
        self.run("create", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(bodies)}))


def claims_of(kube: Kube, release: str) -> list[Any]:
    return [each for each in kube.items("persistentvolumeclaims", "-l", f"app.kubernetes.io/instance={release}")
            if (each["metadata"].get("labels") or {}).get(COMPONENT) in KEPT]


def placed(kube: Kube, release: str, like: Path | None) -> dict[str, dict[str, Any]]:
    """`placements` of the release as it is, or as a file says where it is uninstalled; empty: neither. Raises
    Refused."""
    found = placements(kube.items("statefulsets", "-l", f"app.kubernetes.io/instance={release}"))
    if like is None or found:
        return found
    try:
        found = placements(
            each for each in json.loads(like.read_text())["items"]
            if (each["metadata"].get("labels") or {}).get("app.kubernetes.io/instance") == release)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{like} is no output of kubectl get statefulsets -o json: {error!r}") from None
    if not found:
        raise Refused(f"{like} has no StatefulSet of {release} whose pods have volumes: it must be the output of "
                      "kubectl get statefulsets -o json from before the release was uninstalled")
    return found


def at_rest(kube: Kube, release: str) -> None:
    """Raises Refused while pods of the release are there."""
    running = kube.run("get", "pods", "-l", f"app.kubernetes.io/instance={release}", "-o", "name").split()
    if running:
        raise Refused(f"pods of the release are running: {' '.join(running)}")


class Pods:
    """A pod for each claim, while the context lasts."""

    def __init__(
        self, kube: Kube, release: str, image: str, claims: Sequence[Mapping[str, Any]],
        placement: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """`claims`: as of `described`; their zone, where pods shall be kept to it. `placement`: by component."""
        self._kube = kube
        self._selector = f"{OWNER}={release}"
        self.names = {}
        self._bodies = []
        for each in claims:
            component = each["labels"].get(COMPONENT, "")
            body = pod_for(
                each["name"], release, image, each["zone"], component, placement.get(component) or {})
            self.names[each["name"]] = body["metadata"]["name"]
            self._bodies.append(body)

    def __enter__(self) -> Pods:
        self._remove()
        if self._bodies:
            self._kube.create(*self._bodies)
        try:
            if self._bodies:
                self._kube.run("wait", "pods", "-l", self._selector, "--for=condition=Ready", f"--timeout={WAIT_S}s")
        except Refused:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        self._kube.run("delete", "pods", "-l", self._selector, "--ignore-not-found", "--wait=true")


def until(done: Callable[[], str], what: str) -> None:
    """`done`: empty when it is; otherwise what it waits for. Raises Refused."""
    limit = time.monotonic() + WAIT_S
    while left := done():
        if time.monotonic() > limit:
            raise Refused(f"timed out: {what}: {left}")
        time.sleep(1)


# --- save ---------------------------------------------------------------------------------------------------------


def save(
    kube: Kube, release: str, image: str, folder: Path, snapshots: str, wished: str, like: Path | None
) -> Path:
    claims = claims_of(kube, release)
    if not claims:
        raise Refused(f"there are no volumes of {release}")
    at_rest(kube, release)
    unbound = [each["metadata"]["name"] for each in claims if not each["spec"].get("volumeName")]
    if unbound:
        raise Refused(f"claims without a volume: {' '.join(unbound)}")
    placement = placed(kube, release, like)
    nodes = kube.items("nodes")
    volumes = {each["metadata"]["name"]: each for each in kube.items("persistentvolumes")}
    classes = snapshot_classes(kube) if snapshots == "auto" else []
    stamp = datetime.now(UTC).strftime("%Y%m%dt%H%M%Sz")
    backup: dict[str, Any] = {
        "version": VERSION, "release": release, "namespace": kube.namespace, "finished": False, "pods": placement,
        "claims": []}
    for claim in claims:
        volume = volumes[claim["spec"]["volumeName"]]
        found = described(claim, volume, nodes)
        chosen = snapshot_class((volume["spec"].get("csi") or {}).get("driver", ""), classes, wished)
        if chosen:
            found |= {"snapshot": f"{found['name']}-{stamp}", "class": chosen}
        else:
            found["archive"] = f"{found['name']}.tar"
        backup["claims"].append(found)
    into = folder / stamp
    into.mkdir(parents=True)
    write(into, backup)
    taken = [each for each in backup["claims"] if "snapshot" in each]
    if taken:
        kube.create(*({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": each["snapshot"], "labels": {LABEL: stamp, OWNER: release}},
            "spec": {"volumeSnapshotClassName": each["class"], "source": {"persistentVolumeClaimName": each["name"]}}}
            for each in taken))
    copied = [each for each in backup["claims"] if "archive" in each]
    # A volume that is there says itself where its pod may run.
    with Pods(kube, release, image, [{**each, "zone": ""} for each in copied], placement) as pods:
        for each in copied:
            archive(kube, pods.names[each["name"]], into / each["archive"])
    until(lambda: unfinished(kube, stamp, taken, "creationTime"), "the storage takes snapshots")
    at_rest(kube, release)
    backup["cut"] = True
    write(into, backup)
    say(f"saved {' '.join(each['name'] for each in backup['claims'])}: {len(taken)} snapshots, {len(copied)} archives")
    return into


def snapshot_classes(kube: Kube) -> list[Any]:
    """None where the Kubernetes cluster has no snapshots."""
    kinds = kube.run("api-resources", "--api-group=snapshot.storage.k8s.io", "-o", "name").split()
    return kube.items(CLASSES) if CLASSES in kinds else []


def archive(kube: Kube, pod: str, path: Path) -> None:
    """The root folder of the volume is left out: it belongs to the storage's driver."""
    fresh = path.with_suffix(".part")
    script = ("cd /volume && find . -mindepth 1 -maxdepth 1 ! -name lost+found -print0 |"
              " tar --null --files-from=- -cf -")
    with fresh.open("wb") as file:
        done = subprocess.run(kube.command("exec", pod, "--", "sh", "-c", script), stdout=file, check=False)
    if done.returncode:
        raise Refused(f"the archive of {path.stem} failed")
    fresh.replace(path)


def unfinished(kube: Kube, stamp: str, taken: Sequence[Mapping[str, Any]], field: str) -> str:
    """Which snapshots lack this field of their status; empty: none. Raises Refused if the storage refuses one."""
    found = {each["metadata"]["name"]: each.get("status") or {}
             for each in (kube.items(SNAPSHOTS, "-l", f"{LABEL}={stamp}") if taken else ())}
    for name, status in found.items():
        error = (status.get("error") or {}).get("message")
        if error and not status.get(field):
            raise Refused(f"snapshot {name}: {error}")
    return " ".join(each["snapshot"] for each in taken if not found.get(each["snapshot"], {}).get(field))


def write(folder: Path, backup: Mapping[str, Any]) -> None:
    fresh = folder / "backup.json.new"
    fresh.write_text(json.dumps(backup, indent=1) + "\n")
    fresh.replace(folder / "backup.json")


# --- finish -------------------------------------------------------------------------------------------------------


def finish(kube: Kube, release: str, folder: Path, keep: int) -> None:
    into = folder if (folder / "backup.json").exists() else newest(folder, release, "cut", kube.namespace)
    backup = read(into, release)
    if backup.setdefault("namespace", kube.namespace) != kube.namespace:
        raise Refused(f"{into} is of the namespace {backup['namespace']}, and its snapshots are there")
    if not backup.get("cut"):
        raise Refused(f"{into} was never whole: take another one")
    taken = [each for each in backup["claims"] if "snapshot" in each]
    until(lambda: unfinished(kube, into.name, taken, "readyToUse"), "the storage stores the snapshots")
    for each in taken:
        status = kube.get(SNAPSHOTS, each["snapshot"])["status"]
        content = kube.get(CONTENTS, status["boundVolumeSnapshotContentName"])
        each["handle"], each["driver"] = content["status"]["snapshotHandle"], content["spec"]["driver"]
        each["restoreSize"] = status.get("restoreSize", "")
        if content["spec"].get("deletionPolicy") != "Retain":
            say(f"{each['snapshot']} ends with the namespace: its class has no deletionPolicy: Retain")
    backup["finished"] = True
    write(into, backup)
    say(f"{into} is finished")
    if keep:
        for name in surplus(backups(into.parent, release, kube.namespace), keep):
            if any("snapshot" in each for each in read(into.parent / name, release)["claims"]):
                remove_snapshots(kube, f"{LABEL}={name},{OWNER}={release}")
            shutil.rmtree(into.parent / name)
            say(f"removed {into.parent / name}")


def remove_snapshots(kube: Kube, selector: str) -> None:
    for each in kube.items(SNAPSHOTS, "-l", selector):
        content = (each.get("status") or {}).get("boundVolumeSnapshotContentName")
        if content and kube.get(CONTENTS, content) is not None:  # a class may keep them in the storage otherwise
            kube.run("patch", CONTENTS, content, "--type=merge", "-p", '{"spec":{"deletionPolicy":"Delete"}}')
        kube.run("delete", SNAPSHOTS, each["metadata"]["name"], "--ignore-not-found")


def backups(folder: Path, release: str, namespace: str = "") -> dict[str, bool]:
    """Names of the backups in a folder, and whether they are finished: of the release in this namespace, or of all that
    have its name. Backups of a former version of this file name no namespace: they are of none that is asked for."""
    found = {}
    for path in sorted(folder.glob("*/backup.json")):
        body = json.loads(path.read_text())
        if body.get("release") == release and (not namespace or body.get("namespace") == namespace):
            found[path.parent.name] = bool(body.get("finished"))
    return found


def newest(folder: Path, release: str, field: str, namespace: str = "") -> Path:
    """Raises Refused, also if it could be of either of two releases."""
    known = {name: read(folder / name, release) for name in backups(folder, release, namespace)}
    found = {name: body for name, body in known.items() if body.get(field)}
    namespaces = sorted({body.get("namespace", "an unnamed one") for body in found.values()})
    if len(namespaces) > 1:
        raise Refused(f"{folder} has backups of {release} in several namespaces, {', '.join(namespaces)}: name one "
                      "by its folder")
    if not found:
        unnamed = [name for name in backups(folder, release) if "namespace" not in read(folder / name, release)]
        more = f"; these name no namespace, so give one of them by its folder: {' '.join(unnamed)}" if unnamed else ""
        where = f" in {namespace}" if namespace else ""
        raise Refused(f"{folder} has no backup of {release}{where} that is {field}{more}")
    return folder / max(found)


def read(folder: Path, release: str) -> dict[str, Any]:
    backup: dict[str, Any] = json.loads((folder / "backup.json").read_text())
    if backup["version"] > VERSION or backup["release"] != release:
        raise Refused(f"{folder} is of release {backup['release']}, version {backup['version']}")
    return backup


# --- restore ------------------------------------------------------------------------------------------------------


def restore(kube: Kube, release: str, image: str, folder: Path, like: Path | None) -> None:
    if claims_of(kube, release):
        raise Refused("there are volumes of the release already; restoring would overwrite them")
    source = folder if (folder / "backup.json").exists() else newest(folder, release, "finished")
    backup = read(source, release)
    if not backup["finished"]:
        raise Refused(f"{source} is not finished")
    placement = placed(kube, release, like) or backup.get("pods") or {}
    nodes = kube.items("nodes")
    zones = {(node["metadata"].get("labels") or {}).get(ZONE, "") for node in nodes}
    for each in backup["claims"]:
        if each["zone"] and each["zone"] not in zones:
            say(f"{each['name']} was in zone {each['zone']}, which this cluster has not: it goes anywhere")
            each["zone"] = ""
    # Of volumes that are gone. It may call a member of these ones removed, whose pod would then wait without end.
    for each in kube.items("configmaps", "-l",
                           f"app.kubernetes.io/instance={release},app.kubernetes.io/component=etcd"):
        say(f"the record of etcd's former members, {each['metadata']['name']}, is deleted")
        kube.run("delete", "configmap", each["metadata"]["name"], "--ignore-not-found")
    imported = [body for each in backup["claims"] if each.get("snapshot")
                for body in imports(kube, each, source.name, release)]
    if imported:
        kube.create(*imported)
    kube.create(*(restored_claim(each, source.name) for each in backup["claims"]))
    # Also of snapshots: with the first pod that uses it, many classes choose where a volume is.
    with Pods(kube, release, image, backup["claims"], placement) as pods:
        for each in backup["claims"]:
            if "archive" in each:
                with (source / each["archive"]).open("rb") as file:
                    done = subprocess.run(kube.command(
                        "exec", "-i", pods.names[each["name"]], "--", "tar", "-C", "/volume", "-xpf", "-"),
                        stdin=file, check=False)
                if done.returncode:
                    raise Refused(f"{each['name']} was not restored; delete the claims of the release, and try again")
    check_zones(kube, release, backup["claims"], nodes)
    say(f"restored {' '.join(each['name'] for each in backup['claims'])} from {source}")


def imports(kube: Kube, of: Mapping[str, Any], stamp: str, release: str) -> list[dict[str, Any]]:
    """What brings a snapshot that the storage has into this namespace; nothing if it is here."""
    if kube.get(SNAPSHOTS, of["snapshot"]) is not None:
        return []
    labels, name = {LABEL: stamp, OWNER: release}, of["snapshot"]
    content = f"{kube.namespace}-{name}"
    return [
        {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
         "metadata": {"name": content, "labels": labels},
         "spec": {"deletionPolicy": "Retain", "driver": of["driver"], "source": {"snapshotHandle": of["handle"]},
                  "volumeSnapshotClassName": of["class"],
                  "volumeSnapshotRef": {"name": name, "namespace": kube.namespace}}},
        {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
         "metadata": {"name": name, "labels": labels},
         "spec": {"volumeSnapshotClassName": of["class"], "source": {"volumeSnapshotContentName": content}}}]


def check_zones(
    kube: Kube, release: str, wanted: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
) -> None:
    """Raises Refused if a volume is not where it was: its class chooses a place without asking where its pod runs."""
    volumes = {each["metadata"]["name"]: each for each in kube.items("persistentvolumes")}
    now = {each["metadata"]["name"]: zone_of(volumes[each["spec"]["volumeName"]], nodes)
           for each in claims_of(kube, release)}
    moved = [f"{each['name']} is in {now[each['name']]}, was in {each['zone']}" for each in wanted
             if each["zone"] and now[each["name"]] not in ("", each["zone"])]
    if moved:
        raise Refused(f"restored in other zones: {'; '.join(moved)}. Use a class with WaitForFirstConsumer")


# --- a snapshot of etcd -------------------------------------------------------------------------------------------


def said_volume(pod: Mapping[str, Any]) -> str:
    """What the pod of etcd found on its volume when it started (etcd_start); empty: not known."""
    for each in (pod.get("status") or {}).get("initContainerStatuses") or ():
        if each["name"] == "volume":
            message = ((each.get("state") or {}).get("terminated") or {}).get("message", "")
            try:
                return str(json.loads(message)["volume"])
            except (ValueError, KeyError, TypeError):
                return ""
    return ""


def restoring_pod(stateful_set: Mapping[str, Any], first: str, token: str) -> dict[str, Any]:
    """It is given a snapshot, and makes the data of a cluster with the one member `first` of it."""
    template = stateful_set["spec"]["template"]["spec"]
    named = {each["name"]: each for each in (*template["initContainers"], *template["containers"])}
    look, member, etcd = named["volume"], named["member"], named["etcd"]
    settings = next(each["value"] for each in member["env"] if each["name"] == "SETTINGS")
    url = json.loads(settings)["initial-advertise-peer-urls"].replace("$(POD_NAME)", first)

    def container(name: str, of: Mapping[str, Any], command: list[str]) -> dict[str, Any]:
        return {"name": name, "image": of["image"], "imagePullPolicy": of.get("imagePullPolicy", "IfNotPresent"),
                "command": command, "resources": etcd.get("resources") or {},
                "securityContext": look.get("securityContext") or {},
                "volumeMounts": [{"name": "work", "mountPath": "/restoring"}]}

    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{stateful_set['metadata']['name']}-restore"},
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            **{key: template[key] for key in ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations")
               if key in template},
            "initContainers": [
                container("receive", look, ["sh", "-c", "until [ -e /restoring/whole ]; do sleep 0.2; done"]),
                container("restore", etcd, [
                    "etcdutl", "snapshot", "restore", "/restoring/snapshot.db", "--data-dir=/restoring/etcd",
                    f"--name={first}", f"--initial-cluster={first}={url}", f"--initial-advertise-peer-urls={url}",
                    f"--initial-cluster-token={token}"])],
            "containers": [container("hold", look, ["sleep", "3600"])],
            "volumes": [{"name": "work", "emptyDir": {}}]}}


def restore_etcd(kube: Kube, release: str, snapshot: str) -> None:
    labels = f"app.kubernetes.io/instance={release},app.kubernetes.io/component="
    found = kube.items("statefulsets", "-l", f"{labels}etcd")
    keepers = kube.items("pods", "-l", f"{labels}etcd-keeper", "--field-selector=status.phase=Running")
    if len(found) != 1 or not keepers:
        raise Refused(f"the release {release} has no etcd with a keeper that runs")
    name, keeper = found[0]["metadata"]["name"], keepers[0]["metadata"]["name"]
    pods = {each["metadata"]["name"]: each for each in kube.items("pods", "-l", f"{labels}etcd")}
    first = f"{name}-0"
    for index in range(found[0]["spec"]["replicas"]):
        pod = pods.get(f"{name}-{index}", {})
        if said_volume(pod) != "empty" or not runs(pod, "member"):
            raise Refused(f"{name}-{index} does not wait on an empty volume: a snapshot replaces no data. A volume is "
                          f"replaced by an empty one by deleting its claim and its pod")
    names = kube.run("exec", keeper, "--", "ls", "/snapshots").split()
    taken = sorted(each for each in names if each.startswith("etcd-") and each.endswith(".db"))
    if (snapshot or "").removeprefix("/snapshots/") not in ["", *taken] or not taken:
        raise Refused(f"no such snapshot; there are: {' '.join(taken) or 'none'}")
    snapshot = snapshot.removeprefix("/snapshots/") or taken[-1]
    body = restoring_pod(found[0], first, f"restored-{pods[first]['metadata']['uid']}")
    helper = body["metadata"]["name"]
    kube.run("delete", "pod", helper, "--ignore-not-found")
    kube.create(body)
    try:
        until(lambda: "" if runs(kube.get("pod", helper), "receive") else helper, "a pod to restore in starts")
        pipe(kube, [keeper, "--", "cat", f"/snapshots/{snapshot}"],
             [helper, "-c", "receive", "--", "sh", "-c", "cat > /restoring/snapshot.db"])
        kube.run("exec", helper, "-c", "receive", "--", "touch", "/restoring/whole")
        until(lambda: restored(kube, helper), "etcdutl restores the snapshot")
        pipe(kube, [helper, "-c", "hold", "--", "tar", "-C", "/restoring", "-cf", "-", "etcd"],
             [first, "-c", "member", "--", "sh", "-c",
              "rm -rf /data/restored && mkdir /data/restored && tar -C /data/restored -xf -"])
        # At once and only now: what is half there is no member's data.
        kube.run("exec", first, "-c", "member", "--", "sh", "-c",
                 "test ! -e /data/etcd/member/wal && sync && rm -rf /data/etcd && mv /data/restored/etcd /data/etcd &&"
                 " rmdir /data/restored && sync")
    finally:
        kube.run("delete", "pod", helper, "--ignore-not-found")
    uid = pods[first]["metadata"]["uid"]
    kube.run("delete", "pod", first)
    clusters: list[str] = []

    def started() -> str:
        pod = kube.get("pod", first) or {"metadata": {"uid": uid}}
        if pod["metadata"]["uid"] == uid or ":" not in said_volume(pod):
            return first
        clusters.append(said_volume(pod).partition(":")[0])
        return ""

    until(started, "the first member starts")
    kube.run("annotate", "--overwrite", "workloads.hapax.dev", name, f"hapax.dev/restored={clusters[0]}")
    say(f"restored {snapshot} as cluster {clusters[0]}")


def runs(pod: Mapping[str, Any] | None, container: str) -> bool:
    return any(each["name"] == container and "running" in (each.get("state") or {})
               for each in ((pod or {}).get("status") or {}).get("initContainerStatuses") or ())


def restored(kube: Kube, name: str) -> str:
    status = (kube.get("pod", name) or {}).get("status") or {}
    if status.get("phase") == "Failed":
        raise Refused(f"etcdutl refuses the snapshot: {kube.run('logs', name, '-c', 'restore').strip()[-500:]}")
    return "" if status.get("phase") == "Running" else name


def pipe(kube: Kube, source: Sequence[str], target: Sequence[str]) -> None:
    """The output of a command in one pod to one in another. Raises Refused."""
    with subprocess.Popen(kube.command("exec", *source), stdout=subprocess.PIPE) as reading:
        done = subprocess.run(kube.command("exec", "-i", *target), stdin=reading.stdout, check=False)
    if reading.returncode or done.returncode:
        raise Refused(f"copying from {source[0]} to {target[0]} failed")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("save", "finish", "restore"):
        added = verbs.add_parser(verb)
        for name in ("namespace", "release", *(() if verb == "finish" else ("image",))):
            added.add_argument(name)
        added.add_argument("folder", type=Path)
        if verb == "save":
            added.add_argument("--snapshots", choices=("auto", "never"), default="auto")
            added.add_argument("--class", dest="wished", default="", help="VolumeSnapshotClass")
        elif verb == "finish":
            added.add_argument("--keep", type=int, default=0, help="number of backups to keep; 0: all")
        if verb != "finish":
            added.add_argument("--like", type=Path, help="the release's StatefulSets, as kubectl -o json printed them")
    etcd = verbs.add_parser("restore-etcd")
    for name in ("namespace", "release"):
        etcd.add_argument(name)
    etcd.add_argument("snapshot", nargs="?", default="", help="a name on the keeper's volume")
    given = parser.parse_args(argv)
    kube = Kube(given.namespace)
    try:
        if given.verb == "save":
            print(save(kube, given.release, given.image, given.folder, given.snapshots, given.wished,
                       given.like))
        elif given.verb == "finish":
            finish(kube, given.release, given.folder, given.keep)
        elif given.verb == "restore":
            restore(kube, given.release, given.image, given.folder, given.like)
        else:
            restore_etcd(kube, given.release, given.snapshot)
    except (Refused, OSError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
