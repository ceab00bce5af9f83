"""What the keeper of etcd reads, as `plan_etcd` takes it: objects of the API server and the members' answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hapax.runtime.etcd_members import EtcdAlarm, EtcdMember, EtcdStatus
from hapax_operator.plan_etcd import EtcdSeen, MemberSeen, PodSeen, Record
from hapax_operator.plan_etcd_care import AlarmSeen, Care, DatabaseSeen, SnapshotSeen

MEMBERS: Final = "hapax.dev/members"
"""An annotation of the StatefulSet: the wanted number of members. Without it, every pod is one."""
REPLICAS: Final = "hapax.dev/replicas"
"""An annotation of the StatefulSet: the chart's number of pods."""
LOOK: Final = "volume"
START: Final = "member"
"""The pods' init containers (`etcd_start`)."""
ETCD: Final = "etcd"
_FAILING: Final = 3
_ORDINALS: Final = 9


class BadSpec(ValueError):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Spec:
    """By which the chart tells the keeper what to keep:

        {"namespace": "prod", "workload": "demo-hapax-etcd", "selector": "a=b,c=d", "record": "demo-hapax-etcd",
         "client": "demo-hapax-etcd-{ordinal}.demo-hapax-etcd.prod.svc.cluster.local:2379",
         "peer": "https://demo-hapax-etcd-{ordinal}.demo-hapax-etcd.prod.svc.cluster.local:2380",
         "tls": "/etc/hapax/tls", "snapshots": "/snapshots",
         "care": {"quotaBytes": 2147483648, "defragmentBytes": 67108864, "defragmentShare": 0.5,
                  "snapshotEverySeconds": 21600, "snapshotsKept": 8}}
    """

    namespace: str
    workload: str
    """The StatefulSet."""
    selector: str
    record: str
    """The ConfigMap of `Record`."""
    client: str
    peer: str
    tls: str
    """The folder with root.crt, root.key and services-ca.crt; empty: without TLS."""
    snapshots: str
    """A folder."""
    care: Care

    def endpoint(self, ordinal: int) -> str:
        return self.client.format(ordinal=ordinal)

    def peer_url(self, ordinal: int) -> str:
        return self.peer.format(ordinal=ordinal)

    def ordinal(self, peer_urls: Iterable[str]) -> int:
        """-1: none of ours."""
        known = {self.peer_url(ordinal): ordinal for ordinal in range(_ORDINALS)}
        return next((known[each] for each in peer_urls if each in known), -1)


def parse_spec(text: str) -> Spec:
    """Raises BadSpec."""
    try:
        found = json.loads(text)
        care = found["care"]
        return Spec(
            str(found["namespace"]), str(found["workload"]), str(found["selector"]), str(found["record"]),
            str(found["client"]), str(found["peer"]), str(found.get("tls", "")), str(found.get("snapshots", "")),
            Care(int(care["quotaBytes"]), int(care["defragmentBytes"]), float(care["defragmentShare"]),
                 int(care["snapshotEverySeconds"]), int(care["snapshotsKept"])))
    except (KeyError, TypeError, ValueError) as error:
        raise BadSpec(f"the description of etcd cannot be used: {error!r}") from None


# --- the API server -----------------------------------------------------------------------------------------------


def record_of(body: Mapping[str, Any] | None) -> Record:
    data = {} if body is None else body.get("data") or {}
    return Record(
        data.get("founder", ""), data.get("claim", ""), data.get("cluster", ""),
        tuple(filter(None, data.get("removed", "").split(","))))


def record_data(record: Record) -> dict[str, str]:
    return {"founder": record.founder, "claim": record.claim, "cluster": record.cluster,
            "removed": ",".join(record.removed)}


