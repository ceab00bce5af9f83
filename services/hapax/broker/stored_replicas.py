"""The replicas in a broker's data folder, for DescribeLogDirs and AlterReplicaLogDirs."""

from __future__ import annotations

from collections.abc import Iterator

from hapax.broker.copying import Copying
from hapax.broker.partitions import PartitionSet
from hapax.kafka.api.describe_log_dirs import StoredReplica
from hapax.runtime.ports import Disk


class StoredReplicas:
    """`kafka.api.describe_log_dirs.DataFolder`."""

    def __init__(self, partitions: PartitionSet, path: str, disk: Disk) -> None:
        self.path = path
        self._partitions = partitions
        self._disk = disk

    def replicas(self) -> Iterator[StoredReplica]:
        for replica in self._partitions.replicas.values():
            lag = replica.copying.lag if isinstance(replica.copying, Copying) else 0
            yield StoredReplica(replica.topic, replica.index, replica.log.size(), lag)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()
