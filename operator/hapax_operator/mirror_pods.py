"""Copiers: the Deployment that runs `hapax copy` for a Mirror, the User by which they log in, and what is read of both.
Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hapax_operator.access_file import Copiers
from hapax_operator.mirror_resource import BY_KEY, SKIP, ClientFile, MirrorResource, Names, pattern_of
from hapax_operator.pod_template import POD_SECURITY, SECURITY, given_in, merged, short_name
from hapax_operator.resources import CLUSTER, GROUP, KINDS, VERSION, version_of

METRICS_PORT: Final = 8080
PASSWORD: Final = "hapax.dev/password-since"
"""An annotation of copiers' pods. They read their files once, so that another password needs other pods."""
FINGERPRINT: Final = "hapax.dev/fingerprint"
"""An annotation: what the object was made of."""
MIRROR: Final = "hapax.dev/mirror-uid"
"""A label of copiers' pods."""
CONTAINER: Final = "copier"
FOLDER: Final = "/etc/hapax-copy"
_NAMES: Final = {"app.kubernetes.io/name": "hapax-copy", "app.kubernetes.io/component": CONTAINER,
                 "app.kubernetes.io/managed-by": "hapax-operator"}
_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}}


class DeploymentSeen(NamedTuple):
    version: str
    ours: bool
    """Whether the operator made it for this very resource."""
    fingerprint: str
    wanted: int
    """`spec.replicas`."""
    current: bool = False
    """Whether the numbers are of the last specification."""
    pods: int = 0
    updated: int = 0
    ready: int = 0
    failure: str = ""
    """Why its pods cannot be made, or do not come up in time."""


class UserSeen(NamedTuple):
    version: str
    ours: bool
    fingerprint: str
    ready: bool = False
    message: str = ""
    """Why not."""
    password_since: str = ""
    """RFC 3339: when the password in its Secret was made."""


class PodSeen(NamedTuple):
    name: str
    uid: str
    address: str = ""
    ready: bool = False
    problem: str = ""
    """Why its container does not run, or how it ended the last time; empty: it runs, and never ended."""


def beside(mirror: MirrorResource) -> str:
    """The name of its Deployment, of its User and of that one's Secret."""
    return f"{short_name(mirror.meta.ref.name)}-mirror"


def selector(mirror: MirrorResource) -> str:
    return f"{MIRROR}={mirror.meta.uid}"


