"""DescribeLogDirs (35): a node's data folder, and the size of each replica in it. Only a broker's has any.

Clients take an answer without a folder for a refusal (CLUSTER_AUTHORIZATION_FAILED), and `kafka-log-dirs.sh --describe`
asks every node.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

from hapax.core.access.resources import DESCRIBE_CLUSTER
from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DescribeLogDirsResponse

ROW: Final = ApiRow(
    key=35, name="DescribeLogDirs", versions=(1, 5), flexible_from=2, answered_by=Role.EVERY_NODE,
    need=in_cluster(DESCRIBE_CLUSTER))

_Folder = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _Folder.DescribeLogDirsTopic
_Partition = _Topic.DescribeLogDirsPartition
_UNKNOWN: Final = -1


class StoredReplica(NamedTuple):
    topic: str
    partition: int
    size: int
    """Bytes of its segments."""
    lag: int
    """Number of committed records that it does not have."""


class DataFolder(Protocol):
    """A broker's only data folder."""

    path: str

    def replicas(self) -> Iterable[StoredReplica]: ...

    def free_bytes(self) -> int: ...


def register(table: ApiTable, node: NodeContext) -> None:
    path = os.path.abspath(node.settings.log_dir)
    empty = _Folder(
        error_code=0, log_dir=path, total_bytes=_UNKNOWN, usable_bytes=_UNKNOWN, is_cordoned=False, topics=[])
    table.on(ROW, lambda ctx, request: _response([empty]))


def register_folder(table: ApiTable, folder: DataFolder) -> None:
    """On a broker, after `register`."""

    def handle(ctx: RequestContext, request: Any) -> Any:
        wanted = None if request.topics is None else {
            (topic.topic, index) for topic in request.topics for index in topic.partitions}
        topics: dict[str, list[Any]] = {}
        for each in folder.replicas():
            if wanted is None or (each.topic, each.partition) in wanted:
                topics.setdefault(each.topic, []).append(_Partition(
                    partition_index=each.partition, partition_size=each.size, offset_lag=each.lag, is_future_key=False))
        return _response([_Folder(
            error_code=0, log_dir=folder.path, total_bytes=_UNKNOWN, usable_bytes=folder.free_bytes(),
            is_cordoned=False,
            topics=[_Topic(name=name, partitions=partitions) for name, partitions in sorted(topics.items())])])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    """Before version 3 there is no field for the error, and a client takes an empty answer for this refusal."""
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=int(code), results=[])


def _response(folders: list[Any]) -> Any:
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=folders)
