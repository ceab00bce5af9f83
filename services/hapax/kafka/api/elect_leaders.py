"""ElectLeaders (43): makes the preferred replica of a partition its leader, or a replica that is not in sync."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import ALTER_CLUSTER
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.api.alter_partition_reassignments import refused_all
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.wire.messages import ElectLeadersResponse

ROW: Final = ApiRow(
    key=43, name="ElectLeaders", versions=(0, 2), flexible_from=2, answered_by=Role.EVERY_NODE,
    need=in_cluster(ALTER_CLUSTER))

_Topic = ElectLeadersResponse.ReplicaElectionResult
_Partition = _Topic.PartitionResult

PREFERRED: Final = 0
"""Election type: the first replica of the assignment is to lead. The only one in version 0."""
UNCLEAN: Final = 1
"""Election type: a replica that is not in sync may lead where no other can."""


def register(table: ApiTable, node: NodeContext) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        partitions = None if request.topic_partitions is None else [
            pb.PartitionOfTopic(topic=topic.topic, partition=index)
            for topic in request.topic_partitions for index in topic.partitions
        ]
        kind = request.election_type if ctx.api_version >= 1 else PREFERRED
        try:
            if kind not in (PREFERRED, UNCLEAN):
                raise Refusal(ErrorCode.INVALID_REQUEST, f"unknown election type {kind}")
            results = await node.administration.by(ctx.asker).elect_leaders(
                partitions, kind == UNCLEAN, request.timeout_ms)
        except Refusal as refusal:
            return _response(refused_all(partitions or (), refusal), refusal.code)
        return _response(results)

    table.on(ROW, handle)


def _response(results: list[pb.PartitionResult], code: ErrorCode = ErrorCode.NONE) -> Any:
    topics: dict[str, list[Any]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(_Partition(
            partition_id=result.partition, error_code=result.error, error_message=result.reason or None))
    return ElectLeadersResponse(
        throttle_time_ms=0, error_code=code,
        replica_election_results=[_Topic(topic=name, partition_result=found) for name, found in topics.items()])


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response([
        pb.PartitionResult(topic=topic.topic, partition=index, error=code)
        for topic in request.topic_partitions or () for index in topic.partitions], code)