def pods_of(
    workload: str, pods: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]]
) -> dict[int, PodSeen]:
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in claims}
    found = {}
    for body in pods:
        ordinal = ordinal_of(body["metadata"]["name"], workload)
        if ordinal is None:
            continue
        status = body.get("status") or {}
        etcd = _container(status.get("containerStatuses"), ETCD)
        claim = f"data-{body['metadata']['name']}"
        found[ordinal] = PodSeen(
            ordinal, body["metadata"]["uid"], uids.get(claim, ""),
            _said(status, LOOK, "volume"), _said(status, START, "runsAs"),
            failing=etcd.get("restartCount", 0) >= _FAILING and not etcd.get("ready", False),
            ready=any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ()),
            deleting="deletionTimestamp" in body["metadata"])
    return found


def ordinal_of(name: str, workload: str) -> int | None:
    prefix, _, number = name.rpartition("-")
    return int(number) if prefix == workload and number.isdigit() else None


def _container(statuses: Sequence[Mapping[str, Any]] | None, name: str) -> Mapping[str, Any]:
    return next((each for each in statuses or () if each["name"] == name), {})


def _said(status: Mapping[str, Any], container: str, word: str) -> str:
    """What an init container that has succeeded left as its message."""
    ended = (_container(status.get("initContainerStatuses"), container).get("state") or {}).get("terminated") or {}
    if ended.get("exitCode") != 0:
        return ""
    try:
        return str(json.loads(ended.get("message", ""))[word])
    except (ValueError, KeyError, TypeError):
        return ""


def wanted_of(body: Mapping[str, Any]) -> tuple[int, int, int]:
    """From the StatefulSet: wanted members, wanted pods, pods as it says."""
    annotations, replicas = body["metadata"].get("annotations") or {}, int(body["spec"].get("replicas", 1))
    pods = _number(annotations.get(REPLICAS), replicas)
    return min(_number(annotations.get(MEMBERS), pods), pods), pods, replicas


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else otherwise


# --- etcd ---------------------------------------------------------------------------------------------------------


def members_of(
    spec: Spec, members: Sequence[EtcdMember], statuses: Mapping[int, EtcdStatus]
) -> tuple[MemberSeen, ...]:
    """`statuses`: by ordinal. A member is healthy if the pod of its address answers under its id."""
    leader = max((each for each in statuses.values() if each.leader), key=lambda each: each.applied, default=None)
    found = []
    for each in members:
        ordinal = spec.ordinal(each.peer_urls)
        status = statuses.get(ordinal)
        answers = status is not None and status.member == each.id and status.leader != 0
        found.append(MemberSeen(
            f"{each.id:x}", ordinal, bool(each.name), each.learner, answers,
            leader is not None and leader.leader == each.id,
            status.applied if answers and status is not None else 0))
    return tuple(sorted(found, key=lambda each: (each.ordinal, each.id)))


def databases_of(seen: EtcdSeen, statuses: Mapping[int, EtcdStatus]) -> list[DatabaseSeen]:
    return [
        DatabaseSeen(each.id, each.leader, statuses[each.ordinal].db_bytes, statuses[each.ordinal].used_bytes,
                     each.applied)
        for each in seen.members if each.healthy and each.ordinal in statuses]


def alarms_of(alarms: Iterable[EtcdAlarm]) -> list[AlarmSeen]:
    return [AlarmSeen(f"{each.member:x}", each.kind) for each in alarms]


_PREFIX: Final = "etcd-"
_SUFFIX: Final = ".db"
PARTS: Final = f"{_PREFIX}*{_SUFFIX}.part"
"""Names of snapshots that are being written (`etcd_members`)."""


def snapshot_name(at: int) -> str:
    """`at`: Unix seconds. Names sort by time."""
    return f"{_PREFIX}{at:012d}{_SUFFIX}"


def snapshots_of(files: Mapping[str, int]) -> list[SnapshotSeen]:
    """`files`: sizes by name, in bytes."""
    found = []
    for name, size in files.items():
        number = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if name == f"{_PREFIX}{number}{_SUFFIX}" and number.isdigit():
            found.append(SnapshotSeen(name, int(number), size))
    return sorted(found, key=lambda each: each.at)
