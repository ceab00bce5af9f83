"""The API keys that every node of the cluster advertises, and their versions.

One table for all roles (rule 11): a client that asks the wrong node gets an answer that sends it to the right one
(`roles.py`), not a missing version. Versions are those that kafka-python's schemas know, with two exceptions:
Produce is advertised from 0, though 0-2 are refused, since older librdkafka drops compression without it; and
InitProducerId ends at 5 (6 is two-phase commit, which Kafka itself still calls unstable).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from hapax.kafka.table import BULK_FRAME_BYTES, Api


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    CREATE_PARTITIONS = 37
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


_SMALL: Final = 64 * 1024
_LARGE: Final = 1024 * 1024

_ROWS: Final = (
    # key, name in the schemas, versions from, to, first flexible version, largest request in bytes
    (ApiKey.PRODUCE, "Produce", 3, 13, 9, BULK_FRAME_BYTES),
    (ApiKey.FETCH, "Fetch", 4, 18, 12, _LARGE),
    (ApiKey.LIST_OFFSETS, "ListOffsets", 1, 11, 6, _LARGE),
    (ApiKey.METADATA, "Metadata", 0, 13, 9, _LARGE),
    (ApiKey.OFFSET_COMMIT, "OffsetCommit", 2, 10, 8, _LARGE),
    (ApiKey.OFFSET_FETCH, "OffsetFetch", 1, 10, 6, _LARGE),
    (ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3, _SMALL),
    (ApiKey.API_VERSIONS, "ApiVersions", 0, 4, 3, _SMALL),
    (ApiKey.CREATE_TOPICS, "CreateTopics", 2, 7, 5, _LARGE),
    (ApiKey.DELETE_TOPICS, "DeleteTopics", 1, 6, 4, _LARGE),
    (ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2, _SMALL),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4, _LARGE),
    (ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3, _LARGE),
    (ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4, 3, _SMALL),
    (ApiKey.END_TXN, "EndTxn", 0, 5, 3, _SMALL),
    (ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 2, 1, _LARGE),
    (ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 5, 3, _LARGE),
    (ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4, _LARGE),
    (ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2, _LARGE),
    (ApiKey.ELECT_LEADERS, "ElectLeaders", 0, 2, 2, _LARGE),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1, _LARGE),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1, 0, _LARGE),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0, _LARGE),
    (ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0, _SMALL),
    (ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0, _LARGE),
    (ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0, _SMALL),
    (ApiKey.LIST_TRANSACTIONS, "ListTransactions", 0, 2, 0, _SMALL),
)
"""A million tiny fields in one request would decode to hundreds of MB and hold the loop for seconds: hence the last
column. Only Produce is as long as the listener's frames may be; its record bytes are not decoded."""


def all_apis() -> list[Api]:
    """A fresh table's rows, none of them served yet."""
    return [
        Api(
            key=key, name=name, min_version=first, max_version=last,
            advertised_min=0 if key == ApiKey.PRODUCE else first, first_flexible=flexible, max_frame_bytes=longest,
        )
        for key, name, first, last, flexible, longest in _ROWS
    ]