def deployment(mirror: MirrorResource, copiers: Copiers, own: UserSeen | None) -> dict[str, Any]:
    """`own`: the User that the operator made for the target; None: there is none."""
    target = mirror.target.file if own is None else ClientFile("secret", beside(mirror), "client.properties")
    files = [(side, file) for side, file in (("source", mirror.source.file), ("target", target)) if file is not None]
    labels = {**_NAMES, MIRROR: mirror.meta.uid}
    needed: dict[str, Any] = {
        "metadata": {
            "labels": {**labels, "hapax.dev/mirror": short_name(mirror.meta.ref.name)},
            **({"annotations": {PASSWORD: own.password_since}} if own is not None else {})},
        "spec": {
            "imagePullSecrets": [{"name": each} for each in mirror.pull_secrets or copiers.pull_secrets],
            "nodeSelector": dict(mirror.node_selector), "tolerations": list(mirror.tolerations),
            **({"affinity": dict(mirror.affinity)} if mirror.affinity else {}),
            "containers": [{
                "name": CONTAINER, "image": mirror.image or copiers.image,
                "imagePullPolicy": mirror.pull_policy or copiers.pull_policy,
                "command": ["hapax"], "args": arguments(mirror, copiers, dict(files)),
                "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *(
                    {"name": side, "mountPath": f"{FOLDER}/{side}", "readOnly": True} for side, _ in files)],
                **({"resources": dict(mirror.resources)} if mirror.resources else {}),
            }],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *(_volume(side, file) for side, file in files)],
        },
    }
    usual = {"spec": {
        "enableServiceLinks": False, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 30,
        "securityContext": {**POD_SECURITY, "fsGroupChangePolicy": "OnRootMismatch"},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100, "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}}]}},
        "containers": [{
            "name": CONTAINER, "securityContext": SECURITY, "resources": _RESOURCES,
            "livenessProbe": {**_probe("/healthz"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
            "readinessProbe": {**_probe("/readyz"), "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 3},
            # The last lines of one that ended say why.
            "terminationMessagePolicy": "FallbackToLogsOnError"}]}}
    if mirror.affinity:
        del usual["spec"]["affinity"]
    spec = {
        "replicas": 0 if mirror.suspend else mirror.replicas,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": merged(merged(usual, given_in(mirror.template)), needed)}
    return _owned(mirror, {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec}, _NAMES)


def arguments(mirror: MirrorResource, copiers: Copiers, files: Mapping[str, ClientFile]) -> list[str]:
    """Those of the command `hapax`."""
    words = ["copy", "--from", mirror.source.bootstrap, "--to", mirror.target.bootstrap or copiers.bootstrap]
    for side, option in (("source", "--from-config"), ("target", "--to-config")):
        if side in files:
            words += [option, f"{FOLDER}/{side}/{files[side].key}"]
    words += ["--topics", pattern_of(mirror.topics)]
    if mirror.exclude:
        words += ["--exclude", pattern_of(mirror.exclude)]
    if mirror.groups:
        words += ["--groups", pattern_of(mirror.groups)]
    if mirror.prefix:
        words += ["--prefix", mirror.prefix]
    if mirror.replication_factor > 0:
        words += ["--replication-factor", str(mirror.replication_factor)]
    if mirror.partitioning == BY_KEY:
        words.append("--by-key")
    return [*words, "--follow", "--on-lost", "skip" if mirror.on_lost == SKIP else "stop",
            "--name", mirror.copy_name, "--instance", "$(POD_NAME)", "--metrics-host", "0.0.0.0",
            "--metrics-port", str(METRICS_PORT)]


def _probe(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "metrics"}}


def _volume(side: str, file: ClientFile) -> dict[str, Any]:
    if file.kind == "secret":
        return {"name": side, "secret": {"secretName": file.name, "defaultMode": 0o440}}
    return {"name": side, "configMap": {"name": file.name}}


def user(mirror: MirrorResource, cluster: str) -> dict[str, Any]:
    """Whose rights are those that the copy needs on the target. `cluster`: as of `Clusters.own`."""
    acls = [_acl("Topic", each, "Read", "Write", "Create", "Alter", "DescribeConfigs")
            for each in (*mirror.written, mirror.own_topics)]
    acls += [_acl("Group", each, "Read") for each in (Names(mirror.group, prefix=False), *mirror.groups)]
    acls.append(_acl("TransactionalId", mirror.own_ids, "Write"))
    body = {
        "apiVersion": f"{GROUP}/{VERSION}", "kind": "User",
        "spec": {"authentication": {"type": "Scram"}, "acls": acls}}
    return _owned(mirror, body, {CLUSTER: cluster} if cluster else {})


def _acl(kind: str, names: Names, *operations: str) -> dict[str, Any]:
    if names.prefix and not names.text:
        return {"type": kind, "name": "*", "pattern": "Literal", "operations": list(operations)}
    return {"type": kind, "name": names.text, "pattern": "Prefixed" if names.prefix else "Literal",
            "operations": list(operations)}


def _owned(mirror: MirrorResource, body: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """With a name, and a fingerprint of all the rest. It is deleted with the Mirror."""
    ref = mirror.meta.ref
    digest = hashlib.sha256(json.dumps([body, labels], sort_keys=True).encode()).hexdigest()[:32]
    return {**body, "metadata": {
        "name": beside(mirror), "namespace": ref.namespace, "labels": dict(labels),
        "annotations": {FINGERPRINT: digest},
        "ownerReferences": [{
            "apiVersion": f"{GROUP}/{version_of(ref.plural)}", "kind": KINDS[ref.plural], "name": ref.name,
            "uid": mirror.meta.uid, "controller": True}]}}


# --- what is there ----------------------------------------------------------------------------------------------------


def _is_ours(body: Mapping[str, Any], mirror: MirrorResource) -> bool:
    return any(each.get("uid") == mirror.meta.uid for each in body["metadata"].get("ownerReferences") or ())


def fingerprint_of(body: Mapping[str, Any]) -> str:
    return str((body["metadata"].get("annotations") or {}).get(FINGERPRINT, ""))


def deployment_seen(body: Mapping[str, Any], mirror: MirrorResource) -> DeploymentSeen:
    metadata, status = body["metadata"], body.get("status") or {}
    failures = [each.get("message") or each["reason"] for each in status.get("conditions") or ()
                if (each["type"], each["status"]) in (("Progressing", "False"), ("ReplicaFailure", "True"))]
    return DeploymentSeen(
        metadata["resourceVersion"], _is_ours(body, mirror), fingerprint_of(body), body["spec"].get("replicas", 1),
        status.get("observedGeneration", 0) >= metadata["generation"], status.get("replicas", 0),
        status.get("updatedReplicas", 0), status.get("readyReplicas", 0), "; ".join(failures))


def user_seen(body: Mapping[str, Any], mirror: MirrorResource) -> UserSeen:
    status = body.get("status") or {}
    found: Mapping[str, Any] = next((
        each for each in status.get("conditions") or () if each["type"] == "Ready"), {})
    current = status.get("observedGeneration") == body["metadata"].get("generation")
    return UserSeen(
        body["metadata"]["resourceVersion"], _is_ours(body, mirror), fingerprint_of(body),
        current and found.get("status") == "True", found.get("message") or "the operator has not looked at it yet",
        str(status.get("passwordSince") or ""))


def pod_seen(body: Mapping[str, Any]) -> PodSeen:
    metadata, status = body["metadata"], body.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    mine: Mapping[str, Any] = next((
        each for each in status.get("containerStatuses") or () if each["name"] == CONTAINER), {})
    ready = conditions.get("Ready", {}).get("status") == "True" and not metadata.get("deletionTimestamp")
    return PodSeen(metadata["name"], metadata["uid"], status.get("podIP") or "", ready,
                   "" if ready else _problem(mine, conditions.get("PodScheduled", {})))


def _problem(container: Mapping[str, Any], scheduled: Mapping[str, Any]) -> str:
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "")
    waiting = (container.get("state") or {}).get("waiting") or {}
    ended = ((container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
             or {})
    if message := str(ended.get("message") or "").strip():
        return message[-1024:]
    return str(waiting.get("message") or waiting.get("reason") or ended.get("reason") or "")
