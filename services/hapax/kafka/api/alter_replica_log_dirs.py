"""AlterReplicaLogDirs (34): moves replicas among a broker's data folders, of which it has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hapax.core.access.resources import ALTER_CLUSTER
from hapax.core.errors import ErrorCode
from hapax.kafka.api.describe_log_dirs import DataFolder
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, Role
from hapax.wire.messages import AlterReplicaLogDirsResponse

ROW: Final = ApiRow(
    key=34, name="AlterReplicaLogDirs", versions=(1, 2), flexible_from=2, answered_by=Role.EVERY_NODE,
    need=in_cluster(ALTER_CLUSTER))

_Topic = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
_Partition = _Topic.AlterReplicaLogDirPartitionResult


def register(table: ApiTable, node: NodeContext) -> None:
    table.on(ROW, lambda ctx, request: _answer(request, None))


def register_folder(table: ApiTable, folder: DataFolder) -> None:
    """On a broker, after `register`."""
    table.on(ROW, lambda ctx, request: _answer(request, folder))


def _answer(request: Any, folder: DataFolder | None) -> Any:
    """A replica that is where the request wants it is no error, as in Kafka."""

    def result(topic: str, index: int, path: str) -> ErrorCode:
        if folder is None or path.rstrip("/") != folder.path.rstrip("/"):
            return ErrorCode.LOG_DIR_NOT_FOUND
        return ErrorCode.NONE if (topic, index) in here else ErrorCode.REPLICA_NOT_AVAILABLE

    here = set() if folder is None else {(each.topic, each.partition) for each in folder.replicas()}
    return _response(request, result)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response(request, lambda topic, index, path: code)


def _response(request: Any, result: Callable[[str, int, str], ErrorCode]) -> Any:
    """`result`: of the partition with this topic and index, which is to move to this folder."""
    topics: dict[str, list[Any]] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            topics.setdefault(topic.name, []).extend(
                _Partition(partition_index=index, error_code=int(result(topic.name, index, wanted.path)))
                for index in topic.partitions)
    return AlterReplicaLogDirsResponse(throttle_time_ms=0, results=[
        _Topic(topic_name=name, partitions=partitions) for name, partitions in topics.items()])
