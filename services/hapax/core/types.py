"""Identifiers of the log, each its own type, so that a producer id cannot be passed as an offset.

Widths are those of the Kafka protocol; `ShardEpoch`, `Serial` and `RegistrationEpoch` are Hapax's own.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

NodeId = NewType("NodeId", int)                        # int32, brokers count from 0
TopicId = NewType("TopicId", bytes)                    # 16 bytes, a random UUID; never reused
PartitionIndex = NewType("PartitionIndex", int)        # int32
Offset = NewType("Offset", int)                        # int64
LeaderEpoch = NewType("LeaderEpoch", int)              # int32, rises at every change of leader
ProducerId = NewType("ProducerId", int)                # int64, never reused
ProducerEpoch = NewType("ProducerEpoch", int)          # int16
Sequence = NewType("Sequence", int)                    # int32, wraps 2^31-1 -> 0
TimestampMs = NewType("TimestampMs", int)              # int64, ms since the Unix epoch (record time)
Millis = NewType("Millis", int)                        # a duration, or a reading of a monotonic clock, ms
ShardId = NewType("ShardId", int)                      # a coordinator's shard = partition of its internal topic
ShardEpoch = NewType("ShardEpoch", int)                # int32, rises at every change of a shard's owner
Serial = NewType("Serial", int)                        # int64, counts the transactions of one transactional id
RegistrationEpoch = NewType("RegistrationEpoch", int)  # int64, etcd create revision of a node's registration

NO_NODE: Final = NodeId(-1)
"""Stands for "none": a partition without a leader, a shard without an owner."""
NO_REGISTRATION: Final = RegistrationEpoch(0)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = Sequence(-1)
NO_OFFSET: Final = Offset(-1)
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_SHARD_EPOCH: Final = ShardEpoch(-1)
NO_SERIAL: Final = Serial(-1)

MAX_PRODUCER_EPOCH: Final = 32767
"""int16; the last value is reserved for fencing, so a new producer id is due at 32766 (KIP-360)."""


class Now(NamedTuple):
    """The two clocks of an event: monotonic for limits, wall for times that people read."""

    monotonic: Millis
    wall: TimestampMs


class TopicPartition(NamedTuple):
    """A partition by name, as clients say it."""

    topic: str
    partition: PartitionIndex


class TopicIdPartition(NamedTuple):
    """A partition named by its topic's id, as in folders, transactions and markers. A topic's name may be reused."""

    topic_id: TopicId
    partition: PartitionIndex

LONGEST_NAME_BYTES: Final = 32_767
"""Longest transactional id or group id in bytes: their records' keys have an int16 length, as Kafka's do."""
