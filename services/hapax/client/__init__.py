"""The native client: producers, consumers, administration, leases, multi-writer transactions.

Here are the asyncio classes; `hapax.client.blocking` has the same for programs without asyncio. Everything that
does not need Hapax's own calls works against Apache Kafka too. Guide with examples: docs/client.md.
"""

from hapax.client.admin import (
    Admin,
    ClusterInfo,
    NewTopic,
    NodeInfo,
    ProducerInfo,
    TopicInfo,
    TopicPartitionInfo,
    TransactionInfo,
)
from hapax.client.consumer import Consumer
from hapax.client.coordination import ConsumerGroup, OffsetAndMetadata
from hapax.client.errors import (
    AbortableError,
    FatalError,
    FencedError,
    HapaxError,
    NotHapaxError,
    RetriableError,
    SettingsError,
    WrongState,
)
from hapax.client.leases import Lease, LeaseInfo, Leases, Progress
from hapax.client.multiwriter import Joined, MultiWriter, Winner, Writer
from hapax.client.producer import Committed, Producer, StartFrom
from hapax.client.records import DeliveryReport, Record
from hapax.client.tokens import CommitToken
from hapax.core.types import TopicPartition

__all__ = [
    "AbortableError",
    "Admin",
    "ClusterInfo",
    "CommitToken",
    "Committed",
    "Consumer",
    "ConsumerGroup",
    "DeliveryReport",
    "FatalError",
    "FencedError",
    "HapaxError",
    "Joined",
    "Lease",
    "LeaseInfo",
    "Leases",
    "MultiWriter",
    "NewTopic",
    "NodeInfo",
    "NotHapaxError",
    "OffsetAndMetadata",
    "Producer",
    "ProducerInfo",
    "Progress",
    "Record",
    "RetriableError",
    "SettingsError",
    "StartFrom",
    "TopicInfo",
    "TopicPartition",
    "TopicPartitionInfo",
    "TransactionInfo",
    "Winner",
    "Writer",
    "WrongState",
]
