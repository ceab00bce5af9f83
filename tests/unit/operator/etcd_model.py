"""A model of etcd's pods, volumes and members for `plan_etcd`: what any order of steps, crashes and losses may do.

A pod decides by the code of its start step. etcd of this model accepts every change of members, unless an old step is
carried out late: so what keeps the quorum is the plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hapax_operator.etcd_start import decide, member_for
from hapax_operator.plan_etcd import (
    EMPTY,
    FOUNDER,
    NOTHING,
    Add,
    EtcdSeen,
    MemberSeen,
    MoveLeader,
    NoteRemoved,
    Permit,
    PodSeen,
    Promote,
    Record,
    Remember,
    Remove,
    Restart,
    SetReplicas,
    Step,
    noted,
    quorum,
)
from hapax_operator.plan_etcd import plan as the_plan


class Broken(AssertionError):
    """A rule was broken."""


class Pod(NamedTuple):
    uid: int
    claim: int
    looked: str
    runs_as: str = ""
    env: tuple[str, str] | None = None
    """FOUNDER and REMOVED when its start step began."""
    up: bool = True


class Member(NamedTuple):
    id: str
    ordinal: int
    started: bool = False
    learner: bool = True
    caught_up: bool = False


@dataclass(frozen=True)
class World:
    wanted: int
    replicas: int
    pods: tuple[Pod, ...] = ()
    volumes: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()
    leader: str = ""
    record: Record = NOTHING
    ids: int = 0
    founded: int = 0
    frozen: Step | None = None
    faults: tuple[int, int, int] = field(default=(0, 0, 0))
    """Left: losses of volumes, outages of pods, steps that are carried out late."""

    # --- what is so

    def healthy(self, member: Member) -> bool:
        if member.ordinal >= len(self.pods):
            return False
        pod = self.pods[member.ordinal]
        return pod.up and self.volumes[member.ordinal].rpartition(":")[2] == member.id and bool(pod.runs_as)

    def voters(self) -> list[Member]:
        return [each for each in self.members if not each.learner]

    def has_quorum(self) -> bool:
        voters = self.voters()
        return bool(voters) and sum(map(self.healthy, voters)) >= quorum(len(voters))

    def seen(self) -> EtcdSeen:
        answering = [each for each in self.members if self.healthy(each)]
        leader = self.leader
        if not any(each.id == leader for each in answering if not each.learner):
            leader = next((each.id for each in answering if not each.learner), "")
        has = self.has_quorum()
        return EtcdSeen(
            wanted=self.wanted, pods_wanted=self.replicas, replicas=len(self.pods),
            pods={number: PodSeen(
                number, str(pod.uid), str(pod.claim), pod.looked, pod.runs_as) for number, pod in enumerate(self.pods)},
            claims=frozenset(range(len(self.pods))), record=self.record,
            clusters=frozenset({f"{self.founded:x}"} if answering else ()), quorum=has,
            members=tuple(MemberSeen(
                each.id, each.ordinal, each.started, each.learner, has and self.healthy(each),
                has and each.id == leader, 1000 if each.caught_up else 0,
            ) for each in self.members) if answering else ())

    # --- what may happen

    def moves(self) -> Iterator[tuple[str, World]]:
        step = the_plan(self.seen()).step
        if step is not None:
            yield f"step {step}", self.carried_out(step)
            if self.faults[2] and self.frozen is None:
                yield f"late {step}", replace(self, frozen=step, faults=self._less(2))
        if self.frozen is not None:
            yield "carried out late", replace(self, frozen=None).carried_out(self.frozen, late=True)
        for number in range(len(self.pods)):
            yield from self.progress(number)
            if self.faults[0]:
                yield f"volume {number} lost", replace(
                    self._volume(number, "")._pod(number, Pod(self.ids + 1, self.ids + 1, EMPTY)), ids=self.ids + 1,
                    faults=self._less(0))
            if self.faults[0] and not (self.founded and not self.record.cluster):
                # The machine starts again without its disk: the same pod on the same claim. Before the cluster is known
                # there is no telling this from a first start.
                yield f"volume {number} emptied", replace(
                    self._volume(number, "")._pod(number, self.pods[number]._replace(
                        looked=EMPTY, runs_as="", env=None)), faults=self._less(0))
            if self.faults[1] and self.pods[number].up:
                yield f"pod {number} down", replace(
                    self._pod(number, self.pods[number]._replace(up=False)), faults=self._less(1))
            if not self.pods[number].up:
                yield f"pod {number} up", self._pod(number, self.pods[number]._replace(up=True))

    def progress(self, number: int) -> Iterator[tuple[str, World]]:
        pod = self.pods[number]
        if not pod.up:
            return
        if pod.env is None:
            if self.record.founder or self.record.cluster:  # its ConfigMap is there
                yield f"pod {number} begins", self._pod(number, pod._replace(
                    env=(self.record.founder, ",".join(self.record.removed))))
        elif not pod.runs_as:
            yield from self._becomes(number, pod)
        else:
            for at, member in enumerate(self.members):
                done = member.started and member.caught_up
                if member.ordinal == number and self.healthy(member) and self.has_quorum() and not done:
                    after = member._replace(started=True, caught_up=True)
                    yield f"{member.id} catches up", replace(
                        self, members=(*self.members[:at], after, *self.members[at + 1 :]))

    def _becomes(self, number: int, pod: Pod) -> Iterator[tuple[str, World]]:
        assert pod.env is not None
        url = f"http://{number}"
        become = decide(self.volumes[number] or EMPTY, {
            "SETTINGS": json.dumps({"name": str(number), "initial-advertise-peer-urls": url}), "CLUSTER": "c",
            "POD_UID": str(pod.uid), "FOUNDER": pod.env[0], "REMOVED": pod.env[1]})
        if become is None:
            if not any(self.healthy(each) for each in self.members if each.ordinal != number):
                return
            become, _ = member_for(url, str(number), f"{self.founded:x}", [
                {"id": int(each.id, 16), "peerURLs": [f"http://{each.ordinal}"],
                 "name": str(each.ordinal) if each.started else ""} for each in self.members])
            if become is None:
                return
        if become.runs_as == FOUNDER:
            if self.founded:
                raise Broken("a second cluster was founded")
            identity = f"{self.ids + 1:x}"
            yield f"pod {number} founds", replace(
                self._volume(number, f"1:{identity}")._pod(number, pod._replace(runs_as=FOUNDER)), founded=1,
                ids=self.ids + 1, members=(Member(identity, number, True, False, True),), leader=identity)
            return
        identity = become.runs_as.rpartition(":")[2]
        known = any(each.id == identity and each.started for each in self.members)
        if self.volumes[number] != become.runs_as and known:
            raise Broken(f"member {identity} continues without its data")
        yield f"pod {number} is {identity}", self._volume(number, become.runs_as)._pod(
            number, pod._replace(runs_as=become.runs_as))

    def carried_out(self, step: Step, *, late: bool = False) -> World:
        match step:
            case Permit() if late and self.record != Record():  # its write names the version that was read
                return self
            case Permit() | Remember() | NoteRemoved():
                return replace(self, record=noted(self.record, step))
            case SetReplicas(replicas):  # a late write names the version that was read, and is refused
                return self if late else self._scaled(replicas)
            case Restart(ordinal, uid):
                pod = self.pods[ordinal] if ordinal < len(self.pods) else None
                if pod is None or str(pod.uid) != uid:
                    return self
                return replace(self._pod(ordinal, Pod(
                    self.ids + 1, pod.claim, self.volumes[ordinal] or EMPTY)), ids=self.ids + 1)
        return self._membership(step, late) if self.has_quorum() else self

    def _membership(self, step: Step, late: bool) -> World:
        match step:
            case Add(ordinal):
                if any(each.learner or each.ordinal == ordinal for each in self.members):
                    return self
                return replace(self, ids=self.ids + 1, members=(*self.members, Member(f"{self.ids + 1:x}", ordinal)))
            case MoveLeader(leader, to):
                leads = any(each.leader and each.id == leader for each in self.seen().members)
                return replace(self, leader=to) if leads else self
            case Promote(member):
                found = next((each for each in self.members if each.id == member), None)
                if found is None or not found.learner or (late and not found.caught_up):
                    return self
                if not found.caught_up:
                    raise Broken(f"{member} was promoted before it had caught up")
                after = replace(self, members=tuple(
                    each._replace(learner=False) if each.id == member else each for each in self.members))
            case Remove(member):
                found = next((each for each in self.members if each.id == member), None)
                if found is None:
                    return self
                if found.id == self.leader and self.healthy(found) and not late:
                    raise Broken("the leader was removed")
                after = replace(self, members=tuple(each for each in self.members if each.id != member))
            case _:
                raise AssertionError(step)
        if not after.has_quorum():
            if late:  # etcd itself refuses
                return self
            raise Broken(f"{step} has taken the quorum")
        return after

    # --- parts

    def _scaled(self, replicas: int) -> World:
        needed = {each.ordinal for each in self.members}
        if replicas < len(self.pods) and any(each >= replicas for each in needed):
            raise Broken("a pod was removed before its member")
        pods, volumes, ids = list(self.pods[:replicas]), list(self.volumes), self.ids
        while len(pods) < replicas:
            ids += 1
            if len(volumes) <= len(pods):
                volumes.append("")
            pods.append(Pod(ids, ids, volumes[len(pods)] or EMPTY))
        return replace(self, pods=tuple(pods), volumes=tuple(volumes), ids=ids)

    def applied(self, wanted: int) -> World:
        """The chart with another value, where an admission policy refuses fewer pods than members."""
        needed = max((each.ordinal + 1 for each in self.members), default=0)
        return replace(replace(self, wanted=wanted, replicas=wanted)._scaled(max(wanted, needed)))

    def _pod(self, number: int, pod: Pod) -> World:
        return replace(self, pods=(*self.pods[:number], pod, *self.pods[number + 1 :]))

    def _volume(self, number: int, content: str) -> World:
        return replace(self, volumes=(*self.volumes[:number], content, *self.volumes[number + 1 :]))

    def _less(self, kind: int) -> tuple[int, int, int]:
        left = list(self.faults)
        left[kind] -= 1
        return left[0], left[1], left[2]

    # --- does it end?

    def ends(self, limit: int = 120) -> World:
        """The state that it comes to once every pod is up and nothing fails any more. Raises Broken without an end."""
        world = replace(self, faults=(0, 0, 0), frozen=None)
        for number, pod in enumerate(world.pods):
            world = world._pod(number, pod._replace(up=True))
        for _ in range(limit):
            following = next((after for _, after in world.moves()), None)
            if following is None:
                return world
            world = following
        raise Broken(f"does not end: {the_plan(world.seen())}")

    def is_whole(self) -> bool:
        return (sorted(each.ordinal for each in self.members) == list(range(self.wanted))
                and all(not each.learner and self.healthy(each) for each in self.members)
                and len(self.pods) == self.replicas)

    def is_lost(self) -> bool:
        """Whether too many volumes were lost, so that only a person may decide."""
        if not self.founded or not self.members:
            return self.record.founder != "" and not self.founded
        return not self.has_quorum()
