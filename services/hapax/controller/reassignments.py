"""Calls that move replicas and leaderships: checked against the image, recorded, and carried on by `plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from hapax.codec.metadata import DrainingRecord, PartitionRecord, ThrottleRecord
from hapax.controller.fenced import Fence, Told, write_fenced
from hapax.controller.plan import change_of, changed_topic
from hapax.core.cluster.failover import (
    FIT,
    Brokers,
    cancel,
    is_unclean,
    keeps_a_copy,
    mark_unclean,
    prefer,
    reassign,
    settle,
)
from hapax.core.cluster.topics import check_replicas
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NO_NODE, NodeId, PartitionIndex, TopicId
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView, PartitionView
from hapax.runtime.guarded_writes import GuardedWrite
from hapax.runtime.ports import Clock, Delete, MetadataStore, Put

_CHANGED = Refusal(ErrorCode.REQUEST_TIMED_OUT, "the partition changed at the same time; ask again")

_ATTEMPTS: Final = 5

Name = tuple[str, int]
"""Topic and partition."""


class Reassignments:
    def __init__(
        self, store: MetadataStore, view: ClusterView, clock: Clock, fence: Fence, audit: Audit = SILENT
    ) -> None:
        self._store = store
        self._view = view
        self._clock = clock
        self._fence = fence
        self._audit = audit

    # --- moves

    async def alter(self, request: pb.AlterReassignmentsRequest) -> pb.AlterReassignmentsResponse:
        try:
            self._fence()
        except Refusal as refusal:
            return pb.AlterReassignmentsResponse(error=refusal.code, reason=refusal.reason)
        moves = {(move.topic, move.partition): move for move in request.moves}
        named = Counter((move.topic, move.partition) for move in request.moves)

        def decide(name: Name) -> tuple[PartitionView, PartitionRecord]:
            if named[name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "the partition is named twice in the request")
            partition = self._partition(*name)
            return partition, self._moved(partition, moves[name], request.keep_replication_factor)

        done, refused = await self._apply(moves, decide, "replicas_moved")
        await self._note_factors(dict.fromkeys(partition.topic_id for partition in done.values()))
        return pb.AlterReassignmentsResponse(
            partitions=[_result(name, refused.get(name)) for name in moves], revision=self._view.revision)

    async def _apply(
        self, names: Iterable[Name], decide: Callable[[Name], tuple[PartitionView, PartitionRecord]], event: str,
    ) -> tuple[dict[Name, PartitionView], dict[Name, Refusal]]:
        """What was written, as it is now, and what was refused. `decide` says what a partition shall become, or raises
        Refusal; it is asked again where the partition changed at the same time."""
        done: dict[Name, PartitionView] = {}
        refused: dict[Name, Refusal] = {}
        open_ = list(dict.fromkeys(names))
        for _ in range(_ATTEMPTS):
            changes: dict[Name, GuardedWrite] = {}
            told = Told[Name](self._audit)
            for name in open_:
                try:
                    partition, record = decide(name)
                except Refusal as refusal:
                    refused[name] = refusal
                    continue
                done[name] = replace(partition, record=record)
                if record is not partition.record:
                    changes[name] = change_of(self._view, partition, record)
                    old, new = partition.record, record
                    told.of(name, event, topic=name[0], partition=name[1], **(
                        {"old": old.leader, "new": new.leader} if event == "leader_elected"
                        else {"old": old.target, "new": new.target}))
            failed = await write_fenced(self._store, self._view, self._fence, changes, _CHANGED, told)
            for name in failed:
                del done[name]
            open_ = [name for name, why in failed.items() if why is _CHANGED]
            refused |= {name: why for name, why in failed.items() if why is not _CHANGED}
            if not open_:
                break
        return done, refused | dict.fromkeys(open_, _CHANGED)

    def _partition(self, name: str, index: int) -> PartitionView:
        """Raises Refusal."""
        topic = self._view.topic(name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic is named {name}")
        partition = self._view.partition(topic.topic_id, PartitionIndex(index))
        if partition is None:
            raise Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name} has {topic.partitions} partitions, and no partition {index}")
        return partition

    def _moved(self, partition: PartitionView, move: pb.Reassignment, same_factor: bool) -> PartitionRecord:
        """Raises Refusal."""
        record = partition.record
        if not move.HasField("target"):
            if not record.adding and not record.removing:
                raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being reassigned")
            if not keeps_a_copy(record, record.original):
                raise Refusal(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"the in-sync set is {_list(record.isr)}: canceling would remove the last in-sync copy")
            return settle(cancel(record), self._view.live_brokers())  # what it added may lead
        target = tuple(map(NodeId, move.target.nodes))
        # What is a replica may stay one while it is dead, also one that a reassignment adds just now.
        check_replicas(target, {*(n.node_id for n in self._view.nodes("broker")), *record.replicas}, "the target")
        if same_factor and len(target) != len(record.target):
            is_moving = record.adding or record.removing
            raise Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the partition {'is getting' if is_moving else 'has'} {len(record.target)} replicas, the target "
                f"{'has ' if is_moving else ''}{len(target)}")
        if not keeps_a_copy(record, target):
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the in-sync set is {_list(record.isr)}: this would remove the last in-sync copy")
        return record if target == record.target else settle(reassign(record, target), self._view.live_brokers())

    async def _note_factors(self, topic_ids: dict[TopicId, None]) -> None:
        """Where all partitions of a topic have, or will have, another number of replicas, so will new ones."""
        changes = {}
        for topic_id in topic_ids:
            topic = self._view.topic_by_id(topic_id)
            sizes = {len(partition.record.target) for partition in self._view.partitions_of(topic_id).values()}
            if topic is not None and len(sizes) == 1 and sizes != {topic.record.replication_factor}:
                record = replace(topic.record, replication_factor=sizes.pop())
                changes[topic_id] = changed_topic(self._view, topic, record)
        await write_fenced(self._store, self._view, self._fence, changes, _CHANGED)

    # --- leaders

    async def elect(self, request: pb.ElectLeadersRequest) -> tuple[pb.ElectLeadersResponse, list[PartitionView]]:
        """The answer, and the partitions for which a leader that was not in sync was written, or may have been: the
        store's answer may be lost."""
        try:
            self._fence()
        except Refusal as refusal:
            return pb.ElectLeadersResponse(error=refusal.code, reason=refusal.reason), []
        names = [(p.topic, p.partition) for p in request.partitions]
        if request.all:
            names = [(t.name, i) for t in self._view.topics() for i in range(t.partitions)]
        names = list(dict.fromkeys(names))
        lossy: dict[Name, PartitionView | None] = {}

        def decide(name: Name) -> tuple[PartitionView, PartitionRecord]:
            partition = self._partition(*name)
            record = self._elected(partition, request.unclean)
            # By the last attempt: an earlier one was not written.
            lossy[name] = replace(partition, record=record) if is_unclean(partition.record, record) else None
            return partition, record

        _, refused = await self._apply(names, decide, "leader_elected")
        shown = [
            name for name in names
            if not request.all or name not in refused or refused[name].code != ErrorCode.ELECTION_NOT_NEEDED]
        answer = pb.ElectLeadersResponse(
            partitions=[_result(name, refused.get(name)) for name in shown], revision=self._view.revision)
        return answer, [partition for partition in lossy.values() if partition is not None]

    def _elected(self, partition: PartitionView, unclean: bool) -> PartitionRecord:
        """Raises Refusal."""
        before, brokers = partition.record, self._view.live_brokers()
        if unclean:
            if before.leader != NO_NODE:
                raise Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"broker {before.leader} leads")
            record = mark_unclean(before, settle(before, brokers, unclean=True), self._clock.now_ms())
            if record.leader == NO_NODE:
                raise Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica is alive")
            return record
        wanted = before.target[0]
        if before.leader == wanted:
            raise Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"broker {wanted} leads already")
        record = prefer(before, brokers, while_moving=True)
        if record is before:
            raise Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, _why_not_preferred(before, brokers))
        return record

    # --- the whole cluster

    async def set_replication(self, request: pb.SetReplicationRequest) -> pb.SetReplicationResponse:
        keys, now_ms = self._view.keys, self._clock.now_ms()
        writes: list[Put | Delete] = []
        for number in request.drain:
            writes.append(Put(keys.draining(NodeId(number)), DrainingRecord(now_ms, request.drained_by).encode()))
        for number in request.undrain:
            writes.append(Delete(keys.draining(NodeId(number))))
        if request.HasField("bytes_per_second"):
            throttle = ThrottleRecord(request.bytes_per_second, now_ms)
            writes.append(
                Put(keys.throttle, throttle.encode()) if throttle.bytes_per_second > 0 else Delete(keys.throttle))
        changes = {number: GuardedWrite((), (write,)) for number, write in enumerate(writes)}
        told = Told[int](self._audit)
        if changes:
            # One line for the call: its writes are packed into one transaction, unless there are more than a hundred.
            told.of(0, "replication_changed", old=self._replication(), new=self._replication(request))
        refused = await write_fenced(self._store, self._view, self._fence, changes, _CHANGED, told)
        for refusal in refused.values():
            return pb.SetReplicationResponse(error=refusal.code, reason=refusal.reason)
        return pb.SetReplicationResponse()


    def _replication(self, request: pb.SetReplicationRequest | None = None) -> dict[str, object]:
        """As it is, or as the request makes it."""
        draining = {node.node_id for node in self._view.nodes("broker") if self._view.is_draining(node.node_id)}
        throttle = self._view.throttle
        rate = 0 if throttle is None else throttle.bytes_per_second
        if request is not None:
            draining = (draining | set(map(NodeId, request.drain))) - set(map(NodeId, request.undrain))
            rate = request.bytes_per_second if request.HasField("bytes_per_second") else rate
        return {"draining": sorted(draining), "bytes_per_second": max(rate, 0) or None}


def _result(name: Name, refusal: Refusal | None) -> pb.PartitionResult:
    result = pb.PartitionResult(topic=name[0], partition=name[1])
    if refusal is not None:
        result.error, result.reason = refusal.code, refusal.reason
    return result


def _why_not_preferred(partition: PartitionRecord, brokers: Brokers) -> str:
    """Why the first replica of the assignment cannot lead now, although it does not lead yet."""
    wanted = partition.target[0]
    preferred = f"broker {wanted}, the preferred replica,"
    if wanted not in brokers:
        return f"{preferred} is not alive"
    if wanted not in partition.isr:
        return f"{preferred} is not in sync; the in-sync set is {_list(partition.isr)}"
    if brokers[wanted].rank < FIT:
        return f"{preferred} is in sync, but draining, stopping, short of disk space or silent"
    if not partition.accepted:
        return f"broker {partition.leader} is about to take the leadership over; ask again"
    return f"{preferred} has restarted and is not in sync again yet"


def _list(nodes: tuple[NodeId, ...]) -> str:
    return ", ".join(map(str, nodes)) or "empty"
