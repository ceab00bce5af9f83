"""AlterReplicaLogDirs (34): moves replicas among a broker's data folders, of which it has one."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.errors import ErrorCode
from hapax.kafka.api.describe_log_dirs import DataFolder
from hapax.kafka.context import NodeContext
from hapax.kafka.table import ApiRow, ApiTable, Role
from hapax.wire.messages import AlterReplicaLogDirsResponse

ROW: Final = ApiRow(
    key=34, name="AlterReplicaLogDirs", versions=(1, 2), flexible_from=2, answered_by=Role.EVERY_NODE)

_Topic = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
_Partition = _Topic.AlterReplicaLogDirPartitionResult


def register(table: ApiTable, node: NodeContext) -> None:
    table.on(ROW, lambda ctx, request: _answer(request, None))


def register_folder(table: ApiTable, folder: DataFolder) -> None:
    """On a broker, after `register`."""
    table.on(ROW, lambda ctx, request: _answer(request, folder))


def _answer(request: Any, folder: DataFolder | None) -> Any:
    """A replica that is where the request wants it is no error, as in Kafka."""
    here = set() if folder is None else {(each.topic, each.partition) for each in folder.replicas()}
    topics: dict[str, list[Any]] = {}
    for wanted in request.dirs:
        stays = folder is not None and wanted.path.rstrip("/") == folder.path.rstrip("/")
        for topic in wanted.topics:
            for index in topic.partitions:
                code = ErrorCode.LOG_DIR_NOT_FOUND
                if stays:
                    code = ErrorCode.NONE if (topic.name, index) in here else ErrorCode.REPLICA_NOT_AVAILABLE
                topics.setdefault(topic.name, []).append(_Partition(partition_index=index, error_code=int(code)))
    return AlterReplicaLogDirsResponse(throttle_time_ms=0, results=[
        _Topic(topic_name=name, partitions=partitions) for name, partitions in topics.items()])
