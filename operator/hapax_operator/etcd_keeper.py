"""The keeper of etcd: reads its pods and members, plans (`plan_etcd`, `plan_etcd_care`), and takes one step at a time.

It needs the API server alone, since etcd must be kept while etcd is down. Two keepers at a time do no harm: writes to
the API server name the version that was read, and changes of members name ids that are never used again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from hapax.runtime import telemetry
from hapax.runtime.etcd_members import (
    EtcdAlarm,
    EtcdMember,
    EtcdMembers,
    EtcdRefused,
    EtcdStatus,
    any_of,
)
from hapax.runtime.ports import Clock, Randomness
from hapax.runtime.tls import Material
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.conditions import Condition, Note
from hapax_operator.etcd_observe import (
    PARTS,
    Spec,
    alarms_of,
    databases_of,
    members_of,
    ordinal_of,
    pods_of,
    record_data,
    record_of,
    snapshot_name,
    snapshots_of,
    wanted_of,
)
from hapax_operator.evictions import replaced
from hapax_operator.metrics import (
    ETCD_ALARMS,
    ETCD_DATABASE,
    ETCD_DEFRAGMENTED,
    ETCD_HEALTHY,
    ETCD_QUOTA,
    ETCD_SETTLED,
    ETCD_SNAPSHOT,
    ETCD_SNAPSHOT_LATE,
    ETCD_SNAPSHOTS_FAILED,
    ETCD_STEPS,
    ETCD_USED,
    ETCD_WANTED,
)
from hapax_operator.plan_etcd import (
    Add,
    EtcdSeen,
    MoveLeader,
    NoteRemoved,
    Permit,
    Plan,
    Promote,
    Record,
    Remember,
    Remove,
    Restart,
    SetReplicas,
    Step,
    noted,
    plan,
    standing,
)
from hapax_operator.plan_etcd_care import (
    AlarmSeen,
    Attempt,
    CarePlan,
    CareSeen,
    CareStep,
    Defragment,
    Disarm,
    Prune,
    TakeSnapshot,
    judged,
    last_of,
    plan_care,
)
from hapax_operator.plan_etcd_care import HandOver as Yield
from hapax_operator.plan_etcd_volumes import volumes as volumes_kept
from hapax_operator.plan_roll import HandOver, Idleness, RollSeen, described, ordinals_of, plan_roll
from hapax_operator.plan_roll import pods_of as roll_pods
from hapax_operator.plan_volumes import VolumesPlan, size_of
from hapax_operator.status import StatusWriter
from hapax_operator.volumes import VolumeKeeper
from hapax_operator.workloads import Reporter, WorkloadResource, workload_for

log = telemetry.logger("etcd-keeper")

_SOON_S: Final = 1.0
"""Between two looks while something is to be done."""
_LATER_S: Final = 5.0


class Look(NamedTuple):
    """What was read in one look."""

    stateful_set: Mapping[str, Any]
    pods: Mapping[str, Mapping[str, Any]]
    """By name."""
    record: Mapping[str, Any] | None
    seen: EtcdSeen
    statuses: Mapping[int, EtcdStatus]
    """By ordinal."""

    @property
    def answering(self) -> list[int]:
        """Ordinals of members that can answer for the cluster: learners cannot."""
        return [each.ordinal for each in self.seen.members if each.healthy and not each.learner]


def _stored(folder: Path) -> tuple[dict[str, int], int]:
    """Sizes by name, and the bytes that are free once parts of snapshots are deleted. Raises OSError."""
    parts = sum(_size(each) for each in folder.glob(PARTS))
    return {each.name: _size(each) for each in folder.iterdir()}, shutil.disk_usage(folder).free + parts


def _size(path: Path) -> int:
    """Bytes on the disk: a file may have holes."""
    found = path.stat()
    return found.st_blocks * 512


class EtcdKeeper:
    """`run()` ends only with an error that another start may repair."""

    def __init__(
        self, spec: Spec, api: KubeApi, clock: Clock, random: Randomness, metrics: telemetry.Metrics,
        members: EtcdMembers | None = None,
    ) -> None:
        self._spec = spec
        self._api = api
        self._clock = clock
        self._random = random
        self._members = members
        self._material: Material | None = None
        self._reporter = Reporter(api, StatusWriter(api, clock, lambda ref, body: None))
        self._started_at = clock.now_ms() // 1000
        self._snapshot_failed_at = 0
        self._defragmented: dict[str, Attempt] = {}
        """By member. In memory: another keeper tries once more."""
        self._idle = Idleness()
        self._volumes = VolumeKeeper(api, clock)
        self._m = {each: metrics.gauge(each) for each in (
            ETCD_SETTLED, ETCD_WANTED, ETCD_HEALTHY, ETCD_DATABASE, ETCD_USED, ETCD_QUOTA, ETCD_SNAPSHOT,
            ETCD_SNAPSHOT_LATE, ETCD_ALARMS)}
        self._counts = {each: metrics.counter(each) for each in (
            ETCD_STEPS, ETCD_DEFRAGMENTED, ETCD_SNAPSHOTS_FAILED)}
        self._m[ETCD_QUOTA].set(spec.care.quota_bytes)
        self._ready = "the first look at etcd"

    def ready(self) -> str:
        """Empty once it has looked."""
        return self._ready

    async def run(self) -> None:
        while True:
            try:
                wait_s = await self.look()
                self._ready = ""
            except (KubeUnavailable, KubeRefused, EtcdRefused, OSError) as error:
                log.warning("cannot go on yet, trying again", error=error)
                self._idle.forget()
                wait_s = _SOON_S
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        if self._members is not None:
            await self._members.close()

    async def look(self) -> float:
        """Takes at most one step. Returns the seconds until the next look. Raises KubeUnavailable, KubeRefused,
        EtcdRefused, OSError."""
        await self._reload()
        found = await self._observe()
        if found is None:
            return _LATER_S
        workload = await workload_for(self._api, found.stateful_set)
        if workload is None:
            return _SOON_S
        found = found._replace(seen=replace(found.seen, restored=workload.restored))
        planned = plan(found.seen)
        volumes = await self._volumes.look(
            found.stateful_set, ordinals_of(found.stateful_set), found.pods.values(), workload.paused)
        rolled = plan_roll(self._roll_seen(planned, found, workload.paused, volumes))
        care_seen, alarms = await self._care_seen(planned, found, rolled.rolled.status == "True")
        cared = plan_care(self._spec.care, care_seen, self._now())
        if planned.step is None and not workload.paused:
            rolled = await replaced(self._api, self._spec.namespace, rolled)
        others = [*cared.conditions, rolled.rolled, *([] if volumes is None else [volumes.grown])]
        await self._tell(workload, found, planned, others, () if volumes is None else volumes.notes)
        self._measure(found, planned, care_seen, cared)
        if workload.paused:
            return _LATER_S
        if volumes is not None:  # whatever the members do: a full volume may be why they are down
            await self._volumes.grow(self._spec.namespace, volumes)
        if planned.step is not None:
            log.info(planned.ready.message, step=planned.step)
            self._counts[ETCD_STEPS].add()
            await self._take(planned.step, found)
            return 0.0 if isinstance(planned.step, Permit | Remember | NoteRemoved) else _SOON_S
        if rolled.step is not None:
            if isinstance(rolled.step, HandOver):
                log.info(rolled.rolled.message)
                await self._hand_over(found)
            return _SOON_S
        if cared.step is not None:
            await self._care(cared.step, found, alarms)
            return _SOON_S
        return min(_LATER_S, cared.wait_s) if planned.settled and rolled.rolled.status == "True" else _SOON_S

    def _now(self) -> int:
        return self._clock.now_ms() // 1000

    # --- observe

    async def _reload(self) -> None:
        """Takes over new certificates."""
        if not self._spec.tls:
            if self._members is None:
                self._members = EtcdMembers()
            return
        folder = Path(self._spec.tls)
        found = Material(*((folder / name).read_bytes() for name in ("root.crt", "root.key", "services-ca.crt")))
        if found != self._material:
            former, self._members, self._material = self._members, EtcdMembers(found), found
            if former is not None:
                await former.close()

    async def _observe(self) -> Look | None:
        spec, core = self._spec, f"/api/v1/namespaces/{self._spec.namespace}"
        stateful_set = await self._api.read(
            f"/apis/apps/v1/namespaces/{spec.namespace}/statefulsets/{spec.workload}")
        if stateful_set is None:
            log.warning("there is no StatefulSet of etcd", name=spec.workload)
            return None
        record = await self._api.read(f"{core}/configmaps/{spec.record}")
        pods = (await self._api.listed(f"{core}/pods", spec.selector))["items"]
        known = bool(record_of(record).cluster)
        claims = [] if known else await self._claims()
        wanted, pods_wanted, replicas = wanted_of(stateful_set)
        pods_seen = pods_of(spec.workload, pods, claims)
        # After the pods: what they run as was a member before (EtcdSeen).
        statuses = await self._statuses(range(max(replicas, *(each + 1 for each in pods_seen), 1)))
        members, confirmed = await self._member_list(statuses)
        seen = EtcdSeen(
            wanted=wanted, pods_wanted=pods_wanted, replicas=replicas, pods=pods_seen, record=record_of(record),
            clusters=frozenset(f"{each.cluster:x}" for each in statuses.values()), quorum=confirmed,
            members=members_of(spec, members, statuses))
        if known and not (confirmed and seen.members_known):
            # Whose data counts is not known, so every claim does (plan_etcd_volumes).
            claims = await self._claims()
        ordinals = {ordinal_of(each["metadata"]["name"].removeprefix("data-"), spec.workload) for each in claims}
        seen = replace(seen, claims=frozenset(each for each in ordinals if each is not None))
        return Look(stateful_set, {each["metadata"]["name"]: each for each in pods}, record, seen, statuses)

    async def _claims(self) -> list[Mapping[str, Any]]:
        path = f"/api/v1/namespaces/{self._spec.namespace}/persistentvolumeclaims"
        return list((await self._api.listed(path, self._spec.selector))["items"])

    async def _statuses(self, ordinals: range) -> dict[int, EtcdStatus]:
        assert self._members is not None
        answers = await asyncio.gather(
            *(self._members.status(self._spec.endpoint(each)) for each in ordinals), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, EtcdRefused):
                raise answer
        return {
            ordinal: answer for ordinal, answer in zip(ordinals, answers, strict=True)
            if isinstance(answer, EtcdStatus)}

    async def _member_list(self, statuses: Mapping[int, EtcdStatus]) -> tuple[list[EtcdMember], bool]:
        """The members, and whether a quorum has confirmed them."""
        client = self._members
        assert client is not None
        leading = sorted(statuses, key=lambda each: (statuses[each].leader == 0, each))
        clusters = {self._spec.endpoint(each): statuses[each].cluster for each in leading}

        async def listed(endpoint: str, *, confirmed: bool) -> list[EtcdMember]:
            return await client.members(endpoint, clusters[endpoint], confirmed=confirmed)

        for confirmed in (True, False):
            try:
                return await any_of(list(clusters), partial(listed, confirmed=confirmed)), confirmed
            except EtcdRefused:
                continue
        return [], False

    async def _care_seen(self, planned: Plan, found: Look, current: bool) -> tuple[CareSeen, list[EtcdAlarm]]:
        """What fails here keeps no member from being replaced."""
        client, settled = self._members, planned.settled
        alarms: list[EtcdAlarm] = []
        names: dict[str, int] = {}
        failed_at, free = self._snapshot_failed_at, None
        assert client is not None
        if found.answering:
            try:
                alarms = await any_of(
                    [self._spec.endpoint(each) for each in found.answering], lambda each: client.alarms(each))
            except EtcdRefused as error:
                log.warning("the alarms of etcd are not known", error=error)
                settled = False
        if self._spec.care.snapshot_every_s:
            folder = Path(self._spec.snapshots)
            try:
                names, free = await asyncio.to_thread(_stored, folder)
            except OSError as error:
                log.warning("the folder of snapshots cannot be read", error=error)
                failed_at = self._now()
        databases = databases_of(found.seen, found.statuses)
        self._defragmented = judged(self._defragmented, databases)
        return CareSeen(
            settled, databases, alarms_of(alarms), snapshots_of(names), failed_at, self._started_at, free, current,
            self._defragmented), alarms

    # --- apply

    async def _take(self, step: Step, found: Look) -> None:
        client = self._members
        assert client is not None
        endpoints = [self._spec.endpoint(each) for each in found.answering]
        match step:
            case Permit() | Remember() | NoteRemoved():
                await self._write_record(noted(found.seen.record, step), found)
            case SetReplicas(replicas):
                path = f"/apis/apps/v1/namespaces/{self._spec.namespace}/statefulsets/{self._spec.workload}/scale"
                await self._api.merge(path, {
                    "metadata": {"resourceVersion": found.stateful_set["metadata"]["resourceVersion"]},
                    "spec": {"replicas": replicas}})
            case Restart(ordinal, uid):
                await self.delete_pod(ordinal, uid)
            case Add(ordinal):
                url, cluster = self._spec.peer_url(ordinal), int(found.seen.record.cluster, 16)
                await any_of(endpoints, lambda each: client.add_learner(each, cluster, url))
            case Promote(member):
                await any_of(endpoints, lambda each: client.promote(each, int(member, 16)))
            case Remove(member):
                await any_of(endpoints, lambda each: client.remove(each, int(member, 16)))
            case MoveLeader(leader, to):
                await self._move(leader, to, found)

    async def delete_pod(self, ordinal: int, uid: str) -> None:
        await self._api.end(f"/api/v1/namespaces/{self._spec.namespace}/pods/{self._spec.workload}-{ordinal}", uid)

    async def _move(self, leader: str, to: str, found: Look) -> None:
        assert self._members is not None
        await self._members.move_leader(self._endpoint_of(leader, found), int(to, 16))

    def _endpoint_of(self, member: str, found: Look) -> str:
        return next(self._spec.endpoint(each.ordinal) for each in found.seen.members if each.id == member)

    async def _write_record(self, record: Record, found: Look) -> None:
        metadata: dict[str, Any] = {"name": self._spec.record, "namespace": self._spec.namespace}
        path = f"/api/v1/namespaces/{self._spec.namespace}/configmaps"
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": record_data(record)}
        if found.record is None:
            # Not its owner's to delete: the volumes stay when a release is uninstalled, and so does what they are of.
            metadata["labels"] = dict(found.stateful_set["metadata"].get("labels") or {})
            await self._api.create(path, body)
            return
        known = found.record["metadata"]
        metadata |= {"resourceVersion": known["resourceVersion"], "uid": known["uid"],
                     "labels": known.get("labels") or {}, "annotations": known.get("annotations") or {}}
        await self._api.replace(f"{path}/{self._spec.record}", body)

    async def _care(self, step: CareStep, found: Look, alarms: list[EtcdAlarm]) -> None:
        client = self._members
        assert client is not None
        match step:
            case Defragment(member):
                log.info("a member is defragmented", member=member)
                # Before it, so that one that raises is not repeated at once: the member may be at it still.
                self._defragmented[member] = Attempt(self._now(), failed=True)
                await client.defragment(self._endpoint_of(member, found))
                self._defragmented[member] = Attempt(self._now())
                self._counts[ETCD_DEFRAGMENTED].add()
            case Yield(leader, to):
                await self._move(leader, to, found)
            case Disarm(alarm):
                log.info("there is space again, so the alarm ends", member=alarm.member)
                raised = next(each for each in alarms if AlarmSeen(f"{each.member:x}", each.kind) == alarm)
                await any_of([self._spec.endpoint(each) for each in found.answering],
                             lambda each: client.disarm(each, raised))
            case TakeSnapshot(member):
                await self._snapshot(self._endpoint_of(member, found), int(found.seen.record.cluster, 16))
            case Prune(names):
                for name in names:
                    await asyncio.to_thread((Path(self._spec.snapshots) / name).unlink, missing_ok=True)

    async def _snapshot(self, endpoint: str, cluster: int) -> None:
        assert self._members is not None
        path = Path(self._spec.snapshots) / snapshot_name(self._now())
        try:
            # Of a keeper that was killed: they fill the volume.
            for part in await asyncio.to_thread(lambda: list(path.parent.glob(PARTS))):
                await asyncio.to_thread(part.unlink, missing_ok=True)
            size = await self._members.snapshot(endpoint, cluster, path)
        except (EtcdRefused, OSError) as error:
            self._snapshot_failed_at = self._now()
            self._counts[ETCD_SNAPSHOTS_FAILED].add()
            log.warning("a snapshot failed, trying again later", error=error)
            return
        self._snapshot_failed_at = 0
        log.info("a snapshot was taken", path=path, bytes=size)

    # --- new revisions of the pods

    def _roll_seen(self, planned: Plan, found: Look, paused: bool, volumes: VolumesPlan | None) -> RollSeen:
        needed, serving, leader = standing(found.seen)
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        pods = roll_pods(found.stateful_set, found.pods.values(), now, needed, serving, leader,
                         () if volumes is None else volumes.restart)
        # A pod whose member has left waits until it is removed itself.
        members = {each.ordinal for each in found.seen.members} | {*range(found.seen.wanted)}
        return RollSeen(
            described(found.stateful_set), [each for each in ordinals_of(found.stateful_set) if each in members],
            self._idle.judged(pods, self._clock.monotonic_ms()),
            "" if planned.settled else planned.ready.message, paused,
            planned.ready.message if planned.foreign else "")

    async def _hand_over(self, found: Look) -> None:
        voters = [each for each in found.seen.members if each.healthy and not each.learner]
        leader, heir = (next(each for each in voters if each.leader is leads) for leads in (True, False))
        await self._move(leader.id, heir.id, found)

    # --- tell

    async def _tell(
        self, workload: WorkloadResource, found: Look, planned: Plan, others: Sequence[Condition],
        more: Sequence[Note],
    ) -> None:
        seen = found.seen
        kept, replaceable = volumes_kept(seen, workload.replace_volume_of)
        conditions = [planned.ready, *others, *replaceable]
        if workload.paused:
            why = "nothing is changed while hapax.dev/pause is set"
            conditions.append(Condition("Paused", "True", "Annotated", why))
        needed = max((each + 1 for each in (*(each.ordinal for each in seen.members), *seen.strangers)), default=0)
        if not seen.members_known and (seen.record.cluster or seen.clusters):
            # None of them answers, or one of another cluster does: they still need their pods.
            needed = max(needed, seen.replicas, workload.status.get("members", 0))
        notes = [Note("Normal" if planned.step is not None else "Warning", planned.ready.reason, planned.ready.message)]
        await self._reporter.report(workload, {
            "replicas": seen.replicas, "ready": sum(each.ready for each in seen.pods.values()),
            "members": needed,
            "voters": sum(not each.learner for each in seen.members),
            "volumeSize": size_of(found.stateful_set), "volumesKeptOf": kept,
        }, conditions, [*(notes if planned.step is not None or planned.ready.reason in _SERIOUS else ()), *more],
            # Until it is written, a claim that must stay now can be deleted.
            urgent=bool(set(kept) - set(workload.status.get("volumesKeptOf") or ())))

    def _measure(self, found: Look, planned: Plan, care: CareSeen, cared: CarePlan) -> None:
        seen, gauges = found.seen, self._m
        gauges[ETCD_SETTLED].set(planned.settled)
        gauges[ETCD_WANTED].set(seen.wanted)
        gauges[ETCD_HEALTHY].set(sum(each.healthy and not each.learner for each in seen.members))
        gauges[ETCD_DATABASE].set(max((each.db_bytes for each in care.databases), default=0))
        gauges[ETCD_USED].set(max((each.used_bytes for each in care.databases), default=0))
        gauges[ETCD_ALARMS].set(len(care.alarms))
        gauges[ETCD_SNAPSHOT].set(last_of(care.snapshots, self._now()))
        gauges[ETCD_SNAPSHOT_LATE].set(any(
            each.type == "SnapshotTaken" and each.reason in ("Late", "Failed") for each in cared.conditions))


_SERIOUS: Final = frozenset({"TwoClusters", "OtherCluster", "VolumeLost", "VolumesLeft", "VolumeDamaged", "QuorumLost"})
"""Reasons that a person must know of."""


