"""The message classes of `kafka.protocol`, by name: `from hapax.wire.messages import MetadataRequest`.

kafka-python generates them from Kafka's published schemas, for both directions and every version. This module adds
three things. `import kafka.protocol` would run `kafka/__init__.py`, which imports the whole client (0.3 s, 25 MB): here
the package is created without running it, and runs only when a client class is requested from it. `hardening` makes the
decoders safe against hostile bytes, and the encoders write unknown tagged fields. And calls that kafka-python does not
have are generated from `schemas/`: to add one, put its two schemas there and its name into `_OWN`.
"""

from __future__ import annotations

import importlib
from typing import Any, Final
from uuid import UUID

from hapax.codec.late_package import place_late

_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "producer.produce": ("Produce",),
    "producer.transaction": (
        "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit", "WriteTxnMarkers",
    ),
    "consumer.fetch": ("Fetch",),
    "consumer.offsets": ("ListOffsets", "OffsetForLeaderEpoch"),
    "consumer.group": (
        "JoinGroup", "SyncGroup", "LeaveGroup", "Heartbeat", "OffsetCommit", "OffsetFetch", "OffsetDelete",
    ),
    "metadata.api_versions": ("ApiVersions",),
    "metadata.find_coordinator": ("FindCoordinator",),
    "metadata.metadata": ("Metadata",),
    "admin.acl": ("DescribeAcls", "CreateAcls", "DeleteAcls"),
    "admin.client_quotas": ("DescribeClientQuotas", "AlterClientQuotas"),
    "admin.cluster": (
        "DescribeCluster", "DescribeLogDirs", "AlterReplicaLogDirs", "DescribeQuorum", "UpdateFeatures",
    ),
    "admin.configs": ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "ListConfigResources"),
    "admin.groups": ("DescribeGroups", "ListGroups", "DeleteGroups"),
    "admin.topics": (
        "CreateTopics", "DeleteTopics", "CreatePartitions", "ElectLeaders", "AlterPartitionReassignments",
        "ListPartitionReassignments", "DescribeTopicPartitions", "DeleteRecords",
    ),
    "admin.users": ("DescribeUserScramCredentials", "AlterUserScramCredentials"),
    "sasl": ("SaslHandshake", "SaslAuthenticate"),
    "admin.transactions": ("DescribeProducers", "DescribeTransactions", "ListTransactions"),
}
_OWN: Final = ("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "TransactionCall")
"""Their schemas are in `schemas/`."""
_SIDES: Final = ("Request", "Response")
_MODULE_OF: Final = {name + side: module for module, names in _MODULES.items() for name in names for side in _SIDES}
_OWN_MESSAGES: Final = frozenset(name + side for name in _OWN for side in _SIDES)


for _package in ("kafka", "kafka.protocol", "kafka.protocol.admin", "kafka.protocol.consumer",
                 "kafka.protocol.producer", "kafka.protocol.metadata"):
    place_late(_package)

from hapax.wire import hardening  # noqa: E402 - needs the packages above

hardening.install()

_NO_ID: Final = bytes(16)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is not None:
        message = getattr(importlib.import_module(f"kafka.protocol.{module}"), name)
    elif name in _OWN_MESSAGES:
        message = _from_own_schema(name)
    else:
        raise AttributeError(name)
    globals()[name] = message
    return message


def _from_own_schema(name: str) -> Any:
    """Generates the class as kafka-python generates its own. `load_json`: the package with the schema."""
    base = importlib.import_module("kafka.protocol.api_message").ApiMessage
    return type(base)(name, (base,), {"__module__": __name__}, load_json="hapax.wire.schemas")


def id_bytes(topic_id: UUID | None) -> bytes:
    """The 16 bytes of a topic id in a request. The library decodes the id zero, which names no topic, to None."""
    return _NO_ID if topic_id is None else topic_id.bytes


def unknown_tag(message: Any, tag: int) -> bytes | None:
    """The raw bytes of a tagged field that is not in the published schema; None where it is absent."""
    tags = message.unknown_tags
    return None if tags is None else tags.get(f"_{tag}")


def set_unknown_tag(message: Any, tag: int, value: bytes) -> None:
    """Adds a tagged field that is not in the published schema. It is written in flexible versions only."""
    if message.unknown_tags is None:
        message.unknown_tags = {}
    message.unknown_tags[f"_{tag}"] = value
