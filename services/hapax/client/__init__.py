"""The native client: producers, consumers, administration, leases, multi-writer transactions.

The asyncio classes are here. `hapax.client.blocking` has the same for programs without asyncio. Everything that does
not need Hapax's own calls also works with Apache Kafka. Guide with examples: docs/client.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hapax.client.admin import (
        Admin,
        ClusterInfo,
        ConfigValue,
        NewTopic,
        NodeInfo,
        ProducerInfo,
        TopicInfo,
        TopicPartitionInfo,
        TransactionInfo,
    )
    from hapax.client.consumer import Consumer
    from hapax.client.coordination import ConsumerGroup, OffsetAndMetadata
    from hapax.client.credentials import OAuthToken
    from hapax.client.errors import (
        AbortableError,
        AuthenticationError,
        ConditionFailedError,
        FatalError,
        FencedError,
        HapaxError,
        MembershipLostError,
        NotHapaxError,
        RetriableError,
        SaslAuthenticationFailed,
        SettingsError,
        WrongState,
    )
    from hapax.client.leases import Lease, LeaseInfo, Leases, Progress
    from hapax.client.multiwriter import Joined, MultiWriter, Winner, Writer
    from hapax.client.process_records import NewRecord
    from hapax.client.processor import Processor, process
    from hapax.client.producer import Committed, PreparedTransaction, Producer, StartFrom
    from hapax.client.records import DeliveryReport, Record
    from hapax.client.replication import BrokerInfo, ReassignmentInfo, Refused, ReplicaInfo
    from hapax.client.tokens import CommitToken, Conflict, LastToken, TokenConflictError, Work
    from hapax.core.types import TopicPartition

__all__ = [
    "AbortableError",
    "Admin",
    "AuthenticationError",
    "BrokerInfo",
    "ClusterInfo",
    "CommitToken",
    "Committed",
    "ConditionFailedError",
    "ConfigValue",
    "Conflict",
    "Consumer",
    "ConsumerGroup",
    "DeliveryReport",
    "FatalError",
    "FencedError",
    "HapaxError",
    "Joined",
    "LastToken",
    "Lease",
    "LeaseInfo",
    "Leases",
    "MembershipLostError",
    "MultiWriter",
    "NewRecord",
    "NewTopic",
    "NodeInfo",
    "NotHapaxError",
    "OAuthToken",
    "OffsetAndMetadata",
    "PreparedTransaction",
    "Processor",
    "Producer",
    "ProducerInfo",
    "Progress",
    "ReassignmentInfo",
    "Record",
    "Refused",
    "ReplicaInfo",
    "RetriableError",
    "SaslAuthenticationFailed",
    "SettingsError",
    "StartFrom",
    "TokenConflictError",
    "TopicInfo",
    "TopicPartition",
    "TopicPartitionInfo",
    "TransactionInfo",
    "Winner",
    "Work",
    "Writer",
    "WrongState",
    "process",
]

_MODULES = {
    "hapax.client.admin": (
        "Admin", "ClusterInfo", "ConfigValue", "NewTopic", "NodeInfo", "ProducerInfo", "TopicInfo",
        "TopicPartitionInfo", "TransactionInfo",
    ),
    "hapax.client.consumer": ("Consumer",),
    "hapax.client.coordination": ("ConsumerGroup", "OffsetAndMetadata"),
    "hapax.client.credentials": ("OAuthToken",),
    "hapax.client.errors": (
        "AbortableError", "AuthenticationError", "ConditionFailedError", "FatalError", "FencedError", "HapaxError",
        "MembershipLostError", "NotHapaxError", "RetriableError", "SaslAuthenticationFailed", "SettingsError",
        "WrongState",
    ),
    "hapax.client.leases": ("Lease", "LeaseInfo", "Leases", "Progress"),
    "hapax.client.multiwriter": ("Joined", "MultiWriter", "Winner", "Writer"),
    "hapax.client.process_records": ("NewRecord",),
    "hapax.client.processor": ("Processor", "process"),
    "hapax.client.producer": ("Committed", "PreparedTransaction", "Producer", "StartFrom"),
    "hapax.client.records": ("DeliveryReport", "Record"),
    "hapax.client.replication": ("BrokerInfo", "ReassignmentInfo", "Refused", "ReplicaInfo"),
    "hapax.client.tokens": ("CommitToken", "Conflict", "LastToken", "TokenConflictError", "Work"),
    "hapax.core.types": ("TopicPartition",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Imports a name at its first use, so that a program that only lists topics does not load the code for records."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(module), name)
    globals()[name] = found
    return found
