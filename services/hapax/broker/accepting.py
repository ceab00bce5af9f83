"""Whether a partition takes the writes of the cluster's own processes. Clients' writes are checked elsewhere."""

from __future__ import annotations

from typing import Protocol

from hapax.core.errors import ErrorCode, Refusal
from hapax.runtime.settings import Settings


class InternallyWritten(Protocol):
    storage_error: str
    too_few_in_sync: bool
    settings: Settings


def check_accepting(partition: InternallyWritten) -> None:
    """Raises Refusal where an internal write has to be refused."""
    if partition.storage_error:
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, partition.storage_error)
    if partition.too_few_in_sync:
        raise Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "fewer replicas are in sync than min.insync.replicas")
    if partition.settings.restoring:  # no record of another origin comes between those of the backup
        raise Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "the topic is being restored from a backup")
