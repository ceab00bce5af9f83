"""Administrative calls: checked against the image, written under the controller's fence, answered when they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hapax.codec.metadata import INTERNAL_TOPICS, DeletedTopicRecord, TopicRecord
from hapax.controller.fenced import Fence, Told, differences, write_fenced
from hapax.controller.plan import new_topic, new_topic_id
from hapax.core.cluster.topics import (
    changed_list,
    check_assignment,
    check_partition_count,
    check_replication_factor,
    check_topic_config,
    check_topic_name,
    plain_config,
)
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NodeId, PartitionIndex, TopicId
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView, TopicView
from hapax.runtime.guarded_writes import GuardedWrite
from hapax.runtime.ports import Clock, Compare, Delete, MetadataStore, Put, Randomness, RpcError
from hapax.runtime.settings import Settings

_DELETES_PER_CHANGE: Final = 120
_CREATED: Final = Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, "another call created the topic at the same time")
_CHANGED: Final = Refusal(ErrorCode.REQUEST_TIMED_OUT, "another call changed the topic at the same time")


class Topics:
    def __init__(
        self, store: MetadataStore, view: ClusterView, settings: Settings, clock: Clock, random: Randomness,
        fence: Fence, audit: Audit = SILENT,
    ) -> None:
        self._store = store
        self._view = view
        self._settings = settings
        self._clock = clock
        self._random = random
        self._fence = fence
        self._audit = audit

    # --- create

    async def create(self, request: pb.CreateTopicsRequest) -> list[pb.TopicResult]:
        results: dict[int, pb.TopicResult] = {}
        records: dict[int, TopicRecord] = {}
        counts = Counter(spec.name for spec in request.topics)
        for position, spec in enumerate(request.topics):
            try:
                self._fence()
                if counts[spec.name] > 1:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "the topic is named twice in the request")
                records[position] = self._checked(spec)
            except Refusal as refusal:
                results[position] = _refused(spec.name, refusal)
        changes = {position: new_topic(self._view, record) for position, record in records.items()}
        told = Told[int](self._audit)
        for position, record in records.items():
            told.of(position, "topic_created", topic=record.name, old=None, new=_told(record))
        failed = {} if request.validate_only else await self._write(changes, _CREATED, told)
        for position, record in records.items():
            if position in failed:
                results[position] = _refused(record.name, failed[position])
            else:
                results[position] = pb.TopicResult(
                    name=record.name, topic_id=b"" if request.validate_only else record.topic_id,
                    partitions=record.partitions, replication_factor=record.replication_factor)
        if not request.validate_only:
            await self._until_accepted(results.values(), request.timeout_ms)
        return [results[position] for position in range(len(request.topics))]

    def _checked(self, spec: pb.TopicSpec) -> TopicRecord:
        """Raises Refusal."""
        check_topic_name(spec.name)
        if self._view.topic(spec.name) is not None:
            raise _exists(spec.name)
        if spec.name in INTERNAL_TOPICS:  # `plan` creates them, with one partition for each shard
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "this name is reserved for an internal topic")
        self._check_collision(spec.name)
        config = plain_config(spec.config)
        check_topic_config(config)
        if spec.assignment:
            return self._assigned(spec, config)
        check_partition_count(spec.partitions)
        wanted = self._settings.default_replication_factor if spec.replication_factor == -1 else spec.replication_factor
        check_replication_factor(wanted, len(self._view.nodes("broker")))
        return TopicRecord(
            new_topic_id(self._random), spec.name,
            self._settings.num_partitions if spec.partitions == -1 else spec.partitions, wanted, config,
            made_by=spec.made_by)

    def _assigned(self, spec: pb.TopicSpec, config: dict[str, str]) -> TopicRecord:
        """A topic whose creator chose the replicas. Raises Refusal."""
        if spec.partitions != -1 or spec.replication_factor != -1:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, "an assignment says how many partitions and replicas there are: no numbers")
        assignment = _checked_assignment(self._view, spec.assignment)
        check_partition_count(len(assignment))
        return TopicRecord(
            new_topic_id(self._random), spec.name, len(assignment), len(assignment[0]), config,
            assignment=assignment, made_by=spec.made_by)

    def _check_collision(self, name: str) -> None:
        """Kafka's rule: metrics write dots as underscores, so two names must not differ in those alone."""
        if "." not in name and "_" not in name:
            return
        flat = name.replace(".", "_")
        for topic in self._view.topics():
            if topic.name.replace(".", "_") == flat:
                raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!r} collides with the topic {topic.name!r}")

    # --- delete

    async def delete(self, request: pb.DeleteTopicsRequest) -> list[pb.TopicResult]:
        revisions = request.if_revisions or [0] * len(request.topic_ids)
        if len(revisions) != len(request.topic_ids):
            raise RpcError("INVALID_ARGUMENT", "if_revisions has one for each of topic_ids, or none")
        named: list[tuple[str, bytes, int, TopicView | None]] = [
            *((name, b"", 0, self._view.topic(name)) for name in request.names),
            *(("", topic_id, revision, self._view.topic_by_id(TopicId(topic_id)))
              for topic_id, revision in zip(request.topic_ids, revisions, strict=True)),
        ]
        results: dict[int, pb.TopicResult] = {}
        topics: dict[int, TopicView] = {}
        for position, (name, topic_id, revision, topic) in enumerate(named):
            try:
                self._fence()
                found = self._deletable(topic, topic_id, revision)
                topics[position] = found
                results[position] = pb.TopicResult(name=found.name, topic_id=found.topic_id)
            except Refusal as refusal:
                results[position] = _refused(name, refusal, topic_id)
        told = Told[int](self._audit)
        for position, topic in topics.items():
            told.of(position, "topic_deleted", topic=topic.name, old=_told(topic.record), new=None)
        failed = await self._write(
            {position: self._deletion(topic) for position, topic in topics.items()}, _CHANGED, told)
        for position, why in failed.items():
            results[position] = _refused(topics[position].name, why, topics[position].topic_id)
        return [results[position] for position in range(len(named))]

    def _deletable(self, topic: TopicView | None, topic_id: bytes, if_revision: int) -> TopicView:
        """Raises Refusal."""
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID if topic_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.internal:
            raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "internal topics cannot be deleted")
        if not self._settings.delete_topic_enable:
            raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        _check_revision(topic, if_revision)
        return topic

    def _deletion(self, topic: TopicView) -> GuardedWrite:
        """The partitions that do not fit follow as orphans (see `plan`): the mark of deletion is what counts."""
        key = self._view.keys.topic(topic.name)
        mark = DeletedTopicRecord(topic.topic_id, topic.name, self._clock.now_ms())
        partitions = sorted(self._view.partitions_of(topic.topic_id))[:_DELETES_PER_CHANGE]
        return GuardedWrite(
            (Compare(key, "mod_revision", topic.mod_revision),),
            (
                Delete(key), Put(self._view.keys.deleted(topic.topic_id), mark.encode()),
                *(Delete(self._view.keys.partition(topic.topic_id, index)) for index in partitions),
            ),
        )

    # --- more partitions

    async def create_partitions(self, request: pb.CreatePartitionsRequest) -> list[pb.TopicResult]:
        names = sorted(request.total_by_topic)
        results: dict[int, pb.TopicResult] = {}
        changes: dict[int, GuardedWrite] = {}
        told = Told[int](self._audit)
        for position, name in enumerate(names):
            try:
                self._fence()
                chosen = request.assignment_by_topic[name].partitions if name in request.assignment_by_topic else ()
                grown = self._grown(name, request.total_by_topic[name], chosen)
                _check_revision(grown, request.if_revision_by_topic.get(name, 0))
                key = self._view.keys.topic(name)
                former = self._view.topic(name)
                told.of(position, "topic_partitions_added", topic=name,
                        old=None if former is None else former.partitions, new=grown.partitions)
                changes[position] = GuardedWrite(
                    (Compare(key, "mod_revision", grown.mod_revision),), (Put(key, grown.record.encode()),))
                results[position] = pb.TopicResult(
                    name=name, topic_id=grown.topic_id, partitions=grown.partitions,
                    replication_factor=grown.record.replication_factor)
            except Refusal as refusal:
                results[position] = _refused(name, refusal)
        if not request.validate_only:
            for position, why in (await self._write(changes, _CHANGED, told)).items():
                results[position] = _refused(names[position], why)
            await self._until_accepted(results.values(), request.timeout_ms)
        return [results[position] for position in range(len(names))]

    def _grown(self, name: str, total: int, chosen: Sequence[pb.Replicas]) -> TopicView:
        """Raises Refusal."""
        topic = self._view.topic(name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.internal:
            raise Refusal(ErrorCode.INVALID_PARTITIONS, "the number of shards is fixed when the cluster is made")
        if total <= topic.partitions:
            raise Refusal(ErrorCode.INVALID_PARTITIONS, f"the topic has {topic.partitions} partitions already")
        check_partition_count(total)
        record = replace(topic.record, partitions=total)
        if chosen:
            if len(chosen) != total - topic.partitions:
                raise Refusal(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"there are {total - topic.partitions} new partitions, but replicas for {len(chosen)}")
            existing = self._view.partitions_of(topic.topic_id)
            indexes = map(PartitionIndex, range(topic.partitions))
            kept = tuple(existing[i].record.replicas if i in existing else () for i in indexes)
            record = replace(record, assignment=(*kept, *_checked_assignment(self._view, chosen)))
        return replace(topic, record=record)

    # --- configuration

    async def alter_configs(self, request: pb.AlterTopicConfigsRequest) -> list[pb.TopicResult]:
        results: dict[int, pb.TopicResult] = {}
        changes: dict[int, GuardedWrite] = {}
        told = Told[int](self._audit)
        counts = Counter(change.topic for change in request.changes)
        for position, change in enumerate(request.changes):
            try:
                self._fence()
                if counts[change.topic] > 1:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "the topic is named twice in the request")
                altered = self._altered(change)
            except Refusal as refusal:
                results[position] = _refused(change.topic, refusal)
                continue
            results[position] = pb.TopicResult(
                name=change.topic, topic_id=altered.topic_id, lists_changed=bool(change.append or change.subtract))
            former = self._view.topic(change.topic)
            if former is not None and altered != former:
                key = self._view.keys.topic(change.topic)
                old, new = differences(former.config, altered.config)
                told.of(position, "topic_config_changed", topic=change.topic, old=old, new=new)
                changes[position] = GuardedWrite(
                    (Compare(key, "mod_revision", altered.mod_revision),), (Put(key, altered.record.encode()),))
        if not request.validate_only:
            for position, why in (await self._write(changes, _CHANGED, told)).items():
                results[position] = _refused(request.changes[position].topic, why)
        return [results[position] for position in range(len(request.changes))]

    def _altered(self, change: pb.TopicConfigChange) -> TopicView:
        """Raises Refusal."""
        topic = self._view.topic(change.topic)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.internal:
            raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "internal topics are configured by the cluster")
        _check_revision(topic, change.if_revision)
        kept = {} if change.replace else topic.config
        config = {name: value for name, value in kept.items() if name not in change.reset} | plain_config(change.set)
        for values, append in ((change.append, True), (change.subtract, False)):
            for name, value in values.items():
                config[name] = changed_list(name, config.get(name), value, append=append)
        check_topic_config({
            name: config[name] for name in (*change.set, *change.append, *change.subtract)})
        return replace(topic, record=replace(topic.record, config=config))

    # --- write and wait

    async def _write(
        self, changes: Mapping[int, GuardedWrite], stale: Refusal, told: Told[int]
    ) -> dict[int, Refusal]:
        return await write_fenced(self._store, self._view, self._fence, changes, stale, told)

    async def _until_accepted(self, results: Iterable[pb.TopicResult], timeout_ms: int) -> None:
        """Marks those whose leaders do not all accept writes in time."""
        created = [result for result in results if not result.error]
        try:
            await self._view.wait_for(
                lambda view: all(_accepted(view, result) for result in created), max(timeout_ms, 0) / 1000)
        except TimeoutError:
            for result in created:
                if not _accepted(self._view, result):
                    result.error = ErrorCode.REQUEST_TIMED_OUT
                    result.reason = "the topic was created, but not all of its partitions have a leader yet"


