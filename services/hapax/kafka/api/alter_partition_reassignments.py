"""AlterPartitionReassignments (45): moves partitions to other replicas, or cancels a move. The controller decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hapax.core.access.resources import ALTER_CLUSTER
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.wire.messages import AlterPartitionReassignmentsResponse

ROW: Final = ApiRow(
    key=45, name="AlterPartitionReassignments", versions=(0, 1), flexible_from=0, answered_by=Role.EVERY_NODE,
    need=in_cluster(ALTER_CLUSTER))

_Topic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Partition = _Topic.ReassignablePartitionResponse


def register(table: ApiTable, node: NodeContext) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        moves = [
            pb.Reassignment(
                topic=topic.name, partition=partition.partition_index,
                target=None if partition.replicas is None else pb.Replicas(nodes=partition.replicas))
            for topic in request.topics for partition in topic.partitions
        ]
        same_factor = ctx.api_version >= 1 and not request.allow_replication_factor_change
        try:
            results = await node.administration.by(ctx.asker).alter_reassignments(
                moves, request.timeout_ms, same_factor)
        except Refusal as refusal:
            return _response(refused_all(moves, refusal), same_factor, refusal.code, refusal.reason)
        return _response(results, same_factor)

    table.on(ROW, handle)


def refused_all(
    partitions: Sequence[pb.Reassignment | pb.PartitionOfTopic], refusal: Refusal
) -> list[pb.PartitionResult]:
    """A refusal of the whole call, told for each partition too, as Kafka does: some clients look only there."""
    return [
        pb.PartitionResult(topic=p.topic, partition=p.partition, error=refusal.code, reason=refusal.reason)
        for p in partitions]


def _response(
    results: list[pb.PartitionResult], same_factor: bool, code: ErrorCode = ErrorCode.NONE, reason: str = ""
) -> Any:
    topics: dict[str, list[Any]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(_Partition(
            partition_index=result.partition, error_code=result.error, error_message=result.reason or None))
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0, allow_replication_factor_change=not same_factor, error_code=code,
        error_message=reason or None,
        responses=[_Topic(name=name, partitions=partitions) for name, partitions in topics.items()])


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response([
        pb.PartitionResult(topic=topic.name, partition=partition.partition_index, error=code)
        for topic in request.topics for partition in topic.partitions], False, code)