def _told(record: TopicRecord) -> dict[str, object]:
    return {
        "partitions": record.partitions, "replication_factor": record.replication_factor, "config": record.config}


def _accepted(view: ClusterView, result: pb.TopicResult) -> bool:
    topic_id = TopicId(result.topic_id)
    return view.is_deleted(topic_id) or all(
        view.leader_of(topic_id, index) is not None for index in range(result.partitions))


def _checked_assignment(view: ClusterView, partitions: Sequence[pb.Replicas]) -> tuple[tuple[NodeId, ...], ...]:
    """Raises Refusal (INVALID_REPLICA_ASSIGNMENT)."""
    assignment = tuple(tuple(map(NodeId, replicas.nodes)) for replicas in partitions)
    check_assignment(assignment, {node.node_id for node in view.nodes("broker")})
    return assignment


def _refused(name: str, refusal: Refusal, topic_id: bytes = b"") -> pb.TopicResult:
    return pb.TopicResult(name=name, error=refusal.code, reason=refusal.reason, topic_id=topic_id)


def _check_revision(topic: TopicView, wanted: int) -> None:
    """Raises Refusal (INVALID_UPDATE_VERSION). What is written compares the same revision in the store."""
    if wanted and wanted != topic.mod_revision:
        raise Refusal(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"the topic is of revision {topic.mod_revision} now, and {wanted} was to be changed")


def _exists(name: str) -> Refusal:
    return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")
